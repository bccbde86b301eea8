// Package outsideyaml decodes YAML that others wrote: hosts, clusters, archives and upstream's servers.
//
// Contract: what a document costs grows with its size and no faster, whatever it says. To decode is dearer than that:
// the YAML library compares the keys of a mapping pair by pair, and keeps an error for every pair that is equal, so
// that 10 kB with one key again and again cost it 344 MiB, and 1 MB of different ones take minutes. So a document is
// looked at first. Refused, as a [Refusal], are
//
//   - more bytes than MaxSize, in the document or in its values once aliases are followed;
//   - more values than MaxNodes, once aliases are followed, or so many characters that begin a value;
//   - a mapping with more than [MaxKeys] keys, with one twice, or with one that is a mapping or a list;
//   - more than [MaxDepth] levels, and an alias within what it stands for, or of another document.
//
// No Refusal has words of the document in its text; errors of the library may quote them. What is accepted means what
// it means to the library: aliases and merge keys are followed, and without a document nothing is changed.
package outsideyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxKeys bounds the keys of a mapping: the library's time grows with their square.
	MaxKeys = 1000
	// MaxDepth bounds how many mappings and lists lie in each other.
	MaxDepth = 200
	// HostSize bounds a file on a host, in bytes. The largest that k3s reads has a few kB.
	HostSize = 256 << 10
	// HostNodes bounds the values in it, keys among them.
	HostNodes = 50_000
)

// Reader says what documents of one kind may be like. The zero Reader is for files on hosts.
type Reader struct {
	MaxSize int // bytes; 0 is HostSize
	// MaxNodes are the values, keys among them, of all documents together; 0 is HostNodes. Of the memory that a
	// document takes, up to 1 KiB is for each.
	MaxNodes int
	// KnownFields refuses keys that a struct does not have, OneDocument whatever comes after the first document.
	KnownFields, OneDocument bool
	// AnyKeys accepts mappings with a key twice and with very many, for [Reader.Check]: another library may look keys
	// up, and let the last one win.
	AnyKeys bool
}

// Unmarshal decodes the first document of a file on a host.
func Unmarshal(data []byte, v any) error { return Reader{}.Unmarshal(data, v) }

// Unmarshal decodes the first document.
func (r Reader) Unmarshal(data []byte, v any) error {
	if r.OneDocument && r.several(data) {
		return &Refusal{Reason: "it has more than one document"}
	}
	for document, err := range r.Documents(data) {
		switch {
		case err != nil:
			return err
		case r.KnownFields: // a node cannot be decoded so
			decoder := yaml.NewDecoder(bytes.NewReader(data))
			decoder.KnownFields(true)
			return decoder.Decode(v)
		}
		return document.Decode(v)
	}
	return nil
}

// Check looks at all documents, for another library to decode them.
func (r Reader) Check(data []byte) error {
	for _, err := range r.Documents(data) {
		if err != nil {
			return err
		}
	}
	return nil
}

// several reports whether something comes after the first document, readable or not.
func (r Reader) several(data []byte) bool {
	n := 0
	for _, err := range r.Documents(data) {
		if n++; n > 1 || err != nil {
			break
		}
	}
	return n > 1
}

// Documents yields the documents, which may be decoded then. An error is the last that it yields.
func (r Reader) Documents(data []byte) iter.Seq2[*yaml.Node, error] {
	c := check{maxSize: r.MaxSize, maxNodes: r.MaxNodes, anyKeys: r.AnyKeys}
	if c.maxSize == 0 {
		c.maxSize = HostSize
	}
	if c.maxNodes == 0 {
		c.maxNodes = HostNodes
	}
	return func(yield func(*yaml.Node, error) bool) {
		if refusal := c.text(data); refusal != nil {
			yield(nil, refusal)
			return
		}
		var all extent
		for decoder := yaml.NewDecoder(bytes.NewReader(data)); ; {
			var document yaml.Node
			if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
				return
			} else if err != nil {
				yield(nil, err)
				return
			}
			refusal := c.document(&document, &all)
			if refusal != nil {
				yield(nil, refusal)
				return
			}
			if !yield(&document, nil) {
				return
			}
		}
	}
}

