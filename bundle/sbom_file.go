package bundle

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/volume"
)

// index.json, which names everything, stands before everything in the file, and what software
// is in the layers is known after the last download. So a bundle that carries the list is made
// in two steps: the bundle without it, in an unfinished file that never gets a final name; and
// the one with it, whose other blobs are copied from there. Both can be interrupted like any
// build.

// withSBOM is the plan of the same bundle with the list of its software: the last entry of
// index.json, and the last blob of each of the two parts of the file.
func (p *Plan) withSBOM(document []byte) (*Plan, error) {
	if len(document) > maxSBOM {
		return nil, fmt.Errorf("the list of the bundle's software has %d bytes, %d is the most", len(document), maxSBOM)
	}
	next := *p
	next.sbom = nil
	next.content, next.platforms = maps.Clone(p.content), maps.Clone(p.platforms)
	q := &planner{
		Plan: &next, have: make(map[digest.Digest]bool),
		json: slices.Clone(p.members[2 : 2+p.smallBlobs]), large: slices.Clone(p.members[2+p.smallBlobs:]),
	}
	for _, m := range p.members[2:] {
		q.have[m.Digest()] = true
	}
	q.entries = slices.Clone(p.entries)
	d := descriptorOf(sbomMediaType, document)
	q.placeContent(&q.large, d, document, "")
	if err := q.addArtifact(File{
		Component: ProgramsComponent, Version: p.version, Name: SBOMFile, MediaType: d.MediaType, Digest: d.Digest, Size: d.Size,
	}, sbomArtifactType); err != nil {
		return nil, err
	}
	return &next, q.finish()
}

// read reads the bundle of the plan, which is nowhere, from another one that has its blobs.
func (p *Plan) read(from *Reader) (*Reader, error) {
	layout, err := ocitar.NewLayout(p.members)
	if err != nil {
		return nil, err
	}
	whole := ocitar.Assemble(layout, func(m ocitar.Member) (io.ReaderAt, error) {
		switch m.Name {
		case ocitar.LayoutFile:
			return bytes.NewReader([]byte(ocitar.LayoutContent)), nil
		case ocitar.IndexFile:
			return bytes.NewReader(p.index), nil
		}
		return from.Section(m)
	})
	return NewReader(whole, layout.Size, from.Path())
}

// SBOM returns the list of software that the bundle was built with, proven against its digest:
// CycloneDX in JSON, at most 128 MiB. Without one, the second result is false.
func (r *Reader) SBOM() ([]byte, bool, error) {
	contents, err := r.Contents()
	if err != nil {
		return nil, false, err
	}
	f, ok := contents.SBOM()
	if !ok {
		return nil, false, nil
	}
	document, err := readSBOM(r, f)
	return document, err == nil, err
}

// readSBOM reads the list of software, proven.
func readSBOM(r *Reader, f File) ([]byte, error) {
	if f.Size > maxSBOM {
		return nil, fmt.Errorf("%w: %s has %d bytes, %d is the most", ErrInvalid, SBOMFile, f.Size, maxSBOM)
	}
	content, err := r.Content(f.Digest, f.Size)
	if err != nil {
		return nil, err
	}
	document := make([]byte, f.Size)
	_, err = io.ReadFull(content, document)
	return document, err
}

