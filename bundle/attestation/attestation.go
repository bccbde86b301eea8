// Package attestation is what others state about a finished bundle: in-toto statements, each signed by
// its maker, such as a review of the lock or the result of a test.
//
// A statement is about a bundle's index.json, whose sha256 is the bundle digest and which names
// everything else: that is the file that `cosign verify-blob-attestation` wants to see. It is signed in a
// DSSE envelope in a sigstore bundle ([signature.Signer.Attest]). Those about one bundle lie in one file
// beside it, the [List]: the bundle stays as it is for them, in volumes and encrypted too.
//
// The package reads and writes. It proves no signature, and says nothing of who may state what: package
// trust does. Of some types it knows what the predicate says ([Statement.Outcome]).
//
// Reading is bounded and strict: sizes before anything is decoded, the number of values before anything
// is allocated. In the list, unknown fields, repeated ones and other spellings are refused, white space may
// differ. In statements, which have many makers, members that in-toto does not name are passed over, as
// in-toto asks for, and repeated ones are refused. Everything may come from an attacker.
package attestation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/boundedfile"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
)

// Suffix ends the name of the file beside a bundle that holds its list.
const Suffix = ".attestations"

// Bounds of a list.
const (
	// MaxFile is that of the file in bytes.
	MaxFile = 8 << 20
	// MaxStatement is that of one statement in a list, in bytes.
	MaxStatement = 256 << 10
	// Max is how many statements a list has.
	Max = 64

	// maxValues bounds JSON values; a sigstore bundle has 12.
	maxValues = Max*16 + 16
	// maxEnvelopeValues is the same for a sigstore bundle by cosign, which may have log entries.
	maxEnvelopeValues = 4096

	apiVersion = "boxlift.dev/v1"
	kind       = "Attestations"
)

// ErrInvalid is wrapped by errors that say that something is not in the form of a list, of an attestation
// or of a statement.
var ErrInvalid = fault.NewKind(fault.Bundle, "invalid attestation")

// Attestation is a signed statement. Nothing of it is proven.
type Attestation struct {
	*signature.Attested
	Statement *Statement
}

// Read reads a sigstore bundle with a statement of at most [signature.AttestationLimit] bytes. What cosign
// adds to one is left out. Errors wrap [ErrInvalid].
func Read(content []byte) (Attestation, error) {
	if n := boundedjson.Count(content); n > maxEnvelopeValues {
		return Attestation{}, fmt.Errorf("%w: %w: %d values, %d are allowed", ErrInvalid, boundedjson.ErrTooMuch, n,
			maxEnvelopeValues)
	}
	signed, err := signature.ReadAttestation(content)
	if err != nil {
		return Attestation{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	statement, err := Parse(signed.Statement)
	if err != nil {
		return Attestation{}, err
	}
	return Attestation{signed, statement}, nil
}

// ReadFile is Read of a file.
func ReadFile(path string) (Attestation, error) {
	content, err := boundedfile.Read(path, signature.AttestationLimit)
	if err != nil {
		return Attestation{}, fault.Input.Errorf("read the attestation: %w", err)
	}
	a, err := Read(content)
	if err != nil {
		return Attestation{}, fmt.Errorf("read the attestation %s: %w", path, err)
	}
	return a, nil
}

// ReadSigned reads a file with one attestation, as ReadFile does, or with a list, as it lies beside a bundle.
func ReadSigned(path string) ([]Attestation, error) {
	content, err := boundedfile.Read(path, signature.AttestationLimit)
	if err != nil {
		return nil, fault.Input.Errorf("read the attestations: %w", err)
	}
	var all []Attestation
	if members, _ := object(content); members["attestations"] != nil {
		all, err = parseList(content)
	} else {
		all = make([]Attestation, 1)
		all[0], err = Read(content)
	}
	if err != nil {
		return nil, fmt.Errorf("read the attestations in %s: %w", path, err)
	}
	return all, nil
}

// List is what lies beside a bundle.
type List struct {
	// Path is that of the file, whether it is there or not.
	Path string
	all  []Attestation
}

// document is a list as it is written.
type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Attestations are sigstore bundles.
	Attestations []json.RawMessage `json:"attestations"`
}

// ReadList reads the list of a bundle, whose file may be absent. The name is that of the bundle; of a
// set of volumes, without the endings.
func ReadList(name string) (*List, error) {
	l := &List{Path: name + Suffix}
	content, err := boundedfile.Read(l.Path, MaxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return l, nil
	case err != nil:
		return nil, fault.Input.Errorf("read the attestations beside the bundle: %w", err)
	}
	if l.all, err = parseList(content); err != nil {
		return nil, fmt.Errorf("read %s: %w", l.Path, err)
	}
	return l, nil
}

// parseList reads what [List.Add] writes. White space may differ.
func parseList(content []byte) ([]Attestation, error) {
	if len(content) > MaxFile {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrInvalid, MaxFile)
	}
	var d document
	if err := boundedjson.UnmarshalExact(content, &d, maxValues); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	switch {
	case d.APIVersion != apiVersion || d.Kind != kind:
		return nil, fmt.Errorf("%w: it is a %.40q of %.40q, expected a %q of %q", ErrInvalid, d.Kind, d.APIVersion, kind,
			apiVersion)
	case len(d.Attestations) == 0 || len(d.Attestations) > Max:
		return nil, fmt.Errorf("%w: it has %d attestations, expected 1 to %d", ErrInvalid, len(d.Attestations), Max)
	}
	var all []Attestation
	for i, raw := range d.Attestations {
		a, err := readMember(raw)
		if err != nil {
			return nil, fmt.Errorf("attestation %d: %w", i+1, err)
		}
		all = append(all, a)
	}
	return all, nil
}

