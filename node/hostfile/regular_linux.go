package hostfile

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Control calls f with the file's descriptor, which stays usable with deadlines.
func Control(file *os.File, f func(fd int) error) error {
	c, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := c.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// SyncDir puts the names in a directory on the disk.
func SyncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Lock locks a directory as "boxlift-node receive" does, or says that it is not free. In
// either case unlock must be called.
func Lock(dir string) (free bool, unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return false, nil, err
	}
	err = Control(d, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, func() { CloseRead(d) }, nil
	}
	if err != nil {
		CloseRead(d)
		return false, nil, err
	}
	return true, func() { CloseRead(d) }, nil
}

// Replace writes a file that only its owner can read, whole or not at all.
func Replace(name string, content []byte) (err error) {
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, PutPrefix+"*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	return f.Close()
}
