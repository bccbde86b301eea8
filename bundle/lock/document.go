package lock

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// Document is the text of a lock that pins can be written into. Only the text of the
// pins changes: comments, order, quoting and line ends stay as they are, an entry in
// braces stays in braces, and a pin that is there already is replaced.
//
// Every change is checked: the new text must read as the old lock with that one pin
// changed. Otherwise the method returns an error and the Document is as it was.
type Document struct {
	name string
	data []byte
	root *yaml.Node
	lock *Lock
}

// ParseDocument reads and checks a lock like [Parse], whose errors it returns.
func ParseDocument(name string, data []byte) (*Document, error) {
	l, root, err := parse(name, data)
	if err != nil {
		return nil, err
	}
	return &Document{name: name, data: bytes.Clone(data), root: root, lock: l}, nil
}

// Lock returns what the document says now. The caller must not change it.
func (d *Document) Lock() *Lock { return d.lock }

// Bytes returns the document's text.
func (d *Document) Bytes() []byte { return bytes.Clone(d.data) }

// SetFilePin pins a component's file number index, counted from 0, to sha256 (64
// lower-case hexadecimal digits) and size in bytes.
func (d *Document) SetFilePin(component string, index int, sha256 string, size int64) error {
	return d.set([]target{{component, "files", index}}, func(c *Component, i int) {
		c.Files[i].SHA256, c.Files[i].Size = sha256, size
	}, plain("sha256", quoted(sha256)), plain("size", strconv.FormatInt(size, 10)))
}

// SetChartPin pins a component's chart like SetFilePin.
func (d *Document) SetChartPin(component string, index int, sha256 string, size int64) error {
	return d.set([]target{{component, "charts", index}}, func(c *Component, i int) {
		c.Charts[i].SHA256, c.Charts[i].Size = sha256, size
	}, plain("sha256", quoted(sha256)), plain("size", strconv.FormatInt(size, 10)))
}

// SetImageDigest pins a component's image number index, which has a ref, to the digest.
// Where other components list the same ref they are pinned too: a ref has one digest.
func (d *Document) SetImageDigest(component string, index int, dgst digest.Digest) error {
	targets := []target{{component, "images", index}}
	if m := d.lock.image(component, index); m != nil && m.Ref != "" {
		for _, c := range d.lock.Components {
			for i, other := range c.Images {
				if other.Ref == m.Ref && c.Name != component {
					targets = append(targets, target{c.Name, "images", i})
				}
			}
		}
	}
	return d.set(targets, func(c *Component, i int) { c.Images[i].Digest = dgst }, plain("digest", string(dgst)))
}

// SetArchivePin pins a component's image number index, which is an archive, to the sha256
// (64 lower-case hexadecimal digits) and size in bytes of the archive and records what it
// holds.
func (d *Document) SetArchivePin(component string, index int, sha256 string, size int64, contents *Contents) error {
	if contents == nil {
		return fmt.Errorf("pin components.%s.images[%d] in %s: no contents given", component, index, d.name)
	}
	return d.set([]target{{component, "images", index}}, func(c *Component, i int) {
		c.Images[i].SHA256, c.Images[i].Size, c.Images[i].Contents = sha256, size, contents
	}, plain("sha256", quoted(sha256)), plain("size", strconv.FormatInt(size, 10)), pair{"contents", contents.render})
}

// target is one item of a component's list.
type target struct {
	component, list string
	index           int
}

func (t target) String() string {
	return fmt.Sprintf("components.%s.%s[%d]", t.component, t.list, t.index)
}

// pair is a key to write and what to write behind its colon, in braces or not; further
// lines are indented by so many spaces.
type pair struct {
	key    string
	render func(flow bool, indent int) string
}

func plain(key, value string) pair {
	return pair{key, func(bool, int) string { return " " + value }}
}

// bare matches what means itself without quotes, in braces too, unless it is a number.
var bare = lazyregexp.New(`^[A-Za-z0-9._/][A-Za-z0-9._/:@%~=+-]*$`)

// quoted writes a value as YAML reads it: in quotes where it would be taken for a number
// or has a character that means something. No value of a lock has a quote or a backslash.
func quoted(s string) string {
	if n := (yaml.Node{Kind: yaml.ScalarNode, Value: s}); n.ShortTag() != "!!str" || !bare.MatchString(s) {
		return `"` + s + `"`
	}
	return s
}

