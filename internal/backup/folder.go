package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/liteboxd/boxlift/internal/ownfile"
)

const (
	// clearPrefix begins the names of folders that something lies in that is secret. One is
	// in use as long as somebody has the lock on its file clearLock.
	clearPrefix = ".in-the-clear-"
	clearLock   = "lock"
)

// ClearFolder makes a folder for what is secret and does not stay, which is its owner's alone,
// in the first of some folders that can have it; the last one to try is that for temporary files.
// What a run that was killed has left there of such folders is removed. Remove ends its use.
func ClearFolder(parents ...string) (dir string, remove func() error, err error) {
	for _, parent := range append(parents, os.TempDir()) {
		removeLeftFolders(parent)
		if dir, remove, err = makeClearFolder(parent); err == nil {
			return dir, remove, nil
		}
	}
	return "", nil, err
}

// makeClearFolder makes the folder under another name, so that it is locked when others see it.
func makeClearFolder(parent string) (_ string, remove func() error, err error) {
	made, err := os.MkdirTemp(parent, ".new"+clearPrefix)
	if err != nil {
		return "", nil, err
	}
	dir := filepath.Join(parent, strings.TrimPrefix(filepath.Base(made), ".new"))
	lock, err := os.OpenFile(filepath.Join(made, clearLock), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(made))
	}
	remove = func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(made), lock.Close())
		}
	}()
	info, err := os.Stat(made)
	if err != nil {
		return "", nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", nil, fmt.Errorf("%s: the filesystem has no folders for their owner alone", parent)
	}
	if err := tryLock(lock); err != nil {
		return "", nil, err
	}
	return dir, remove, os.Rename(made, dir)
}

// tryLock takes the lock on an open file, or fails with syscall.EWOULDBLOCK when somebody has it.
func tryLock(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// removeLeftFolders removes what nobody uses. Folders of other users stay, and nothing in them is
// looked at: anybody may make one by that name in a folder that is everybody's, with links and
// pipes in it.
func removeLeftFolders(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), clearPrefix) {
			continue
		}
		dir := filepath.Join(parent, e.Name())
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || !ownfile.Owned(info) {
			continue
		}
		lock, err := ownfile.Open(filepath.Join(dir, clearLock), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			continue
		}
		if tryLock(lock) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = lock.Close()
	}
}

// cannotHold tells that a folder cannot have a file, where another one may.
func cannotHold(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOSPC) ||
		errors.Is(err, syscall.EDQUOT)
}
