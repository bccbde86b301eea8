package install

import (
	"context"

	"github.com/liteboxd/boxlift/install/backup"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/run"
)

// LossesOf finds out what a cluster has that a backup has not. It changes nothing.
func LossesOf(ctx context.Context, o Options, r *backup.Reader) (*recovery.Losses, error) {
	o.Restore = nil
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	in.engine.Mode = run.Plan
	return in.recovery.Losses(ctx, r)
}
