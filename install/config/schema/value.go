package schema

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/install/config/secret"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/strictyaml"
)

// Found describes a scalar with its text as the file has it, before ${NAME} is
// replaced: that is what the user can look for.
func (n Node) Found() string {
	text := query.ReplaceAllString(userInfo.ReplaceAllString(n.in.YAML.Value, ":...@"), "?...")
	out := strictyaml.Quote(text, 60)
	if n.hasReference() {
		out += " (after putting in the variable)"
	}
	return out
}

// userInfo is where a password or token stands in user:password@host and
// https://token@host.
var userInfo = lazyregexp.New(`(://[^/@]*|:[^:@]*)@`)

// query is the part of an address where tokens stand too.
var query = lazyregexp.New(`\?.+`)

func (n Node) hasReference() bool {
	return slices.ContainsFunc(reference.FindAllString(n.in.YAML.Value, -1),
		func(ref string) bool { return ref != "$$" })
}

// scalar returns the text of a scalar with references replaced. kind is what YAML must see in
// it, which a reference hides.
func (n Node) scalar(kind strictyaml.Kind, want string) (string, bool) {
	if !n.Usable(want) {
		return "", false
	}
	isReference := n.in.IsText() && n.hasReference()
	switch {
	case !n.in.IsScalar():
		n.Fail("found %s, expected %s", n.Kind(), want)
		return "", false
	case n.in.Kind() != kind && kind == strictyaml.Text:
		n.Fail("found %s, expected %s: put it in quotes", n.Kind(), want)
		return "", false
	case n.in.Kind() != kind && !isReference:
		n.Fail("found %s, expected %s", n.Kind(), want)
		return "", false
	}
	return n.expand(OneLine)
}

// Text reads a string and hands it to parse, whose error says what was expected.
func Text[T any](n Node, parse func(string) (T, error)) T {
	var zero T
	if n.schema != nil {
		n.schema.Type, n.schema.MinLength = "string", 1
		return zero
	}
	s, ok := n.scalar(strictyaml.Text, "text")
	if !ok {
		return zero
	}
	v, err := parse(s)
	if err != nil {
		n.Fail("found %s, %v", n.Found(), err)
		return zero
	}
	return v
}

// Secret reads a string that no message shows.
func (n Node) Secret() secret.Text {
	if n.schema != nil {
		n.schema.Type, n.schema.MinLength = "string", 1
		return secret.Text{}
	}
	s, ok := n.scalar(strictyaml.Text, "text")
	if !ok {
		return secret.Text{}
	}
	if !n.hasReference() && n.document.plainSecret == nil {
		n.document.plainSecret = &n
	}
	if strings.Trim(s, "*") == "" {
		n.Warn("holds only asterisks: is this still the placeholder of an example?")
	}
	return secret.New(s)
}

// LineOrEmpty reads a text that may be "", such as the value of a label. ok is false after a
// problem.
func (n Node) LineOrEmpty() (s string, ok bool) {
	if n.schema != nil {
		n.schema.Type = "string"
		return "", false
	}
	if !n.Usable("text") {
		return "", false
	}
	if !n.in.IsText() {
		hint := ""
		if n.in.IsScalar() {
			hint = ": put it in quotes"
		}
		n.Fail("found %s, expected text%s", n.Kind(), hint)
		return "", false
	}
	return n.expand(lineOrEmpty)
}

// Decimal reads a number with a fraction, if it stays as it is written: 1.10 would become 1.1.
// ok is false for everything else, which is not reported.
func (n Node) Decimal() (f float64, ok bool) {
	if n.schema != nil || n.in.Kind() != strictyaml.Float || n.in.YAML.Anchor != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(n.in.YAML.Value, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) || strconv.FormatFloat(f, 'f', -1, 64) != n.in.YAML.Value {
		return 0, false
	}
	return f, true
}

// PlainOrList reads what Plain does, or a list of at most so many of them, which it returns as
// their texts, a []string.
func (n Node) PlainOrList(most int) (any, bool) {
	const one, want = "text, true or false, or a whole number", "text, true or false, a whole number, or a list of them"
	if n.schema != nil {
		item := &jsonSchema{}
		n.schema.AnyOf = []*jsonSchema{{}, {Type: "array", MaxItems: most, Items: item}}
		n.describe(n.schema.AnyOf[0]).Plain(OneLine, want)
		n.describe(item).Plain(OneLine, one)
		return nil, false
	}
	if !n.IsList() {
		return n.Plain(OneLine, want)
	}
	if count := n.Len(); count > most {
		n.Fail("found %d items, expected at most %d", count, most)
		return nil, false
	}
	items, all := []string{}, true
	n.List(func(_ int, item Node) {
		v, ok := item.Plain(OneLine, one)
		all = all && ok
		items = append(items, fmt.Sprint(v))
	})
	return items, all && len(items) == n.Len()
}

