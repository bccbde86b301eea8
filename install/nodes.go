package install

import (
	"context"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/run"
)

// RemoveOptions say which hosts leave a cluster. Options.Bundle is not needed.
type RemoveOptions struct {
	Options
	members.Settings
}

// RemoveNodes removes hosts from the cluster, one after the other: cordon, drain, delete
// the node, uninstall k3s, in that order. The first failure ends it: what comes after
// is untouched.
func RemoveNodes(ctx context.Context, o RemoveOptions) (*run.Summary, error) {
	o.Command = "node remove"
	return o.run(ctx, journal.Remove, func(in *installation) []run.Phase { return in.removePhases(o.Settings) })
}

// run goes through the phases of a verb that makes no release.
func (o Options) run(
	ctx context.Context, verb journal.Verb, phases func(*installation) []run.Phase,
) (*run.Summary, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	in.engine.Verb = verb
	return in.unrecorded(ctx, phases(in), o.DryRun || o.Config.Runtime.DryRun)
}