// edit replaces data[start:end].
type edit struct {
	start, end int
	text       string
}

// set writes the pairs into each of the targets. want makes the same change to item i of
// a component.
func (d *Document) set(targets []target, want func(c *Component, i int), pairs ...pair) error {
	wanted := d.lock.withoutLines()
	var edits []edit
	for _, t := range targets {
		item := d.item(t)
		if item == nil {
			return fmt.Errorf("pin %s in %s: there is no such entry", t, d.name)
		}
		edits = append(edits, d.edits(item, pairs)...)
		want(wanted.Component(t.component), t.index)
	}
	return d.change(fmt.Sprintf("pin %s in", targets[0]), wanted, edits)
}

// change makes the edits if the text reads as wanted afterwards; what says what it does,
// for errors.
func (d *Document) change(what string, wanted *Lock, edits []edit) error {
	next, err := ParseDocument(d.name, apply(d.data, edits))
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, d.name, err)
	}
	if !reflect.DeepEqual(next.lock.withoutLines(), wanted) {
		return fmt.Errorf("%s %s: the entry is written in a way that cannot be edited: write it as KEY: VALUE lines",
			what, d.name)
	}
	*d = *next
	return nil
}

// rootKey returns the node of a key of the whole lock.
func (d *Document) rootKey(key string) *yaml.Node {
	for i := 0; i < len(d.root.Content); i += 2 {
		if d.root.Content[i].Value == key {
			return d.root.Content[i]
		}
	}
	panic("lock: a lock without " + key + " was accepted")
}

// item returns the node of the target; nil if there is none.
func (d *Document) item(t target) *yaml.Node {
	list := lookup(d.root, "components", t.component, t.list)
	if list == nil || t.index < 0 || t.index >= len(list.Content) {
		return nil
	}
	return list.Content[t.index]
}

// edits returns what to change in the text so that the mapping n has the pairs.
func (d *Document) edits(n *yaml.Node, pairs []pair) []edit {
	var edits []edit
	var added strings.Builder
	flow := n.Style&yaml.FlowStyle != 0
	line := d.data[d.offset(&yaml.Node{Line: n.Line, Column: 1}):]
	indent := len(line) - len(bytes.TrimLeft(line, " ")) + 4 // of further lines in braces
	for _, p := range pairs {
		old := lookup(n, p.key)
		if old == nil {
			if flow {
				added.WriteString(", " + p.key + ":" + p.render(flow, indent))
			} else {
				added.WriteString(newline(n.Column-1) + p.key + ":" + p.render(flow, n.Column+1))
			}
			continue
		}
		text := p.render(false, old.Column-1)
		if flow || old.Style&yaml.FlowStyle != 0 {
			text = p.render(true, indent)
		}
		edits = append(edits, edit{d.offset(old), d.end(old), strings.TrimLeft(text, " \n")})
	}
	at := d.end(n.Content[len(n.Content)-1])
	if !flow {
		at = d.lineEnd(at)
	}
	return append(edits, edit{at, at, added.String()})
}

// lookup follows the keys down from the mapping n; nil when one is missing.
func lookup(n *yaml.Node, keys ...string) *yaml.Node {
	for _, key := range keys {
		var next *yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				next = n.Content[i+1]
			}
		}
		if next == nil {
			return nil
		}
		n = next
	}
	return n
}

// offset returns where in the text n begins.
func (d *Document) offset(n *yaml.Node) int {
	at := 0
	for range n.Line - 1 {
		at += bytes.IndexByte(d.data[at:], '\n') + 1
	}
	for range n.Column - 1 {
		_, size := utf8.DecodeRune(d.data[at:])
		at += size
	}
	return at
}

// end returns where in the text n, a value of a lock, ends.
func (d *Document) end(n *yaml.Node) int {
	at := d.offset(n)
	switch {
	case n.Kind == yaml.ScalarNode && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		return at + quotedLen(d.data[at:])
	case n.Kind == yaml.ScalarNode:
		return at + len(n.Value) // without quotes and spaces it is written as it is read
	case n.Style&yaml.FlowStyle != 0:
		return at + flowLen(d.data[at:])
	}
	return d.end(n.Content[len(n.Content)-1])
}

