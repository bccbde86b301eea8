package bundletest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"filippo.io/age"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/rebuild"
	"github.com/liteboxd/boxlift/test/upstream"
)

// LayerOf returns the largest layer of an image in the reference bundle.
func LayerOf(t *testing.T, ref string, platform lock.Platform) digest.Digest {
	t.Helper()
	image := ImageOf(t, ref)
	i := slices.IndexFunc(image.Platforms, func(p format.PlatformImage) bool { return p.Platform.Match(platform) })
	layers := image.Platforms[i].Layers
	largest := layers[0]
	for _, layer := range layers {
		if layer.Size > largest.Size {
			largest = layer
		}
	}
	return largest.Digest
}

// ImageOf returns an image of the reference bundle.
func ImageOf(t *testing.T, ref string) bundle.Image {
	t.Helper()
	contents, err := MustOpen(t, Reference(t)).Contents()
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range contents.Images {
		if image.Name == ref {
			return image
		}
	}
	t.Fatalf("no image %s", ref)
	return bundle.Image{}
}

// NewIdentity makes an identity of age.
func NewIdentity(t testing.TB) *age.X25519Identity {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

// VolumeSize is the size of the volumes of tests, in bytes.
const VolumeSize = 200_000

// RebuildOptions are those that the tests build with.
func RebuildOptions(t testing.TB, content []byte) rebuild.Options {
	t.Helper()
	o, err := PlanOptions(content, nil)
	if err != nil {
		t.Fatal(err)
	}
	return rebuild.Options{Lock: o.Lock, LockName: o.LockName, LockContent: o.LockContent, Programs: o.Programs,
		Version: o.Version}
}

// Proven does what `bundle verify --rebuild` does.
func Proven(t testing.TB, r *bundle.Reader, o rebuild.Options) error {
	t.Helper()
	return errors.Join(rebuild.Prove(t.Context(), r, o), r.Verify(t.Context(), nil))
}

// ChartDigest is that of Cilium's chart in the reference bundle.
func ChartDigest(t *testing.T) digest.Digest {
	t.Helper()
	contents, err := MustOpen(t, Reference(t)).Contents()
	if err != nil {
		t.Fatal(err)
	}
	f, ok := contents.File("cilium", "cilium-1.20.0.tgz", "")
	if !ok {
		t.Fatal("no chart")
	}
	return f.Digest
}

// Reusing lets a build take blobs from older bundles.
func Reusing(t *testing.T, paths ...string) func(*plan.Options) {
	t.Helper()
	var older []*bundle.Reader
	for _, path := range paths {
		older = append(older, MustOpen(t, path))
	}
	return func(o *plan.Options) { o.Reuse = older }
}

// ListBlobs stands for what lists software: it reads every file and every layer.
func ListBlobs(_ context.Context, r *bundle.Reader) ([]byte, error) {
	var list bytes.Buffer
	fmt.Fprintf(&list, "in %s:\n", r.Digest())
	for _, e := range r.Tar().Layout().Entries {
		if e.Digest() == "" {
			continue
		}
		content, err := r.Content(e.Digest(), e.Size)
		if err != nil {
			return nil, err
		}
		n, err := io.Copy(io.Discard, content)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&list, "%s %d\n", e.Digest(), n)
	}
	return list.Bytes(), nil
}

// Listing lets a build list software.
func Listing(o *plan.Options) { o.SBOM = ListBlobs }

// DownloadsOfBuild are all but the config that plans need of an image without an index.
func DownloadsOfBuild(t *testing.T, s *upstream.Server) map[string]int {
	t.Helper()
	got := Downloads(s)
	delete(got, ImageOf(t, WebRef).Platforms[0].Config.Digest.String())
	return got
}
