package build_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/archive"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/imagearchive"
)

// TestDockerForm builds from an archive as docker saves it.
func TestDockerForm(t *testing.T) {
	dir := t.TempDir()
	shared, own := imagearchive.Docker(t, filepath.Join(dir, "saved.tar"))
	client := source.New(source.Options{Folder: dir})
	content := bundletest.LockOf(t, client, "file:saved.tar")
	if again := bundletest.LockOf(t, client, "file:saved.tar"); !bytes.Equal(content, again) {
		t.Error("locked again, it is another lock")
	}
	path := filepath.Join(dir, "b.tar")
	bundletest.MustBuild(t, content, client, path, nil)
	r := bundletest.MustOpen(t, path)
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
			content := bundletest.MustContent(t, r, ocitar.Blob(layer.Digest, layer.Size))
			z, err := zstd.NewReader(bytes.NewReader(content))
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
	if want := (map[string][][]byte{
		"docker.io/library/first:1": {shared}, "quay.io/a/first:1": {shared},
		"docker.io/library/second:2": {shared, own},
	}); !reflect.DeepEqual(want, got) {
		t.Error("the images do not have the layers of the archive")
	}

	// A lock that another compressor has made.
	layer := layerDigest(t, shared)
	other := bytes.ReplaceAll(content, []byte(layer), []byte(digest.FromString("another")))
	_, err = bundletest.Build(t.Context(), other, client, filepath.Join(dir, "other.tar"), nil)
	bundletest.WantError(t, err, "app: saved.tar (linux/amd64): aaa/layer.tar: what is made from aaa/layer.tar has "+
		layer)
}

func layerDigest(t *testing.T, plain []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := archive.CompressLayer(&b, bytes.NewReader(plain)); err != nil {
		t.Fatal(err)
	}
	return digest.FromBytes(b.Bytes()).String()
}

// TestDockerFormOfSkopeo builds from an archive that skopeo made.
func TestDockerFormOfSkopeo(t *testing.T) {
	skopeo := program(t, "skopeo", "skopeo")
	dir := t.TempDir()
	mustRun(t, skopeo, "copy", "--quiet", "--insecure-policy", "--override-os", "linux", "--override-arch", "amd64",
		"oci-archive:"+bundletest.Reference(t)+":"+bundletest.BusyboxRef,
		"docker-archive:"+filepath.Join(dir, "saved.tar")+":example.com/busybox:1")
	client := source.New(source.Options{Folder: dir})
	path := filepath.Join(dir, "b.tar")
	bundletest.MustBuild(t, bundletest.LockOf(t, client, "file:saved.tar"), client, path, nil)
	contents, err := bundletest.MustOpen(t, path).Contents()
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
	files := imagearchive.LayoutFiles(t, ocispec.Platform{OS: "linux", Architecture: "amd64"},
		func(*ocispec.Descriptor, *ocispec.Manifest) {})
	for name, content := range files {
		path := filepath.Join(dir, "layout", filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		bundletest.MustWrite(t, path, []byte(content))
	}
	bundletest.MustWrite(t, filepath.Join(dir, "layout.tar"), imagearchive.Forms(t, files)["plain"])
	client := source.New(source.Options{Folder: dir})
	for _, archive := range []string{"file:layout", "file:layout.tar"} {
		path := filepath.Join(dir, filepath.Base(archive)+".bundle")
		bundletest.MustBuild(t, bundletest.LockOf(t, client, archive), client, path, nil)
		contents, err := bundletest.MustOpen(t, path).Contents()
		if err != nil {
			t.Fatal(err)
		}
		if len(contents.Images) != 1 || contents.Images[0].Name != "example.com/a/b:1" {
			t.Errorf("%s: images %+v", archive, contents.Images)
		}
	}
	content := bundletest.LockOf(t, client, "file:layout")
	bundletest.MustWrite(t, filepath.Join(dir, "layout", "index.json"), []byte(files["index.json"]+" "))
	_, err := bundletest.Build(t.Context(), content, client, filepath.Join(dir, "b.tar"), nil)
	bundletest.WantError(t, err, "app: layout (linux/amd64): what upstream has now is not what was locked")
}