// quotedLen returns the length of the quoted text at the beginning of s. It takes the
// doubled quote of 'it”s' for two texts, which matters to nobody here: no value of a lock
// contains a quote, and in a collection the next text follows at once.
func quotedLen(s []byte) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && s[0] == '"':
			i++
		case s[i] == s[0]:
			return i + 1
		}
	}
	return len(s)
}

// flowLen returns the length of the collection in braces or brackets at the beginning of s. No
// value of a lock contains quotes, braces or a #, so these are what they look like.
func flowLen(s []byte) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"', '\'':
			i += quotedLen(s[i:]) - 1
		case '#':
			i += max(bytes.IndexByte(s[i:], '\n'), 0)
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(s)
}

// lineEnd returns where the line that at is in ends, before its line break.
func (d *Document) lineEnd(at int) int {
	n := bytes.IndexByte(d.data[at:], '\n')
	if n < 0 {
		return len(d.data)
	}
	if n > 0 && d.data[at+n-1] == '\r' {
		n--
	}
	return at + n
}

// newline begins a line that is indented by so many spaces.
func newline(spaces int) string { return "\n" + strings.Repeat(" ", spaces) }

// apply makes the edits, none of which overlap, with the line ends that data has.
func apply(data []byte, edits []edit) []byte {
	slices.SortStableFunc(edits, func(a, b edit) int { return a.start - b.start })
	crlf := bytes.Contains(data, []byte("\r\n"))
	var out bytes.Buffer
	done := 0
	for _, e := range edits {
		out.Write(data[done:e.start])
		if crlf {
			e.text = strings.ReplaceAll(e.text, "\n", "\r\n")
		}
		out.WriteString(e.text)
		done = e.end
	}
	out.Write(data[done:])
	return out.Bytes()
}

// render writes contents with one line for each image and blob.
func (c *Contents) render(flow bool, indent int) string {
	var images, blobs []string
	for _, m := range c.Images {
		images = append(images, fmt.Sprintf("{ref: %s, digest: %s, size: %d, mediaType: %s}", quoted(m.Ref), m.Digest,
			m.Size, quoted(m.MediaType)))
	}
	for _, b := range c.Blobs {
		blobs = append(blobs, fmt.Sprintf("{path: %s, digest: %s, size: %d, mediaType: %s}", quoted(b.Path), b.Digest,
			b.Size, quoted(b.MediaType)))
	}
	if flow {
		list := func(items []string) string {
			return " [" + newline(indent) + strings.Join(items, ","+newline(indent)) + "]"
		}
		return " {images:" + list(images) + ", blobs:" + list(blobs) + "}"
	}
	list := func(key string, items []string) string {
		item := newline(indent+2) + "- "
		return newline(indent) + key + ":" + item + strings.Join(items, item)
	}
	return list("images", images) + list("blobs", blobs)
}

// Component returns the component of that name; nil if there is none.
func (l *Lock) Component(name string) *Component {
	for i := range l.Components {
		if l.Components[i].Name == name {
			return &l.Components[i]
		}
	}
	return nil
}

// image returns a component's image; nil if there is none.
func (l *Lock) image(component string, index int) *Image {
	c := l.Component(component)
	if c == nil || index < 0 || index >= len(c.Images) {
		return nil
	}
	return &c.Images[index]
}

// withoutLines returns a deep copy of what is compared after an edit.
func (l *Lock) withoutLines() *Lock {
	c := &Lock{Validity: l.Validity.clone(), Platforms: l.Platforms, Components: slices.Clone(l.Components)}
	for i, component := range c.Components {
		c.Components[i] = component.withoutLines()
	}
	return c
}

func (c Component) withoutLines() Component {
	c.Files, c.Charts, c.Images, c.Line = slices.Clone(c.Files), slices.Clone(c.Charts), slices.Clone(c.Images), 0
	for i := range c.Files {
		c.Files[i].Line = 0
	}
	for i := range c.Charts {
		c.Charts[i].Line = 0
	}
	for i := range c.Images {
		c.Images[i].Line = 0
	}
	c.Packages = slices.Clone(c.Packages)
	for i := range c.Packages {
		c.Packages[i] = c.Packages[i].withoutLine()
	}
	return c
}
