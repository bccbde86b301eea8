// Package bundle makes, reads and proves the one file that carries a platform across
// an air gap.
//
// A bundle is an OCI image layout in a plain tar (docs/bundle-format.md; package
// ocitar has the form of the file). Its index.json names every image and every file;
// the sha256 of index.json is the bundle digest, which the signature covers and through
// which every other byte is covered too:
//
//   - [NewPlan] turns a lock into index.json and the place of every blob, before any
//     large download; [Plan.Build] fetches the blobs in parallel and writes each of
//     them once, at its place;
//   - [Open] reads a bundle where it lies: nothing is ever unpacked;
//   - [Reader.Verify] proves that a bundle is whole;
//   - [Reader.Packs] cuts out what a node of one platform needs.
//
// The package knows nothing of hosts or clusters.
package bundle

import (
	"errors"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/lock"
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

	lockArtifactType  = "application/vnd.boxlift.lock.v1"
	fileArtifactType  = "application/vnd.boxlift.file.v1"
	chartArtifactType = "application/vnd.boxlift.chart.v1"
	// sbomArtifactType is what such documents have in registries too.
	sbomArtifactType = sbomMediaType

	lockMediaType  = "application/vnd.boxlift.lock.v1+yaml"
	fileMediaType  = "application/octet-stream"
	chartMediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
	sbomMediaType  = "application/vnd.cyclonedx+json"
	// outlineMediaType is that of the outline of a delta.
	outlineMediaType = "application/vnd.boxlift.outline.v1.tar+zstd"
)

// Annotations of the entries of index.json.
const (
	// AnnotationComponent is the component of the lock that an entry belongs to.
	AnnotationComponent = "dev.boxlift.component"
	// AnnotationVersion is that component's version.
	AnnotationVersion = "dev.boxlift.version"
	// AnnotationImageName is the full name by which containerd imports an image.
	AnnotationImageName = "io.containerd.image.name"
)

const (
	// LockComponent is the component of the lock itself, which no lock lists.
	LockComponent = "lock"
	// LockFile is the name of the file with the lock.
	LockFile = "versions.lock"
	// ProgramsComponent is that of boxlift's own programs for the node platforms.
	ProgramsComponent = "boxlift"
	// ManifestsComponent is the component whose manifests boxlift itself brings along, in
	// the file ManifestsFile.
	ManifestsComponent = "liteboxd"

	// ManifestsFile is the name of the file with the manifests of ManifestsComponent: a
	// tar that serves all platforms.
	ManifestsFile = "manifests.tar"

	// SBOMFile is the name of the file, of the component ProgramsComponent, that lists the
	// software in the bundle as a CycloneDX document; only bundles that were built so have it.
	SBOMFile = "bundle.cdx.json"
)

// Limits on what a reader accepts.
const (
	maxIndexSize    = 16 << 20
	maxConfigSize   = 8 << 20
	maxManifestSize = 4 << 20
	// maxIndexValues and maxManifestValues bound how many values of JSON (see
	// [boundedjson.Count]) an index.json, and a manifest, image index or config may have: a
	// reader holds a hundred bytes and more for two of the file. An entry of index.json has
	// about 14, a layer 3.
	maxIndexValues    = 1 << 17
	maxManifestValues = 1 << 16
	// maxSBOM bounds the list of software, in bytes: it is held in memory when it is made and
	// when it is compared.
	maxSBOM = 128 << 20
	// maxOutline bounds the outline of a delta in bytes, compressed or not: it is held in
	// memory. A platform's manifests have a few hundred kilobytes.
	maxOutline = 32 << 20
	// maxLeftOut bounds how many blobs and how many bundles a delta may name: a name of 70 bytes
	// becomes a member of the bundle, which takes a reader a thousand.
	maxLeftOut = 1 << 15
)

const (
	// maxContents bounds what is read of manifests in all, since many entries may name
	// the same large one. A platform's are a few MiB.
	maxContents = 128 << 20
	// maxContentsValues bounds how many values of JSON are read of them in all.
	maxContentsValues = 1 << 18
	// maxComponents is what a lock may have, and boxlift's own two.
	maxComponents = 256 + 2
)

// ErrInvalid is wrapped by every error that says that a bundle does not hold what it
// must hold: a blob is missing, differs from its digest, or belongs to nothing.
var ErrInvalid = errors.New("invalid bundle")

// ErrUpstream is wrapped by errors that say that upstream has something else now than
// what the lock pins.
var ErrUpstream = errors.New("upstream differs from the lock")

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
}

// Image is an image that a bundle carries, for one platform or several.
type Image struct {
	Component string `json:"component"`
	Version   string `json:"version,omitempty"`
	// Name is the full reference, registry/repository:tag.
	Name string `json:"name"`
	// Digest and Size are those of the manifest or image index that the name stands
	// for, as its registry has it.
	Digest    digest.Digest   `json:"digest"`
	Size      int64           `json:"size"`
	MediaType string          `json:"mediaType"`
	Platforms []PlatformImage `json:"platforms"`
}

// PlatformImage is what an image is on one platform.
type PlatformImage struct {
	Platform lock.Platform        `json:"platform"`
	Manifest ocispec.Descriptor   `json:"manifest"`
	Config   ocispec.Descriptor   `json:"config"`
	Layers   []ocispec.Descriptor `json:"layers"`
}

// blobs returns everything that has to be there for the image to run, the manifest
// first.
func (p PlatformImage) blobs() []ocispec.Descriptor {
	return append([]ocispec.Descriptor{p.Manifest, p.Config}, p.Layers...)
}

// Size returns the sum of the sizes of manifest, config and layers in bytes.
func (p PlatformImage) Size() int64 {
	var n int64
	for _, d := range p.blobs() {
		n += d.Size
	}
	return n
}

// label names an entry of a lock, or of a bundle, in messages.
func label(component, name string, platform lock.Platform) string {
	s := component + ": " + name
	if platform != "" {
		s += " (" + string(platform) + ")"
	}
	return s
}
