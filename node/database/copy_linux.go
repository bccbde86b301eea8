package database

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/wire"
)

// Copy makes a copy of a SQLite database that others may be writing to. The copy holds all
// transactions that had ended when it began, and has its name when it is on the disk.
//
//   - With a rollback journal, readers go on meanwhile, and a writer that wants to commit
//     finds the database busy. A journal that a dead writer has left is rolled back in the
//     copy, for nobody may be there who does so in the database.
//   - With a write-ahead log, readers and writers both go on, and what has been committed
//     in the log is in the copy. When nobody has the database open, whoever opens it finds
//     it busy until its files have been read.
//
// While others keep it from a lock it tries again, until o.Wait is over; the error wraps
// [ErrLocked] then and names the process, if the kernel does.
func Copy(ctx context.Context, o Options) (Report, error) {
	if o.Wait == 0 {
		o.Wait = 10 * time.Second
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 16 << 30
	}
	report, err := makeCopy(ctx, o)
	if err != nil {
		return report, fmt.Errorf("copy the database %s: %w", o.Source, err)
	}
	return report, nil
}

func makeCopy(ctx context.Context, o Options) (report Report, err error) {
	for _, name := range []string{o.Source, o.Target} {
		if err := wire.ValidatePath(name); err != nil {
			return report, fmt.Errorf("%q: %w", name, err)
		}
	}
	root, err := os.OpenRoot(filepath.Dir(o.Source))
	if err != nil {
		return report, err
	}
	defer root.Close() //nolint:errcheck // a directory
	c := &copier{Options: o, root: root, base: filepath.Base(o.Source), report: &report}
	if c.database, err = c.open("", os.O_RDWR); err != nil {
		return report, err
	}
	defer hostfile.CloseRead(c.database) // nothing is written to it: locks need it open for writing
	if err := c.checkTarget(); err != nil {
		return report, err
	}
	c.copy, err = os.CreateTemp(filepath.Dir(o.Target), hostfile.PutPrefix+"*")
	if err != nil {
		return report, fmt.Errorf("make the copy: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.copy.Close(), os.Remove(c.copy.Name()))
		}
	}()
	if err := c.take(ctx); err != nil {
		return report, err
	}
	return report, c.finish()
}

// copier makes one copy.
type copier struct {
	Options
	root     *os.Root // the directory of the database
	base     string
	database *os.File
	copy     *os.File
	report   *Report
}

// open opens the database or, with a suffix, a file beside it.
func (c *copier) open(suffix string, flag int) (*os.File, error) {
	return hostfile.Open(c.root, c.base+suffix, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK)
}

// isThere reports whether a file of the database is there, which must be a regular one.
func (c *copier) isThere(suffix string) (bool, error) {
	info, err := c.root.Lstat(c.base + suffix)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !info.Mode().IsRegular():
		return false, fmt.Errorf("%s: expected a regular file, found %s", c.Source+suffix, info.Mode())
	}
	return true, nil
}

// checkTarget refuses what must not be replaced.
func (c *copier) checkTarget() error {
	info, err := os.Lstat(c.Target)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is there and is no regular file, but %s; name another target", c.Target, info.Mode())
	}
	for _, suffix := range []string{"", "-journal", "-wal", "-shm"} {
		if other, err := c.root.Lstat(c.base + suffix); err == nil && os.SameFile(info, other) {
			return fmt.Errorf("the target %s is part of the database itself", c.Target)
		}
	}
	return nil
}

// errRetry says that the state of the database changed before all locks were held.
var errRetry = errors.New("the state of the database changes all the time")

// take locks, copies and unlocks, and tries that again while others are in the way.
func (c *copier) take(ctx context.Context) error {
	begun := time.Now()
	wait, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	for {
		err := c.try(ctx, begun)
		if !errors.Is(err, ErrLocked) && !errors.Is(err, errRetry) {
			return err
		}
		select {
		case <-wait.Done():
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%w, after %v; try again, or allow it more time", err, c.Wait)
		case <-time.After(time.Millisecond):
		}
	}
}

