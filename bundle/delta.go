package bundle

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/archive"
	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// A delta is a bundle without the blobs that the other side holds. Its own index.json says
// which they are and where in the bundle they belong; its first blob, the outline, is the
// bundle's own index.json, signature and manifests. So a reader knows all of the bundle
// but the bytes that were left out, and has these too when it is given what holds them:
// it then reads the bundle itself, byte for byte (see [ocitar.Assemble]).

const (
	// maxDeltaValues bounds how many values of JSON (see [boundedjson.Count]) the index.json of a
	// delta may have: 4 for each blob, and the bundles.
	// maxOutlineValues bounds those of its one descriptor.
	maxDeltaValues   = 5 * format.MaxLeftOut
	maxOutlineValues = 64
	// outlineWindow is how much the outline makes its reader hold beside that.
	outlineWindow = 8 << 20
)

// ErrIncomplete is wrapped by errors that say that something is needed that a delta leaves
// out and that nobody supplies.
var ErrIncomplete = fault.NewKind(fault.Bundle, "incomplete bundle")

// delta is what a reader of a delta knows beside the bundle.
type delta struct {
	index   []byte               // of the delta
	signed  *signature.Signature // over index; nil for none
	parsed  format.DeltaIndex
	outline *ocitar.Reader
	whole   []byte // index.json of the bundle, in the outline
}

// Delta says what a delta leaves out.
type Delta struct {
	// Since are the digests of the bundles that hold what is left out; none, when the delta
	// was built on what hosts hold and these had no bundle on record.
	Since []digest.Digest `json:"since"`
	// LeftOut are the blobs whose bytes are not in the file.
	LeftOut Amount `json:"leftOut"`
	// Missing are those of them that the bases which the reader was given do not supply.
	Missing []MissingBlob `json:"missing"`
	// WholeSize is the length of the whole bundle in bytes.
	WholeSize int64 `json:"wholeSize"`
}

// MissingBlob is a blob that has to be supplied.
type MissingBlob struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
	// Of is an image or file that it belongs to.
	Of string `json:"of,omitempty"`
}

// MissingError lists blobs that something needs and that nobody supplies. It wraps
// [ErrIncomplete].
type MissingError struct {
	// Path is that of the delta, Since are the bundles that hold the blobs.
	Path  string
	Since []digest.Digest
	Blobs []MissingBlob
}

func (e *MissingError) Error() string {
	var b strings.Builder
	var size int64
	for _, blob := range e.Blobs {
		size += blob.Size
	}
	fmt.Fprintf(&b, "%v: %s is a delta that leaves out %s (%s) needed here; %s:", ErrIncomplete, e.Path,
		blobs(len(e.Blobs)), progress.Bytes(size), SinceText(e.Since))
	for _, blob := range e.Blobs {
		fmt.Fprintf(&b, "\n  %s, %d bytes", blob.Digest, blob.Size)
		if blob.Of != "" {
			fmt.Fprintf(&b, ", of %s", blob.Of)
		}
	}
	return b.String()
}

func (e *MissingError) Unwrap() error { return ErrIncomplete }

// Hint says where to get them from.
func (e *MissingError) Hint() string {
	return "name the bundle that the delta was built on with --base, or take the whole bundle, which `boxlift " +
		"bundle join --base` makes of both"
}

func blobs(n int) string {
	if n == 1 {
		return "1 blob"
	}
	return fmt.Sprintf("%d blobs", n)
}

// SinceText says who holds what a delta leaves out.
func SinceText(since []digest.Digest) string {
	names := make([]string, 0, len(since))
	for _, d := range since {
		names = append(names, d.String())
	}
	switch len(names) {
	case 0:
		return "no bundle is on record that holds them, only the hosts that the delta was built for"
	case 1:
		return "the bundle " + names[0] + " holds them"
	}
	return "the bundles " + strings.Join(names, " and ") + " hold them"
}

// isDelta looks at an index.json.
func isDelta(index []byte) bool {
	var own struct {
		ArtifactType string `json:"artifactType"`
	}
	return boundedjson.Unmarshal(index, &own, maxDeltaValues) == nil && own.ArtifactType == format.DeltaArtifactType
}

