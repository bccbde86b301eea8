package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/boundedfile"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
)

// SignaturesSuffix ends the name of the file beside a bundle that has further signatures over it. The
// signature in a bundle is made when it is built. Others come later, and the file stays as it is for
// them: in volumes everything behind a longer member would move, and what is encrypted could only be
// encrypted anew, for recipients that it does not name.
const SignaturesSuffix = ".signatures"

const (
	// maxSignaturesFile is the most that is read of the file, in bytes.
	maxSignaturesFile = 64 << 10
	// maxBeside is how many signatures it has: of a delta, two by each key.
	maxBeside       = 64
	maxBesideValues = 1024

	signaturesAPIVersion = "boxlift.dev/v1"
	signaturesKind       = "Signatures"
)

// signaturesFile is what lies beside a bundle.
type signaturesFile struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Signatures are sigstore bundles over index.json. Those over something else are passed over.
	Signatures []json.RawMessage `json:"signatures"`
}

// Signatures are those over a bundle, in it and beside it. Nothing of them is proven.
type Signatures struct {
	// Path is that of the file beside the bundle, whether it is there or not.
	Path   string
	bundle string
	over   []payload // the bundle's index.json, and of a delta its own too
	beside []signature.Signature
}

// payload is an index.json and the signature over it that is in the file, or nil.
type payload struct {
	index []byte
	own   *signature.Signature
}

// Signatures returns the signatures over the bundle.
func (r *Reader) Signatures() *Signatures {
	s := &Signatures{Path: signaturesPath(r.path), bundle: r.path, over: []payload{{r.index, r.signed}}, beside: r.beside}
	if r.delta != nil {
		s.over = append(s.over, payload{r.delta.index, r.delta.signed})
	}
	return s
}

// all returns the signature in the file, and then those beside it that are over the same. A key has one.
func (p *payload) all(beside []signature.Signature) []signature.Signature {
	var list []signature.Signature
	var ids []string
	if p.own != nil {
		list = append(list, *p.own)
		ids = idsOf(list)
	}
	for _, s := range beside {
		id, _, err := s.Claim()
		if err == nil && p.claimedBy(s) && !slices.Contains(ids, id) {
			list, ids = append(list, s), append(ids, id)
		}
	}
	return list
}

// claimedBy reports whether a signature says that it is over the index.json.
func (p *payload) claimedBy(s signature.Signature) bool {
	_, of, err := s.Claim()
	sum := sha256.Sum256(p.index)
	return err == nil && bytes.Equal(of, sum[:])
}

// verify proves the signatures.
func (p *payload) verify(by Verifier, beside []signature.Signature) error {
	list := p.all(beside)
	if len(list) == 0 {
		return &SignatureError{signature.ErrNotSigned}
	}
	err := by.VerifySignatures(p.index, list)
	if err == nil && p.own != nil {
		err = p.own.CheckForm() // those beside it were read so
	}
	if err != nil {
		return &SignatureError{fmt.Errorf("%w: %w", ErrInvalid, err)}
	}
	return nil
}

// Keys are the ids of the keys that the signatures name, that in the file first; of a delta, of those
// that have signed both it and its bundle.
func (s *Signatures) Keys() []string {
	ids := idsOf(s.over[0].all(s.beside))
	for i := range s.over[1:] {
		also := idsOf(s.over[1+i].all(s.beside))
		ids = slices.DeleteFunc(ids, func(id string) bool { return !slices.Contains(also, id) })
	}
	return ids
}

