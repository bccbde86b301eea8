// Package lock reads, checks and completes versions.lock, the file that says which
// upstream artifacts belong to a LiteBoxd platform and, by digest, which bytes they
// are made of.
//
// Reading is strict. A lock comes from a user or out of a bundle, so its size is
// bounded, YAML's own extras (anchors, aliases, tags, several documents) are refused,
// and an unknown key, a wrong type or a malformed value is an error that names file,
// line and column. All errors of a lock are reported together, as [Errors].
//
// A lock may be incomplete: an artifact without its digest is valid and is listed by
// [Lock.Unpinned]. [Document] fills such gaps in place and leaves every other byte of
// the file, comments and order included, as it was.
//
// Nothing here opens a connection; what an entry's pin ought to be is for the caller
// to find out.
package lock

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
)

// The only values of a lock's apiVersion and kind.
const (
	APIVersion = "boxlift.dev/v1"
	Kind       = "Lock"
)

// Lock is a whole versions.lock.
type Lock struct {
	Validity
	Platforms  []Platform  // for which nodes; at least one, no two that match
	Components []Component // in the order of the file
}

// Component is one part of the platform with a version of its own.
type Component struct {
	Name         string
	Version      string     // as written, for example v1.36.4+k3s1
	Platforms    []Platform // nil: the lock's
	UpgradesFrom []string   // version ranges, any of which may upgrade to this; nil: no claim
	// RequiresDrain says that a node has to be drained before it gets this version from
	// another minor version of Kubernetes. Only the component k3s may say so.
	RequiresDrain bool
	Files         []File
	Charts        []Chart
	Images        []Image
	Packages      []OSPackages
	Line          int // of its name in the file, from 1
}

// File is a plain file that is fetched by URL.
type File struct {
	Name     string // unique in the component together with Platform
	Platform Platform
	URL      string // https
	SHA256   string // 64 lower-case hexadecimal digits; "" when not pinned
	Size     int64  // bytes; 0 when not known
	Line     int
}

// Chart is a packaged Helm chart that is fetched by URL.
type Chart struct {
	Name   string
	URL    string // https
	SHA256 string // 64 lower-case hexadecimal digits; "" when not pinned
	Size   int64  // bytes; 0 when not known
	Line   int
}

// Image is either one image in a registry (Ref, Digest) or an archive of several
// images at a URL (Archive, Platform, SHA256, Size, Contents).
type Image struct {
	Ref      string        // HOST/REPOSITORY:TAG
	Digest   digest.Digest // of the manifest or index behind Ref; "" when not pinned
	Archive  string        // https; excludes Ref
	Platform Platform      // of everything in the archive
	SHA256   string        // of the archive as it is fetched; "" when not pinned
	Size     int64         // bytes of the archive as it is fetched; 0 when not known
	Contents *Contents     // nil when nobody has read the archive yet
	Line     int
}

// Contents is what an image archive holds.
type Contents struct {
	Images []ArchiveImage
	Blobs  []ArchiveBlob
}

// ArchiveImage is the root manifest or index of one image in an archive.
type ArchiveImage struct {
	Ref       string // HOST/REPOSITORY:TAG
	Digest    digest.Digest
	Size      int64 // bytes of the manifest or index
	MediaType string
}

// ArchiveBlob is one member of an archive that becomes a blob.
type ArchiveBlob struct {
	Path      string // the member's name in the archive
	Digest    digest.Digest
	Size      int64 // bytes
	MediaType string
}

