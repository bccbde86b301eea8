package upstream

import (
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/bundle/lock"
)

// LockOptions narrows a lock. The zero value is everything.
type LockOptions struct {
	// Release that the lock is for; the zero value is the first that the server has. One
	// that it does not have is a mistake in the caller and panics.
	Release Release
	// Platforms of the lock; nil means linux/amd64 and linux/arm64.
	Platforms []string
	// Components to keep, of k3s, cilium, liteboxd and, in releases for clusters,
	// netcheck; nil means all.
	Components []string
	// K3sRefs lists k3s' images one by one instead of as air-gap archives.
	K3sRefs bool
	// RequiresDrain asks for drained nodes.
	RequiresDrain bool
	// More are further components, as a lock has them.
	More string
}

// LockYAML is a versions.lock for what is served, with the upstream addresses and without
// a single pin: what `boxlift bundle lock` starts from. The liteboxd component is for
// linux/amd64 only; without that platform it is left out.
func (s *Server) LockYAML(o LockOptions) []byte {
	if o.Platforms == nil {
		o.Platforms = []string{"linux/amd64", "linux/arm64"}
	}
	r := s.release(o)
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nplatforms: [%s]\ncomponents:\n", lock.APIVersion, lock.Kind, strings.Join(o.Platforms, ", "))
	wanted := func(c component) bool {
		return (o.Components == nil || slices.Contains(o.Components, string(c))) &&
			(c != liteboxd || slices.Contains(o.Platforms, "linux/amd64"))
	}
	refs := func(c component) {
		for _, image := range s.set.of(r, c) {
			fmt.Fprintf(&b, "      - {ref: %q}\n", image.Ref)
		}
	}
	if wanted(k3s) {
		var archives strings.Builder
		fmt.Fprintf(&b, "  k3s:\n    version: %s\n", r.Release.K3s)
		if o.RequiresDrain {
			b.WriteString("    requiresDrain: true\n")
		}
		b.WriteString("    files:\n")
		for _, arch := range arches {
			if platform := "linux/" + arch; slices.Contains(o.Platforms, platform) {
				fmt.Fprintf(&b, "      - {name: k3s, platform: %s, url: %q}\n", platform, r.url(k3sName(arch)))
				fmt.Fprintf(&archives, "      - {archive: %q, platform: %s}\n", r.url(archiveName(arch)), platform)
			}
		}
		fmt.Fprintf(&b, "      - {name: install.sh, url: %q}\n    images:\n", r.installURL())
		if o.K3sRefs {
			refs(k3s)
		} else {
			b.WriteString(archives.String())
		}
	}
	if wanted(cilium) {
		fmt.Fprintf(&b, "  cilium:\n    version: %s\n    upgradesFrom: [%q]\n", r.Release.Cilium, r.Release.ciliumFrom)
		if r.Release.cluster {
			b.WriteString("    files:\n")
			for _, arch := range arches {
				if platform := "linux/" + arch; slices.Contains(o.Platforms, platform) {
					fmt.Fprintf(&b, "      - {name: %s, platform: %s, url: %q}\n", ciliumCLIName(arch), platform, ciliumCLIURL(CiliumCLIs[0], arch))
				}
			}
		}
		fmt.Fprintf(&b, "    charts:\n      - {name: cilium, url: %q}\n    images:\n", chartURL(r.Release.Cilium))
		refs(cilium)
	}
	if wanted(liteboxd) {
		fmt.Fprintf(&b, "  liteboxd:\n    version: %s\n    platforms: [linux/amd64]\n    images:\n", r.Release.LiteBoxd)
		refs(liteboxd)
	}
	if wanted(netcheck) && r.Release.cluster {
		b.WriteString("  netcheck:\n    version: v1\n    images:\n")
		refs(netcheck)
	}
	b.WriteString(o.More)
	return []byte(b.String())
}

// release is the one that a lock is for.
func (s *Server) release(o LockOptions) *releaseSet {
	if o.Release == (Release{}) {
		return &s.set.Releases[0]
	}
	for n := range s.set.Releases {
		if s.set.Releases[n].Release == o.Release {
			return &s.set.Releases[n]
		}
	}
	panic("upstream: this server does not have the release with k3s " + o.Release.K3s + " and Cilium " + o.Release.Cilium)
}

// PinnedLockYAML is the same lock with every pin, from what the server knows of its own
// artifacts. The contents of an archive list each of its blobs once, in the order in which
// the archive has them.
func (s *Server) PinnedLockYAML(o LockOptions) ([]byte, error) {
	document, err := lock.ParseDocument("versions.lock", s.LockYAML(o))
	if err != nil {
		return nil, err
	}
	r := s.release(o)
	for _, c := range document.Lock().Components {
		for n, f := range c.Files {
			file := s.files[pathOf(f.URL)]
			if err := document.SetFilePin(c.Name, n, file.SHA256, file.Size); err != nil {
				return nil, err
			}
		}
		for n, h := range c.Charts {
			file := s.files[pathOf(h.URL)]
			if err := document.SetChartPin(c.Name, n, file.SHA256, file.Size); err != nil {
				return nil, err
			}
		}
		for n, m := range c.Images {
			if m.Archive == "" {
				err = document.SetImageDigest(c.Name, n, s.set.image(m.Ref).Root.Digest)
			} else {
				file := s.files[pathOf(m.Archive)]
				err = document.SetArchivePin(c.Name, n, file.SHA256, file.Size, s.contents(r, m.Platform.Architecture()))
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return document.Bytes(), nil
}

// contents lists what the air-gap archive of a platform holds.
func (s *Server) contents(r *releaseSet, arch string) *lock.Contents {
	contents := &lock.Contents{}
	for _, image := range s.set.of(r, k3s) {
		contents.Images = append(contents.Images, lock.ArchiveImage{
			Ref: image.Ref, Digest: image.Root.Digest, Size: image.Root.Size, MediaType: image.Root.MediaType,
		})
		for _, b := range archiveBlobs(image, arch) {
			entry := lock.ArchiveBlob{Path: blobMember(b), Digest: b.Digest, Size: b.Size, MediaType: b.MediaType}
			if !slices.ContainsFunc(contents.Blobs, func(other lock.ArchiveBlob) bool { return other.Path == entry.Path }) {
				contents.Blobs = append(contents.Blobs, entry)
			}
		}
	}
	slices.SortFunc(contents.Blobs, func(a, b lock.ArchiveBlob) int { return strings.Compare(a.Path, b.Path) })
	return contents
}