func idsOf(list []signature.Signature) []string {
	ids := make([]string, 0, len(list))
	for i := range list {
		if id, _, err := list[i].Claim(); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// Strays is how many signatures beside the bundle are over something else: another bundle may have
// had its name before.
func (s *Signatures) Strays() int {
	strays := 0
	for _, one := range s.beside {
		if !slices.ContainsFunc(s.over, func(p payload) bool { return p.claimedBy(one) }) {
			strays++
		}
	}
	return strays
}

// Add signs the bundle and writes the signature into the file beside it, which keeps those that it
// has. What the bundle lies in is not touched. It reports whether there was anything to do: a key
// signs once. Where the file beside it has signatures over something else, it fails.
func (s *Signatures) Add(by *signature.Signer) (added bool, err error) {
	if n := s.Strays(); n > 0 {
		return false, fault.WithHint(fault.Input.Errorf("sign bundle %s: %s has %d signatures over something else", s.bundle,
			s.Path, n), "move it away if another bundle had this name")
	}
	if slices.Contains(s.Keys(), signature.KeyID(by.PublicKey())) {
		return false, nil
	}
	beside := slices.Clone(s.beside)
	for _, p := range s.over {
		one, err := by.Sign(p.index)
		if err != nil {
			return false, fmt.Errorf("sign bundle %s: %w", s.bundle, err)
		}
		beside = append(beside, one)
	}
	if len(beside) > maxBeside {
		return false, fault.Input.Errorf("sign bundle %s: %s would have %d signatures, %d is the most", s.bundle, s.Path,
			len(beside), maxBeside)
	}
	if err := writeBeside(s.Path, beside); err != nil {
		return false, fmt.Errorf("sign bundle %s: %w", s.bundle, err)
	}
	s.beside = beside
	return true, nil
}

// CopyTo writes the further signatures over the whole bundle beside another file that holds it, and returns the name of
// what was written; "" when there are none. Those over a delta stay behind.
func (s *Signatures) CopyTo(path string) (written string, err error) {
	beside := slices.DeleteFunc(slices.Clone(s.beside), func(one signature.Signature) bool {
		return !s.over[0].claimedBy(one)
	})
	if len(beside) == 0 {
		return "", nil
	}
	written = signaturesPath(path)
	return written, writeBeside(written, beside)
}

// CopySignatures copies the file with further signatures over a bundle beside another file that holds it, and returns
// the name of what was written; "" when there are none.
func CopySignatures(from, to string) (written string, err error) {
	list, err := readBeside(signaturesPath(from))
	if err != nil || list == nil {
		return "", err
	}
	written = signaturesPath(to)
	return written, writeBeside(written, list)
}

func writeBeside(path string, list []signature.Signature) error {
	f := signaturesFile{APIVersion: signaturesAPIVersion, Kind: signaturesKind}
	for _, one := range list {
		f.Signatures = append(f.Signatures, one.Bundle)
	}
	content, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	if err := ownfile.Replace(path, append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// signaturesPath is the name of the file with further signatures over the bundle that a path stands for.
func signaturesPath(path string) string { return volume.Name(path) + SignaturesSuffix }

// readBeside reads the file beside a bundle; there may be none.
func readBeside(path string) ([]signature.Signature, error) {
	content, err := boundedfile.Read(path, maxSignaturesFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, boundedfile.ErrUnfit):
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	case err != nil:
		return nil, err
	}
	list, err := parseBeside(content)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrInvalid, path, err)
	}
	return list, nil
}

// parseBeside reads what [Signatures.Add] writes. White space may differ.
func parseBeside(content []byte) ([]signature.Signature, error) {
	if len(content) > maxSignaturesFile {
		return nil, fmt.Errorf("it has more than %d bytes", maxSignaturesFile)
	}
	var f signaturesFile
	if err := boundedjson.UnmarshalExact(content, &f, maxBesideValues); err != nil {
		return nil, err
	}
	switch {
	case f.APIVersion != signaturesAPIVersion || f.Kind != signaturesKind:
		return nil, fmt.Errorf("it is a %.40q of %.40q, expected a %q of %q", f.Kind, f.APIVersion, signaturesKind,
			signaturesAPIVersion)
	case len(f.Signatures) > maxBeside:
		return nil, fmt.Errorf("it has %d signatures, %d is the most", len(f.Signatures), maxBeside)
	}
	var list []signature.Signature
	for i, raw := range f.Signatures {
		s, err := signature.ReadMember(raw)
		if err != nil {
			return nil, fmt.Errorf("signature %d: %w", i+1, err)
		}
		list = append(list, s)
	}
	return list, nil
}
