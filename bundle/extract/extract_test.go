package extract_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/extract"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

const extractedRef = "registry.lan:5000/group/a:1"

// toExtract is a bundle with one of everything.
func toExtract(t *testing.T) *bundle.Reader {
	t.Helper()
	return bundletest.OpenNew(t, smallbundle.Bundle{Components: []smallbundle.Component{{
		Name: "k3s", Version: "v1.0.0",
		Files: []smallbundle.File{
			{Name: "k3s", Platform: "linux/amd64", Content: "\x7fELF amd64"},
			{Name: "k3s", Platform: "linux/arm64", Content: "\x7fELF arm64"},
			{Name: "install.sh", Content: "#!/bin/sh\n"}, {Name: "notes", Content: strings.Repeat("notes ", 100_000)},
			{Name: "nothing", Content: "x"},
		},
		Images: []smallbundle.Image{
			{Ref: extractedRef, Platforms: []smallbundle.Platform{bundletest.On(t, "linux/amd64", "base", "a"),
				bundletest.On(t, "linux/arm64", "base", "b")}},
			{Ref: "registry.lan:5000/group/b:1",
				Platforms: []smallbundle.Platform{bundletest.On(t, "linux/amd64", "base", "c")}},
		},
	}}})
}

func contentsOf(t *testing.T, r *bundle.Reader) *bundle.Contents {
	t.Helper()
	c, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func skopeo(t *testing.T, args ...string) []byte {
	t.Helper()
	p := debian.Program{Name: "skopeo", Package: "skopeo"}
	need.Programs(t, p)
	c := exec.CommandContext(t.Context(), p.Find(), args...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("skopeo %q: %v\n%s", args, err, &stderr)
	}
	return out
}

// TestExtractedImages has skopeo read and copy what was taken out, in both forms.
func TestExtractedImages(t *testing.T) {
	r := toExtract(t)
	image := contentsOf(t, r).Images[0]
	only, ok := image.On("linux/arm64")
	if !ok {
		t.Fatal("it is not there for arm64")
	}
	archive := func(ctx context.Context, path string, images []bundle.Image) error {
		return extract.Archive(ctx, r, path, images)
	}
	layout := func(ctx context.Context, path string, images []bundle.Image) error {
		return extract.Layout(ctx, r, path, images)
	}
	for name, test := range map[string]struct {
		image bundle.Image
		form  string
		write func(context.Context, string, []bundle.Image) error
	}{
		"archive":               {image, "oci-archive:", archive},
		"folder":                {image, "oci:", layout},
		"archive, one platform": {only, "oci-archive:", archive},
		"folder, one platform":  {only, "oci:", layout},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "out")
			if err := test.write(t.Context(), path, []bundle.Image{test.image}); err != nil {
				t.Fatal(err)
			}
			from := test.form + path + ":" + extractedRef
			if got := digest.FromBytes(skopeo(t, "inspect", "--raw", from)); got != image.Digest {
				t.Errorf("its digest is %s, expected %s", got, image.Digest)
			}
			for _, p := range test.image.Platforms {
				to := t.TempDir()
				skopeo(t, "copy", "--quiet", "--insecure-policy", "--preserve-digests", "--override-os",
					p.Platform.OS(), "--override-arch", p.Platform.Architecture(), from, "dir:"+to)
				manifest, err := os.ReadFile(filepath.Join(to, "manifest.json"))
				if err != nil {
					t.Fatal(err)
				}
				if got := digest.FromBytes(manifest); got != p.Manifest.Digest {
					t.Errorf("%s was copied as %s, expected %s", p.Platform, got, p.Manifest.Digest)
				}
			}
			if err := test.write(t.Context(), path, []bundle.Image{test.image}); !errors.Is(err, extract.ErrThere) {
				t.Errorf("once more: %v", err)
			}
			onlyName(t, path)
		})
	}
}

// onlyName expects that a folder has nothing else in it.
func onlyName(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(path) {
			t.Errorf("%s is left over", e.Name())
		}
	}
}

