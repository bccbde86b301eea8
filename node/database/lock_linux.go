package database

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/node/hostfile"
)

// The bytes of a database that SQLite locks (https://sqlite.org/lockingv3.html).
const (
	pendingByte  = 1 << 30
	reservedByte = pendingByte + 1
	sharedFirst  = pendingByte + 2
	sharedSize   = 510
)

// lock is a lock on a database, as SQLite takes them. It belongs to the open file and not
// to the process: what SQLite locks and unlocks within this process does not touch it.
type lock struct{ database *os.File }

// shared takes the SHARED lock. Whoever waits to write holds the PENDING lock, so that no
// more readers come.
func (l lock) shared() error {
	if err := l.set(unix.F_RDLCK, pendingByte, 1); err != nil {
		return err
	}
	err := l.set(unix.F_RDLCK, sharedFirst, sharedSize)
	return errors.Join(err, l.set(unix.F_UNLCK, pendingByte, 1))
}

// exclusive makes the SHARED lock one that nobody shares.
func (l lock) exclusive() error { return l.set(unix.F_WRLCK, sharedFirst, sharedSize) }

// reserved reports whether a writer is at work.
func (l lock) reserved() (bool, error) {
	other, err := l.get(unix.F_WRLCK, reservedByte, 1)
	return other.Type != unix.F_UNLCK, err
}

func (l lock) drop() { _ = l.set(unix.F_UNLCK, 0, 0) } // it cannot fail, and the file is closed soon

// set takes or drops a lock, and does not wait for one that is taken.
func (l lock) set(kind int16, start, length int64) error {
	wanted := unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: start, Len: length}
	err := hostfile.Control(l.database, func(fd int) error {
		return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &wanted)
	})
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		other, err := l.get(kind, start, length)
		if err != nil {
			return err
		}
		return fmt.Errorf("%w by %s", ErrLocked, holder(other))
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", l.database.Name(), err)
	}
	return nil
}

// get returns the lock that would be in the way of one.
func (l lock) get(kind int16, start, length int64) (unix.Flock_t, error) {
	wanted := unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: start, Len: length}
	err := hostfile.Control(l.database, func(fd int) error {
		return unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &wanted)
	})
	if err != nil {
		return wanted, fmt.Errorf("ask for locks on %s: %w", l.database.Name(), err)
	}
	return wanted, nil
}

// holder says who holds a lock, as far as the kernel tells: it may be gone already, or of
// another kind that belongs to no process.
func holder(other unix.Flock_t) string {
	if other.Type == unix.F_UNLCK || other.Pid <= 0 {
		return "another process"
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", other.Pid))
	if err != nil {
		return fmt.Sprintf("the process %d", other.Pid)
	}
	return fmt.Sprintf("the process %d (%q)", other.Pid, strings.TrimSpace(string(name)))
}
