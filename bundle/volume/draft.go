package volume

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
	"slices"
	"strings"

	"github.com/gofrs/flock"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
	"github.com/liteboxd/boxlift/internal/progress"
)

// DraftOptions say what is to be written.
type DraftOptions struct {
	// Path is the final name: of the file, or of the set.
	Path string
	// Suffix is what the files' names end with until [Draft.Commit].
	Suffix string
	// Size is how many bytes there will be.
	Size int64
	// VolumeSize is the length that volumes are cut to, in bytes, at least [MinSize]; 0
	// makes one file.
	VolumeSize int64
	// Private keeps the files from all other users of the machine.
	Private bool
}

// Draft is a file, or a set of volumes, that does not have its final name yet. Its bytes
// may be written in any order and by several goroutines at once. Another process that makes
// the same draft is kept away. What a process that was killed left is there again in the
// next draft of the same name.
//
// A set is finished when its list has its final name, which comes last.
type Draft struct {
	span
	options DraftOptions
	set     set // "" for one file
	lock    *flock.Flock
	guard   *os.File        // what is locked: the one file, or the list
	sums    []digest.Digest // of the volumes, when they were written in order
}

// NewDraft opens or begins a draft.
func NewDraft(o DraftOptions) (*Draft, error) {
	d := &Draft{options: o}
	if o.VolumeSize > 0 {
		if err := checkVolumes(o.Size, o.VolumeSize); err != nil {
			return nil, err
		}
		d.set = set(o.Path)
	}
	name := o.guard()
	lock, locked, err := ownfile.Lock(name, o.mode())
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", name, foreign(err))
	}
	if !locked {
		_ = lock.Close()
		return nil, fmt.Errorf("%s is locked: another build is writing it", name)
	}
	d.lock = lock
	if d.guard, err = openLocked(d.lock); err == nil {
		err = d.open()
	}
	if err == nil && o.Private {
		err = d.hide()
	}
	if err != nil {
		_ = d.Close()
		return nil, fmt.Errorf("open the unfinished bundle: %w", foreign(err))
	}
	return d, nil
}

// foreign gives errors of [ownfile] a hint.
func foreign(err error) error {
	if errors.Is(err, ownfile.ErrForeign) {
		return fault.WithHint(err, "find out who put it there, and remove it; "+
			"best write to a folder that no other user can write to")
	}
	return err
}

// guard is the file that is there as long as the draft is, and locked by who writes it.
func (o *DraftOptions) guard() string {
	name := o.Path
	if o.VolumeSize > 0 {
		name = set(o.Path).list()
	}
	return name + o.Suffix
}

// RemoveDraft removes what an earlier process left of a draft, if there is anything.
func RemoveDraft(o DraftOptions) error {
	if !exists(o.guard()) {
		return nil
	}
	d, err := NewDraft(o)
	if err != nil {
		return err
	}
	d.Remove()
	return d.Close()
}

func (o *DraftOptions) mode() os.FileMode {
	if o.Private {
		return 0o600
	}
	return 0o644
}

// checkVolumes refuses to cut into more volumes than there are names for.
func checkVolumes(size, volumeSize int64) error {
	if volumeSize < MinSize {
		return fmt.Errorf("volumes of %s: at least %s are needed", progress.Bytes(volumeSize), progress.Bytes(MinSize))
	}
	if n := volumesOf(size, volumeSize); n > MaxVolumes {
		return fmt.Errorf("volumes of %s would be %d, at most %d can be: make them larger", progress.Bytes(volumeSize),
			n, MaxVolumes)
	}
	return nil
}

func volumesOf(size, volumeSize int64) int64 { return (size + volumeSize - 1) / volumeSize }

