package trust

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
)

// File is a trust file whose form is right. What it says is worth something only as a [Policy].
type File struct {
	versions []signed // in rising order, at least one
}

// signed is a version with its signatures.
type signed struct {
	*Version
	content    []byte
	signatures []signature.Signature
	ids        []string // of the keys that the signatures name, none twice
}

// digest is what the next version names it by.
func (s *signed) digest() digest.Digest { return digest.FromBytes(s.content) }

// document is a file as it is written.
type document struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Versions   []documentVersion `json:"versions"`
}

type documentVersion struct {
	// Content is what is signed, in base64, which no program writes differently.
	Content []byte `json:"content"`
	// Signatures are sigstore bundles.
	Signatures []json.RawMessage `json:"signatures"`
}

// ReadFile is Parse of a file.
func ReadFile(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.Input.Errorf("read the trust file: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, fault.Input.Errorf("read the trust file: %w", err)
	}
	file, err := Parse(content)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return file, nil
}

// Parse reads what Encode wrote, without a look at the signatures. Errors wrap [ErrInvalid].
func Parse(content []byte) (*File, error) {
	if len(content) > MaxSize {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrInvalid, MaxSize)
	}
	var d document
	if err := boundedjson.UnmarshalExact(content, &d, maxFileValues); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	switch {
	case d.APIVersion != APIVersion || d.Kind != Kind:
		return nil, fmt.Errorf("%w: it is a %.40q of %.40q, expected a %q of %q", ErrInvalid, d.Kind, d.APIVersion, Kind,
			APIVersion)
	case len(d.Versions) == 0 || len(d.Versions) > MaxVersions:
		return nil, fmt.Errorf("%w: it has %d versions, expected 1 to %d", ErrInvalid, len(d.Versions), MaxVersions)
	}
	f := new(File)
	keys := keyCache{}
	for i, one := range d.Versions {
		s, err := one.parse(keys)
		if err != nil {
			return nil, fmt.Errorf("%w: version at place %d: %w", ErrInvalid, i+1, err)
		}
		if i > 0 && s.Number <= f.versions[i-1].Number {
			return nil, fmt.Errorf("%w: version %d is behind version %d", ErrInvalid, s.Number, f.versions[i-1].Number)
		}
		f.versions = append(f.versions, *s)
	}
	return f, nil
}

func (d *documentVersion) parse(keys keyCache) (*signed, error) {
	if len(d.Signatures) > MaxSignatures {
		return nil, fmt.Errorf("it has %d signatures, %d is the most", len(d.Signatures), MaxSignatures)
	}
	v, err := parseVersion(d.Content, keys)
	if err != nil {
		return nil, err
	}
	s := &signed{Version: v, content: d.Content}
	for i, raw := range d.Signatures {
		if err := s.take(raw); err != nil {
			return nil, fmt.Errorf("signature %d: %w", i+1, err)
		}
	}
	return s, nil
}

// take adds the signature of a sigstore bundle, unproven.
func (s *signed) take(bundle []byte) error {
	one, err := signature.ReadMember(bundle)
	var id string
	if err == nil {
		id, _, err = one.Claim()
	}
	if err != nil {
		return errors.New(err.Error()) // without its class, which is that of a bundle
	}
	if slices.Contains(s.ids, id) {
		return fmt.Errorf("the key %.80s signed it twice", id)
	}
	s.ids, s.signatures = append(s.ids, id), append(s.signatures, one)
	return nil
}

// Encode returns the file, for [Parse].
func (f *File) Encode() ([]byte, error) {
	d := document{APIVersion: APIVersion, Kind: Kind}
	for _, s := range f.versions {
		one := documentVersion{Content: s.content, Signatures: []json.RawMessage{}}
		for _, by := range s.signatures {
			one.Signatures = append(one.Signatures, by.Bundle)
		}
		d.Versions = append(d.Versions, one)
	}
	content, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the trust file: %w", err)
	}
	content = append(content, '\n')
	if len(content) > MaxSize {
		return nil, fmt.Errorf("%w: it has %d bytes, %d is the most", ErrInvalid, len(content), MaxSize)
	}
	return content, nil
}

// Newest is the newest version, unproven, for those who look at it. It must not be changed.
func (f *File) Newest() *Version { return f.newest().Version }

func (f *File) newest() *signed { return &f.versions[len(f.versions)-1] }

// Numbers are those of the versions in the file, in rising order.
func (f *File) Numbers() []int64 {
	numbers := make([]int64, 0, len(f.versions))
	for _, s := range f.versions {
		numbers = append(numbers, s.Number)
	}
	return numbers
}

// Since leaves out the versions below a number, but never the newest.
func (f *File) Since(number int64) *File {
	at := 0
	for at < len(f.versions)-1 && f.versions[at].Number < number {
		at++
	}
	return &File{versions: slices.Clone(f.versions[at:])}
}

// Parts returns the content of the newest version and the sigstore bundles over it: what cosign verifies.
func (f *File) Parts() (content []byte, bundles [][]byte) {
	for _, s := range f.newest().signatures {
		bundles = append(bundles, s.Bundle)
	}
	return f.newest().content, bundles
}

// New makes a file of a first version, which lacks signatures.
func New(v *Version) (*File, error) {
	first := v.clone()
	first.APIVersion, first.Kind, first.Number, first.Previous = APIVersion, Kind, 1, ""
	return new(File).with(first)
}

// with is the file and one more version, without signatures.
func (f *File) with(v *Version) (*File, error) {
	v.Kind = VersionKind
	content, err := v.encode()
	if err != nil {
		return nil, err
	}
	versions := append(slices.Clone(f.versions), signed{Version: v, content: content})
	return &File{versions: versions[max(0, len(versions)-MaxVersions):]}, nil
}

// Sign adds a signature to the newest version. It may be one by an owner of this version or of the
// one before. Signing again with a key changes nothing.
func (f *File) Sign(by *signature.Signer) error {
	s := f.newest()
	id := signature.KeyID(by.PublicKey())
	if slices.Contains(s.ids, id) {
		return nil
	}
	if !f.isOwner(id) {
		return fault.WithHint(fault.Input.Errorf("sign version %d: the key %s is no owner's, neither in it nor in the "+
			"version before", s.Number, id), "sign with the key of "+strings.Join(s.names(Owner), " or "))
	}
	if len(s.signatures) >= MaxSignatures {
		return fault.Input.Errorf("sign version %d: it has %d signatures, which is the most", s.Number, MaxSignatures)
	}
	one, err := by.Sign(s.content)
	if err != nil {
		return err
	}
	return s.take(one.Bundle)
}

// isOwner reports whether a key may sign the newest version.
func (f *File) isOwner(id string) bool {
	for _, s := range f.versions[max(0, len(f.versions)-2):] {
		if k := s.Key(id); k != nil && k.Has(Owner) && s.Revoked(id) == nil {
			return true
		}
	}
	return false
}

// Signatures says who signed the newest version: names of owners, and ids where the file has no name. It
// proves nothing.
func (f *File) Signatures() []string {
	var list []string
	for _, id := range f.newest().ids {
		name := id
		for _, s := range f.versions[max(0, len(f.versions)-2):] {
			if k := s.Key(id); k != nil {
				name = k.Name
			}
		}
		list = append(list, name)
	}
	return list
}
