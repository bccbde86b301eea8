package build_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/upstream"
)

// mount mounts something until the test ends. Where that is not allowed the test is
// skipped, or fails where all tests have to run.
func mount(t *testing.T, source, fsType, data string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount(source, dir, fsType, 0, data); err != nil {
		need.LeaveOut(t, fmt.Sprintf("mount %s: %v", fsType, err))
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// mountDisk mounts a file as a disk of its own. The command makes its filesystem.
func mountDisk(t *testing.T, size int64, command ...string) string {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk")
	bundletest.MustWrite(t, disk, nil)
	if err := os.Truncate(disk, size); err != nil {
		t.Fatal(err)
	}
	mustRun(t, append(command, disk)...)
	dir := t.TempDir()
	if out, err := run(t, "mount", "-o", "loop", disk, dir); err != nil {
		need.LeaveOut(t, fmt.Sprintf("mount %s: %v %s", disk, err, out))
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// TestReuseSharesBlocks is on a filesystem where two files can have the same blocks.
func TestReuseSharesBlocks(t *testing.T) {
	dir := mountDisk(t, 128<<20, program(t, "mkfs.btrfs", "btrfs-progs"), "--quiet", "--mixed")
	s := bundletest.UpstreamServer(t)
	older := filepath.Join(dir, "older.tar")
	content := bundletest.MustRead(t, bundletest.Reference(t))
	bundletest.MustWrite(t, older, content)
	path := filepath.Join(dir, "b.tar")
	result := bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil,
		bundletest.Reusing(t, older))
	bundletest.SameFiles(t, bundletest.Reference(t), path)
	if result.Shared < result.Copied/2 || result.Shared > result.Copied {
		t.Errorf("%d bytes are shared, of %d that were copied", result.Shared, result.Copied)
	}
	// What becomes of the older one is no matter.
	bundletest.MustWrite(t, older, make([]byte, len(content)))
	bundletest.SameFiles(t, bundletest.Reference(t), path)

	// What is shared is proven like all other bytes.
	layer := bundletest.LayerOf(t, bundletest.OperatorRef, "linux/arm64")
	e, _ := bundletest.MustOpen(t, bundletest.Reference(t)).Tar().Blob(layer)
	content[e.Offset+e.Size/2] ^= 1
	bundletest.MustWrite(t, older, content)
	s.ResetRequests()
	path = filepath.Join(dir, "c.tar")
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil, bundletest.Reusing(t, older))
	bundletest.SameFiles(t, bundletest.Reference(t), path)
	if got := bundletest.Downloads(s); len(got) != 1 || got[layer.String()] != 1 {
		t.Errorf("fetched %v", got)
	}

	// In another order, or on another filesystem, it is copied.
	if result := bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), filepath.Join(dir, "d.tar"),
		nil, bundletest.Reusing(t, bundletest.Reference(t))); result.Shared != 0 || result.Copied == 0 {
		t.Errorf("%+v", result)
	}

	// One on another filesystem, of which nothing can be used, does not keep the next one's
	// from being shared.
	content = bundletest.MustRead(t, bundletest.Reference(t))
	bundletest.MustWrite(t, older, content)
	for _, e := range bundletest.MustOpen(t, bundletest.Reference(t)).Tar().Layout().Entries {
		if e.Digest() != "" {
			content[e.Offset+e.Size/2] ^= 1
		}
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere.tar")
	bundletest.MustWrite(t, elsewhere, content)
	result = bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), filepath.Join(dir, "e.tar"), nil,
		bundletest.Reusing(t, elsewhere, older))
	if result.Shared < result.Copied/2 {
		t.Errorf("%d bytes are shared, of %d that were copied", result.Shared, result.Copied)
	}
}

// TestGoesOnAfterDamagedBlocks has a build that ends nine tenths into fetching what it shared
// and found to be damaged. The next one asks for the rest.
func TestGoesOnAfterDamagedBlocks(t *testing.T) {
	dir := mountDisk(t, 128<<20, program(t, "mkfs.btrfs", "btrfs-progs"), "--quiet", "--mixed")
	s := bundletest.UpstreamServer(t)
	layer := bundletest.LayerOf(t, bundletest.OperatorRef, "linux/arm64")
	e, _ := bundletest.MustOpen(t, bundletest.Reference(t)).Tar().Blob(layer)
	content := bundletest.MustRead(t, bundletest.Reference(t))
	content[e.Offset+e.Size-1] ^= 1
	older, path := filepath.Join(dir, "older.tar"), filepath.Join(dir, "b.tar")
	bundletest.MustWrite(t, older, content)
	s.Inject(upstream.Rule{Path: upstream.BlobPath(layer), Times: 1, Fault: upstream.Cut{After: e.Size * 9 / 10}})
	s.Inject(upstream.Rule{Path: upstream.BlobPath(layer), Skip: 1, Fault: upstream.Status{Code: 404}})
	if _, err := bundletest.Build(t.Context(), bundletest.SmallLock(t), bundletest.NewClient(s), path, nil,
		bundletest.Reusing(t, older)); err == nil {
		t.Fatal("it succeeded")
	}
	s.Heal()
	s.ResetRequests()
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil)
	bundletest.SameFiles(t, bundletest.Reference(t), path)
	var sent int64
	for _, r := range s.Requests() {
		if strings.HasSuffix(r.Path, layer.String()) {
			sent += r.Bytes
		}
	}
	if sent == 0 || sent > e.Size*2/10 {
		t.Errorf("%d bytes came of a layer with %d", sent, e.Size)
	}
}

