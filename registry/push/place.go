package push

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	serving "github.com/liteboxd/boxlift/registry"
	"github.com/liteboxd/boxlift/registry/charts"
)

// named is a name of the bundle and the place that it gets.
type named struct {
	name   string
	target *destination
}

// destination is a tag on the registry and what it is to stand for.
type destination struct {
	repository, tag string
	// root is the image's manifest or index, with the media type that it says of itself.
	root      ocispec.Descriptor
	platforms []format.PlatformImage
	// reduced is the index of the platforms that are there; nil where root is no index
	// or all of it is there.
	reduced []byte

	// What check and transfer find out.
	state    State
	tagged   digest.Digest // what the tag stands for
	replaces digest.Digest
	upload   int64
	// lacking are the manifests of platforms that have to be sent.
	lacking []ocispec.Descriptor
}

func (t *destination) reference() string { return t.repository + ":" + t.tag }

func (t *destination) sparse() bool { return t.reduced != nil }

func (t *destination) isIndex() bool {
	return t.root.MediaType == ocispec.MediaTypeImageIndex || t.root.MediaType == format.DockerManifestList
}

// NamesError says that the names of the bundle's images cannot all be given on the
// registry. Nothing was sent.
type NamesError struct{ Problems []string }

// Error lists all problems.
func (e *NamesError) Error() string {
	return "names that the registry cannot be given:\n" + strings.Join(e.Problems, "\n")
}

// Hint says what to change.
func (e *NamesError) Hint() string {
	return "change the rewrite rules so that each image gets a valid name of its own, such as " +
		"registry=docker.io,match=^(.*)$,replace=hub/$1"
}

const maxRepository = 255 // bytes, which is what registries take

// place gives every image its name on the registry.
func (p *pusher) place(images []bundle.Image) error {
	places := make(map[string]named)
	failed := &NamesError{}
	for _, image := range images {
		platforms := wanted(image.Platforms, p.options.Platforms)
		if len(platforms) == 0 {
			continue
		}
		repository, tag, err := p.name(image.Name)
		if err != nil {
			failed.Problems = append(failed.Problems, err.Error())
			continue
		}
		t := &destination{
			repository: repository, tag: tag, platforms: platforms, state: Missing,
			root: ocispec.Descriptor{MediaType: image.MediaType, Digest: image.Digest, Size: image.Size},
		}
		reference := t.reference()
		if other, ok := places[reference]; ok {
			if other.target.root.Digest != image.Digest {
				failed.Problems = append(failed.Problems,
					fmt.Sprintf("%s (%s) and %s (%s) would both be %s", other.name, other.target.root.Digest,
						image.Name, image.Digest,
						reference))
			} else if other.name != image.Name {
				p.images = append(p.images, named{image.Name, other.target})
			}
			continue
		}
		if err := p.reduce(t); err != nil {
			return fmt.Errorf("image %s: %w", image.Name, err)
		}
		places[reference] = named{image.Name, t}
		p.targets = append(p.targets, t)
		p.images = append(p.images, named{image.Name, t})
	}
	switch {
	case len(failed.Problems) > 0:
		return failed
	case len(p.targets) == 0:
		return &NamesError{Problems: []string{fmt.Sprintf("the bundle carries no image for %v", p.options.Platforms)}}
	}
	return nil
}

func wanted(images []format.PlatformImage, platforms []lock.Platform) []format.PlatformImage {
	if len(platforms) == 0 {
		return images
	}
	var result []format.PlatformImage
	for _, image := range images {
		if slices.ContainsFunc(platforms, func(p lock.Platform) bool { return p.Match(image.Platform) }) {
			result = append(result, image)
		}
	}
	return result
}

// name makes repository and tag on the registry of an image's full name.
func (p *pusher) name(image string) (repository, tag string, err error) {
	from, rest, _ := strings.Cut(image, "/")
	at := strings.LastIndex(rest, ":")
	to := registry.Reference{Reference: rest[at+1:]}
	if at < 0 || to.ValidateReferenceAsTag() != nil {
		return "", "", fmt.Errorf("%s has no tag, or one that registries do not take", image)
	}
	if to.Repository, err = p.options.Rewrites.Repository(from, rest[:at]); err != nil {
		return "", "", err
	}
	if to.ValidateRepository() != nil || len(to.Repository) > maxRepository {
		return "", "", fmt.Errorf("%s would get the repository %q, which registries do not take", image, to.Repository)
	}
	return to.Repository, to.Reference, nil
}

