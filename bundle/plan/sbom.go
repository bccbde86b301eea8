package plan

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// index.json, which names everything, stands before everything in the file, and what software
// is in the layers is known after the last download. So a bundle that carries the list is made
// in two steps: the bundle without it, in an unfinished file that never gets a final name; and
// the one with it, whose other blobs are copied from there. Both can be interrupted like any
// build.

// WithSBOM is the plan of the same bundle with the list of its software: the last entry of
// index.json, and the last blob of each of the two parts of the file.
func (p *Plan) WithSBOM(document []byte) (*Plan, error) {
	if len(document) > format.MaxSBOM {
		return nil, fmt.Errorf("the list of the bundle's software has %d bytes, %d is the most", len(document),
			format.MaxSBOM)
	}
	next := *p
	next.SBOM = nil
	next.Content, next.platforms = maps.Clone(p.Content), maps.Clone(p.platforms)
	q := &planner{
		plan: &next, have: make(map[digest.Digest]bool),
		json: slices.Clone(p.Members[2 : 2+p.smallBlobs]), large: slices.Clone(p.Members[2+p.smallBlobs:]),
	}
	for _, m := range p.Members[2:] {
		q.have[m.Digest()] = true
	}
	q.plan.Entries = slices.Clone(p.Entries)
	d := format.DescriptorOf(format.SBOMMediaType, document)
	q.placeContent(&q.large, d, document, "")
	if err := q.addArtifact(bundle.File{
		Component: bundle.ProgramsComponent, Version: p.version, Name: bundle.SBOMFile, MediaType: d.MediaType,
		Digest: d.Digest, Size: d.Size,
	}, format.SBOMArtifactType); err != nil {
		return nil, err
	}
	return &next, q.finish()
}

// Read reads the bundle of the plan, which is nowhere, from another one that has its blobs.
func (p *Plan) Read(from *bundle.Reader) (*bundle.Reader, error) {
	layout, err := ocitar.NewLayout(p.Members)
	if err != nil {
		return nil, err
	}
	whole := ocitar.Assemble(layout, func(m ocitar.Member) (io.ReaderAt, error) {
		switch m.Name {
		case ocitar.LayoutFile:
			return bytes.NewReader([]byte(ocitar.LayoutContent)), nil
		case ocitar.IndexFile:
			return bytes.NewReader(p.Index), nil
		}
		return from.Unproven(m) // the reader proves it
	})
	return bundle.NewReader(whole, layout.Size, from.Path())
}
