package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
)

// File is a file that a bundle carries.
type File struct {
	Component string `json:"component"`
	Version   string `json:"version,omitempty"`
	// Name is the file's own name, such as k3s or cilium-1.20.0.tgz.
	Name string `json:"name"`
	// Platform is empty for files that serve all platforms.
	Platform  lock.Platform `json:"platform,omitempty"`
	MediaType string        `json:"mediaType"`
	Digest    digest.Digest `json:"digest"`
	Size      int64         `json:"size"`
	// Package says which package of an operating system it is; zero for other files.
	Package OSPackage `json:"package,omitzero"`
}

// Image is an image that a bundle carries, for one platform or several.
type Image struct {
	Component string `json:"component"`
	Version   string `json:"version,omitempty"`
	// Name is the full reference, registry/repository:tag.
	Name string `json:"name"`
	// Digest and Size are those of the manifest or image index that the name stands
	// for, as its registry has it.
	Digest    digest.Digest          `json:"digest"`
	Size      int64                  `json:"size"`
	MediaType string                 `json:"mediaType"`
	Platforms []format.PlatformImage `json:"platforms"`
}

// BlobNames returns for each blob of the bundle the first image or file that it belongs to.
func (c *Contents) BlobNames() map[digest.Digest]string {
	names := make(map[digest.Digest]string)
	name := func(d digest.Digest, of string) {
		if names[d] == "" {
			names[d] = of
		}
	}
	for _, f := range c.Files {
		name(f.Digest, strings.TrimSpace(f.Name+" "+string(f.Platform)))
	}
	for _, image := range c.Images {
		name(image.Digest, image.Name)
		for _, p := range image.Platforms {
			for _, d := range p.Blobs() {
				name(d.Digest, image.Name+" "+string(p.Platform))
			}
		}
	}
	return names
}

func (c *Contents) fileItems() []Item {
	items := make([]Item, 0, len(c.Files))
	for _, f := range c.Files {
		item := Item{
			Name: f.Name, Digest: f.Digest, component: f.Component,
			key:   strings.Join([]string{f.Component, string(f.Platform), f.Name}, " "),
			kin:   strings.Join([]string{f.Component, string(f.Platform), withoutVersion(f.Name, f.Version)}, " "),
			blobs: map[digest.Digest]int64{f.Digest: f.Size},
		}
		if f.IsOSPackage() {
			item.Name = f.Package.Release() + " " + f.Name
			item.key = strings.Join([]string{f.Component, string(f.Platform), item.Name}, " ")
			item.kin = strings.Join([]string{f.Component, string(f.Platform), f.Package.Release(), f.Package.Name}, " ")
		}
		if f.Platform != "" {
			item.Platforms = []lock.Platform{f.Platform}
		}
		items = append(items, item)
	}
	return items
}

func (c *Contents) imageItems() []Item {
	items := make([]Item, 0, len(c.Images))
	for _, image := range c.Images {
		repository := image.Name
		if at := strings.LastIndex(repository, ":"); at > strings.LastIndex(repository, "/") {
			repository = repository[:at]
		}
		item := Item{
			Name: image.Name, Digest: image.Digest, component: image.Component,
			key: image.Component + " " + image.Name, kin: image.Component + " " + repository,
			blobs: map[digest.Digest]int64{image.Digest: image.Size},
		}
		for _, p := range image.Platforms {
			item.Platforms = append(item.Platforms, p.Platform)
			for _, d := range p.Blobs() {
				item.blobs[d.Digest] = d.Size
			}
		}
		items = append(items, item)
	}
	return items
}

// On returns the image with what it has for one platform, or false.
func (i Image) On(platform lock.Platform) (Image, bool) {
	p := i.on(platform)
	if p == nil {
		return Image{}, false
	}
	i.Platforms = []format.PlatformImage{*p}
	return i, true
}

// ImagesOf returns the images of a component for a platform, or for all platforms if that is
// empty.
func (c *Contents) ImagesOf(component string, platform lock.Platform) []Image {
	var images []Image
	for _, image := range c.Images {
		if image.Component != component {
			continue
		}
		ok := true
		if platform != "" {
			image, ok = image.On(platform)
		}
		if ok {
			images = append(images, image)
		}
	}
	return images
}