// assemble makes of the reader of a delta one of its bundle. Unless by is nil, it
// has to take the signatures of the bundle.
func (r *Reader) assemble(by Verifier) error {
	d := &delta{index: r.index, signed: r.signed}
	if err := d.parse(); err != nil {
		return fmt.Errorf("%w: index.json of the delta: %w", ErrInvalid, err)
	}
	if err := d.readOutline(r.stored); err != nil {
		return err
	}
	signed, err := readSignature(d.outline)
	if err != nil {
		return err
	}
	if by != nil {
		if err := (&payload{d.whole, signed}).verify(by, r.beside); err != nil {
			return err
		}
	}
	layout, err := d.layout(r.stored)
	if err != nil {
		return fmt.Errorf("%w: index.json of the delta: %w", ErrInvalid, err)
	}
	r.delta, r.index, r.signed = d, d.whole, signed
	r.source = ocitar.Assemble(layout, func(m ocitar.Member) (io.ReaderAt, error) {
		if m.Digest() != "" {
			return r.find(m)
		}
		switch m.Name {
		case ocitar.LayoutFile:
			return strings.NewReader(ocitar.LayoutContent), nil
		case ocitar.TrustFile:
			return bytes.NewReader(r.trust.content), nil
		}
		content, ok := d.outline.Open(m.Name)
		if !ok {
			return nil, fmt.Errorf("%w: the outline has no member %s", ErrInvalid, m.Name)
		}
		return content, nil
	})
	r.tar, err = ocitar.NewReader(r.source, layout.Size)
	return err
}

func (d *delta) parse() error {
	var parsed struct {
		format.DeltaIndex
		Manifests outlineOnly `json:"manifests"`
	}
	if err := boundedjson.Unmarshal(d.index, &parsed, maxDeltaValues); err != nil {
		return err
	}
	d.parsed = parsed.DeltaIndex
	d.parsed.Manifests = parsed.Manifests
	if d.parsed.SchemaVersion != 2 {
		return fmt.Errorf("it has the schema version %d, expected 2", d.parsed.SchemaVersion)
	}
	if len(d.parsed.Manifests) != 1 || d.parsed.Manifests[0].MediaType != format.OutlineMediaType {
		return fmt.Errorf("it has to name one outline (%s) and nothing else", format.OutlineMediaType)
	}
	if err := format.CheckDescriptor(d.parsed.Manifests[0], format.MaxOutline); err != nil {
		return fmt.Errorf("outline: %w", err)
	}
	if len(d.parsed.LeftOut) > format.MaxLeftOut || len(d.parsed.Since) > format.MaxLeftOut {
		return fmt.Errorf("more than %d blobs or bundles", format.MaxLeftOut)
	}
	for _, of := range append([]digest.Digest{d.parsed.Bundle}, d.parsed.Since...) {
		if err := format.CheckDescriptor(ocispec.Descriptor{Digest: of}, 0); err != nil {
			return fmt.Errorf("bundle: %w", err)
		}
	}
	last := -1
	for i, blob := range d.parsed.LeftOut {
		if err := format.CheckDescriptor(ocispec.Descriptor{Digest: blob.Digest, Size: blob.Size}, 0); err != nil {
			return fmt.Errorf("left out: %d: %w", i, err)
		}
		if blob.At <= last || blob.At >= ocitar.MaxMembers {
			return fmt.Errorf("left out: %d: the place %d is out of order", i, blob.At)
		}
		last = blob.At
	}
	return nil
}

// outlineOnly is the list of manifests of a delta, which is short.
type outlineOnly []ocispec.Descriptor

// UnmarshalJSON refuses what is longer.
func (o *outlineOnly) UnmarshalJSON(content []byte) error {
	return boundedjson.Unmarshal(content, (*[]ocispec.Descriptor)(o), maxOutlineValues)
}

