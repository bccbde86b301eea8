package testbed

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/upstream"
)

// A signed bundle is the same bytes wherever it is built: the real programs build it, on the
// machine as it is, in surroundings that have nothing in common with it, and as arm64.
func TestReproducible(t *testing.T) {
	emulator := debian.Program{Name: "qemu-aarch64-static", Package: "qemu-user-static"}
	need.Programs(t, emulator)
	bed, err := New(t.Context(), Options{Dir: t.TempDir(), Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bed.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := bed.MakeBundle(t.Context(), upstream.LockOptions{}); err != nil {
		t.Fatal(err)
	}
	want := sum(t, bed.Bundle())
	arm64 := filepath.Join(bed.Programs, "linux-arm64", "boxlift")
	for name, builder := range map[string]struct {
		command []string // boxlift, and what starts it
		env     []string
		folder  string
		more    []string
	}{
		"other surroundings": {
			command: []string{"sh", "-c", `umask 077; exec "$@"`, "sh", bed.Boxlift()},
			env:     []string{"LC_ALL=tr_TR.UTF-8", "LANG=tr_TR.UTF-8", "TZ=Pacific/Kiritimati", "GOMAXPROCS=1", "GOGC=10"},
			folder:  elsewhere(t), more: []string{"--parallelism", "1"},
		},
		"arm64": {command: []string{emulator.Find(), arm64}, folder: t.TempDir(), more: []string{"--parallelism", "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, file := range []string{"versions.lock", "boxlift.key"} {
				content, err := os.ReadFile(filepath.Join(bed.Dir, file))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(builder.folder, file), content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			plain := bed.BuildCommand(t.Context())
			args := slices.Concat(builder.command, plain.Args[1:], builder.more, []string{"--programs", bed.Programs})
			c := exec.CommandContext(t.Context(), args[0], args[1:]...)
			endInOrder(c)
			c.Dir, c.Env = builder.folder, slices.Concat(plain.Env, builder.env)
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", c.Args, err, out)
			}
			if got := sum(t, filepath.Join(builder.folder, "bundle.tar")); got != want {
				t.Errorf("the bundle is sha256:%s, want sha256:%s", got, want)
			}
		})
	}
}

// elsewhere is a folder on another filesystem, where there is one.
func elsewhere(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "boxlift-test-") //nolint:usetesting // not where the others are
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // nothing in it is wanted
	return dir
}

func sum(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}