// on is what there is of an image for a platform, or nil.
func (i *Image) on(platform lock.Platform) *format.PlatformImage {
	at := slices.IndexFunc(i.Platforms, func(p format.PlatformImage) bool { return platform.Match(p.Platform) })
	if at < 0 {
		return nil
	}
	return &i.Platforms[at]
}

// Contents is what a bundle carries, in the order of its index.json.
type Contents struct {
	Files  []File  `json:"files"`
	Images []Image `json:"images"`

	// Components are the names, in the order of index.json.
	Components []string `json:"components"`
}

// Contents reads the manifests of all images and files, and verifies their bytes. All
// names in it are fit for a terminal, and those of files for a folder.
func (r *Reader) Contents() (*Contents, error) {
	c, err := readContents(r, everything)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", r.path, err)
	}
	return c, nil
}

// Files is Contents without the images, whose manifests are not read: a few kilobytes of a bundle of any size.
func (r *Reader) Files() ([]File, error) {
	c, err := readContents(r, onlyFiles)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", r.path, err)
	}
	return c.Files, nil
}

// What readContents reads the manifests of.
const (
	everything = false
	onlyFiles  = true
)

func readContents(r *Reader, onlyFiles bool) (*Contents, error) {
	c := &Contents{}
	var total int64
	values := 0
	read := func(d ocispec.Descriptor) ([]byte, error) {
		if total += d.Size; total > maxContents {
			return nil, fmt.Errorf("%w: its manifests have more than %d bytes", ErrInvalid, maxContents)
		}
		content, err := r.ReadJSON(d)
		if values += boundedjson.Count(content); values > maxContentsValues {
			return nil, fmt.Errorf("%w: its manifests have more than %d values", ErrInvalid, maxContentsValues)
		}
		return content, err
	}
	for i, d := range r.parsed.Manifests {
		if name := d.Annotations[format.AnnotationComponent]; !slices.Contains(c.Components, name) {
			c.Components = append(c.Components, name)
		}
		if len(c.Components) > maxComponents {
			return nil, fmt.Errorf("%w: index.json: more than %d components", ErrInvalid, maxComponents)
		}
		var err error
		switch {
		case d.Annotations[format.AnnotationImageName] != "" && onlyFiles:
		case d.Annotations[format.AnnotationImageName] != "":
			err = c.addImage(d, read)
		case d.ArtifactType != "":
			err = c.addFile(d, read)
		default:
			err = errors.New("neither an image nor a file")
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrIncomplete) && !errors.As(err, new(*fs.PathError)) {
			// What image.go finds wrong is wrong in the bundle here.
			err = fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		return nil, fmt.Errorf("index.json: entry %d (component %q): %w", i, d.Annotations[format.AnnotationComponent],
			err)
	}
	return c, nil
}

func (c *Contents) addImage(d ocispec.Descriptor, read format.JSONReader) error {
	image := Image{
		Component: d.Annotations[format.AnnotationComponent],
		Version:   d.Annotations[format.AnnotationVersion],
		Name:      d.Annotations[format.AnnotationImageName],
		Digest:    d.Digest, Size: d.Size,
	}
	if err := checkNames(image.Component, image.Version, image.Name); err != nil {
		return err
	}
	var err error
	if image.MediaType, err = format.OwnMediaType(d, read); err != nil {
		return fmt.Errorf("image %s: %w", image.Name, err)
	}
	if image.Platforms, err = format.Platforms(d, nil, read); err != nil {
		return fmt.Errorf("image %s: %w", image.Name, err)
	}
	if len(image.Platforms) == 0 {
		return fmt.Errorf("%w: image %s has no manifest for any platform", ErrInvalid, image.Name)
	}
	for _, p := range image.Platforms {
		if err := checkNames(string(p.Platform)); err != nil {
			return err
		}
	}
	c.Images = append(c.Images, image)
	return nil
}

func (c *Contents) addFile(d ocispec.Descriptor, read format.JSONReader) error {
	manifest, err := format.ReadManifest(d, read)
	if err != nil {
		return err
	}
	if len(manifest.Layers) != 1 || d.Annotations[ocispec.AnnotationTitle] == "" {
		return fmt.Errorf("%w: a file has one layer and a title, this one has %d and %q", ErrInvalid,
			len(manifest.Layers), d.Annotations[ocispec.AnnotationTitle])
	}
	layer := manifest.Layers[0]
	f := File{
		Component: d.Annotations[format.AnnotationComponent],
		Version:   d.Annotations[format.AnnotationVersion],
		Name:      d.Annotations[ocispec.AnnotationTitle],
		MediaType: layer.MediaType, Digest: layer.Digest, Size: layer.Size,
	}
	if d.Platform != nil {
		f.Platform = format.PlatformOf(*d.Platform)
	}
	if d.ArtifactType == format.PackageArtifactType {
		if f.Package, err = packageOf(d); err != nil {
			return err
		}
		p := f.Package
		if err := checkNames(p.Family, p.Suite, p.Name, p.Version, p.Architecture); err != nil {
			return err
		}
	}
	if err := checkNames(f.Component, f.Version, f.Name, string(f.Platform)); err != nil {
		return err
	}
	if !fs.ValidPath(f.Name) || strings.Contains(f.Name, "/") {
		return fmt.Errorf("%w: %q is not the name of a file", ErrInvalid, f.Name)
	}
	if manifest.Config.Digest != ocispec.DescriptorEmptyJSON.Digest {
		return fmt.Errorf("%w: the manifest of the file %s has a config of its own", ErrInvalid, f.Name)
	}
	c.Files = append(c.Files, f)
	return nil
}

// checkNames refuses names that would do something to a terminal.
func checkNames(names ...string) error {
	for _, name := range names {
		if len(name) > 512 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("%w: the name %q is too long or has characters that no name has", ErrInvalid, name)
		}
	}
	return nil
}

