package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/test/ocilayout"
)

// object is JSON that a test writes.
type object map[string]any

// builder makes a layout in a tar.
type builder struct {
	t       testing.TB
	members []ocitar.Member
	content map[string][]byte
	entries []object
}

func newBuilder(t testing.TB) *builder {
	return &builder{t: t, content: make(map[string][]byte)}
}

// blob puts content in and describes it.
func (b *builder) blob(mediaType string, content []byte) object {
	d := digest.FromBytes(content)
	m := ocitar.Blob(d, int64(len(content)))
	if _, ok := b.content[m.Name]; !ok {
		b.members = append(b.members, m)
		b.content[m.Name] = content
	}
	return object{"mediaType": mediaType, "digest": d, "size": len(content)}
}

func (b *builder) json(mediaType string, v object) object {
	content, err := json.Marshal(v)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.blob(mediaType, content)
}

// manifest puts in an image for linux/amd64.
func (b *builder) manifest(mediaType string, layers ...[]byte) object {
	var list []object
	var ids []string
	layerType, configType := "application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.oci.image.config.v1+json"
	if mediaType == typeDockerManifest {
		layerType = "application/vnd.docker.image.rootfs.diff.tar.gzip"
		configType = "application/vnd.docker.container.image.v1+json"
	}
	for _, l := range layers {
		list = append(list, b.blob(layerType, l))
		ids = append(ids, diffID(b.t, l))
	}
	config := b.json(configType, object{
		"architecture": "amd64", "os": "linux", "config": object{"Cmd": []string{"/hello"}},
		"rootfs": object{"type": "layers", "diff_ids": ids},
	})
	return b.json(mediaType, object{"schemaVersion": 2, "mediaType": mediaType, "config": config, "layers": list})
}

func diffID(t testing.TB, layer []byte) string {
	r, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		return digest.FromBytes(layer).String() // no image that anybody unpacks
	}
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return digest.FromBytes(content).String()
}

// entry puts a descriptor into index.json.
func (b *builder) entry(d object, annotations map[string]string) {
	e := object{"annotations": annotations}
	for k, v := range d {
		e[k] = v
	}
	b.entries = append(b.entries, e)
}

func (b *builder) image(name string, d object) {
	b.entry(d, map[string]string{annotationImageName: name, annotationComponent: "test"})
}

// file puts in a file as bundles carry them.
func (b *builder) file(component, version, title string, platform object, content []byte) object {
	layer := b.blob("application/octet-stream", content)
	layer["annotations"] = object{ocispec.AnnotationTitle: title}
	d := b.json(ocispec.MediaTypeImageManifest, object{
		"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageManifest, "artifactType": "application/vnd.boxlift.file.v1",
		"config": b.blob("application/vnd.oci.empty.v1+json", []byte("{}")), "layers": []object{layer},
	})
	d["artifactType"] = "application/vnd.boxlift.file.v1"
	if platform != nil {
		d["platform"] = platform
	}
	b.entry(d, map[string]string{annotationComponent: component, annotationVersion: version,
		ocispec.AnnotationTitle: title})
	return d
}

// bytes lays everything out.
func (b *builder) bytes() []byte {
	index, err := json.Marshal(object{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageIndex,
		"manifests": b.entries})
	if err != nil {
		b.t.Fatal(err)
	}
	return b.layOut(index)
}

func (b *builder) layOut(index []byte) []byte {
	members := []ocitar.Member{{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(index))}}
	contents := [][]byte{[]byte(ocitar.LayoutContent), index}
	for _, m := range b.members { // some of them are damaged
		members, contents = append(members, m), append(contents, b.content[m.Name])
	}
	return ocilayout.Tar(b.t, members, contents)
}

func (b *builder) write(path string) {
	b.t.Helper()
	mustWrite(b.t, path, b.bytes())
}

func mustWrite(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// place puts a pack into a folder as boxlift does, by renaming.
func (b *builder) place(dir, name string) {
	b.t.Helper()
	part := filepath.Join(b.t.TempDir(), name)
	b.write(part)
	if err := os.Rename(part, filepath.Join(dir, name)); err != nil {
		b.t.Fatal(err)
	}
}

// layer is a real one, with one file of size bytes.
func layer(t testing.TB, name string, size int) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(size), Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(random(uint64(size), size)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// random makes bytes that are the same in every run.
func random(seed uint64, size int) []byte {
	content := make([]byte, size)
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24)})
	_, _ = source.Read(content) // it never fails
	return content
}

