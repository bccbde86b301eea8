package release

import (
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/sbom"
	"github.com/liteboxd/boxlift/internal/fault"
)

const (
	// maxSoftware is the largest list of software that is kept, in bytes and compressed. One of four thousand packages
	// in forty images has some 50 KiB.
	maxSoftware = 256 << 10
	// maxSoftwareText is the largest that one may have before it is compressed.
	maxSoftwareText = 16 << 20
	// maxSoftwareLists is how many are kept: that of what runs, and that of what came after it.
	maxSoftwareLists = 2
)

// ErrNoSoftware says that a record does not carry the list of a release's software.
var ErrNoSoftware = fault.NewKind(fault.Input, "the record does not carry the list of its software")

// HasSoftware reports whether the record carries the list of the software of a bundle.
func (r *Record) HasSoftware(bundle digest.Digest) bool {
	_, has := r.Software[bundle]
	return has
}

// KeepSoftware keeps what a document of package sbom lists of a bundle, as long as the bundle is that of the newest
// release or of the current one, and as long as there is room. The error tells why it is not kept.
func (r *Record) KeepSoftware(bundle digest.Digest, document []byte) error {
	condensed, err := sbom.Condense(document)
	if err != nil {
		return err
	}
	if len(condensed) > maxSoftwareText {
		return fmt.Errorf("the list of software has %d bytes, %d is the most", len(condensed), maxSoftwareText)
	}
	packed, err := pack(condensed)
	if err != nil {
		return err
	}
	if len(packed) > maxSoftware {
		return fmt.Errorf("the list of software has %d bytes compressed, %d is the most", len(packed), maxSoftware)
	}
	if r.Software == nil {
		r.Software = make(map[digest.Digest][]byte)
	}
	r.Software[bundle] = packed
	return nil
}

// SoftwareOf is the list of the software of a release's bundle. The error wraps ErrNoSoftware when the record does not
// carry it, and ErrInvalid when it carries something else.
func (r *Record) SoftwareOf(one *Release) (*sbom.Software, error) {
	packed, has := r.Software[one.Bundle]
	if !has {
		return nil, fmt.Errorf("release %d: %w", one.Number, ErrNoSoftware)
	}
	document, err := unpack(packed, maxSoftwareText)
	if err != nil {
		return nil, fmt.Errorf("%w: software of release %d: %w", ErrInvalid, one.Number, err)
	}
	s, err := sbom.ReadSoftware(document)
	if err == nil && !s.IsOf(one.Bundle, one.Lock) {
		err = fmt.Errorf("it is that of the bundle %s", s.Subject)
	}
	if err != nil {
		// Nothing is wrong with a bundle here: the class is that of the record.
		return nil, fmt.Errorf("%w: software of release %d: %s", ErrInvalid, one.Number, err.Error())
	}
	return s, nil
}

// forgetSoftware drops the lists of bundles that are neither the newest's nor the current one's.
func (r *Record) forgetSoftware() {
	var bundles []digest.Digest
	for _, one := range []*Release{r.Newest(), r.Current()} {
		if one != nil {
			bundles = append(bundles, one.Bundle)
		}
	}
	for d := range r.Software {
		if !slices.Contains(bundles, d) {
			delete(r.Software, d)
		}
	}
	if len(r.Software) == 0 {
		r.Software = nil
	}
}

// checkSoftware finds what no record says of software.
func (r *Record) checkSoftware() error {
	if len(r.Software) > maxSoftwareLists {
		return fmt.Errorf("it has %d lists of software, %d are the most", len(r.Software), maxSoftwareLists)
	}
	for d, packed := range r.Software {
		if err := d.Validate(); err != nil {
			return err
		}
		if len(packed) > maxSoftware {
			return fmt.Errorf("a list of software has %d bytes, %d is the most", len(packed), maxSoftware)
		}
	}
	return nil
}
