package volume

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/internal/progress"
)

// CheckRoom makes sure that all of some drafts fit onto their disks together, whose filesystems may
// not be able to reserve room ([Draft.Allocate]). What is there of them already is counted. An error
// wraps [unix.ENOSPC].
func CheckRoom(drafts ...*Draft) error {
	type disk struct {
		draft *Draft // the last one on it
		name  string // of a file there
		need  int64  // bytes
	}
	disks := make(map[uint64]disk)
	for _, d := range drafts {
		for _, p := range d.parts {
			var stat unix.Stat_t
			if err := unix.Fstat(int(p.file.Fd()), &stat); err != nil {
				return fmt.Errorf("look for room for %s: %w", d.Name(), err)
			}
			on := disks[stat.Dev]
			on.draft, on.name = d, p.file.Name()
			on.need += max(0, p.size-stat.Blocks*512) // stat(2): blocks of 512 bytes, whatever the disk has
			disks[stat.Dev] = on
		}
	}
	for _, on := range disks {
		var fs unix.Statfs_t
		if unix.Statfs(on.name, &fs) != nil || fs.Blocks == 0 {
			continue // it does not say
		}
		if on.need > int64(fs.Bavail)*fs.Bsize {
			err := noSpaceError(on.name, unix.ENOSPC)
			return fmt.Errorf("reserve %s for %s: %w", progress.Bytes(on.need), on.draft.Name(), err)
		}
	}
	return nil
}
