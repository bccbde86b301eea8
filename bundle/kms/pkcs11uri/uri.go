// Package pkcs11uri reads the URIs that name a key in a PKCS#11 token (RFC 7512), strictly: what it does not know is
// refused, since a key that is named more loosely than was meant may be another one.
//
//	pkcs11:token=release;object=boxlift?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/run/pin
//
// A PIN in the URI itself (pin-value) is refused: arguments and logs would show it.
package pkcs11uri

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/internal/fault"
)

// Scheme is what the URIs begin with.
const Scheme = "pkcs11:"

// limit bounds a URI, in bytes.
const limit = 4 << 10

// URI names a token, a key in it, and how both are reached. What is empty is not asked for.
type URI struct {
	Token, Manufacturer, Model, Serial string
	// Slot is the slot's number, or -1.
	Slot int64
	// Object is the key's label, and ID its CKA_ID. One of them is there at least.
	Object string
	ID     []byte
	// ModulePath is the file of the library that reaches the token.
	ModulePath string
	// PINSource is the file that holds the PIN.
	PINSource string
}

// Parse reads a URI. Its errors are of the class Input, and never show what the URI says of a PIN.
func Parse(text string) (*URI, error) {
	rest, ok := strings.CutPrefix(text, Scheme)
	if !ok || len(text) > limit {
		return nil, fault.Input.Errorf("read the PKCS#11 URI: expected %q and at most %d bytes", Scheme, limit)
	}
	u := &URI{Slot: -1}
	path, query, _ := strings.Cut(rest, "?")
	var seen []string
	for _, part := range []struct{ text, separator string }{{path, ";"}, {query, "&"}} {
		if part.text == "" {
			continue
		}
		for word := range strings.SplitSeq(part.text, part.separator) {
			name, value, ok := strings.Cut(word, "=")
			if !ok || slices.Contains(seen, name) {
				return nil, fault.Input.Errorf("read the PKCS#11 URI: expected NAME=VALUE, each once, with %q between them",
					part.separator)
			}
			seen = append(seen, name)
			if err := u.set(name, value, part.separator == "&"); err != nil {
				return nil, err
			}
		}
	}
	if u.Object == "" && len(u.ID) == 0 {
		return nil, fault.WithHint(fault.Input.Errorf("read the PKCS#11 URI: it names no key"),
			"add object=LABEL, or id=%01 with the bytes of the key's id")
	}
	return u, nil
}

// set takes one attribute.
func (u *URI) set(name, text string, inQuery bool) error {
	value, err := url.PathUnescape(text)
	if err != nil || strings.ContainsRune(value, 0) && name != "id" {
		return fault.Input.Errorf("read the PKCS#11 URI: the value of %q is not percent-encoded text", name)
	}
	switch {
	case name == "pin-value":
		return fault.WithHint(fault.Input.Errorf("read the PKCS#11 URI: pin-value is not taken: everybody on this machine "+
			"sees the arguments of a program"), "leave it out: the PIN is asked for, or read from a file that pin-source names")
	case inQuery && name == "module-path":
		u.ModulePath = value
	case inQuery && name == "pin-source":
		if u.PINSource, err = pinFile(value); err != nil {
			return err
		}
	case inQuery:
		return fault.Input.Errorf("read the PKCS#11 URI: %q is not known after the ?; module-path and pin-source are",
			name)
	case name == "token":
		u.Token = value
	case name == "manufacturer":
		u.Manufacturer = value
	case name == "model":
		u.Model = value
	case name == "serial":
		u.Serial = value
	case name == "object":
		u.Object = value
	case name == "id":
		u.ID = []byte(value)
	case name == "slot-id":
		if u.Slot, err = strconv.ParseInt(value, 10, 64); err != nil || u.Slot < 0 {
			return fault.Input.Errorf("read the PKCS#11 URI: slot-id is no number")
		}
	case name == "type":
		if value != "private" && value != "public" {
			return fault.Input.Errorf("read the PKCS#11 URI: type is %q, expected private or public", value)
		}
	default:
		return fault.Input.Errorf("read the PKCS#11 URI: %q is not known before the ?; token, manufacturer, model, "+
			"serial, slot-id, object, id and type are", name)
	}
	return nil
}

// pinFile is the file of a pin-source: a name, or a file: URI of this machine.
func pinFile(value string) (string, error) {
	name := value
	if rest, ok := strings.CutPrefix(value, "file:"); ok {
		name = rest
		if under, ok := strings.CutPrefix(rest, "//"); ok {
			name = strings.TrimPrefix(under, "localhost")
		}
	}
	if !strings.HasPrefix(name, "/") {
		return "", fault.WithHint(fault.Input.Errorf("read the PKCS#11 URI: pin-source is no file with its whole path"),
			"for example pin-source=file:/run/keys/pin; a program as source is not supported")
	}
	return name, nil
}

// WithPINSource is the URI with a file that holds the PIN. It must have none yet.
func WithPINSource(text, file string) string {
	separator := "?"
	if strings.Contains(text, "?") {
		separator = "&"
	}
	if strings.HasSuffix(text, "?") {
		separator = ""
	}
	return text + separator + "pin-source=file:" + file
}