// referrer puts in a manifest that refers to a subject and does not say what it is.
func (b *builder) referrer(subject digest.Digest) object {
	config := b.blob("application/vnd.example.signature", []byte(`{"signature":true}`))
	return b.json(ocispec.MediaTypeImageManifest, object{
		"schemaVersion": 2, "config": config, "layers": []object{},
		"subject": object{"mediaType": ocispec.MediaTypeImageManifest, "digest": subject, "size": 7},
	})
}

// sample is a layout with one of each kind.
type sample struct {
	*builder
	// ubuntu is a sparse image index, ubuntuAMD64 what it has.
	ubuntu, ubuntuAMD64, ubuntuARM64 object
	// cilium is a manifest of Docker's, which sbom refers to.
	cilium, sbom object
	// lost refers to something that is not there.
	lost             object
	k3sAMD64, k3sARM object
	layer            []byte
}

func newSample(t testing.TB) *sample {
	s := &sample{builder: newBuilder(t), layer: layer(t, "hello", 100_000)}
	s.ubuntuAMD64 = s.manifest(ocispec.MediaTypeImageManifest, s.layer, layer(t, "second", 5000))
	s.ubuntuAMD64["platform"] = object{"os": "linux", "architecture": "amd64"}
	s.ubuntuARM64 = object{
		"mediaType": ocispec.MediaTypeImageManifest, "digest": digest.FromString("not carried"), "size": 11,
		"platform": object{"os": "linux", "architecture": "arm64"},
	}
	s.ubuntu = s.json(ocispec.MediaTypeImageIndex,
		object{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageIndex,
			"manifests": []object{s.ubuntuAMD64, s.ubuntuARM64}})
	s.image("docker.io/library/ubuntu:24.04", s.ubuntu)
	s.image("docker.io/library/ubuntu:Noble", s.ubuntu)
	s.image("docker.io/library/ubuntu:latest", s.ubuntu)

	s.cilium = s.manifest(typeDockerManifest, layer(t, "cilium", 20_000))
	s.image("quay.io/cilium/cilium:v1.20.0", s.cilium)
	empty := s.blob("application/vnd.oci.empty.v1+json", []byte("{}"))
	s.sbom = s.json(ocispec.MediaTypeImageManifest, object{
		"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageManifest, "artifactType": "application/spdx+json",
		"config": empty, "layers": []object{s.blob("application/spdx+json", []byte(`{"spdx":true}`))},
		"subject": s.cilium, "annotations": object{"kind": "sbom"},
	})
	s.entry(s.sbom, nil)
	s.lost = s.referrer(digest.FromString("nowhere"))
	s.entry(s.lost, nil)

	pause := s.manifest(ocispec.MediaTypeImageManifest, layer(t, "pause", 1000))
	s.image("docker.io/rancher/mirrored-pause:3.6", pause)
	s.image("registry.example.com:5000/rancher/mirrored-pause:3.6", pause)

	s.k3sAMD64 = s.file("k3s", "v1.36.4+k3s1", "k3s", object{"os": "linux", "architecture": "amd64"},
		[]byte("k3s for amd64"))
	s.k3sARM = s.file("k3s", "v1.36.4+k3s1", "k3s", object{"os": "linux", "architecture": "arm64"},
		[]byte("k3s for arm64"))
	s.file("k3s", "v1.36.4+k3s1", "install.sh", nil, []byte("#!/bin/sh\n"))
	s.file("lock", "", "versions.lock", nil, []byte("kind: Lock\n"))
	return s
}

// open writes the layout and serves it.
func (b *builder) open() *File {
	b.t.Helper()
	path := filepath.Join(b.t.TempDir(), "layout.tar")
	b.write(path)
	f, err := openFile(path)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(f.Close)
	return f
}

// openFile opens a layout as boxlift opens bundles.
func openFile(path string) (*File, error) {
	source, err := volume.Open(path)
	if err != nil {
		return nil, err
	}
	f, err := NewFile(source)
	if err != nil {
		_ = source.Close() // it was only read
	}
	return f, err
}

func text(o object, key string) string {
	switch v := o[key].(type) {
	case digest.Digest:
		return v.String()
	case string:
		return v
	}
	return ""
}

// discard is the log of tests that do not look at it.
var discard = slog.New(slog.DiscardHandler)

// buffer is a log that is written and read at the same time.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// lines is a log of which a test reads.
func lines(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

func isTar(name string) bool {
	return strings.HasPrefix(name, "boxlift-") && strings.HasSuffix(name, ".tar")
}
