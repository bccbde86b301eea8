package receive

import (
	"errors"
	"hash"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/node/hostfile"
)

// flushStep is how many bytes are written between two requests to the kernel to start
// writing them to the disk. Without these, one long fsync at the end would stall.
const flushStep = 8 << 20

// flush starts the writing of what has been appended, without waiting for it.
func (t *target) flush() error {
	position := t.position()
	if position-t.flushed < flushStep {
		return nil
	}
	err := hostfile.Control(t.file, func(fd int) error {
		return unix.SyncFileRange(fd, t.flushed, position-t.flushed, unix.SYNC_FILE_RANGE_WRITE)
	})
	t.flushed = position
	// Filesystems that cannot do it write later; only what says that the disk is bad or
	// full counts.
	if errors.Is(err, unix.EIO) || errors.Is(err, unix.ENOSPC) {
		return err
	}
	return nil
}

func sum(h hash.Hash) digest.Digest { return digest.NewDigest(digest.SHA256, h) }
