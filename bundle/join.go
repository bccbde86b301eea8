package bundle

import (
	"context"
	"errors"
	"fmt"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/internal/progress"
)

// ErrWhole says that there is nothing to join: the bundle is no delta.
var ErrWhole = errors.New("it is a whole bundle already")

// JoinOptions say where the whole bundle goes.
type JoinOptions struct {
	// Path is its final name, as in [BuildOptions].
	Path string
	OutputOptions
	// Reporter is told of the work; nil discards it.
	Reporter progress.Reporter
}

// Join writes the whole bundle that a delta is of, which is, byte for byte, what was built
// on the other side, signature included. The reader has been given the bundles that hold
// what the delta leaves out (see [Reader.Use]); otherwise it fails with a [*MissingError].
// Every blob is proven at its place, and a join that was ended goes on where it was.
func Join(ctx context.Context, r *Reader, o JoinOptions) (*BuildResult, error) {
	result, err := join(ctx, r, o)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", r.Path(), err)
	}
	return result, nil
}

func join(ctx context.Context, r *Reader, o JoinOptions) (*BuildResult, error) {
	if _, delta := r.DeltaIndex(); delta == nil {
		return nil, ErrWhole
	}
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	p := &Plan{index: r.Index(), reuse: []*Reader{r}, reporter: o.Reporter}
	for _, e := range r.Tar().Layout().Entries {
		// The builder adds the signature.
		if e.Name != ocitar.SigstoreBundleFile && e.Name != ocitar.SignatureFile {
			p.members = append(p.members, e.Member)
		}
	}
	if err := r.RequireAll(); err != nil {
		return nil, err
	}
	b := &builder{Plan: p, isCopy: true}
	if err := b.layOut(r.Signature()); err != nil {
		return nil, err
	}
	return b.build(ctx, BuildOptions{Path: o.Path, OutputOptions: o.OutputOptions}, &BuildResult{Digest: r.Digest()})
}
