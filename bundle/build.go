package bundle

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pieces"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/parallel"
	"github.com/liteboxd/boxlift/internal/progress"
)

// streamTries bounds how often a download that cannot be gone on with is begun again.
const streamTries = 5

// BuildOptions say where a bundle goes.
type BuildOptions struct {
	// Path is the bundle's final name. The file gets it only when every blob has been
	// verified at its place; a file of that name is replaced then.
	Path string
	// Signer signs index.json; nil leaves the bundle unsigned.
	Signer *signature.Signer
	OutputOptions
}

// BuildResult says what a build did. Sizes are in bytes.
type BuildResult struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
	Blobs  int           `json:"blobs"`
	// Reused is the part of Size that an interrupted build had left as whole blobs.
	Reused int64 `json:"reused"`
	// Copied is the part of Size that older bundles held.
	Copied int64 `json:"copied"`
	// Shared is the part of Copied whose place on the disk is that of the older bundle.
	Shared int64 `json:"shared"`
	// LeftOut are the blobs that a delta leaves out.
	LeftOut Amount `json:"leftOut"`
	// Unchanged says that the bundle was there already, complete.
	Unchanged bool `json:"unchanged"`
	// Stored is how much of the disk the bundle takes, and Volumes is how many volumes it
	// has: 0 when it is one file.
	Stored  int64 `json:"stored"`
	Volumes int   `json:"volumes"`
}

// Build fetches what the plan lacks and writes the bundle. While it works, the file is
// called <name>.<digest>.partial and holds each finished blob at its final place, header
// included; the header is written last, so that a build that was ended at any moment
// can tell what it has. Building the same plan again goes on from there, also inside a
// blob of which it finds the beginning.
func (p *Plan) Build(ctx context.Context, o BuildOptions) (*BuildResult, error) {
	defer p.chart.stop()
	if p.sbom != nil {
		return p.buildWithSBOM(ctx, o)
	}
	b, result, err := p.builder(o.Signer)
	if err != nil {
		return nil, err
	}
	return b.build(ctx, o, result)
}

// builder lays out the bundle, or the delta of it, and signs that unless signer is nil.
func (p *Plan) builder(signer *signature.Signer) (*builder, *BuildResult, error) {
	b := &builder{Plan: p, check: p.chart}
	result := &BuildResult{Digest: p.Digest()}
	signed, err := p.sign(signer)
	if err == nil && p.since != nil {
		if b.Plan, result.LeftOut, err = p.delta(signed); err != nil {
			return nil, nil, fmt.Errorf("plan the delta: %w", err)
		}
		signed, err = b.sign(signer)
	}
	if err == nil {
		err = b.layOut(signed)
	}
	if err != nil {
		return nil, nil, err
	}
	return b, result, nil
}

