// Package format has what readers and writers of bundles have to agree on beside the tar: media
// types, annotations and limits, and how images, files and deltas are described in JSON
// (docs/bundle-format.md). It reads and writes no files.
package format

import (
	"slices"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/fault"
)

// Media types of a bundle.
const (
	// ArtifactType marks index.json as that of a bundle.
	ArtifactType = "application/vnd.boxlift.bundle.v1"
	// PackArtifactType marks index.json as that of a pack.
	PackArtifactType = "application/vnd.boxlift.pack.v1"
	// DeltaArtifactType marks index.json as that of a delta. Readers that know bundles only
	// refuse it.
	DeltaArtifactType = "application/vnd.boxlift.delta.v1"

	LockArtifactType  = "application/vnd.boxlift.lock.v1"
	FileArtifactType  = "application/vnd.boxlift.file.v1"
	ChartArtifactType = "application/vnd.boxlift.chart.v1"
	// SBOMArtifactType is what such documents have in registries too.
	SBOMArtifactType = SBOMMediaType

	// PackageArtifactType is that of a package of an operating system.
	PackageArtifactType = "application/vnd.boxlift.package.v1"

	LockMediaType  = "application/vnd.boxlift.lock.v1+yaml"
	FileMediaType  = "application/octet-stream"
	ChartMediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
	SBOMMediaType  = "application/vnd.cyclonedx+json"
	// DebianMediaType is registered for packages of Debian's form.
	DebianMediaType = "application/vnd.debian.binary-package"
	// OutlineMediaType is that of the outline of a delta.
	OutlineMediaType = "application/vnd.boxlift.outline.v1.tar+zstd"
)

// Media types of Docker's schema 2, which registries still serve.
const (
	DockerManifest     = "application/vnd.docker.distribution.manifest.v2+json"
	DockerManifestList = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// Annotations of the entries of index.json.
const (
	// AnnotationComponent is the component of the lock that an entry belongs to.
	AnnotationComponent = "dev.boxlift.component"
	// AnnotationVersion is that component's version.
	AnnotationVersion = "dev.boxlift.version"
	// AnnotationFamily and AnnotationSuite, of OS packages, are ID and VERSION_CODENAME in the os-release of
	// the hosts that a package is for.
	AnnotationFamily = "dev.boxlift.os.family"
	AnnotationSuite  = "dev.boxlift.os.suite"
	// AnnotationPackage, AnnotationPackageVersion and AnnotationPackageArchitecture are what the package
	// says of itself.
	AnnotationPackage             = "dev.boxlift.package.name"
	AnnotationPackageVersion      = "dev.boxlift.package.version"
	AnnotationPackageArchitecture = "dev.boxlift.package.architecture"
	// AnnotationPackageAsked is "true" on what the lock asks for by name.
	AnnotationPackageAsked = "dev.boxlift.package.asked"
	// AnnotationPackageRemoves is on these what hosts may lose for them, names with commas between them.
	AnnotationPackageRemoves = "dev.boxlift.package.removes"
	// AnnotationImageName is the full name by which containerd imports an image.
	AnnotationImageName = "io.containerd.image.name"
)

// Limits on what a reader accepts.
const (
	MaxIndexSize    = 16 << 20
	MaxConfigSize   = 8 << 20
	MaxManifestSize = 4 << 20
	// MaxIndexValues and maxManifestValues bound how many values of JSON (see
	// [boundedjson.Count]) an index.json, and a manifest, image index or config may have: a
	// reader holds a hundred bytes and more for two of the file. An entry of index.json has
	// about 14, a layer 3.
	MaxIndexValues    = 1 << 17
	maxManifestValues = 1 << 16
	// MaxSBOM bounds the list of software, in bytes: it is held in memory when it is made and
	// when it is compared.
	MaxSBOM = 128 << 20
	// MaxOutline bounds the outline of a delta in bytes, compressed or not: it is held in
	// memory. A platform's manifests have a few hundred kilobytes.
	MaxOutline = 32 << 20
	// MaxLeftOut bounds how many blobs and how many bundles a delta may name: a name of 70 bytes
	// becomes a member of the bundle, which takes a reader a thousand.
	MaxLeftOut = 1 << 15
)

// ErrUpstream is wrapped by errors that say that upstream has something else now than
// what the lock pins.
var ErrUpstream = fault.NewKind(fault.Source, "upstream differs from the lock")

// Label names an entry of a lock, or of a bundle, in messages.
func Label(component, name string, platform lock.Platform) string {
	s := component + ": " + name
	if platform != "" {
		s += " (" + string(platform) + ")"
	}
	return s
}

// ErrAbsent is returned by a jsonReader for a blob that is not there.
var ErrAbsent = fault.NewKind(fault.Failure, "not there")

// Wanted reports whether something for a platform belongs into a bundle for platforms.
func Wanted(p lock.Platform, platforms []lock.Platform) bool {
	return p == "" || slices.ContainsFunc(platforms, p.Match)
}
