package bundle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"filippo.io/age"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/bundle/volume"
)

// Reader is an open bundle, or a delta of one, which it reads as the bundle, but for the
// bytes that are left out. Its methods may be called by several goroutines at once.
type Reader struct {
	path   string
	file   *volume.File
	stored *ocitar.Reader // as it lies on the disk
	source io.ReaderAt    // of the whole bundle
	tar    *ocitar.Reader // the same: stored, unless it is a delta
	index  []byte
	parsed ocispec.Index
	// validity is what index.json says of when and where to use the bundle.
	validity lock.Validity
	signed   *signature.Signature  // over index, nil for none; of a delta, that in the outline
	beside   []signature.Signature // from the file beside it, over whatever
	trust    *carriedTrust         // nil for none; a delta has that of its bundle
	delta    *delta                // nil for a whole bundle
	bases    []*Reader
}

// Open opens the bundle that path stands for: a file, or a set of volumes, encrypted for
// one of the identities or not (see [volume.Open]). It finds every member and reads
// index.json, so that a file that is cut off or no bundle is refused here, in milliseconds;
// contents are proven by [Reader.Verify] and the signature by [Reader.VerifySignature].
func Open(path string, identities ...age.Identity) (*Reader, error) {
	return OpenSigned(path, nil, identities...)
}

// OpenSigned is Open for a bundle that has to be signed with the key. The signature is checked
// before anything that it covers is decoded: until then, only the headers of the tar are looked
// at, and the trust file, which no signature of the bundle covers. Where it is why the bundle is not opened, the error is
// a [*SignatureError].
func OpenSigned(path string, key *signature.PublicKey, identities ...age.Identity) (*Reader, error) {
	return OpenVerified(path, SignedWith(key), identities...)
}

// Verifier proves who signed a bundle.
type Verifier interface {
	// TakeTrust is told of the trust file that travels in the bundle, nil for none, before it is asked for
	// the signatures: a key that only this file names may have made them. Where it fails, the bundle is refused.
	TakeTrust(f *trust.File) error
	// VerifySignatures proves that an index.json is signed by whom it has to be signed by. The
	// signatures are in the form that [signature.Signature.CheckForm] asks for. It is asked twice for
	// a delta: for its own index.json, and for that of its bundle.
	VerifySignatures(index []byte, signatures []signature.Signature) error
}