// build does so for what is laid out.
func (b *builder) build(ctx context.Context, o BuildOptions, result *BuildResult) (*BuildResult, error) {
	result.Size, result.Blobs = b.layout.Size, len(b.layout.Entries)-len(b.fixed)
	if b.isAt(ctx, o, result) {
		if err := b.check.wait(); err != nil {
			return nil, err
		}
		result.Unchanged = true
		return result, b.removeLeft(o)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := b.open(o); err != nil {
		return nil, err
	}
	defer b.close()
	if err := b.fill(ctx, result); err != nil {
		return nil, err
	}
	whole := b.file
	if b.sealed != nil {
		whole = b.sealed.file
	}
	result.Stored, result.Volumes = whole.Size(), whole.Volumes()
	return result, b.finish(ctx)
}

// fill puts everything in its place.
func (b *builder) fill(ctx context.Context, result *BuildResult) error {
	var err error
	if result.Reused, err = b.prepare(ctx); err != nil {
		return err
	}
	if err := b.reserve(); err != nil {
		return err
	}
	if result.Copied, err = b.copyAll(ctx); err != nil {
		return err
	}
	result.Shared = b.shared.Load()
	if err := b.check.wait(); err != nil {
		b.discard()
		return err
	}
	return b.fetchAll(ctx)
}

// builder fills one file.
type builder struct {
	*Plan
	layout *ocitar.Layout
	places map[string]ocitar.Entry // by member name
	fixed  map[string][]byte       // members that are not blobs
	// continued says that an earlier build has left something in the file.
	continued bool
	// isCopy says that all blobs are in older bundles, and that nothing else has them.
	isCopy bool
	// noClones are the files of older bundles whose blocks cannot be shared with this one's.
	noClones sync.Map
	shared   atomic.Int64 // bytes
	file     *volume.Draft
	sealed   *sealed // nil when nothing is encrypted
	// check is waited for before anything is fetched.
	check *chartCheck

	mu   sync.Mutex
	done map[string]bool // members that are verified and in place
}

// sign signs index.json, unless signer is nil.
func (p *Plan) sign(signer *signature.Signer) (*signature.Signature, error) {
	if signer == nil {
		return nil, nil
	}
	s, err := signer.Sign(p.index)
	if err != nil {
		return nil, fmt.Errorf("sign index.json: %w", err)
	}
	return &s, nil
}

// layOut lays the members out, with the signature.
func (b *builder) layOut(s *signature.Signature) error {
	var err error
	if b.layout, b.fixed, err = layOut(b.index, b.members, s); err != nil {
		return err
	}
	b.places = make(map[string]ocitar.Entry, len(b.layout.Entries))
	for _, e := range b.layout.Entries {
		b.places[e.Name] = e
	}
	b.done = make(map[string]bool)
	return nil
}

// isAt reports whether the finished bundle lies at the path already, with this signature
// and in the form that is asked for.
func (b *builder) isAt(ctx context.Context, o BuildOptions, result *BuildResult) bool {
	r, err := Open(o.Path, o.Identities...)
	if err != nil {
		return false
	}
	defer r.Close() //nolint:errcheck // it was only read
	if r.Size() != b.layout.Size || !o.isForm(r.File()) {
		return false
	}
	for name, content := range b.fixed {
		if got, err := r.Stored().ReadAll(name, maxIndexSize); err != nil || !bytes.Equal(got, content) {
			return false
		}
	}
	result.Stored, result.Volumes = r.File().Stored(), r.File().Volumes()
	return r.Verify(ctx, b.reporter) == nil
}

// suffix is what the unfinished bundle's name ends with, after what is to be built, so that
// the leavings of another lock are never mixed in.
func (b *builder) suffix() string {
	kind := ""
	if b.fixed[ocitar.SignatureFile] != nil {
		kind = "-signed"
	}
	return "." + b.Digest().Encoded()[:12] + kind + ".partial"
}

// prepare brings the file to its final length and writes what is at hand. It returns
// how many bytes of blobs were there already.
func (b *builder) prepare(ctx context.Context) (reused int64, err error) {
	isWhole, err := b.file.IsWhole()
	if err != nil {
		return 0, err
	}
	if b.continued = isWhole; b.continued {
		if err := b.findDone(ctx); err != nil {
			return 0, err
		}
		if err := b.clearPadding(); err != nil {
			return 0, err
		}
		for name := range b.done {
			reused += b.places[name].Size
		}
	} else if err := b.file.Allocate(); err != nil {
		return 0, err
	}
	for _, e := range b.layout.Entries {
		content, ok := b.fixed[e.Name]
		if !ok {
			content, ok = b.content[e.Digest()]
		}
		if !ok || b.done[e.Name] {
			continue
		}
		// With its padding: a longer signature may have stood here before.
		padded := append(bytes.Clone(content), make([]byte, e.End()-e.Offset-e.Size)...)
		if _, err := b.file.WriteAt(padded, e.Offset); err != nil {
			return 0, b.writeError(err)
		}
		if err := b.complete(e); err != nil {
			return 0, err
		}
	}
	return reused, nil
}

// findDone looks for members whose header is in place, and proves their contents.
func (b *builder) findDone(ctx context.Context) error {
	task := b.reporter.Task("check what an earlier build left", b.layout.Size)
	err := parallel.ForEach(ctx, runtime.GOMAXPROCS(0), len(b.layout.Entries), func(ctx context.Context, i int) error {
		e := b.layout.Entries[i]
		if e.Digest() == "" {
			return nil
		}
		want, err := ocitar.Header(e.Member)
		if err != nil {
			return err
		}
		got := make([]byte, ocitar.BlockSize)
		if _, err := b.file.ReadAt(got, e.HeaderOffset()); err != nil {
			return fmt.Errorf("read the unfinished bundle: %w", err)
		}
		if !bytes.Equal(got, want) {
			return nil
		}
		actual, err := b.hash(ctx, e, task.Add)
		if err != nil {
			return err
		}
		if actual == e.Digest() {
			b.markDone(e.Name)
		}
		return nil
	})
	task.Done(err)
	return err
}

// hash hashes what is in place of the content of an entry. read is told of its progress.
func (b *builder) hash(ctx context.Context, e ocitar.Entry, read func(n int64)) (digest.Digest, error) {
	d, err := pieces.Hash(ctx, b.file, e.Offset, e.Size, read)
	if err != nil {
		return "", fmt.Errorf("read %s at offset %d: %w", e.Name, e.Offset, err)
	}
	return d, nil
}

// clearPadding writes the zeros behind the contents, which no digest proves, anew.
func (b *builder) clearPadding() error {
	zeros := make([]byte, ocitar.TrailerSize)
	for _, e := range b.layout.Entries {
		end := e.Offset + e.Size
		if _, err := b.file.WriteAt(zeros[:e.End()-end], end); err != nil {
			return b.writeError(err)
		}
	}
	if _, err := b.file.WriteAt(zeros, b.layout.Size-ocitar.TrailerSize); err != nil {
		return b.writeError(err)
	}
	return nil
}

// complete writes the header of a member whose content is in place.
func (b *builder) complete(e ocitar.Entry) error {
	header, err := ocitar.Header(e.Member)
	if err != nil {
		return err
	}
	if _, err := b.file.WriteAt(header, e.HeaderOffset()); err != nil {
		return b.writeError(err)
	}
	b.markDone(e.Name)
	return nil
}

func (b *builder) markDone(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done[name] = true
}

func (b *builder) isDone(d digest.Digest) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done[ocitar.BlobName(d)]
}