// openLocked opens the file that lock holds. Another build may have given it its final
// name, and a third have begun anew under the old one, after lock opened the file and
// before it had the lock. What bears the name now is then not ours to write.
func openLocked(lock *flock.Flock) (*os.File, error) {
	f, err := ownfile.Open(lock.Path(), os.O_RDWR, 0)
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
		err = fmt.Errorf("another build has just finished %s, and one more is writing it: run the command again",
			lock.Path())
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// open opens the files that hold the bytes.
func (d *Draft) open() error {
	if d.set == "" {
		d.add(d.guard, d.options.Size)
		return nil
	}
	if err := d.takeBack(); err != nil {
		return err
	}
	for left, i := d.options.Size, 0; left > 0; i++ {
		f, err := ownfile.Open(d.set.volume(i)+d.options.Suffix, os.O_RDWR|os.O_CREATE, d.options.mode())
		if err != nil {
			return err
		}
		n := min(left, d.options.VolumeSize)
		d.add(f, n)
		left -= n
	}
	return nil
}

// hide keeps other users from files that an earlier draft left for all.
func (d *Draft) hide() error {
	for _, p := range d.parts {
		if err := p.file.Chmod(d.options.mode()); err != nil {
			return err
		}
	}
	return nil
}

// takeBack undoes a Commit that was ended in its middle, the first volume last: until that has
// its temporary name again, [set.isCommitting] knows that there is something to do.
func (d *Draft) takeBack() error {
	if info, err := d.guard.Stat(); err != nil || info.Size() == 0 {
		return err
	}
	if isCommitting, err := d.set.isCommitting(d.guard.Name()); err != nil {
		return err
	} else if isCommitting {
		for i := int(volumesOf(d.options.Size, d.options.VolumeSize)) - 1; i >= 0; i-- {
			final, draft := d.set.volume(i), d.set.volume(i)+d.options.Suffix
			if exists(draft) || !exists(final) {
				continue
			}
			if err := os.Rename(final, draft); err != nil {
				return err
			}
		}
	}
	return d.guard.Truncate(0)
}

// IsCommitting reports whether a set of volumes is there whose Commit was ended in its middle,
// in the place of an older set or of none.
func IsCommitting(path string) bool {
	s := setOf(path)
	if s == "" {
		return false
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		if !strings.HasPrefix(e.Name(), filepath.Base(s.list())+".") {
			return false
		}
		isCommitting, err := s.isCommitting(filepath.Join(filepath.Dir(path), e.Name()))
		return err == nil && isCommitting
	})
}

// isCommitting reports whether some of a set's volumes, but not its list, have their final
// names. A draft's list is written before the first volume gets its name, which it does before
// all others: when that is the one of the list, the others are at one of their two names. When
// it is another, another set has taken the place since.
func (s set) isCommitting(list string) (bool, error) {
	sums, err := s.readListAt(list)
	if errors.Is(err, ErrDamaged) || !exists(s.volume(0)) {
		return false, nil // it was being written, or no volume has its name
	}
	if err != nil {
		return false, err
	}
	f, err := os.Open(s.volume(0))
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	sum, err := digest.SHA256.FromReader(f)
	return sum == sums[0], err
}

// Name returns the name of the file, or what those of the volumes have in common.
func (d *Draft) Name() string { return d.options.Path + d.options.Suffix }

// Size returns how many bytes there will be.
func (d *Draft) Size() int64 { return d.size }

// Volumes returns how many volumes there will be: 0 for one file.
func (d *Draft) Volumes() int {
	if d.set == "" {
		return 0
	}
	return len(d.parts)
}

// IsWhole reports whether all files have their full lengths, as they have after Allocate.
func (d *Draft) IsWhole() (bool, error) {
	for _, p := range d.parts {
		info, err := p.file.Stat()
		if err != nil {
			return false, fmt.Errorf("look at the unfinished bundle: %w", err)
		}
		if info.Size() != p.size {
			return false, nil
		}
	}
	return true, nil
}

// Allocate gives all files their full lengths, all zeros, and reserves the room on the
// disk, so that a full disk is noticed before anything is downloaded. When it fails,
// nothing stays.
func (d *Draft) Allocate() error {
	for _, p := range d.parts {
		if err := allocate(p.file, p.size); err != nil {
			d.Remove()
			return fmt.Errorf("reserve %s for %s: %w", progress.Bytes(d.size), d.Name(), err)
		}
	}
	return nil
}

// StartWriting asks the kernel to begin with writing a part to the disk.
func (d *Draft) StartWriting(offset, size int64) {
	_ = d.each(offset, size, func(f *os.File, at, length int64) error {
		startWriting(f, at, length)
		return nil
	})
}

// DataEnd returns where the first part of a range ends that was written; after it, nothing
// of the range was. It may be too large: not every filesystem knows.
func (d *Draft) DataEnd(offset, size int64) int64 {
	end := offset
	_ = d.each(offset, size, func(f *os.File, at, length int64) error {
		n := min(length, max(0, dataEnd(f, at)-at))
		end += n
		if n < length {
			return io.EOF
		}
		return nil
	})
	return end
}

// Zero makes zeros of a range without writing them. Not every filesystem can.
func (d *Draft) Zero(offset, size int64) error { return d.each(offset, size, zeroRange) }

// UseMapped is that of [File].
func (d *Draft) UseMapped(offset, size int64, use func([]byte) error) error {
	return d.mapped(offset, size, use)
}

// Writer returns a writer of the whole, from its beginning on. The checksums of the volumes
// are made on the way.
func (d *Draft) Writer() io.Writer { return &ordered{draft: d, hash: sha256.New()} }

// flushStep is how much is written between two requests to the kernel to start writing it
// to the disk. Without these, it may leave everything to the last moment.
const flushStep = 8 << 20

type ordered struct {
	draft           *Draft
	offset, flushed int64
	hash            hash.Hash
}

