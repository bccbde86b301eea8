package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/bundle/workload"
)

// planner collects what goes into a plan, in the order of the file.
type planner struct {
	options  Options
	plan     *Plan
	registry Registry
	// json and large are the blobs of the two parts of the file, in order.
	json, large []ocitar.Member
	have        map[digest.Digest]bool
	// oldTypes are the media types of the images' roots in older bundles.
	oldTypes map[digest.Digest]string
}

// run does everything. What components are installed from is checked meanwhile, and when both fail, the rest is what is
// said: with images that are not what was locked, what a chart asks for is not the point. The check may outlast the
// plan, which Build waits for before it fetches anything.
func (p *planner) run(ctx context.Context) error {
	var sources []workload.Source
	if p.options.Sources != nil {
		var err error
		if sources, err = p.fetchSources(ctx); err != nil {
			return err
		}
		p.plan.Check = p.startCheck(ctx, sources)
	}
	p.oldTypes = p.readOldTypes()
	images, err := p.fetchManifests(ctx)
	if err == nil {
		err = p.layOut(ctx, images)
	}
	if err != nil {
		p.plan.Check.Stop()
		return err
	}
	p.keep(sources)
	if slices.ContainsFunc(p.options.Reuse, func(r *bundle.Reader) bool { return r.Digest() == p.plan.Digest() }) {
		// An older bundle is what is planned: it was checked when it was built.
		p.plan.Check.Stop()
		p.plan.Check = nil
	}
	return nil
}

// layOut makes index.json and the order of the blobs: JSON first, then files and layers,
// both in the order of the components.
func (p *planner) layOut(ctx context.Context, images [][]resolvedImage) error {
	if err := p.addLock(); err != nil {
		return err
	}
	if err := p.addPrograms(ctx); err != nil {
		return err
	}
	for i, c := range p.options.Lock.Components {
		if err := p.addManifests(c); err != nil {
			return err
		}
		if err := p.addFiles(c); err != nil {
			return err
		}
		if err := p.addCharts(c); err != nil {
			return err
		}
		if err := p.addImages(c, images[i]); err != nil {
			return err
		}
		if err := p.addPackages(c); err != nil {
			return err
		}
	}
	return p.finish()
}

// finish makes index.json and the sequence of the members of what was collected.
func (p *planner) finish() error {
	index, err := json.Marshal(ocispec.Index{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageIndex,
		ArtifactType: format.ArtifactType,
		Manifests:    p.plan.Entries,
		Annotations:  format.IndexAnnotations(p.plan.version, p.plan.validity),
	})
	if err != nil {
		return fmt.Errorf("make index.json: %w", err)
	}
	if len(index) > format.MaxIndexSize {
		return fmt.Errorf("make index.json: %d bytes are more than the %d that readers accept: there are too many "+
			"images and files", len(index), format.MaxIndexSize)
	}
	if n := boundedjson.Count(index); n > format.MaxIndexValues {
		return fmt.Errorf(
			"make index.json: %d values are more than the %d that readers accept: there are too many images and files",
			n, format.MaxIndexValues)
	}
	p.plan.Index = index
	p.plan.Members = append([]ocitar.Member{
		{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(index))},
	}, append(p.json, p.large...)...)
	p.plan.smallBlobs = len(p.json)
	return nil
}

// place gives a blob its position, unless it has one; it reports whether it was new. The
// empty platform stands for all.
func (p *planner) place(part *[]ocitar.Member, d ocispec.Descriptor, platforms ...lock.Platform) bool {
	for _, platform := range platforms {
		if !slices.Contains(p.plan.platforms[d.Digest], platform) {
			p.plan.platforms[d.Digest] = append(p.plan.platforms[d.Digest], platform)
		}
	}
	if p.have[d.Digest] {
		return false
	}
	p.have[d.Digest] = true
	*part = append(*part, ocitar.Blob(d.Digest, d.Size))
	return true
}

// placeContent places a blob whose bytes are at hand.
func (p *planner) placeContent(
	part *[]ocitar.Member, d ocispec.Descriptor, content []byte, platforms ...lock.Platform,
) {
	if p.place(part, d, platforms...) {
		p.plan.Content[d.Digest] = content
	}
}

