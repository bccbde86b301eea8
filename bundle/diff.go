package bundle

import (
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/lock"
)

// Change says what became of something between two bundles.
type Change string

// The changes.
const (
	Added   Change = "added"
	Removed Change = "removed"
	Changed Change = "changed"
)

// Difference is what tells one bundle from another. What is the same in both is not listed.
type Difference struct {
	From       Side              `json:"from"`
	To         Side              `json:"to"`
	Components []ComponentChange `json:"components"`
	Files      []ItemChange      `json:"files"`
	Images     []ItemChange      `json:"images"`
	// New, Gone and Kept count the blobs that only the second bundle has, only the first,
	// and both.
	New  Amount `json:"new"`
	Gone Amount `json:"gone"`
	Kept Amount `json:"kept"`
}

// Same reports whether both bundles are the same, signatures aside.
func (d *Difference) Same() bool { return d.From.Digest == d.To.Digest }

// Side is one of the two bundles.
type Side struct {
	Path   string        `json:"path"`
	Digest digest.Digest `json:"digest"`
	// Size is that of the file, in bytes.
	Size    int64  `json:"size"`
	Builder string `json:"builder"`
	lock.Validity
}

// Amount counts blobs.
type Amount struct {
	Blobs int   `json:"blobs"`
	Bytes int64 `json:"bytes"`
}

// ComponentChange is a component that is not in both bundles, or not in the same version.
type ComponentChange struct {
	Name   string `json:"name"`
	Change Change `json:"change"`
	From   string `json:"from,omitempty"`
	To     string `json:"to,omitempty"`
}

// ItemChange is a file or an image that is not in both bundles, or not the same in both.
type ItemChange struct {
	Component string `json:"component"`
	Change    Change `json:"change"`
	From      *Item  `json:"from,omitempty"`
	To        *Item  `json:"to,omitempty"`
	// New and Gone are the bytes of blobs that only one of the bundles has. A blob of
	// several items counts for the first of them.
	New  int64 `json:"new"`
	Gone int64 `json:"gone"`
}

// Item is a file or an image in one of the bundles.
type Item struct {
	Name      string          `json:"name"`
	Digest    digest.Digest   `json:"digest"`
	Platforms []lock.Platform `json:"platforms,omitempty"`

	component string
	// key is what one bundle has only once; kin is the same without what changes with a
	// version.
	key, kin string
	blobs    map[digest.Digest]int64
}

// Compare finds out what became of a bundle in another one. It reads manifests only.
func Compare(from, to *Reader) (*Difference, error) {
	a, err := from.Contents()
	if err != nil {
		return nil, err
	}
	b, err := to.Contents()
	if err != nil {
		return nil, err
	}
	d := &Difference{From: sideOf(from), To: sideOf(to), Components: compareComponents(a.Describe(), b.Describe())}
	had, has := blobSizes(from, a), blobSizes(to, b)
	for digest, size := range had {
		if _, ok := has[digest]; ok {
			d.Kept.Add(size)
		} else {
			d.Gone.Add(size)
		}
	}
	for digest, size := range has {
		if _, ok := had[digest]; !ok {
			d.New.Add(size)
		}
	}
	// What is in both is no item's to count.
	for digest := range had {
		if _, ok := has[digest]; ok {
			delete(had, digest)
			delete(has, digest)
		}
	}
	d.Files = compareItems(a.fileItems(), b.fileItems(), had, has)
	d.Images = compareItems(a.imageItems(), b.imageItems(), had, has)
	return d, nil
}

func sideOf(r *Reader) Side {
	return Side{Path: r.path, Digest: r.Digest(), Size: r.Size(), Builder: r.Version(), Validity: r.validity}
}

// Add counts one more blob of so many bytes.
func (a *Amount) Add(size int64) {
	a.Blobs++
	a.Bytes += size
}

