package format

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/lock"
)

// JSONReader returns a manifest, index or config, verified against its descriptor.
type JSONReader func(ocispec.Descriptor) ([]byte, error)

// IsIndex reports whether a media type is that of an image index, OCI's or Docker's.
func IsIndex(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageIndex || mediaType == DockerManifestList
}

// IsManifest reports whether a media type is that of an image manifest, OCI's or Docker's.
func IsManifest(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageManifest || mediaType == DockerManifest
}

// Platforms follows an image from its root down to the platforms that are wanted,
// or, when none are named, to all whose manifest is there. Manifests of other platforms
// are not read: an index may be sparse.
func Platforms(root ocispec.Descriptor, wanted []lock.Platform, read JSONReader) ([]PlatformImage, error) {
	if IsManifest(root.MediaType) {
		image, err := ReadManifest(root, read)
		if err != nil {
			return nil, err
		}
		if image.Platform, err = configPlatform(image.Config, read); err != nil {
			return nil, err
		}
		for _, p := range wanted {
			if !p.Match(image.Platform) {
				return nil, &MissingPlatformError{Platform: p, Has: []lock.Platform{image.Platform}}
			}
		}
		return []PlatformImage{image}, nil
	}
	if !IsIndex(root.MediaType) {
		return nil, fmt.Errorf("%s is neither an image manifest nor an image index but %q", root.Digest, root.MediaType)
	}
	index, err := readIndex(root, read)
	if err != nil {
		return nil, err
	}
	if len(wanted) > 0 {
		return wantedPlatforms(index, wanted, read)
	}
	var images []PlatformImage
	for _, d := range index.Manifests {
		if d.Platform == nil || !IsManifest(d.MediaType) {
			continue
		}
		image, err := ReadManifest(d, read)
		if errors.Is(err, ErrAbsent) {
			continue
		}
		if err != nil {
			return nil, err
		}
		image.Platform = PlatformOf(*d.Platform)
		images = append(images, image)
	}
	return images, nil
}

func wantedPlatforms(index *ocispec.Index, wanted []lock.Platform, read JSONReader) ([]PlatformImage, error) {
	images := make([]PlatformImage, 0, len(wanted))
	for _, p := range wanted {
		d, err := choosePlatform(index, p)
		if err != nil {
			return nil, err
		}
		image, err := ReadManifest(d, read)
		if err != nil {
			return nil, err
		}
		image.Platform = p
		images = append(images, image)
	}
	return images, nil
}

// CheckPlatforms finds out whether an image is published for the platforms that are wanted.
// Of an index, it reads no more than that.
func CheckPlatforms(root ocispec.Descriptor, wanted []lock.Platform, read JSONReader) error {
	if !IsIndex(root.MediaType) {
		_, err := Platforms(root, wanted, read)
		return err
	}
	index, err := readIndex(root, read)
	if err != nil {
		return err
	}
	for _, p := range wanted {
		if _, err := choosePlatform(index, p); err != nil {
			return err
		}
	}
	return nil
}

// MissingPlatformError says that an image is not published for a platform.
type MissingPlatformError struct {
	Platform lock.Platform
	Has      []lock.Platform
}

func (e *MissingPlatformError) Error() string {
	return fmt.Sprintf("the image is not published for %s, only for %v", e.Platform, e.Has)
}

// Unwrap makes it an [ErrUpstream].
func (e *MissingPlatformError) Unwrap() error { return ErrUpstream }

// Hint says how to go on.
func (e *MissingPlatformError) Hint() string {
	return "narrow the component's platforms in the lock, or choose an image that has them all"
}

// choosePlatform returns the first manifest of an index that runs on p, as container
// runtimes choose it.
func choosePlatform(index *ocispec.Index, p lock.Platform) (ocispec.Descriptor, error) {
	missing := &MissingPlatformError{Platform: p}
	for _, d := range index.Manifests {
		if d.Platform == nil || !IsManifest(d.MediaType) {
			continue
		}
		has := PlatformOf(*d.Platform)
		if p.Match(has) {
			return d, nil
		}
		// Build tools file attestations under a platform that is none.
		if d.Platform.OS != "unknown" {
			missing.Has = append(missing.Has, has)
		}
	}
	return ocispec.Descriptor{}, missing
}

// PlatformOf names a platform without the one variant that arm64 has.
func PlatformOf(p ocispec.Platform) lock.Platform {
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" && (p.Architecture != "arm64" || p.Variant != "v8") {
		s += "/" + p.Variant
	}
	return lock.Platform(s)
}

func readIndex(d ocispec.Descriptor, read JSONReader) (*ocispec.Index, error) {
	content, err := read(d)
	if err != nil {
		return nil, err
	}
	var index ocispec.Index
	if err := boundedjson.Unmarshal(content, &index, maxManifestValues); err != nil {
		return nil, fmt.Errorf("image index %s: %w", d.Digest, err)
	}
	for _, m := range index.Manifests {
		if err := CheckDescriptor(m, MaxManifestSize); err != nil {
			return nil, fmt.Errorf("image index %s: %w", d.Digest, err)
		}
	}
	return &index, nil
}

