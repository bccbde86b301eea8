package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decoder walks one document and gathers everything that is wrong with it.
type decoder struct {
	file        string
	lookupEnv   func(string) (string, bool)
	expanded    int                // bytes that ${NAME} references have brought in so far
	definitions map[string]*schema // while a schema is made

	problems      []Problem
	moreProblems  int // found beyond maxProblems
	warnings      []Warning
	literalSecret *node // the first secret that the file holds as it is
}

// node is a YAML node and the path that leads to it.
//
// The same functions that read a file also describe what they would read: for a node
// with a schema they fill that in, look at nothing and report nothing. So what editors
// are told cannot differ from what is accepted.
type node struct {
	d      *decoder
	yaml   *yaml.Node
	path   string
	schema *schema
}

// at is another YAML node of the same document.
func (n node) at(y *yaml.Node, path string) node { return node{d: n.d, yaml: y, path: path} }

// maxProblems is more than anybody mends from one list, and keeps a file that was
// never an install.yaml from filling the memory.
const maxProblems = 1000

func (n node) fail(format string, args ...any) {
	if n.schema != nil {
		return
	}
	if len(n.d.problems) == maxProblems {
		n.d.moreProblems++
		return
	}
	n.d.problems = append(n.d.problems, n.problem(format, args...))
}

func (n node) warn(format string, args ...any) {
	if n.schema != nil {
		return
	}
	if len(n.d.warnings) == maxProblems {
		return
	}
	n.d.warnings = append(n.d.warnings, Warning(n.problem(format, args...)))
}

func (n node) problem(format string, args ...any) Problem {
	return Problem{File: n.d.file, Line: n.yaml.Line, Path: n.path, Text: fmt.Sprintf(format, args...)}
}

// document parses data and returns its only document's root.
func (d *decoder) document(data []byte) (node, bool) {
	fail := func(line int, text string) (node, bool) {
		d.problems = append(d.problems, Problem{File: d.file, Line: line, Text: text})
		return node{}, false
	}
	if len(data) > maxSize {
		return fail(0, fmt.Sprintf("found more than %d KiB, expected an install.yaml", maxSize>>10))
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return fail(0, "found an empty file, expected an install.yaml")
	} else if err != nil {
		return fail(syntaxProblem(data, err))
	}
	var second yaml.Node
	if err := decoder.Decode(&second); err == nil {
		return fail(second.Line, "found a second document, expected only one")
	} else if !errors.Is(err, io.EOF) {
		return fail(syntaxProblem(data, err))
	}
	return node{d: d, yaml: doc.Content[0]}, true
}

var (
	yamlError     = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
	// These come from the parser, which counts lines from 0; the others come from the
	// scanner, which counts from 1. The first group is reported where the block that
	// has the fault begins.
	blockError  = regexp.MustCompile(`^did not find expected (key|'-' indicator|',' or)`)
	parserError = regexp.MustCompile(`^(did not find expected (node content|<)|found (undefined tag|duplicate|incompatible))`)
)

// syntaxProblem turns a parser's error into a line and a text. The parser quotes
// what it found only for unknown anchors; that may be a password that begins with
// an asterisk and is not in quotes, so it is kept out of the text.
func syntaxProblem(data []byte, err error) (line int, text string) {
	m := yamlError.FindStringSubmatch(err.Error())
	if m == nil {
		return 0, "not valid YAML"
	}
	line, _ = strconv.Atoi(m[1]) // no number: 0
	switch anchor := unknownAnchor.FindStringSubmatch(m[2]); {
	case anchor != nil:
		if before, _, found := strings.Cut(string(data), "*"+anchor[1]); found {
			line = strings.Count(before, "\n") + 1
		}
		return line, "found an alias (*), expected a value: put text that begins with * in quotes"
	case blockError.MatchString(m[2]):
		text = "the block that begins here is not valid YAML: " + m[2]
		if strings.HasPrefix(m[2], "did not find expected ','") {
			text += " (text with special characters or ${NAME} needs quotes here)"
		}
		return line + 1, text
	case parserError.MatchString(m[2]):
		return line + 1, "not valid YAML: " + m[2]
	default:
		line = max(line, 1)
		if indentedByTab(data, line) {
			return line, "found a tab, expected spaces: YAML is indented with spaces only"
		}
		return line, "not valid YAML: " + m[2]
	}
}

