package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/pack"
	"github.com/liteboxd/boxlift/node/wire"
)

// DiskOptions say where [MeasureDisk] looks. The zero value is k3s' and boxlift's own places.
type DiskOptions struct {
	// ImagesDir, FilesDir and ContentDir are the constants of similar names when they are "".
	ImagesDir  string
	FilesDir   string
	ContentDir string
	// Ctr is the command to ask containerd with; nil means DefaultK3s and "ctr".
	Ctr []string
	// Patience is how long containerd may take to answer; 0 means 900 milliseconds.
	Patience time.Duration
}

const (
	diskPatience = 900 * time.Millisecond
	// maxDiskFiles bounds the files that are looked at.
	maxDiskFiles = 200_000
)

// MeasureDisk finds out how much room packs and containerd take. It is cheap: packs and
// content are few files, each of which is looked at; snapshots are as many as all images
// have files, which are not. Of those containerd has the sizes in its own records, but for
// what running containers have written, which it adds up itself; when that takes longer
// than it may, the size of the snapshots stays unknown.
func MeasureDisk(ctx context.Context, o DiskOptions) DiskUse {
	o.ImagesDir, o.FilesDir = cmp.Or(o.ImagesDir, wire.ImagesDir), cmp.Or(o.FilesDir, wire.FilesDir)
	o.ContentDir, o.Patience = cmp.Or(o.ContentDir, DefaultContentDir), cmp.Or(o.Patience, diskPatience)
	if len(o.Ctr) == 0 {
		o.Ctr = []string{DefaultK3s, "ctr"}
	}
	u := DiskUse{Version: DiskVersion}
	problem := func(err error) {
		if err != nil {
			u.Problems = append(u.Problems, cleanReason(err.Error()))
		}
	}
	var err error
	u.Packs, err = hostfile.RoomBelow(o.ImagesDir, maxDiskFiles, pack.IsStored)
	problem(err)
	u.Files, err = hostfile.RoomBelow(path.Join(o.FilesDir, storedFiles), maxDiskFiles, func(string) bool { return true })
	problem(err)
	u.Content, err = hostfile.RoomBelow(o.ContentDir, maxDiskFiles, func(string) bool { return true })
	problem(err)
	problem(u.filesystem(o.ContentDir))
	if _, err := os.Stat(o.ContentDir); err != nil {
		return u // there is no containerd to ask
	}
	snapshots, err := o.snapshots(ctx)
	problem(err)
	if err == nil {
		u.Snapshots = &snapshots
	}
	return u
}

// filesystem fills in what is free where dir is, or will be.
func (u *DiskUse) filesystem(dir string) error {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if errors.Is(err, fs.ErrNotExist) && dir != "/" {
			dir = path.Dir(dir)
			continue
		}
		if err != nil {
			return fmt.Errorf("measure the filesystem of %s: %w", dir, err)
		}
		size := uint64(st.Frsize)
		u.Total, u.Free = int64(min(st.Blocks*size, wire.MaxNumber)), int64(min(st.Bavail*size, wire.MaxNumber))
		return nil
	}
}

// snapshots asks containerd for the room of its snapshots: those of overlayfs, which k3s
// uses unless it is told otherwise.
func (o DiskOptions) snapshots(ctx context.Context) (int64, error) {
	c := &imageCheck{Options: Options{Ctr: o.Ctr}}
	out, err := c.ctr(ctx, o.Patience, "snapshots", "usage", "-b")
	if err != nil {
		return 0, fmt.Errorf("ask containerd for the size of its snapshots: %w", err)
	}
	sum, err := parseSnapshotUsage(out)
	if err != nil {
		return 0, fmt.Errorf("ask containerd for the size of its snapshots: %w", err)
	}
	return sum, nil
}

// parseSnapshotUsage adds up what "ctr snapshots usage -b" prints: a heading, and for each
// snapshot its name, its bytes and its inodes.
func parseSnapshotUsage(out []byte) (int64, error) {
	var sum int64
	first := true
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if first {
			if len(fields) < 2 || fields[0] != "KEY" || fields[1] != "SIZE" {
				return 0, fmt.Errorf("expected the heading KEY SIZE INODES, got %.100q", line)
			}
			first = false
			continue
		}
		if len(fields) == 0 {
			continue
		}
		// The name may be anything that its maker liked.
		if len(fields) < 3 {
			return 0, fmt.Errorf("expected a snapshot, its bytes and its inodes, got %.200q", line)
		}
		bytes, err := strconv.ParseInt(fields[len(fields)-2], 10, 64)
		if err != nil || bytes < 0 || bytes > wire.MaxNumber-sum {
			return 0, fmt.Errorf("expected a snapshot, its bytes and its inodes, got %.200q", line)
		}
		sum += bytes
	}
	if first {
		return 0, errors.New("ctr printed no snapshots, not even a heading")
	}
	return sum, nil
}
