package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/progress"
)

// delta makes of the plan of a whole bundle that of a delta, and counts the blobs whose
// bytes are not in it. The bundle's own signature, nil for none, goes into the outline, so
// that the delta and its base are as good as the bundle.
func (p *Plan) delta(signed *signature.Signature) (*Plan, Amount, error) {
	var leftOut Amount
	index := deltaIndex{
		Index: ocispec.Index{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
			ArtifactType: DeltaArtifactType, Annotations: indexAnnotations(p.version, p.validity),
		},
		Bundle: p.Digest(), Since: append([]digest.Digest{}, p.since.bundles...), LeftOut: []leftOutBlob{},
	}
	var kept, outlined []ocitar.Member
	isKept := make(map[digest.Digest]bool)
	for i, m := range p.members[2:] {
		d := m.Digest()
		_, isAtHand := p.content[d]
		// A reader has to know all manifests. What is not known of them now comes with the
		// others that are fetched.
		if p.unread[d] && !isAtHand || !p.since.holds(d, m.Size, p.platforms[d]) {
			isKept[d] = true
			kept = append(kept, m)
			continue
		}
		index.LeftOut = append(index.LeftOut, leftOutBlob{Digest: d, Size: m.Size, At: i})
		if isAtHand && i < p.smallBlobs {
			outlined = append(outlined, m)
		} else {
			leftOut.add(m.Size)
		}
	}
	if n := max(len(index.LeftOut), len(index.Since)); n > maxLeftOut {
		return nil, leftOut, fmt.Errorf(
			"make index.json: %d blobs or bundles are more than the %d that readers accept: build the whole bundle",
			n, maxLeftOut)
	}
	outline, err := p.outline(signed, outlined)
	if err != nil {
		return nil, leftOut, err
	}
	d := descriptorOf(outlineMediaType, outline)
	index.Manifests = []ocispec.Descriptor{d}
	content, err := json.Marshal(index)
	if err != nil {
		return nil, leftOut, fmt.Errorf("make index.json: %w", err)
	}
	if len(content) > maxIndexSize {
		return nil, leftOut, fmt.Errorf("make index.json: %d bytes are more than the %d that readers accept: build the whole bundle", len(content), maxIndexSize)
	}
	result := &Plan{
		index: content, content: map[digest.Digest][]byte{d.Digest: outline},
		reuse: p.reuse, parallel: p.parallel, reporter: p.reporter, version: p.version, isDelta: true,
	}
	result.members = append([]ocitar.Member{
		{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(content))},
		ocitar.Blob(d.Digest, d.Size),
	}, kept...)
	for of, content := range p.content {
		if isKept[of] {
			result.content[of] = content
		}
	}
	for _, f := range p.fetches {
		if f := f.only(isKept); f != nil {
			result.fetches = append(result.fetches, f)
		}
	}
	return result, leftOut, nil
}

// only is the part of a download that supplies one of these blobs, or nil.
func (f *fetch) only(wanted map[digest.Digest]bool) *fetch {
	if f.archive == nil {
		if wanted[f.blob.Digest] {
			return f
		}
		return nil
	}
	part := *f
	archive := *f.archive
	archive.blobs = make(map[string]ocispec.Descriptor)
	for path, d := range f.archive.blobs {
		if wanted[d.Digest] {
			archive.blobs[path] = d
		}
	}
	if len(archive.blobs) == 0 {
		return nil
	}
	part.archive = &archive
	return &part
}

// tellOfManifests says, before it happens, that a delta reads whole archives for their
// manifests alone.
func (b *builder) tellOfManifests(archives []*fetch) {
	if !b.isDelta {
		return
	}
	for _, f := range archives {
		var size int64
		onlyManifests := true
		for _, d := range f.archive.blobs {
			if !b.isDone(d.Digest) {
				size += d.Size
				onlyManifests = onlyManifests && isJSON(d.MediaType)
			}
		}
		if onlyManifests {
			b.reporter.Message(fmt.Sprintf("%s: all of it, %s, is fetched for the %s of its manifests, which every delta carries; --reuse with a bundle that has them saves that", f.label, progress.Bytes(f.size), progress.Bytes(size)))
		}
	}
}

// outline makes the outline of the bundle with these small blobs.
func (p *Plan) outline(signed *signature.Signature, blobs []ocitar.Member) ([]byte, error) {
	layout, fixed, err := layOut(p.index, append(p.members[:2:2], blobs...), signed)
	if err != nil {
		return nil, err
	}
	if layout.Size > maxOutline {
		return nil, fmt.Errorf(
			"the manifests that a delta has to list have %d bytes, %d is the most: build the whole bundle", layout.Size, maxOutline)
	}
	whole := ocitar.Assemble(layout, func(m ocitar.Member) (io.ReaderAt, error) {
		content, ok := fixed[m.Name]
		if !ok {
			content = p.content[m.Digest()]
		}
		return bytes.NewReader(content), nil
	})
	return packOutline(io.NewSectionReader(whole, 0, whole.Size()))
}

// layOut adds the signature to the members, if there is one, and lays them out. It also
// returns the contents of the members that are no blobs.
func layOut(
	index []byte, all []ocitar.Member, s *signature.Signature,
) (layout *ocitar.Layout, fixed map[string][]byte, err error) {
	fixed = map[string][]byte{ocitar.LayoutFile: []byte(ocitar.LayoutContent), ocitar.IndexFile: index}
	members := all
	if s != nil {
		fixed[ocitar.SigstoreBundleFile] = s.Bundle
		fixed[ocitar.SignatureFile] = s.Base64
		members = append(append([]ocitar.Member{}, all[:2]...),
			ocitar.Member{Name: ocitar.SigstoreBundleFile, Size: int64(len(s.Bundle))},
			ocitar.Member{Name: ocitar.SignatureFile, Size: int64(len(s.Base64))})
		members = append(members, all[2:]...)
	}
	layout, err = ocitar.NewLayout(members)
	return layout, fixed, err
}
