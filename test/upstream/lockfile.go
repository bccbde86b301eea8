package upstream

import (
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/bundle/lock"
)

// LockOptions narrows a lock. The zero value is everything.
type LockOptions struct {
	// Platforms of the lock; nil means linux/amd64 and linux/arm64.
	Platforms []string
	// Components to keep, of k3s, cilium and liteboxd; nil means all.
	Components []string
	// K3sRefs lists k3s' images one by one instead of as air-gap archives.
	K3sRefs bool
}

// LockYAML is a versions.lock for what is served, with the upstream addresses and without
// a single pin: what `boxlift bundle lock` starts from. The liteboxd component is for
// linux/amd64 only; without that platform it is left out.
func (s *Server) LockYAML(o LockOptions) []byte {
	if o.Platforms == nil {
		o.Platforms = []string{"linux/amd64", "linux/arm64"}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nplatforms: [%s]\ncomponents:\n", lock.APIVersion, lock.Kind, strings.Join(o.Platforms, ", "))
	wanted := func(c component) bool {
		return (o.Components == nil || slices.Contains(o.Components, string(c))) &&
			(c != liteboxd || slices.Contains(o.Platforms, "linux/amd64"))
	}
	refs := func(c component) {
		for _, image := range s.set.of(c) {
			fmt.Fprintf(&b, "      - {ref: %q}\n", image.Ref)
		}
	}
	if wanted(k3s) {
		release := "https://github.com/k3s-io/k3s/releases/download/" + strings.ReplaceAll(k3sVersion, "+", "%2B")
		var archives strings.Builder
		fmt.Fprintf(&b, "  k3s:\n    version: %s\n    files:\n", k3sVersion)
		for _, arch := range arches {
			if platform := "linux/" + arch; slices.Contains(o.Platforms, platform) {
				fmt.Fprintf(&b, "      - {name: k3s, platform: %s, url: %q}\n", platform, release+"/"+k3sName(arch))
				fmt.Fprintf(&archives, "      - {archive: %q, platform: %s}\n", release+"/"+archiveName(arch), platform)
			}
		}
		fmt.Fprintf(&b, "      - {name: install.sh, url: %q}\n    images:\n", installURL)
		if o.K3sRefs {
			refs(k3s)
		} else {
			b.WriteString(archives.String())
		}
	}
	if wanted(cilium) {
		fmt.Fprintf(&b, "  cilium:\n    version: %s\n    upgradesFrom: [\">=1.19.0 <1.21.0\"]\n", ciliumVersion)
		fmt.Fprintf(&b, "    charts:\n      - {name: cilium, url: %q}\n    images:\n", chartURL(ciliumVersion))
		refs(cilium)
	}
	if wanted(liteboxd) {
		fmt.Fprintf(&b, "  liteboxd:\n    version: %s\n    platforms: [linux/amd64]\n    images:\n", liteVersion)
		refs(liteboxd)
	}
	return []byte(b.String())
}

// PinnedLockYAML is the same lock with every pin, from what the server knows of its own
// artifacts. The contents of an archive list each of its blobs once, in the order in which
// the archive has them.
func (s *Server) PinnedLockYAML(o LockOptions) ([]byte, error) {
	document, err := lock.ParseDocument("versions.lock", s.LockYAML(o))
	if err != nil {
		return nil, err
	}
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
				err = document.SetArchivePin(c.Name, n, file.SHA256, file.Size, s.contents(m.Platform.Architecture()))
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return document.Bytes(), nil
}

// contents lists what the air-gap archive of a platform holds.
func (s *Server) contents(arch string) *lock.Contents {
	contents := &lock.Contents{}
	for _, image := range s.set.of(k3s) {
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
