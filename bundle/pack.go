package bundle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// Pack is a slice of a bundle: the images of one component for one platform, as an OCI
// layout in a tar of its own, of the same form as a bundle without a signature. A node
// keeps it in k3s' image folder, and k3s imports it as it is.
type Pack struct {
	Component string
	Platform  lock.Platform
	// Digest is the sha256 of Index, which through the manifests covers all of the pack.
	Digest digest.Digest
	// Index is the pack's index.json.
	Index []byte
	// Blobs are the blobs in the order of the file.
	Blobs []ocitar.Member
	// Images are the names that the pack brings.
	Images []string
	// Size is that of the whole file in bytes.
	Size int64
}

// Packs returns what a node of the platform needs, in the order of the components.
func (r *Reader) Packs(platform lock.Platform) ([]Pack, error) {
	contents, err := r.Contents()
	if err != nil {
		return nil, err
	}
	var packs []Pack
	for _, component := range contents.Describe() {
		pack, err := r.pack(contents, component.Name, platform)
		if err != nil {
			return nil, fmt.Errorf("bundle %s: pack of %s for %s: %w", r.path, component.Name, platform, err)
		}
		if pack != nil {
			packs = append(packs, *pack)
		}
	}
	return packs, nil
}

func (r *Reader) pack(contents *Contents, component string, platform lock.Platform) (*Pack, error) {
	pack := Pack{Component: component, Platform: platform}
	index := ocispec.Index{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageIndex,
		ArtifactType: PackArtifactType,
	}
	blobs := make(map[digest.Digest]ocitar.Entry)
	for _, image := range contents.Images {
		if image.Component != component {
			continue
		}
		i := slices.IndexFunc(image.Platforms, func(p PlatformImage) bool { return platform.Match(p.Platform) })
		if i < 0 {
			continue
		}
		root := ocispec.Descriptor{MediaType: ociMediaType(image.MediaType), Digest: image.Digest, Size: image.Size}
		for _, d := range append(image.Platforms[i].blobs(), root) {
			e, ok := r.tar.Blob(d.Digest)
			if !ok {
				return nil, errMissing(d.Digest, image.Name)
			}
			blobs[d.Digest] = e
		}
		root.Annotations = annotations(image.Component, image.Version)
		root.Annotations[AnnotationImageName] = image.Name
		root.Annotations[ocispec.AnnotationRefName] = image.Name
		index.Manifests = append(index.Manifests, root)
		pack.Images = append(pack.Images, image.Name)
	}
	if len(index.Manifests) == 0 {
		return nil, nil
	}
	var err error
	if pack.Index, err = json.Marshal(index); err != nil {
		return nil, err
	}
	pack.Digest = digest.FromBytes(pack.Index)
	members := []ocitar.Member{
		{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(pack.Index))},
	}
	order := make([]ocitar.Entry, 0, len(blobs))
	for _, e := range blobs {
		order = append(order, e)
	}
	// The bundle's order, small JSON first, serves a node as well.
	slices.SortFunc(order, func(a, b ocitar.Entry) int { return cmp.Compare(a.Offset, b.Offset) })
	for _, e := range order {
		pack.Blobs = append(pack.Blobs, e.Member)
	}
	layout, err := ocitar.NewLayout(append(members, pack.Blobs...))
	if err != nil {
		return nil, err
	}
	pack.Size = layout.Size
	return &pack, nil
}
