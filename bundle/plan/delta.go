package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
)

// Delta makes of the plan of a whole bundle that of a delta, and counts the blobs whose
// bytes are not in it. The bundle's own signature, nil for none, goes into the outline, so
// that the delta and its base are as good as the bundle.
func (p *Plan) Delta(signed *signature.Signature) (*Plan, bundle.Amount, error) {
	var leftOut bundle.Amount
	index := format.DeltaIndex{
		Index: ocispec.Index{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
			ArtifactType: format.DeltaArtifactType, Annotations: format.IndexAnnotations(p.version, p.validity),
		},
		Bundle: p.Digest(), Since: append([]digest.Digest{}, p.Since.bundles...), LeftOut: []format.LeftOutBlob{},
	}
	var kept, outlined []ocitar.Member
	isKept := make(map[digest.Digest]bool)
	for i, m := range p.Members[2:] {
		d := m.Digest()
		_, isAtHand := p.Content[d]
		// A reader has to know all manifests. What is not known of them now comes with the
		// others that are fetched.
		if p.unread[d] && !isAtHand || !p.Since.holds(d, m.Size, p.platforms[d]) {
			isKept[d] = true
			kept = append(kept, m)
			continue
		}
		index.LeftOut = append(index.LeftOut, format.LeftOutBlob{Digest: d, Size: m.Size, At: i})
		if isAtHand && i < p.smallBlobs {
			outlined = append(outlined, m)
		} else {
			leftOut.Add(m.Size)
		}
	}
	if n := max(len(index.LeftOut), len(index.Since)); n > format.MaxLeftOut {
		return nil, leftOut, fmt.Errorf(
			"make index.json: %d blobs or bundles are more than the %d that readers accept: build the whole bundle",
			n, format.MaxLeftOut)
	}
	outline, err := p.outline(signed, outlined)
	if err != nil {
		return nil, leftOut, err
	}
	d := format.DescriptorOf(format.OutlineMediaType, outline)
	index.Manifests = []ocispec.Descriptor{d}
	content, err := json.Marshal(index)
	if err != nil {
		return nil, leftOut, fmt.Errorf("make index.json: %w", err)
	}
	if len(content) > format.MaxIndexSize {
		return nil, leftOut, fmt.Errorf(
			"make index.json: %d bytes are more than the %d that readers accept: build the whole bundle", len(content),
			format.MaxIndexSize)
	}
	result := &Plan{
		Index: content, Content: map[digest.Digest][]byte{d.Digest: outline},
		Reuse: p.Reuse, Parallel: p.Parallel, Reporter: p.Reporter, version: p.version, IsDelta: true,
	}
	result.Members = append([]ocitar.Member{
		{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(content))},
		ocitar.Blob(d.Digest, d.Size),
	}, kept...)
	for of, content := range p.Content {
		if isKept[of] {
			result.Content[of] = content
		}
	}
	for _, f := range p.Fetches {
		if f := f.only(isKept); f != nil {
			result.Fetches = append(result.Fetches, f)
		}
	}
	return result, leftOut, nil
}

// outline makes the outline of the bundle with these small blobs.
func (p *Plan) outline(signed *signature.Signature, blobs []ocitar.Member) ([]byte, error) {
	layout, fixed, err := LayOut(p.Index, append(p.Members[:2:2], blobs...), signed, nil)
	if err != nil {
		return nil, err
	}
	if layout.Size > format.MaxOutline {
		return nil, fmt.Errorf(
			"the manifests that a delta has to list have %d bytes, %d is the most: build the whole bundle", layout.Size,
			format.MaxOutline)
	}
	whole := ocitar.Assemble(layout, func(m ocitar.Member) (io.ReaderAt, error) {
		content, ok := fixed[m.Name]
		if !ok {
			content = p.Content[m.Digest()]
		}
		return bytes.NewReader(content), nil
	})
	return bundle.PackOutline(io.NewSectionReader(whole, 0, whole.Size()))
}

// LayOut adds the signature and the trust file to the members, each unless it is nil, and lays them out. It
// also returns the contents of the members that are no blobs.
func LayOut(
	index []byte, all []ocitar.Member, s *signature.Signature, trustFile []byte,
) (layout *ocitar.Layout, fixed map[string][]byte, err error) {
	fixed = map[string][]byte{ocitar.LayoutFile: []byte(ocitar.LayoutContent), ocitar.IndexFile: index}
	members := slices.Clone(all[:2])
	add := func(name string, content []byte) {
		fixed[name] = content
		members = append(members, ocitar.Member{Name: name, Size: int64(len(content))})
	}
	if s != nil {
		add(ocitar.SigstoreBundleFile, s.Bundle)
		add(ocitar.SignatureFile, s.Base64)
	}
	if trustFile != nil {
		add(ocitar.TrustFile, trustFile)
	}
	layout, err = ocitar.NewLayout(append(members, all[2:]...))
	return layout, fixed, err
}