// readOutline reads and proves the outline.
func (d *delta) readOutline(file *ocitar.Reader) error {
	want := d.parsed.Manifests[0]
	e, ok := file.Blob(want.Digest)
	if !ok || e.Size != want.Size {
		return fmt.Errorf("%w: the outline %s is not there", ErrInvalid, want.Digest)
	}
	packed, err := file.ReadAll(e.Name, format.MaxOutline)
	if err != nil {
		return err
	}
	if got := digest.FromBytes(packed); got != want.Digest {
		return fmt.Errorf("%w: the outline %s holds bytes with the digest %s", ErrInvalid, want.Digest, got)
	}
	content, err := unpackOutline(packed)
	if err == nil {
		d.outline, err = ocitar.NewReader(bytes.NewReader(content), int64(len(content)))
	}
	if err != nil {
		return fmt.Errorf("%w: the outline: %w", ErrInvalid, err)
	}
	index := d.outline.Layout().Entries[1] // there is no other order
	if index.Size > format.MaxIndexSize {
		return fmt.Errorf("%w: the outline: %s has %d bytes, more than the %d that are allowed",
			ErrInvalid, index.Name, index.Size, format.MaxIndexSize)
	}
	d.whole = content[index.Offset : index.Offset+index.Size]
	if got := digest.FromBytes(d.whole); got != d.parsed.Bundle {
		return fmt.Errorf("%w: the outline is that of the bundle %s, and the delta is of %s", ErrInvalid, got,
			d.parsed.Bundle)
	}
	return nil
}

// unpackOutline unpacks twice, and counts the first time: bytes that grow as they come would take
// several times their number.
func unpackOutline(packed []byte) ([]byte, error) {
	z, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(outlineWindow))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	size, err := io.Copy(io.Discard, io.LimitReader(z, format.MaxOutline+1))
	if err == nil && size > format.MaxOutline {
		err = fmt.Errorf("it has more than %d bytes", format.MaxOutline)
	}
	if err == nil {
		err = z.Reset(bytes.NewReader(packed))
	}
	if err != nil {
		return nil, err
	}
	content := make([]byte, size)
	_, err = io.ReadFull(z, content)
	return content, err
}

// PackOutline is the same every time that it is done with the same content.
func PackOutline(content io.Reader) ([]byte, error) {
	var packed bytes.Buffer
	err := archive.CompressLayer(&packed, content)
	return packed.Bytes(), err
}

// layout puts what the delta has and what it leaves out together.
func (d *delta) layout(file *ocitar.Reader) (*ocitar.Layout, error) {
	var members []ocitar.Member
	for _, e := range d.outline.Layout().Entries {
		if e.Name == ocitar.TrustFile {
			return nil, fmt.Errorf("the outline has the member %s, which stands in the delta itself", e.Name)
		}
		if e.Digest() == "" {
			members = append(members, e.Member)
		}
	}
	for _, e := range file.Layout().Entries {
		if e.Name == ocitar.TrustFile {
			members = append(members, e.Member)
		}
	}
	first := len(members)
	left := d.parsed.LeftOut
	isLeftOut := make(map[ocitar.Member]bool, len(left))
	takeLeft := func() {
		for len(left) > 0 && left[0].At == len(members)-first {
			m := ocitar.Blob(left[0].Digest, left[0].Size)
			isLeftOut[m] = true
			members, left = append(members, m), left[1:]
		}
	}
	for _, e := range file.Layout().Entries {
		if of := e.Digest(); of == "" || of == d.parsed.Manifests[0].Digest {
			continue
		}
		takeLeft()
		members = append(members, e.Member)
	}
	takeLeft()
	if len(left) > 0 {
		return nil, fmt.Errorf("left out: the blob %s is to be number %d, and there are fewer", left[0].Digest,
			left[0].At)
	}
	for _, e := range d.outline.Layout().Entries {
		if e.Digest() != "" && !isLeftOut[e.Member] {
			return nil, fmt.Errorf("the outline has the blob %s, which is not left out", e.Digest())
		}
	}
	return ocitar.NewLayout(members)
}

// Use lets the reader of a delta take what it leaves out from other bundles, which may be
// deltas themselves and are closed with it. It must not be called while the reader is used
// otherwise. A whole bundle takes nothing.
func (r *Reader) Use(bases ...*Reader) { r.bases = append(r.bases, bases...) }

// Whole is the file of the whole bundle, of a delta as well: there is no such file, and it
// reads as if there were.
type Whole struct {
	io.ReaderAt
	reader *Reader
}

// Whole returns the file of the whole bundle, for who proves what is read from it by the
// bundle digest and those of the blobs: nothing was proven here, and what the reader itself
// has proven is read again. What nobody supplies cannot be read from it.
func (r *Reader) Whole() *Whole { return &Whole{r.source, r} }

// Size returns the length in bytes.
func (w *Whole) Size() int64 { return w.reader.tar.Layout().Size }

// Modified returns when the file that was opened was last written; the zero time after
// [NewReader].
func (w *Whole) Modified() time.Time {
	if w.reader.file == nil {
		return time.Time{}
	}
	return w.reader.file.Modified()
}

