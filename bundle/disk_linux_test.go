package bundle

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/test/need"
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

// TestFullDisk is found out before anything is downloaded.
func TestFullDisk(t *testing.T) {
	dir := mount(t, "tmpfs", "tmpfs", "size=1m")
	s := upstreamServer(t)
	path := filepath.Join(dir, "b.tar")
	_, err := build(t.Context(), smallLock(t), newClient(s), path, nil)
	wantError(t, err, "reserve ", " for "+path+".", "no space left on device", " are free there")
	noFile(t, path)
	got := downloads(s)
	delete(got, planned(t))
	if len(got) > 0 {
		t.Errorf("fetched in vain: %v", got)
	}

	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	mustBuild(t, smallLock(t), newClient(s), path, nil)
	sameFiles(t, reference(t), path)
}

// TestFullDiskWithoutReserving runs on a file system that cannot reserve room, so that the
// disk is full in the middle.
func TestFullDiskWithoutReserving(t *testing.T) {
	info, err := os.Stat(reference(t))
	if err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(t.TempDir(), "disk")
	mustWrite(t, disk, make([]byte, 4<<20))
	mustRun(t, program(t, "mkfs.ext2", "e2fsprogs"), "-q", "-F", disk)
	dir := t.TempDir()
	if out, err := run(t, "mount", "-o", "loop", disk, dir); err != nil {
		need.LeaveOut(t, fmt.Sprintf("mount %s: %v %s", disk, err, out))
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	// As much room as is not enough.
	var free unix.Statfs_t
	if err := unix.Statfs(dir, &free); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(dir, "filler")
	mustWrite(t, filler, make([]byte, int64(free.Bfree)*free.Bsize-info.Size()/2))

	s := upstreamServer(t)
	path := filepath.Join(dir, "b.tar")
	_, err = build(t.Context(), smallLock(t), newClient(s), path, nil)
	wantError(t, err, "write "+path+".", "no space left on device")
	if n := strings.Count(err.Error(), "no space left"); n != 1 {
		t.Errorf("it says so %d times:\n%v", n, err)
	}
	noFile(t, path)

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.ResetRequests()
	result := mustBuild(t, smallLock(t), newClient(s), path, nil)
	if result.Reused == 0 {
		t.Error("nothing was kept")
	}
	sameFiles(t, reference(t), path)
}