// Plain reads a scalar as YAML sees it: a text, true or false, or a whole number. What
// YAML would make something else of than the eye sees has to stand in quotes.
func (n Node) Plain(allowed Shape, want string) (any, bool) {
	if n.schema != nil {
		n.schema.Type = []string{"string", "boolean", "integer"}
		return nil, false
	}
	if !n.Usable(want) {
		return nil, false
	}
	if !n.in.IsScalar() {
		n.Fail("found %s, expected %s", n.Kind(), want)
		return nil, false
	}
	switch n.in.Kind() {
	case strictyaml.Text:
		s, ok := n.expand(allowed)
		return s, ok
	case strictyaml.Bool:
		return strings.EqualFold(n.in.YAML.Value, "true"), true
	case strictyaml.Integer:
		if v, ok := strictyaml.Int(n.in.YAML.Value, math.MinInt64, math.MaxInt64); ok {
			return v, true
		}
	}
	n.Fail("found %s %s, expected %s: put it in quotes", n.Kind(), n.Found(), want)
	return nil, false
}

// Number reads a whole decimal number.
func (n Node) Number(lowest, highest int) int {
	if n.schema != nil {
		n.schema.AnyOf = []*jsonSchema{{Type: "integer", Minimum: &lowest, Maximum: &highest}, referenceSchema()}
		return 0
	}
	want := fmt.Sprintf("a whole number from %d to %d", lowest, highest)
	s, ok := n.scalar(strictyaml.Integer, want)
	if !ok {
		return 0
	}
	v, ok := strictyaml.Int(s, int64(lowest), int64(highest))
	if !ok {
		n.Fail("found %s, expected %s", n.Found(), want)
		return 0
	}
	return int(v)
}

// Boolean reads true or false.
func (n Node) Boolean() bool {
	if n.schema != nil {
		n.schema.AnyOf = []*jsonSchema{{Type: "boolean"}, referenceSchema()}
		return false
	}
	s, ok := n.scalar(strictyaml.Bool, "true or false")
	if !ok {
		return false
	}
	switch strings.ToLower(s) {
	case "true":
		return true
	case "false":
		return false
	}
	n.Fail("found %s, expected true or false", n.Found())
	return false
}

// The environment is outside input too: one value and all of them together are
// bounded.
const (
	MaxValue    = 16 << 10
	maxExpanded = 1 << 20
)

var reference = lazyregexp.New(`\$\$|\$\{[^}]*\}?`)
var variableName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Shape says which texts a value may be.
type Shape int

// OneLine is what nearly every value is; lineOrEmpty may also be "", and AnyText may
// also have several lines.
const (
	OneLine Shape = iota
	lineOrEmpty
	AnyText
)

// expand replaces the references in a scalar and checks what the value may not be.
func (n Node) expand(allowed Shape) (string, bool) {
	ok := true
	fail := func(format string, args ...any) {
		n.Fail(format, args...)
		ok = false
	}
	s := reference.ReplaceAllStringFunc(n.in.YAML.Value, func(ref string) string {
		if ref == "$$" {
			return "$"
		}
		name, closed := strings.CutSuffix(strings.TrimPrefix(ref, "${"), "}")
		if !closed || !variableName.MatchString(name) {
			// What stands there may be part of a password.
			fail("found ${ without the name of a variable and }, expected ${NAME}: write $${ for a literal ${")
			return ""
		}
		value, set := n.document.lookupEnv(name)
		if !set {
			fail("environment variable %s is not set", name)
			return ""
		}
		if n.document.expanded += len(value); len(value) > MaxValue || n.document.expanded > maxExpanded {
			fail("environment variable %s is too long, expected at most %d KiB in one value and %d KiB in all", name,
				MaxValue>>10, maxExpanded>>10)
			return ""
		}
		return value
	})
	switch {
	case !ok:
	case s == "" && n.hasReference():
		fail("found %s, which is empty", n.in.YAML.Value) // nothing but references: no secret
	case s == "" && allowed == OneLine:
		fail("found an empty text, expected a value: leave the key out if it is not wanted")
	case allowed == AnyText && strings.Contains(s, "\x00"):
		fail("found a NUL, expected text")
	case allowed != AnyText && strings.ContainsAny(s, "\n\r\x00"):
		fail("found a line break or a NUL, expected one line of text")
	}
	return s, ok
}

// OneOf reads one of a few words.
func OneOf[T ~string](n Node, words ...T) T {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	last := len(texts) - 1
	read := Text(n, func(s string) (T, error) {
		for _, w := range words {
			if s == string(w) {
				return w, nil
			}
		}
		return "", errors.New("expected " + strings.Join(texts[:last], ", ") + " or " + texts[last])
	})
	n.Among(texts...)
	return read
}
