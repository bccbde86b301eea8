package install

import (
	"context"

	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/run"
)

// Inspect compares a cluster with what it is to be and changes nothing. It goes through
// the same steps as [Install] and asks each whether it is needed. The error is
// [ErrDifferent] when something differs, and wraps [ErrHosts] when a host cannot be looked
// at; the result is complete in both cases.
func Inspect(ctx context.Context, o Options) (*inspect.Status, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	in.engine.Mode = run.Inspect
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	err = in.engine.Run(ctx, in.installation())
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return in.inspector.Status(ctx, err)
}