// diskError is an error of the local disk.
type diskError struct {
	name string
	err  error
}

func (e *diskError) Error() string { return fmt.Sprintf("write %s: %v", e.name, e.err) }
func (e *diskError) Unwrap() error { return e.err }

// Is says that nothing else can succeed after it either.
func (e *diskError) Is(target error) bool { return target == parallel.ErrStop }

func (b *builder) writeError(err error) error { return &diskError{b.file.Name(), err} }

// fetchAll runs all downloads that are still needed, archives first, since each of them
// is one long stream.
func (b *builder) fetchAll(ctx context.Context) error {
	if b.isCopy {
		return nil
	}
	var archives, blobs []*fetch
	var total, there int64
	for _, f := range b.fetches {
		total += f.size
		switch {
		case !b.needs(f):
			there += f.size
		case f.archive != nil:
			archives = append(archives, f)
		default:
			blobs = append(blobs, f)
		}
	}
	b.tellOfManifests(archives)
	// The largest first, so that none of them is left for one connection in the end.
	slices.SortStableFunc(blobs, func(x, y *fetch) int { return cmp.Compare(y.size, x.size) })
	// A zstd window may take tens of megabytes, so archives are read one after another.
	lanes := make([][]*fetch, 0, 1+len(blobs))
	if len(archives) > 0 {
		lanes = append(lanes, archives)
	}
	for _, f := range blobs {
		lanes = append(lanes, []*fetch{f})
	}
	all := b.reporter.Task("fetch", total)
	all.Skip(there)
	entries := newEntryTasks(b.reporter, append(archives, blobs...))
	err := parallel.ForEach(ctx, b.parallel, len(lanes), func(ctx context.Context, i int) error {
		var errs []error
		for _, f := range lanes[i] {
			meter := entries.start(f, all)
			err := b.fetch(ctx, f, meter)
			entries.end(f, err)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", f.label, err))
			}
			if ctx.Err() != nil || errors.As(err, new(*diskError)) {
				break
			}
		}
		return errors.Join(errs...)
	})
	all.Done(err)
	return err
}

// needs reports whether a download supplies anything that is not in place.
func (b *builder) needs(f *fetch) bool {
	if f.archive == nil {
		return !b.isDone(f.blob.Digest)
	}
	for _, d := range f.archive.blobs {
		if !b.isDone(d.Digest) {
			return true
		}
	}
	return false
}