// try makes the copy if nobody is in the way now. All locks are dropped at its end.
func (c *copier) try(ctx context.Context, begun time.Time) error {
	l := lock{c.database}
	if err := l.shared(); err != nil {
		return err
	}
	got := time.Now()
	unlock := sync.OnceFunc(func() {
		l.drop()
		c.report.HeldMicroseconds = time.Since(got).Microseconds()
	})
	defer unlock()
	c.report.WaitedMicroseconds = got.Sub(begun).Microseconds()
	if err := c.checkSame(); err != nil {
		return err
	}
	info, err := c.database.Stat()
	if err != nil {
		return err
	}
	if err := c.checkSize(info.Size()); err != nil {
		return err
	}
	if info.Size() == 0 { // a database that nothing has been written to
		c.report.JournalMode = "rollback"
		return c.copy.Truncate(0)
	}
	raw := make([]byte, headerSize)
	if _, err := c.database.ReadAt(raw, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	hot, err := c.hasHotJournal(l)
	if err != nil {
		return err
	}
	h, err := parseHeader(raw)
	if err != nil && hot {
		return fmt.Errorf("%w, and its last writer died; %s", err, mendHint)
	}
	if err != nil {
		return err
	}
	c.report.JournalMode, c.report.RolledBack = h.journalMode(), hot
	beside, err := c.toMend(l, h, hot)
	if err != nil {
		return err
	}
	if beside == "" {
		if err := c.read(ctx, c.Source, "mode=ro&readonly_shm=1", h.pageSize); err != nil {
			return err
		}
		return c.checkSame()
	}
	work, err := c.takeFiles(beside, info.Size())
	defer func() { removeDatabase(work) }()
	if err != nil {
		return err
	}
	unlock() // nobody else knows what has been taken
	return c.read(ctx, work, "mode=rw", h.pageSize)
}

// toMend returns the suffix of the file without which the database is not whole while
// SQLite has not mended it, or "" when it can be read where it is. What it decides stays
// so for as long as the lock is held.
func (c *copier) toMend(l lock, h header, hot bool) (beside string, err error) {
	switch {
	case !h.wal && hot:
		return "-journal", nil
	case !h.wal:
		return "", nil
	case hot:
		return "", fmt.Errorf("its last writer died while it changed the journal mode; %s", mendHint)
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		there, err := c.isThere(suffix)
		if err != nil {
			return "", err
		}
		if !there {
			// Nobody has the database open, and while the lock is held on all of it nobody will.
			if err := l.exclusive(); errors.Is(err, ErrLocked) {
				return "", fmt.Errorf("%w: it was opened at this moment", errRetry)
			} else if err != nil {
				return "", err
			}
			return "-wal", nil
		}
	}
	return "", nil
}

// checkSame reports when the file that is locked is no longer the one at the path.
func (c *copier) checkSame() error {
	now, err := c.root.Lstat(c.base)
	if err == nil {
		var of fs.FileInfo
		if of, err = c.database.Stat(); err == nil && os.SameFile(of, now) {
			return nil
		}
	}
	return errors.Join(errors.New("it was replaced by another file; run again"), err)
}

// checkSize refuses what would be too large, or has no room.
func (c *copier) checkSize(size int64) error {
	if size > c.MaxBytes {
		return fmt.Errorf("it is too large: it has %d MiB, more than the %d MiB that are allowed", size>>20,
			c.MaxBytes>>20)
	}
	var space unix.Statfs_t
	if err := hostfile.Control(c.copy, func(fd int) error { return unix.Fstatfs(fd, &space) }); err != nil {
		return err
	}
	if free := int64(space.Bavail) * space.Bsize; size > free {
		return fmt.Errorf("it has %d MiB, but the filesystem of %s has only %d MiB free", size>>20, c.Target, free>>20)
	}
	return nil
}

// hasHotJournal reports whether a dead writer has left its journal.
//
// It may be taken for such a one although its writer has come this moment. That does no
// harm: while the SHARED lock is held nobody changes the database, and such a journal has
// what the database has.
func (c *copier) hasHotJournal(l lock) (bool, error) {
	journal, err := c.open("-journal", os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer hostfile.CloseRead(journal)
	first := make([]byte, 1)
	// An empty or overwritten one is of a transaction that has ended.
	if n, err := journal.ReadAt(first, 0); n == 0 || first[0] == 0 {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return false, err
	}
	live, err := l.reserved()
	return !live, err
}

// mendHint is for what is left to SQLite itself.
const mendHint = "start what uses the database, which mends it, and try again"

// takeFiles copies the database as it is and the file beside it, if that is there, to where
// the copy will be, and returns the name of the database there.
func (c *copier) takeFiles(beside string, size int64) (string, error) {
	work, err := os.CreateTemp(filepath.Dir(c.Target), hostfile.PutPrefix+"*")
	if err != nil {
		return "", fmt.Errorf("make the copy: %w", err)
	}
	name := work.Name()
	if err := errors.Join(copyFile(work, c.database, size), work.Close()); err != nil {
		return name, err
	}
	other, err := c.open(beside, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return name, nil
	}
	if err != nil {
		return name, err
	}
	defer hostfile.CloseRead(other)
	info, err := other.Stat()
	if err != nil {
		return name, err
	}
	if err := c.checkSize(info.Size()); err != nil {
		return name, fmt.Errorf("%s: %w", c.Source+beside, err)
	}
	to, err := os.OpenFile(name+beside, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return name, err
	}
	err = copyFile(to, other, info.Size())
	if err == nil && beside == "-journal" {
		err = checkJournal(to, info.Size())
	}
	return name, errors.Join(err, to.Close())
}

// removeDatabase deletes a database that nobody else knows, with what SQLite keeps beside it.
func removeDatabase(name string) {
	if name == "" {
		return
	}
	for _, suffix := range []string{"", "-journal", "-wal", "-shm"} {
		_ = os.Remove(name + suffix) // clean deletes what is left
	}
}

// finish puts the copy on the disk and gives it its name.
func (c *copier) finish() error {
	if err := c.copy.Sync(); err != nil {
		return err
	}
	h := sha256.New()
	if _, err := c.copy.Seek(0, io.SeekStart); err != nil {
		return err
	}
	n, err := io.Copy(h, c.copy)
	if err != nil {
		return err
	}
	c.report.Bytes, c.report.SHA256 = n, hex.EncodeToString(h.Sum(nil))
	if err := os.Rename(c.copy.Name(), c.Target); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(c.Target))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close(), c.copy.Close())
}

// copyFile makes to the first size bytes of from: by sharing extents, or within the
// kernel, or, where both are impossible, through a buffer.
func copyFile(to, from *os.File, size int64) error {
	err := hostfile.Control(to, func(target int) error {
		return hostfile.Control(from, func(source int) error { return unix.IoctlFileClone(target, source) })
	})
	if err == nil {
		return to.Truncate(size)
	}
	if err := to.Truncate(0); err != nil {
		return err
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	// In this form it is copy_file_range, where that works.
	n, err := io.Copy(to, io.LimitReader(from, size))
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	return err
}
