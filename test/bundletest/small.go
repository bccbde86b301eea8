package bundletest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pins"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/test/ocilayout"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

// noise is content that no compression makes smaller, the same for every run.
func noise(seed string, size int) string {
	var key [32]byte
	copy(key[:], seed)
	content := make([]byte, size)
	_, _ = rand.NewChaCha8(key).Read(content) // never fails
	return string(content)
}

// Release describes a bundle of twelve images with three layers each, of which those in
// changed have another layer at the top. A whole one has 9 MB.
func Release(changed ...int) smallbundle.Bundle { return release(300_000, changed) }

// LargeRelease is Release with layers as large as those of small programs, for tests of proportions. A whole one has 38
// MB.
func LargeRelease(changed ...int) smallbundle.Bundle { return release(1_500_000, changed) }

// release describes one whose images have size bytes in their layer at the top.
func release(size int, changed []int) smallbundle.Bundle {
	k3s := smallbundle.Component{
		Name: "k3s", Version: "v1.0.0",
		Files: []smallbundle.File{
			{Name: "install.sh", Content: "#!/bin/sh\n"},
			{Name: "k3s", Platform: "linux/amd64", Content: noise("k3s amd64", 300_000)},
			{Name: "k3s", Platform: "linux/arm64", Content: noise("k3s arm64", 300_000)},
		},
	}
	cilium := smallbundle.Component{Name: "cilium", Version: "1.0.0",
		Charts: []smallbundle.File{{Name: "cilium", Content: noise("chart", 9_000)}}}
	for i := range 12 {
		c := &k3s
		if i%2 == 1 {
			c = &cilium
		}
		image := smallbundle.Image{Ref: fmt.Sprintf("docker.io/example/image-%d:v1", i)}
		for _, platform := range []string{"linux/amd64", "linux/arm64"} {
			top := fmt.Sprintf("top %d %s", i, platform)
			if slices.Contains(changed, i) {
				top += " changed"
			}
			image.Platforms = append(image.Platforms, smallbundle.Platform{Name: platform, Layers: [][]byte{
				[]byte(noise("base "+platform, 200_000)), []byte(noise(fmt.Sprintf("middle %d", i), 50_000)),
				[]byte(noise(top, size)),
			}})
		}
		c.Images = append(c.Images, image)
	}
	return smallbundle.Bundle{Components: []smallbundle.Component{k3s, cilium}}
}

// Maker makes bundles in a folder.
type Maker struct {
	t      *testing.T
	Dir    string
	Signer *signature.Signer
}

// NewMaker returns one with a folder of its own.
func NewMaker(t *testing.T) *Maker { return &Maker{t: t, Dir: t.TempDir()} }

// Build builds what a description is of; since makes a delta.
func (m *Maker) Build(
	name string, of smallbundle.Bundle, since *plan.Base, change ...func(*build.Options),
) (string, *build.Result) {
	m.t.Helper()
	of.Signer = m.Signer
	path := filepath.Join(m.Dir, name)
	return path, smallbundle.Build(m.t, path, of, since, change...)
}

// Open opens a bundle with its bases until the test ends.
func (m *Maker) Open(path string, bases ...string) *bundle.Reader {
	m.t.Helper()
	r, err := bundle.Open(path)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = r.Close() })
	for _, base := range bases {
		b, err := bundle.Open(base)
		if err != nil {
			m.t.Fatal(err)
		}
		r.Use(b)
	}
	return r
}

// Since is the base that a bundle is.
func (m *Maker) Since(paths ...string) *plan.Base {
	m.t.Helper()
	base := &plan.Base{}
	for _, path := range paths {
		base.AddBundle(m.Open(path))
	}
	return base
}

func (m *Maker) Read(path string) []byte {
	m.t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		m.t.Fatal(err)
	}
	return content
}

// Join joins a delta with its bases, and returns the name of the whole bundle.
func (m *Maker) Join(delta string, bases ...string) string {
	m.t.Helper()
	path := delta + ".joined"
	if _, err := build.Join(m.t.Context(), m.Open(delta, bases...), build.JoinOptions{Path: path}); err != nil {
		m.t.Fatal(err)
	}
	return path
}

// NewSigner makes a key.
func NewSigner(t *testing.T) *signature.Signer {
	t.Helper()
	private, _, err := signature.GenerateKey([]byte("password"))
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signature.LoadSigner(private, []byte("password"))
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// On is an image for amd64 whose layers hold these texts.
func On(t *testing.T, platform string, layers ...string) smallbundle.Platform {
	t.Helper()
	p := smallbundle.Platform{Name: platform}
	for _, text := range layers {
		p.Layers = append(p.Layers, smallbundle.Layer(t, map[string]string{"text": text}))
	}
	return p
}

// OpenNew writes a bundle and opens it until the test ends.
func OpenNew(t *testing.T, b smallbundle.Bundle) *bundle.Reader {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, b)
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// LockOf locks a component with image archives on this host.
func LockOf(t *testing.T, client *source.Client, archives ...string) []byte {
	t.Helper()
	text := "apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\ncomponents:\n  app:\n    version: " +
		"v1\n    images:\n"
	for _, archive := range archives {
		text += "      - {archive: \"" + archive + "\", platform: linux/amd64}\n"
	}
	document, err := lock.ParseDocument(bundle.LockFile, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := pins.Fill(t.Context(), pins.Options{Document: document, Source: client}); err != nil {
		t.Fatal(err)
	}
	return document.Bytes()
}

// MustContent reads a blob of a bundle, proven.
func MustContent(t *testing.T, r *bundle.Reader, m ocitar.Member) []byte {
	t.Helper()
	blob, err := r.Content(m.Digest(), m.Size)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(blob)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// WritePack writes a pack as a node does, and returns the file's name.
func WritePack(t *testing.T, r *bundle.Reader, p bundle.Pack, dir string) string {
	t.Helper()
	members := []ocitar.Member{
		{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(p.Index))},
	}
	contents := [][]byte{[]byte(ocitar.LayoutContent), p.Index}
	for _, m := range p.Blobs {
		members, contents = append(members, m), append(contents, MustContent(t, r, m))
	}
	path := filepath.Join(dir, "boxlift-"+p.Component+"-"+p.Digest.Encoded()[:12]+".tar")
	MustWrite(t, path, ocilayout.Tar(t, members, contents))
	return path
}
