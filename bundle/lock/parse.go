package lock

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/strictyaml"
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
	r := newReader(name)
	l := new(Lock)
	root, ok := r.yaml.Document(data)
	if ok {
		r.yaml.Plain(root)
	}
	if len(r.errs) == 0 {
		r.lock(l, root)
	}
	if len(r.errs) > 0 {
		r.errs.sort()
		return nil, nil, r.errs
	}
	return l, root.YAML, nil
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
	components := slices.Collect(r.yaml.Entries(v, "a mapping", func(e strictyaml.Entry) bool {
		if !e.Key.IsScalar() {
			r.failf(e.Key, "%s: expected a key", found(e.Key))
		}
		return e.Key.IsScalar()
	}))
	if len(components) > maxComponents {
		r.failf(v, "has %d components: expected %d at most", len(components), maxComponents)
		return
	}
	for _, e := range components {
		c := Component{Name: e.Key.YAML.Value, Line: e.Key.YAML.Line}
		if reason := checkComponent(c.Name); reason != "" {
			r.failf(e.Key, "%s %s", found(e.Key), reason)
		}
		r.component(&c, e.Value, refs)
		// A typing error in either list would otherwise leave the component out of
		// the bundle without a word. An empty list of the lock's is an error already.
		if len(l.Platforms) > 0 && len(c.Platforms) > 0 && len(c.PlatformsIn(l)) == 0 {
			r.failf(value{YAML: e.Key.YAML, Path: e.Value.Path},
				"has none of the lock's platforms: expected at least one of %s", joinPlatforms(l.Platforms))
		}
		l.Components = append(l.Components, c)
	}
	if len(components) == 0 && v.Kind() == strictyaml.Mapping {
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
				r.failf(v, "is not for %s: expected it in the component %s, which nodes are drained for", c.Name,
					drainedFor)
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
		field{"packages", optional, func(v value) {
			seen := make(map[string][]OSPackages)
			r.list(func(v value) { c.Packages = append(c.Packages, r.osPackages(v, seen)) })(v)
		}},
	)
}

