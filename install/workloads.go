package install

import (
	"context"
	"fmt"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/workload"
)

// RemoveWorkload takes a workload off the cluster that install.yaml no longer lists. Its claims, and what else has data
// or objects of others, stay unless withData says otherwise. Options.Bundle is not needed.
func RemoveWorkload(ctx context.Context, o Options, name string, withData bool) (*run.Summary, error) {
	o.Command = "workload remove " + name
	return o.run(ctx, journal.RemoveWorkload,
		func(in *installation) []run.Phase { return in.removeWorkloadPhases(name, withData) })
}

// RollbackWorkload takes a workload back to an earlier revision of its release: the last one that was deployed with
// success before the one that runs, where revision is 0. Its data stays as it is. Options.Bundle is not needed.
func RollbackWorkload(ctx context.Context, o Options, name string, revision int) (*run.Summary, error) {
	o.Command = "workload rollback " + name
	return o.run(ctx, journal.RollbackWorkload,
		func(in *installation) []run.Phase { return in.rollBackWorkloadPhases(name, revision) })
}

// Workloads tells of those that install.yaml lists and those that are on the cluster. It changes nothing.
func Workloads(ctx context.Context, o Options) ([]workload.Overview, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	if err := in.engine.ConnectServers(ctx, nil); err != nil {
		return nil, err
	}
	list, err := in.workloads.Overview(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", site.ErrCluster, err)
	}
	return list, nil
}