// indentedByTab says whether a tab stands before the text of a line.
func indentedByTab(data []byte, line int) bool {
	lines := bytes.SplitN(data, []byte("\n"), line+1)
	if len(lines) < line {
		return false
	}
	at := lines[line-1]
	return bytes.ContainsRune(at[:len(at)-len(bytes.TrimLeft(at, " \t"))], '\t')
}

// field is one key that a mapping may have.
type field struct {
	key      string
	required bool
	doc      string // what editors show: the meaning, and the default if there is one
	read     func(node)
}

// mapping hands each value of a mapping to its field and returns the values that
// are present by key.
func (n node) mapping(fields ...field) map[string]node {
	present := map[string]node{}
	if n.schema != nil {
		n.describeMapping(fields)
		return present
	}
	if !n.usable("a mapping") {
		return present
	}
	if n.yaml.Kind != yaml.MappingNode {
		n.fail("found %s, expected a mapping with %s", n.kind(), keyList(fields))
		return present
	}
	for i := 0; i+1 < len(n.yaml.Content); i += 2 {
		key, value := n.yaml.Content[i], n.yaml.Content[i+1]
		at := n.at(key, n.path)
		if key.Kind != yaml.ScalarNode || key.Tag != "!!str" {
			at.fail("found a key that is %s, expected one of %s", at.kind(), keyList(fields))
			continue
		}
		f := slices.IndexFunc(fields, func(f field) bool { return f.key == key.Value })
		if f < 0 {
			// In { } the rest of a text after a comma looks like a key without a value,
			// and that text may be a password.
			if !shownKey.MatchString(key.Value) || n.yaml.Style&yaml.FlowStyle != 0 && value.Tag == "!!null" {
				at.fail("found something that is not a key, expected one of %s: put text with special characters in quotes", keyList(fields))
				continue
			}
			at.path = join(n.path, key.Value)
			at.fail("unknown key, %s", suggestion(key.Value, fields))
			continue
		}
		at.path = join(n.path, key.Value)
		if first, again := present[key.Value]; again {
			at.fail("found again, expected once: it is on line %d already", first.yaml.Line)
			continue
		}
		v := n.at(value, at.path)
		present[key.Value] = v
		fields[f].read(v)
	}
	for _, f := range fields {
		if _, ok := present[f.key]; f.required && !ok {
			n.fail("%s is missing", f.key)
		}
	}
	return present
}

var shownKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,39}$`)

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// maxItems bounds every list; k3s clusters are smaller.
const maxItems = 1000

// list hands each item of a list to read.
func (n node) list(read func(i int, item node)) {
	if n.schema != nil {
		n.schema.Type, n.schema.MaxItems, n.schema.Items = "array", maxItems, &schema{}
		read(0, n.describe(n.schema.Items))
		return
	}
	if !n.usable("a list") {
		return
	}
	if n.yaml.Kind != yaml.SequenceNode {
		n.fail("found %s, expected a list", n.kind())
		return
	}
	if len(n.yaml.Content) > maxItems {
		n.fail("found %d items, expected at most %d", len(n.yaml.Content), maxItems)
		return
	}
	for i, item := range n.yaml.Content {
		read(i, n.at(item, fmt.Sprintf("%s[%d]", n.path, i)))
	}
}

// either reads a node that is a text or a mapping.
func (n node) either(text, mapping func(node)) {
	switch {
	case n.schema != nil:
		n.schema.AnyOf = []*schema{{}, {}}
		text(n.describe(n.schema.AnyOf[0]))
		mapping(n.describe(n.schema.AnyOf[1]))
	case n.yaml.Kind == yaml.MappingNode:
		mapping(n)
	case n.yaml.Kind == yaml.SequenceNode:
		if n.usable("text or a mapping") {
			n.fail("found %s, expected text or a mapping", n.kind())
		}
	default:
		text(n)
	}
}

// entries hands each entry of a mapping whose keys are not known beforehand to read. A
// key has to match pattern; want says what it is. The node of the key is for messages
// about the key, and has the path of the mapping.
func (n node) entries(want string, pattern *regexp.Regexp, read func(key string, at, value node)) {
	if n.schema != nil {
		value := &schema{}
		n.schema.Type, n.schema.PropertyNames, n.schema.AdditionalProperties = "object", &schema{Pattern: pattern.String()}, value
		read("", n, n.describe(value))
		return
	}
	if !n.usable("a mapping") {
		return
	}
	if n.yaml.Kind != yaml.MappingNode {
		n.fail("found %s, expected a mapping from %s", n.kind(), want)
		return
	}
	if count := len(n.yaml.Content) / 2; count > maxItems {
		n.fail("found %d keys, expected at most %d", count, maxItems)
		return
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.yaml.Content); i += 2 {
		key, value := n.yaml.Content[i], n.yaml.Content[i+1]
		at := n.at(key, n.path)
		switch line, again := first[key.Value]; {
		case !at.usable("a key"):
		case key.Kind != yaml.ScalarNode || key.Tag != "!!str":
			at.fail("found a key that is %s, expected %s: put it in quotes", at.kind(), want)
		case !pattern.MatchString(key.Value):
			if n.yaml.Style&yaml.FlowStyle != 0 && value.Tag == "!!null" {
				// See mapping: it may be the rest of a password.
				at.fail("found something that is not a key, expected %s: put text with special characters in quotes", want)
				continue
			}
			at.fail("found the key %s, expected %s", at.found(), want)
		case again:
			at.fail("found the key %s again, expected it once: it is on line %d already", at.found(), line)
		default:
			first[key.Value] = key.Line
			read(key.Value, at, n.at(value, joinAny(n.path, key.Value)))
		}
	}
}

// joinAny is join for keys with special characters, dots among them.
func joinAny(path, key string) string {
	if plainKey.MatchString(key) {
		return join(path, key)
	}
	if runes := []rune(key); len(runes) > 80 {
		key = string(runes[:80]) + "..."
	}
	return path + "[" + strconv.Quote(key) + "]"
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)

// usable reports what is never a value here: an alias, an anchor, a tag, or nothing.
// Refusing aliases also takes away the means to blow up a small file.
func (n node) usable(want string) bool {
	switch {
	case n.yaml.Kind == yaml.AliasNode:
		n.fail("found an alias (*), expected %s: put text that begins with * in quotes", want)
	case n.yaml.Anchor != "":
		n.fail("found an anchor (&), expected %s: put text that begins with & in quotes", want)
	case n.yaml.Style&yaml.TaggedStyle != 0:
		n.fail("found a tag (!), expected %s: put text that begins with ! in quotes", want)
	case n.yaml.Tag == "!!null":
		n.fail("found nothing, expected %s: leave the key out if it is not wanted", want)
	default:
		return true
	}
	return false
}

// kind describes the node without its text.
func (n node) kind() string {
	switch n.yaml.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.yaml.Tag {
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "true or false"
	case "!!timestamp":
		return "a date"
	case "!!null":
		return "nothing"
	case "!!merge":
		return "a merge key (<<)"
	}
	return "text"
}

// found describes a scalar with its text as the file has it, before ${NAME} is
// replaced: that is what the user can look for.
func (n node) found() string {
	const most = 60
	text := query.ReplaceAllString(userInfo.ReplaceAllString(n.yaml.Value, ":...@"), "?...")
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "..."
	}
	out := strconv.Quote(text)
	if n.hasReference() {
		out += " (after putting in the variable)"
	}
	return out
}

// userInfo is where a password or token stands in user:password@host and
// https://token@host.
var userInfo = regexp.MustCompile(`(://[^/@]*|:[^:@]*)@`)

// query is the part of an address where tokens stand too.
var query = regexp.MustCompile(`\?.+`)

func (n node) hasReference() bool {
	return slices.ContainsFunc(reference.FindAllString(n.yaml.Value, -1), func(ref string) bool { return ref != "$$" })
}

// scalar returns the text of a scalar with references replaced. tag is the type
// that YAML must see in it, which a reference hides.
func (n node) scalar(tag, want string) (string, bool) {
	if !n.usable(want) {
		return "", false
	}
	isReference := n.yaml.Kind == yaml.ScalarNode && n.yaml.Tag == "!!str" && n.hasReference()
	switch {
	case n.yaml.Kind != yaml.ScalarNode:
		n.fail("found %s, expected %s", n.kind(), want)
		return "", false
	case n.yaml.Tag != tag && tag == "!!str":
		n.fail("found %s, expected %s: put it in quotes", n.kind(), want)
		return "", false
	case n.yaml.Tag != tag && !isReference:
		n.fail("found %s, expected %s", n.kind(), want)
		return "", false
	}
	return n.expand(oneLine)
}

// text reads a string and hands it to parse, whose error says what was expected.
func text[T any](n node, parse func(string) (T, error)) T {
	var zero T
	if n.schema != nil {
		n.schema.Type, n.schema.MinLength = "string", 1
		return zero
	}
	s, ok := n.scalar("!!str", "text")
	if !ok {
		return zero
	}
	v, err := parse(s)
	if err != nil {
		n.fail("found %s, %v", n.found(), err)
		return zero
	}
	return v
}

// secret reads a string that no message shows.
func (n node) secret() Secret {
	if n.schema != nil {
		n.schema.Type, n.schema.MinLength = "string", 1
		return Secret{}
	}
	s, ok := n.scalar("!!str", "text")
	if !ok {
		return Secret{}
	}
	if !n.hasReference() && n.d.literalSecret == nil {
		n.d.literalSecret = &n
	}
	if strings.Trim(s, "*") == "" {
		n.warn("holds only asterisks: is this still the placeholder of an example?")
	}
	return NewSecret(s)
}

// plain reads a scalar as YAML sees it: a text, true or false, or a whole number. What
// YAML would make something else of than the eye sees has to stand in quotes.
func (n node) plain(allowed shape, want string) (any, bool) {
	if n.schema != nil {
		n.schema.Type = []string{"string", "boolean", "integer"}
		return nil, false
	}
	if !n.usable(want) {
		return nil, false
	}
	if n.yaml.Kind != yaml.ScalarNode {
		n.fail("found %s, expected %s", n.kind(), want)
		return nil, false
	}
	switch n.yaml.Tag {
	case "!!str":
		s, ok := n.expand(allowed)
		return s, ok
	case "!!bool":
		return strings.EqualFold(n.yaml.Value, "true"), true
	case "!!int":
		v, err := strconv.ParseInt(n.yaml.Value, 10, 64)
		if err == nil && strconv.FormatInt(v, 10) == n.yaml.Value {
			return v, true
		}
	}
	n.fail("found %s %s, expected %s: put it in quotes", n.kind(), n.found(), want)
	return nil, false
}

// number reads a whole decimal number.
func (n node) number(lowest, highest int) int {
	if n.schema != nil {
		n.schema.AnyOf = []*schema{{Type: "integer", Minimum: &lowest, Maximum: &highest}, referenceSchema()}
		return 0
	}
	want := fmt.Sprintf("a whole number from %d to %d", lowest, highest)
	s, ok := n.scalar("!!int", want)
	if !ok {
		return 0
	}
	v, err := strconv.Atoi(s)
	// Atoi takes a sign and leading zeros, which elsewhere mean octal.
	if err != nil || v < lowest || v > highest || strconv.Itoa(v) != s {
		n.fail("found %s, expected %s", n.found(), want)
		return 0
	}
	return v
}

// boolean reads true or false.
func (n node) boolean() bool {
	if n.schema != nil {
		n.schema.AnyOf = []*schema{{Type: "boolean"}, referenceSchema()}
		return false
	}
	s, ok := n.scalar("!!bool", "true or false")
	if !ok {
		return false
	}
	switch strings.ToLower(s) {
	case "true":
		return true
	case "false":
		return false
	}
	n.fail("found %s, expected true or false", n.found())
	return false
}

// The environment is outside input too: one value and all of them together are
// bounded.
const (
	maxValue    = 16 << 10
	maxExpanded = 1 << 20
)

var reference = regexp.MustCompile(`\$\$|\$\{[^}]*\}?`)
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// shape says which texts a value may be.
type shape int

// oneLine is what nearly every value is; lineOrEmpty may also be "", and anyText may
// also have several lines.
const (
	oneLine shape = iota
	lineOrEmpty
	anyText
)

// expand replaces the references in a scalar and checks what the value may not be.
func (n node) expand(allowed shape) (string, bool) {
	ok := true
	fail := func(format string, args ...any) {
		n.fail(format, args...)
		ok = false
	}
	s := reference.ReplaceAllStringFunc(n.yaml.Value, func(ref string) string {
		if ref == "$$" {
			return "$"
		}
		name, closed := strings.CutSuffix(strings.TrimPrefix(ref, "${"), "}")
		if !closed || !variableName.MatchString(name) {
			// What stands there may be part of a password.
			fail("found ${ without the name of a variable and }, expected ${NAME}: write $${ for a literal ${")
			return ""
		}
		value, set := n.d.lookupEnv(name)
		if !set {
			fail("environment variable %s is not set", name)
			return ""
		}
		if n.d.expanded += len(value); len(value) > maxValue || n.d.expanded > maxExpanded {
			fail("environment variable %s is too long, expected at most %d KiB in one value and %d KiB in all", name, maxValue>>10, maxExpanded>>10)
			return ""
		}
		return value
	})
	switch {
	case !ok:
	case s == "" && n.hasReference():
		fail("found %s, which is empty", n.yaml.Value) // nothing but references: no secret
	case s == "" && allowed == oneLine:
		fail("found an empty text, expected a value: leave the key out if it is not wanted")
	case allowed == anyText && strings.Contains(s, "\x00"):
		fail("found a NUL, expected text")
	case allowed != anyText && strings.ContainsAny(s, "\n\r\x00"):
		fail("found a line break or a NUL, expected one line of text")
	}
	return s, ok
}

func keyList(fields []field) string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	return strings.Join(keys, ", ")
}

// suggestion names the key that was probably meant, or all of them.
func suggestion(key string, fields []field) string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	if best := closest(key, keys, len(key)/3); best != "" {
		return "did you mean " + best + "?"
	}
	return "expected one of " + keyList(fields)
}

// closest returns the key that differs least from the given one, by no more than so many
// letters, or "". Dashes, underscores and case do not count.
func closest(key string, keys []string, most int) string {
	plain := func(s string) string { return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)) }
	best := ""
	for _, k := range keys {
		if d := distance(plain(key), plain(k)); d <= most {
			best, most = k, d-1
		}
	}
	return best
}

// distance is the number of letters to insert, delete, change or swap with their
// neighbour to get from a to b.
func distance(a, b string) int {
	var before, last []int
	current := make([]int, len(b)+1)
	for j := range current {
		current[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, current = last, current, make([]int, len(b)+1)
		current[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			current[j] = min(last[j]+1, current[j-1]+1, change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				current[j] = min(current[j], before[j-2]+1)
			}
		}
	}
	return current[len(b)]
}
