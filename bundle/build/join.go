package build

import (
	"context"
	"fmt"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// ErrWhole says that there is nothing to join: the bundle is no delta.
var ErrWhole = fault.NewKind(fault.Input, "it is a whole bundle already")

// JoinOptions say where the whole bundle goes.
type JoinOptions struct {
	// Path is its final name, as in [Options].
	Path string
	Output
	// Reporter is told of the work; nil discards it.
	Reporter progress.Reporter
}

// Join is [Copy] of a delta. Of a whole bundle it fails with [ErrWhole].
func Join(ctx context.Context, r *bundle.Reader, o JoinOptions) (*Result, error) {
	if _, delta := r.DeltaIndex(); delta == nil {
		return nil, fmt.Errorf("join %s: %w", r.Path(), ErrWhole)
	}
	result, err := writeWhole(ctx, r, o)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", r.Path(), err)
	}
	return result, nil
}

// Copy writes the whole bundle that a reader reads, whatever it lies in, which is, byte for byte, what was built
// on the other side, signature and trust file included. The reader of a delta has been given the bundles that hold
// what the delta leaves out (see [bundle.Reader.Use]); otherwise it fails with a [*bundle.MissingError].
// Every blob is proven at its place, and a copy that was ended goes on where it was.
func Copy(ctx context.Context, r *bundle.Reader, o JoinOptions) (*Result, error) {
	result, err := writeWhole(ctx, r, o)
	if err != nil {
		return nil, fmt.Errorf("copy %s: %w", r.Path(), err)
	}
	return result, nil
}

func writeWhole(ctx context.Context, r *bundle.Reader, o JoinOptions) (*Result, error) {
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	p := &plan.Plan{Index: r.Index(), Reuse: []*bundle.Reader{r}, Reporter: o.Reporter}
	for _, e := range r.Tar().Layout().Entries {
		switch e.Name {
		case ocitar.SigstoreBundleFile, ocitar.SignatureFile, ocitar.TrustFile: // the builder adds them
		default:
			p.Members = append(p.Members, e.Member)
		}
	}
	if err := r.RequireAll(); err != nil {
		return nil, err
	}
	b := &builder{plan: p, isCopy: true}
	if err := b.layOut(r.Signature(), r.Fixed()[ocitar.TrustFile]); err != nil {
		return nil, err
	}
	return b.build(ctx, Options{Path: o.Path, Output: o.Output}, &Result{Digest: r.Digest()})
}
