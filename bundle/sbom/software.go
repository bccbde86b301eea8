package sbom

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/opencontainers/go-digest"
	"github.com/package-url/packageurl-go"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/internal/printable"
)

// maxSoftwareValues is how many values of JSON a document may have: some ten for each package, and [Make] lists at most
// a few hundred thousand.
const maxSoftwareValues = 1 << 23

// Software is what a document lists, as far as advisories and statements can be about it.
type Software struct {
	// Subject is the sha256 of the bundle that the document is about. The one of a bundle that carries the document is
	// another.
	Subject digest.Digest
	// Lock is the sha256 of the bundle's lock, "" where the document does not have it.
	Lock     digest.Digest
	Packages []Listed
	// Incomplete are the images of which something could not be read, each with why.
	Incomplete []string
}

// IsOf reports whether the software is that of a bundle, by its digest or by that of its lock: a bundle that carries
// the document has another digest than the one in it, and the same lock. All but boxlift's own programs is pinned by
// that.
func (s *Software) IsOf(bundle, lock digest.Digest) bool {
	return s.Subject != "" && s.Subject == bundle || s.Lock != "" && s.Lock == lock
}

// Listed is a package, or a component that has its own versions.
type Listed struct {
	URL packageurl.PackageURL // of its version
	// License is what it says of its licence: an identifier or expression of SPDX, or its own words; "" for nothing.
	License string
	// In are the images and files that it is in, in the order of the document: of an OS package that is a file
	// itself, the component that it is a part of, and of a component, that one itself.
	In []*Place
}

// Place is something in the bundle that has packages in it, or other places: an image for one platform, a file, a
// component, or the bundle.
type Place struct {
	Ref      string // within the document
	Name     string // of an image with its tag
	Platform string // "" for what serves all
	// Components are those that it is a part of; none for the bundle.
	Components []*Place
	// URLs and Digests (sha256, in hexadecimal digits) are what others may name it by: an image by its manifest, or by
	// the index over all platforms.
	URLs    []packageurl.PackageURL
	Digests []string
}

// listing is what is read of a document.
type listing struct {
	Metadata struct {
		Component part `json:"component"`
	} `json:"metadata"`
	Components   []part      `json:"components"`
	Dependencies []dependent `json:"dependencies"`
}

// dependent is something, and what is in it.
type dependent struct {
	Ref          string   `json:"ref"`
	Dependencies []string `json:"dependsOn,omitempty"`
}

// part is what is read of a component of a document.
type part struct {
	Ref        string            `json:"bom-ref"`
	Type       cdx.ComponentType `json:"type"`
	Name       string            `json:"name,omitempty"`
	Version    string            `json:"version,omitempty"`
	URL        string            `json:"purl,omitempty"`
	Hashes     []hash            `json:"hashes,omitempty"`
	Licenses   []licence         `json:"licenses,omitempty"`
	Properties []stated          `json:"properties,omitempty"`
}

// hash is a digest of a part.
type hash struct {
	Algorithm cdx.HashAlgorithm `json:"alg"`
	Value     string            `json:"content"`
}

// stated is a property of a part.
type stated struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// licence is what a part may be used by: an expression, or one licence.
type licence struct {
	License struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	} `json:"license"`
	Expression string `json:"expression"`
}

// license is what the component says of its licence.
func (p *part) license() string {
	var all []string
	for _, l := range p.Licenses {
		if text := printable.Short(cmp.Or(l.Expression, l.License.ID, l.License.Name), maxShown); text != "" {
			all = append(all, text)
		}
	}
	return strings.Join(all, ", ")
}

func (p *part) property(name string) string {
	for _, one := range p.Properties {
		if one.Name == name {
			return one.Value
		}
	}
	return ""
}

// ReadSoftware reads a document that [Write] or [Condense] has written. It may come out of a bundle: errors wrap
// [bundle.ErrInvalid].
func ReadSoftware(document []byte) (*Software, error) {
	s, err := readSoftware(document)
	if err != nil {
		return nil, fmt.Errorf("%w: the list of its software: %w", bundle.ErrInvalid, err)
	}
	return s, nil
}

