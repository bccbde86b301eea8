package bundle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
)

// OSPackage says which package of an operating system a file is, and for which hosts.
type OSPackage struct {
	// Family and Suite are ID and VERSION_CODENAME in the hosts' os-release: debian, bookworm.
	Family string `json:"family"`
	Suite  string `json:"suite"`
	Name   string `json:"name"`
	// Version and Architecture are the package's own, with the distribution's names: 1:2.3-4, amd64 or all.
	Version      string `json:"version"`
	Architecture string `json:"architecture"`
	// Asked says that the lock asks for it by name; the others are what these need.
	Asked bool `json:"asked,omitempty"`
	// Removes are names of packages, with commas between them, that hosts may lose for it.
	Removes string `json:"removes,omitempty"`
}

// IsOSPackage reports whether a file is a package of an operating system.
func (f File) IsOSPackage() bool { return f.Package != OSPackage{} }

// Release names the hosts' release, for example debian/bookworm.
func (p OSPackage) Release() string { return p.Family + "/" + p.Suite }

// annotate adds what an entry of index.json says of it.
func (p OSPackage) annotate(annotations map[string]string) {
	annotations[format.AnnotationFamily] = p.Family
	annotations[format.AnnotationSuite] = p.Suite
	annotations[format.AnnotationPackage] = p.Name
	annotations[format.AnnotationPackageVersion] = p.Version
	annotations[format.AnnotationPackageArchitecture] = p.Architecture
	if p.Asked {
		annotations[format.AnnotationPackageAsked] = "true"
	}
	if p.Removes != "" {
		annotations[format.AnnotationPackageRemoves] = p.Removes
	}
}

// EntryAnnotations are those of a file's entry in index.json.
func (f File) EntryAnnotations() map[string]string {
	a := format.Annotations(f.Component, f.Version)
	a[ocispec.AnnotationTitle] = f.Name
	if f.IsOSPackage() {
		f.Package.annotate(a)
	}
	return a
}

// packageOf reads the annotations of an entry that is a package.
func packageOf(d ocispec.Descriptor) (OSPackage, error) {
	a := d.Annotations
	p := OSPackage{
		Family: a[format.AnnotationFamily], Suite: a[format.AnnotationSuite], Name: a[format.AnnotationPackage],
		Version: a[format.AnnotationPackageVersion], Architecture: a[format.AnnotationPackageArchitecture],
		Asked: a[format.AnnotationPackageAsked] == "true", Removes: a[format.AnnotationPackageRemoves],
	}
	for _, value := range []string{p.Family, p.Suite, p.Name, p.Version, p.Architecture} {
		if value == "" {
			return p, fmt.Errorf("%w: the package %q does not say for which hosts it is, or what it is: %+v",
				ErrInvalid, a[ocispec.AnnotationTitle], p)
		}
	}
	if d.Platform == nil {
		return p, fmt.Errorf("%w: the package %q has no platform", ErrInvalid, a[ocispec.AnnotationTitle])
	}
	return p, nil
}

// HostPackage is a package that a bundle carries for a host.
type HostPackage struct {
	Name         string
	Version      string
	Architecture string // the distribution's name for it, or "all"
	Filename     string // NAME_VERSION_ARCHITECTURE.deb, fit for a folder
	Size         int64  // bytes
	SHA256       digest.Digest
	Removes      []string // names of packages that the host may lose for it
}

// HostPackages lists the packages of an operating system that a bundle carries for a host, by ID and VERSION_CODENAME
// of its os-release and its platform, in the order of the bundle. What two components carry is there once. The bytes
// are those of [Reader.Content].
func (c *Contents) HostPackages(family, suite string, platform lock.Platform) []HostPackage {
	var all []HostPackage
	for _, f := range c.Files {
		p := f.Package
		if !f.IsOSPackage() || p.Family != family || p.Suite != suite || !f.Platform.Match(platform) {
			continue
		}
		var removes []string
		if p.Removes != "" {
			removes = strings.Split(p.Removes, ",")
		}
		if i := slices.IndexFunc(all, func(h HostPackage) bool { return h.SHA256 == f.Digest }); i >= 0 {
			all[i].Removes = append(all[i].Removes, removes...)
			continue
		}
		all = append(all, HostPackage{
			Name: p.Name, Version: p.Version, Architecture: p.Architecture, Filename: f.Name, Size: f.Size,
			SHA256: f.Digest, Removes: removes,
		})
	}
	return all
}

// HostRelease is a release of an operating system that a bundle has packages for.
type HostRelease struct {
	Family   string // ID in os-release
	Suite    string // VERSION_CODENAME
	Platform lock.Platform
}

func (h HostRelease) String() string { return h.Family + "/" + h.Suite + " " + string(h.Platform) }

// HostReleases lists those that there are packages for, in the order of the bundle.
func (c *Contents) HostReleases() []HostRelease {
	var all []HostRelease
	for _, f := range c.Files {
		h := HostRelease{f.Package.Family, f.Package.Suite, f.Platform}
		if f.IsOSPackage() && !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	return all
}
