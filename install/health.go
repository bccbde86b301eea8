package install

import (
	"context"

	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/run"
)

// CheckHealth tries out what a platform is for: nodes, network, DNS, LiteBoxd, the way from
// outside to LiteBoxd and from there to sandboxes, and what sandboxes must not reach. It
// needs no bundle and changes nothing: a few pods that it makes for it are gone at the end.
// The error is [ErrUnhealthy] when a check failed, and wraps [ErrHosts] or [ErrCluster] when
// a host or the cluster could not be reached; the result is complete in all these cases.
//
// Only names the checks to make, as [HealthChecks] has them; nil means all but sandbox-to-internet,
// which has to be asked for, since it alone addresses something outside the network. Failures of hosts
// and of the API, on which all others depend, are told of in any case.
func CheckHealth(ctx context.Context, o Options, only []string) (*inspect.Health, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	in.engine.Mode = run.Inspect
	return in.inspector.Health(ctx, only)
}
