package testbed

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/upstream"
)

// A signed bundle is the same bytes wherever it is built: the real programs build it, on the
// machine as it is, in surroundings that have nothing in common with it, and as arm64. It has
// images from archives in both forms and from registries, and the list of its software. So is
// a delta.
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
	old := filepath.Join(bed.Dir, "old.tar")
	if err := os.Rename(bed.Bundle(), old); err != nil {
		t.Fatal(err)
	}
	addSavedImage(t, bed)
	forms := map[string][]string{"bundle.tar": {"--sbom"}, "delta.tar": {"--since", old}}
	want := make(map[string]string)
	for output, more := range forms {
		c := bed.BuildCommand(t.Context(), append(more, "-o", output)...)
		c.Env = append(c.Env, "XDG_CACHE_HOME="+t.TempDir())
		mustEnd(t, c)
		want[output] = sum(t, filepath.Join(bed.Dir, output))
	}
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
			if builder.command[0] == emulator.Find() {
				need.Root(t, "having the kernel start an emulator")
				emulateChildren(t, emulator.Find())
			}
			for _, file := range []string{"versions.lock", "boxlift.key", savedImage} {
				content, err := os.ReadFile(filepath.Join(bed.Dir, file))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(builder.folder, file), content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for output, more := range forms {
				plain := bed.BuildCommand(t.Context(), append(more, "-o", output)...)
				args := slices.Concat(builder.command, plain.Args[1:], builder.more, []string{"--programs", bed.Programs})
				c := exec.CommandContext(t.Context(), args[0], args[1:]...)
				endInOrder(c)
				c.Dir, c.Env = builder.folder, slices.Concat(plain.Env, builder.env, []string{"XDG_CACHE_HOME=" + t.TempDir()})
				mustEnd(t, c)
				if got := sum(t, filepath.Join(builder.folder, output)); got != want[output] {
					t.Errorf("%s is sha256:%s, want sha256:%s", output, got, want[output])
				}
			}
		})
	}
}

// emulateChildren has the kernel start the emulator for programs for arm64 until the test ends: boxlift
// starts itself once more to render a chart, and the emulator only emulates what it was started with
// (https://docs.kernel.org/admin-guide/binfmt-misc.html).
func emulateChildren(t *testing.T, emulator string) {
	t.Helper()
	const (
		folder = "/proc/sys/fs/binfmt_misc"
		name   = "boxlift-test-aarch64"
		// The header of an ELF file of 64 bits, little endian, a program, for machine 183.
		magic = `\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00`
		mask  = `\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff`
	)
	if _, err := os.Stat(folder + "/register"); errors.Is(err, fs.ErrNotExist) {
		mustEnd(t, exec.Command("mount", "-t", "binfmt_misc", "binfmt_misc", folder))
		t.Cleanup(func() { mustEnd(t, exec.Command("umount", folder)) })
	}
	if err := os.WriteFile(folder+"/register", []byte(":"+name+":M::"+magic+":"+mask+":"+emulator+":F"), 0); err != nil {
		t.Fatalf("register the emulator: %v", err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(folder+"/"+name, []byte("-1"), 0); err != nil {
			t.Error(err)
		}
	})
}

func mustEnd(t *testing.T, c *exec.Cmd) {
	t.Helper()
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", c.Args, err, out)
	}
}

const savedImage = "saved.tar"

// addSavedImage adds to the lock an image in the form that docker save writes.
func addSavedImage(t *testing.T, bed *Testbed) {
	t.Helper()
	layer := tarOf(t, map[string]string{"usr/share/doc/text": strings.Repeat("what an image has; ", 20_000)})
	config := fmt.Sprintf(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["%s"]}}`, digest.FromString(layer))
	saved := tarOf(t, map[string]string{
		"config.json": config, "layer.tar": layer,
		"manifest.json": `[{"Config":"config.json","RepoTags":["docker.io/own/saved:1"],"Layers":["layer.tar"]}]`,
	})
	content, err := os.ReadFile(bed.LockFile())
	if err != nil {
		t.Fatal(err)
	}
	component := "  addon: {version: v1, platforms: [linux/amd64], images: [{archive: \"file:" + savedImage + "\", platform: linux/amd64}]}\n"
	for name, content := range map[string]string{savedImage: saved, "versions.lock": string(content) + component} {
		if err := os.WriteFile(filepath.Join(bed.Dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mustEnd(t, bed.LockCommand(t.Context()))
}

func tarOf(t *testing.T, files map[string]string) string {
	t.Helper()
	var b strings.Builder
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(files[name])), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
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
