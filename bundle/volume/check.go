package volume

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/liteboxd/boxlift/internal/progress"
)

// copySize is the length in bytes of the pieces in which files are read and written.
const copySize = 256 << 10

// Check compares all volumes of a set with its list. Each volume that is not what the list
// says is a [Fault] of its own in the error, and so is each blob of an entry of a store. One file
// has no list, so that there is nothing to find.
func Check(ctx context.Context, path string, reporter progress.Reporter) error {
	if !IsSet(path) {
		return checkEntry(ctx, path, reporter)
	}
	f, err := openStored(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	want, err := f.sums()
	if err != nil {
		return err
	}
	task := reporter.Task("find damaged volumes", f.span.size)
	got, err := f.span.hash(ctx, task)
	if err == nil {
		err = f.set.compare(want, got)
	}
	task.Done(err)
	return err
}

// compare names the volumes that differ from the list.
func (s set) compare(want, got []digest.Digest) error {
	var faults []error
	for i, sum := range got {
		if sum == want[i] {
			continue
		}
		problem := "is damaged: its sha256 is not the one in the list"
		if j := slices.Index(want, sum); j >= 0 {
			problem = "holds what belongs in " + filepath.Base(s.volume(j))
		}
		faults = append(faults, s.fault(s.volume(i), problem))
	}
	return errors.Join(faults...)
}

// hash returns the sha256 of each file.
func (s *span) hash(ctx context.Context, task progress.Task) ([]digest.Digest, error) {
	sums := make([]digest.Digest, len(s.parts))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, p := range s.parts {
		group.Go(func() error {
			h := sha256.New()
			_, err := copyRange(ctx, h, p.file, p.size, task)
			sums[i] = digest.NewDigest(digest.SHA256, h)
			return err
		})
	}
	return sums, group.Wait()
}

// copyRange copies the first size bytes of a file, and no fewer.
func copyRange(ctx context.Context, to io.Writer, from *os.File, size int64, task progress.Task) (int64, error) {
	buffer := make([]byte, copySize)
	var done int64
	for done < size {
		if ctx.Err() != nil {
			return done, context.Cause(ctx)
		}
		piece := buffer[:min(copySize, size-done)]
		n, err := from.ReadAt(piece, done)
		if n < len(piece) {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%s: %w", from.Name(), io.ErrUnexpectedEOF)
			}
			return done, err
		}
		if _, err := to.Write(piece); err != nil {
			return done, err
		}
		done += int64(n)
		task.Add(int64(n))
	}
	return done, nil
}

// Join writes the volumes of a set into one file, which is byte for byte what would have
// been written without volumes, encrypted where the set is. Each volume is compared with
// the list on the way; what differs is a [Fault], and the file does not come to be.
//
// output must not be there; "" stands for the name of the set. Join returns the name of the
// file that it made.
func Join(ctx context.Context, path, output string, reporter progress.Reporter) (string, error) {
	if !IsSet(path) {
		if _, err := os.Stat(path); err != nil {
			return "", err
		}
		return "", fmt.Errorf("join %s: it is one file already, no set of volumes", path)
	}
	f, err := openStored(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // it was only read
	if output == "" {
		output = string(f.set)
	}
	if err := CheckName(output, false); err != nil {
		return "", err
	}
	if _, err := os.Lstat(output); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("write %s: %w", output, fs.ErrExist)
	}
	want, err := f.sums()
	if err != nil {
		return "", err
	}
	d, err := NewDraft(DraftOptions{Path: output, Suffix: ".joined.partial", Size: f.span.size})
	if err != nil {
		return "", err
	}
	defer d.Close() //nolint:errcheck // Commit has made sure that all is on the disk
	task := reporter.Task("join", f.span.size)
	err = f.join(ctx, d, want, task)
	task.Done(err)
	if err != nil {
		d.Remove()
		return "", err
	}
	return output, d.Commit(ctx, reporter)
}

func (f *File) join(ctx context.Context, d *Draft, want []digest.Digest, task progress.Task) error {
	if err := d.Allocate(); err != nil {
		return err
	}
	to := d.Writer()
	got := make([]digest.Digest, len(want))
	for i, p := range f.span.parts {
		h := sha256.New()
		if _, err := copyRange(ctx, io.MultiWriter(to, h), p.file, p.size, task); err != nil {
			return err
		}
		got[i] = digest.NewDigest(digest.SHA256, h)
	}
	return f.set.compare(want, got)
}
