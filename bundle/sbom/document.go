package sbom

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/package-url/packageurl-go"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/packages"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Names of properties. CycloneDX asks for a prefix of one's own.
const (
	propertyComponent  = "dev.boxlift:component"
	propertyPlatform   = "dev.boxlift:platform"
	propertySize       = "dev.boxlift:size"
	propertyIndex      = "dev.boxlift:image"
	propertyIncomplete = "dev.boxlift:incomplete"
)

// bundleRef is the document's name for the bundle itself.
const bundleRef = "bundle"

// upstream is what is known of components whatever their version.
var upstream = map[string]struct{ namespace, name, license string }{
	"k3s":    {"k3s-io", "k3s", "Apache-2.0"},
	"cilium": {"cilium", "cilium", "Apache-2.0"},
	// upstream does not say whether later versions are meant
	"liteboxd":               {"fslongjin", "liteboxd", "GPL-3.0"},
	bundle.ProgramsComponent: {"liteboxd", "boxlift", "Apache-2.0"},
}

// document collects components in the order of the bundle, and packages by their names.
type document struct {
	bom        *cdx.BOM
	components []cdx.Component
	packages   map[string]*found
	depends    map[string][]string
	incomplete []cdx.BOMReference
}

// found is a package of the document, with the files that tell of it.
type found struct {
	component cdx.Component
	license   string
	paths     []string
}

// maxOccurrences is how many files are named that tell of one package.
const maxOccurrences = 20

func newDocument(r *bundle.Reader, version string) *document {
	bom := cdx.NewBOM()
	bom.SpecVersion = cdx.SpecVersion1_6
	bom.JSONSchema = "http://cyclonedx.org/schema/bom-1.6.schema.json"
	bom.SerialNumber = serialNumber(r.Digest())
	bom.Metadata = &cdx.Metadata{
		Tools: &cdx.ToolsChoice{Components: &[]cdx.Component{{Type: cdx.ComponentTypeApplication, Name: "boxlift",
			Version: version}}},
		Component: &cdx.Component{
			BOMRef: bundleRef, Type: cdx.ComponentTypePlatform, Name: "boxlift bundle", Version: r.Digest().String(),
			Hashes: hashes(r.Digest()),
		},
	}
	return &document{bom: bom, packages: make(map[string]*found), depends: make(map[string][]string)}
}

// serialNumber makes a UUID (RFC 9562, version 8) from the bundle digest: two documents of
// one bundle are the same document.
func serialNumber(d digest.Digest) string {
	sum := sha256.Sum256([]byte("boxlift SBOM of " + d.String()))
	sum[6] = sum[6]&0x0f | 0x80
	sum[8] = sum[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

func hashes(d digest.Digest) *[]cdx.Hash {
	return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: d.Encoded()}}
}

func property(name, value string) cdx.Property { return cdx.Property{Name: name, Value: value} }

func (d *document) dependOn(ref, on string) { d.depends[ref] = append(d.depends[ref], on) }

func (d *document) addComponent(c bundle.Component) {
	if c.Name == bundle.LockComponent {
		return // the lock is the bundle's own
	}
	component := cdx.Component{BOMRef: componentRef(c.Name), Type: cdx.ComponentTypeApplication, Name: c.Name,
		Version: c.Version}
	if known, ok := upstream[c.Name]; ok {
		version := c.Version
		if !strings.HasPrefix(version, "v") {
			version = "v" + version // Cilium's charts have no v, its tags have
		}
		component.PackageURL = packageURL(packageurl.TypeGithub, known.namespace, known.name, version, nil)
		component.Licenses = licenses(known.license)
	}
	d.components = append(d.components, component)
	d.dependOn(bundleRef, component.BOMRef)
}

func componentRef(name string) string {
	if name == bundle.LockComponent {
		return bundleRef
	}
	return "component/" + name
}

