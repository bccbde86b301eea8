package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/gofrs/flock"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/progress"
)

// streamTries bounds how often a download that breaks in its middle is begun again.
const streamTries = 5

// BuildOptions say where a bundle goes.
type BuildOptions struct {
	// Path is the bundle's final name. The file gets it only when every blob has been
	// verified at its place; a file of that name is replaced then.
	Path string
	// Signer signs index.json; nil leaves the bundle unsigned.
	Signer *signature.Signer
}

// BuildResult says what a build did. Sizes are in bytes.
type BuildResult struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
	Blobs  int           `json:"blobs"`
	// Reused is the part of Size that an interrupted build had left.
	Reused int64 `json:"reused"`
	// Unchanged says that the bundle was there already, complete.
	Unchanged bool `json:"unchanged"`
}

// Build fetches what the plan lacks and writes the bundle. While it works, the file is
// called <name>.<digest>.partial and holds each finished blob at its final place, header
// included; the header is written last, so that a build that was ended at any moment
// can tell what it has. Building the same plan again goes on from there.
func (p *Plan) Build(ctx context.Context, o BuildOptions) (*BuildResult, error) {
	b := &builder{Plan: p}
	if err := b.sign(o.Signer); err != nil {
		return nil, err
	}
	result := &BuildResult{Digest: p.Digest(), Size: b.layout.Size, Blobs: len(b.layout.Entries) - len(b.fixed)}
	if b.isAt(ctx, o.Path) {
		result.Unchanged = true
		return result, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	unlock, err := b.open(o.Path)
	if err != nil {
		return nil, err
	}
	defer unlock()
	defer b.file.Close() //nolint:errcheck // finish has made sure that all is on the disk
	if result.Reused, err = b.prepare(ctx); err != nil {
		return nil, err
	}
	if err := b.fetchAll(ctx); err != nil {
		return nil, err
	}
	return result, b.finish(o.Path)
}

// builder fills one file.
type builder struct {
	*Plan
	layout *ocitar.Layout
	places map[string]ocitar.Entry // by member name
	fixed  map[string][]byte       // members that are not blobs
	file   *os.File

	mu   sync.Mutex
	done map[string]bool // members that are verified and in place
}

// sign adds the signature to the members and lays them out.
func (b *builder) sign(signer *signature.Signer) error {
	b.fixed = map[string][]byte{ocitar.LayoutFile: []byte(ocitar.LayoutContent), ocitar.IndexFile: b.index}
	members := b.members
	if signer != nil {
		s, err := signer.Sign(b.index)
		if err != nil {
			return fmt.Errorf("sign index.json: %w", err)
		}
		b.fixed[ocitar.SigstoreBundleFile] = s.Bundle
		b.fixed[ocitar.SignatureFile] = s.Base64
		members = append(append([]ocitar.Member{}, members[:2]...),
			ocitar.Member{Name: ocitar.SigstoreBundleFile, Size: int64(len(s.Bundle))},
			ocitar.Member{Name: ocitar.SignatureFile, Size: int64(len(s.Base64))})
		members = append(members, b.members[2:]...)
	}
	layout, err := ocitar.NewLayout(members)
	if err != nil {
		return err
	}
	b.layout = layout
	b.places = make(map[string]ocitar.Entry, len(layout.Entries))
	for _, e := range layout.Entries {
		b.places[e.Name] = e
	}
	b.done = make(map[string]bool)
	return nil
}

// isAt reports whether the finished bundle lies at path already, with this signature.
func (b *builder) isAt(ctx context.Context, path string) bool {
	r, err := Open(path)
	if err != nil {
		return false
	}
	defer r.Close() //nolint:errcheck // it was only read
	if r.tar.Layout().Size != b.layout.Size {
		return false
	}
	for name, content := range b.fixed {
		if got, err := r.tar.ReadAll(name, maxIndexSize); err != nil || !bytes.Equal(got, content) {
			return false
		}
	}
	return r.Verify(ctx, b.reporter) == nil
}

// partialPath is called after what is to be built, so that the leavings of another
// lock are never mixed in.
func (b *builder) partialPath(path string) string {
	kind := ""
	if b.fixed[ocitar.SignatureFile] != nil {
		kind = "-signed"
	}
	return path + "." + b.Digest().Encoded()[:12] + kind + ".partial"
}

// CheckOutput refuses a path that no bundle can be written to: its folder is not there, or
// something else than a bundle is at it, which would be lost.
func CheckOutput(path string) error {
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return &outputError{path, fmt.Sprintf("the folder %s is not there", filepath.Dir(path)), "make the folder, or name another output"}
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	other := &outputError{path, "something that is not a bundle is there", "name another output, or move that file away"}
	if !info.Mode().IsRegular() {
		return other
	}
	if info.Size() == 0 {
		return nil // as mktemp makes it
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	want, err := ocitar.Header(ocitar.Member{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))})
	if err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(f, got); err != nil || !bytes.Equal(got, want) {
		return other
	}
	return nil
}

