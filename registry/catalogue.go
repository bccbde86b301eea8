package registry

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// Grammar of the distribution specification 1.1, "Pulling manifests".
var (
	pathPattern = lazyregexp.New(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagPattern  = lazyregexp.New(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	hostPattern = lazyregexp.New(`^[a-zA-Z0-9.-]+(:[0-9]{1,5})?$`)
)

const (
	maxName = 512
	// maxRepository is what registries and their clients take for a chart's repository, in bytes.
	maxRepository = 255
	// dockerHub is the registry of images whose name has none.
	dockerHub = "docker.io"
	// artifacts is where the files of a bundle are.
	artifacts = "boxlift"
	// ChartsPrefix is where Helm charts are.
	ChartsPrefix = "charts"
)

// catalogue is what several layouts hold, by name. It does not change.
type catalogue struct {
	layouts []*layout // the newest first
	// repositories have their registry in the name, short ones not.
	repositories map[string]*repository
	short        map[string][]*repository
	names        []string // in order
}

type repository struct {
	name     string
	registry string // "" for artifacts
	roots    []root
	tags     map[string]root
	tagNames []string // in order
}

// root is what a tag may stand for: an entry of a layout's index.json, or content that was
// made of several of them.
type root struct {
	layout  *layout
	digest  digest.Digest
	content []byte
}

type imageName struct{ registry, path, tag string }

// parseName takes a name apart as containerd does: without a registry it is one of Docker
// Hub's.
func parseName(name string) (imageName, error) {
	rest, _, _ := strings.Cut(name, "@")
	n := imageName{registry: dockerHub}
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		rest, n.tag = rest[:i], rest[i+1:]
	}
	first, after, found := strings.Cut(rest, "/")
	switch {
	case found && (strings.ContainsAny(first, ".:") || first == "localhost"):
		n.registry, n.path = first, after
	case found:
		n.path = rest
	default:
		n.path = "library/" + rest
	}
	if len(name) > maxName || !hostPattern.MatchString(n.registry) || !pathPattern.MatchString(n.path) ||
		n.tag != "" && !tagPattern.MatchString(n.tag) {
		return imageName{}, fmt.Errorf("%.200q is not the name of an image", name)
	}
	return n, nil
}

// newCatalogue takes in layouts whose entries were checked. Where two of them have other
// content for a tag, the first one's counts.
func newCatalogue(layouts []*layout) (*catalogue, error) {
	c := &catalogue{layouts: layouts, repositories: make(map[string]*repository), short: make(map[string][]*repository)}
	for _, l := range layouts {
		if err := c.add(l); err != nil {
			return nil, err
		}
	}
	for name, r := range c.repositories {
		c.names = append(c.names, name)
		for tag := range r.tags {
			r.tagNames = append(r.tagNames, tag)
		}
		slices.SortFunc(r.tagNames, compareTags)
		if r.registry != "" {
			short := strings.TrimPrefix(name, r.registry+"/")
			c.short[short] = append(c.short[short], r)
		}
	}
	slices.Sort(c.names)
	return c, nil
}

// compareTags has the order that the specification asks for: not by case.
func compareTags(a, b string) int {
	return cmp.Or(strings.Compare(strings.ToLower(a), strings.ToLower(b)), strings.Compare(a, b))
}

func (c *catalogue) add(l *layout) error {
	var files []artifact
	for _, d := range l.entries {
		if name, ok := d.Annotations[annotationImageName]; ok {
			n, err := parseName(name)
			if err != nil {
				return err
			}
			c.repository(n.registry, n.path).add(n.tag, root{layout: l, digest: d.Digest})
		} else if chart, ok := d.Annotations[AnnotationChart]; ok {
			path, tag, err := ChartReference(ChartsPrefix, chart, d.Annotations[annotationVersion])
			if err != nil {
				return err
			}
			c.repository("", path).add(tag, root{layout: l, digest: d.Digest})
		} else if file, ok := artifactOf(d); ok {
			files = append(files, file)
		}
	}
	return c.addArtifacts(l, files)
}

func (c *catalogue) repository(registry, path string) *repository {
	name := path
	if registry != "" {
		name = registry + "/" + path
	}
	r, ok := c.repositories[name]
	if !ok {
		r = &repository{name: name, registry: registry, tags: make(map[string]root)}
		c.repositories[name] = r
	}
	return r
}

func (r *repository) add(tag string, to root) {
	r.roots = append(r.roots, to)
	if _, ok := r.tags[tag]; !ok && tag != "" {
		r.tags[tag] = to
	}
}

// ChartReference is where Helm looks for a chart below a prefix, such as "charts": in the repository of its name,
// under its version, with a _ for each + (Helm's pkg/registry, newReference). It refuses names and versions for which
// there is no such place.
func ChartReference(prefix, name, version string) (repository, tag string, err error) {
	repository, tag = prefix+"/"+name, strings.ReplaceAll(version, "+", "_")
	switch {
	case strings.Contains(name, "/") || len(repository) > maxRepository || !pathPattern.MatchString(repository):
		return "", "", fmt.Errorf("the chart's name %.100q is none that a repository may have: small letters, digits, and "+
			". _ or - between them", name)
	case !tagPattern.MatchString(tag):
		return "", "", fmt.Errorf("the chart's version %.200q is none that a tag may have, with a _ for each +",
			version)
	}
	return repository, tag, nil
}

// share is what a repository has of a layout.
type share struct {
	layout *layout
	roots  []digest.Digest
}

// shares are in the order of the catalogue's layouts, which is that of the roots.
func (r *repository) shares() []share {
	var all []share
	for _, from := range r.roots {
		if from.layout == nil {
			continue // it was made of others
		}
		if n := len(all); n == 0 || all[n-1].layout != from.layout {
			all = append(all, share{layout: from.layout})
		}
		last := &all[len(all)-1]
		last.roots = append(last.roots, from.digest)
	}
	return all
}

// artifact is a file of a bundle.
type artifact struct {
	ocispec.Descriptor
	path, tag string
}

func artifactOf(d ocispec.Descriptor) (artifact, bool) {
	title, component := d.Annotations[ocispec.AnnotationTitle], d.Annotations[annotationComponent]
	folder := artifacts + "/" + pathOf(component)
	if suite := d.Annotations[annotationSuite]; suite != "" { // packages of several releases may have one name
		folder += "/" + pathOf(d.Annotations[annotationFamily]) + "/" + pathOf(suite)
	}
	a := artifact{Descriptor: d, path: folder + "/" + pathOf(title), tag: tagOf(d.Annotations[annotationVersion])}
	return a, d.ArtifactType != "" && title != "" && component != "" && len(a.path) <= maxName &&
		pathPattern.MatchString(a.path)
}

// pathOf makes a text a part of a repository's name.
func pathOf(text string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(text) {
		alphanumeric := 'a' <= r && r <= 'z' || '0' <= r && r <= '9'
		switch last := b.Len() - 1; {
		case alphanumeric:
			b.WriteRune(r)
		case last < 0 || strings.IndexByte(".-_", b.String()[last]) >= 0:
			// A separator stands between others, once.
		case r == '.' || r == '_':
			b.WriteRune(r)
		default:
			b.WriteByte('-')
		}
	}
	return strings.TrimRight(b.String(), ".-_")
}

// tagOf makes a version a tag: v1.36.4+k3s1 is v1.36.4-k3s1, as image tags have it.
func tagOf(version string) string {
	tag := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, version)
	tag = strings.TrimLeft(tag, ".-")
	return cmp.Or(tag[:min(len(tag), 128)], "latest")
}