// addArtifact adds a file of which layer describes the content.
func (p *planner) addArtifact(f bundle.File, artifactType string) error {
	layer := ocispec.Descriptor{MediaType: f.MediaType, Digest: f.Digest, Size: f.Size}
	content, err := format.FileManifest(artifactType, layer, f.Name)
	if err != nil {
		return err
	}
	d := format.DescriptorOf(ocispec.MediaTypeImageManifest, content)
	d.ArtifactType = artifactType
	d.Annotations = f.EntryAnnotations()
	if f.Platform != "" {
		d.Platform = &ocispec.Platform{OS: f.Platform.OS(), Architecture: f.Platform.Architecture(),
			Variant: f.Platform.Variant()}
	}
	p.plan.Entries = append(p.plan.Entries, d)
	p.placeContent(&p.json, format.Plain(d), content, f.Platform)
	return nil
}

func (p *planner) addLock() error {
	d := format.DescriptorOf(format.LockMediaType, p.options.LockContent)
	p.placeContent(&p.json, d, p.options.LockContent, "")
	p.placeContent(&p.json, ocispec.DescriptorEmptyJSON, ocispec.DescriptorEmptyJSON.Data, "")
	return p.addArtifact(bundle.File{Component: bundle.LockComponent, Name: bundle.LockFile, MediaType: d.MediaType,
		Digest: d.Digest, Size: d.Size}, format.LockArtifactType)
}

// addManifests carries the manifests, if c is the component that they install.
func (p *planner) addManifests(c lock.Component) error {
	if c.Name != bundle.ManifestsComponent || p.options.Manifests == nil {
		return nil
	}
	for _, f := range c.Files {
		if f.Name == bundle.ManifestsFile {
			return fmt.Errorf(
				"%s: %s:%d: boxlift carries its own file of this name for this component; call this one otherwise",
				format.Label(c.Name, f.Name, f.Platform), p.options.LockName, f.Line)
		}
	}
	d := format.DescriptorOf(format.FileMediaType, p.options.Manifests)
	p.placeContent(&p.large, d, p.options.Manifests, "")
	return p.addArtifact(bundle.File{
		Component: c.Name, Version: c.Version, Name: bundle.ManifestsFile,
		MediaType: d.MediaType, Digest: d.Digest, Size: d.Size,
	}, format.FileArtifactType)
}

func (p *planner) addFiles(c lock.Component) error {
	platforms := c.PlatformsIn(p.options.Lock)
	for _, f := range c.Files {
		if !format.Wanted(f.Platform, platforms) {
			continue
		}
		if err := p.addDownload(bundle.File{
			Component: c.Name, Version: c.Version, Name: f.Name, Platform: f.Platform, MediaType: format.FileMediaType,
			Digest: digest.NewDigestFromEncoded(digest.SHA256, f.SHA256), Size: f.Size,
		}, format.FileArtifactType, f.URL); err != nil {
			return err
		}
	}
	return nil
}

func (p *planner) addCharts(c lock.Component) error {
	for _, chart := range c.Charts {
		// The file of a chart is called by its own name, which holds the version.
		if err := p.addDownload(bundle.File{
			Component: c.Name, Version: c.Version, Name: source.BaseName(chart.URL), MediaType: format.ChartMediaType,
			Digest: digest.NewDigestFromEncoded(digest.SHA256, chart.SHA256), Size: chart.Size,
		}, format.ChartArtifactType, chart.URL); err != nil {
			return err
		}
	}
	return nil
}

// addPackages carries packages of operating systems. One that several releases and platforms have is one blob.
func (p *planner) addPackages(c lock.Component) error {
	platforms := c.PlatformsIn(p.options.Lock)
	for _, s := range c.Packages {
		if !format.Wanted(s.Platform, platforms) {
			continue
		}
		for _, one := range s.Contents {
			isAsked, removes := slices.Contains(s.Names, one.Name), ""
			if isAsked {
				removes = strings.Join(s.Removes, ",")
			}
			if err := p.addDownload(bundle.File{
				Component: c.Name, Version: c.Version, Name: one.FileName(), Platform: s.Platform,
				MediaType: format.DebianMediaType, Digest: digest.NewDigestFromEncoded(digest.SHA256, one.SHA256),
				Size: one.Size,
				Package: bundle.OSPackage{
					Family: s.Family, Suite: s.Suite, Name: one.Name, Version: one.Version,
					Architecture: one.Architecture, Asked: isAsked, Removes: removes,
				},
			}, format.PackageArtifactType, one.URL); err != nil {
				return err
			}
		}
	}
	return nil
}