// fetch does one download. What was put together from the answers of several runs, servers
// or moments and is not what was locked in the end is fetched once more in one piece: the
// fault may be in one of the pieces.
func (b *builder) fetch(ctx context.Context, f *fetch, meter *meter) error {
	beginning, h, err := b.beginning(ctx, f)
	if err != nil {
		return err
	}
	if beginning == f.size && f.archive == nil {
		if digest.NewDigest(digest.SHA256, h) == f.blob.Digest {
			meter.skip(f.size)
			return b.complete(b.places[ocitar.BlobName(f.blob.Digest)])
		}
		if err := b.erase(b.places[ocitar.BlobName(f.blob.Digest)]); err != nil {
			return err
		}
		beginning, h = 0, sha256.New()
	}
	meter.skip(beginning)
	inPieces, err := b.fetchFrom(ctx, f, meter, beginning, h)
	if !inPieces || ctx.Err() != nil || !errors.As(err, new(*differsError)) && !errors.Is(err, source.ErrAnew) {
		return err
	}
	b.reporter.Message(fmt.Sprintf("%s: it came in pieces that do not fit together: %v; fetching it once more", f.label, err))
	meter.restart()
	_, err = b.fetchFrom(ctx, f, meter, 0, sha256.New())
	return err
}

// beginning returns how much of a blob an earlier build has left at its place, and the
// state of its hash.
func (b *builder) beginning(ctx context.Context, f *fetch) (int64, hash.Hash, error) {
	h := sha256.New()
	if !b.continued || f.archive != nil {
		return 0, h, nil
	}
	e := b.places[ocitar.BlobName(f.blob.Digest)]
	n, err := b.writtenLength(e.Offset, e.Size)
	if err != nil {
		return 0, h, fmt.Errorf("read the unfinished bundle: %w", err)
	}
	buffer := pieces.Take()
	defer pieces.Give(buffer)
	if _, err := io.CopyBuffer(h, pieces.Until(ctx, io.NewSectionReader(b.file, e.Offset, n)), *buffer); err != nil {
		return 0, h, fmt.Errorf("read the unfinished bundle: %w", err)
	}
	return n, h, nil
}

// writtenLength returns how many bytes of a part of the file there are up to the last one that
// is not zero: a blob is written from its beginning on, and where nothing was written yet are zeros.
func (b *builder) writtenLength(offset, size int64) (int64, error) {
	buffer := pieces.Take()
	defer pieces.Give(buffer)
	for end := b.file.DataEnd(offset, size) - offset; end > 0; {
		start := max(0, end-int64(len(*buffer)))
		piece := (*buffer)[:end-start]
		if _, err := b.file.ReadAt(piece, offset+start); err != nil {
			return 0, err
		}
		if last := bytes.TrimRight(piece, "\x00"); len(last) > 0 {
			return start + int64(len(last)), nil
		}
		end = start
	}
	return 0, nil
}

// again does something until it succeeds, fails for another reason than a download that
// may be begun anew, or has been tried often enough.
func again(ctx context.Context, reporter progress.Reporter, label string, once func() error) error {
	for try := 1; ; try++ {
		err := once()
		if err == nil || ctx.Err() != nil || try == streamTries || !errors.Is(err, source.ErrAnew) {
			return err
		}
		reporter.Message(fmt.Sprintf("%s: %v; trying again", label, err))
	}
}

// streamError is an error of the line, not of what came over it.
type streamError struct{ err error }

func (e *streamError) Error() string { return e.err.Error() }
func (e *streamError) Unwrap() error { return e.err }

// fetchFrom fetches what comes after the beginning, of which h is the hash. It reports
// whether the whole is made of more than one piece.
func (b *builder) fetchFrom(ctx context.Context, f *fetch, meter *meter, beginning int64, h hash.Hash) (inPieces bool, err error) {
	body, err := f.open(ctx, beginning)
	if err != nil {
		return beginning > 0, err
	}
	defer body.Close() //nolint:errcheck // what it carried is verified
	if body.Size >= 0 && body.Size != f.size {
		return false, &differsError{want: ocispec.Descriptor{Size: f.size}, size: body.Size}
	}
	stream := metered(body, meter)
	if f.archive != nil {
		// Whatever is longer than what was locked is another archive.
		err = b.storeArchive(ctx, f, io.LimitReader(stream, f.size+1))
	} else {
		err = b.storeRest(ctx, f.blob, stream, beginning, h)
	}
	return beginning > 0 || body.Spliced(), err
}

// storeBlob writes what a stream carries to the place of a blob, hashing it on the way.
func (b *builder) storeBlob(ctx context.Context, d ocispec.Descriptor, stream io.Reader) error {
	return b.storeRest(ctx, d, stream, 0, sha256.New())
}

