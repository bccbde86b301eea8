// Package ownfile opens files by names that another user of the machine may have taken before: in
// folders that several may write to, and by names that can be foretold.
package ownfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// ErrForeign is wrapped by the errors of [Open] about what is there and must not be used: a link, a
// pipe or device, a file of another user, or one that has other names too.
var ErrForeign = errors.New("it is not a file of this user's alone")

// Open opens a file like [os.OpenFile], and refuses what is no regular file of this user with one
// name. It follows no link in the last part of the path, and waits for nobody at a pipe. With
// os.O_CREATE, no other user can have it write somewhere else, or have it make a file there.
// os.O_TRUNC is refused, as it would be done before anything is known: truncate the file afterwards.
func Open(path string, flag int, mode fs.FileMode) (*os.File, error) {
	if flag&os.O_TRUNC != 0 {
		return nil, fmt.Errorf("open %s: os.O_TRUNC comes too early", path)
	}
	f, err := os.OpenFile(path, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, mode)
	switch {
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.EMLINK), errors.Is(err, syscall.ENXIO):
		return nil, fmt.Errorf("open %s: %w", path, ErrForeign) // a link; a pipe or socket that nobody reads
	case err != nil:
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || !Owned(info) || links(info) != 1) {
		err = fmt.Errorf("open %s: %w", path, ErrForeign)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Owned reports whether a file or folder is this user's. The info must be of [os.Lstat], or of an
// open file, to say anything about what is used afterwards.
func Owned(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int64(stat.Uid) == int64(os.Geteuid())
}

func links(info fs.FileInfo) uint64 {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return uint64(stat.Nlink) //nolint:unconvert // its type differs between systems
}
