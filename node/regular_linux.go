package node

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// control calls f with the file's descriptor, which stays usable with deadlines.
func control(file *os.File, f func(fd int) error) error {
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

func syncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// lockDir locks a directory as Receive does, or tells that somebody else has.
func lockDir(dir string) (free bool, unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return false, nil, err
	}
	err = control(d, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, func() { closeReader(d) }, nil
	}
	if err != nil {
		closeReader(d)
		return false, nil, err
	}
	return true, func() { closeReader(d) }, nil
}

// replaceFile writes a file that only its owner can read, whole or not at all.
func replaceFile(name string, content []byte) (err error) {
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, putPrefix+"*")
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
