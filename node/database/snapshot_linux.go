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
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/wire"
)

// The bytes of a database that SQLite locks (https://sqlite.org/lockingv3.html).
const (
	pendingByte  = sqliteLockOffset
	reservedByte = pendingByte + 1
	sharedFirst  = pendingByte + 2
	sharedSize   = 510
)

// The bytes of its shared memory that SQLite locks (https://sqlite.org/walformat.html).
const (
	walWriteByte      = 120
	walCheckpointByte = 121
	walReadByte       = 124 // that of the first reader who does not read the database alone
)

// Copy makes a copy of a SQLite database that others may be writing to. The copy is
// one file: it holds whole transactions only, all that had ended when the copy began, and
// has its name when it is on the disk. Nothing is written to the database or beside it.
//
// It speaks SQLite's own locking protocol, so that every process that uses SQLite takes
// it for one more reader, and the kernel drops its locks however the process ends.
//
//   - With a rollback journal it holds a SHARED lock: readers go on, and a writer that
//     wants to commit finds the database busy. One without a busy timeout fails then, so
//     that the copy is a clone of the file's extents where the filesystem can do that, and
//     else made by the kernel from its cache. A journal that a dead writer has left is
//     rolled back in the copy, for nobody may be there who does so in the database.
//   - With a write-ahead log, readers and writers both go on. It keeps checkpoints from
//     the database, and writers from beginning the log anew; they append to it. What has
//     been committed in the log is merged into the copy.
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
	report, err := snapshot(ctx, o)
	if err != nil {
		return report, fmt.Errorf("copy the database %s: %w", o.Source, err)
	}
	return report, nil
}

func snapshot(ctx context.Context, o Options) (report Report, err error) {
	for _, name := range []string{o.Source, o.Target} {
		if err := wire.ValidatePath(name); err != nil {
			return report, fmt.Errorf("%q: %w", name, err)
		}
	}
	// What lies beside the database is opened in the same directory, whatever becomes of
	// its path meanwhile.
	root, err := os.OpenRoot(filepath.Dir(o.Source))
	if err != nil {
		return report, err
	}
	defer root.Close() //nolint:errcheck // a directory
	s := &snapshotter{Options: o, root: root, base: filepath.Base(o.Source), report: &report}
	if s.database, err = s.open("", os.O_RDWR); err != nil {
		return report, err
	}
	defer hostfile.CloseRead(s.database) // nothing is written to it: locks need it open for writing
	if err := s.checkTarget(); err != nil {
		return report, err
	}
	s.copy, err = os.CreateTemp(filepath.Dir(o.Target), hostfile.PutPrefix+"*")
	if err != nil {
		return report, fmt.Errorf("make the copy: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.copy.Close(), os.Remove(s.copy.Name()))
		}
	}()
	if err := s.take(ctx); err != nil {
		return report, err
	}
	return report, s.finish()
}

// snapshotter makes one copy.
type snapshotter struct {
	Options
	root     *os.Root // the directory of the database
	base     string
	database *os.File
	copy     *os.File
	report   *Report
}

// open opens the database or, with a suffix, a file beside it.
func (s *snapshotter) open(suffix string, flag int) (*os.File, error) {
	return hostfile.Open(s.root, s.base+suffix, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK)
}

// checkTarget refuses what must not be replaced.
func (s *snapshotter) checkTarget() error {
	info, err := os.Lstat(s.Target)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is there and is no regular file, but %s; name another target", s.Target, info.Mode())
	}
	for _, suffix := range []string{"", "-journal", "-wal", "-shm"} {
		if other, err := s.root.Lstat(s.base + suffix); err == nil && os.SameFile(info, other) {
			return fmt.Errorf("the target %s is part of the database itself", s.Target)
		}
	}
	return nil
}

// errRetry says that the state of the database changed before all locks were held.
var errRetry = errors.New("the state of the database changes all the time")

