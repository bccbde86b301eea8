package bundle_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/extract"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/provenance"
	"github.com/liteboxd/boxlift/bundle/sbom"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/unsteady"
)

// unsteadyBundle describes a bundle with something for every consumer.
func unsteadyBundle(t *testing.T, script string) smallbundle.Bundle {
	layer := smallbundle.Layer(t, map[string]string{"etc/os-release": "ID=debian\n", "var/lib/dpkg/status": ""})
	return smallbundle.Bundle{Signer: bundletest.NewSigner(t), Components: []smallbundle.Component{
		{
			Name: "k3s", Version: "v1.36.2+k3s1", Files: []smallbundle.File{{Name: "install.sh", Content: script}},
			Images: []smallbundle.Image{{Ref: "docker.io/rancher/mirrored-pause:3.6", Platforms: []smallbundle.Platform{
				{Name: "linux/amd64", Layers: [][]byte{layer}},
				{Name: "linux/arm64", Layers: [][]byte{[]byte("no layer")}},
			}}},
		},
		{Name: "cilium", Version: "1.20.0", Charts: []smallbundle.File{{Name: "cilium", Content: "a chart"}}},
	}}
}

// treeOf lists the files of a folder with modes and digests.
func treeOf(dir string) (string, error) {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		fmt.Fprintf(&b, "%s %v %s\n", name, info.Mode(), digest.FromBytes(content))
		return err
	})
	return b.String(), err
}

// extracted has something extracted, and lists what came out.
func extracted(
	extract func(ctx context.Context, r *bundle.Reader, c *bundle.Contents, path string) error,
) func(context.Context, *bundle.Reader) (string, error) {
	return func(ctx context.Context, r *bundle.Reader) (string, error) {
		dir, err := os.MkdirTemp("", "boxlift-unsteady-*")
		if err != nil {
			return "", err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		c, err := r.Contents()
		if err != nil {
			return "", err
		}
		if err := extract(ctx, r, c, filepath.Join(dir, "out")); err != nil {
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				return "", nil // which is wrong
			}
			return "", err
		}
		return treeOf(dir)
	}
}

func asText(v any, err error) (string, error) {
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(v)
	return string(text), err
}

// TestUnsteadyMedium runs everything here that uses a bundle on a medium that gives other
// bytes once it was verified.
func TestUnsteadyMedium(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, unsteadyBundle(t, "#!/bin/sh\n"))
	for name, use := range map[string]func(context.Context, *bundle.Reader) (string, error){
		"contents": func(_ context.Context, r *bundle.Reader) (string, error) { return asText(r.Contents()) },
		"lock": func(_ context.Context, r *bundle.Reader) (string, error) {
			_, content, err := r.Lock()
			return string(content), err
		},
		"blobs": func(_ context.Context, r *bundle.Reader) (string, error) {
			c, err := r.Contents()
			if err != nil {
				return "", err
			}
			var all []byte
			for _, f := range c.Files {
				content, err := r.Content(f.Digest, f.Size)
				if err != nil {
					return "", err
				}
				// Who knows the size does not ask for the end.
				whole := make([]byte, f.Size)
				if _, err := io.ReadFull(content, whole); err != nil {
					return "", err
				}
				all = append(all, whole...)
			}
			return string(all), nil
		},
		"the rest of blobs": func(_ context.Context, r *bundle.Reader) (string, error) {
			c, err := r.Contents()
			if err != nil {
				return "", err
			}
			var all []byte
			for _, f := range c.Files {
				rest, err := r.ContentFrom(f.Digest, f.Size/2)
				if err != nil {
					return "", err
				}
				content, err := io.ReadAll(rest)
				if err != nil {
					return "", err
				}
				all = append(all, content...)
			}
			return string(all), nil
		},
		"packs": func(_ context.Context, r *bundle.Reader) (string, error) {
			return asText(r.Packs("linux/amd64", bundle.PackOptions{}))
		},
		"extract a component": extracted(func(ctx context.Context, r *bundle.Reader, _ *bundle.Contents,
			path string) error {
			return extract.Component(ctx, r, path, "k3s", "")
		}),
		"extract a file": extracted(func(ctx context.Context, r *bundle.Reader, c *bundle.Contents, path string) error {
			f, _ := c.File("k3s", "install.sh", "")
			return extract.File(ctx, r, path, f)
		}),
		"extract an archive": extracted(func(ctx context.Context, r *bundle.Reader, c *bundle.Contents,
			path string) error {
			return extract.Archive(ctx, r, path, c.Images)
		}),
		"extract a layout": extracted(func(ctx context.Context, r *bundle.Reader, c *bundle.Contents,
			path string) error {
			return extract.Layout(ctx, r, path, c.Images)
		}),
		"list of software": func(ctx context.Context, r *bundle.Reader) (string, error) {
			document, err := sbom.Make(ctx, r, sbom.Options{Version: "v0.0.0-test"})
			if err != nil {
				return "", err
			}
			var text bytes.Buffer
			err = sbom.Write(&text, document)
			return text.String(), err
		},
		"provenance": func(_ context.Context, r *bundle.Reader) (string, error) {
			text, err := provenance.Statement(r)
			return string(text), err
		},
		"difference": func(_ context.Context, r *bundle.Reader) (string, error) { return asText(bundle.Compare(r, r)) },
	} {
		t.Run(name, func(t *testing.T) { unsteady.Check(t, path, use) })
	}
}

