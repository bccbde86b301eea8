// Package imagearchive writes image archives for tests, in all the forms that there are.
package imagearchive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/format"
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

// Docker writes what docker save writes: two images that share a layer, of which
// the second has it through a link, and one of them under two names.
func Docker(t *testing.T, path string) (shared, own []byte) {
	t.Helper()
	shared = layerTar(t, "shared", strings.Repeat("what both have; ", 20_000))
	own = layerTar(t, "own", strings.Repeat("what one has; ", 20_000))
	config := func(layers ...[]byte) []byte {
		image := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
			RootFS: ocispec.RootFS{Type: "layers"}}
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
		{name: "aaa/layer.tar", content: shared}, {name: "bbb/layer.tar", link: "../aaa/layer.tar"},
		{name: "first.json", content: first},
		{name: "sha256:second", content: second}, {name: "manifest.json", content: index},
		{name: "own.tar", content: own},
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

// Forms writes files into a tar, plain and compressed in every known way.
func Forms(t *testing.T, files map[string]string) map[string][]byte {
	t.Helper()
	plain := Plain(t, files)
	// as GNU tar fills its records
	forms := map[string][]byte{"plain": append(bytes.Clone(plain), make([]byte, 8192)...)}
	for name := range Compressors {
		forms[name] = Compress(t, name, plain)
	}
	return forms
}

// Compressors are the known ways to compress an archive.
var Compressors = map[string]func(io.Writer) (io.WriteCloser, error){
	"gzip": func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil },
	"zstd": func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) },
}

// Plain writes files into a tar.
func Plain(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "a/", Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(
			&tar.Header{Name: "./" + name, Size: int64(len(files[name])), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return plain.Bytes()
}

// Compress compresses a tar in one of the ways of [Compressors].
func Compress(t testing.TB, form string, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	c, err := Compressors[form](&b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// LayoutFiles is an OCI layout with one image.
func LayoutFiles(
	t *testing.T, platform ocispec.Platform, change func(*ocispec.Descriptor, *ocispec.Manifest),
) map[string]string {
	t.Helper()
	files := map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`}
	add := func(mediaType string, v any) ocispec.Descriptor {
		content, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		files["blobs/sha256/"+digest.FromBytes(content).Encoded()] = string(content)
		return format.DescriptorOf(mediaType, content)
	}
	root := ocispec.Descriptor{Annotations: map[string]string{format.AnnotationImageName: "example.com/a/b:1"}}
	manifest := ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    add(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: platform}),
		Layers:    []ocispec.Descriptor{add(ocispec.MediaTypeImageLayer, "layer")},
	}
	change(&root, &manifest)
	d := add(ocispec.MediaTypeImageManifest, manifest)
	d.Annotations = root.Annotations
	index, err := json.Marshal(ocispec.Index{Manifests: []ocispec.Descriptor{d}})
	if err != nil {
		t.Fatal(err)
	}
	files["index.json"] = string(index)
	return files
}
