package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/download"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/parallel"
)

// copyAll takes everything that is not in place yet and that an older bundle holds from
// there. It returns how many bytes that were. What turns out to be damaged is left to be
// fetched.
func (b *builder) copyAll(ctx context.Context) (int64, error) {
	var found []ocitar.Entry
	var total int64
	for _, e := range b.layout.Entries {
		if e.Digest() != "" && !b.isDone(e.Digest()) && len(b.oldSections(e)) > 0 {
			found = append(found, e)
			total += e.Size
		}
	}
	if len(found) == 0 {
		return 0, nil
	}
	// The largest first, so that none of them is left for one core in the end.
	slices.SortStableFunc(found, func(x, y ocitar.Entry) int { return cmp.Compare(y.Size, x.Size) })
	title := "copy what older bundles hold"
	if b.isCopy {
		title = "copy"
	}
	task := b.plan.Reporter.Task(title, total)
	var copied atomic.Int64
	// One more than there are cores, as one now and then waits for the disk.
	err := parallel.ForEach(ctx, runtime.GOMAXPROCS(0)+1, len(found), func(ctx context.Context, i int) error {
		e := found[i]
		for _, section := range b.oldSections(e) {
			meter := download.NewMeter(task)
			err := b.copyOld(ctx, e, section, meter)
			if err == nil {
				copied.Add(e.Size)
				return nil
			}
			if ctx.Err() != nil || errors.As(err, new(*diskError)) {
				return err
			}
			if b.isCopy {
				return fmt.Errorf("%w: %s cannot be copied: %w", bundle.ErrInvalid, e.Name, err)
			}
			meter.Restart()
			b.plan.Reporter.Message(
				fmt.Sprintf("an older bundle cannot supply %s, which is fetched instead: %v", e.Name, err))
		}
		return nil
	})
	task.Done(err)
	return copied.Load(), err
}

// oldSections returns where older bundles hold a blob. What is copied from there is proven at its new place.
func (b *builder) oldSections(e ocitar.Entry) []*io.SectionReader {
	var sections []*io.SectionReader
	for _, r := range b.plan.Reuse {
		if section, err := r.Unproven(e.Member); err == nil {
			sections = append(sections, section)
		}
	}
	return sections
}

// copyOld copies a blob to its place and proves what is there then. Where the filesystem
// can share blocks between files, nothing is copied but the ends that fill no whole block.
// Elsewhere its bytes have to be read for their hash in any case, so that having the
// kernel copy them as well (copy_file_range) would only read them twice.
func (b *builder) copyOld(ctx context.Context, e ocitar.Entry, section *io.SectionReader, meter *download.Meter) error {
	d := ocispec.Descriptor{Digest: e.Digest(), Size: e.Size}
	shared, err := b.share(e, section)
	if err != nil {
		return err
	}
	if !shared {
		err := b.storeBlob(ctx, d, download.Metered(section, meter))
		var differs *download.DiffersError
		if errors.As(err, &differs) {
			return &damagedError{differs.Got}
		}
		return err
	}
	got, err := b.hash(ctx, e, meter.Add)
	if err != nil {
		return err
	}
	if got != e.Digest() {
		return errors.Join(&damagedError{got}, b.erase(e))
	}
	return b.complete(e)
}

// share makes the blocks of a blob those of an older bundle, if the filesystem can and they
// lie at the same place within their blocks, as they do in bundles with the same beginning.
func (b *builder) share(e ocitar.Entry, section *io.SectionReader) (bool, error) {
	source, from, _ := section.Outer()
	old, ok := source.(*volume.File)
	if !ok {
		return false, nil
	}
	file, at, there := old.Extent(from)
	if _, ok := b.noClones.Load(file); ok {
		return false, nil
	}
	to, toAt, room := b.file.Extent(e.Offset)
	if there < e.Size || room < e.Size {
		return false, nil
	}
	start, end, err := cloneBlocks(to, toAt, file, at, e.Size)
	if err != nil {
		// It will be no better with the next blob from there. Another older bundle may lie on
		// another filesystem.
		b.noClones.Store(file, nil)
		return false, nil
	}
	if start == end {
		return false, nil
	}
	for _, part := range [][2]int64{{0, start}, {end, e.Size}} {
		content := make([]byte, part[1]-part[0])
		if _, err := section.ReadAt(content, part[0]); err != nil && !errors.Is(err, io.EOF) {
			return false, fmt.Errorf("read the older bundle: %w", err)
		}
		if _, err := b.file.WriteAt(content, e.Offset+part[0]); err != nil {
			return false, b.writeError(err)
		}
	}
	b.shared.Add(end - start)
	return true, nil
}

// damagedError says that an older bundle does not hold what its headers say.
type damagedError struct{ got digest.Digest }

func (e *damagedError) Error() string { return fmt.Sprintf("it holds bytes with the digest %s", e.got) }