// OpenVerified is OpenSigned for a bundle with signatures that a verifier takes; nil takes any or none.
func OpenVerified(path string, by Verifier, identities ...age.Identity) (*Reader, error) {
	r, err := open(path, by, identities)
	if errors.As(err, new(*SignatureError)) {
		return nil, fmt.Errorf("bundle %s: %w", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open bundle %s: %w", path, err)
	}
	return r, nil
}

// oneKey is the verifier of those who know one key: it has to be among those that have signed.
type oneKey struct{ key *signature.PublicKey }

// SignedWith is the verifier of those who know one key; nil for no key.
func SignedWith(key *signature.PublicKey) Verifier {
	if key == nil {
		return nil
	}
	return oneKey{key}
}

// TakeTrust is that of [Verifier]. Who knows one key has no use for others.
func (o oneKey) TakeTrust(*trust.File) error { return nil }

// VerifySignatures is that of [Verifier]. What others have signed beside the key is not looked at.
func (o oneKey) VerifySignatures(index []byte, signatures []signature.Signature) error {
	s := signatures[0]
	for _, other := range signatures {
		if id, _, err := other.Claim(); err == nil && id == signature.KeyID(o.key) {
			s = other
			break
		}
	}
	return signature.Verify(o.key, index, s.Bundle, s.Base64)
}

// SignatureError says that a bundle is not signed with the key that it has to be signed with.
type SignatureError struct{ Err error }

func (e *SignatureError) Error() string { return e.Err.Error() }

func (e *SignatureError) Unwrap() error { return e.Err }

func open(path string, by Verifier, identities []age.Identity) (*Reader, error) {
	f, err := volume.Open(path, identities...)
	if err != nil {
		var failed *fs.PathError
		if errors.As(err, &failed) && failed.Path == path {
			err = failed.Err // the path is said by the caller
		}
		return nil, err
	}
	beside, err := readBeside(signaturesPath(path))
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	r, err := newReader(f, f.Size(), path, by, beside)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	r.file = f
	return r, nil
}

// NewReader is Open for a bundle of size bytes, not encrypted and not in volumes, that lies
// in something else than a file. The path is what messages call it.
func NewReader(source io.ReaderAt, size int64, path string) (*Reader, error) {
	return newReader(source, size, path, nil, nil)
}

// newReader checks the signatures unless by is nil.
func newReader(
	source io.ReaderAt, size int64, path string, by Verifier, beside []signature.Signature,
) (*Reader, error) {
	r := &Reader{path: path, source: source, beside: beside}
	var err error
	if r.stored, err = ocitar.NewReader(source, size); err != nil {
		return nil, err
	}
	// First, as it takes several times its size to decode it: what that leaves is room for index.json.
	if r.trust, err = readTrust(r.stored); err != nil {
		return nil, err
	}
	if r.index, err = r.stored.ReadAll(ocitar.IndexFile, format.MaxIndexSize); err != nil {
		return nil, err
	}
	if r.signed, err = readSignature(r.stored); err != nil {
		return nil, err
	}
	if by != nil {
		if err := by.TakeTrust(r.TrustFile()); err != nil {
			return nil, err
		}
		if err := (&payload{r.index, r.signed}).verify(by, beside); err != nil {
			return nil, err
		}
	}
	if r.tar = r.stored; isDelta(r.index) {
		if err := r.assemble(by); err != nil {
			return nil, err
		}
	}
	if err := boundedjson.Unmarshal(r.index, &r.parsed, format.MaxIndexValues); err != nil {
		return nil, fmt.Errorf("%w: index.json: %w", ErrInvalid, err)
	}
	if r.parsed.SchemaVersion != 2 || r.parsed.ArtifactType != format.ArtifactType {
		return nil, fmt.Errorf(
			"%w: index.json has the artifact type %q, expected %q: this is not a boxlift bundle, or one of a later "+
				"format", ErrInvalid, r.parsed.ArtifactType, format.ArtifactType)
	}
	if err := checkNames(r.Version()); err != nil {
		return nil, fmt.Errorf("index.json: %w", err)
	}
	if err := readValidity(r); err != nil {
		return nil, err
	}
	for i, d := range r.parsed.Manifests {
		if err := format.CheckDescriptor(d, format.MaxManifestSize); err != nil {
			return nil, fmt.Errorf("%w: index.json: entry %d: %w", ErrInvalid, i, err)
		}
	}
	return r, nil
}

// Close closes the file, or all of its volumes, and the bundles that it uses.
func (r *Reader) Close() error {
	var errs []error
	for _, base := range r.bases {
		errs = append(errs, base.Close())
	}
	if r.file != nil {
		errs = append(errs, r.file.Close())
	}
	return errors.Join(errs...)
}

// Path returns the name that the bundle was opened by.
func (r *Reader) Path() string { return r.path }

// Digest returns the bundle digest; that of a delta is the one of its whole bundle.
func (r *Reader) Digest() digest.Digest { return digest.FromBytes(r.index) }

// Size returns the length of the file in bytes, without what encryption adds.
func (r *Reader) Size() int64 { return r.stored.Layout().Size }

// File returns what the bundle lies in, or nil after [NewReader]. It is closed with the reader.
func (r *Reader) File() *volume.File { return r.file }

// Version returns the version of the boxlift that built the bundle.
func (r *Reader) Version() string { return r.parsed.Annotations[format.AnnotationVersion] }

// Index returns the bytes of index.json of the bundle; of a delta, those of its whole bundle.
func (r *Reader) Index() []byte { return r.index }

// Entries returns the entries of index.json.
func (r *Reader) Entries() []ocispec.Descriptor { return r.parsed.Manifests }

// Tar returns where the members of the bundle are, those that a delta leaves out among them.
func (r *Reader) Tar() *ocitar.Places { return &r.tar.Places }

// Stored returns where the members of the file are as it is: of a delta, those of its own.
func (r *Reader) Stored() *ocitar.Places { return &r.stored.Places }

// Fixed returns the members of the file that are no blobs, by their names, as they were when it was opened.
func (r *Reader) Fixed() map[string][]byte {
	index, signed := r.index, r.signed
	if r.delta != nil {
		index, signed = r.delta.index, r.delta.signed
	}
	fixed := map[string][]byte{ocitar.LayoutFile: []byte(ocitar.LayoutContent), ocitar.IndexFile: index}
	if signed != nil {
		fixed[ocitar.SigstoreBundleFile], fixed[ocitar.SignatureFile] = signed.Bundle, signed.Base64
	}
	if r.trust != nil {
		fixed[ocitar.TrustFile] = r.trust.content
	}
	return fixed
}

// Signature returns the signature over index.json that is in the file, or nil when there is none; of a delta, that
// of its bundle.
func (r *Reader) Signature() *signature.Signature { return r.signed }

// Signed reports whether the bundle is signed, in the file or beside it, whoever did. A delta has
// a signature of its own, and that of its bundle.
func (r *Reader) Signed() bool { return len(r.Signatures().Keys()) > 0 }

// VerifySignature checks that index.json was signed with the key; of a delta, its own and
// that of its bundle. The errors are [*SignatureError] and wrap those of [signature.Verify], and
// [ErrInvalid] too when there is a signature.
func (r *Reader) VerifySignature(key *signature.PublicKey) error {
	return r.VerifySignatures(oneKey{key})
}

// VerifySignatures is VerifySignature for whoever a verifier takes. The errors wrap those of the verifier.
func (r *Reader) VerifySignatures(by Verifier) error {
	if err := by.TakeTrust(r.TrustFile()); err != nil {
		return fmt.Errorf("bundle %s: %w", r.path, err)
	}
	s := r.Signatures()
	for i := range s.over {
		p := &s.over[len(s.over)-1-i] // the delta's own first
		err := p.verify(by, s.beside)
		switch {
		case err != nil && p != &s.over[0]:
			return fmt.Errorf("bundle %s: the delta: %w", r.path, err)
		case err != nil:
			return fmt.Errorf("bundle %s: %w", r.path, err)
		}
	}
	return nil
}

// readSignature returns both forms of the signature in a file, or nil when it has none.
func readSignature(tar *ocitar.Reader) (*signature.Signature, error) {
	if _, ok := tar.Open(ocitar.SignatureFile); !ok {
		return nil, nil
	}
	var signed signature.Signature
	var err error
	if signed.Bundle, err = tar.ReadAll(ocitar.SigstoreBundleFile, signature.MaxSize); err != nil {
		return nil, err
	}
	if signed.Base64, err = tar.ReadAll(ocitar.SignatureFile, signature.MaxSize); err != nil {
		return nil, err
	}
	return &signed, nil
}

// ReadJSON reads a small blob whole and verifies it. A blob that is not there gives
// errAbsent.
func (r *Reader) ReadJSON(d ocispec.Descriptor) ([]byte, error) {
	if err := format.CheckDescriptor(d, format.MaxConfigSize); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	e, ok := r.tar.Blob(d.Digest)
	if !ok {
		return nil, fmt.Errorf("%w: blob %s: %w", ErrInvalid, d.Digest, format.ErrAbsent)
	}
	if e.Size != d.Size {
		return nil, fmt.Errorf("%w: blob %s has %d bytes, its descriptor says %d", ErrInvalid, d.Digest, e.Size, d.Size)
	}
	content, err := r.tar.ReadAll(e.Name, format.MaxConfigSize)
	if err != nil {
		return nil, err
	}
	if got := digest.FromBytes(content); got != d.Digest {
		return nil, fmt.Errorf("%w: blob %s holds bytes with the digest %s", ErrInvalid, d.Digest, got)
	}
	return content, nil
}

// Lock returns the lock that the bundle was built from.
func (r *Reader) Lock() (*lock.Lock, []byte, error) {
	c, err := readContents(r, everything)
	if err != nil {
		return nil, nil, fmt.Errorf("bundle %s: %w", r.path, err)
	}
	l, content, err := lockIn(r, c)
	if err != nil {
		return nil, nil, fmt.Errorf("bundle %s: %w", r.path, err)
	}
	return l, content, nil
}

func lockIn(r *Reader, c *Contents) (*lock.Lock, []byte, error) {
	f, ok := c.File(LockComponent, LockFile, "")
	if !ok {
		return nil, nil, fmt.Errorf("%w: it carries no %s", ErrInvalid, LockFile)
	}
	content, err := r.ReadJSON(ocispec.Descriptor{Digest: f.Digest, Size: f.Size})
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", LockFile, err)
	}
	l, err := lock.Parse(LockFile, content)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := checkValidity(r, l); err != nil {
		return nil, nil, err
	}
	return l, content, nil
}

// errMissing joins ErrInvalid with what is missing.
func errMissing(d digest.Digest, of string) error {
	return fmt.Errorf("%w: %w: blob %s of %s is missing", ErrInvalid, format.ErrAbsent, d, of)
}

// SBOM returns the list of software that the bundle was built with, proven against its digest:
// CycloneDX in JSON, at most 128 MiB. Without one, the second result is false.
func (r *Reader) SBOM() ([]byte, bool, error) {
	contents, err := r.Contents()
	if err != nil {
		return nil, false, err
	}
	f, ok := contents.SBOM()
	if !ok {
		return nil, false, nil
	}
	document, err := readSBOM(r, f)
	return document, err == nil, err
}

// readSBOM reads the list of software, proven.
func readSBOM(r *Reader, f File) ([]byte, error) {
	if f.Size > format.MaxSBOM {
		return nil, fmt.Errorf("%w: %s has %d bytes, %d is the most", ErrInvalid, SBOMFile, f.Size, format.MaxSBOM)
	}
	content, err := r.Content(f.Digest, f.Size)
	if err != nil {
		return nil, err
	}
	document := make([]byte, f.Size)
	_, err = io.ReadFull(content, document)
	return document, err
}
