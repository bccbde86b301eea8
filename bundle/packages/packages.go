// Package packages finds out which software is in the layers of container images: what
// dpkg, apk and RPM have installed, the modules that Go programs were built from, and what npm
// and Python have installed.
//
//   - [Scan] reads one layer once, as a stream, and keeps only what it found there: a layer
//     that is part of several images is read for all of them;
//   - [Merge] puts the layers of an image together: what an upper layer deletes or replaces
//     is not in the image;
//   - [Cache] keeps what was found by the layer's digest;
//   - [ScanFile] looks at a single file, which may be a Go program.
//
// Layers come from strangers. Whatever they hold, memory stays bounded: databases are read
// line by line, or, those of RPM, page by page from a temporary file; programs are never held as a whole, and sizes,
// lengths and counts have limits. What goes beyond them, and what cannot be read, is noted ([Layer.Notes]) rather
// than an error: a list that says what it lacks is better than none.
package packages

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The ecosystems that packages are of. The values are types of package URLs
// (https://github.com/package-url/purl-spec).
const (
	Debian = "deb"
	Alpine = "apk"
	RPM    = "rpm"
	Go     = "golang"
	Node   = "npm"
	Python = "pypi"
)

// Limits on what is kept of one layer.
const (
	maxPackages = 200_000
	maxNotes    = 100
	// maxText is for names, versions and the like, in bytes.
	maxText = 512
	// maxPath is Linux' own limit (PATH_MAX), in bytes.
	maxPath = 4096
	// maxPaths is how many files are named that tell of one package.
	maxPaths = 20
)

// Package is one package of an ecosystem.
type Package struct {
	Type string `json:"type"`
	Name string `json:"name"`
	// Version is the ecosystem's whole version: of RPM, [EPOCH:]VERSION-RELEASE.
	Version string `json:"version,omitempty"`
	// Architecture is the ecosystem's name for it: amd64 with Debian, x86_64 with others.
	Architecture string `json:"architecture,omitempty"`
	// Source is the source package that it was built from, where that has another name:
	// security advisories of distributions go by it. SourceVersion is empty unless it
	// differs from Version.
	Source        string `json:"source,omitempty"`
	SourceVersion string `json:"sourceVersion,omitempty"`
	// License is what the package says of its licence, in its own words.
	License string `json:"license,omitempty"`
}

// compare orders packages. Those that compare as equal are the same.
func (p Package) compare(o Package) int {
	return cmp.Or(
		cmp.Compare(p.Type, o.Type), cmp.Compare(p.Name, o.Name), cmp.Compare(p.Version, o.Version),
		cmp.Compare(p.Architecture, o.Architecture), cmp.Compare(p.Source, o.Source),
		cmp.Compare(p.SourceVersion, o.SourceVersion), cmp.Compare(p.License, o.License),
	)
}

// plausible reports whether a package's texts are fit to be repeated.
func (p Package) plausible() bool {
	if p.Name == "" {
		return false
	}
	for _, text := range []string{p.Name, p.Version, p.Architecture, p.Source, p.SourceVersion, p.License} {
		if !plausible(text) {
			return false
		}
	}
	return true
}

func plausible(text string) bool {
	return len(text) <= maxText && !strings.ContainsFunc(text,
		func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError })
}

// Distribution is what os-release says of the operating system (os-release(5)).
type Distribution struct {
	ID      string `json:"id"`
	Version string `json:"version,omitempty"` // VERSION_ID
}

// File is what one file of a layer tells.
type File struct {
	// Paths are the names that the file has in the layer, without a leading slash: more
	// than one when there are hard links to it.
	Paths        []string      `json:"paths"`
	Packages     []Package     `json:"packages,omitempty"`
	Distribution *Distribution `json:"distribution,omitempty"`
	// License is that of the Debian package LicenseOf.
	License   string `json:"license,omitempty"`
	LicenseOf string `json:"licenseOf,omitempty"`
	// Notes say what the file has that could not be read.
	Notes []string `json:"notes,omitempty"`
}

// Layer is what was found in one layer.
type Layer struct {
	// Files are in the order of their first paths.
	Files []File `json:"findings,omitempty"`
	// Notes say what could not be read of the layer itself.
	Notes []string `json:"notes,omitempty"`
	// Covers are the paths that the layer has something else for than a folder, or
	// deletes; Opaque are its folders that show nothing of lower layers (OCI image-spec
	// 1.1, layer.md, "Whiteouts").
	Covers pathSet `json:"covers,omitempty"`
	Opaque pathSet `json:"opaque,omitempty"`
}

// Image is what is in an image.
type Image struct {
	// Packages are sorted, and each is there once.
	Packages     []Located
	Distribution Distribution
	// Notes say why packages may be missing, sorted.
	Notes []string
}

// Located is a package and the files that tell of it.
type Located struct {
	Package
	// Paths are sorted, without a leading slash; of many, the first 20 in that order.
	Paths []string
}

// Merge puts the layers of an image together, the lowest first.
func Merge(layers []*Layer) *Image {
	image := &Image{}
	m := merger{licenses: make(map[string]string)}
	for i, layer := range layers {
		image.Notes = append(image.Notes, layer.Notes...)
		for _, f := range layer.Files {
			visible := slices.DeleteFunc(slices.Clone(f.Paths),
				func(path string) bool { return hidden(path, layers[i+1:]) })
			if len(visible) > 0 {
				m.add(image, f, visible)
			}
		}
	}
	image.Packages = m.packages()
	slices.Sort(image.Notes)
	image.Notes = slices.Compact(image.Notes)
	return image
}

// hidden reports whether one of the layers above covers a path.
func hidden(path string, above []*Layer) bool {
	for _, layer := range above {
		if len(layer.Covers) == 0 && len(layer.Opaque) == 0 {
			continue
		}
		if layer.Covers.has(path) || layer.Opaque.has("") {
			return true
		}
		for at := range path {
			if path[at] == '/' && (layer.Covers.has(path[:at]) || layer.Opaque.has(path[:at])) {
				return true
			}
		}
	}
	return false
}

// merger collects the packages of an image.
type merger struct {
	found    []Located
	licenses map[string]string // of Debian packages
}

func (m *merger) add(image *Image, f File, visible []string) {
	image.Notes = append(image.Notes, f.Notes...)
	if f.LicenseOf != "" {
		m.licenses[f.LicenseOf] = f.License
	}
	// /etc/os-release comes first in os-release(5).
	if f.Distribution != nil && (image.Distribution.ID == "" || slices.Contains(visible, "etc/os-release")) {
		image.Distribution = *f.Distribution
	}
	for _, p := range f.Packages {
		if len(m.found) == maxPackages {
			image.Notes = append(image.Notes, fmt.Sprintf("it has more than %d packages", maxPackages))
			return
		}
		m.found = append(m.found, Located{p, visible})
	}
}

func (m *merger) packages() []Located {
	for i := range m.found {
		if p := &m.found[i]; p.Type == Debian && p.License == "" {
			p.License = m.licenses[p.Name]
		}
	}
	slices.SortStableFunc(m.found, func(a, b Located) int { return a.compare(b.Package) })
	var packages []Located
	for _, p := range m.found {
		if last := len(packages) - 1; last >= 0 && packages[last].Package == p.Package {
			packages[last].Paths = union(packages[last].Paths, p.Paths)
			continue
		}
		packages = append(packages, p)
	}
	return packages
}

// union keeps the first paths of both.
func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	all = slices.Compact(all)
	return slices.Clone(all[:min(len(all), maxPaths)])
}
