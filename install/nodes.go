package install

import (
	"context"
	"time"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
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
	goThrough := func() error {
		return in.engine.Run(ctx, phases(in))
	}
	started := time.Now()
	if o.DryRun || o.Config.Runtime.DryRun {
		in.engine.Mode = run.Plan
		if err := in.engine.Recall(); err != nil {
			return nil, err
		}
		err := goThrough()
		return in.engine.Summary(), err
	}
	err = in.recorded(func() error {
		err := goThrough()
		if n := in.engine.Summary().ChangeCount(); n > 0 {
			in.record.Note(ctx, started, site.Counted(n, "change"), err)
		}
		return err
	})
	if in.engine.Phases == nil {
		return nil, err // it did not get as far as doing anything
	}
	return in.engine.Summary(), err
}
