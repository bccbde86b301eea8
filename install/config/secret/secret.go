// Package secret keeps passwords, passphrases and tokens out of everything that is printed.
//
// Contract: no verb of fmt, no encoder and no logger shows the value of a [Text].
package secret

import (
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[secret]"

// Text holds a password or passphrase that no printing shows: the verbs of fmt,
// encoding/json, YAML and slog all see "[secret]". Only [Text.Reveal] gives the
// value. The zero Text holds the empty string.
//
// The value is behind a pointer because fmt does not call methods on unexported
// fields of a foreign struct and would print a plain string there.
type Text struct{ value *string }

// New hides value.
func New(value string) Text { return Text{value: &value} }

// Reveal returns the value. Callers pass it on to standard input or to a protocol,
// never to an argument list, a log, an error or a file that others can read.
func (s Text) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsEmpty reports whether there is no value, or an empty one.
func (s Text) IsEmpty() bool { return s.Reveal() == "" }

// Equal compares the values; == would compare where they are kept.
func (s Text) Equal(other Text) bool { return s.Reveal() == other.Reveal() }

// String returns "[secret]".
func (s Text) String() string { return redacted }

// GoString returns "[secret]".
func (s Text) GoString() string { return redacted }

// Format writes "[secret]" for every verb, %x and %d included.
func (s Text) Format(f fmt.State, _ rune) {
	// fmt.State keeps the first error of the writer below for the caller of Fprintf.
	_, _ = io.WriteString(f, redacted)
}

// MarshalText returns "[secret]": YAML, XML and JSON map keys use it.
func (s Text) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON returns "[secret]" in quotes.
func (s Text) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// LogValue returns "[secret]".
func (s Text) LogValue() slog.Value { return slog.StringValue(redacted) }

var (
	_ fmt.Formatter  = Text{}
	_ fmt.GoStringer = Text{}
	_ slog.LogValuer = Text{}
)
