package bundle

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/source"
)

// layerTar is an uncompressed layer with one file.
func layerTar(t *testing.T, name, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// dockerArchiveFile writes what docker save writes: two images that share a layer, of which
// the second has it through a link, and one of them under two names.
func dockerArchiveFile(t *testing.T, path string) (shared, own []byte) {
	t.Helper()
	shared = layerTar(t, "shared", strings.Repeat("what both have; ", 20_000))
	own = layerTar(t, "own", strings.Repeat("what one has; ", 20_000))
	config := func(layers ...[]byte) []byte {
		image := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}, RootFS: ocispec.RootFS{Type: "layers"}}
		for _, layer := range layers {
			image.RootFS.DiffIDs = append(image.RootFS.DiffIDs, digest.FromBytes(layer))
		}
		content, err := json.Marshal(image)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	first, second := config(shared), config(shared, own)
	index, err := json.Marshal([]struct {
		Config           string
		RepoTags, Layers []string
	}{
		{Config: "first.json", RepoTags: []string{"first:1", "quay.io/a/first:1"}, Layers: []string{"aaa/layer.tar"}},
		{Config: "sha256:second", RepoTags: []string{"second:2"}, Layers: []string{"bbb/layer.tar", "own.tar"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for _, m := range []struct {
		name, link string
		content    []byte
	}{
		{name: "aaa/layer.tar", content: shared}, {name: "bbb/layer.tar", link: "../aaa/layer.tar"}, {name: "first.json", content: first},
		{name: "sha256:second", content: second}, {name: "manifest.json", content: index}, {name: "own.tar", content: own},
		{name: "repositories", content: []byte("{}")}, {name: "empty"},
	} {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: m.name, Size: int64(len(m.content)), Mode: 0o644}
		if m.link != "" {
			header.Typeflag, header.Linkname = tar.TypeSymlink, m.link
		}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return shared, own
}

// lockOf locks a component with image archives on this host.
func lockOf(t *testing.T, client *source.Client, archives ...string) []byte {
	t.Helper()
	text := "apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\ncomponents:\n  app:\n    version: v1\n    images:\n"
	for _, archive := range archives {
		text += "      - {archive: \"" + archive + "\", platform: linux/amd64}\n"
	}
	document, err := lock.ParseDocument(LockFile, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := Resolve(t.Context(), ResolveOptions{Document: document, Source: client}); err != nil {
		t.Fatal(err)
	}
	return document.Bytes()
}

// TestDockerForm builds from an archive as docker saves it.
func TestDockerForm(t *testing.T) {
	dir := t.TempDir()
	shared, own := dockerArchiveFile(t, filepath.Join(dir, "saved.tar"))
	client := source.New(source.Options{Folder: dir})
	content := lockOf(t, client, "file:saved.tar")
	if again := lockOf(t, client, "file:saved.tar"); !bytes.Equal(content, again) {
		t.Error("locked again, it is another lock")
	}
	path := filepath.Join(dir, "b.tar")
	mustBuild(t, content, client, path, nil)
	r := mustOpen(t, path)
	if err := r.Verify(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string][][]byte)
	for _, image := range contents.Images {
		for _, layer := range image.Platforms[0].Layers {
			if layer.MediaType != ocispec.MediaTypeImageLayerZstd {
				t.Errorf("%s has a layer of the type %s", image.Name, layer.MediaType)
			}
			section, err := r.blob(layer.Digest)
			if err != nil {
				t.Fatal(err)
			}
			z, err := zstd.NewReader(section)
			if err != nil {
				t.Fatal(err)
			}
			plain, err := io.ReadAll(z)
			z.Close()
			if err != nil {
				t.Fatal(err)
			}
			got[image.Name] = append(got[image.Name], plain)
		}
	}
	if diff := cmp.Diff(map[string][][]byte{
		"docker.io/library/first:1": {shared}, "quay.io/a/first:1": {shared}, "docker.io/library/second:2": {shared, own},
	}, got); diff != "" {
		t.Error("the images do not have the layers of the archive")
	}

	// A lock that another compressor has made.
	layer := layerDigest(t, shared)
	other := bytes.ReplaceAll(content, []byte(layer), []byte(digest.FromString("another")))
	_, err = build(t.Context(), other, client, filepath.Join(dir, "other.tar"), nil)
	wantError(t, err, "app: saved.tar (linux/amd64): aaa/layer.tar: what is made from aaa/layer.tar has "+layer)
}

func layerDigest(t *testing.T, plain []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := compressLayer(&b, bytes.NewReader(plain)); err != nil {
		t.Fatal(err)
	}
	return digest.FromBytes(b.Bytes()).String()
}

// TestDockerFormOfSkopeo builds from an archive that skopeo made.
func TestDockerFormOfSkopeo(t *testing.T) {
	skopeo := program(t, "skopeo", "skopeo")
	dir := t.TempDir()
	mustRun(t, skopeo, "copy", "--quiet", "--insecure-policy", "--override-os", "linux", "--override-arch", "amd64",
		"oci-archive:"+reference(t)+":"+busyboxRef, "docker-archive:"+filepath.Join(dir, "saved.tar")+":example.com/busybox:1")
	client := source.New(source.Options{Folder: dir})
	path := filepath.Join(dir, "b.tar")
	mustBuild(t, lockOf(t, client, "file:saved.tar"), client, path, nil)
	contents, err := mustOpen(t, path).Contents()
	if err != nil {
		t.Fatal(err)
	}
	if len(contents.Images) != 1 || contents.Images[0].Name != "example.com/busybox:1" {
		t.Fatalf("the bundle has the images %+v", contents.Images)
	}
	image := contents.Images[0]
	skopeoReads(t, skopeo, "oci-archive:"+path+":"+image.Name, image)
	skopeoCopies(t, skopeo, "oci-archive:"+path+":"+image.Name, image.Platforms[0])
}

// TestLayoutFolder builds from an OCI layout in a folder, and from the same in a tar.
func TestLayoutFolder(t *testing.T) {
	dir := t.TempDir()
	files := layoutFiles(t, ocispec.Platform{OS: "linux", Architecture: "amd64"}, func(*ocispec.Descriptor, *ocispec.Manifest) {})
	for name, content := range files {
		path := filepath.Join(dir, "layout", filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		mustWrite(t, path, []byte(content))
	}
	mustWrite(t, filepath.Join(dir, "layout.tar"), archiveForms(t, files)["plain"])
	client := source.New(source.Options{Folder: dir})
	for _, archive := range []string{"file:layout", "file:layout.tar"} {
		path := filepath.Join(dir, filepath.Base(archive)+".bundle")
		mustBuild(t, lockOf(t, client, archive), client, path, nil)
		contents, err := mustOpen(t, path).Contents()
		if err != nil {
			t.Fatal(err)
		}
		if len(contents.Images) != 1 || contents.Images[0].Name != "example.com/a/b:1" {
			t.Errorf("%s: images %+v", archive, contents.Images)
		}
	}
	content := lockOf(t, client, "file:layout")
	mustWrite(t, filepath.Join(dir, "layout", "index.json"), []byte(files["index.json"]+" "))
	_, err := build(t.Context(), content, client, filepath.Join(dir, "b.tar"), nil)
	wantError(t, err, "app: layout (linux/amd64): what upstream has now is not what was locked")
}
