package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// Document parses data and returns the root of its only document. ok is false after a fault,
// of which there is one at most: what follows from it would be no news. Node.YAML of such a
// fault has a line, from 1, and where it is known a column.
func (r Reader) Document(data []byte) (root Node, ok bool) {
	fault := r.parse(data, &root)
	if fault != nil {
		r.Report(*fault)
	}
	return root, fault == nil
}

func (r Reader) parse(data []byte, root *Node) *Fault {
	if len(data) > r.MaxSize {
		return &Fault{Code: TooLarge, Node: at(1, 0), Most: r.MaxSize}
	}
	if r.Printable {
		if line, column, what := badCharacter(data); what != "" {
			return &Fault{Code: BadCharacter, Node: at(line, column), Text: what}
		}
	}
	var doc, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return &Fault{Code: Empty, Node: at(1, 0)}
	case err != nil:
		return syntaxFault(data, err)
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		return &Fault{Code: SecondDocument, Node: Node{YAML: &second}}
	case !errors.Is(err, io.EOF):
		return syntaxFault(data, err)
	}
	root.YAML = doc.Content[0]
	return nil
}

// at is a place without a node.
func at(line, column int) Node { return Node{YAML: &yaml.Node{Line: line, Column: column}} }

// badCharacter finds the first character that a text does not have: a control character other
// than tab and line end, another kind of line end, a byte order mark, or a byte that is no
// UTF-8. what is "" if there is none.
func badCharacter(data []byte) (line, column int, what string) {
	line, column = 1, 1
	for i := 0; i < len(data); {
		c, n := utf8.DecodeRune(data[i:])
		next := i + n
		switch {
		case c == '\n':
			line, column = line+1, 0
		case c == '\t', c == '\r' && next < len(data) && data[next] == '\n':
		case c == utf8.RuneError && n == 1:
			return line, column, fmt.Sprintf("byte 0x%02X", data[i])
		case unicode.IsControl(c), c == '\u2028', c == '\u2029', c == '\ufeff':
			return line, column, fmt.Sprintf("character U+%04X", c)
		}
		i, column = next, column+1
	}
	return 0, 0, ""
}

// Syntax is an error of the YAML library.
type Syntax struct {
	// Reason is the library's own text. Only that of an unknown anchor repeats something of the
	// document, and that may be a password that begins with * and is not in quotes.
	Reason string
	Anchor bool // an alias whose anchor does not exist
	Begins bool // a mapping or list could not be read to its end: the fault is on the line, or in what begins there
	Tab    bool // a tab stands before the text of the line, where YAML allows only spaces
}

var (
	yamlError     = lazyregexp.New(`^yaml: (?:line (\d+): )?(.*)$`)
	unknownAnchor = lazyregexp.New(`^unknown anchor '(.*)' referenced$`)
	// These come from the library's parser, which counts lines from 0; the others come from its
	// scanner, which counts from 1. Those of the first kind name the line where the block that
	// has the fault begins.
	blockError  = lazyregexp.New(`^did not find expected (key|'-' indicator|',' or)`)
	parserError = lazyregexp.New(
		`^(did not find expected (node content|<)|found (undefined tag|duplicate|incompatible))`)
)

// syntaxFault finds the line of an error of the YAML library, which states it in its text or, on
// the first line, not at all.
func syntaxFault(data []byte, err error) *Fault {
	line, s := 0, &Syntax{Reason: strings.TrimPrefix(err.Error(), "yaml: ")}
	if m := yamlError.FindStringSubmatch(err.Error()); m != nil {
		line, _ = strconv.Atoi(m[1]) // none is line 0
		s.Reason = m[2]
	}
	switch anchor := unknownAnchor.FindStringSubmatch(s.Reason); {
	case anchor != nil:
		s.Anchor = true
		if before, _, found := bytes.Cut(data, []byte("*"+anchor[1])); found {
			line = bytes.Count(before, []byte("\n")) + 1
		}
	case blockError.MatchString(s.Reason):
		s.Begins = true
		line++
	case parserError.MatchString(s.Reason):
		line++
	default:
		line = max(line, 1)
		s.Tab = indentedByTab(data, line)
	}
	return &Fault{Code: BadSyntax, Node: at(max(line, 1), 0), Syntax: s}
}

// indentedByTab reports whether a tab stands before the text of a line.
func indentedByTab(data []byte, line int) bool {
	lines := bytes.SplitN(data, []byte("\n"), line+1)
	if len(lines) < line {
		return false
	}
	text := lines[line-1]
	return bytes.ContainsRune(text[:len(text)-len(bytes.TrimLeft(text, " \t"))], '\t')
}