// buildWithSBOM builds the bundle of the plan with the list of its software.
func (p *Plan) buildWithSBOM(ctx context.Context, o BuildOptions) (*BuildResult, error) {
	step, result, err := p.builder(nil)
	if err != nil {
		return nil, err
	}
	if err := p.checkListable(step.Plan); err != nil {
		return nil, err
	}
	draft := step.withoutSBOM(o)
	if done := p.isAtWithSBOM(ctx, o); done != nil {
		return done, volume.RemoveDraft(draft)
	}
	if err := o.Check(); err != nil {
		return nil, err
	}
	if step.file, err = volume.NewDraft(draft); err != nil {
		return nil, err
	}
	defer step.close()
	if err := step.fill(ctx, result); err != nil {
		return nil, err
	}
	r, err := NewReader(step.file, step.layout.Size, step.file.Name())
	if err == nil {
		err = r.verifyStructure()
	}
	if err != nil {
		return nil, fmt.Errorf("check %s, which is complete: %w", step.file.Name(), err)
	}
	r.Use(p.reuse...) // closed by those who opened them
	document, err := p.sbom(ctx, r)
	if err != nil {
		return nil, err
	}
	b, final, err := p.builderWithSBOM(document, o)
	if err != nil {
		return nil, err
	}
	b.reuse, b.isCopy = []*Reader{r}, true
	if final, err = b.build(ctx, o, final); err != nil {
		return nil, err
	}
	final.Reused, final.Copied, final.Shared = result.Reused, result.Copied, result.Shared
	step.file.Remove()
	return final, nil
}

func (p *Plan) builderWithSBOM(document []byte, o BuildOptions) (*builder, *BuildResult, error) {
	full, err := p.withSBOM(document)
	if err != nil {
		return nil, nil, err
	}
	return full.builder(o.Signer)
}

// withoutSBOM is the unfinished file of the first step. It is cut like the bundle, as the disk
// may not take longer files.
func (b *builder) withoutSBOM(o BuildOptions) volume.DraftOptions {
	draft := b.unencrypted(o)
	draft.Suffix = ".without-sbom" + draft.Suffix
	if len(o.Recipients) == 0 {
		draft.Path, draft.VolumeSize, draft.Private = o.Path, o.VolumeSize, false
	}
	return draft
}

// isAtWithSBOM is isAt for a bundle with the list of its software, which is made again to see
// whether what is there is it; nil when that is not so.
func (p *Plan) isAtWithSBOM(ctx context.Context, o BuildOptions) *BuildResult {
	r, err := Open(o.Path, o.Identities...)
	if err != nil {
		return nil
	}
	defer r.File().Close() //nolint:errcheck // it was only read, and its bases are others'
	r.Use(p.reuse...)
	document, ok, err := r.SBOM()
	if err != nil || !ok {
		return nil
	}
	b, result, err := p.builderWithSBOM(document, o)
	if err != nil {
		return nil
	}
	result.Size, result.Blobs = b.layout.Size, len(b.layout.Entries)-len(b.fixed)
	if !b.isAt(ctx, o, result) {
		return nil
	}
	without, err := p.read(r)
	if err != nil {
		return nil
	}
	if again, err := p.sbom(ctx, without); err != nil || !bytes.Equal(again, document) {
		return nil
	}
	if b.removeLeft(o) != nil {
		return nil
	}
	result.Unchanged = true
	return result
}

// checkListable refuses a delta whose software cannot be listed: nobody has the layers that it
// leaves out. It does so before anything is fetched.
func (p *Plan) checkListable(delta *Plan) error {
	kept := make(map[ocitar.Member]bool, len(delta.members))
	for _, m := range delta.members {
		kept[m] = true
	}
	var missing []MissingBlob
	for _, m := range p.members[2:] {
		if kept[m] || p.content[m.Digest()] != nil {
			continue
		}
		if !slices.ContainsFunc(p.reuse, func(r *Reader) bool { _, err := r.Section(m); return err == nil }) {
			missing = append(missing, MissingBlob{Digest: m.Digest(), Size: m.Size})
		}
	}
	if missing == nil {
		return nil
	}
	return &unlistableError{missing}
}

type unlistableError struct{ blobs []MissingBlob }

func (e *unlistableError) Error() string {
	count := fmt.Sprintf("%d blobs", len(e.blobs))
	if len(e.blobs) == 1 {
		count = "1 blob"
	}
	return fmt.Sprintf("list the software in the bundle: the delta leaves out %s that no bundle at hand has, such as %s", count, e.blobs[0].Digest)
}

// Hint says what to do about it.
func (e *unlistableError) Hint() string {
	return "name the bundles that hold them with --reuse or --since, or build the delta without --sbom"
}