// blobSizes lists all blobs that a bundle stands for.
func blobSizes(r *Reader, c *Contents) map[digest.Digest]int64 {
	all := make(map[digest.Digest]int64)
	for _, d := range r.parsed.Manifests {
		all[d.Digest] = d.Size
	}
	for _, items := range [][]Item{c.fileItems(), c.imageItems()} {
		for _, item := range items {
			for digest, size := range item.blobs {
				all[digest] = size
			}
		}
	}
	return all
}

func compareComponents(from, to []Component) []ComponentChange {
	changes := make([]ComponentChange, 0)
	for _, a := range from {
		i := slices.IndexFunc(to, func(b Component) bool { return b.Name == a.Name })
		switch {
		case i < 0:
			changes = append(changes, ComponentChange{Name: a.Name, Change: Removed, From: a.Version})
		case to[i].Version != a.Version:
			changes = append(changes, ComponentChange{Name: a.Name, Change: Changed, From: a.Version,
				To: to[i].Version})
		}
	}
	for _, b := range to {
		if !slices.ContainsFunc(from, func(a Component) bool { return a.Name == b.Name }) {
			changes = append(changes, ComponentChange{Name: b.Name, Change: Added, To: b.Version})
		}
	}
	return changes
}

// withoutVersion gives charts, whose names have their versions, one name for all of them.
func withoutVersion(name, version string) string {
	if version = strings.TrimPrefix(version, "v"); version == "" {
		return name
	}
	return strings.ReplaceAll(name, version, "")
}

// same reports whether nothing became of an item.
func (i *Item) same(o *Item) bool {
	return i.Name == o.Name && i.Digest == o.Digest && slices.Equal(i.Platforms, o.Platforms)
}

// compareItems lists what is not the same on both sides. The blobs that only one side has
// are taken out of gone and added by the items that they are counted for.
func compareItems(from, to []Item, gone, added map[digest.Digest]int64) []ItemChange {
	changes := make([]ItemChange, 0)
	for _, p := range pairItems(from, to) {
		if p.from != nil && p.to != nil && p.from.same(p.to) {
			continue
		}
		c := ItemChange{Change: Changed, From: p.from, To: p.to}
		switch {
		case p.from == nil:
			c.Component, c.Change = p.to.component, Added
		case p.to == nil:
			c.Component, c.Change = p.from.component, Removed
		default:
			c.Component = p.from.component
		}
		c.Gone, c.New = p.from.take(gone), p.to.take(added)
		changes = append(changes, c)
	}
	return changes
}

// take counts the blobs of an item that are left in a set, and takes them out of it.
func (i *Item) take(set map[digest.Digest]int64) int64 {
	if i == nil {
		return 0
	}
	var n int64
	for d := range i.blobs {
		n += set[d]
		delete(set, d)
	}
	return n
}

// itemPair is what an item is on both sides; nil where it is not.
type itemPair struct{ from, to *Item }

// pairItems pairs items of one name, and of those that are left the ones whose names
// differ by a version only, provided that there is one on each side.
func pairItems(from, to []Item) []itemPair {
	partners := make(map[*Item]*Item)
	taken := make(map[*Item]bool)
	for _, name := range []func(*Item) string{func(i *Item) string { return i.key },
		func(i *Item) string { return i.kin }} {
		left, right := make(map[string][]*Item), make(map[string][]*Item)
		for i := range from {
			if item := &from[i]; partners[item] == nil {
				left[name(item)] = append(left[name(item)], item)
			}
		}
		for i := range to {
			if item := &to[i]; !taken[item] {
				right[name(item)] = append(right[name(item)], item)
			}
		}
		for n, items := range left {
			if len(items) == 1 && len(right[n]) == 1 {
				partners[items[0]] = right[n][0]
				taken[right[n][0]] = true
			}
		}
	}
	pairs := make([]itemPair, 0, len(from))
	for i := range from {
		pairs = append(pairs, itemPair{&from[i], partners[&from[i]]})
	}
	for i := range to {
		if !taken[&to[i]] {
			pairs = append(pairs, itemPair{nil, &to[i]})
		}
	}
	return pairs
}