// Close closes the reader.
func (w *Whole) Close() error { return w.reader.Close() }

// supply is where the bytes of a blob are.
type supply struct {
	*io.SectionReader
	from *Reader
}

// find finds a blob that is a member of the bundle. It fails with a [*MissingError] when it
// was left out and nobody supplies it.
func (r *Reader) find(m ocitar.Member) (*supply, error) {
	tars := []*ocitar.Reader{r.stored}
	if r.delta != nil {
		tars = append(tars, r.delta.outline)
	}
	for _, tar := range tars {
		if e, ok := tar.Blob(m.Digest()); ok && e.Size == m.Size {
			return &supply{tar.Section(e), r}, nil
		}
	}
	if r.delta == nil {
		return nil, fmt.Errorf("%w: it has no blob %s with %d bytes", ErrInvalid, m.Digest(), m.Size)
	}
	for _, base := range r.bases {
		if s, err := base.find(m); err == nil {
			return s, nil
		}
	}
	return nil, errNotSupplied(r, MissingBlob{Digest: m.Digest(), Size: m.Size})
}

// Unproven returns what lies where a blob should be, for who proves it by the blob's digest and
// uses the bytes that were proven, not others that are read later. A delta need not have listed
// the blob. Only planning and building call it: for all others there is [Reader.Content].
func (r *Reader) Unproven(m ocitar.Member) (*io.SectionReader, error) {
	found, err := r.find(m)
	if err != nil {
		return nil, err
	}
	return found.SectionReader, nil
}

// DeltaIndex returns the own index.json of a delta, its bytes and what is in them, or nothing
// when it is a whole bundle.
func (r *Reader) DeltaIndex() ([]byte, *format.DeltaIndex) {
	if r.delta == nil {
		return nil, nil
	}
	return r.delta.index, &r.delta.parsed
}

func errNotSupplied(r *Reader, blobs ...MissingBlob) *MissingError {
	return &MissingError{Path: r.path, Since: r.delta.parsed.Since, Blobs: blobs}
}

// Delta says what the file leaves out, or nil when it is a whole bundle.
func (r *Reader) Delta() *Delta {
	if r.delta == nil {
		return nil
	}
	d := &Delta{Since: slices.Clone(r.delta.parsed.Since), WholeSize: r.tar.Layout().Size, Missing: []MissingBlob{}}
	names := blobNames(r)
	for _, blob := range r.delta.parsed.LeftOut {
		if _, ok := r.delta.outline.Blob(blob.Digest); ok {
			continue
		}
		d.LeftOut.Add(blob.Size)
		if !r.Has(blob.Digest) {
			d.Missing = append(d.Missing, MissingBlob{blob.Digest, blob.Size, names[blob.Digest]})
		}
	}
	return d
}

// Has reports whether the bytes of a blob are at hand. In a whole bundle those of every
// blob are that it names.
func (r *Reader) Has(d digest.Digest) bool {
	e, ok := r.tar.Blob(d)
	if ok && r.delta != nil {
		_, err := r.find(e.Member)
		ok = err == nil
	}
	return ok
}

// Require returns a [*MissingError] unless all these blobs are at hand.
func (r *Reader) Require(blobs ...digest.Digest) error {
	if r.delta == nil {
		return nil
	}
	var missing []MissingBlob
	var names map[digest.Digest]string
	seen := make(map[digest.Digest]bool)
	for _, d := range blobs {
		e, ok := r.tar.Blob(d)
		if !ok || r.Has(d) || seen[d] {
			continue // what the bundle does not have is an error of another kind
		}
		seen[d] = true
		if names == nil {
			names = blobNames(r)
		}
		missing = append(missing, MissingBlob{d, e.Size, names[d]})
	}
	if missing == nil {
		return nil
	}
	return errNotSupplied(r, missing...)
}

// RequireAll is Require for all blobs of the bundle.
func (r *Reader) RequireAll() error {
	if r.delta == nil {
		return nil
	}
	if missing := r.Delta().Missing; len(missing) > 0 {
		return errNotSupplied(r, missing...)
	}
	return nil
}

// blobNames names the blobs of the bundle, as far as they can be read.
func blobNames(r *Reader) map[digest.Digest]string {
	contents, err := readContents(r, everything)
	if err != nil {
		return nil
	}
	return contents.BlobNames()
}
