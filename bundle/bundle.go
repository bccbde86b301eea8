// Package bundle reads and proves the one file that carries a platform across an air gap.
//
// A bundle is an OCI image layout in a plain tar (docs/bundle-format.md; package ocitar has
// the form of the file, package format what is in it). Its index.json names every image and
// every file; the sha256 of index.json is the bundle digest, which the signature covers and
// through which every other byte is covered too:
//
//   - [Open] reads a bundle where it lies: nothing is ever unpacked;
//   - [Reader.Verify] proves that a bundle is whole;
//   - [Reader.Packs] cuts out what a node of one platform needs;
//   - [Compare] lists what tells one bundle from another.
//
// Packages below it make bundles: pins fills in what a lock leaves open, plan turns a lock into
// index.json and the place of every blob, build fetches the blobs and writes them, rebuild
// proves that a bundle is what its lock makes, and extract takes things out. The package knows
// nothing of hosts or clusters.
package bundle

import "github.com/liteboxd/boxlift/internal/fault"

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
	// ValuesFile is the name of the file with the values that a component's chart is rendered with, under those of
	// install.yaml.
	ValuesFile = "values.yaml"

	// SBOMFile is the name of the file, of the component ProgramsComponent, that lists the
	// software in the bundle as a CycloneDX document; only bundles that were built so have it.
	SBOMFile = "bundle.cdx.json"
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
var ErrInvalid = fault.NewKind(fault.Bundle, "invalid bundle")
