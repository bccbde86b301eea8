package build

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/download"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pieces"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/internal/parallel"
	"github.com/liteboxd/boxlift/internal/progress"
)

// fetchAll runs all downloads that are still needed, archives first, since each of them
// is one long stream.
func (b *builder) fetchAll(ctx context.Context) error {
	if b.isCopy {
		return nil
	}
	var archives, blobs []*plan.Fetch
	var total, there int64
	for _, f := range b.plan.Fetches {
		total += f.Size
		switch {
		case !b.needs(f):
			there += f.Size
		case f.Archive != nil:
			archives = append(archives, f)
		default:
			blobs = append(blobs, f)
		}
	}
	b.tellOfManifests(archives)
	// The largest first, so that none of them is left for one connection in the end.
	slices.SortStableFunc(blobs, func(x, y *plan.Fetch) int { return cmp.Compare(y.Size, x.Size) })
	// A zstd window may take tens of megabytes, so archives are read one after another.
	lanes := make([][]*plan.Fetch, 0, 1+len(blobs))
	if len(archives) > 0 {
		lanes = append(lanes, archives)
	}
	for _, f := range blobs {
		lanes = append(lanes, []*plan.Fetch{f})
	}
	all := b.plan.Reporter.Task("fetch", total)
	all.Skip(there)
	entries := newEntryTasks(b.plan.Reporter, append(archives, blobs...))
	err := parallel.ForEach(ctx, b.plan.Parallel, len(lanes), func(ctx context.Context, i int) error {
		var errs []error
		for _, f := range lanes[i] {
			meter := entries.start(f, all)
			err := b.fetch(ctx, f, meter)
			entries.end(f, err)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", f.Label, err))
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
func (b *builder) needs(f *plan.Fetch) bool {
	if f.Archive == nil {
		return !b.isDone(f.Blob.Digest)
	}
	for _, d := range f.Archive.Blobs {
		if !b.isDone(d.Digest) {
			return true
		}
	}
	return false
}

// fetch does one download. What was put together from the answers of several runs, servers
// or moments and is not what was locked in the end is fetched once more in one piece: the
// fault may be in one of the pieces.
func (b *builder) fetch(ctx context.Context, f *plan.Fetch, meter *download.Meter) error {
	beginning, h, err := b.beginning(ctx, f)
	if err != nil {
		return err
	}
	if beginning == f.Size && f.Archive == nil {
		if digest.NewDigest(digest.SHA256, h) == f.Blob.Digest {
			meter.Skip(f.Size)
			return b.complete(b.places[ocitar.BlobName(f.Blob.Digest)])
		}
		if err := b.erase(b.places[ocitar.BlobName(f.Blob.Digest)]); err != nil {
			return err
		}
		beginning, h = 0, sha256.New()
	}
	meter.Skip(beginning)
	inPieces, err := b.fetchFrom(ctx, f, meter, beginning, h)
	if !inPieces || ctx.Err() != nil || !errors.As(err, new(*download.DiffersError)) &&
		!errors.Is(err, source.ErrAnew) {
		return err
	}
	b.plan.Reporter.Message(fmt.Sprintf("%s: it came in pieces that do not fit together: %v; fetching it once more",
		f.Label, err))
	meter.Restart()
	_, err = b.fetchFrom(ctx, f, meter, 0, sha256.New())
	return err
}

// beginning returns how much of a blob an earlier build has left at its place, and the
// state of its hash.
func (b *builder) beginning(ctx context.Context, f *plan.Fetch) (int64, hash.Hash, error) {
	h := sha256.New()
	if !b.continued || f.Archive != nil {
		return 0, h, nil
	}
	e := b.places[ocitar.BlobName(f.Blob.Digest)]
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

// fetchFrom fetches what comes after the beginning, of which h is the hash. It reports
// whether the whole is made of more than one piece.
func (b *builder) fetchFrom(
	ctx context.Context, f *plan.Fetch, meter *download.Meter, beginning int64, h hash.Hash,
) (inPieces bool, err error) {
	body, err := f.Open(ctx, beginning)
	if err != nil {
		return beginning > 0, err
	}
	defer body.Close() //nolint:errcheck // what it carried is verified
	if body.Size >= 0 && body.Size != f.Size {
		return false, &download.DiffersError{Want: ocispec.Descriptor{Size: f.Size}, Size: body.Size}
	}
	stream := download.Metered(body, meter)
	if f.Archive != nil {
		// Whatever is longer than what was locked is another archive.
		err = b.storeArchive(ctx, f, io.LimitReader(stream, f.Size+1))
	} else {
		err = b.storeRest(ctx, f.Blob, stream, beginning, h)
	}
	return beginning > 0 || body.Spliced(), err
}

// storeBlob writes what a stream carries to the place of a blob, hashing it on the way.
func (b *builder) storeBlob(ctx context.Context, d ocispec.Descriptor, stream io.Reader) error {
	return b.storeRest(ctx, d, stream, 0, sha256.New())
}

// storeRest does so for a blob of which done bytes are in place, with the hash h.
func (b *builder) storeRest(
	ctx context.Context, d ocispec.Descriptor, stream io.Reader, done int64, h hash.Hash,
) error {
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
			return &download.DiffersError{Want: d, Size: done}
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
		return errors.Join(&download.DiffersError{Want: d, Got: got, Size: d.Size + int64(more)}, b.erase(e))
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

func hex(h hash.Hash) string { return digest.NewDigest(digest.SHA256, h).Encoded() }

// flushStep is how much of a blob is written between two requests to the kernel to start
// writing it to the disk. Without these, it may leave everything to the last moment.
const flushStep = 8 << 20

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

func newEntryTasks(reporter progress.Reporter, fetches []*plan.Fetch) *entryTasks {
	t := &entryTasks{reporter: reporter, entries: make(map[string]*entryTask)}
	for _, f := range fetches {
		e, ok := t.entries[f.Label]
		if !ok {
			e = &entryTask{}
			t.entries[f.Label] = e
		}
		e.left++
		e.size += f.Size
	}
	return t
}

func (t *entryTasks) start(f *plan.Fetch, all progress.Task) *download.Meter {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[f.Label]
	if e.task == nil {
		e.task = t.reporter.Task(f.Label, e.size)
	}
	return download.NewMeter(all, e.task)
}

func (t *entryTasks) end(f *plan.Fetch, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[f.Label]
	if err != nil {
		e.failed = append(e.failed, err)
	}
	if e.left--; e.left == 0 {
		e.task.Done(errors.Join(e.failed...))
	}
}

// tellOfManifests says, before it happens, that a delta reads whole archives for their
// manifests alone.
func (b *builder) tellOfManifests(archives []*plan.Fetch) {
	if !b.plan.IsDelta {
		return
	}
	for _, f := range archives {
		var size int64
		onlyManifests := true
		for _, d := range f.Archive.Blobs {
			if !b.isDone(d.Digest) {
				size += d.Size
				onlyManifests = onlyManifests && plan.IsJSON(d.MediaType)
			}
		}
		if onlyManifests {
			b.plan.Reporter.Message(
				fmt.Sprintf("%s: all of it, %s, is fetched for the %s of its manifests, which every delta carries; "+
					"--reuse with a bundle that has them saves that", f.Label, progress.Bytes(f.Size),
					progress.Bytes(size)))
		}
	}
}
