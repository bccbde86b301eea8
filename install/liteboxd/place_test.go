package liteboxd

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// Who owns LiteBoxd's database is read from what stat prints, and from nothing else.
func TestLocate(t *testing.T) {
	for _, test := range []struct{ name, printed, want string }{
		{"a file and its folder", "1000 1000 644\n0 0 777\n", ""},
		{"one line", "1000 1000 644\n", "stat printed"},
		{"three lines", "0 0 644\n0 0 777\n0 0 777\n", "stat printed"},
		{"no numbers", "root root rw\n0 0 777\n", "stat printed"},
		{"huge", strings.Repeat("0 0 644\n", 1<<17), "stat printed"},
		{"nothing", "", "stat printed"},
	} {
		f := hosttest.New(t, "a")
		f.Program("stat", hosttest.Prints(test.printed))
		l, err := Locate(t.Context(), &site.Host{Conn: f}, "a", "/data/liteboxd.db")
		if test.want == "" {
			want := &backup.Location{Node: "a", Path: "/data/liteboxd.db", File: backup.Ownership{UID: 1000, GID: 1000, Mode: 0o644}, Folder: backup.Ownership{Mode: 0o777}}
			if diff := cmp.Diff(want, l); diff != "" || err != nil {
				t.Errorf("%s: %v, %s", test.name, err, diff)
			}
		} else if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 1000 {
			t.Errorf("%s: %v, %v", test.name, l, err)
		}
	}
}

// A volume's folder has its own owner and mode, and nobody else gets to the one above it, unless that is
// there already. What belonged to another database is gone.
func TestPlaceFolder(t *testing.T) {
	for _, isThere := range []bool{false, true} {
		storage := filepath.Join(t.TempDir(), "rancher", "storage")
		volume := filepath.Join(storage, "pvc-1_box_data")
		want := fs.FileMode(0o700)
		if isThere {
			want = 0o755
			if err := os.MkdirAll(volume, want); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(volume, "liteboxd.db-wal"), []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		script := exec.CommandContext(t.Context(), "/bin/sh", "-c", "umask 022\n"+placeFolderScript, "sh", volume,
			strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid()), "777", filepath.Join(volume, "liteboxd.db"))
		if out, err := script.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for folder, mode := range map[string]fs.FileMode{filepath.Dir(storage): 0o755, storage: want, volume: 0o777} {
			if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != mode {
				t.Errorf("there: %v: %s: got %v, %v, want %v", isThere, folder, info.Mode(), err, mode)
			}
		}
		if left, err := os.ReadDir(volume); err != nil || len(left) > 0 {
			t.Errorf("there: %v: left are %v, %v", isThere, left, err)
		}
	}
}

func TestParseOwnership(t *testing.T) {
	got, err := parseOwnership("1000 100 4755")
	if diff := cmp.Diff(backup.Ownership{UID: 1000, GID: 100, Mode: 0o755}, got); diff != "" || err != nil {
		t.Errorf("%s, %v", diff, err)
	}
	for _, line := range []string{"", "1 2", "1 2 3 4", "a 2 755", "-1 2 755", "1 2 789", "4294967296 2 755"} {
		if got, err := parseOwnership(line); err == nil {
			t.Errorf("%q: %+v", line, got)
		}
	}
}

// A backup of a cluster without LiteBoxd has no record of it.
func TestBackupRecord(t *testing.T) {
	r := sitetest.OpenBackup(t, backup.Manifest{Cluster: "example", K3s: "v1"}, sitetest.FullToken)
	if b, err := RecordIn(r); b != nil || err != nil {
		t.Errorf("%v, %v", b, err)
	}
}
