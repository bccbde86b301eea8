package lock

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v3"
)

// Bounds on what is read. A lock with the contents of several large image archives
// stays far below them.
const (
	// MaxSize is the largest lock that is read, in bytes. The YAML parser needs up to
	// 200 times as much memory for a file made to hurt.
	MaxSize       = 2 << 20
	maxComponents = 256
	maxItems      = 1 << 14  // in one list
	maxBytes      = 64 << 40 // of one artifact
	maxErrors     = 1000
	maxFound      = 80 // characters of a wrong value that are shown
)

// ReadFile returns what is in the file at path, for [Parse] or [ParseDocument]. Of a file
// that is too large for a lock it reads no more than makes them refuse it.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	return io.ReadAll(io.LimitReader(f, MaxSize+1))
}

// Parse reads and checks a lock; name is what errors call it. An error is always an
// [Errors].
func Parse(name string, data []byte) (*Lock, error) {
	l, _, err := parse(name, data)
	return l, err
}

// parse also returns the mapping at the root of the document, for editing.
func parse(name string, data []byte) (*Lock, *yaml.Node, error) {
	r := &reader{name: name}
	root := r.document(data)
	l := new(Lock)
	if len(r.errs) == 0 {
		r.lock(l, value{node: root})
	}
	if len(r.errs) > 0 {
		r.errs.sort()
		return nil, nil, r.errs
	}
	return l, root, nil
}

// The schema: one function for each kind of mapping in the file.

func (r *reader) lock(l *Lock, v value) {
	var apiVersion, kind string
	r.mapping(v, slices.Concat([]field{
		{"apiVersion", required, text(r, &apiVersion, only(APIVersion))},
		{"kind", required, text(r, &kind, only(Kind))},
	}, r.validity(&l.Validity), []field{
		{"platforms", required, r.platforms(&l.Platforms)},
		{"components", required, func(v value) { r.components(l, v) }},
	})...)
}

func (r *reader) components(l *Lock, v value) {
	refs := make(map[string]pin)
	entries := r.entries(v)
	if len(entries) > maxComponents {
		r.failf(v, "has %d components: expected %d at most", len(entries), maxComponents)
		return
	}
	for _, e := range entries {
		c := Component{Name: e.key.Value, Line: e.key.Line}
		if reason := checkComponent(c.Name); reason != "" {
			r.failf(value{e.key, v.path}, "%s %s", found(e.key), reason)
		}
		r.component(&c, e.value, refs)
		// A typing error in either list would otherwise leave the component out of
		// the bundle without a word. An empty list of the lock's is an error already.
		if len(l.Platforms) > 0 && len(c.Platforms) > 0 && len(c.PlatformsIn(l)) == 0 {
			r.failf(value{e.key, e.path}, "has none of the lock's platforms: expected at least one of %s", joinPlatforms(l.Platforms))
		}
		l.Components = append(l.Components, c)
	}
	if len(entries) == 0 && v.node.Kind == yaml.MappingNode {
		r.failf(v, "is empty: expected at least one component")
	}
}

// pin is where an image was first given a digest.
type pin struct {
	digest digest.Digest
	line   int
}

// drainedFor is the component that nodes may be drained for.
const drainedFor = "k3s"

// component reads c. refs collects the digest of each reference: two components may
// both need an image, but not two different images under one name.
func (r *reader) component(c *Component, v value, refs map[string]pin) {
	r.mapping(v,
		field{"version", required, r.version(&c.Version)},
		field{"platforms", optional, r.platforms(&c.Platforms)},
		field{"upgradesFrom", optional, r.list(func(v value) {
			var s string
			text(r, &s, checkRange)(v)
			c.UpgradesFrom = append(c.UpgradesFrom, s)
		})},
		field{"requiresDrain", optional, func(v value) {
			if r.flag(&c.RequiresDrain)(v); c.Name != drainedFor {
				r.failf(v, "is not for %s: expected it in the component %s, which nodes are drained for", c.Name, drainedFor)
			}
		}},
		field{"files", optional, func(v value) {
			seen := make(map[string][]File)
			r.list(func(v value) { c.Files = append(c.Files, r.file(v, seen)) })(v)
		}},
		field{"charts", optional, func(v value) {
			seen := make(map[string]int)
			r.list(func(v value) { c.Charts = append(c.Charts, r.chart(v, seen)) })(v)
		}},
		field{"images", optional, func(v value) {
			seen := make(map[string]int)
			r.list(func(v value) { c.Images = append(c.Images, r.image(v, seen, refs)) })(v)
		}},
	)
}

