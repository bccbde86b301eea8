package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
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
	unlock, err := b.open(o.Path)
	if err != nil {
		return nil, err
	}
	defer unlock()
	defer b.file.Close() //nolint:errcheck // finish closes it where it matters
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

// open opens or begins the partial file and keeps other builds away from it.
func (b *builder) open(path string) (unlock func(), err error) {
	name := b.partialPath(path)
	lock := flock.New(name)
	locked, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	if !locked {
		return nil, fmt.Errorf("%s is locked: another build is writing it", name)
	}
	unlock = func() { _ = lock.Close() }
	b.file, err = os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		unlock()
		return nil, fmt.Errorf("open the unfinished bundle: %w", err)
	}
	return unlock, nil
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
		for name := range b.done {
			reused += b.places[name].Size
		}
	} else if err := allocate(b.file, b.layout.Size); err != nil {
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
		if _, err := b.file.WriteAt(content, e.Offset); err != nil {
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

// writeError marks errors of the local disk, after which nothing else can succeed.
func (b *builder) writeError(err error) error {
	return fmt.Errorf("write %s: %w%w", b.file.Name(), err, silentStop{})
}

// silentStop is errStop without words of its own.
type silentStop struct{}

func (silentStop) Error() string        { return "" }
func (silentStop) Is(target error) bool { return target == errStop }

// finish gives the file its final name once it is on the disk.
func (b *builder) finish(path string) error {
	for _, e := range b.layout.Entries {
		if !b.done[e.Name] {
			return fmt.Errorf("%s was planned but nothing supplied it", e.Name)
		}
	}
	if err := b.file.Sync(); err != nil {
		return fmt.Errorf("write %s to the disk: %w", b.file.Name(), err)
	}
	if err := b.file.Chmod(0o644); err != nil {
		return err
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
			if ctx.Err() != nil || errors.Is(err, errStop) {
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
	for try := 1; ; try++ {
		err := b.fetchOnce(ctx, f, meter)
		var broken *streamError
		if err == nil || ctx.Err() != nil || try == streamTries || !errors.As(err, &broken) {
			return err
		}
		meter.restart()
		b.reporter.Message(fmt.Sprintf("%s: %v; trying again", f.label, err))
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
		return b.storeArchive(ctx, f, stream)
	}
	return b.storeBlob(ctx, f.blob, stream)
}

// storeBlob writes what a stream carries to the place of a blob, hashing it on the way.
func (b *builder) storeBlob(ctx context.Context, d ocispec.Descriptor, stream io.Reader) error {
	e := b.places[ocitar.BlobName(d.Digest)]
	w := &blobWriter{builder: b, entry: e, hash: sha256.New()}
	buffer := takeBuffer()
	defer giveBuffer(buffer)
	// One byte more than expected is enough to know that it is too long.
	n, err := io.CopyBuffer(w, contextReader{ctx, io.LimitReader(stream, d.Size+1)}, *buffer)
	if err != nil {
		return err
	}
	if n < d.Size {
		return &streamError{fmt.Errorf("the download ended after %d of %d bytes", n, d.Size)}
	}
	got := digest.NewDigest(digest.SHA256, w.hash)
	if n != d.Size || got != d.Digest {
		return &differsError{want: d, got: got, size: n}
	}
	return b.complete(e)
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
	err := readArchive(tee, func(path string, _ int64, content io.Reader) error {
		d, ok := left[path]
		if !ok {
			return nil
		}
		if err := b.storeBlob(ctx, d, content); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		delete(left, path)
		return nil
	})
	var broken *streamError
	if err != nil && (ctx.Err() != nil || errors.Is(err, errStop) || errors.As(err, &broken)) {
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

// blobWriter writes to a member's place and hashes what passes.
type blobWriter struct {
	builder *builder
	entry   ocitar.Entry
	hash    hash.Hash
	written int64
}

func (w *blobWriter) Write(p []byte) (int, error) {
	if w.written+int64(len(p)) > w.entry.Size {
		// The byte too many is counted and hashed, never written.
		p = p[:w.entry.Size-w.written]
		if _, err := w.writeAt(p); err != nil {
			return 0, err
		}
		return len(p) + 1, nil
	}
	return w.writeAt(p)
}

func (w *blobWriter) writeAt(p []byte) (int, error) {
	w.hash.Write(p)
	n, err := w.builder.file.WriteAt(p, w.entry.Offset+w.written)
	w.written += int64(n)
	if err != nil {
		return n, w.builder.writeError(err)
	}
	return n, nil
}

// streamReader meters a download and marks its errors as those of the line.
type streamReader struct {
	reader io.Reader
	meter  *meter
}

func (r *streamReader) Read(p []byte) (int, error) {
	n, err := r.reader.Read(p)
	r.meter.add(int64(n))
	if err != nil && err != io.EOF { //nolint:errorlint // readers return io.EOF itself
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

// bufferSize is large enough that system calls cost little, and small enough to stay in
// a core's cache between reading, hashing and writing.
const bufferSize = 128 << 10

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
