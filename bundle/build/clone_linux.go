package build

import (
	"os"

	"golang.org/x/sys/unix"
)

// cloneBlocks makes the whole blocks within a part of a file share the disk's blocks with
// a part of another (ioctl_ficlonerange(2)). It returns which bytes of the part these are:
// none, when the two do not lie alike within their blocks. It fails where the filesystem
// cannot do that, or the files are on two of them.
func cloneBlocks(to *os.File, toOffset int64, from *os.File, fromOffset, size int64) (start, end int64, err error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(to.Fd()), &fs); err != nil {
		return 0, 0, os.NewSyscallError("fstatfs", err)
	}
	block := fs.Bsize
	if (toOffset-fromOffset)%block != 0 {
		return 0, 0, nil
	}
	start = (block - toOffset%block) % block
	end = size - (toOffset+size)%block
	if start >= end {
		return 0, 0, nil
	}
	err = unix.IoctlFileCloneRange(int(to.Fd()), &unix.FileCloneRange{
		Src_fd: int64(from.Fd()), Src_offset: uint64(fromOffset + start), Src_length: uint64(end - start),
		Dest_offset: uint64(toOffset + start),
	})
	if err != nil {
		return 0, 0, os.NewSyscallError("ioctl", err)
	}
	return start, end, nil
}