// take locks, copies and unlocks, and tries that again while others are in the way.
func (s *snapshotter) take(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.Wait)
	defer cancel()
	begun := time.Now()
	for {
		err := s.try(begun)
		if !errors.Is(err, ErrLocked) && !errors.Is(err, errRetry) {
			return err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("%w, after %v; try again, or allow it more time", err, s.Wait)
			}
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// try makes the copy if nobody is in the way now. All locks are dropped at its end.
func (s *snapshotter) try(begun time.Time) error {
	locks := &sqliteLocks{database: s.database}
	defer locks.drop()
	if err := locks.shared(); err != nil {
		return err
	}
	got := time.Now()
	defer func() { s.report.HeldMicroseconds = time.Since(got).Microseconds() }()
	s.report.WaitedMicroseconds = got.Sub(begun).Microseconds()
	// The file may have been replaced while it was waited for.
	if now, err := s.root.Lstat(s.base); err != nil || !sameFile(s.database, now) {
		return errors.Join(errors.New("it was replaced by another file; run again"), err)
	}
	info, err := s.database.Stat()
	if err != nil {
		return err
	}
	if err := s.checkSize(info.Size()); err != nil {
		return err
	}
	if info.Size() == 0 { // a database that nothing has been written to
		s.report.JournalMode = "rollback"
		return s.copy.Truncate(0)
	}
	head := make([]byte, sqliteHeaderSize)
	if _, err := s.database.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	header, err := parseSQLiteHeader(head)
	if err != nil {
		if journal, _ := s.hotJournal(locks); journal != nil {
			hostfile.CloseRead(journal)
			err = fmt.Errorf("%w, and its last writer died; %s", err, mendHint)
		}
		return err
	}
	if header.wal {
		s.report.JournalMode = "wal"
		return s.takeWAL(locks, header, info.Size())
	}
	s.report.JournalMode = "rollback"
	return s.takeRollback(locks, info.Size())
}

func (s *snapshotter) checkSize(size int64) error {
	if size > s.MaxBytes {
		return tooLargeError(size, s.MaxBytes)
	}
	var space unix.Statfs_t
	if err := hostfile.Control(s.copy, func(fd int) error { return unix.Fstatfs(fd, &space) }); err != nil {
		return err
	}
	if free := int64(space.Bavail) * space.Bsize; size > free {
		return fmt.Errorf("it has %d MiB, but the filesystem of %s has only %d MiB free", size>>20, s.Target, free>>20)
	}
	return nil
}

// hotJournal opens the journal that a dead writer has left, if there is one.
//
// It may be taken for such a one although its writer has come this moment. That does no
// harm: while the SHARED lock is held nobody changes the database, and such a journal has
// what the copy has.
func (s *snapshotter) hotJournal(locks *sqliteLocks) (*os.File, error) {
	journal, err := s.open("-journal", os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no journal
	}
	if err != nil {
		return nil, err
	}
	first := make([]byte, 1)
	n, err := journal.ReadAt(first, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	live := false
	if err == nil {
		live, err = locks.reserved()
	}
	// An empty or overwritten one is of a transaction that has ended.
	if err != nil || live || n == 0 || first[0] == 0 {
		hostfile.CloseRead(journal)
		return nil, err
	}
	return journal, nil
}

// takeRollback copies a database with a rollback journal. The SHARED lock is held, so
// nobody changes the database.
func (s *snapshotter) takeRollback(locks *sqliteLocks, size int64) error {
	if err := copyFile(s.copy, s.database, size); err != nil {
		return err
	}
	journal, err := s.hotJournal(locks)
	if journal == nil || err != nil {
		return err
	}
	defer hostfile.CloseRead(journal)
	info, err := journal.Stat()
	if err != nil {
		return err
	}
	s.report.RolledBack, err = rollBack(s.copy, journal, info.Size(), s.MaxBytes)
	if errors.Is(err, errSuperJournal) {
		return fmt.Errorf("%w; %s", err, mendHint)
	}
	return err
}

// mendHint is for what is left to SQLite itself.
const mendHint = "start what uses the database, which mends it, and try again"

// takeWAL copies a database with a write-ahead log. The SHARED lock keeps the last
// connection that is closed from deleting the log.
func (s *snapshotter) takeWAL(locks *sqliteLocks, header sqliteHeader, size int64) error {
	memory, err := s.open("-shm", os.O_RDWR)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Nobody has the database open, and while the lock on all of it is held nobody will.
		if err := locks.exclusive(); errors.Is(err, ErrLocked) {
			return fmt.Errorf("%w: it was opened at this moment", errRetry)
		} else if err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		defer hostfile.CloseRead(memory)
		locks.memory = memory
		if err := locks.readWAL(); err != nil {
			return err
		}
		if now, err := s.root.Lstat(s.base + "-shm"); err != nil || !sameFile(memory, now) {
			return errRetry
		}
	}
	if journal, err := s.hotJournal(locks); err != nil {
		return err
	} else if journal != nil {
		hostfile.CloseRead(journal)
		return fmt.Errorf("its last writer died while it changed the journal mode; %s", mendHint)
	}
	wal, err := s.open("-wal", os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return copyFile(s.copy, s.database, size)
	}
	if err != nil {
		return err
	}
	defer hostfile.CloseRead(wal)
	// The database may have grown before checkpoints were kept away.
	info, err := s.database.Stat()
	if err != nil {
		return err
	}
	if err := copyFile(s.copy, s.database, info.Size()); err != nil {
		return err
	}
	if info, err = wal.Stat(); err != nil {
		return err
	}
	return mergeWAL(s.copy, wal, info.Size(), header, s.MaxBytes)
}

// finish puts the copy on the disk and gives it its name.
func (s *snapshotter) finish() error {
	if err := s.copy.Sync(); err != nil {
		return err
	}
	h := sha256.New()
	if _, err := s.copy.Seek(0, io.SeekStart); err != nil {
		return err
	}
	n, err := io.Copy(h, s.copy)
	if err != nil {
		return err
	}
	s.report.Bytes, s.report.SHA256 = n, hex.EncodeToString(h.Sum(nil))
	if err := os.Rename(s.copy.Name(), s.Target); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(s.Target))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close(), s.copy.Close())
}