// storeRest does so for a blob of which done bytes are in place, with the hash h.
func (b *builder) storeRest(ctx context.Context, d ocispec.Descriptor, stream io.Reader, done int64, h hash.Hash) error {
	e := b.places[ocitar.BlobName(d.Digest)]
	buffer := pieces.Take()
	defer pieces.Give(buffer)
	stream = pieces.Until(ctx, stream)
	flushed := done
	for done < d.Size {
		piece := pieces.Next((*buffer)[:pieces.WriteSize], e.Offset+done, d.Size-done)
		n, err := pieces.Fill(stream, piece)
		// What came before the line broke is worth keeping.
		if n > 0 {
			_, _ = h.Write(piece[:n]) // never fails
			if _, err := b.file.WriteAt(piece[:n], e.Offset+done); err != nil {
				return b.writeError(err)
			}
		}
		done += int64(n)
		if err != nil {
			return err
		}
		if n < len(piece) {
			return &differsError{want: d, size: done}
		}
		if done-flushed >= flushStep {
			b.file.StartWriting(e.Offset+flushed, done-flushed)
			flushed = done
		}
	}
	// One byte more than expected is enough to know that it is too long.
	more, err := pieces.Fill(stream, (*buffer)[:1])
	if err != nil {
		return err
	}
	got := digest.NewDigest(digest.SHA256, h)
	if more > 0 || got != d.Digest {
		return errors.Join(&differsError{want: d, got: got, size: d.Size + int64(more)}, b.erase(e))
	}
	if err := b.complete(e); err != nil {
		return err
	}
	// Otherwise the build would wait in the end for what is left of all blobs together.
	b.file.StartWriting(e.Offset+flushed, done-flushed)
	return nil
}

// erase makes zeros of what is at the place of a blob, so that no later build takes it for
// the blob's beginning.
func (b *builder) erase(e ocitar.Entry) error {
	if b.file.Zero(e.Offset, e.Size) == nil {
		return nil
	}
	zeros := make([]byte, min(pieces.Size, e.Size))
	for done := int64(0); done < e.Size; done += int64(len(zeros)) {
		if _, err := b.file.WriteAt(zeros[:min(int64(len(zeros)), e.Size-done)], e.Offset+done); err != nil {
			return b.writeError(err)
		}
	}
	return nil
}

// storeArchive takes from an archive those blobs that are not in place yet, and proves
// the whole archive in the end.
func (b *builder) storeArchive(ctx context.Context, f *fetch, stream io.Reader) error {
	whole := sha256.New()
	tee := io.TeeReader(stream, whole)
	left := make(map[string]ocispec.Descriptor, len(f.archive.blobs))
	for path, d := range f.archive.blobs {
		if !b.isDone(d.Digest) {
			left[path] = d
		}
	}
	var index []byte // of docker's form
	links := make(archiveLinks)
	var compressor layerCompressor
	err := readArchive(tee, func(path string, size int64, content io.Reader) error {
		if path == dockerIndex {
			var err error
			if index, err = readBounded(content, size, maxConfigSize); err != nil {
				return err
			}
			content = bytes.NewReader(index)
		}
		d, ok := left[path]
		if !ok {
			return nil
		}
		if err := b.storeMember(ctx, path, d, size, content, &compressor); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		delete(left, path)
		return nil
	}, func(name, target string) error {
		links.add(name, target)
		return nil
	})
	if err == nil {
		err = b.storeManifests(f.archive, index, links, left)
	}
	var broken *streamError
	if err != nil && (ctx.Err() != nil || errors.As(err, new(*diskError)) || errors.As(err, &broken)) {
		return err
	}
	if err != nil {
		// An archive that cannot be read is most often not the archive that was locked:
		// its sha256 tells, which needs the rest of it.
		if _, restErr := io.Copy(io.Discard, pieces.Until(ctx, tee)); restErr != nil {
			return err
		}
	}
	if got := hex(whole); got != f.archive.sha256 {
		return &differsError{
			want: ocispec.Descriptor{Digest: digest.NewDigestFromEncoded(digest.SHA256, f.archive.sha256), Size: f.size},
			got:  digest.NewDigestFromEncoded(digest.SHA256, got), size: f.size,
		}
	}
	if err != nil {
		return err
	}
	for path := range left {
		return fmt.Errorf("the archive does not hold %s, which the lock lists: run `boxlift bundle lock` again", path)
	}
	return nil
}