func (r *reader) file(v value, seen map[string][]File) File {
	f := File{Line: v.node.Line}
	r.mapping(v,
		field{"name", required, text(r, &f.Name, checkName)},
		field{"platform", optional, text(r, &f.Platform, checkPlatform)},
		field{"url", required, text(r, &f.URL, checkURL)},
		field{"sha256", optional, text(r, &f.SHA256, checkSHA256)},
		field{"size", optional, r.size(&f.Size)},
	)
	for _, other := range seen[f.Name] {
		if other.Platform.Match(f.Platform) && f.Name != "" {
			r.failf(v, "%s is listed already on line %d: expected each name once, or once for each platform",
				strings.TrimSpace(f.Name+" "+string(f.Platform)), other.Line)
			return f
		}
	}
	seen[f.Name] = append(seen[f.Name], f)
	return f
}

func (r *reader) chart(v value, seen map[string]int) Chart {
	c := Chart{Line: v.node.Line}
	r.mapping(v,
		field{"name", required, text(r, &c.Name, checkName)},
		field{"url", required, text(r, &c.URL, checkURL)},
		field{"sha256", optional, text(r, &c.SHA256, checkSHA256)},
		field{"size", optional, r.size(&c.Size)},
	)
	r.once(v, seen, c.Name)
	return c
}

func (r *reader) image(v value, seen map[string]int, refs map[string]pin) Image {
	m := Image{Line: v.node.Line}
	got := r.mapping(v,
		field{"ref", optional, text(r, &m.Ref, checkRef)},
		field{"digest", optional, text(r, &m.Digest, checkDigest)},
		field{"archive", optional, text(r, &m.Archive, checkURL)},
		field{"platform", optional, text(r, &m.Platform, checkPlatform)},
		field{"sha256", optional, text(r, &m.SHA256, checkSHA256)},
		field{"size", optional, r.size(&m.Size)},
		field{"contents", optional, func(v value) { m.Contents = r.contents(v) }},
	)
	if got == nil {
		return m
	}
	ref, isRef := got["ref"]
	archive, isArchive := got["archive"]
	switch {
	case isRef && isArchive:
		r.failf(archive, "stands beside ref: expected one of them")
	case isRef:
		for _, key := range []string{"platform", "sha256", "size", "contents"} {
			if extra, ok := got[key]; ok {
				r.failf(extra, "belongs to an archive: expected only ref and digest here")
			}
		}
		r.once(ref, seen, m.Ref)
		first, ok := refs[m.Ref]
		switch {
		case !ok && m.Ref != "" && m.Digest != "":
			refs[m.Ref] = pin{m.Digest, v.node.Line}
		case ok && m.Digest != "" && first.digest != m.Digest:
			r.failf(got["digest"], "is another digest for %s than on line %d: expected %s", m.Ref, first.line, first.digest)
		}
	case isArchive:
		if extra, ok := got["digest"]; ok {
			r.failf(extra, "belongs to a ref: expected sha256 for an archive")
		}
		if _, ok := got["platform"]; !ok {
			r.failf(v, "has no platform: expected one for an archive, for example platform: linux/amd64")
		}
		r.once(archive, seen, m.Archive)
	default:
		r.failf(v, "has neither ref nor archive: expected one of them")
	}
	return m
}

