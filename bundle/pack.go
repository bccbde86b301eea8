package bundle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/format"
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

// PackOptions say what packs are to hold. The zero value is all that a node of the platform
// can run.
type PackOptions struct {
	// Boot leaves out what a node can start without, when it is to pull everything else: of
	// k3s' images it keeps the one for the sandboxes of pods and the cluster's DNS, of
	// Cilium's all, of other components none.
	Boot bool
}

// The components that hold what a node needs to start.
const (
	k3sComponent    = "k3s"
	ciliumComponent = "cilium"
)

// bootImages are k3s' images that a node needs to start, by the last parts that the names
// of their repositories may have: upstream's own, and that of its copies for k3s.
var bootImages = []struct {
	purpose      string
	repositories []string
}{
	{"the sandboxes of pods", []string{"mirrored-pause", "pause"}},
	{"the cluster's DNS", []string{"mirrored-coredns-coredns", "coredns"}},
}

// Packs returns what a node of the platform needs, in the order of the components.
func (r *Reader) Packs(platform lock.Platform, o PackOptions) ([]Pack, error) {
	contents, err := r.Contents()
	if err != nil {
		return nil, err
	}
	images := slices.DeleteFunc(slices.Clone(contents.Images), func(i Image) bool { return i.on(platform) == nil })
	if o.Boot {
		if images, err = onlyBoot(images); err != nil {
			return nil, fmt.Errorf("bundle %s: packs with what a node of %s needs to start: %w", r.path, platform, err)
		}
	}
	var packs []Pack
	for _, component := range contents.Describe() {
		pack, err := packOf(r, images, component.Name, platform)
		if err != nil {
			return nil, fmt.Errorf("bundle %s: pack of %s for %s: %w", r.path, component.Name, platform, err)
		}
		if pack != nil {
			packs = append(packs, *pack)
		}
	}
	return packs, nil
}

// onlyBoot keeps the images that a node needs to start.
func onlyBoot(images []Image) ([]Image, error) {
	var kept []Image
	found := make([]bool, len(bootImages))
	cilium := false
	for _, image := range images {
		switch image.Component {
		case ciliumComponent:
			cilium = true
			kept = append(kept, image)
		case k3sComponent:
			repository := lastPart(image.Name)
			for i, boot := range bootImages {
				if slices.Contains(boot.repositories, repository) {
					found[i] = true
					kept = append(kept, image)
				}
			}
		}
	}
	for i, boot := range bootImages {
		if !found[i] {
			return nil, fmt.Errorf("component %s has no image for %s: expected one whose repository ends with /%s",
				k3sComponent, boot.purpose, strings.Join(boot.repositories, " or /"))
		}
	}
	if !cilium {
		return nil, fmt.Errorf("component %s has no images", ciliumComponent)
	}
	return kept, nil
}

// lastPart is the last part of the name of an image's repository, without tag and digest.
func lastPart(name string) string {
	name, _, _ = strings.Cut(name[strings.LastIndex(name, "/")+1:], "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}

func packOf(r *Reader, images []Image, component string, platform lock.Platform) (*Pack, error) {
	pack := Pack{Component: component, Platform: platform}
	var chosen []Image
	for _, image := range images {
		if image.Component == component {
			image.Platforms = []format.PlatformImage{*image.on(platform)}
			chosen = append(chosen, image)
			pack.Images = append(pack.Images, image.Name)
		}
	}
	if len(chosen) == 0 {
		return nil, nil
	}
	layout, err := r.ImageLayout(chosen, format.PackArtifactType)
	if err != nil {
		return nil, err
	}
	pack.Index, pack.Blobs = layout.Index, layout.Blobs
	pack.Digest = digest.FromBytes(pack.Index)
	placed, err := layout.Place()
	if err != nil {
		return nil, err
	}
	pack.Size = placed.Size
	return &pack, nil
}

// ImageLayout is an OCI layout with some images of a bundle.
type ImageLayout struct {
	// Index is its index.json.
	Index []byte
	// Blobs are in the order of the file.
	Blobs []ocitar.Member
}

// ImageLayout returns the layout of images, with those of their platforms that are in them.
// The artifact type is that of its index.json; "" for none.
func (r *Reader) ImageLayout(images []Image, artifactType string) (*ImageLayout, error) {
	index := ocispec.Index{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageIndex,
		ArtifactType: artifactType,
	}
	blobs := make(map[digest.Digest]ocitar.Entry)
	for _, image := range images {
		root := ocispec.Descriptor{MediaType: format.OCIMediaType(image.MediaType), Digest: image.Digest,
			Size: image.Size}
		needed := []ocispec.Descriptor{root}
		for _, p := range image.Platforms {
			needed = append(needed, p.Blobs()...)
		}
		for _, d := range needed {
			e, ok := r.tar.Blob(d.Digest)
			if !ok {
				return nil, errMissing(d.Digest, image.Name)
			}
			blobs[d.Digest] = e
		}
		root.Annotations = format.Annotations(image.Component, image.Version)
		root.Annotations[format.AnnotationImageName] = image.Name
		root.Annotations[ocispec.AnnotationRefName] = image.Name
		index.Manifests = append(index.Manifests, root)
	}
	content, err := json.Marshal(index)
	if err != nil {
		return nil, err
	}
	order := make([]ocitar.Entry, 0, len(blobs))
	for _, e := range blobs {
		order = append(order, e)
	}
	// The bundle's order, small JSON first, serves other readers as well.
	slices.SortFunc(order, func(a, b ocitar.Entry) int { return cmp.Compare(a.Offset, b.Offset) })
	l := &ImageLayout{Index: content}
	for _, e := range order {
		l.Blobs = append(l.Blobs, e.Member)
	}
	return l, nil
}

// Place lays the tar out.
func (l *ImageLayout) Place() (*ocitar.Layout, error) {
	return ocitar.NewLayout(append([]ocitar.Member{
		{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(l.Index))},
	}, l.Blobs...))
}