func TestExtractFile(t *testing.T) {
	r := toExtract(t)
	for name, mode := range map[string]fs.FileMode{"install.sh": 0o755, "notes": 0o644, "nothing": 0o644,
		"k3s": 0o755} {
		f, ok := contentsOf(t, r).File("k3s", name, "linux/arm64")
		if !ok {
			t.Fatal(name)
		}
		path := filepath.Join(t.TempDir(), name)
		if err := extract.File(t.Context(), r, path, f); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if digest.FromBytes(content) != f.Digest {
			t.Errorf("%s holds other bytes", name)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("%s has the mode %v", name, info.Mode())
		}
		if err := extract.File(t.Context(), r, path, f); !errors.Is(err, extract.ErrThere) {
			t.Errorf("once more: %v", err)
		}
		onlyName(t, path)
	}
}

func TestExtractComponent(t *testing.T) {
	r := toExtract(t)
	for platform, want := range map[lock.Platform][]string{
		"":            {"images.tar", "install.sh", "linux-amd64/k3s", "linux-arm64/k3s", "notes", "nothing"},
		"linux/arm64": {"images.tar", "install.sh", "linux-arm64/k3s", "notes", "nothing"},
	} {
		path := filepath.Join(t.TempDir(), "k3s")
		if err := extract.Component(t.Context(), r, path, "k3s", platform); err != nil {
			t.Fatal(err)
		}
		var got []string
		err := fs.WalkDir(os.DirFS(path), ".", func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				got = append(got, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", platform, diff)
		}
		// The image that is only there for amd64 is left out for others.
		index := skopeo(t, "inspect", "--raw", "oci-archive:"+filepath.Join(path, extract.ImagesFile)+":"+extractedRef)
		if digest.FromBytes(index) != contentsOf(t, r).Images[0].Digest {
			t.Error("the image is another one")
		}
		if err := extract.Component(t.Context(), r, path, "k3s", platform); !errors.Is(err, extract.ErrThere) {
			t.Errorf("once more: %v", err)
		}
		onlyName(t, path)
	}
	t.Chdir(t.TempDir())
	if err := extract.Component(t.Context(), r, "here", "k3s", ""); err != nil {
		t.Errorf("to a relative path: %v", err)
	}
	if err := extract.Layout(t.Context(), r, "./layout", contentsOf(t, r).Images); err != nil {
		t.Errorf("to a relative path: %v", err)
	}
	path := filepath.Join(t.TempDir(), "none")
	if err := extract.Component(t.Context(), r, path, "none", ""); err == nil {
		t.Error("a component that is not there was written")
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it left something: %v", err)
	}
}

// TestExtractRefusesDamage changes a byte of everything that is taken out; nothing may be
// left.
func TestExtractRefusesDamage(t *testing.T) {
	r := toExtract(t)
	contents := contentsOf(t, r)
	file, err := os.ReadFile(r.Path())
	if err != nil {
		t.Fatal(err)
	}
	d := contents.Images[0].Platforms[1].Layers[1]
	blob, err := r.Content(d.Digest, d.Size)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(blob)
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range [][]byte{[]byte("notes notes"), layer} {
		file[bytes.Index(file, content)+len(content)/2] ^= 1
	}
	path := filepath.Join(t.TempDir(), "damaged.tar")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	damaged, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer damaged.Close()
	notes, _ := contents.File("k3s", "notes", "")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, extract := range map[string]func(path string) error{
		"file": func(path string) error { return extract.File(t.Context(), damaged, path, notes) },
		"archive": func(path string) error {
			return extract.Archive(t.Context(), damaged, path,
				contents.Images[:1])
		},
		"folder":    func(path string) error { return extract.Layout(t.Context(), damaged, path, contents.Images[:1]) },
		"component": func(path string) error { return extract.Component(t.Context(), damaged, path, "k3s", "") },
		"canceled":  func(path string) error { return extract.Archive(canceled, r, path, contents.Images) },
	} {
		out := filepath.Join(t.TempDir(), "out")
		if err := extract(out); !errors.Is(err, bundle.ErrInvalid) && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		if entries, err := os.ReadDir(filepath.Dir(out)); err != nil || len(entries) > 0 {
			t.Errorf("%s left %v (%v)", name, entries, err)
		}
	}
}