// reduce makes, of an index that names more than is there, the index of what is there.
// The same image and platforms give the same bytes.
func (p *pusher) reduce(t *destination) error {
	if !t.isIndex() {
		return nil
	}
	content, err := p.manifest(t.root)
	if err != nil {
		return err
	}
	// What is not known here stays as it is.
	var index map[string]json.RawMessage
	if err := json.Unmarshal(content, &index); err != nil {
		return fmt.Errorf("image index %s: %w", t.root.Digest, err)
	}
	var entries, kept []json.RawMessage
	if err := json.Unmarshal(index["manifests"], &entries); err != nil {
		return fmt.Errorf("image index %s: %w", t.root.Digest, err)
	}
	for _, entry := range entries {
		var d ocispec.Descriptor
		if err := json.Unmarshal(entry, &d); err != nil {
			return fmt.Errorf("image index %s: %w", t.root.Digest, err)
		}
		if slices.ContainsFunc(t.platforms,
			func(i format.PlatformImage) bool { return i.Manifest.Digest == d.Digest }) {
			kept = append(kept, entry)
		}
	}
	if len(kept) == len(entries) {
		return nil
	}
	if index["manifests"], err = json.Marshal(kept); err != nil {
		return fmt.Errorf("image index %s: %w", t.root.Digest, err)
	}
	if t.reduced, err = json.Marshal(index); err != nil {
		return fmt.Errorf("image index %s: %w", t.root.Digest, err)
	}
	return nil
}

const maxManifest = 4 << 20 // bytes, which is what registries take

// manifest reads a manifest or index of the bundle.
func (p *pusher) manifest(d ocispec.Descriptor) ([]byte, error) {
	if d.Size > maxManifest {
		return nil, fmt.Errorf("%w: manifest %s has %d bytes, expected at most %d",
			bundle.ErrInvalid, d.Digest, d.Size, maxManifest)
	}
	blob, err := p.content(d.Digest, d.Size)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(blob)
	if err != nil {
		return nil, fmt.Errorf("read manifest %s of the bundle: %w", d.Digest, err)
	}
	return content, nil
}

// content reads what was made, or a blob of the bundle, which is proven in doing so.
func (p *pusher) content(d digest.Digest, size int64) (io.Reader, error) {
	if made, ok := p.made[d]; ok {
		return bytes.NewReader(made), nil
	}
	return p.options.Bundle.Content(d, size)
}

// placeCharts gives every chart its name on the registry. Where one of them is none, none is pushed.
func (p *pusher) placeCharts() error {
	prefix := registry.Reference{Repository: p.options.ChartsTo}
	if prefix.ValidateRepository() != nil {
		return &NamesError{Problems: []string{fmt.Sprintf("charts cannot be in %q: it is no repository's name",
			p.options.ChartsTo)}}
	}
	list, err := charts.Of(p.options.Bundle)
	switch {
	case err != nil:
		return err
	case len(list) == 0:
		return &NamesError{Problems: []string{"the bundle carries no chart"}}
	}
	p.made = make(map[digest.Digest][]byte)
	failed := &NamesError{}
	for _, c := range list {
		repository, tag, err := serving.ChartReference(p.options.ChartsTo, c.Name, c.Version)
		if err != nil {
			failed.Problems = append(failed.Problems, err.Error())
			continue
		}
		t := &destination{repository: repository, tag: tag, state: Missing, root: c.Manifest.Descriptor,
			platforms: []format.PlatformImage{{
				Manifest: c.Manifest.Descriptor, Config: c.Config.Descriptor, Layers: c.Layers,
			}}}
		if slices.ContainsFunc(p.targets, func(o *destination) bool { return o.reference() == t.reference() }) {
			failed.Problems = append(failed.Problems,
				fmt.Sprintf("the chart %s and an image would both be %s", c.File.Name, t.reference()))
			continue
		}
		p.made[c.Manifest.Digest], p.made[c.Config.Digest] = c.Manifest.Content, c.Config.Content
		p.targets = append(p.targets, t)
		p.charts = append(p.charts, named{c.File.Name, t})
	}
	if len(failed.Problems) > 0 {
		return failed
	}
	return nil
}
