package plan

import (
	"context"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/internal/parallel"
)

// Registry is what a plan is made from beside files: what tags stand for, and manifests and
// configs by digest, proven. [source.Client] is one.
type Registry interface {
	Resolve(ctx context.Context, ref string) (ocispec.Descriptor, error)
	Manifest(ctx context.Context, repository string, d digest.Digest) (content []byte, mediaType string, err error)
	Config(ctx context.Context, repository string, d digest.Digest) ([]byte, error)
}

// resolvedImage is an image of the lock with its manifests.
type resolvedImage struct {
	repository string
	root       ocispec.Descriptor
	platforms  []format.PlatformImage
	// json are the bytes of the root, the wanted manifests, and configs that had to be read.
	json map[digest.Digest][]byte
}

// fetchManifests resolves all images that are named by reference, in parallel. The
// result has the indexes of the lock: component, then image.
func (p *planner) fetchManifests(ctx context.Context) ([][]resolvedImage, error) {
	type work struct {
		component lock.Component
		image     lock.Image
		result    *resolvedImage
	}
	results := make([][]resolvedImage, len(p.options.Lock.Components))
	var all []work
	for i, c := range p.options.Lock.Components {
		results[i] = make([]resolvedImage, len(c.Images))
		for j, image := range c.Images {
			if image.Ref != "" {
				all = append(all, work{c, image, &results[i][j]})
			}
		}
	}
	task := p.options.Reporter.Task(fmt.Sprintf("read the manifests of %d images", len(all)), 0)
	err := parallel.ForEach(ctx, p.options.Parallelism, len(all), func(ctx context.Context, i int) error {
		w := all[i]
		image, err := p.resolve(ctx, w.image, w.component.PlatformsIn(p.options.Lock))
		if err != nil {
			return fmt.Errorf("%s: %s:%d: %w", format.Label(w.component.Name, w.image.Ref, ""), p.options.LockName,
				w.image.Line, err)
		}
		*w.result = *image
		return nil
	})
	task.Done(err)
	return results, err
}

// CheckImage finds out whether a registry has an image by its digest for all platforms.
func CheckImage(ctx context.Context, from Registry, image lock.Image, platforms []lock.Platform) error {
	p := planner{options: Options{AllowMovedTags: true}, registry: from}
	_, err := p.resolve(ctx, image, platforms)
	return err
}

func (p *planner) resolve(ctx context.Context, image lock.Image, platforms []lock.Platform) (*resolvedImage, error) {
	repository, err := source.Repository(image.Ref)
	if err != nil {
		return nil, err
	}
	if !p.options.AllowMovedTags {
		now, err := p.registry.Resolve(ctx, image.Ref)
		if err != nil {
			return nil, err
		}
		if now.Digest != image.Digest {
			return nil, &movedTagError{locked: image.Digest, now: now.Digest}
		}
	}
	content, mediaType, ok := p.oldRoot(image.Digest)
	if !ok {
		if content, mediaType, err = p.registry.Manifest(ctx, repository, image.Digest); err != nil {
			return nil, err
		}
	}
	r := &resolvedImage{
		repository: repository,
		root:       ocispec.Descriptor{MediaType: mediaType, Digest: image.Digest, Size: int64(len(content))},
		json:       map[digest.Digest][]byte{image.Digest: content},
	}
	r.platforms, err = format.Platforms(r.root, platforms, func(d ocispec.Descriptor) ([]byte, error) {
		if content, ok := r.json[d.Digest]; ok {
			return content, nil
		}
		content, ok := contentIn(p.options.Reuse, d.Digest, format.MaxConfigSize)
		var err error
		switch {
		case ok:
		case format.IsManifest(d.MediaType):
			content, _, err = p.registry.Manifest(ctx, repository, d.Digest)
		default: // the config: read here only where no index states the platform
			content, err = p.registry.Config(ctx, repository, d.Digest)
		}
		if err == nil && int64(len(content)) != d.Size {
			err = fmt.Errorf("%s has %d bytes, but its descriptor says %d", d.Digest, len(content), d.Size)
		}
		if err != nil {
			return nil, err
		}
		r.json[d.Digest] = content
		return content, nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// movedTagError says that a tag stands for something else than when it was locked.
type movedTagError struct{ locked, now digest.Digest }

func (e *movedTagError) Error() string {
	return fmt.Sprintf("the tag has moved: it was locked as %s and is now %s", e.locked, e.now)
}

func (e *movedTagError) Unwrap() error { return format.ErrUpstream }

func (e *movedTagError) Hint() string {
	return "find out why it moved; to take the new image, remove the digest from all components of the lock and run " +
		"`boxlift bundle lock`; --allow-moved-tags builds with the locked one"
}

// oldRoot returns the manifest or index of an image that an older bundle holds under some
// name, with its media type, which no digest covers.
func (p *planner) oldRoot(d digest.Digest) (content []byte, mediaType string, ok bool) {
	if mediaType, ok = p.oldTypes[d]; !ok {
		return nil, "", false
	}
	content, ok = contentIn(p.options.Reuse, d, format.MaxManifestSize)
	return content, mediaType, ok
}

// readOldTypes lists the media types of the roots of all images in older bundles. What is
// wrong with one of these shows when something is taken from it.
func (p *planner) readOldTypes() map[digest.Digest]string {
	types := make(map[digest.Digest]string)
	for _, r := range p.options.Reuse {
		contents, err := r.Contents()
		if err != nil {
			p.plan.Reporter.Message(fmt.Sprintf("no manifests are taken from an older bundle: %v", err))
			continue
		}
		for _, image := range contents.Images {
			types[image.Digest] = image.MediaType
		}
	}
	return types
}
