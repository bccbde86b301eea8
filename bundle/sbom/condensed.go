package sbom

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/boundedjson"
)

// kept are the properties that [ReadSoftware] reads.
var kept = []string{propertyPlatform, propertyIndex, propertyIncomplete}

// Condense makes of a document that [Write] has written what [ReadSoftware] reads of it, and nothing else: no licences,
// no addresses, no files that tell of packages, and numbers in place of the names within the document. It is for
// places where there is little room, and no CycloneDX document any more. Errors wrap [bundle.ErrInvalid]: what comes
// back can be read.
func Condense(document []byte) ([]byte, error) {
	if _, err := ReadSoftware(document); err != nil {
		return nil, err
	}
	var all listing
	if err := boundedjson.Unmarshal(document, &all, maxSoftwareValues); err != nil {
		return nil, fmt.Errorf("%w: the list of its software: %w", bundle.ErrInvalid, err)
	}
	numbers := make(map[string]string, len(all.Components)+1)
	shorten := func(ref string) string {
		number, has := numbers[ref]
		if !has {
			number = strconv.Itoa(len(numbers))
			numbers[ref] = number
		}
		return number
	}
	all.Metadata.Component.condense(shorten)
	for i := range all.Components {
		all.Components[i].condense(shorten)
	}
	all.Dependencies = slices.DeleteFunc(all.Dependencies, func(d dependent) bool { return len(d.Dependencies) == 0 })
	for i := range all.Dependencies {
		d := &all.Dependencies[i]
		d.Ref = shorten(d.Ref)
		for j, ref := range d.Dependencies {
			d.Dependencies[j] = shorten(ref)
		}
	}
	return json.Marshal(all)
}

// condense leaves what is read of a part of its type.
func (p *part) condense(shorten func(ref string) string) {
	p.Ref, p.Licenses = shorten(p.Ref), nil
	if p.Type == cdx.ComponentTypeLibrary {
		*p = part{Ref: p.Ref, Type: p.Type, URL: p.URL}
		return
	}
	p.Hashes = slices.DeleteFunc(p.Hashes, func(h hash) bool { return h.Algorithm != cdx.HashAlgoSHA256 })
	isLock := p.isLock()
	p.Properties = slices.DeleteFunc(p.Properties, func(s stated) bool {
		return !slices.Contains(kept, s.Name) && !(isLock && s.Name == propertyComponent)
	})
}