func (d *document) addFile(f bundle.File, url string, inside []packages.Package) {
	ref := strings.TrimSuffix(strings.Join([]string{"file", f.Component, f.Name, string(f.Platform)}, "/"), "/")
	component := cdx.Component{
		BOMRef: ref, Type: cdx.ComponentTypeFile, Name: f.Name, Version: f.Version, MIMEType: f.MediaType,
		Hashes: hashes(f.Digest),
		Properties: &[]cdx.Property{property(propertyComponent, f.Component),
			property(propertySize, strconv.FormatInt(f.Size, 10))},
	}
	qualifiers := map[string]string{"checksum": f.Digest.String()}
	if f.Platform != "" {
		*component.Properties = append(*component.Properties, property(propertyPlatform, string(f.Platform)))
	}
	if url != "" {
		qualifiers["download_url"] = url
		component.ExternalReferences = &[]cdx.ExternalReference{{Type: cdx.ERTypeDistribution, URL: url}}
	}
	component.PackageURL = packageURL(packageurl.TypeGeneric, "", f.Name, f.Version, qualifiers)
	d.components = append(d.components, component)
	d.dependOn(componentRef(f.Component), ref)
	for _, p := range inside {
		d.addPackage(ref, packages.Located{Package: p}, packages.Distribution{})
	}
}

// addOSPackage adds a package of an operating system, which is a library to those who look for known faults in it.
func (d *document) addOSPackage(f bundle.File, url string) {
	p := f.Package
	ref := strings.Join([]string{"package", f.Component, p.Family, p.Suite, string(f.Platform), f.Name}, "/")
	component := cdx.Component{
		BOMRef: ref, Type: cdx.ComponentTypeLibrary, Name: p.Name, Version: p.Version, MIMEType: f.MediaType,
		Hashes: hashes(f.Digest),
		PackageURL: packageURL(packageurl.TypeDebian, p.Family, p.Name, p.Version,
			map[string]string{"arch": p.Architecture, "distro": p.Suite}),
		Properties: &[]cdx.Property{
			property(propertyComponent, f.Component), property(propertySize, strconv.FormatInt(f.Size, 10)),
			property(propertyPlatform, string(f.Platform)),
		},
	}
	if url != "" {
		component.ExternalReferences = &[]cdx.ExternalReference{{Type: cdx.ERTypeDistribution, URL: url}}
	}
	d.components = append(d.components, component)
	d.dependOn(componentRef(f.Component), ref)
}

func (d *document) addImage(image bundle.Image, p format.PlatformImage, config ocispec.Image, inside *packages.Image) {
	ref := "image/" + image.Name + "/" + string(p.Platform)
	repository, tag := splitName(image.Name)
	component := cdx.Component{
		BOMRef: ref, Type: cdx.ComponentTypeContainer, Name: repository, Version: tag, MIMEType: p.Manifest.MediaType,
		Hashes: hashes(p.Manifest.Digest),
		PackageURL: packageURL(packageurl.TypeOCI, "", repository[strings.LastIndex(repository, "/")+1:],
			p.Manifest.Digest.String(), map[string]string{
				"arch": p.Platform.Architecture(), "repository_url": repository, "tag": tag,
			}),
		Properties: &[]cdx.Property{
			property(propertyComponent, image.Component), property(propertyIndex, image.Digest.String()),
			property(propertyPlatform, string(p.Platform)), property(propertySize, strconv.FormatInt(p.Size(), 10)),
		},
		Licenses: licenses(printable.Line(config.Config.Labels[ocispec.AnnotationLicenses])),
	}
	for _, note := range inside.Notes {
		*component.Properties = append(*component.Properties, property(propertyIncomplete, note))
	}
	if len(inside.Notes) > 0 {
		d.incomplete = append(d.incomplete, cdx.BOMReference(ref))
	}
	d.components = append(d.components, component)
	d.dependOn(componentRef(image.Component), ref)
	for _, located := range inside.Packages {
		d.addPackage(ref, located, inside.Distribution)
	}
}

// splitName separates a tag from the rest of an image's name.
func splitName(name string) (repository, tag string) {
	if at := strings.LastIndex(name, ":"); at > strings.LastIndex(name, "/") {
		return name[:at], name[at+1:]
	}
	return name, ""
}

// addPackage adds a package that is in a file or an image. Its package URL is its name in
// the document: what is in several images is there once.
func (d *document) addPackage(in string, p packages.Located, of packages.Distribution) {
	url := urlOf(p.Package, of)
	d.dependOn(in, url)
	f := d.packages[url]
	if f == nil {
		namespace, name := splitPackage(p.Package)
		f = &found{component: cdx.Component{
			BOMRef: url, Type: cdx.ComponentTypeLibrary, Group: namespace, Name: name, Version: p.Version,
			PackageURL: url,
		}}
		d.packages[url] = f
	}
	f.license = cmp.Or(f.license, p.License)
	f.paths = append(f.paths, p.Paths...)
	slices.Sort(f.paths)
	f.paths = slices.Compact(f.paths)
	f.paths = slices.Clip(f.paths[:min(len(f.paths), maxOccurrences)])
}

