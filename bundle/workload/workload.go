// Package workload knows what components of a lock are installed from beside boxlift's own, and whether the lock has
// the images for it.
//
// Contract: a component that is not boxlift's own is a workload when it has a Helm chart or a file
// [bundle.ManifestsFile], one of them and once. A file [bundle.ValuesFile] beside it has the values that the chart is
// rendered with, under those of a site. Whoever can render is above this package, and tells where images are named, as
// [Use]. Nothing here opens a connection; errors about a lock name its file and line, and are wrong input.
package workload

import (
	"errors"
	"fmt"
	"slices"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/download"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/bundle/upstream"
	"github.com/liteboxd/boxlift/internal/fault"
)

// Bounds on what a component is installed from, in bytes: what is larger, no site could install.
const (
	maxChart     = 8 << 20
	maxManifests = 4 << 20
	maxValues    = 256 << 10
)

// Workload is a component with what it is installed from.
type Workload struct {
	Component string // its name
	Version   string // the component's
	// IsChart says that From is a Helm chart, and otherwise a tar of a kustomize folder.
	IsChart bool
	From    Entry
	// Values are those that the chart is rendered with; nil for none.
	Values *Entry
}

// Entry is one file of a component.
type Entry struct {
	Name   string // in the bundle
	URL    string
	SHA256 string // "" when not pinned
	Size   int64  // bytes; 0 when not known
	Most   int64  // bytes that it may have

	path string // in the lock
	file string // of the lock
	line int
}

// Place is where the entry stands in the lock, as errors about it begin: "versions.lock:12: components.web.charts web".
func (e Entry) Place() string { return fmt.Sprintf("%s:%d: %s", e.file, e.line, e.path) }

func (e Entry) fault(format string, args ...any) *lock.Error {
	return &lock.Error{File: e.file, Line: e.line, Path: e.path, Reason: fmt.Sprintf(format, args...)}
}

// check proves content.
func (e Entry) check(content []byte) error {
	want := ocispec.Descriptor{Digest: digest.NewDigestFromEncoded(digest.SHA256, e.SHA256), Size: e.Size}
	if got := digest.FromBytes(content); got != want.Digest {
		return &download.DiffersError{Want: want, Got: got, Size: int64(len(content))}
	}
	return nil
}

// Source is a workload with the contents of what it is installed from.
type Source struct {
	Workload
	Content       []byte // of From
	ValuesContent []byte // of Values; nil for none
}

// Read gets what a workload is installed from. fetch reads an entry whole, of Most bytes at most; what comes is proven
// to be what the lock pins.
func (w Workload) Read(fetch func(Entry) ([]byte, error)) (Source, error) {
	s := Source{Workload: w}
	get := func(e Entry) ([]byte, error) {
		content, err := fetch(e)
		if err == nil {
			err = e.check(content)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", w.Component, e.Name, err)
		}
		return content, nil
	}
	var err error
	if s.Content, err = get(w.From); err != nil {
		return Source{}, err
	}
	if w.Values != nil {
		if s.ValuesContent, err = get(*w.Values); err != nil {
			return Source{}, err
		}
	}
	return s, nil
}

// IsPinned reports whether the lock says which bytes the workload is installed from.
func (w Workload) IsPinned() bool {
	return w.From.SHA256 != "" && (w.Values == nil || w.Values.SHA256 != "")
}

// Of is what a component is installed from, whether it is boxlift's own or not: the first chart or else the tar of
// manifests. ok is false when it has neither. name is the lock's, for errors.
func Of(name string, c lock.Component) (w Workload, ok bool) {
	w.Component, w.Version = c.Name, c.Version
	if i := indexOf(c, bundle.ValuesFile); i >= 0 {
		values := fileEntry(name, c, i, maxValues)
		w.Values = &values
	}
	if len(c.Charts) > 0 {
		w.IsChart, w.From = true, chartEntry(name, c, 0)
		return w, true
	}
	i := indexOf(c, bundle.ManifestsFile)
	if i < 0 {
		return Workload{}, false
	}
	w.From = fileEntry(name, c, i, maxManifests)
	return w, true
}

