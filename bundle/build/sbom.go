package build

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/fault"
)

// buildWithSBOM builds the bundle of the plan with the list of its software.
func buildWithSBOM(ctx context.Context, p *plan.Plan, o Options) (*Result, error) {
	step, result, err := newBuilder(p, unsigned, nil)
	if err != nil {
		return nil, err
	}
	if err := checkListable(p, step.plan); err != nil {
		return nil, err
	}
	draft := step.withoutSBOM(o)
	if done := isAtWithSBOM(ctx, p, o); done != nil {
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
	r, err := bundle.NewReader(step.file, step.layout.Size, step.file.Name())
	if err == nil {
		err = r.CheckStructure()
	}
	if err != nil {
		return nil, fmt.Errorf("check %s, which is complete: %w", step.file.Name(), err)
	}
	r.Use(p.Reuse...) // closed by those who opened them
	document, err := p.SBOM(ctx, r)
	if err != nil {
		return nil, err
	}
	b, final, err := builderWithSBOM(p, document, o.sign, o.Trust)
	if err != nil {
		return nil, err
	}
	b.plan.Reuse, b.isCopy = []*bundle.Reader{r}, true
	if final, err = b.build(ctx, o, final); err != nil {
		return nil, err
	}
	final.Reused, final.Copied, final.Shared = result.Reused, result.Copied, result.Shared
	step.file.Remove()
	return final, nil
}

func builderWithSBOM(
	p *plan.Plan, document []byte, sign func(*plan.Plan) (*signature.Signature, error), trustFile []byte,
) (*builder, *Result, error) {
	full, err := p.WithSBOM(document)
	if err != nil {
		return nil, nil, err
	}
	return newBuilder(full, sign, trustFile)
}

// withoutSBOM is the unfinished file of the first step. It is cut like the bundle, as the disk
// may not take longer files.
func (b *builder) withoutSBOM(o Options) volume.DraftOptions {
	draft := b.unencrypted(o)
	draft.Suffix = ".without-sbom" + draft.Suffix
	if len(o.Recipients) == 0 {
		draft.Path, draft.VolumeSize, draft.Private = o.Path, o.VolumeSize, false
	}
	return draft
}

// isAtWithSBOM is isAt for a bundle with the list of its software, which is made again to see
// whether what is there is it; nil when that is not so.
func isAtWithSBOM(ctx context.Context, p *plan.Plan, o Options) *Result {
	r, err := bundle.Open(o.Path, o.Identities...)
	if err != nil {
		return nil
	}
	defer r.File().Close() //nolint:errcheck // it was only read, and its bases are others'
	r.Use(p.Reuse...)
	document, ok, err := r.SBOM()
	if err != nil || !ok {
		return nil
	}
	b, result, err := builderWithSBOM(p, document, o.signAgain, o.Trust)
	if err != nil {
		return nil
	}
	result.Size, result.Blobs = b.layout.Size, len(b.layout.Entries)-len(b.fixed)
	if !b.isAt(ctx, o, result) {
		return nil
	}
	without, err := p.Read(r)
	if err != nil {
		return nil
	}
	if again, err := p.SBOM(ctx, without); err != nil || !bytes.Equal(again, document) {
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
func checkListable(p, delta *plan.Plan) error {
	kept := make(map[ocitar.Member]bool, len(delta.Members))
	for _, m := range delta.Members {
		kept[m] = true
	}
	var missing []bundle.MissingBlob
	for _, m := range p.Members[2:] {
		if kept[m] || p.Content[m.Digest()] != nil {
			continue
		}
		if !slices.ContainsFunc(p.Reuse, func(r *bundle.Reader) bool { _, err := r.Unproven(m); return err == nil }) {
			missing = append(missing, bundle.MissingBlob{Digest: m.Digest(), Size: m.Size})
		}
	}
	if missing == nil {
		return nil
	}
	count := fmt.Sprintf("%d blobs", len(missing))
	if len(missing) == 1 {
		count = "1 blob"
	}
	err := fmt.Errorf("list the software in the bundle: the delta leaves out %s that no bundle at hand has, such as %s",
		count, missing[0].Digest)
	return fault.WithHint(err, "name the bundles that hold them with --reuse or --since, or build the delta without "+
		"--sbom")
}