type outputError struct{ path, reason, hint string }

func (e *outputError) Error() string { return fmt.Sprintf("write %s: %s", e.path, e.reason) }
func (e *outputError) Hint() string  { return e.hint }

// open opens or begins the partial file and keeps other builds away from it.
func (b *builder) open(path string) (unlock func(), err error) {
	name := b.partialPath(path)
	if err := CheckOutput(path); err != nil {
		return nil, err
	}
	// NFS locks only what is open for writing.
	lock := flock.New(name, flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o644))
	locked, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	if !locked {
		return nil, fmt.Errorf("%s is locked: another build is writing it", name)
	}
	unlock = func() { _ = lock.Close() }
	if b.file, err = openLocked(lock); err != nil {
		unlock()
		return nil, fmt.Errorf("open the unfinished bundle: %w", err)
	}
	return unlock, nil
}

// openLocked opens the file that lock holds. Another build may have given it its final
// name, and a third have begun anew under the old one, after lock opened the file and
// before it had the lock. What bears the name now is then not ours to write.
func openLocked(lock *flock.Flock) (*os.File, error) {
	f, err := os.OpenFile(lock.Path(), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("another build has just finished %s: run the command again", lock.Path())
	}
	if err != nil {
		return nil, err
	}
	held, err := lock.Stat()
	var opened os.FileInfo
	if err == nil {
		opened, err = f.Stat()
	}
	if err == nil && !os.SameFile(held, opened) {
		err = fmt.Errorf("another build has just finished %s, and one more is writing it: run the command again", lock.Path())
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// prepare brings the file to its final length and writes what is at hand. It returns
// how many bytes of blobs were there already.
func (b *builder) prepare(ctx context.Context) (reused int64, err error) {
	info, err := b.file.Stat()
	if err != nil {
		return 0, fmt.Errorf("look at the unfinished bundle: %w", err)
	}
	if info.Size() == b.layout.Size {
		if err := b.findDone(ctx); err != nil {
			return 0, err
		}
		if err := b.clearPadding(); err != nil {
			return 0, err
		}
		for name := range b.done {
			reused += b.places[name].Size
		}
	} else if err := allocate(b.file, b.layout.Size); err != nil {
		_ = os.Remove(b.file.Name()) // it is empty
		return 0, fmt.Errorf("reserve %s for %s: %w", progress.Bytes(b.layout.Size), b.file.Name(), err)
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
	err := forEach(ctx, runtime.GOMAXPROCS(0), len(b.layout.Entries), func(ctx context.Context, i int) error {
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
		actual, err := hashSection(ctx, b.file, e, task)
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

func (b *builder) writeError(err error) error { return &diskError{b.file.Name(), err} }

// finish gives the file its final name once it is on the disk. All blobs are in place
// and verified by now; the rest of what [Reader.Verify] asks for is looked at here, since
// what a lock says of the inside of an archive may be wrong.
func (b *builder) finish(path string) error {
	r, err := newReader(b.file, b.layout.Size)
	if err == nil {
		err = r.verifyStructure()
	}
	if err != nil {
		return fmt.Errorf("check %s, which is complete: %w", b.file.Name(), err)
	}
	if err := b.file.Sync(); err != nil {
		// Linux drops what it could not write, but reads it from memory for a while: the
		// next build would find it whole, and its own Sync would succeed.
		_ = b.file.Truncate(0)
		return b.writeError(err)
	}
	if err := os.Rename(b.file.Name(), path); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(path))
}

func syncDirectory(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // it was only read
	if err := d.Sync(); err != nil {
		return fmt.Errorf("write the directory %s to the disk: %w", name, err)
	}
	return nil
}

// fetchAll runs all downloads that are still needed, archives first, since each of them
// is one long stream.
func (b *builder) fetchAll(ctx context.Context) error {
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
	err := forEach(ctx, b.parallel, len(lanes), func(ctx context.Context, i int) error {
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

// fetch does one download, again if the line breaks.
func (b *builder) fetch(ctx context.Context, f *fetch, meter *meter) error {
	return again(ctx, b.reporter, f.label, func() error {
		meter.restart()
		return b.fetchOnce(ctx, f, meter)
	})
}

// again does something until it succeeds, fails for another reason than a streamError,
// or has been tried often enough.
func again(ctx context.Context, reporter progress.Reporter, label string, once func() error) error {
	for try := 1; ; try++ {
		err := once()
		var broken *streamError
		if err == nil || ctx.Err() != nil || try == streamTries || !errors.As(err, &broken) {
			return err
		}
		reporter.Message(fmt.Sprintf("%s: %v; trying again", label, err))
	}
}

// streamError is a download that broke; it may succeed if it is begun again.
type streamError struct{ err error }

func (e *streamError) Error() string { return e.err.Error() }
func (e *streamError) Unwrap() error { return e.err }

func (b *builder) fetchOnce(ctx context.Context, f *fetch, meter *meter) error {
	body, size, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // what it carried is verified
	if size >= 0 && size != f.size {
		return &differsError{want: ocispec.Descriptor{Size: f.size}, size: size}
	}
	stream := &streamReader{reader: body, meter: meter}
	if f.archive != nil {
		// Whatever is longer than what was locked is another archive.
		return b.storeArchive(ctx, f, io.LimitReader(stream, f.size+1))
	}
	return b.storeBlob(ctx, f.blob, stream)
}

// storeBlob writes what a stream carries to the place of a blob, hashing it on the way.
func (b *builder) storeBlob(ctx context.Context, d ocispec.Descriptor, stream io.Reader) error {
	e := b.places[ocitar.BlobName(d.Digest)]
	h := sha256.New()
	buffer := takeBuffer()
	defer giveBuffer(buffer)
	stream = contextReader{ctx, stream}
	var done, flushed int64
	for done < d.Size {
		piece := nextPiece((*buffer)[:writeSize], e, done)
		n, err := fill(stream, piece)
		if err != nil {
			return err
		}
		done += int64(n)
		if n < len(piece) {
			return &streamError{fmt.Errorf("the download ended after %d of %d bytes", done, d.Size)}
		}
		_, _ = h.Write(piece) // never fails
		if _, err := b.file.WriteAt(piece, e.Offset+done-int64(n)); err != nil {
			return b.writeError(err)
		}
		if done-flushed >= flushStep {
			startWriting(b.file, e.Offset+flushed, done-flushed)
			flushed = done
		}
	}
	// One byte more than expected is enough to know that it is too long.
	more, err := fill(stream, (*buffer)[:1])
	if err != nil {
		return err
	}
	got := digest.NewDigest(digest.SHA256, h)
	if more > 0 || got != d.Digest {
		return &differsError{want: d, got: got, size: d.Size + int64(more)}
	}
	return b.complete(e)
}

// nextPiece cuts from a buffer the piece in which the content of an entry is read or
// written next, when done bytes of it are. Pieces end at multiples of the buffer's
// length in the file: the kernel then keeps the file in memory in units of many pages,
// which makes writing it, and reading it later, cheaper.
func nextPiece(buffer []byte, e ocitar.Entry, done int64) []byte {
	whole := int64(len(buffer))
	return buffer[:min(whole-(e.Offset+done)%whole, e.Size-done)]
}

// fill reads until p is full or the stream ends, which is not an error.
func fill(stream io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var more int
		more, err = stream.Read(p[n:])
		n += more
	}
	if err == io.EOF {
		err = nil
	}
	return n, err
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
	err := readArchive(tee, func(path string, size int64, content io.Reader) error {
		d, ok := left[path]
		if !ok {
			return nil
		}
		if size != d.Size {
			return fmt.Errorf("%s: %w", path, &differsError{want: d, size: size})
		}
		if err := b.storeBlob(ctx, d, content); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		delete(left, path)
		return nil
	})
	var broken *streamError
	if err != nil && (ctx.Err() != nil || errors.As(err, new(*diskError)) || errors.As(err, &broken)) {
		return err
	}
	if err != nil {
		// An archive that cannot be read is most often not the archive that was locked:
		// its sha256 tells, which needs the rest of it.
		if _, restErr := io.Copy(io.Discard, contextReader{ctx, tee}); restErr != nil {
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

// streamReader meters a download and marks its errors as those of the line.
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

// contextReader ends a copy when its context does.
type contextReader struct {
	ctx    context.Context
	reader io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.reader.Read(p)
}

// The lengths of the pieces in which blobs are read from the disk and written to it. A
// core's cache holds them between reading, hashing and writing; and for longer pieces
// than these the kernel has to look for long runs of free memory.
const (
	bufferSize = 256 << 10
	writeSize  = 64 << 10
)

// flushStep is how much of a blob is written between two requests to the kernel to start
// writing it to the disk. Without these, it may leave everything to the last moment.
const flushStep = 8 << 20

var buffers = sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}

func takeBuffer() *[]byte  { return buffers.Get().(*[]byte) }
func giveBuffer(b *[]byte) { buffers.Put(b) }

// meter counts the bytes of one download towards its entry and the whole.
type meter struct {
	tasks []progress.Task
	count int64
}

func (m *meter) add(n int64) {
	m.count += n
	for _, t := range m.tasks {
		t.Add(n)
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
	return &meter{tasks: []progress.Task{all, e.task}}
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

// Partials returns the names of unfinished bundles that lie beside path.
func Partials(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+".") && strings.HasSuffix(e.Name(), ".partial") {
			names = append(names, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	return names, nil
}