func (r *reader) contents(v value) *Contents {
	c := new(Contents)
	r.mapping(v,
		field{"images", required, func(v value) {
			seen := make(map[string]int)
			r.some(v, func(v value) {
				var m ArchiveImage
				r.mapping(v,
					field{"ref", required, text(r, &m.Ref, checkRef)},
					field{"digest", required, text(r, &m.Digest, checkDigest)},
					field{"size", required, r.size(&m.Size)},
					field{"mediaType", required, text(r, &m.MediaType, checkMediaType)},
				)
				r.once(v, seen, m.Ref)
				c.Images = append(c.Images, m)
			})
		}},
		field{"blobs", required, func(v value) {
			seen := make(map[string]int)
			r.some(v, func(v value) {
				var b ArchiveBlob
				r.mapping(v,
					field{"path", required, text(r, &b.Path, checkMember)},
					field{"digest", required, text(r, &b.Digest, checkDigest)},
					field{"size", required, r.size(&b.Size)},
					field{"mediaType", required, text(r, &b.MediaType, checkMediaType)},
				)
				r.once(v, seen, b.Path)
				c.Blobs = append(c.Blobs, b)
			})
		}},
	)
	return c
}

func (r *reader) platforms(dst *[]Platform) func(value) {
	return func(v value) {
		r.some(v, func(v value) {
			var p Platform
			text(r, &p, checkPlatform)(v)
			for _, other := range *dst {
				if p != "" && p.Match(other) {
					r.failf(v, "%s is listed already as %s: expected each platform once", p, other)
					return
				}
			}
			if p != "" {
				*dst = append(*dst, p)
			}
		})
	}
}

// The reader: what every kind of node must be like.

// value is a node and the way to it from the root.
type value struct {
	node *yaml.Node
	path string
}

type reader struct {
	name string // of the lock, for errors
	errs Errors
}

func (r *reader) failf(v value, format string, args ...any) {
	if len(r.errs) == maxErrors {
		return
	}
	r.errs = append(r.errs, &Error{
		File: r.name, Line: v.node.Line, Column: v.node.Column, Path: v.path, Reason: fmt.Sprintf(format, args...),
	})
}

// entry is a key of a mapping and its value.
type entry struct {
	key *yaml.Node
	value
}

// entries returns what is in the mapping v, without the keys that occur again.
func (r *reader) entries(v value) []entry {
	if v.node.Kind != yaml.MappingNode {
		r.failf(v, "%s: expected a mapping", found(v.node))
		return nil
	}
	var all []entry
	lines := make(map[string]int)
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key := v.node.Content[i]
		if key.Kind != yaml.ScalarNode {
			r.failf(value{key, v.path}, "%s: expected a key", found(key))
			continue
		}
		if line, ok := lines[key.Value]; ok {
			r.failf(value{key, v.path}, "key %s stands already on line %d: expected it once", found(key), line)
			continue
		}
		lines[key.Value] = key.Line
		all = append(all, entry{key, value{v.node.Content[i+1], join(v.path, key.Value)}})
	}
	return all
}

// Whether a field must be there.
const (
	required = true
	optional = false
)

type field struct {
	key      string
	required bool
	read     func(value)
}

// mapping reads the fields in v, in the order given, and returns the values of those that
// are there; nil if v is no mapping.
func (r *reader) mapping(v value, fields ...field) map[string]value {
	if v.node.Kind != yaml.MappingNode {
		r.failf(v, "%s: expected a mapping with %s", found(v.node), keys(fields))
		return nil
	}
	got := make(map[string]value)
	for _, e := range r.entries(v) {
		if !slices.ContainsFunc(fields, func(f field) bool { return f.key == e.key.Value }) {
			r.failf(value{e.key, v.path}, "unknown key %s: expected one of %s", found(e.key), keys(fields))
			continue
		}
		got[e.key.Value] = e.value
	}
	for _, f := range fields {
		if there, ok := got[f.key]; ok {
			f.read(there)
		} else if f.required {
			r.failf(v, "has no %s: expected one", f.key)
		}
	}
	return got
}

