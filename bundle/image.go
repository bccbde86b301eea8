package bundle

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/source"
)

// errAbsent is returned by a jsonReader for a blob that is not there.
var errAbsent = errors.New("not there")

// jsonReader returns a manifest, index or config, verified against its descriptor.
type jsonReader func(ocispec.Descriptor) ([]byte, error)

func isIndex(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageIndex || mediaType == source.DockerManifestList
}

func isManifest(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageManifest || mediaType == source.DockerManifest
}

// imagePlatforms follows an image from its root down to the platforms that are wanted,
// or, when none are named, to all whose manifest is there. Manifests of other platforms
// are not read: an index may be sparse.
func imagePlatforms(root ocispec.Descriptor, wanted []lock.Platform, read jsonReader) ([]PlatformImage, error) {
	if isManifest(root.MediaType) {
		image, err := readManifest(root, read)
		if err != nil {
			return nil, err
		}
		if image.Platform, err = configPlatform(image.Config, read); err != nil {
			return nil, err
		}
		for _, p := range wanted {
			if !p.Match(image.Platform) {
				return nil, &missingPlatformError{platform: p, has: []lock.Platform{image.Platform}}
			}
		}
		return []PlatformImage{image}, nil
	}
	if !isIndex(root.MediaType) {
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
		if d.Platform == nil || !isManifest(d.MediaType) {
			continue
		}
		image, err := readManifest(d, read)
		if errors.Is(err, errAbsent) {
			continue
		}
		if err != nil {
			return nil, err
		}
		image.Platform = platformOf(*d.Platform)
		images = append(images, image)
	}
	return images, nil
}

func wantedPlatforms(index *ocispec.Index, wanted []lock.Platform, read jsonReader) ([]PlatformImage, error) {
	images := make([]PlatformImage, 0, len(wanted))
	for _, p := range wanted {
		d, err := choosePlatform(index, p)
		if err != nil {
			return nil, err
		}
		image, err := readManifest(d, read)
		if err != nil {
			return nil, err
		}
		image.Platform = p
		images = append(images, image)
	}
	return images, nil
}

// checkPlatforms finds out whether an image is published for the platforms that are wanted.
// Of an index, it reads no more than that.
func checkPlatforms(root ocispec.Descriptor, wanted []lock.Platform, read jsonReader) error {
	if !isIndex(root.MediaType) {
		_, err := imagePlatforms(root, wanted, read)
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

// missingPlatformError says that an image is not published for a platform.
type missingPlatformError struct {
	platform lock.Platform
	has      []lock.Platform
}

func (e *missingPlatformError) Error() string {
	return fmt.Sprintf("the image is not published for %s, only for %v", e.platform, e.has)
}

func (e *missingPlatformError) Is(target error) bool { return target == ErrUpstream }

func (e *missingPlatformError) Hint() string {
	return "narrow the component's platforms in the lock, or choose an image that has them all"
}

// choosePlatform returns the first manifest of an index that runs on p, as container
// runtimes choose it.
func choosePlatform(index *ocispec.Index, p lock.Platform) (ocispec.Descriptor, error) {
	missing := &missingPlatformError{platform: p}
	for _, d := range index.Manifests {
		if d.Platform == nil || !isManifest(d.MediaType) {
			continue
		}
		has := platformOf(*d.Platform)
		if p.Match(has) {
			return d, nil
		}
		// Build tools file attestations under a platform that is none.
		if d.Platform.OS != "unknown" {
			missing.has = append(missing.has, has)
		}
	}
	return ocispec.Descriptor{}, missing
}

// platformOf names a platform without the one variant that arm64 has.
func platformOf(p ocispec.Platform) lock.Platform {
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" && (p.Architecture != "arm64" || p.Variant != "v8") {
		s += "/" + p.Variant
	}
	return lock.Platform(s)
}

func readIndex(d ocispec.Descriptor, read jsonReader) (*ocispec.Index, error) {
	content, err := read(d)
	if err != nil {
		return nil, err
	}
	var index ocispec.Index
	if err := boundedjson.Unmarshal(content, &index, maxManifestValues); err != nil {
		return nil, fmt.Errorf("image index %s: %w", d.Digest, err)
	}
	for _, m := range index.Manifests {
		if err := checkDescriptor(m, maxManifestSize); err != nil {
			return nil, fmt.Errorf("image index %s: %w", d.Digest, err)
		}
	}
	return &index, nil
}

func readManifest(d ocispec.Descriptor, read jsonReader) (PlatformImage, error) {
	content, err := read(d)
	if err != nil {
		return PlatformImage{}, err
	}
	var manifest ocispec.Manifest
	if err := boundedjson.Unmarshal(content, &manifest, maxManifestValues); err != nil {
		return PlatformImage{}, fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	if err := checkDescriptor(manifest.Config, maxConfigSize); err != nil {
		return PlatformImage{}, fmt.Errorf("manifest %s: config: %w", d.Digest, err)
	}
	for i, layer := range manifest.Layers {
		if err := checkDescriptor(layer, 0); err != nil {
			return PlatformImage{}, fmt.Errorf("manifest %s: layer %d: %w", d.Digest, i, err)
		}
		if len(layer.URLs) > 0 {
			return PlatformImage{}, fmt.Errorf("manifest %s: layer %d is to be fetched from foreign addresses, which no bundle can carry", d.Digest, i)
		}
	}
	return PlatformImage{Manifest: plain(d), Config: plain(manifest.Config), Layers: plainAll(manifest.Layers)}, nil
}

func configPlatform(d ocispec.Descriptor, read jsonReader) (lock.Platform, error) {
	content, err := read(d)
	if err != nil {
		return "", err
	}
	var config ocispec.Image
	if err := boundedjson.Unmarshal(content, &config, maxManifestValues); err != nil {
		return "", fmt.Errorf("image config %s: %w", d.Digest, err)
	}
	return platformOf(config.Platform), nil
}

// ownMediaType returns what a manifest or index says of itself, or else what its
// descriptor says. Docker's always say it.
func ownMediaType(d ocispec.Descriptor, read jsonReader) (string, error) {
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

// plain keeps of a descriptor what identifies the content.
func plain(d ocispec.Descriptor) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
}

func plainAll(all []ocispec.Descriptor) []ocispec.Descriptor {
	result := make([]ocispec.Descriptor, len(all))
	for i, d := range all {
		result[i] = plain(d)
	}
	return result
}

// checkDescriptor refuses descriptors that cannot name a blob of a bundle. A limit of 0
// allows any size.
func checkDescriptor(d ocispec.Descriptor, limit int64) error {
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

// fileManifest returns the OCI artifact manifest that carries one file (OCI image-spec
// 1.1, manifest.md, "Guidelines for Artifact Usage").
func fileManifest(artifactType string, layer ocispec.Descriptor, title string) ([]byte, error) {
	layer.Annotations = map[string]string{ocispec.AnnotationTitle: title}
	content, err := json.Marshal(ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: artifactType,
		Config:       plain(ocispec.DescriptorEmptyJSON),
		Layers:       []ocispec.Descriptor{layer},
	})
	if err != nil {
		return nil, fmt.Errorf("make the manifest of %s: %w", title, err)
	}
	return content, nil
}

// descriptorOf describes content that is at hand.
func descriptorOf(mediaType string, content []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
}
