package backup_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"filippo.io/age"
	"github.com/gofrs/flock"
	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/internal/backup"
)

// names are what lies in a folder.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := []string{}
	for _, e := range entries {
		found = append(found, e.Name())
	}
	return found
}

// What a run that was killed has left goes, and nothing else does.
func TestClearFolder(t *testing.T) {
	parent, temporary := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temporary)
	for _, name := range []string{".in-the-clear-killed/snapshot", ".in-the-clear-early/lock", ".in-the-clear-used/lock", "other/snapshot", ".in-the-clear-file"} {
		write(t, filepath.Join(parent, name), []byte("secret"))
	}
	if err := os.Symlink(filepath.Join(parent, "other"), filepath.Join(parent, ".in-the-clear-link")); err != nil {
		t.Fatal(err)
	}
	used := flock.New(filepath.Join(parent, ".in-the-clear-used", "lock"))
	if locked, err := used.TryLock(); !locked || err != nil {
		t.Fatal(locked, err)
	}
	defer used.Close()

	first, removeFirst, err := backup.ClearFolder(parent)
	if err != nil {
		t.Fatal(err)
	}
	second, removeSecond, err := backup.ClearFolder(parent)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{first, second} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 || filepath.Dir(dir) != parent {
			t.Errorf("%s: %v, %v", dir, info, err)
		}
	}
	if err := errors.Join(removeFirst(), removeSecond()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{".in-the-clear-file", ".in-the-clear-link", ".in-the-clear-used", "other"}, names(t, parent)); diff != "" {
		t.Errorf("what is there afterwards: %s", diff)
	}
	if diff := cmp.Diff([]string{"snapshot"}, names(t, filepath.Join(parent, "other"))); diff != "" {
		t.Errorf("in another folder: %s", diff)
	}

	// Where there can be none.
	dir, remove, err := backup.ClearFolder(filepath.Join(parent, "none"))
	if err != nil || filepath.Dir(dir) != temporary {
		t.Fatalf("%s, %v", dir, err)
	}
	if err := remove(); err != nil || len(names(t, temporary)) != 0 {
		t.Errorf("%v, left: %v", err, names(t, temporary))
	}
}

// What another user has prepared in a folder that is everybody's is neither followed, nor waited
// for, nor removed.
func TestClearFolderOfOthers(t *testing.T) {
	parent, elsewhere := t.TempDir(), t.TempDir()
	prepare := func(name string, lock func(path string) error) {
		dir := filepath.Join(parent, name)
		if err := errors.Join(os.Mkdir(dir, 0o777), lock(filepath.Join(dir, "lock"))); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := errors.Join(os.Lchown(filepath.Join(dir, "lock"), 65534, 65534), os.Chown(dir, 65534, 65534)); err != nil {
				t.Fatal(err)
			}
		}
	}
	prepare(".in-the-clear-link", func(path string) error { return os.Symlink(filepath.Join(elsewhere, "nologin"), path) })
	prepare(".in-the-clear-pipe", func(path string) error { return syscall.Mkfifo(path, 0o666) })
	want := []string{".in-the-clear-link", ".in-the-clear-pipe"}
	if os.Geteuid() == 0 {
		prepare(".in-the-clear-file", func(path string) error { return os.WriteFile(path, nil, 0o666) })
		want = append([]string{".in-the-clear-file"}, want...)
	}
	_, remove, err := backup.ClearFolder(parent)
	if err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, names(t, parent)); diff != "" {
		t.Errorf("what is there afterwards: %s", diff)
	}
	if diff := cmp.Diff([]string{}, names(t, elsewhere)); diff != "" {
		t.Errorf("where the link leads: %s", diff)
	}
}

// An encrypted backup is opened beside itself, and not where everybody's files lie.
func TestVerifyBesideTheBackup(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "b.tar.age")
	if _, err := backup.Write(t.Context(), path, manifest(backup.Etcd), parts(t, backup.Etcd), identity.Recipient()); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, ".in-the-clear-killed", "etcd-snapshot"), []byte("secret"))
	r, err := backup.Open(path, identity)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"b.tar.age"}, names(t, dir)); diff != "" {
		t.Errorf("beside the backup: %s", diff)
	}
}