// readMember is Read of what is in the form that [signature.Signer.Attest] writes, but for white space.
func readMember(raw []byte) (Attestation, error) {
	a, err := Read(raw)
	if err != nil {
		return Attestation{}, err
	}
	if err := a.checkSize(); err != nil {
		return Attestation{}, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return Attestation{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if !bytes.Equal(compact.Bytes(), a.Bundle) {
		return Attestation{}, fmt.Errorf("%w: the sigstore bundle has more than a statement and its signature, or values in "+
			"another spelling", ErrInvalid)
	}
	return a, nil
}

func (a *Attestation) checkSize() error {
	if n := len(a.Attested.Statement); n > MaxStatement {
		return fmt.Errorf("%w: the statement has %d bytes, %d is the most in a list", ErrInvalid, n, MaxStatement)
	}
	return nil
}

// About are the attestations about a bundle, in the order in which they were added. A file may hold
// others: another bundle may have had its name before.
func (l *List) About(bundle digest.Digest) []Attestation {
	return slices.DeleteFunc(slices.Clone(l.all), func(a Attestation) bool { return !a.Statement.IsAbout(bundle) })
}

// Strays is how many attestations are about something else than a bundle.
func (l *List) Strays(bundle digest.Digest) int { return len(l.all) - len(l.About(bundle)) }

// Add writes more attestations about a bundle into the file. It reports whether there was anything to
// do: nothing is written when their makers have stated the same before, and a second review by a maker
// takes the place of the first. Where the file has attestations about something else, it fails.
func (l *List) Add(bundle digest.Digest, more ...Attestation) (added bool, err error) {
	if n := l.Strays(bundle); n > 0 {
		return false, fault.WithHint(fault.Input.Errorf("add to %s: it has %d attestations about something else", l.Path, n),
			"move it away if another bundle had this name")
	}
	all := slices.Clone(l.all)
	for _, a := range more {
		if !a.Statement.IsAbout(bundle) {
			return false, fault.Input.Errorf("add to %s: the statement is about something else than the bundle %s", l.Path,
				bundle)
		}
		if err := a.checkSize(); err != nil {
			return false, fmt.Errorf("add to %s: %w", l.Path, err)
		}
		if slices.ContainsFunc(all, func(other Attestation) bool {
			return other.KeyID == a.KeyID && other.Statement.saysSame(a.Statement)
		}) {
			continue
		}
		added = true
		all = append(slices.DeleteFunc(all, func(other Attestation) bool {
			return other.KeyID == a.KeyID && other.Statement.Type == Review && a.Statement.Type == Review
		}), a)
	}
	if !added {
		return false, nil
	}
	return true, l.write(all)
}

// Copy copies a list beside another file that holds the same bundle, and returns the name of what was written; "" when
// there is none. Both names are those of the bundles.
func Copy(from, to string) (written string, err error) {
	l, err := ReadList(from)
	if err != nil || l.all == nil {
		return "", err
	}
	copied := &List{Path: to + Suffix}
	return copied.Path, copied.write(l.all)
}

func (l *List) write(all []Attestation) error {
	content, err := encodeList(all)
	if err == nil {
		err = ownfile.Replace(l.Path, content, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", l.Path, err)
	}
	l.all = all
	return nil
}

// encodeList is the file for [parseList].
func encodeList(all []Attestation) ([]byte, error) {
	if len(all) > Max {
		return nil, fault.Input.Errorf("%d attestations are too many, %d is the most", len(all), Max)
	}
	d := document{APIVersion: apiVersion, Kind: kind}
	for _, a := range all {
		d.Attestations = append(d.Attestations, a.Bundle)
	}
	content, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, err
	}
	if content = append(content, '\n'); len(content) > MaxFile {
		return nil, fault.Input.Errorf("%d bytes are too many, %d is the most", len(content), MaxFile)
	}
	return content, nil
}