// ReadManifest reads an image manifest, or the manifest of a file. What platform it is for is not in
// it.
func ReadManifest(d ocispec.Descriptor, read JSONReader) (PlatformImage, error) {
	content, err := read(d)
	if err != nil {
		return PlatformImage{}, err
	}
	var manifest ocispec.Manifest
	if err := boundedjson.Unmarshal(content, &manifest, maxManifestValues); err != nil {
		return PlatformImage{}, fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	if err := CheckDescriptor(manifest.Config, MaxConfigSize); err != nil {
		return PlatformImage{}, fmt.Errorf("manifest %s: config: %w", d.Digest, err)
	}
	for i, layer := range manifest.Layers {
		if err := CheckDescriptor(layer, 0); err != nil {
			return PlatformImage{}, fmt.Errorf("manifest %s: layer %d: %w", d.Digest, i, err)
		}
		if len(layer.URLs) > 0 {
			return PlatformImage{}, fmt.Errorf(
				"manifest %s: layer %d is to be fetched from foreign addresses, which no bundle can carry", d.Digest, i)
		}
	}
	return PlatformImage{Manifest: Plain(d), Config: Plain(manifest.Config), Layers: plainAll(manifest.Layers)}, nil
}

func configPlatform(d ocispec.Descriptor, read JSONReader) (lock.Platform, error) {
	content, err := read(d)
	if err != nil {
		return "", err
	}
	var config ocispec.Image
	if err := boundedjson.Unmarshal(content, &config, maxManifestValues); err != nil {
		return "", fmt.Errorf("image config %s: %w", d.Digest, err)
	}
	return PlatformOf(config.Platform), nil
}

// OwnMediaType returns what a manifest or index says of itself, or else what its
// descriptor says. Docker's always say it.
func OwnMediaType(d ocispec.Descriptor, read JSONReader) (string, error) {
	content, err := read(d)
	if err != nil {
		return "", err
	}
	var own struct {
		MediaType string `json:"mediaType"`
	}
	if err := boundedjson.Unmarshal(content, &own, maxManifestValues); err != nil {
		return "", fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	if own.MediaType == "" {
		return d.MediaType, nil
	}
	return own.MediaType, nil
}

// Plain keeps of a descriptor what identifies the content.
func Plain(d ocispec.Descriptor) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
}

func plainAll(all []ocispec.Descriptor) []ocispec.Descriptor {
	result := make([]ocispec.Descriptor, len(all))
	for i, d := range all {
		result[i] = Plain(d)
	}
	return result
}

// CheckDescriptor refuses descriptors that cannot name a blob of a bundle. A limit of 0
// allows any size.
func CheckDescriptor(d ocispec.Descriptor, limit int64) error {
	if err := d.Digest.Validate(); err != nil {
		return fmt.Errorf("digest %q: %w", d.Digest, err)
	}
	if d.Digest.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest %s: only sha256 is supported", d.Digest)
	}
	if d.Size < 0 || limit > 0 && d.Size > limit {
		return fmt.Errorf("%s: its size of %d bytes is out of bounds", d.Digest, d.Size)
	}
	return nil
}

// FileManifest returns the OCI artifact manifest that carries one file (OCI image-spec
// 1.1, manifest.md, "Guidelines for Artifact Usage").
func FileManifest(artifactType string, layer ocispec.Descriptor, title string) ([]byte, error) {
	layer.Annotations = map[string]string{ocispec.AnnotationTitle: title}
	content, err := json.Marshal(ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: artifactType,
		Config:       Plain(ocispec.DescriptorEmptyJSON),
		Layers:       []ocispec.Descriptor{layer},
	})
	if err != nil {
		return nil, fmt.Errorf("make the manifest of %s: %w", title, err)
	}
	return content, nil
}

// DescriptorOf describes content that is at hand.
func DescriptorOf(mediaType string, content []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
}

// PlatformImage is what an image is on one platform.
type PlatformImage struct {
	Platform lock.Platform        `json:"platform"`
	Manifest ocispec.Descriptor   `json:"manifest"`
	Config   ocispec.Descriptor   `json:"config"`
	Layers   []ocispec.Descriptor `json:"layers"`
}

// Blobs returns everything that has to be there for the image to run, the manifest
// first.
func (p PlatformImage) Blobs() []ocispec.Descriptor {
	return append([]ocispec.Descriptor{p.Manifest, p.Config}, p.Layers...)
}

// Size returns the sum of the sizes of manifest, config and layers in bytes.
func (p PlatformImage) Size() int64 {
	var n int64
	for _, d := range p.Blobs() {
		n += d.Size
	}
	return n
}

// OCIMediaType is how index.json announces an image: an OCI layout has no others, and
// skopeo passes over entries with Docker's. The content keeps its own, and its bytes.
func OCIMediaType(mediaType string) string {
	switch mediaType {
	case DockerManifestList:
		return ocispec.MediaTypeImageIndex
	case DockerManifest:
		return ocispec.MediaTypeImageManifest
	}
	return mediaType
}