func sameFile(f *os.File, info fs.FileInfo) bool {
	of, err := f.Stat()
	return err == nil && os.SameFile(of, info)
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
	if _, err := to.Seek(0, io.SeekStart); err != nil {
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

// sqliteLocks are the locks that one copy holds. They belong to open files and not to the
// process, so that they end with drop, whatever else has the same file open.
type sqliteLocks struct {
	database *os.File
	memory   *os.File
}

// shared takes the SHARED lock. Whoever waits to write holds the PENDING lock, so that no
// more readers come.
func (l *sqliteLocks) shared() error {
	if err := setLock(l.database, unix.F_RDLCK, pendingByte, 1); err != nil {
		return err
	}
	err := setLock(l.database, unix.F_RDLCK, sharedFirst, sharedSize)
	return errors.Join(err, setLock(l.database, unix.F_UNLCK, pendingByte, 1))
}

// exclusive makes the SHARED lock one that nobody shares.
func (l *sqliteLocks) exclusive() error {
	return setLock(l.database, unix.F_WRLCK, sharedFirst, sharedSize)
}

// reserved tells whether a writer is at work.
func (l *sqliteLocks) reserved() (bool, error) {
	lock, err := getLock(l.database, unix.F_WRLCK, reservedByte, 1)
	return lock.Type != unix.F_UNLCK, err
}

// readWAL keeps checkpoints away, and writers from beginning the log anew, which they do
// only when nobody reads from it.
func (l *sqliteLocks) readWAL() error {
	if err := setLock(l.memory, unix.F_WRLCK, walCheckpointByte, 1); err != nil {
		return err
	}
	if err := setLock(l.memory, unix.F_RDLCK, walReadByte, 1); err != nil {
		return err
	}
	// One that writes now may have decided to begin anew before it could be kept from it.
	// One that comes later cannot.
	lock, err := getLock(l.memory, unix.F_WRLCK, walWriteByte, 1)
	if err == nil && lock.Type != unix.F_UNLCK {
		err = fmt.Errorf("%w by %s, which is writing", ErrLocked, holder(lock))
	}
	return err
}

func (l *sqliteLocks) drop() {
	for _, f := range []*os.File{l.memory, l.database} {
		if f != nil {
			_ = setLock(f, unix.F_UNLCK, 0, 0) // it cannot fail, and the file is closed soon
		}
	}
}

// setLock takes or drops a lock, and does not wait for one that is taken.
func setLock(f *os.File, kind int16, start, length int64) error {
	lock := unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: start, Len: length}
	err := hostfile.Control(f, func(fd int) error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock) })
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		other, err := getLock(f, kind, start, length)
		if err != nil {
			return err
		}
		return fmt.Errorf("%w by %s", ErrLocked, holder(other))
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

// getLock returns the lock that would be in the way of one.
func getLock(f *os.File, kind int16, start, length int64) (unix.Flock_t, error) {
	lock := unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: start, Len: length}
	err := hostfile.Control(f, func(fd int) error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &lock) })
	if err != nil {
		return lock, fmt.Errorf("ask for locks on %s: %w", f.Name(), err)
	}
	return lock, nil
}

// holder says who holds a lock, as far as the kernel tells: it may be gone already, or of
// another kind that belongs to no process.
func holder(lock unix.Flock_t) string {
	if lock.Type == unix.F_UNLCK || lock.Pid <= 0 {
		return "another process"
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", lock.Pid))
	if err != nil {
		return fmt.Sprintf("the process %d", lock.Pid)
	}
	return fmt.Sprintf("the process %d (%q)", lock.Pid, strings.TrimSpace(string(name)))
}