func readSoftware(document []byte) (*Software, error) {
	var form listing
	if err := boundedjson.Unmarshal(document, &form, maxSoftwareValues); err != nil {
		return nil, err
	}
	s := &Software{}
	places := make(map[string]*Place)
	for _, p := range append([]part{form.Metadata.Component}, form.Components...) {
		if p.Ref == "" {
			return nil, errors.New("it has something without a name")
		}
		if p.Type == cdx.ComponentTypeLibrary {
			continue
		}
		place, err := p.place()
		if err != nil {
			return nil, err
		}
		if places[p.Ref] != nil {
			return nil, fmt.Errorf("it has %s twice", printable.Short(p.Ref, maxShown))
		}
		places[p.Ref] = place
		if p.isLock() && len(place.Digests) > 0 {
			s.Lock = digest.NewDigestFromEncoded(digest.SHA256, place.Digests[0])
		}
		for _, property := range p.Properties {
			if property.Name == propertyIncomplete {
				name := strings.TrimSpace(place.Name + " " + place.Platform)
				s.Incomplete = append(s.Incomplete, printable.Line(name+": "+property.Value))
			}
		}
	}
	root := places[form.Metadata.Component.Ref]
	if root == nil {
		return nil, errors.New("it does not say what it is about")
	}
	if len(root.Digests) > 0 {
		s.Subject = digest.NewDigestFromEncoded(digest.SHA256, root.Digests[0])
		if err := s.Subject.Validate(); err != nil {
			return nil, fmt.Errorf("what it is about: %w", err)
		}
	}
	in := make(map[string][]*Place)
	for _, d := range form.Dependencies {
		place := places[d.Ref]
		if place == nil {
			continue // a package, which holds nothing
		}
		for _, ref := range d.Dependencies {
			in[ref] = append(in[ref], place)
			if inner := places[ref]; inner != nil && inner != place && place != root {
				inner.Components = append(inner.Components, place)
			}
		}
	}
	for _, p := range form.Components {
		if p.URL == "" || p.Type != cdx.ComponentTypeLibrary && p.Type != cdx.ComponentTypeApplication {
			continue
		}
		url, err := packageurl.FromString(p.URL)
		if err != nil {
			return nil, fmt.Errorf("%q is no package URL: %w", printable.Short(p.URL, maxShown), err)
		}
		if p.Type == cdx.ComponentTypeApplication {
			s.Packages = append(s.Packages, Listed{URL: url, License: p.license(), In: []*Place{places[p.Ref]}})
			continue
		}
		s.Packages = append(s.Packages, Listed{URL: url, License: p.license(), In: slices.Compact(in[p.Ref])})
	}
	return s, nil
}

// isLock reports whether the part is the bundle's lock.
func (p *part) isLock() bool {
	return p.Type == cdx.ComponentTypeFile && p.Name == bundle.LockFile &&
		p.property(propertyComponent) == bundle.LockComponent
}

// maxShown is how much of a text is quoted, in bytes.
const maxShown = 200

// place reads something that is no package.
func (p *part) place() (*Place, error) {
	place := &Place{Ref: p.Ref, Name: printable.Line(p.Name), Platform: printable.Line(p.property(propertyPlatform))}
	if p.Type == cdx.ComponentTypeContainer && p.Version != "" {
		place.Name += ":" + printable.Line(p.Version)
	}
	for _, h := range p.Hashes {
		if h.Algorithm == cdx.HashAlgoSHA256 {
			place.Digests = append(place.Digests, strings.ToLower(h.Value))
		}
	}
	index, isIndex := strings.CutPrefix(p.property(propertyIndex), string(digest.SHA256)+":")
	if isIndex && !slices.Contains(place.Digests, index) {
		place.Digests = append(place.Digests, index)
	}
	if p.URL == "" {
		return place, nil
	}
	url, err := packageurl.FromString(p.URL)
	if err != nil {
		return nil, fmt.Errorf("%q is no package URL: %w", printable.Short(p.URL, maxShown), err)
	}
	place.URLs = append(place.URLs, url)
	if isIndex {
		url.Version = string(digest.SHA256) + ":" + index
		place.URLs = append(place.URLs, url)
	}
	return place, nil
}