// list returns a function that reads each item of a list.
func (r *reader) list(read func(value)) func(value) {
	return func(v value) {
		if v.node.Kind != yaml.SequenceNode {
			r.failf(v, "%s: expected a list", found(v.node))
			return
		}
		if n := len(v.node.Content); n > maxItems {
			r.failf(v, "has %d items: expected %d at most", n, maxItems)
			return
		}
		for i, item := range v.node.Content {
			read(value{item, fmt.Sprintf("%s[%d]", v.path, i)})
		}
	}
}

// some reads a list that must have an item.
func (r *reader) some(v value, read func(value)) {
	r.list(read)(v)
	if v.node.Kind == yaml.SequenceNode && len(v.node.Content) == 0 {
		r.failf(v, "is empty: expected at least one item")
	}
}

// flag returns a function that reads true or false into dst.
func (r *reader) flag(dst *bool) func(value) {
	return func(v value) {
		if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() != "!!bool" || v.node.Decode(dst) != nil {
			r.failf(v, "%s: expected true or false", found(v.node))
		}
	}
}

// text returns a function that reads a string into dst if it passes the check.
func text[T ~string](r *reader, dst *T, good check) func(value) {
	return func(v value) {
		if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() != "!!str" {
			r.failf(v, "%s: expected a string%s", found(v.node), quoteHint(v.node))
			return
		}
		if reason := good(v.node.Value); reason != "" {
			r.failf(v, "%s %s", found(v.node), reason)
			return
		}
		*dst = T(v.node.Value)
	}
}

// version returns a function that reads a version. One that YAML takes for a number or
// a date is kept as it is written: 1.10 stays 1.10.
func (r *reader) version(dst *string) func(value) {
	return func(v value) {
		switch n := *v.node; {
		case n.Kind != yaml.ScalarNode:
		case n.ShortTag() == "!!int", n.ShortTag() == "!!float", n.ShortTag() == "!!timestamp":
			n.Tag = "!!str"
			v.node = &n
		}
		text(r, dst, checkVersion)(v)
	}
}

// size returns a function that reads a number of bytes.
func (r *reader) size(dst *int64) func(value) {
	return func(v value) {
		n := v.node
		// ParseInt takes a sign and, unlike YAML, neither 0x10 nor 1_000.
		size, err := strconv.ParseInt(n.Value, 10, 64)
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil || size < 1 || size > maxBytes || n.Value != strconv.FormatInt(size, 10) {
			r.failf(v, "%s: expected a number of bytes from 1 to %d in decimal digits, without quotes; leave it out when it is not known", found(n), int64(maxBytes))
			return
		}
		*dst = size
	}
}

// once refuses a name that seen, which holds the line of each name, has already.
func (r *reader) once(v value, seen map[string]int, name string) {
	if name == "" {
		return
	}
	if line, ok := seen[name]; ok {
		r.failf(v, "%s is listed already on line %d: expected it once", name, line)
		return
	}
	seen[name] = v.node.Line
}

var userPattern = regexp.MustCompile(`//.*@`)

// found says what a node is, for errors. A password in a URL is not repeated, and
// control characters do not reach the terminal.
func found(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	shown := userPattern.ReplaceAllString(n.Value, "//...@")
	if utf8.RuneCountInString(shown) > maxFound {
		shown = string([]rune(shown)[:maxFound]) + "..."
	}
	quoted := strconv.Quote(shown)
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!int", "!!float":
		return "number " + shown
	case "!!bool":
		return "truth value " + shown
	case "!!timestamp":
		return "date " + shown
	}
	return quoted
}

func quoteHint(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode && n.ShortTag() != "!!null" {
		return "; put it in quotes"
	}
	return ""
}

func keys(fields []field) string {
	var names []string
	for _, f := range fields {
		names = append(names, f.key)
	}
	return strings.Join(names, ", ")
}

