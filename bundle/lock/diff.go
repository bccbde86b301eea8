package lock

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Change is one difference between two locks.
type Change struct {
	Component string `json:"component"` // "" for the lock as a whole
	Entry     string `json:"entry"`     // for example "version", or "files k3s linux/amd64"
	// What it was and is, for people; "" where there is no such entry.
	Old string `json:"old"`
	New string `json:"new"`
}

// Diff lists what differs between two locks, in the order of the second; what only the
// first has comes last, in its component and in the whole. Digests are shortened to 12
// digits. The first may be nil: then everything is new.
func Diff(old, next *Lock) []Change {
	if old == nil {
		old = &Lock{}
	}
	var d differ
	d.add("serial", old.SerialText(), next.SerialText())
	d.add("audience", old.AudienceText(), next.AudienceText())
	d.add("notAfter", old.NotAfterText(), next.NotAfterText())
	d.add("platforms", joinPlatforms(old.Platforms), joinPlatforms(next.Platforms))
	for i := range next.Components {
		d.component(old.Component(next.Components[i].Name), &next.Components[i])
	}
	for i := range old.Components {
		if next.Component(old.Components[i].Name) == nil {
			d.component(&old.Components[i], nil)
		}
	}
	return d.changes
}

type differ struct {
	name    string
	changes []Change
}

func (d *differ) add(entry, old, next string) {
	if old != next {
		d.changes = append(d.changes, Change{Component: d.name, Entry: entry, Old: old, New: next})
	}
}

// component compares what a component was and is; nil for none.
func (d *differ) component(old, next *Component) {
	if old == nil {
		old = &Component{Name: next.Name}
	}
	if next == nil {
		next = &Component{Name: old.Name}
	}
	d.name = next.Name
	d.add("version", old.Version, next.Version)
	d.add("platforms", joinPlatforms(old.Platforms), joinPlatforms(next.Platforms))
	d.add("upgradesFrom", strings.Join(old.UpgradesFrom, ", "), strings.Join(next.UpgradesFrom, ", "))
	if old.RequiresDrain != next.RequiresDrain {
		d.add("requiresDrain", strconv.FormatBool(old.RequiresDrain), strconv.FormatBool(next.RequiresDrain))
	}
	for _, p := range pairUp(old.Files, next.Files, File.same, File.same) {
		d.entry(p.either().entry(), p.old != nil, p.next != nil, p.old.address(), p.next.address(), p.old.pin(),
			p.next.pin())
	}
	for _, p := range pairUp(old.Charts, next.Charts, Chart.same, Chart.same) {
		d.entry("charts "+p.either().Name, p.old != nil, p.next != nil, p.old.address(), p.next.address(), p.old.pin(),
			p.next.pin())
	}
	for _, p := range pairUp(old.Images, next.Images, Image.same, Image.successor) {
		d.entry(p.either().entry(), p.old != nil, p.next != nil, p.old.address(), p.next.address(), p.old.pin(),
			p.next.pin())
	}
	for _, p := range pairUp(old.Packages, next.Packages, OSPackages.same, OSPackages.same) {
		d.packages(p.old, p.next)
	}
}

// entry reports the pins of an entry, and its addresses where only these differ.
func (d *differ) entry(name string, was, is bool, oldAddress, address, oldPin, pin string) {
	if oldPin == pin && was && is {
		d.add(name, oldAddress, address)
		return
	}
	d.add(name, oldPin, pin)
}

// paired is an entry before and after; nil where there is none.
type paired[T any] struct{ old, next *T }

func (p paired[T]) either() T {
	if p.next != nil {
		return *p.next
	}
	return *p.old
}

// pairUp finds what became of each entry: first the same, then the first that is left over
// and could be its successor.
func pairUp[T any](old, next []T, same, successor func(T, T) bool) []paired[T] {
	pairs := make([]paired[T], len(next))
	taken := make([]bool, len(old))
	for i := range next {
		pairs[i].next = &next[i]
	}
	for _, match := range []func(T, T) bool{same, successor} {
		for i := range pairs {
			for j := range old {
				if pairs[i].old == nil && !taken[j] && match(old[j], next[i]) {
					pairs[i].old, taken[j] = &old[j], true
				}
			}
		}
	}
	for j := range old {
		if !taken[j] {
			pairs = append(pairs, paired[T]{old: &old[j]})
		}
	}
	return pairs
}

func (f File) same(other File) bool { return f.Name == other.Name && f.Platform == other.Platform }

func (f File) entry() string { return strings.TrimSpace("files " + f.Name + " " + string(f.Platform)) }

func (f *File) address() string {
	if f == nil {
		return ""
	}
	return f.URL
}

func (f *File) pin() string {
	if f == nil {
		return ""
	}
	return filePin(f.SHA256, f.Size)
}

func (c Chart) same(other Chart) bool { return c.Name == other.Name }

func (c *Chart) address() string {
	if c == nil {
		return ""
	}
	return c.URL
}

func (c *Chart) pin() string {
	if c == nil {
		return ""
	}
	return filePin(c.SHA256, c.Size)
}

func (m Image) same(other Image) bool { return m.Ref == other.Ref && m.Archive == other.Archive }

// successor reports whether other is the same image or archive of another version.
func (m Image) successor(other Image) bool {
	if m.Ref != "" || other.Ref != "" {
		return m.Ref != "" && other.Ref != "" && Repository(m.Ref) == Repository(other.Ref)
	}
	return m.Platform == other.Platform
}

// Repository is a ref of a lock without its tag.
func Repository(ref string) string {
	return ref[:strings.LastIndexByte(ref, ':')]
}

// Tag is the tag of a ref of a lock.
func Tag(ref string) string {
	return ref[strings.LastIndexByte(ref, ':')+1:]
}

func (m Image) entry() string {
	if m.Ref != "" {
		return "images " + Repository(m.Ref)
	}
	return "images " + path.Base(m.Archive) + " " + string(m.Platform)
}

func (m *Image) address() string {
	if m == nil {
		return ""
	}
	return m.Archive // a ref is in the pin
}

func (m *Image) pin() string {
	switch {
	case m == nil:
		return ""
	case m.Ref != "" && m.Digest == "":
		return Tag(m.Ref) + " not pinned"
	case m.Ref != "":
		return Tag(m.Ref) + " " + short(string(m.Digest))
	case m.Contents == nil:
		return filePin(m.SHA256, m.Size) + ", contents not known"
	}
	return fmt.Sprintf("%s, %d images", filePin(m.SHA256, m.Size), len(m.Contents.Images))
}

func filePin(sha256 string, size int64) string {
	switch {
	case sha256 == "":
		return "not pinned"
	case size == 0:
		return short("sha256:"+sha256) + " size not known"
	}
	return fmt.Sprintf("%s %d bytes", short("sha256:"+sha256), size)
}

// short leaves of a digest what people compare.
func short(digest string) string {
	return digest[:min(len(digest), len("sha256:")+12)]
}