// storeMember stores a member of an archive as the blob that it is, or becomes.
func (b *builder) storeMember(
	ctx context.Context, name string, d ocispec.Descriptor, size int64, content io.Reader, compressor *layerCompressor,
) error {
	buffered := bufio.NewReaderSize(content, pieces.WriteSize)
	made, err := isMade(name, d, buffered)
	if err != nil {
		return err
	}
	if !made {
		if size != d.Size {
			return &differsError{want: d, size: size}
		}
		return b.storeBlob(ctx, d, buffered)
	}
	layer := compressing(compressor, buffered)
	err = b.storeBlob(ctx, d, layer)
	if closeErr := layer.Close(); err == nil {
		err = closeErr
	}
	var differs *differsError
	if errors.As(err, &differs) {
		return &lockedByAnotherError{what: name, got: differs.got, want: d.Digest}
	}
	return err
}

func hex(h hash.Hash) string { return digest.NewDigest(digest.SHA256, h).Encoded() }

// differsError says that what came is not what the lock pins.
type differsError struct {
	want ocispec.Descriptor
	got  digest.Digest
	size int64
}

func (e *differsError) Error() string {
	if e.got == "" || e.size != e.want.Size {
		return fmt.Sprintf("what upstream has now is not what was locked: %d bytes came, the lock says %d", e.size, e.want.Size)
	}
	return fmt.Sprintf("what upstream has now is not what was locked: the bytes that came have %s, the lock says %s", e.got, e.want.Digest)
}

func (e *differsError) Is(target error) bool { return target == ErrUpstream }

func (e *differsError) Hint() string {
	return "run the command again in case it was a fault on the way; if it persists, find out why upstream changed before you lock it anew"
}

// metered meters a download and marks its errors as those of the line.
func metered(r io.Reader, m *meter) io.Reader { return &streamReader{reader: r, meter: m} }

type streamReader struct {
	reader io.Reader
	meter  *meter
}

func (r *streamReader) Read(p []byte) (int, error) {
	n, err := r.reader.Read(p)
	r.meter.add(int64(n))
	if err != nil && err != io.EOF {
		err = &streamError{err}
	}
	return n, err
}

// flushStep is how much of a blob is written between two requests to the kernel to start
// writing it to the disk. Without these, it may leave everything to the last moment.
const flushStep = 8 << 20

// meter counts the bytes of one download towards its entry and the whole.
type meter struct {
	tasks []progress.Task
	count int64
}

func newMeter(tasks ...progress.Task) *meter { return &meter{tasks: tasks} }

func (m *meter) add(n int64) {
	m.count += n
	for _, t := range m.tasks {
		t.Add(n)
	}
}

// skip counts bytes that need no download.
func (m *meter) skip(n int64) {
	m.count += n
	for _, t := range m.tasks {
		t.Skip(n)
	}
}

func (m *meter) restart() { m.add(-m.count) }

// entryTasks shows one task for each entry of the lock, however many blobs it has.
type entryTasks struct {
	reporter progress.Reporter
	mu       sync.Mutex
	entries  map[string]*entryTask
}

type entryTask struct {
	task   progress.Task
	size   int64
	left   int
	failed []error
}

func newEntryTasks(reporter progress.Reporter, fetches []*fetch) *entryTasks {
	t := &entryTasks{reporter: reporter, entries: make(map[string]*entryTask)}
	for _, f := range fetches {
		e, ok := t.entries[f.label]
		if !ok {
			e = &entryTask{}
			t.entries[f.label] = e
		}
		e.left++
		e.size += f.size
	}
	return t
}

func (t *entryTasks) start(f *fetch, all progress.Task) *meter {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[f.label]
	if e.task == nil {
		e.task = t.reporter.Task(f.label, e.size)
	}
	return newMeter(all, e.task)
}

func (t *entryTasks) end(f *fetch, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[f.label]
	if err != nil {
		e.failed = append(e.failed, err)
	}
	if e.left--; e.left == 0 {
		e.task.Done(errors.Join(e.failed...))
	}
}

// Partials returns the names of unfinished bundles that lie beside path, and in the folder
// workDir, if there is one, of those that were to be encrypted.
func Partials(path, workDir string) ([]string, error) {
	dirs := []string{filepath.Dir(path)}
	if workDir != "" && !sameFolder(workDir, dirs[0]) {
		dirs = append(dirs, workDir)
	}
	var names []string
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), filepath.Base(path)+".") && strings.HasSuffix(e.Name(), ".partial") {
				names = append(names, filepath.Join(dir, e.Name()))
			}
		}
	}
	return names, nil
}

// sameFolder reports whether two names are there and stand for one folder.
func sameFolder(a, b string) bool {
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}
