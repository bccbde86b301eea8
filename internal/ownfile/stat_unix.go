//go:build unix

package ownfile

import (
	"io/fs"
	"syscall"
)

// openFlags follow no link, and do not wait for the other end of a pipe.
const openFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

func links(info fs.FileInfo) uint64 {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 1
	}
	return uint64(s.Nlink) //nolint:unconvert,nolintlint // other systems have other types
}

func owner(info fs.FileInfo) (uid int, known bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(s.Uid), true
}
