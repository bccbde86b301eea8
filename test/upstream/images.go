package upstream

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// blob is one blob in the registry.
type blob struct {
	Digest    digest.Digest
	Size      int64
	MediaType string
}

func (b blob) descriptor() ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: b.MediaType, Digest: b.Digest, Size: b.Size}
}

// manifest is the manifest of an image for one platform with all that it names.
type manifest struct {
	Arch   string // "" for an attestation
	Blob   blob
	Config blob
	Layers []blob
}

// builtImage is an image in the registry.
type builtImage struct {
	Component component
	Ref       string
	Root      blob          // the index, or the manifest of a plain image
	Manifests []manifest    // in the order of the index
	Rebuild   digest.Digest // what MoveTag moves the tag to
}

// Docker's media types, which the image specification does not name.
const (
	dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	dockerLayer    = "application/vnd.docker.image.rootfs.diff.tar.gzip"
)

// storage is a folder in the form of distribution's filesystem driver.
type storage string

const storageRoot = "docker/registry/v2"

func (s storage) blobPath(d digest.Digest) string {
	return filepath.Join(string(s), storageRoot, "blobs", d.Algorithm().String(), d.Encoded()[:2], d.Encoded(), "data")
}

// create adds the blob that write writes. The media type is left to the caller.
func (s storage) create(write func(io.Writer) error) (blob, error) {
	f, err := os.CreateTemp(string(s), "blob-*")
	if err != nil {
		return blob{}, err
	}
	defer func() { _ = os.Remove(f.Name()) }() // renamed by then if all is well
	defer func() { _ = f.Close() }()           // closed by then if all is well
	hash := sha256.New()
	count := &countingWriter{w: io.MultiWriter(f, hash)}
	if err := write(count); err != nil {
		return blob{}, err
	}
	if err := f.Close(); err != nil {
		return blob{}, err
	}
	if err := os.Chmod(f.Name(), 0o644); err != nil {
		return blob{}, err
	}
	b := blob{Digest: digest.NewDigest(digest.SHA256, hash), Size: count.n}
	name := s.blobPath(b.Digest)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return blob{}, err
	}
	return b, os.Rename(f.Name(), name)
}

// link adds a blob to a repository. where is the place in the repository's folder.
func (s storage) link(repository, where string, d digest.Digest) error {
	name := filepath.Join(string(s), storageRoot, "repositories", repository, where, "link")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(d), 0o644)
}

func (s storage) linkLayer(repository string, d digest.Digest) error {
	return s.link(repository, filepath.Join("_layers", d.Algorithm().String(), d.Encoded()), d)
}

func (s storage) linkManifest(repository string, d digest.Digest) error {
	return s.link(repository, filepath.Join("_manifests/revisions", d.Algorithm().String(), d.Encoded()), d)
}

func (s storage) linkTag(repository, tag string, d digest.Digest) error {
	dir := filepath.Join("_manifests/tags", tag)
	if err := s.link(repository, filepath.Join(dir, "index", d.Algorithm().String(), d.Encoded()), d); err != nil {
		return err
	}
	return s.link(repository, filepath.Join(dir, "current"), d)
}

// imageBuilder puts one image into the storage.
type imageBuilder struct {
	storage
	spec       imageSpec
	repository string
	layers     map[layerKey]layer
	created    time.Time
}

// buildImage builds an image and its rebuild, and points the tag to the first.
func buildImage(s storage, spec imageSpec, layers map[layerKey]layer) (builtImage, error) {
	repository, tag, _ := strings.Cut(spec.Ref, ":")
	b := &imageBuilder{storage: s, spec: spec, repository: repository, layers: layers, created: modified.AddDate(0, 0, 1)}
	rebuild, _, err := b.build()
	if err != nil {
		return builtImage{}, fmt.Errorf("build %s again: %w", spec.Ref, err)
	}
	b.created = modified
	root, manifests, err := b.build()
	if err != nil {
		return builtImage{}, fmt.Errorf("build %s: %w", spec.Ref, err)
	}
	if err := s.linkTag(repository, tag, root.Digest); err != nil {
		return builtImage{}, err
	}
	return builtImage{Component: spec.Component, Ref: spec.Ref, Root: root, Manifests: manifests, Rebuild: rebuild.Digest}, nil
}

