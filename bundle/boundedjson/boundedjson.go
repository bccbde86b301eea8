// Package boundedjson decodes JSON that nobody has vouched for, in memory that is bounded by more
// than its length: the two bytes {} become a struct of more than a hundred.
package boundedjson

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/liteboxd/boxlift/internal/fault"
)

// ErrTooMuch is wrapped by errors that say that content has more than is allowed.
var ErrTooMuch = fault.NewKind(fault.Failure, "too much JSON")

// maxString bounds a string, name or value, in bytes: a decoder makes several copies of one.
const maxString = 1 << 20

// Unmarshal is [json.Unmarshal] of content with at most so many values (see [Count]), and no
// string above 1 MiB. Nothing is allocated for content that has more.
func Unmarshal(content []byte, v any, most int) error {
	switch n, longest := scan(content); {
	case n > most:
		return fmt.Errorf("%w: %d values, %d are allowed", ErrTooMuch, n, most)
	case longest > maxString:
		return fmt.Errorf("%w: a string of %d bytes, %d are allowed", ErrTooMuch, longest, maxString)
	}
	return json.Unmarshal(content, v)
}

// UnmarshalExact is Unmarshal of content that says nothing but what v then holds, in the one spelling that
// [json.Marshal] has for it: it refuses unknown fields, repeated ones, and other spellings. White space may differ.
func UnmarshalExact(content []byte, v any, most int) error {
	if err := Unmarshal(content, v, most); err != nil {
		return err
	}
	s := &spelling{rest: content}
	if err := json.NewEncoder(s).Encode(v); err != nil {
		return err
	}
	if s.skipSpace(); len(s.rest) > 0 {
		return errSpelling
	}
	return nil
}

var errSpelling = errors.New("it has unknown or repeated fields, or values in another spelling")

// spelling takes what is written to it if it is how JSON goes on, white space outside of strings aside. There is no
// second copy of either.
type spelling struct {
	rest              []byte
	inString, escaped bool
}

// Write is that of [io.Writer]. It fails where the JSON goes on otherwise.
func (s *spelling) Write(p []byte) (int, error) {
	for i, c := range p {
		if !s.inString {
			if s.skipSpace(); isSpace(c) {
				continue
			}
		}
		if len(s.rest) == 0 || s.rest[0] != c {
			return i, errSpelling
		}
		s.rest = s.rest[1:]
		switch {
		case s.escaped:
			s.escaped = false
		case s.inString && c == '\\':
			s.escaped = true
		case c == '"':
			s.inString = !s.inString
		}
	}
	return len(p), nil
}

func (s *spelling) skipSpace() {
	for len(s.rest) > 0 && isSpace(s.rest[0]) {
		s.rest = s.rest[1:]
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// Count returns how many values JSON has at most: one for each object, array, and comma outside
// of strings. It does not matter whether the content is valid.
func Count(content []byte) int {
	n, _ := scan(content)
	return n
}

// scan counts values, and finds the longest string.
func scan(content []byte) (n, longest int) {
	inString, begin := false, 0
	for i := 0; i < len(content); i++ {
		switch c := content[i]; {
		case c == '"':
			if inString {
				longest = max(longest, i-begin-1)
			}
			inString, begin = !inString, i
		case !inString && (c == ',' || c == '{' || c == '['):
			n++
		case inString && c == '\\':
			i++ // a quote behind it ends nothing
		}
	}
	return n, longest
}
