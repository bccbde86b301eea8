// Package schema reads the parts of install.yaml, and describes them for editors with the same
// functions.
//
// Contract: a [Node] is a place in the file. Its methods read a value, or report what is wrong
// with it and return the zero value; all problems of a file are gathered, up to a bound. For a
// node that [Describe] hands out they fill in a JSON schema instead, look at nothing and report
// nothing. So what editors are told cannot differ from what is accepted.
//
// Any value may hold ${NAME}, which the environment variable NAME replaces; $$ stands for one
// dollar sign. What has been put in is not looked at again. No problem or warning shows a
// secret, nor what stands where a password often does.
package schema

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/internal/spelling"
	"github.com/liteboxd/boxlift/internal/strictyaml"
)

// Bounds of a file.
const (
	MaxSize  = 256 << 10 // bytes. A host takes some 200, so that is room for more than one k3s cluster can have
	MaxItems = 1000      // of every list, and of every mapping with any keys; k3s clusters are smaller
)

// maxProblems is more than anybody mends from one list, and keeps a file that was
// never an install.yaml from filling the memory.
const maxProblems = 1000

// Problem is one thing that is wrong in a file.
type Problem struct {
	File string
	Line int    // 1-based; 0 when the file as a whole is meant
	Path string // such as cluster.agents[1].port; "" at the top
	Text string // what was found and what was expected
}

// String returns "file:line: path: text".
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	b.WriteString(": ")
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Text)
	return b.String()
}

// Warning is something that boxlift can work with but the user should know.
type Warning Problem

// String returns "file:line: path: text".
func (w Warning) String() string { return Problem(w).String() }

// Document is a file that was read, and what is wrong with it.
type Document struct {
	file        string
	lookupEnv   func(string) (string, bool)
	reader      strictyaml.Reader
	expanded    int                    // bytes that ${NAME} references have brought in so far
	definitions map[string]*jsonSchema // while a schema is made

	problems     []Problem
	moreProblems int // found beyond maxProblems
	warnings     []Warning
	plainSecret  *Node // the first secret that the file holds as it is
}

// Read has read look at the root of a document, unless data is none. Problems call it file;
// lookupEnv is os.LookupEnv outside tests.
func Read(file string, data []byte, lookupEnv func(string) (string, bool), read func(root Node)) *Document {
	d := &Document{file: file, lookupEnv: lookupEnv}
	d.reader = strictyaml.Reader{MaxSize: MaxSize, MaxItems: MaxItems, Report: d.report}
	if root, ok := d.reader.Document(data); ok {
		read(d.node(root))
	}
	return d
}

// Problems returns what was found, in the order of the file's lines, and how much more there is
// that was not kept. No problem means that everything which was read counts.
func (d *Document) Problems() (problems []Problem, more int) {
	slices.SortStableFunc(d.problems, func(a, b Problem) int { return a.Line - b.Line })
	return d.problems, d.moreProblems
}

// Warnings returns the warnings in the order of the file's lines.
func (d *Document) Warnings() []Warning {
	slices.SortStableFunc(d.warnings, func(a, b Warning) int { return a.Line - b.Line })
	return d.warnings
}

// PlainSecret returns the first secret that stands in the file as it is, without a variable.
func (d *Document) PlainSecret() (at Node, found bool) {
	if d.plainSecret == nil {
		return Node{}, false
	}
	return *d.plainSecret, true
}

func (d *Document) node(in strictyaml.Node) Node { return Node{document: d, in: in} }

// nowhere is a node without a place in the file.
func nowhere(path string) strictyaml.Node { return strictyaml.Node{YAML: &yaml.Node{}, Path: path} }

// report words what every document can have wrong with it.
func (d *Document) report(f strictyaml.Fault) {
	at := d.node(f.Node)
	switch f.Code {
	case strictyaml.TooLarge:
		d.node(nowhere("")).Fail("found more than %d KiB, expected an install.yaml", f.Most>>10)
	case strictyaml.Empty:
		d.node(nowhere("")).Fail("found an empty file, expected an install.yaml")
	case strictyaml.SecondDocument:
		at.Fail("found a second document, expected only one")
	case strictyaml.BadSyntax:
		at.Fail("%s", syntaxText(f.Syntax))
	case strictyaml.Alias:
		at.Fail("found an alias (*), expected %s: put text that begins with * in quotes", f.Want)
	case strictyaml.Anchor:
		at.Fail("found an anchor (&), expected %s: put text that begins with & in quotes", f.Want)
	case strictyaml.Tag:
		at.Fail("found a tag (!), expected %s: put text that begins with ! in quotes", f.Want)
	case strictyaml.Nothing:
		at.Fail("found nothing, expected %s: leave the key out if it is not wanted", f.Want)
	case strictyaml.NotMapping, strictyaml.NotList:
		want := f.Want
		if f.Keys != nil {
			want += " with " + strings.Join(f.Keys, ", ")
		}
		at.Fail("found %s, expected %s", at.Kind(), want)
	case strictyaml.TooMany:
		what := "items"
		if at.IsMapping() {
			what = "keys"
		}
		at.Fail("found %d %s, expected at most %d", f.Count, what, f.Most)
	case strictyaml.UnknownKey:
		at.unknownKey(f)
	case strictyaml.Repeated:
		if f.Keys == nil {
			at.Fail("found the key %s again, expected it once: it is on line %d already", at.Found(), f.First)
			return
		}
		at.in.Path = join(at.in.Path, f.Node.YAML.Value)
		at.Fail("found again, expected once: it is on line %d already", f.First)
	case strictyaml.MissingKey:
		at.Fail("%s is missing", f.Text)
	}
}

// syntaxText keeps out of the text what the parser quotes of the file: that may be a password
// that begins with an asterisk and is not in quotes.
func syntaxText(s *strictyaml.Syntax) string {
	switch {
	case s.Anchor:
		return "found an alias (*), expected a value: put text that begins with * in quotes"
	case s.Tab:
		return "found a tab, expected spaces: YAML is indented with spaces only"
	case s.Begins && strings.HasPrefix(s.Reason, "did not find expected ','"):
		return "the block that begins here is not valid YAML: " + s.Reason +
			" (text with special characters or ${NAME} needs quotes here)"
	case s.Begins:
		return "the block that begins here is not valid YAML: " + s.Reason
	}
	return "not valid YAML: " + s.Reason
}

// unknownKey shows a key only if it can be one. In { } the rest of a text after a comma looks
// like a key without a value, and that text may be a password.
func (n Node) unknownKey(f strictyaml.Fault) {
	key, keys := f.Node.YAML.Value, strings.Join(f.Keys, ", ")
	switch {
	case !f.Node.IsText():
		n.Fail("found a key that is %s, expected one of %s", n.Kind(), keys)
		return
	case !shownKey.MatchString(key) || f.InFlow:
		n.Fail("found something that is not a key, expected one of %s: put text with special characters in quotes",
			keys)
		return
	}
	n.in.Path = join(n.in.Path, key)
	if near := spelling.Closest(key, f.Keys, len(key)/3); near != "" {
		n.Fail("unknown key, did you mean %s?", near)
	} else {
		n.Fail("unknown key, expected one of %s", keys)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