// TestFullDisk is found out before anything is downloaded.
func TestFullDisk(t *testing.T) {
	dir := mount(t, "tmpfs", "tmpfs", "size=1m")
	s := bundletest.UpstreamServer(t)
	path := filepath.Join(dir, "b.tar")
	_, err := bundletest.Build(t.Context(), bundletest.SmallLock(t), bundletest.NewClient(s), path, nil)
	bundletest.WantError(t, err, "reserve ", " for "+path+".", "no space left on device", " are free there")
	bundletest.NoFile(t, path)
	got := bundletest.Downloads(s)
	delete(got, planned(t))
	if len(got) > 0 {
		t.Errorf("fetched in vain: %v", got)
	}

	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil)
	bundletest.SameFiles(t, bundletest.Reference(t), path)
}

// TestFullDiskWithoutReserving runs on a file system that cannot reserve room, so that what else
// is written there while a build runs may fill the disk in the middle.
func TestFullDiskWithoutReserving(t *testing.T) {
	dir := mountDisk(t, 8<<20, program(t, "mkfs.ext2", "e2fsprogs"), "-q", "-F")
	filler := filepath.Join(dir, "filler")
	s := bundletest.UpstreamServer(t)
	path := filepath.Join(dir, "b.tar")
	busy := upstream.BlobPath(bundletest.LayerOf(t, bundletest.OperatorRef, "linux/arm64"))
	s.Inject(upstream.Rule{Path: busy, Times: 1, Fault: upstream.Status{Code: 503}})
	var fill sync.Once
	filling := bundletest.NewClient(s, func(o *source.Options) {
		o.Retrying = func(error, time.Duration) { fill.Do(func() { fillDisk(t, filler) }) }
	})
	_, err := bundletest.Build(t.Context(), bundletest.SmallLock(t), filling, path, nil)
	bundletest.WantError(t, err, "write "+path+".", "no space left on device")
	if n := strings.Count(err.Error(), "no space left"); n != 1 {
		t.Errorf("it says so %d times:\n%v", n, err)
	}
	bundletest.NoFile(t, path)

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.ResetRequests()
	result := bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil)
	if result.Reused == 0 {
		t.Error("nothing was kept")
	}
	bundletest.SameFiles(t, bundletest.Reference(t), path)
}

// TestNoRoomForBoth has room for a bundle, and not for an encrypted one beside it, on file systems
// that can reserve room and that cannot: it is found out before anything is downloaded, and nothing
// stays.
func TestNoRoomForBoth(t *testing.T) {
	info, err := os.Stat(bundletest.Reference(t))
	if err != nil {
		t.Fatal(err)
	}
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	encrypted := func(client *source.Client, path string) error {
		o, err := bundletest.PlanOptions(bundletest.SmallLock(t), client)
		if err != nil {
			return err
		}
		planned, err := plan.New(t.Context(), o)
		if err != nil {
			return err
		}
		output := build.Output{Recipients: []age.Recipient{identity.Recipient()}}
		_, err = build.Write(t.Context(), planned, build.Options{Path: path, Output: output})
		return err
	}
	for name, dir := range map[string]string{
		"ext2":  mountDisk(t, 8<<20, program(t, "mkfs.ext2", "e2fsprogs"), "-q", "-F"),
		"tmpfs": mount(t, "tmpfs", "tmpfs", "size=8m"),
	} {
		t.Run(name, func(t *testing.T) {
			filler := filepath.Join(dir, "filler")
			leaveRoom(t, filler, info.Size()*3/2)
			s := bundletest.UpstreamServer(t)
			path := filepath.Join(dir, "b.tar.age")
			err := encrypted(bundletest.NewClient(s), path)
			bundletest.WantError(t, err, "reserve ", " for "+path+".", "no space left on device", " are free there")
			got := bundletest.Downloads(s)
			delete(got, planned(t))
			if len(got) > 0 {
				t.Errorf("fetched in vain: %v", got)
			}
			left, err := filepath.Glob(path + "*")
			if err != nil || len(left) > 0 {
				t.Errorf("left: %q, %v", left, err)
			}
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
			if err := encrypted(bundletest.NewClient(s), path); err != nil {
				t.Error(err)
			}
		})
	}
}

// fillDisk fills a disk that others write to as well.
func fillDisk(t *testing.T, filler string) {
	f, err := os.Create(filler)
	if err != nil {
		t.Error(err)
		return
	}
	_, err = io.Copy(f, zeros{})
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("fill the disk: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// leaveRoom fills a disk but for so many bytes.
func leaveRoom(t *testing.T, filler string, room int64) {
	t.Helper()
	var free unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(filler), &free); err != nil {
		t.Fatal(err)
	}
	bundletest.MustWrite(t, filler, make([]byte, int64(free.Bavail)*free.Bsize-room))
}
