package volume

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/internal/progress"
)

// allocate gives an empty or foreign file the wanted length, all zeros, and reserves the
// room on the disk, so that a full disk is noticed before anything is downloaded.
func allocate(f *os.File, size int64) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP):
			return f.Truncate(size)
		case errors.Is(err, unix.ENOSPC):
			// What was reserved before it failed must not look like a beginning.
			_ = f.Truncate(0)
			return noSpaceError(f.Name(), err)
		}
		return err
	}
}

// startWriting asks the kernel to begin with writing a part of the file to the disk. Not
// every filesystem can, and what fails will fail again when the file is synced.
func startWriting(f *os.File, offset, size int64) {
	_ = unix.SyncFileRange(int(f.Fd()), offset, size, unix.SYNC_FILE_RANGE_WRITE)
}

// noSpaceError adds how much room there is.
func noSpaceError(name string, err error) error {
	var fs unix.Statfs_t
	if unix.Statfs(name, &fs) != nil {
		return err
	}
	return fmt.Errorf("%w: %s are free there", err, progress.Bytes(int64(fs.Bavail)*fs.Bsize))
}

// dataEnd returns where the first part of a file ends that was written, from an offset on;
// after it, nothing was. It may be too large: not every filesystem knows.
func dataEnd(f *os.File, offset int64) int64 {
	end, err := unix.Seek(int(f.Fd()), offset, unix.SEEK_HOLE)
	if err != nil {
		return math.MaxInt64
	}
	return end
}

// zeroRange makes zeros of a part of a file without writing them, where the filesystem can.
func zeroRange(f *os.File, offset, size int64) error {
	return os.NewSyscallError("fallocate", unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_ZERO_RANGE, offset, size))
}
