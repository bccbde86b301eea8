package packages

import (
	"io"
	"slices"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
)

// Use takes the packages of a bundle as those that are there for hosts.
func (r *Room) Use(b *bundle.Reader, contents *bundle.Contents) {
	r.Sets = setsOf(contents)
	r.Open = func(p Package) (io.Reader, error) { return b.Content(p.SHA256, p.Size) }
}

// setsOf are the packages of a bundle by the hosts that they are for.
func setsOf(contents *bundle.Contents) []Set {
	var sets []Set
	for _, release := range contents.HostReleases() {
		s := Set{ID: release.Family, Codename: release.Suite, Architecture: lock.DebianArchitecture(release.Platform)}
		for _, p := range contents.HostPackages(release.Family, release.Suite, release.Platform) {
			s.Removable = append(s.Removable, p.Removes...)
			s.Packages = append(s.Packages, Package{Name: p.Name, Version: p.Version, Architecture: p.Architecture,
				Filename: p.Filename, Size: p.Size, SHA256: p.SHA256})
		}
		slices.Sort(s.Removable)
		s.Removable = slices.Compact(s.Removable)
		sets = append(sets, s)
	}
	return sets
}
