// Package strictyaml walks YAML documents that people write, so that every value means what
// it looks like and nothing is passed over.
//
// Contract: a [Reader] hands everything that is wrong with a document to its Report, as a
// [Fault] with a place (line, column, path) and without words of its own: each kind of file
// has its own tone, and its own idea of what may be repeated in a message. It goes on after
// a fault, so one read finds all of them, and it yields only what was good. Faults are an
// unknown key, a key given twice, a missing one, a value of another kind, a list or mapping
// that is too long, an alias, an anchor, a tag, a document that is too large or not alone,
// and what is no YAML. Merge keys and keys that are no text are unknown keys.
//
// Input is bounded by MaxSize and MaxItems. An alias is never followed, which takes away the
// means to blow up a small file. The YAML library itself needs up to 200 times as much memory
// as a document is long, and refuses more than 10,000 levels.
package strictyaml

import (
	"iter"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Reader says what documents of one kind may be like.
type Reader struct {
	MaxSize  int // bytes of a document
	MaxItems int // items of a list, and keys of a mapping whose keys are not known beforehand
	// Printable refuses control characters other than tabs and line ends, and what is not UTF-8.
	// Then a line is the same line in every editor: YAML knows more kinds of line ends.
	Printable bool
	// Report takes a fault. It is called in the order in which faults are found, which is not
	// always that of their lines, and as often as there are faults: it has to bound them.
	Report func(Fault)
}

// Code says what kind of fault something is.
type Code int

// The kinds of faults. Those before Alias concern the document as a whole.
const (
	TooLarge       Code = iota + 1 // more than Most bytes
	BadCharacter                   // Text is the character or byte, such as "character U+001B"
	Empty                          // no document at all
	SecondDocument                 // at the beginning of the second
	BadSyntax                      // Syntax says what is wrong

	Alias      // an alias, where Want was expected
	Anchor     // an anchor, where Want was expected
	Tag        // a tag, where Want was expected
	Block      // a text of several lines, in the | or > form; only [Reader.Plain] refuses it
	Nothing    // no value, where Want was expected
	NotMapping // something else where Want was expected
	NotList    // something else where Want was expected
	TooMany    // Count items or keys, where Most are allowed
	UnknownKey // a key that is not one of Keys, or is no text
	Repeated   // a key that is on line First already
	MissingKey // the mapping does not have the key Text
)

// Fault is one thing that is wrong with a document.
type Fault struct {
	Code Code
	Node Node // where it is; of a key, the path is that of its mapping

	Want        string   // what was expected there, such as "a mapping"
	Keys        []string // those that the mapping may have; nil where keys are not known beforehand
	Text        string   // see the codes
	First       int      // line
	Count, Most int
	Syntax      *Syntax // not nil for BadSyntax
	InFlow      bool    // of an UnknownKey: in { } and without a value, as the rest of a text after a comma is
}

// Node is a YAML node and the path that leads to it from the root.
type Node struct {
	YAML *yaml.Node
	Path string // such as a.b[2].c; "" at the root
}

// Kind is what a node looks like to a person.
type Kind int

// The kinds of nodes.
const (
	Text Kind = iota
	Mapping
	List
	Integer
	Float
	Bool
	Date
	Null
	AliasNode
	MergeKey // <<
)

// Kind returns what the node is, by its form and what YAML takes it for.
func (n Node) Kind() Kind {
	switch n.YAML.Kind {
	case yaml.MappingNode:
		return Mapping
	case yaml.SequenceNode:
		return List
	case yaml.AliasNode:
		return AliasNode
	}
	switch n.YAML.ShortTag() {
	case "!!int":
		return Integer
	case "!!float":
		return Float
	case "!!bool":
		return Bool
	case "!!timestamp":
		return Date
	case "!!null":
		return Null
	case "!!merge":
		return MergeKey
	}
	return Text
}

// IsScalar reports whether the node is a single value: no mapping, list or alias.
func (n Node) IsScalar() bool { return n.YAML.Kind == yaml.ScalarNode }

// IsText reports whether the node is a text, without a tag of its own that says otherwise.
func (n Node) IsText() bool { return n.IsScalar() && n.YAML.ShortTag() == "!!str" }

// IsNull reports whether nothing at all is written there: no value, anchor or tag.
func (n Node) IsNull() bool { return n.IsScalar() && n.Kind() == Null && n.code() == 0 }

// Len is the number of items of a list or of keys in a mapping, 0 for others.
func (n Node) Len() int {
	switch n.Kind() {
	case Mapping:
		return len(n.YAML.Content) / 2
	case List:
		return len(n.YAML.Content)
	}
	return 0
}

// code is what the node has that is never part of a value.
func (n Node) code() Code {
	switch {
	case n.YAML.Kind == yaml.AliasNode:
		return Alias
	case n.YAML.Anchor != "":
		return Anchor
	case n.YAML.Style&yaml.TaggedStyle != 0:
		return Tag
	}
	return 0
}

func (r Reader) fail(n Node, f Fault) {
	f.Node = n
	r.Report(f)
}

// Usable reports whether a node has a value at all, and reports what stands in its place: an
// alias, an anchor, a tag, or nothing.
func (r Reader) Usable(n Node, want string) bool { return r.usable(n, want, nil) }

func (r Reader) usable(n Node, want string, keys []string) bool {
	code := n.code()
	if code == 0 && n.IsScalar() && n.Kind() == Null {
		code = Nothing
	}
	if code != 0 {
		r.fail(n, Fault{Code: code, Want: want, Keys: keys})
	}
	return code == 0
}

// Plain reports every alias, anchor, tag and block of text below a node, with their places but
// without paths, for documents that have none of these anywhere.
func (r Reader) Plain(n Node) {
	code := n.code()
	if code == 0 && n.YAML.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		code = Block
	}
	if code != 0 {
		r.fail(Node{YAML: n.YAML}, Fault{Code: code})
	}
	for _, inner := range n.YAML.Content {
		r.Plain(Node{YAML: inner})
	}
}

