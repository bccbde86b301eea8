package install

import (
	"context"
	"fmt"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
)

var errNoLiteBoxd = fmt.Errorf("%w: install.yaml has no section liteboxd: add one, `liteboxd: {}` takes all defaults",
	site.ErrConfig)

// RenderLiteBoxd makes LiteBoxd's objects from the manifests in a bundle and what
// install.yaml and its configDir say. It asks no host. The error wraps [site.ErrConfig] when the
// two do not go together, among them when an image is asked for that the bundle does not
// carry.
func RenderLiteBoxd(o Options) (*liteboxd.Deployment, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	if o.Config.LiteBoxd == nil {
		return nil, errNoLiteBoxd
	}
	return in.deployer.RenderLiteBoxd()
}

// DiffLiteBoxd says what an installation would change of LiteBoxd's objects in the running
// cluster. It changes nothing.
func DiffLiteBoxd(ctx context.Context, o Options) ([]helm.ObjectDiff, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	in.engine.Mode, in.engine.Scope = run.Plan, run.OnlyLiteBoxd
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	if err := in.engine.ConnectServers(ctx, nil); err != nil {
		return nil, err
	}
	diffs, err := helm.Diff(ctx, in.site.API, in.deployer.Deployment.Release)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", site.ErrCluster, err)
	}
	return diffs, nil
}

// RollbackLiteBoxd takes LiteBoxd back to an earlier revision of its release: the last
// one that was deployed with success before the one that runs, unless revision is one of
// [LiteBoxdHistory]. What is there is backed up first, as before an upgrade. The database
// stays as it is. Options.Bundle is not needed.
func RollbackLiteBoxd(ctx context.Context, o Options, revision int) (*run.Summary, error) {
	if o.Config.LiteBoxd == nil {
		return nil, errNoLiteBoxd
	}
	o.Command = "rollback liteboxd"
	return o.run(ctx, journal.RollbackLiteBoxd,
		func(in *installation) []run.Phase { return in.rollbackPhases(revision) })
}

// LiteBoxdHistory lists the revisions of LiteBoxd's release, the newest last. It changes
// nothing.
func LiteBoxdHistory(ctx context.Context, o Options) ([]helm.State, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	in.engine.Mode = run.Plan
	if err := in.engine.ConnectServers(ctx, nil); err != nil {
		return nil, err
	}
	history, err := helm.History(ctx, in.site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", site.ErrCluster, err)
	}
	return history, nil
}