// File finds a file for a platform, or one that serves all. [Contents.HostPackages] finds packages of operating
// systems.
func (c *Contents) File(component, name string, platform lock.Platform) (File, bool) {
	i := slices.IndexFunc(c.Files, func(f File) bool {
		return f.Component == component && f.Name == name && !f.IsOSPackage() &&
			(f.Platform == "" || platform != "" && f.Platform.Match(platform))
	})
	if i < 0 {
		return File{}, false
	}
	return c.Files[i], true
}

// SBOM finds the list of software, if the bundle was built with one.
func (c *Contents) SBOM() (File, bool) {
	f, ok := c.File(ProgramsComponent, SBOMFile, "")
	return f, ok && f.MediaType == format.SBOMMediaType
}

// Platforms returns the platforms that boxlift's node program is carried for, which are
// those that the bundle can be installed on.
func (c *Contents) Platforms() []lock.Platform {
	var platforms []lock.Platform
	for _, f := range c.Files {
		if f.Component == ProgramsComponent && f.Name == NodeProgram {
			platforms = append(platforms, f.Platform)
		}
	}
	return platforms
}

// NodeProgram and OperatorProgram are the names of boxlift's programs in a bundle.
const (
	NodeProgram     = "boxlift-node"
	OperatorProgram = "boxlift"
)

// Describe returns name, version and platforms of each component, in the order of the
// bundle.
func (c *Contents) Describe() []Component {
	result := make([]Component, 0, len(c.Components))
	seen := make(map[digest.Digest]bool)
	size := func(d digest.Digest, n int64) int64 {
		if seen[d] {
			return 0
		}
		seen[d] = true
		return n
	}
	for _, name := range c.Components {
		component := Component{Name: name}
		for _, f := range c.Files {
			if f.Component != name {
				continue
			}
			component.Version = f.Version
			component.Files++
			component.Size += size(f.Digest, f.Size)
			component.addPlatform(f.Platform)
		}
		for _, image := range c.Images {
			if image.Component != name {
				continue
			}
			component.Version = image.Version
			component.Images++
			component.Size += size(image.Digest, image.Size)
			for _, p := range image.Platforms {
				component.addPlatform(p.Platform)
				for _, d := range p.Blobs() {
					component.Size += size(d.Digest, d.Size)
				}
			}
		}
		result = append(result, component)
	}
	return result
}

// Component sums up one component of a bundle.
type Component struct {
	Name      string          `json:"name"`
	Version   string          `json:"version,omitempty"`
	Platforms []lock.Platform `json:"platforms,omitempty"`
	Files     int             `json:"files"`
	Images    int             `json:"images"`
	// Size is that of the blobs that no earlier component has, in bytes.
	Size int64 `json:"size"`
}

func (c *Component) addPlatform(p lock.Platform) {
	if p != "" && !slices.Contains(c.Platforms, p) {
		c.Platforms = append(c.Platforms, p)
	}
}