func (w *ordered) Write(p []byte) (n int, err error) {
	n, err = w.draft.WriteAt(p, w.offset)
	w.sum(p[:n])
	if w.offset-w.flushed >= flushStep || w.offset == w.draft.size {
		w.draft.StartWriting(w.flushed, w.offset-w.flushed)
		w.flushed = w.offset
	}
	return n, err
}

// sum counts what was written towards the volumes that it is in.
func (w *ordered) sum(p []byte) {
	if w.draft.set == "" {
		w.offset += int64(len(p))
		return
	}
	for len(p) > 0 {
		_, _, left := w.draft.Extent(w.offset)
		n := min(left, int64(len(p)))
		_, _ = w.hash.Write(p[:n]) // never fails
		if w.offset, p = w.offset+n, p[n:]; n == left {
			w.draft.sums = append(w.draft.sums, digest.NewDigest(digest.SHA256, w.hash))
			w.hash.Reset()
		}
	}
}

// Commit brings everything to the disk and gives the files their final names; those that
// have these names are replaced. A file that has lost its name to another one does not get
// it. A set's volumes are read once more for the list, unless they were written by Writer.
func (d *Draft) Commit(ctx context.Context, reporter progress.Reporter) error {
	if err := d.sync(); err != nil {
		return err
	}
	if d.set != "" {
		if err := d.writeList(ctx, reporter); err != nil {
			return err
		}
		for i, p := range d.parts {
			if err := ownfile.Rename(p.file, d.set.volume(i)); err != nil {
				return foreign(err)
			}
		}
		if err := d.removeStale(); err != nil {
			return err
		}
		if err := SyncDirectory(filepath.Dir(d.options.Path)); err != nil {
			return err
		}
	}
	final := d.options.Path
	if d.set != "" {
		final = d.set.list()
	}
	if err := ownfile.Rename(d.guard, final); err != nil {
		return foreign(err)
	}
	return SyncDirectory(filepath.Dir(final))
}

// syncFile brings a file to the disk. Tests have it fail, as disks do.
var syncFile = (*os.File).Sync

func (d *Draft) sync() error {
	for _, p := range d.parts {
		if err := syncFile(p.file); err != nil {
			// Linux drops what it could not write, but reads it from memory for a while: the
			// next build would find it whole, and its own Sync would succeed.
			for _, p := range d.parts {
				_ = p.file.Truncate(0)
			}
			return fmt.Errorf("write %s: %w", d.Name(), err)
		}
	}
	return nil
}

func (d *Draft) writeList(ctx context.Context, reporter progress.Reporter) error {
	sums := d.sums
	if len(sums) != len(d.parts) {
		task := reporter.Task("make the list of checksums", d.size)
		var err error
		sums, err = d.hash(ctx, task)
		task.Done(err)
		if err != nil {
			return fmt.Errorf("make the list of checksums: %w", err)
		}
	}
	// takeBack looks at whether there is anything in it.
	if _, err := d.guard.WriteAt(formatList(d.set, sums), 0); err != nil {
		return err
	}
	return errors.Join(d.guard.Sync(), SyncDirectory(filepath.Dir(d.options.Path)))
}

// removeStale removes the volumes that a longer set of the same name had.
func (d *Draft) removeStale() error {
	old, err := d.set.readList()
	if err != nil {
		return nil //nolint:nilerr // there was no such set
	}
	for i := len(d.parts); i < len(old); i++ {
		if err := os.Remove(d.set.volume(i)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Remove gives up what was written.
func (d *Draft) Remove() {
	for i := range d.parts {
		if d.set != "" {
			_ = os.Remove(d.set.volume(i) + d.options.Suffix)
		}
	}
	_ = os.Remove(d.guard.Name())
}

// Close closes the files and lets others write. It may be called after Commit.
func (d *Draft) Close() error {
	err := d.span.Close()
	if d.set != "" && d.guard != nil {
		err = errors.Join(err, d.guard.Close())
	}
	return errors.Join(err, d.lock.Close())
}

// SyncDirectory brings the names in a directory to the disk: a rename, and a new file, are only
// safe from a power cut after it.
func SyncDirectory(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write the directory %s to the disk: %w", name, err)
	}
	return nil
}

// Begins reports whether what is at path, one file or the first volume, begins with some
// bytes, or as encrypted files do.
func Begins(path string, with []byte) (begins, encrypted bool, err error) {
	if s := setOf(path); s != "" {
		path = s.volume(0)
	}
	f, err := os.Open(path)
	if err != nil {
		return false, false, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	got := make([]byte, max(len(with), len(ageMagic)))
	n, err := io.ReadFull(f, got)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return false, false, err
	}
	return bytes.HasPrefix(got[:n], with), bytes.HasPrefix(got[:n], []byte(ageMagic)), nil
}
