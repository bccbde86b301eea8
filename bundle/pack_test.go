package bundle

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// writePack writes a pack as a node does, and returns the file's name.
func writePack(t *testing.T, r *Reader, p Pack, dir string) string {
	t.Helper()
	members := []ocitar.Member{
		{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(p.Index))},
	}
	contents := [][]byte{[]byte(ocitar.LayoutContent), p.Index}
	for _, m := range p.Blobs {
		section, err := r.Blob(m.Digest())
		if err != nil {
			t.Fatal(err)
		}
		content := make([]byte, section.Size())
		if _, err := section.ReadAt(content, 0); err != nil && section.Size() > 0 {
			t.Fatal(err)
		}
		members, contents = append(members, m), append(contents, content)
	}
	path := filepath.Join(dir, "boxlift-"+p.Component+"-"+p.Digest.Encoded()[:12]+".tar")
	mustWrite(t, path, writeTar(t, members, contents))
	return path
}

func TestPacks(t *testing.T) {
	r := mustOpen(t, reference(t))
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
			packs, err := r.Packs(platform)
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
func checkPack(t *testing.T, r *Reader, contents *Contents, p Pack, platform lock.Platform) {
	t.Helper()
	want := make(map[digest.Digest]bool)
	var images []string
	for _, image := range contents.Images {
		i := slices.IndexFunc(image.Platforms, func(has PlatformImage) bool { return platform.Match(has.Platform) })
		if image.Component != p.Component || i < 0 {
			continue
		}
		images = append(images, image.Name)
		want[image.Digest] = true
		for _, d := range image.Platforms[i].blobs() {
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
	path := writePack(t, r, p, t.TempDir())
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
	if index.ArtifactType != PackArtifactType {
		t.Errorf("artifact type %s", index.ArtifactType)
	}
	for _, d := range index.Manifests {
		if d.MediaType != ocispec.MediaTypeImageIndex && d.MediaType != ocispec.MediaTypeImageManifest {
			t.Errorf("media type %s, which OCI layouts do not have", d.MediaType)
		}
		if d.Annotations[AnnotationImageName] == "" || d.Annotations[AnnotationImageName] != d.Annotations[ocispec.AnnotationRefName] {
			t.Errorf("names %v", d.Annotations)
		}
	}
}

// TestPackNames: the same content has the same name in every bundle, another has another.
func TestPackNames(t *testing.T) {
	s := upstreamServer(t)
	names := func(path string) map[string]digest.Digest {
		packs, err := mustOpen(t, path).Packs("linux/amd64")
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
	moved := s.MoveTag(busyboxRef)
	before := imageOf(t, busyboxRef).Digest
	changed := replaced(t, smallLock(t), before.String(), moved.String())
	mustBuild(t, changed, newClient(s), filepath.Join(dir, "b.tar"), signerOf(t, 0), func(o *PlanOptions) { o.Version = "v9.9.9" })
	a, b := names(reference(t)), names(filepath.Join(dir, "b.tar"))
	if a["cilium"] != b["cilium"] || a["liteboxd"] != b["liteboxd"] {
		t.Error("packs with the same images differ")
	}
	if a["k3s"] == b["k3s"] {
		t.Error("another image, and the pack has the same name")
	}
}