func join(path, key string) string {
	if len(key) > maxFound || !namePattern.MatchString(key) {
		key = strconv.Quote(key[:min(len(key), maxFound)])
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func joinPlatforms(platforms []Platform) string {
	var names []string
	for _, p := range platforms {
		names = append(names, string(p))
	}
	return strings.Join(names, ", ")
}

// The document: what is refused before anything is read from it.

// document returns the root node, or nil after an error.
func (r *reader) document(data []byte) *yaml.Node {
	if len(data) > MaxSize {
		r.failf(value{node: &yaml.Node{Line: 1}}, "is larger than %d bytes: expected a lock", MaxSize)
		return nil
	}
	if !r.characters(data) {
		return nil
	}
	var doc, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	err := decoder.Decode(&doc)
	if errors.Is(err, io.EOF) {
		r.failf(value{node: &yaml.Node{Line: 1}}, "is empty: expected a mapping with apiVersion, kind, platforms, components")
		return nil
	}
	if err != nil {
		r.syntax(data, err)
		return nil
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		if err != nil {
			r.syntax(data, err)
			return nil
		}
		r.failf(value{node: &second}, "a second document begins: expected one in a file")
		return nil
	}
	r.plain(doc.Content[0])
	return doc.Content[0]
}

// characters accepts UTF-8 text whose only control characters are tabs and line ends.
// It is what makes a line here the same as a line in an editor: YAML knows more kinds.
func (r *reader) characters(data []byte) bool {
	line, column := 1, 1
	for i := 0; i < len(data); {
		c, n := utf8.DecodeRune(data[i:])
		next := i + n
		switch {
		case c == '\n':
			line, column = line+1, 0
		case c == '\t', c == '\r' && next < len(data) && data[next] == '\n':
		case c == utf8.RuneError && n == 1, unicode.IsControl(c), c == '\u2028', c == '\u2029', c == '\ufeff':
			what := fmt.Sprintf("character U+%04X", c)
			if c == utf8.RuneError {
				what = fmt.Sprintf("byte 0x%02X", data[i])
			}
			r.failf(value{node: &yaml.Node{Line: line, Column: column}}, "%s: expected text in UTF-8 without control characters or a byte order mark", what)
			return false
		}
		i, column = next, column+1
	}
	return true
}

// plain refuses what YAML can do and a lock does not need: every value then means what
// it looks like, and no value is anywhere but in its place.
func (r *reader) plain(n *yaml.Node) {
	v := value{node: n}
	switch {
	case n.Kind == yaml.AliasNode:
		r.failf(v, "alias *%s: expected the value itself", n.Value)
		return
	case n.Anchor != "":
		r.failf(v, "anchor &%s: expected none, a lock has no aliases", n.Anchor)
	case n.Style&yaml.TaggedStyle != 0:
		r.failf(v, "tag %s: expected a value without one", strconv.Quote(n.Tag))
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		r.failf(v, "block of text: expected a value on one line")
	}
	for _, child := range n.Content {
		r.plain(child)
	}
}

var (
	syntaxPattern = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)
	anchorPattern = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
	// parserPattern matches the errors for which the YAML library counts lines from 0 and
	// gives the beginning of the collection that it could not finish.
	parserPattern = regexp.MustCompile(`^did not find expected (<|node content|'-' indicator|key|',' or)`)
)

// syntax reports an error of the YAML library, which states a line in its text or, on
// the first line, none.
func (r *reader) syntax(data []byte, err error) {
	line, reason := 0, strings.TrimPrefix(err.Error(), "yaml: ")
	if m := syntaxPattern.FindStringSubmatch(err.Error()); m != nil {
		line, _ = strconv.Atoi(m[1]) // none is line 0
		reason = m[2]
	}
	if parserPattern.MatchString(reason) {
		line++
		reason += ", here or in what begins here"
	} else if m := anchorPattern.FindStringSubmatch(reason); m != nil {
		before, _, _ := bytes.Cut(data, []byte("*"+m[1]))
		line = 1 + bytes.Count(before, []byte("\n"))
	}
	r.failf(value{node: &yaml.Node{Line: max(line, 1)}}, "not valid YAML: %s", reason)
}
