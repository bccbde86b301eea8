// Package ownfile opens files at names that others can foresee, in folders that others may be able
// to write to: drafts and locks. What lies at such a name may have been put there to be written to:
// a link to somebody's file, a file that its owner goes on changing, a pipe that nobody reads.
package ownfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"

	"github.com/liteboxd/boxlift/internal/fault"
)

// ErrForeign is wrapped by errors that say that something at a name is not what boxlift made there.
var ErrForeign = fault.NewKind(fault.Failure, "it is not a file that boxlift of this user made")

// Open is [os.OpenFile] that follows no link in the last part of the path and waits for nobody. It
// refuses what is no regular file, has other names, or is another user's, with [ErrForeign].
func Open(path string, flag int, mode fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag|openFlags, mode)
	if err != nil {
		return nil, explained(path, err)
	}
	info, err := f.Stat()
	if err == nil {
		err = check(path, info)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Owned reports whether a file or folder is this user's. The info must be of [os.Lstat], or of an
// open file, to say anything about what is used afterwards. Where files have no owners, none is.
func Owned(info fs.FileInfo) bool {
	uid, known := owner(info)
	return known && uid == os.Geteuid()
}

// Lock makes the file at path unless it is there, with the same care as Open, and locks it unless
// another process has. It reports whether it has the lock, which has to be closed in both cases.
func Lock(path string, mode fs.FileMode) (_ *flock.Flock, locked bool, err error) {
	return lock(path, mode, (*flock.Flock).TryLock)
}

// Wait is Lock that waits until other processes have given up the lock.
func Wait(path string, mode fs.FileMode) (*flock.Flock, error) {
	l, _, err := lock(path, mode, func(l *flock.Flock) (bool, error) { return true, l.Lock() })
	return l, err
}

func lock(path string, mode fs.FileMode, take func(*flock.Flock) (bool, error)) (*flock.Flock, bool, error) {
	// NFS locks only what is open for writing.
	l := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR|openFlags), flock.SetPermissions(mode))
	locked, err := take(l)
	if err != nil {
		err = explained(path, err)
	} else if locked {
		var info fs.FileInfo
		if info, err = l.Stat(); err == nil {
			err = check(path, info)
		}
	}
	if err != nil {
		_ = l.Close()
		return nil, false, err
	}
	return l, locked, nil
}

// Rename gives an open file another name, at which it replaces what is there. It fails with
// [ErrForeign] unless it is the file that bears the name that it was opened by.
func Rename(f *os.File, to string) error {
	if err := bears(f, f.Name()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), to); err != nil {
		return err
	}
	// Whoever can write to the folder can be quicker than this.
	return bears(f, to)
}

// bears fails unless f is what has a name.
func bears(f *os.File, name string) error {
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(name)
	if err != nil {
		return err
	}
	if !os.SameFile(opened, there) {
		return fmt.Errorf("%s was replaced while it was written: %w", name, ErrForeign)
	}
	return nil
}

// check looks at what was opened by a path.
func check(path string, opened fs.FileInfo) error {
	if !opened.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file: %w", path, ErrForeign)
	}
	if n := links(opened); n > 1 {
		return fmt.Errorf("%s has %d names: %w", path, n, ErrForeign)
	}
	uid, known := owner(opened)
	if !known || uid == os.Geteuid() {
		return nil
	}
	// Sticks know no owners, and file servers have their own for root.
	own, err := ownerOfNew(filepath.Dir(path))
	if err != nil {
		return err
	}
	if uid != own {
		return fmt.Errorf("%s belongs to the user %d: %w", path, uid, ErrForeign)
	}
	return nil
}

// ownerOfNew returns whose files are that are made in a folder.
func ownerOfNew(dir string) (uid int, err error) {
	f, err := os.CreateTemp(dir, ".boxlift-owner-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	uid, _ = owner(info)
	return uid, nil
}

// explained says what the error of opening a link means.
func explained(path string, err error) error {
	if info, statErr := os.Lstat(path); statErr == nil && info.Mode().Type() == fs.ModeSymlink {
		return fmt.Errorf("%s is a symbolic link: %w", path, ErrForeign)
	}
	return err
}
