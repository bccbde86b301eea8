package schema

import (
	"fmt"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/strictyaml"
)

// Node is a place in a file, or in its schema. The zero Node is nowhere.
type Node struct {
	document *Document
	in       strictyaml.Node
	schema   *jsonSchema // not nil for a place in the schema
}

// Field is one key that a mapping may have.
type Field struct {
	key, doc string
	required bool
	read     func(Node)
}

// Required is a key that must be there. doc is what editors show: its meaning.
func Required(key, doc string, read func(Node)) Field {
	return Field{key: key, doc: doc, required: true, read: read}
}

// Optional is a key that may be there. doc is what editors show: its meaning, and the default.
func Optional(key, doc string, read func(Node)) Field {
	return Field{key: key, doc: doc, read: read}
}

// IsZero reports whether the node is nowhere.
func (n Node) IsZero() bool { return n.document == nil }

// Line is the node's line in the file, from 1.
func (n Node) Line() int { return n.in.YAML.Line }

// Path is the way to the node from the top, such as cluster.agents[1].port.
func (n Node) Path() string { return n.in.Path }

// IsMapping reports whether the node is a mapping.
func (n Node) IsMapping() bool { return n.in.Kind() == strictyaml.Mapping }

// IsList reports whether the node is a list.
func (n Node) IsList() bool { return n.in.Kind() == strictyaml.List }

// IsNothing reports whether nothing at all is written in the node's place.
func (n Node) IsNothing() bool { return n.in.IsNull() }

// Len is the number of a list's items or of a mapping's keys.
func (n Node) Len() int { return n.in.Len() }

// Fail reports a problem: what was found and what was expected.
func (n Node) Fail(format string, args ...any) {
	if n.schema != nil {
		return
	}
	if len(n.document.problems) == maxProblems {
		n.document.moreProblems++
		return
	}
	n.document.problems = append(n.document.problems, n.problem(format, args...))
}

// Warn reports what is no problem.
func (n Node) Warn(format string, args ...any) {
	if n.schema != nil || len(n.document.warnings) == maxProblems {
		return
	}
	n.document.warnings = append(n.document.warnings, Warning(n.problem(format, args...)))
}

func (n Node) problem(format string, args ...any) Problem {
	return Problem{File: n.document.file, Line: n.Line(), Path: n.in.Path, Text: fmt.Sprintf(format, args...)}
}

// Sound runs read and reports whether it has found no problem.
func (n Node) Sound(read func()) bool {
	count := func() int { return len(n.document.problems) + n.document.moreProblems }
	before := count()
	read()
	return count() == before
}

// Mapping hands each value of a mapping to its field and returns the values that
// are present by key.
func (n Node) Mapping(fields ...Field) map[string]Node {
	present := map[string]Node{}
	if n.schema != nil {
		n.describeMapping(fields)
		return present
	}
	keys := make([]strictyaml.Key, len(fields))
	for i, f := range fields {
		keys[i] = strictyaml.Key{Name: f.key, Required: f.required}
	}
	for i, in := range n.document.reader.Fields(n.in, keys) {
		value := n.document.node(in)
		present[fields[i].key] = value
		fields[i].read(value)
	}
	return present
}

// MappingOrNothing is Mapping for one that may also be written as a key without a value.
func (n Node) MappingOrNothing(fields ...Field) map[string]Node {
	if n.schema != nil {
		mapping := &jsonSchema{}
		n.schema.AnyOf = []*jsonSchema{mapping, {Type: "null"}}
		return n.describe(mapping).Mapping(fields...)
	}
	if n.IsNothing() {
		return nil
	}
	return n.Mapping(fields...)
}

var shownKey = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_.-]{0,39}$`)

// List hands each item of a list to read.
func (n Node) List(read func(i int, item Node)) {
	if n.schema != nil {
		n.schema.Type, n.schema.MaxItems, n.schema.Items = "array", MaxItems, &jsonSchema{}
		read(0, n.describe(n.schema.Items))
		return
	}
	for i, item := range n.document.reader.Items(n.in) {
		read(i, n.document.node(item))
	}
}

// Either reads a node that is a text or a mapping.
func (n Node) Either(text, mapping func(Node)) {
	switch {
	case n.schema != nil:
		n.schema.AnyOf = []*jsonSchema{{}, {}}
		text(n.describe(n.schema.AnyOf[0]))
		mapping(n.describe(n.schema.AnyOf[1]))
	case n.IsMapping():
		mapping(n)
	case n.IsList():
		if n.Usable("text or a mapping") {
			n.Fail("found %s, expected text or a mapping", n.Kind())
		}
	default:
		text(n)
	}
}

// TextOrList reads a node that is a text or a list.
func (n Node) TextOrList(text, list func(Node)) {
	switch {
	case n.schema != nil:
		n.schema.AnyOf = []*jsonSchema{{}, {}}
		text(n.describe(n.schema.AnyOf[0]))
		list(n.describe(n.schema.AnyOf[1]))
	case n.IsList():
		list(n)
	case n.IsMapping():
		if n.Usable("text or a list") {
			n.Fail("found %s, expected text or a list", n.Kind())
		}
	default:
		text(n)
	}
}

// Entries hands each entry of a mapping whose keys are not known beforehand to read. A
// key has to match pattern; want says what it is. The node of the key is for messages
// about the key, and has the path of the mapping.
func (n Node) Entries(want string, pattern *lazyregexp.Regexp, read func(key string, at, value Node)) {
	if n.schema != nil {
		value := &jsonSchema{}
		n.schema.Type, n.schema.PropertyNames = "object", &jsonSchema{Pattern: pattern.String()}
		n.schema.AdditionalProperties = value
		read("", n, n.describe(value))
		return
	}
	if !n.Usable("a mapping") {
		return
	}
	accept := func(e strictyaml.Entry) bool {
		at := n.document.node(e.Key)
		switch {
		case !at.Usable("a key"):
		case !e.Key.IsText():
			at.Fail("found a key that is %s, expected %s: put it in quotes", at.Kind(), want)
		case pattern.MatchString(e.Key.YAML.Value):
			return true
		case e.InFlow: // it may be the rest of a password
			at.Fail("found something that is not a key, expected %s: put text with special characters in quotes", want)
		default:
			at.Fail("found the key %s, expected %s", at.Found(), want)
		}
		return false
	}
	for e := range n.document.reader.Entries(n.in, "a mapping from "+want, accept) {
		read(e.Key.YAML.Value, n.document.node(e.Key), n.document.node(e.Value))
	}
}

// Usable reports what is never a value here: an alias, an anchor, a tag, or nothing; want was
// expected. It returns whether there is none of these.
func (n Node) Usable(want string) bool { return n.document.reader.Usable(n.in, want) }

// Kind describes the node without its text.
func (n Node) Kind() string {
	switch n.in.Kind() {
	case strictyaml.Mapping:
		return "a mapping"
	case strictyaml.List:
		return "a list"
	case strictyaml.AliasNode:
		return "an alias"
	case strictyaml.Integer, strictyaml.Float:
		return "a number"
	case strictyaml.Bool:
		return "true or false"
	case strictyaml.Date:
		return "a date"
	case strictyaml.Null:
		return "nothing"
	case strictyaml.MergeKey:
		return "a merge key (<<)"
	}
	return "text"
}
