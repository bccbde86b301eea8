package bundle_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pins"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/test/bundletest"
)

func TestPacks(t *testing.T) {
	r := bundletest.MustOpen(t, bundletest.Reference(t))
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	for platform, components := range map[lock.Platform][]string{
		"linux/amd64": {"k3s", "cilium", "liteboxd"},
		"linux/arm64": {"k3s", "cilium"},
		"linux/s390x": nil,
	} {
		t.Run(string(platform), func(t *testing.T) {
			packs, err := r.Packs(platform, bundle.PackOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, p := range packs {
				names = append(names, p.Component)
				checkPack(t, r, contents, p, platform)
			}
			if diff := cmp.Diff(components, names); diff != "" {
				t.Errorf("packs (-expected +got):\n%s", diff)
			}
		})
	}
}

// checkPack expects in a pack its images' blobs for its platform, and nothing else.
func checkPack(t *testing.T, r *bundle.Reader, contents *bundle.Contents, p bundle.Pack, platform lock.Platform) {
	t.Helper()
	want := make(map[digest.Digest]bool)
	var images []string
	for _, image := range contents.Images {
		i := slices.IndexFunc(image.Platforms,
			func(has format.PlatformImage) bool { return platform.Match(has.Platform) })
		if image.Component != p.Component || i < 0 {
			continue
		}
		images = append(images, image.Name)
		want[image.Digest] = true
		for _, d := range image.Platforms[i].Blobs() {
			want[d.Digest] = true
		}
	}
	got := make(map[digest.Digest]bool)
	for _, m := range p.Blobs {
		got[m.Digest()] = true
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) != len(p.Blobs) {
		t.Errorf("blobs of %s (-expected +got):\n%s", p.Component, diff)
	}
	if diff := cmp.Diff(images, p.Images); diff != "" || p.Platform != platform {
		t.Errorf("images of %s (-expected +got):\n%s", p.Component, diff)
	}
	path := bundletest.WritePack(t, r, p, t.TempDir())
	if info, err := os.Stat(path); err != nil || info.Size() != p.Size {
		t.Errorf("the pack has %d bytes, expected %d: %v", info.Size(), p.Size, err)
	}
	if p.Digest != digest.FromBytes(p.Index) {
		t.Error("the digest is not that of the index")
	}
	var index ocispec.Index
	if err := json.Unmarshal(p.Index, &index); err != nil {
		t.Fatal(err)
	}
	if index.ArtifactType != format.PackArtifactType {
		t.Errorf("artifact type %s", index.ArtifactType)
	}
	for _, d := range index.Manifests {
		if d.MediaType != ocispec.MediaTypeImageIndex && d.MediaType != ocispec.MediaTypeImageManifest {
			t.Errorf("media type %s, which OCI layouts do not have", d.MediaType)
		}
		if d.Annotations[format.AnnotationImageName] == "" ||
			d.Annotations[format.AnnotationImageName] != d.Annotations[ocispec.AnnotationRefName] {
			t.Errorf("names %v", d.Annotations)
		}
	}
}

// TestPackNames: the same content has the same name in every bundle, another has another.
func TestPackNames(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	names := func(path string) map[string]digest.Digest {
		packs, err := bundletest.MustOpen(t, path).Packs("linux/amd64", bundle.PackOptions{})
		if err != nil {
			t.Fatal(err)
		}
		result := make(map[string]digest.Digest)
		for _, p := range packs {
			result[p.Component] = p.Digest
		}
		return result
	}
	dir := t.TempDir()
	moved := s.MoveTag(bundletest.BusyboxRef)
	before := bundletest.ImageOf(t, bundletest.BusyboxRef).Digest
	changed := bundletest.Replaced(t, bundletest.SmallLock(t), before.String(), moved.String())
	bundletest.MustBuild(t, changed, bundletest.NewClient(s), filepath.Join(dir, "b.tar"), bundletest.SignerOf(t, 0),
		func(o *plan.Options) { o.Version = "v9.9.9" })
	a, b := names(bundletest.Reference(t)), names(filepath.Join(dir, "b.tar"))
	if a["cilium"] != b["cilium"] || a["liteboxd"] != b["liteboxd"] {
		t.Error("packs with the same images differ")
	}
	if a["k3s"] == b["k3s"] {
		t.Error("another image, and the pack has the same name")
	}
}

const (
	dnsRef   = "docker.io/rancher/mirrored-coredns-coredns:1.14.6"
	agentRef = "quay.io/cilium/cilium:v1.20.0"
)

// bootable builds a bundle with all that a node needs to start, and more.
func bootable(t *testing.T, change func(string) string) *bundle.Reader {
	t.Helper()
	s := bundletest.UpstreamServer(t)
	text := strings.Replace(bundletest.Unpinned, `      - {ref: "`+bundletest.PauseRef+`"}`,
		`      - {ref: "`+bundletest.PauseRef+`"}`+"\n"+`      - {ref: "`+dnsRef+`"}`, 1)
	text = strings.Replace(text, `      - {ref: "`+bundletest.OperatorRef+`"}`,
		`      - {ref: "`+bundletest.OperatorRef+`"}`+"\n"+`      - {ref: "`+agentRef+`"}`, 1)
	document, err := lock.ParseDocument(bundle.LockFile, []byte(change(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := pins.Fill(t.Context(), pins.Options{Document: document, Source: bundletest.NewClient(s)}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bundle.tar")
	bundletest.MustBuild(t, document.Bytes(), bundletest.NewClient(s), path, nil)
	return bundletest.MustOpen(t, path)
}

// A boot pack is a pack like any other, of blobs that the whole packs have as well.
func TestBootPacks(t *testing.T) {
	r := bootable(t, func(lock string) string { return lock })
	for _, platform := range []lock.Platform{"linux/amd64", "linux/arm64"} {
		whole, err := r.Packs(platform, bundle.PackOptions{})
		if err != nil {
			t.Fatal(err)
		}
		shared := make(map[digest.Digest]bool)
		for _, p := range whole {
			for _, m := range p.Blobs {
				shared[m.Digest()] = true
			}
		}
		packs, err := r.Packs(platform, bundle.PackOptions{Boot: true})
		if err != nil {
			t.Fatal(err)
		}
		images := make(map[string][]string)
		for _, p := range packs {
			images[p.Component] = p.Images
			for _, m := range p.Blobs {
				if !shared[m.Digest()] {
					t.Errorf("%s: blob %s is not in the whole packs", p.Component, m.Digest())
				}
			}
			checkPackFile(t, bundletest.WritePack(t, r, p, t.TempDir()), p)
		}
		want := map[string][]string{"k3s": {dnsRef, bundletest.PauseRef}, "cilium": {agentRef, bundletest.OperatorRef}}
		if diff := cmp.Diff(want, images, cmpopts.SortSlices(strings.Compare)); diff != "" {
			t.Errorf("%s: images (-expected +got):\n%s", platform, diff)
		}
	}
}

// checkPackFile reads a pack to its last byte.
func checkPackFile(t *testing.T, path string, p bundle.Pack) {
	t.Helper()
	content := bundletest.MustRead(t, path)
	r, err := ocitar.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	index, err := r.ReadAll(ocitar.IndexFile, format.MaxIndexSize)
	if err != nil || !bytes.Equal(index, p.Index) {
		t.Errorf("pack of %s: its index.json is %s, %v", p.Component, index, err)
	}
	for _, m := range p.Blobs {
		blob, err := r.ReadAll(m.Name, m.Size)
		if err != nil || digest.FromBytes(blob) != m.Digest() {
			t.Errorf("pack of %s: blob %s: %v", p.Component, m.Digest(), err)
		}
	}
}

func TestBootPacksMissing(t *testing.T) {
	without := func(ref, with string) func(string) string {
		return func(lock string) string { return strings.Replace(lock, ref, with, 1) }
	}
	tests := map[string]struct {
		reader *bundle.Reader
		want   []string
	}{
		"no DNS": {bundletest.MustOpen(t, bundletest.Reference(t)),
			[]string{"linux/amd64", "component k3s", "the cluster's DNS", "/mirrored-coredns-coredns or /coredns"}},
		"no pods": {bootable(t, without(bundletest.PauseRef, "docker.io/rancher/mirrored-metrics-server:v0.9.0")),
			[]string{"the sandboxes of pods", "/mirrored-pause or /pause"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			packs, err := test.reader.Packs("linux/amd64", bundle.PackOptions{Boot: true})
			bundletest.WantError(t, err, test.want...)
			if packs != nil {
				t.Errorf("%d packs beside the error", len(packs))
			}
		})
	}
}