// putJSON adds a JSON blob. Indented JSON is what some upstreams have, and shows whether
// a reader keeps the bytes as they are.
func (b *imageBuilder) putJSON(v any, mediaType, indent string) (blob, error) {
	data, err := json.MarshalIndent(v, "", indent)
	if indent == "" {
		data, err = json.Marshal(v)
	}
	if err != nil {
		return blob{}, err
	}
	put, err := b.create(func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
	put.MediaType = mediaType
	return put, err
}

func (b *imageBuilder) putManifest(v any, mediaType, indent string) (blob, error) {
	put, err := b.putJSON(v, mediaType, indent)
	if err != nil {
		return blob{}, err
	}
	return put, b.linkManifest(b.repository, put.Digest)
}

func (b *imageBuilder) build() (root blob, manifests []manifest, err error) {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	indent := "  "
	if b.spec.Docker {
		index.MediaType, indent = dockerIndex, "   "
	}
	for _, arch := range b.spec.arches() {
		m, err := b.manifest(arch)
		if err != nil {
			return blob{}, nil, err
		}
		manifests = append(manifests, m)
		d := m.Blob.descriptor()
		d.Platform = b.platform(arch)
		index.Manifests = append(index.Manifests, d)
	}
	if b.spec.Plain {
		return manifests[0].Blob, manifests[:1], nil
	}
	if b.spec.Attested {
		for _, m := range manifests {
			attestation, err := b.attestation(m)
			if err != nil {
				return blob{}, nil, err
			}
			manifests = append(manifests, attestation)
			d := attestation.Blob.descriptor()
			d.Platform = &ocispec.Platform{OS: "unknown", Architecture: "unknown"}
			d.Annotations = map[string]string{
				"vnd.docker.reference.digest": m.Blob.Digest.String(),
				"vnd.docker.reference.type":   "attestation-manifest",
			}
			index.Manifests = append(index.Manifests, d)
		}
	}
	root, err = b.putManifest(index, index.MediaType, indent)
	return root, manifests, err
}

func (b *imageBuilder) platform(arch string) *ocispec.Platform {
	p := &ocispec.Platform{OS: "linux", Architecture: arch}
	if arch == "arm64" && b.spec.Variant {
		p.Variant = "v8"
	}
	return p
}

func (b *imageBuilder) manifest(arch string) (manifest, error) {
	entrypoint, command := strings.Fields(b.spec.Entrypoint), strings.Fields(b.spec.Cmd)
	if len(entrypoint)+len(command) == 0 {
		entrypoint = []string{"/usr/bin/env"}
	}
	started, how := entrypoint, "ENTRYPOINT "
	if len(entrypoint) == 0 {
		started, how = command, "CMD "
	}
	startedJSON, err := json.Marshal(started)
	if err != nil {
		return manifest{}, err
	}
	config := ocispec.Image{
		Created:  &b.created,
		Platform: *b.platform(arch),
		Config: ocispec.ImageConfig{
			Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Entrypoint: entrypoint,
			Cmd:        command,
			WorkingDir: b.spec.Dir,
		},
		RootFS: ocispec.RootFS{Type: "layers"},
	}
	m := manifest{Arch: arch}
	for _, spec := range b.spec.Layers {
		l := b.layers[layerKey{spec.Name, arch}]
		blob := l.blob
		blob.MediaType = ocispec.MediaTypeImageLayerGzip
		switch {
		case b.spec.Docker:
			blob.MediaType = dockerLayer
		case l.zstd:
			blob.MediaType = ocispec.MediaTypeImageLayerZstd
		}
		m.Layers = append(m.Layers, blob)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.diffID)
		config.History = append(config.History, ocispec.History{Created: &b.created, CreatedBy: "COPY " + spec.Name + " /"})
	}
	config.History = append(config.History, ocispec.History{Created: &b.created, CreatedBy: how + string(startedJSON), EmptyLayer: true})
	return m, b.finish(&m, config)
}

// attestation is what buildx adds for each platform: a manifest that looks like an image
// and holds statements instead of layers.
func (b *imageBuilder) attestation(of manifest) (manifest, error) {
	statement, err := b.putJSON(map[string]any{
		"_type":         "https://in-toto.io/Statement/v0.1",
		"predicateType": "https://slsa.dev/provenance/v0.2",
		"subject": []any{map[string]any{
			"name": b.spec.Ref, "digest": map[string]string{"sha256": of.Blob.Digest.Encoded()}}},
		"predicate": map[string]any{"builder": map[string]string{"id": ""}},
	}, "application/vnd.in-toto+json", "")
	if err != nil {
		return manifest{}, err
	}
	m := manifest{Layers: []blob{statement}}
	config := ocispec.Image{
		Platform: ocispec.Platform{OS: "unknown", Architecture: "unknown"},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{statement.Digest}},
	}
	return m, b.finish(&m, config)
}

// finish puts the configuration and the manifest of m, whose layers are known.
func (b *imageBuilder) finish(m *manifest, config ocispec.Image) (err error) {
	configType, manifestType, indent := ocispec.MediaTypeImageConfig, ocispec.MediaTypeImageManifest, "  "
	if b.spec.Docker {
		configType, manifestType, indent = dockerConfig, dockerManifest, "   "
	}
	if m.Config, err = b.putJSON(config, configType, ""); err != nil {
		return err
	}
	document := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: manifestType, Config: m.Config.descriptor(),
	}
	for _, l := range m.Layers {
		d := l.descriptor()
		if m.Arch == "" {
			d.Annotations = map[string]string{"in-toto.io/predicate-type": "https://slsa.dev/provenance/v0.2"}
		}
		document.Layers = append(document.Layers, d)
	}
	for _, l := range append([]blob{m.Config}, m.Layers...) {
		if err := b.linkLayer(b.repository, l.Digest); err != nil {
			return err
		}
	}
	m.Blob, err = b.putManifest(document, manifestType, indent)
	return err
}
