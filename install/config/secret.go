package config

import (
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[secret]"

// Secret holds a password or passphrase that no printing shows: the verbs of fmt,
// encoding/json, YAML and slog all see "[secret]". Only [Secret.Reveal] gives the
// value. The zero Secret holds the empty string.
//
// The value is behind a pointer because fmt does not call methods on unexported
// fields of a foreign struct and would print a plain string there.
type Secret struct{ value *string }

// NewSecret hides value.
func NewSecret(value string) Secret { return Secret{value: &value} }

// Reveal returns the value. Callers pass it on to standard input or to a protocol,
// never to an argument list, a log, an error or a file that others can read.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsEmpty says whether there is no value, or an empty one.
func (s Secret) IsEmpty() bool { return s.Reveal() == "" }

// Equal compares the values; == would compare where they are kept.
func (s Secret) Equal(other Secret) bool { return s.Reveal() == other.Reveal() }

// String returns "[secret]".
func (s Secret) String() string { return redacted }

// GoString returns "[secret]".
func (s Secret) GoString() string { return redacted }

// Format writes "[secret]" for every verb, %x and %d included.
func (s Secret) Format(f fmt.State, _ rune) {
	// fmt.State keeps the first error of the writer below for the caller of Fprintf.
	_, _ = io.WriteString(f, redacted)
}

// MarshalText returns "[secret]": YAML, XML and JSON map keys use it.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON returns "[secret]" in quotes.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// LogValue returns "[secret]".
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

var (
	_ fmt.Formatter  = Secret{}
	_ fmt.GoStringer = Secret{}
	_ slog.LogValuer = Secret{}
)