func indexOf(c lock.Component, file string) int {
	return slices.IndexFunc(c.Files, func(f lock.File) bool { return f.Name == file })
}

func fileEntry(name string, c lock.Component, i int, most int64) Entry {
	f := c.Files[i]
	return Entry{Name: f.Name, URL: f.URL, SHA256: f.SHA256, Size: f.Size, Most: most, file: name, line: f.Line,
		path: "components." + c.Name + ".files " + f.Name}
}

func chartEntry(name string, c lock.Component, i int) Entry {
	chart := c.Charts[i]
	return Entry{Name: source.BaseName(chart.URL), URL: chart.URL, SHA256: chart.SHA256, Size: chart.Size, Most: maxChart,
		file: name, line: chart.Line, path: "components." + c.Name + ".charts " + chart.Name}
}

// Find lists the workloads of a lock, in its order. name is the lock's, for errors, which are [lock.Errors].
func Find(name string, l *lock.Lock) ([]Workload, error) {
	own := append(upstream.Names(), "vulnerabilities") // whose files `boxlift bundle scan` goes by
	var list []Workload
	var errs lock.Errors
	for _, c := range l.Components {
		w, ok := Of(name, c)
		if !ok || slices.Contains(own, c.Name) {
			continue
		}
		list = append(list, w)
		errs = append(errs, faults(name, c, w)...)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return list, nil
}

// faults are what keeps a component from being installed.
func faults(name string, c lock.Component, w Workload) (errs lock.Errors) {
	for i := 1; i < len(c.Charts); i++ {
		errs = append(errs, chartEntry(name, c, i).fault("is another chart beside the one on line %d: expected one in "+
			"a component, make a component for each", c.Charts[0].Line))
	}
	for i, f := range c.Files {
		if f.Name != bundle.ManifestsFile && f.Name != bundle.ValuesFile {
			continue
		}
		e := fileEntry(name, c, i, 0)
		switch {
		case f.Platform != "":
			errs = append(errs, e.fault("is for %s: expected it without a platform, a workload is the same on all",
				f.Platform))
		case f.Name == bundle.ManifestsFile && w.IsChart:
			errs = append(errs, e.fault("stands beside a chart, on line %d: expected one of them in a component",
				c.Charts[0].Line))
		}
	}
	entries := []Entry{w.From}
	if w.Values != nil {
		entries = append(entries, *w.Values)
	}
	for _, e := range entries {
		if e.Size > e.Most {
			errs = append(errs, e.fault("has %d bytes: expected %d at most, no site could install it", e.Size, e.Most))
		}
	}
	return errs
}

// Use is one place where an image is named.
type Use struct {
	Image     string // as it is written there
	Object    string // "Deployment web/web"
	Container string // "nginx": a container, an image volume, or the variable that holds the image
}

func (u Use) String() string { return u.Object + " (" + u.Container + ") needs the image " + u.Image }

// reference completes the image's name as Docker does: docker.io, library and the tag latest go without saying.
// asked is the digest that is named with it; "" for none.
func (u Use) reference() (ref string, asked digest.Digest, isTagged bool, err error) {
	named, err := reference.ParseNormalizedNamed(u.Image)
	if err != nil {
		return "", "", false, errors.New("that is not the name of an image") // the library's error has it as it came
	}
	if digested, ok := named.(reference.Digested); ok {
		if asked = digested.Digest(); asked.Algorithm() != digest.SHA256 {
			return "", "", false, errors.New("its digest is none of sha256")
		}
	}
	tag := "latest"
	tagged, isTagged := named.(reference.Tagged)
	if isTagged {
		tag = tagged.Tag()
	}
	return reference.TrimNamed(named).String() + ":" + tag, asked, isTagged, nil
}

// Images are what components have: digests by full names, "" for those that are not pinned.
type Images map[string]digest.Digest

// ImagesOf lists the images of components, those in archives too.
func ImagesOf(components ...lock.Component) Images {
	all := Images{}
	add := func(ref string, d digest.Digest) {
		if all[ref] == "" {
			all[ref] = d
		}
	}
	for _, c := range components {
		for _, i := range c.Images {
			if i.Ref != "" {
				add(i.Ref, i.Digest)
			}
			if i.Contents != nil {
				for _, inside := range i.Contents.Images {
					add(inside.Ref, inside.Digest)
				}
			}
		}
	}
	return all
}

// Lack is an image that is used and not there.
type Lack struct {
	Use
	Ref    string        // the image's full name
	Digest digest.Digest // that it is asked for by; "" for none
	// IsTagged says that the tag of Ref is named there; otherwise it goes without saying.
	IsTagged bool
}

// Lacking lists images that are used and not there, each once, in the order of their uses. A use that names a digest
// besides means the same image when that is its digest; another one is an error, as is a name that is none. All
// errors are reported.
func (have Images) Lacking(uses []Use) ([]Lack, error) {
	var lacks []Lack
	var errs []error
	for _, u := range uses {
		ref, asked, isTagged, err := u.reference()
		if err != nil {
			errs = append(errs, fault.Input.Errorf("%s: %w", u, err))
			continue
		}
		at := slices.IndexFunc(lacks, func(l Lack) bool { return l.Ref == ref })
		d, is := have[ref]
		switch {
		case is && d != "" && asked != "" && d != asked:
			errs = append(errs, fault.Input.Errorf("%s: the lock has %s with the digest %s: take the digest out where "+
				"the image is named, or correct it", u, ref, d))
		case is:
		case at < 0:
			lacks = append(lacks, Lack{u, ref, asked, isTagged})
		case lacks[at].Digest == "":
			lacks[at].Digest = asked
		case asked != "" && asked != lacks[at].Digest:
			errs = append(errs, fault.Input.Errorf("%s: %s (%s) names it with the digest %s: one name can have one "+
				"digest in a bundle", u, lacks[at].Object, lacks[at].Container, lacks[at].Digest))
		}
	}
	return lacks, errors.Join(errs...)
}

// Unlisted lists what may be images and is not there, each once, in order. What is no image's name is left out.
func (have Images) Unlisted(possible []Use) []Lack {
	var lacks []Lack
	for _, u := range possible {
		if one, err := have.Lacking([]Use{u}); err == nil && len(one) == 1 &&
			!slices.ContainsFunc(lacks, func(l Lack) bool { return l.Ref == one[0].Ref }) {
			lacks = append(lacks, one[0])
		}
	}
	return lacks
}

// Additions are the entries that a component of a lock lacks for its uses of images.
func Additions(l *lock.Lock, component string, uses []Use) ([]lock.Image, error) {
	c := l.Component(component)
	if c == nil {
		return nil, fmt.Errorf("the lock has no component %s", component)
	}
	lacks, err := ImagesOf(*c).Lacking(uses)
	errs := []error{err}
	elsewhere := ImagesOf(l.Components...)
	var entries []lock.Image
	for _, lack := range lacks {
		pinned := elsewhere[lack.Ref]
		switch {
		case lack.Digest != "" && !lack.IsTagged:
			errs = append(errs, fault.WithHint(fault.Input.Errorf("%s: it has no tag, and a lock names images by tags",
				lack.Use), "set a tag beside the digest: in a "+bundle.ValuesFile+" of the component for a chart, under "+
				"images in the kustomization for manifests"))
		case lack.Digest != "" && pinned != "" && pinned != lack.Digest:
			errs = append(errs, fault.Input.Errorf("%s: another component of the lock has %s with the digest %s: one "+
				"name can have one digest in a bundle", lack.Use, lack.Ref, pinned))
		default:
			entries = append(entries, lock.Image{Ref: lack.Ref, Digest: lack.Digest})
		}
	}
	return entries, errors.Join(errs...)
}