func (c *catalogue) addArtifacts(l *layout, files []artifact) error {
	type name struct{ path, tag string }
	var order []name
	same := make(map[name][]artifact)
	for _, f := range files {
		n := name{f.path, f.tag}
		if len(same[n]) == 0 {
			order = append(order, n)
		}
		same[n] = append(same[n], f)
	}
	for _, n := range order {
		if err := c.addArtifact(l, same[n]); err != nil {
			return err
		}
	}
	return nil
}

// addArtifact adds what goes by one name: one file, or one for each platform.
func (c *catalogue) addArtifact(l *layout, files []artifact) error {
	r := c.repository("", files[0].path)
	if len(files) == 1 {
		r.add(files[0].tag, root{layout: l, digest: files[0].Digest})
		return nil
	}
	all := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, f := range files {
		tag := ""
		if p := f.Platform; p != nil {
			tag = tagOf(f.tag + "-" + p.OS + "-" + p.Architecture)
		}
		r.add(tag, root{layout: l, digest: f.Digest})
		all.Manifests = append(all.Manifests, ocispec.Descriptor{
			MediaType: f.MediaType, Digest: f.Digest, Size: f.Size, Platform: f.Platform, ArtifactType: f.ArtifactType,
		})
	}
	content, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("make the image index of %s: %w", r.name, err)
	}
	r.add(files[0].tag, root{digest: digest.FromBytes(content), content: content})
	return nil
}

// resolve finds a repository by the name in a request, and by containerd's ns, the
// registry that it mirrors.
func (c *catalogue) resolve(name, ns string) (*repository, *failure) {
	full := name
	if ns != "" {
		full = ns + "/" + name
	}
	if r, ok := c.repositories[full]; ok {
		return r, nil
	}
	if len(full) > maxName || !pathPattern.MatchString(strings.ToLower(name)) {
		return nil, fail(404, codeNameInvalid, "this is not the name of a repository", name)
	}
	if ns == "" {
		switch found := c.short[name]; len(found) {
		case 0:
		case 1:
			return found[0], nil
		default:
			names := make([]string, 0, len(found))
			for _, r := range found {
				names = append(names, r.name)
			}
			slices.Sort(names)
			return nil, fail(404, codeNameUnknown,
				"several registries have a repository of this name; ask for one of them by its full name", names)
		}
	}
	return nil, fail(404, codeNameUnknown, "this registry has no such repository", full)
}
