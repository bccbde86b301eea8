package debian

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
)

// Bounds on a stanza. The longest in real archives have some 200 kB, in their list of what they provide.
const (
	maxLine   = 4 << 20
	maxStanza = 8 << 20
)

// stanza is one paragraph of a control file: values by field, in lower case. A value of several lines has them with
// line breaks between, without the blank before each.
type stanza struct {
	line   int // of its first field, from 1
	fields map[string]string
}

// stanzas reads the paragraphs of a control file (Policy 5.1). Only the fields that keep accepts are kept. It ends
// with an error that names the line.
func stanzas(r io.Reader, keep func(field string) bool) iter.Seq2[stanza, error] {
	return func(yield func(stanza, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(make([]byte, 0, 64<<10), maxLine)
		s := stanza{fields: make(map[string]string)}
		field, number, size, begun := "", 0, 0, false
		var value []string // the lines of field, joined once when it ends: a field may have a million
		end := func() {
			if value != nil {
				s.fields[strings.Clone(field)] = strings.Join(value, "\n")
			}
			value = nil
		}
		fail := func(format string, args ...any) {
			yield(stanza{}, fmt.Errorf("line %d: %w", number, fmt.Errorf(format, args...)))
		}
		seen := make(map[string]bool)
		for lines.Scan() {
			number++
			line := strings.TrimRight(lines.Text(), " \t\r")
			if size += len(line); size > maxStanza {
				fail("the paragraph has more than %d bytes", maxStanza)
				return
			}
			switch {
			case line == "":
				end()
				if begun && !yield(s, nil) {
					return
				}
				s, field, size, begun = stanza{fields: make(map[string]string)}, "", 0, false
				clear(seen)
			case line[0] == '#':
			case line[0] == ' ' || line[0] == '\t':
				if field == "" {
					fail("it goes on with a field that has not begun")
					return
				}
				if value != nil {
					value = append(value, strings.TrimLeft(line, " \t"))
				}
			default:
				end()
				name, first, ok := strings.Cut(line, ":")
				if !ok || !isFieldName(name) {
					fail("expected FIELD: VALUE")
					return
				}
				if field = strings.ToLower(name); seen[field] {
					fail("the field %s is there twice", name)
					return
				}
				seen[field] = true
				if !begun {
					s.line, begun = number, true
				}
				if keep(field) {
					value = []string{strings.Clone(strings.TrimLeft(first, " \t"))}
				}
			}
		}
		if err := lines.Err(); err != nil {
			if errors.Is(err, bufio.ErrTooLong) {
				err = fmt.Errorf("it has more than %d bytes", maxLine)
			}
			number++
			fail("%w", err)
			return
		}
		if end(); begun {
			yield(s, nil)
		}
	}
}

func isFieldName(s string) bool {
	return s != "" && s[0] != '-' && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