// addDownload carries a file that is fetched from an address.
func (p *planner) addDownload(f bundle.File, artifactType, url string) error {
	if err := p.addArtifact(f, artifactType); err != nil {
		return err
	}
	d := ocispec.Descriptor{MediaType: f.MediaType, Digest: f.Digest, Size: f.Size}
	if p.place(&p.large, d, f.Platform) {
		p.plan.Fetches = append(p.plan.Fetches, &Fetch{Label: format.Label(f.Component, f.Name, f.Platform),
			Size: f.Size, Blob: d, Open: p.openURL(url)})
	}
	return nil
}

func (p *planner) addImages(c lock.Component, resolved []resolvedImage) error {
	roots := newImageRoots()
	for i, image := range c.Images {
		if image.Archive != "" {
			if !format.Wanted(image.Platform, c.PlatformsIn(p.options.Lock)) {
				continue
			}
			if err := p.addArchive(c, image, roots); err != nil {
				return err
			}
			continue
		}
		r := resolved[i]
		if err := roots.add(image.Ref, "", r.root); err != nil {
			return fmt.Errorf("%s: %w", format.Label(c.Name, image.Ref, ""), err)
		}
		p.addImage(c, image.Ref, r)
	}
	return p.addRoots(c, roots)
}

// addImage places the blobs of an image that a registry has.
func (p *planner) addImage(c lock.Component, ref string, r resolvedImage) {
	platforms := make([]lock.Platform, 0, len(r.platforms))
	for _, image := range r.platforms {
		platforms = append(platforms, image.Platform)
	}
	p.placeContent(&p.json, r.root, r.json[r.root.Digest], platforms...)
	for _, image := range r.platforms {
		p.placeContent(&p.json, image.Manifest, r.json[image.Manifest.Digest], image.Platform)
		if config, ok := r.json[image.Config.Digest]; ok {
			p.placeContent(&p.json, image.Config, config, image.Platform)
		} else {
			p.fetchBlob(&p.json, image.Config, format.Label(c.Name, ref, image.Platform), r.repository, image.Platform)
		}
		for _, d := range image.Layers {
			p.fetchBlob(&p.large, d, format.Label(c.Name, ref, image.Platform), r.repository, image.Platform)
		}
	}
}

// fetchBlob places a blob that a registry has.
func (p *planner) fetchBlob(
	part *[]ocitar.Member, d ocispec.Descriptor, label, repository string, platform lock.Platform,
) {
	if p.place(part, d, platform) {
		p.plan.Fetches = append(p.plan.Fetches,
			&Fetch{Label: label, Size: d.Size, Blob: d, Open: p.openBlob(repository, d.Digest)})
	}
}

// addArchive places the blobs of an image archive and notes its images.
func (p *planner) addArchive(c lock.Component, image lock.Image, roots *imageRoots) error {
	if err := roots.addArchive(c, image); err != nil {
		return err
	}
	archive := &Archive{SHA256: image.SHA256, Blobs: make(map[string]ocispec.Descriptor),
		All: make(map[string]ocispec.Descriptor)}
	for _, blob := range image.Contents.Blobs {
		d := ocispec.Descriptor{MediaType: blob.MediaType, Digest: blob.Digest, Size: blob.Size}
		archive.All[blob.Path] = d
		part := &p.large
		if IsJSON(blob.MediaType) {
			part = &p.json
			p.plan.unread[d.Digest] = true
		}
		if p.place(part, d, image.Platform) {
			archive.Blobs[blob.Path] = d
		}
	}
	if len(archive.Blobs) > 0 {
		p.plan.Fetches = append(p.plan.Fetches,
			&Fetch{Label: format.Label(c.Name, source.BaseName(image.Archive), image.Platform), Size: image.Size,
				Open: p.openURL(image.Archive), Archive: archive})
	}
	return nil
}

// IsJSON reports whether a media type is that of a manifest, a config or the like.
func IsJSON(mediaType string) bool { return strings.HasSuffix(mediaType, "json") }