func (r *reader) file(v value, seen map[string][]File) File {
	f := File{Line: v.YAML.Line}
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
	c := Chart{Line: v.YAML.Line}
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
	m := Image{Line: v.YAML.Line}
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
			refs[m.Ref] = pin{m.Digest, v.YAML.Line}
		case ok && m.Digest != "" && first.digest != m.Digest:
			r.failf(got["digest"], "is another digest for %s than on line %d: expected %s", m.Ref, first.line,
				first.digest)
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

// The reader: what is wrong with a file, in a lock's words.

// value is a place in a lock.
type value = strictyaml.Node

type reader struct {
	name string // of the lock, for errors
	yaml strictyaml.Reader
	errs Errors
}

func newReader(name string) *reader {
	r := &reader{name: name}
	r.yaml = strictyaml.Reader{MaxSize: MaxSize, MaxItems: maxItems, Printable: true, Report: r.report}
	return r
}

func (r *reader) failf(v value, format string, args ...any) {
	if len(r.errs) == maxErrors {
		return
	}
	r.errs = append(r.errs, &Error{
		File: r.name, Line: v.YAML.Line, Column: v.YAML.Column, Path: v.Path, Reason: fmt.Sprintf(format, args...),
	})
}

// report words what every document can have wrong with it.
func (r *reader) report(f strictyaml.Fault) {
	fail := func(format string, args ...any) { r.failf(f.Node, format, args...) }
	switch f.Code {
	case strictyaml.TooLarge:
		fail("is larger than %d bytes: expected a lock", f.Most)
	case strictyaml.BadCharacter:
		fail("%s: expected text in UTF-8 without control characters or a byte order mark", f.Text)
	case strictyaml.Empty:
		fail("is empty: expected a mapping with apiVersion, kind, platforms, components")
	case strictyaml.SecondDocument:
		fail("a second document begins: expected one in a file")
	case strictyaml.BadSyntax:
		hint := ""
		if f.Syntax.Begins || strings.HasPrefix(f.Syntax.Reason, "did not find expected") {
			hint = ", here or in what begins here"
		}
		fail("not valid YAML: %s%s", f.Syntax.Reason, hint)
	case strictyaml.Alias:
		fail("alias *%s: expected the value itself", f.Node.YAML.Value)
	case strictyaml.Anchor:
		fail("anchor &%s: expected none, a lock has no aliases", f.Node.YAML.Anchor)
	case strictyaml.Tag:
		fail("tag %s: expected a value without one", strconv.Quote(f.Node.YAML.Tag))
	case strictyaml.Block:
		fail("block of text: expected a value on one line")
	case strictyaml.Nothing, strictyaml.NotMapping, strictyaml.NotList:
		want := f.Want
		if f.Keys != nil {
			want += " with " + strings.Join(f.Keys, ", ")
		}
		fail("%s: expected %s", found(f.Node), want)
	case strictyaml.TooMany:
		fail("has %d items: expected %d at most", f.Count, f.Most)
	case strictyaml.UnknownKey:
		if !f.Node.IsScalar() {
			fail("%s: expected a key", found(f.Node))
			return
		}
		fail("unknown key %s: expected one of %s", found(f.Node), strings.Join(f.Keys, ", "))
	case strictyaml.Repeated:
		fail("key %s stands already on line %d: expected it once", found(f.Node), f.First)
	case strictyaml.MissingKey:
		fail("has no %s: expected one", f.Text)
	}
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
	keys := make([]strictyaml.Key, len(fields))
	for i, f := range fields {
		keys[i] = strictyaml.Key{Name: f.key, Required: f.required}
	}
	got := make(map[string]value)
	for i, there := range r.yaml.Fields(v, keys) {
		got[fields[i].key] = there
	}
	if v.Kind() != strictyaml.Mapping {
		return nil
	}
	for _, f := range fields {
		if there, ok := got[f.key]; ok {
			f.read(there)
		}
	}
	return got
}

// list returns a function that reads each item of a list.
func (r *reader) list(read func(value)) func(value) {
	return func(v value) {
		for _, item := range r.yaml.Items(v) {
			read(item)
		}
	}
}

// some reads a list that must have an item.
func (r *reader) some(v value, read func(value)) {
	r.list(read)(v)
	if v.Kind() == strictyaml.List && v.Len() == 0 {
		r.failf(v, "is empty: expected at least one item")
	}
}

// flag returns a function that reads true or false into dst.
func (r *reader) flag(dst *bool) func(value) {
	return func(v value) {
		if v.Kind() != strictyaml.Bool || v.YAML.Decode(dst) != nil {
			r.failf(v, "%s: expected true or false", found(v))
		}
	}
}

// text returns a function that reads a string into dst if it passes the check.
func text[T ~string](r *reader, dst *T, good check) func(value) {
	return func(v value) {
		if !v.IsText() {
			r.failf(v, "%s: expected a string%s", found(v), quoteHint(v))
			return
		}
		if reason := good(v.YAML.Value); reason != "" {
			r.failf(v, "%s %s", found(v), reason)
			return
		}
		*dst = T(v.YAML.Value)
	}
}

// version returns a function that reads a version. One that YAML takes for a number or
// a date is kept as it is written: 1.10 stays 1.10.
func (r *reader) version(dst *string) func(value) {
	return func(v value) {
		switch v.Kind() {
		case strictyaml.Integer, strictyaml.Float, strictyaml.Date:
			v = asText(v)
		}
		text(r, dst, checkVersion)(v)
	}
}

// asText is a value that YAML takes for something else than the text that it is.
func asText(v value) value {
	text := *v.YAML
	text.Tag = "!!str"
	return value{YAML: &text, Path: v.Path}
}

// size returns a function that reads a number of bytes.
func (r *reader) size(dst *int64) func(value) {
	return func(v value) {
		size, ok := strictyaml.Int(v.YAML.Value, 1, maxBytes)
		if v.Kind() != strictyaml.Integer || !ok {
			r.failf(v, "%s: expected a number of bytes from 1 to %d in decimal digits, without quotes; "+
				"leave it out when it is not known", found(v), int64(maxBytes))
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
	seen[name] = v.YAML.Line
}

var userPattern = lazyregexp.New(`//.*@`)

// found says what a node is, for errors. A password in a URL is not repeated, and
// control characters do not reach the terminal.
func found(v value) string {
	switch v.Kind() {
	case strictyaml.Mapping:
		return "a mapping"
	case strictyaml.List:
		return "a list"
	case strictyaml.Null:
		return "nothing"
	}
	shown := userPattern.ReplaceAllString(v.YAML.Value, "//...@")
	switch v.Kind() {
	case strictyaml.Integer, strictyaml.Float:
		return "number " + strictyaml.Cut(shown, maxFound)
	case strictyaml.Bool:
		return "truth value " + strictyaml.Cut(shown, maxFound)
	case strictyaml.Date:
		return "date " + strictyaml.Cut(shown, maxFound)
	}
	return strictyaml.Quote(shown, maxFound)
}

func quoteHint(v value) string {
	if v.IsScalar() && v.Kind() != strictyaml.Null {
		return "; put it in quotes"
	}
	return ""
}

func joinPlatforms(platforms []Platform) string {
	var names []string
	for _, p := range platforms {
		names = append(names, string(p))
	}
	return strings.Join(names, ", ")
}