// is reports whether the node is of a kind. code is the fault when it is not.
func (r Reader) is(n Node, kind Kind, code Code, want string, keys []string) bool {
	if !r.usable(n, want, keys) {
		return false
	}
	if n.Kind() != kind {
		r.fail(n, Fault{Code: code, Want: want, Keys: keys})
		return false
	}
	return true
}

// Key is a key that a mapping may have.
type Key struct {
	Name     string
	Required bool
}

// Fields yields the values of a mapping that has these keys and no others, in the order of the
// file, each with its key's place in keys. What is missing is reported after the last one.
func (r Reader) Fields(n Node, keys []Key) iter.Seq2[int, Node] {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.Name
	}
	return func(yield func(int, Node) bool) {
		if !r.is(n, Mapping, NotMapping, "a mapping", names) {
			return
		}
		first := make([]int, len(keys))
		for key, value := range pairs(n) {
			i := -1
			if key.IsText() {
				i = slices.Index(names, key.YAML.Value)
			}
			if i < 0 {
				r.fail(key, Fault{Code: UnknownKey, Keys: names, InFlow: inFlow(n, value)})
				continue
			}
			if first[i] != 0 {
				r.fail(key, Fault{Code: Repeated, Keys: names, First: first[i]})
				continue
			}
			first[i] = key.YAML.Line
			if !yield(i, Node{value.YAML, Join(n.Path, names[i])}) {
				return
			}
		}
		for i, k := range keys {
			if k.Required && first[i] == 0 {
				r.fail(n, Fault{Code: MissingKey, Keys: names, Text: k.Name})
			}
		}
	}
}

// Entry is one key of a mapping whose keys are not known beforehand, and its value.
type Entry struct {
	Key    Node // with the path of the mapping
	Value  Node
	InFlow bool // in { } and without a value, as the rest of a text after a comma is
}

// Entries yields the entries of a mapping whose keys accept takes, in the order of the file.
// want says what the mapping is. A key that accept does not take is accept's to report.
func (r Reader) Entries(n Node, want string, accept func(Entry) bool) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		if !r.is(n, Mapping, NotMapping, want, nil) || !r.few(n) {
			return
		}
		first := map[string]int{}
		for key, value := range pairs(n) {
			e := Entry{key, Node{value.YAML, Join(n.Path, key.YAML.Value)}, inFlow(n, value)}
			if !accept(e) {
				continue
			}
			if line, again := first[key.YAML.Value]; again {
				r.fail(key, Fault{Code: Repeated, First: line})
				continue
			}
			first[key.YAML.Value] = key.YAML.Line
			if !yield(e) {
				return
			}
		}
	}
}

// Items yields the items of a list.
func (r Reader) Items(n Node) iter.Seq2[int, Node] {
	return func(yield func(int, Node) bool) {
		if !r.is(n, List, NotList, "a list", nil) || !r.few(n) {
			return
		}
		for i, item := range n.YAML.Content {
			if !yield(i, Node{item, n.Path + "[" + strconv.Itoa(i) + "]"}) {
				return
			}
		}
	}
}

// few reports whether a list or mapping is not too long, and reports one that is.
func (r Reader) few(n Node) bool {
	if n.Len() > r.MaxItems {
		r.fail(n, Fault{Code: TooMany, Count: n.Len(), Most: r.MaxItems})
		return false
	}
	return true
}

// pairs yields the keys and values of a mapping, both with its path.
func pairs(n Node) iter.Seq2[Node, Node] {
	return func(yield func(Node, Node) bool) {
		for i := 0; i+1 < len(n.YAML.Content); i += 2 {
			if !yield(Node{n.YAML.Content[i], n.Path}, Node{n.YAML.Content[i+1], n.Path}) {
				return
			}
		}
	}
}

func inFlow(mapping, value Node) bool {
	return mapping.YAML.Style&yaml.FlowStyle != 0 && value.IsScalar() && value.Kind() == Null
}
