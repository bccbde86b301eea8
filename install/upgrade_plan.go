package install

import (
	"context"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/upgrade"
)

// PlanUpgrade finds out what an upgrade to a bundle would do, and whether the gates let it
// through. It touches nothing: no file on a host, no object, no state. The error wraps
// [ErrRefused] when a gate refuses, [ErrHosts] when a host cannot be looked at, and
// [bundle.ErrIncomplete] when nobody has what a delta leaves out; the plan is complete in these
// cases.
func PlanUpgrade(ctx context.Context, o UpgradeOptions) (*upgrade.Plan, error) {
	if o.RollbackTo > 0 {
		o.Accept.Downgrade = true
	}
	o.Accept.OlderBundle = o.AcceptOlderBundle
	in, err := newInstaller(o.Options)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	in.engine.Mode, in.cluster.SplitsToken = run.Plan, true
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	return in.upgrader.Plan(ctx, o.Settings)
}