// Refusal says why a document is not decoded.
type Refusal struct {
	// Reason has no words of the document.
	Reason string
	// Line is where it is, 0 for the document as a whole.
	Line int
	// Key is what is there twice, and was on line First already. Without First, it is something else.
	Key   string
	First int
}

func (e *Refusal) Error() string {
	if e.Line == 0 {
		return e.Reason
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Reason)
}

// check looks at documents.
type check struct {
	maxSize, maxNodes int
	anyKeys           bool
}

// text bounds what the library needs to take a text apart: each of the characters that are counted begins three nodes
// at most, a mapping, its key and its value.
func (c check) text(data []byte) *Refusal {
	if len(data) > c.maxSize {
		return &Refusal{Reason: fmt.Sprintf("it has %d bytes, more than %d", len(data), c.maxSize)}
	}
	n := 0
	for _, b := range data {
		switch b {
		case ',', ':', '-', '?', '[', '{':
			n++
		}
	}
	if n > c.maxNodes {
		return c.tooMany()
	}
	return nil
}

func (c check) tooMany() *Refusal {
	return &Refusal{Reason: fmt.Sprintf("it may have more than %d values", c.maxNodes)}
}

// extent is what decoding a node comes to, with aliases followed.
type extent struct{ nodes, bytes, depth int }

// document looks at one document; all is what those before it have come to.
func (c check) document(root *yaml.Node, all *extent) *Refusal {
	// What aliases stand for: it begins before them.
	anchored := make(map[*yaml.Node]*extent)
	var visit func(n *yaml.Node, e *extent) *Refusal
	visit = func(n *yaml.Node, e *extent) *Refusal {
		if refusal := c.keys(n); refusal != nil {
			return refusal
		}
		if n.Anchor != "" {
			anchored[n] = nil // as long as it is being looked at
		}
		var own extent
		for _, inner := range n.Content {
			if refusal := visit(inner, &own); refusal != nil {
				return refusal
			}
		}
		if n.Kind == yaml.AliasNode {
			stands, here := anchored[n.Alias]
			switch {
			case !here: // the library takes it
				return &Refusal{Line: n.Line, Reason: "an alias stands for something in another document"}
			case stands == nil:
				return &Refusal{Line: n.Line, Reason: "an alias is within what it stands for"}
			}
			own = *stands
		}
		own.nodes, own.bytes = own.nodes+1, own.bytes+len(n.Value)
		if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
			own.depth++
		}
		if n.Anchor != "" {
			anchored[n] = &own
		}
		e.nodes, e.bytes, e.depth = e.nodes+own.nodes, e.bytes+own.bytes, max(e.depth, own.depth)
		switch {
		case e.nodes > c.maxNodes:
			return c.tooMany()
		case e.bytes > c.maxSize:
			return &Refusal{Line: n.Line, Reason: fmt.Sprintf("aliases make more than %d bytes of it", c.maxSize)}
		case e.depth > MaxDepth:
			return &Refusal{Line: n.Line, Reason: fmt.Sprintf("more than %d levels lie in each other", MaxDepth)}
		}
		return nil
	}
	return visit(root, all)
}

// keys refuses a mapping for its keys, which are the same to the library when their texts are.
func (c check) keys(n *yaml.Node) *Refusal {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	if len(n.Content)/2 > MaxKeys && !c.anyKeys {
		return &Refusal{Line: n.Line, Reason: fmt.Sprintf("a mapping has more than %d keys", MaxKeys)}
	}
	type key struct {
		kind yaml.Kind
		text string
	}
	first := make(map[key]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		value := k
		if k.Kind == yaml.AliasNode {
			value = k.Alias
		}
		if value.Kind != yaml.ScalarNode {
			return &Refusal{Line: k.Line, Reason: "a key is no single value"}
		}
		line, again := first[key{k.Kind, k.Value}]
		if again && !c.anyKeys {
			return &Refusal{Line: k.Line, Key: k.Value, First: line,
				Reason: fmt.Sprintf("a key is there already, on line %d", line)}
		}
		first[key{k.Kind, k.Value}] = k.Line
	}
	return nil
}
