package liteboxd

import (
	"context"
	"errors"
	"fmt"

	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
)

// RollBack takes LiteBoxd back to an earlier revision, to the last good one when that is 0.
func (l *Deployer) RollBack(ctx context.Context, revision int) error {
	running, err := l.runningObjects(ctx)
	if err != nil {
		return err
	}
	if err := l.checkNamespaces(running); err != nil {
		return err
	}
	to, err := helm.RollbackTarget(ctx, l.Site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease, revision)
	if errors.Is(err, helm.ErrNoRevision) {
		return fmt.Errorf("%w: %w", site.ErrRefused, err)
	}
	if err != nil {
		return err
	}
	target := fmt.Sprintf("revision %d", to)
	// A run that goes on after one that was broken off must not do it once more.
	asked := func() (string, error) {
		now, err := helm.Current(ctx, l.Site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease)
		if err != nil || now != nil && now.Is(to) {
			return "", err
		}
		return "it is asked for", nil
	}
	u := l.UpgradeTo(target)
	return l.Engine.RunSteps(ctx, "rollback", &l.Engine.Cluster,
		append([]run.Step{u.backupStep(asked)}, u.changeSteps(run.Step{
			ID: "roll-back-liteboxd", Title: "take LiteBoxd back to " + target,
			Needed: func(context.Context) (string, error) { return asked() },
			Run: func(ctx context.Context) error {
				_, err := helm.Rollback(ctx, l.Site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease, to,
					l.Site.Config.Runtime.CommandTimeout, l.Site.Reporter.Message)
				if err == nil {
					l.Site.Warn("LiteBoxd is as in %s again; install.yaml and the bundle are not: boxlift install "+
						"brings it to these again", target)
				}
				return err
			},
		})...))
}
