package install

import (
	"context"

	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/run"
)

// Preflight looks at all hosts and judges them, and changes nothing on them but that it
// puts boxlift's own helper there. The error wraps [ErrHosts] when a host cannot be looked
// at or has a finding that stops an installation.
func Preflight(ctx context.Context, o Options) ([]preflight.Finding, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	err = in.engine.Run(ctx, []run.Phase{{Name: "preflight", Run: in.surveyor.Preflight}})
	if ctx.Err() != nil {
		return in.surveyor.Findings, err
	}
	return append(in.surveyor.Findings, in.surveyor.Unseen()...), err
}