// TestUnsteadyDelta joins a delta where the delta, or its base, gives other bytes once it was
// verified.
func TestUnsteadyDelta(t *testing.T) {
	m := bundletest.NewMaker(t)
	m.Signer = bundletest.NewSigner(t)
	old, _ := m.Build("old.tar", unsteadyBundle(t, "#!/bin/sh\n"), nil)
	base := &plan.Base{}
	base.AddBundle(m.Open(old))
	delta, _ := m.Build("delta.tar", unsteadyBundle(t, "#!/bin/sh\nexit 1\n"), base)

	join := func(ctx context.Context, delta, base *bundle.Reader) (string, error) {
		if err := delta.VerifySignature(m.Signer.PublicKey()); err != nil {
			return "", err
		}
		delta.Use(base)
		dir := t.TempDir()
		path := filepath.Join(dir, "whole.tar")
		if _, err := build.Join(ctx, delta, build.JoinOptions{Path: path}); err != nil {
			return "", err
		}
		return treeOf(dir)
	}
	t.Run("delta", func(t *testing.T) {
		unsteady.Check(t, delta, func(ctx context.Context, r *bundle.Reader) (string, error) {
			return join(ctx, r, m.Open(old))
		})
	})
	t.Run("base", func(t *testing.T) {
		unsteady.Check(t, old, func(ctx context.Context, r *bundle.Reader) (string, error) {
			return join(ctx, m.Open(delta), r)
		})
	})
}

// TestContentAtItsEnd reads what is not what its name says in pieces of all sizes: the last of
// its bytes are never given out.
func TestContentAtItsEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, unsteadyBundle(t, "#!/bin/sh\n"))
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromString("#!/bin/sh\n")
	tar, err := ocitar.NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	e, _ := tar.Blob(d)
	file[e.Offset] ^= 1 // the first byte, which no later one brings back
	r, err := bundle.NewReader(bytes.NewReader(file), int64(len(file)), path)
	if err != nil {
		t.Fatal(err)
	}
	for piece := 1; piece <= int(e.Size)+1; piece++ {
		content, err := r.Content(d, e.Size)
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for err == nil {
			var n int
			n, err = content.Read(make([]byte, piece))
			total += n
		}
		if total >= int(e.Size) || !strings.Contains(err.Error(), "holds other bytes") {
			t.Errorf("pieces of %d: %d bytes, %v", piece, total, err)
		}
	}
	for _, offset := range []int64{-1, 1, e.Size, e.Size + 1} {
		rest, err := r.ContentFrom(d, offset)
		if err == nil {
			_, err = io.ReadAll(rest)
		}
		if err == nil {
			t.Errorf("from byte %d on: no error", offset)
		}
	}
	if _, err := r.Content(d, e.Size+1); err == nil {
		t.Error("another size: no error")
	}
}
