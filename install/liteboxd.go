package install

import (
	"context"
	"fmt"

	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
)

var errNoLiteBoxd = fmt.Errorf("%w: install.yaml has no section liteboxd: add one, `liteboxd: {}` takes all defaults", site.ErrConfig)

// RenderLiteBoxd makes LiteBoxd's objects from the manifests in a bundle and what
// install.yaml and its configDir say. It asks no host. The error wraps [ErrConfig] when the
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