// splitPackage separates the namespace that names of some ecosystems begin with.
func splitPackage(p packages.Package) (namespace, name string) {
	if at := strings.LastIndex(p.Name, "/"); at > 0 && (p.Type == packages.Go || p.Type == packages.Node) {
		return p.Name[:at], p.Name[at+1:]
	}
	return "", p.Name
}

// urlOf names a package by its package URL (https://github.com/package-url/purl-spec).
func urlOf(p packages.Package, of packages.Distribution) string {
	namespace, name := splitPackage(p)
	qualifiers := make(map[string]string)
	switch p.Type {
	case packages.Debian, packages.Alpine:
		namespace = of.ID
		if namespace == "" {
			namespace = map[string]string{packages.Debian: "debian", packages.Alpine: "alpine"}[p.Type]
		}
		if of.ID != "" && of.Version != "" {
			qualifiers["distro"] = of.ID + "-" + of.Version
		}
		if p.Architecture != "" {
			qualifiers["arch"] = p.Architecture
		}
		switch {
		case p.SourceVersion != "":
			qualifiers["upstream"] = p.Source + "@" + p.SourceVersion
		case p.Source != "" && p.Source != p.Name:
			qualifiers["upstream"] = p.Source
		}
	case packages.RPM:
		// The type's definition has the epoch apart, and the source as the name of its file.
		namespace = of.ID
		if namespace == "rhel" {
			namespace = "redhat"
		}
		if of.ID != "" && of.Version != "" {
			qualifiers["distro"] = of.ID + "-" + of.Version
		}
		if p.Architecture != "" {
			qualifiers["arch"] = p.Architecture
		}
		version := p.Version
		if epoch, rest, ok := strings.Cut(version, ":"); ok {
			qualifiers["epoch"], version = epoch, rest
		}
		if p.Source != "" {
			qualifiers["upstream"] = p.Source + "-" + cmp.Or(p.SourceVersion, version) + ".src.rpm"
		}
		return packageURL(p.Type, namespace, name, version, qualifiers)
	case packages.Python:
		name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	}
	return packageURL(p.Type, namespace, name, p.Version, qualifiers)
}

func packageURL(kind, namespace, name, version string, qualifiers map[string]string) string {
	return packageurl.NewPackageURL(kind, namespace, name, version, packageurl.QualifiersFromMap(qualifiers),
		"").ToString()
}

// finish brings everything into the order of the document.
func (d *document) finish() *cdx.BOM {
	urls := make([]string, 0, len(d.packages))
	for url := range d.packages {
		urls = append(urls, url)
	}
	slices.Sort(urls)
	for _, url := range urls {
		f := d.packages[url]
		f.component.Licenses = licenses(f.license)
		if len(f.paths) > 0 {
			occurrences := make([]cdx.EvidenceOccurrence, 0, len(f.paths))
			for _, path := range f.paths {
				occurrences = append(occurrences, cdx.EvidenceOccurrence{Location: "/" + printable.Line(path)})
			}
			f.component.Evidence = &cdx.Evidence{Occurrences: &occurrences}
		}
		d.components = append(d.components, f.component)
	}
	d.bom.Components = &d.components
	dependencies := make([]cdx.Dependency, 0, len(d.components)+1)
	for _, ref := range append([]string{bundleRef}, refs(d.components)...) {
		dependency := cdx.Dependency{Ref: ref}
		if on := d.depends[ref]; len(on) > 0 {
			slices.Sort(on)
			on = slices.Compact(on)
			dependency.Dependencies = &on
		}
		dependencies = append(dependencies, dependency)
	}
	d.bom.Dependencies = &dependencies
	if len(d.incomplete) > 0 {
		d.bom.Compositions = &[]cdx.Composition{{Aggregate: cdx.CompositionAggregateIncomplete,
			Dependencies: &d.incomplete}}
	}
	return d.bom
}

func refs(components []cdx.Component) []string {
	all := make([]string, 0, len(components))
	for _, c := range components {
		all = append(all, c.BOMRef)
	}
	return all
}
