package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/source"
)

// imageRoots gathers what the name of an image stands for. Archives hold one platform
// each, so that an image may come in parts.
type imageRoots struct {
	refs  []string
	parts map[string][]imagePart
}

// imagePart is one root of an image. platform is empty for an image from a registry,
// which was found to have all platforms.
type imagePart struct {
	platform lock.Platform
	root     ocispec.Descriptor
}

func newImageRoots() *imageRoots { return &imageRoots{parts: make(map[string][]imagePart)} }

func (r *imageRoots) add(ref string, platform lock.Platform, root ocispec.Descriptor) error {
	if err := format.CheckDescriptor(root, format.MaxManifestSize); err != nil {
		return err
	}
	if r.parts[ref] == nil {
		r.refs = append(r.refs, ref)
	}
	r.parts[ref] = append(r.parts[ref], imagePart{platform, root})
	return nil
}

// addArchive adds what an archive holds.
func (r *imageRoots) addArchive(c lock.Component, image lock.Image) error {
	for _, inside := range image.Contents.Images {
		root := ocispec.Descriptor{MediaType: inside.MediaType, Digest: inside.Digest, Size: inside.Size}
		if err := r.add(inside.Ref, image.Platform, root); err != nil {
			return fmt.Errorf("%s: %w", format.Label(c.Name, source.BaseName(image.Archive), image.Platform), err)
		}
	}
	return nil
}

// entry returns what a name stands for: the one root that all parts share, or else an
// index made from them, with its content. All wanted platforms must be there.
func (r *imageRoots) entry(ref string, wanted []lock.Platform) (ocispec.Descriptor, []byte, error) {
	parts := r.parts[ref]
	for _, p := range wanted {
		if !slices.ContainsFunc(
			parts, func(part imagePart) bool { return part.platform == "" || p.Match(part.platform) }) {
			missing := &format.MissingPlatformError{Platform: p}
			for _, part := range parts {
				missing.Has = append(missing.Has, part.platform)
			}
			return ocispec.Descriptor{}, nil, missing
		}
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, part := range parts {
		if slices.ContainsFunc(index.Manifests,
			func(d ocispec.Descriptor) bool { return d.Digest == part.root.Digest }) {
			continue
		}
		d := format.Plain(part.root)
		d.Platform = &ocispec.Platform{OS: part.platform.OS(), Architecture: part.platform.Architecture(),
			Variant: part.platform.Variant()}
		index.Manifests = append(index.Manifests, d)
	}
	if len(index.Manifests) == 1 {
		return format.Plain(parts[0].root), nil, nil
	}
	for _, part := range parts {
		if part.platform == "" || !format.IsManifest(part.root.MediaType) {
			return ocispec.Descriptor{}, nil, fmt.Errorf("the lock's entries disagree about what this image is: %s "+
				"and %s", index.Manifests[0].Digest, index.Manifests[1].Digest)
		}
	}
	content, err := json.Marshal(index)
	return format.DescriptorOf(ocispec.MediaTypeImageIndex, content), content, err
}

// CheckArchives finds images that archives do not have for all platforms, which the lock
// alone tells. Of a component with something that is not pinned yet, it does not.
func CheckArchives(l *lock.Lock) error {
	var errs []error
	for _, c := range l.Components {
		roots, err := lockedRoots(c, c.PlatformsIn(l))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, ref := range roots.refs {
			if _, _, err := roots.entry(ref, c.PlatformsIn(l)); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", format.Label(c.Name, ref, ""), err))
			}
		}
	}
	return errors.Join(errs...)
}

// lockedRoots are the images of a component, if all are pinned, or none. Of those in
// registries, which are asked, only the digest is known.
func lockedRoots(c lock.Component, platforms []lock.Platform) (*imageRoots, error) {
	roots := newImageRoots()
	for _, image := range c.Images {
		switch {
		case image.Ref != "" && image.Digest == "",
			image.Archive != "" && image.Contents == nil && format.Wanted(image.Platform, platforms):
			return newImageRoots(), nil
		case image.Ref != "":
			if err := roots.add(image.Ref, "", ocispec.Descriptor{Digest: image.Digest}); err != nil {
				return nil, fmt.Errorf("%s: %w", format.Label(c.Name, image.Ref, ""), err)
			}
		case format.Wanted(image.Platform, platforms):
			if err := roots.addArchive(c, image); err != nil {
				return nil, err
			}
		}
	}
	return roots, nil
}

// addRoots writes the entries of a component's images into index.json.
func (p *planner) addRoots(c lock.Component, roots *imageRoots) error {
	for _, ref := range roots.refs {
		d, content, err := roots.entry(ref, c.PlatformsIn(p.options.Lock))
		if err != nil {
			return fmt.Errorf("%s: %w", format.Label(c.Name, ref, ""), err)
		}
		if content != nil {
			p.placeContent(&p.json, d, content, "")
		}
		d.MediaType = format.OCIMediaType(d.MediaType)
		d.Annotations = format.Annotations(c.Name, c.Version)
		d.Annotations[format.AnnotationImageName] = ref
		d.Annotations[ocispec.AnnotationRefName] = ref
		p.plan.Entries = append(p.plan.Entries, d)
	}
	return nil
}