// Addresses lists what files, charts, image archives and packages are fetched from, each once, in the
// order of the file.
func (l *Lock) Addresses() []string {
	var all []string
	add := func(address string) {
		if address != "" && !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	for _, c := range l.Components {
		for _, f := range c.Files {
			add(f.URL)
		}
		for _, c := range c.Charts {
			add(c.URL)
		}
		for _, i := range c.Images {
			add(i.Archive)
		}
		for _, s := range c.Packages {
			for _, p := range s.Contents {
				add(p.URL)
			}
		}
	}
	return all
}

// PlatformsIn returns the platforms of l for which the component is wanted, in l's
// order: all of them unless the component narrows them.
func (c *Component) PlatformsIn(l *Lock) []Platform {
	if c.Platforms == nil {
		return slices.Clone(l.Platforms)
	}
	var wanted []Platform
	for _, p := range l.Platforms {
		if slices.ContainsFunc(c.Platforms, p.Match) {
			wanted = append(wanted, p)
		}
	}
	return wanted
}

// Missing is one pin that a lock lacks.
type Missing struct {
	Line  int    // of the entry
	Entry string // for example "components.cilium.images quay.io/cilium/cilium:v1.20.0"
	What  string // "digest", "sha256", "size" or "contents"
}

// Unpinned lists the pins that are missing, in the order of the file. Entries for a
// platform that their component is not wanted for are left out: nobody needs them.
func (l *Lock) Unpinned() []Missing {
	var all []Missing
	for i := range l.Components {
		c := &l.Components[i]
		platforms := c.PlatformsIn(l)
		add := func(line int, list, name string, platform Platform, what string, missing bool) {
			if !missing || !slices.ContainsFunc(platforms, platform.Match) {
				return
			}
			entry := fmt.Sprintf("components.%s.%s %s", c.Name, list, name)
			if platform != "" {
				entry += " " + string(platform)
			}
			all = append(all, Missing{Line: line, Entry: entry, What: what})
		}
		for _, f := range c.Files {
			add(f.Line, "files", f.Name, f.Platform, "sha256", f.SHA256 == "")
			add(f.Line, "files", f.Name, f.Platform, "size", f.Size == 0)
		}
		for _, h := range c.Charts {
			add(h.Line, "charts", h.Name, "", "sha256", h.SHA256 == "")
			add(h.Line, "charts", h.Name, "", "size", h.Size == 0)
		}
		for _, m := range c.Images {
			if m.Ref != "" {
				add(m.Line, "images", m.Ref, "", "digest", m.Digest == "")
				continue
			}
			add(m.Line, "images", m.Archive, m.Platform, "sha256", m.SHA256 == "")
			add(m.Line, "images", m.Archive, m.Platform, "size", m.Size == 0)
			add(m.Line, "images", m.Archive, m.Platform, "contents", m.Contents == nil)
		}
		for _, s := range c.Packages {
			add(s.Line, "packages", s.Release(), s.Platform, "contents", s.Contents == nil)
		}
	}
	slices.SortStableFunc(all, func(a, b Missing) int { return a.Line - b.Line })
	return all
}

// Digest returns what a ref is pinned to, in whatever component; "" when it is in none.
func (l *Lock) Digest(ref string) digest.Digest {
	for _, c := range l.Components {
		for _, m := range c.Images {
			if m.Ref == ref && m.Digest != "" {
				return m.Digest
			}
		}
	}
	return ""
}

// Platform names an operating system and a processor as OCI does: "linux/amd64",
// "linux/arm64/v8". The empty Platform stands for any.
type Platform string

// OS returns the operating system, for example "linux".
func (p Platform) OS() string { return p.part(0) }

// Architecture returns the processor architecture in Go's spelling, for example "arm64".
func (p Platform) Architecture() string { return p.part(1) }

// Variant returns the architecture's variant, for example "v8", or "".
func (p Platform) Variant() string { return p.part(2) }

func (p Platform) part(n int) string {
	if parts := strings.Split(string(p), "/"); n < len(parts) {
		return parts[n]
	}
	return ""
}

// Match reports whether both name the same platform. A variant that goes without saying
// makes no difference (arm64 is arm64/v8), and the empty Platform matches every other.
func (p Platform) Match(other Platform) bool {
	return p == "" || other == "" || p.short() == other.short()
}

// short leaves out the variant that the architecture has by default.
func (p Platform) short() Platform {
	switch p {
	case "linux/amd64/v1":
		return "linux/amd64"
	case "linux/arm64/v8":
		return "linux/arm64"
	case "linux/arm/v7":
		return "linux/arm"
	}
	return p
}

// Validate returns an error unless p is linux/ARCHITECTURE or
// linux/ARCHITECTURE/VARIANT with an architecture that Linux images are published for.
func (p Platform) Validate() error {
	parts := strings.Split(string(p), "/")
	valid := (len(parts) == 2 || len(parts) == 3 && variantPattern.MatchString(parts[2])) &&
		parts[0] == "linux" && slices.Contains(architectures(), parts[1])
	if !valid {
		return fmt.Errorf("%q %s", string(p), notPlatform)
	}
	return nil
}

// architectures is a closed list so that a typing error is not taken for a platform
// that nobody happens to need.
func architectures() []string {
	return []string{"386", "amd64", "arm", "arm64", "loong64", "mips64le", "ppc64le", "riscv64", "s390x"}
}
