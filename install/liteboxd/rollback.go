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
	u := l.UpgradeTo(revisionName(to))
	if err := l.checkVolume(ctx, u.System); err != nil {
		return err
	}
	asked := func() (string, error) { return l.rollBackReason(ctx, to) }
	return l.Engine.RunSteps(ctx, "rollback", &l.Engine.Cluster,
		append([]run.Step{u.BackupStep(asked)}, u.changeSteps(l.rollBackStep(to))...))
}

// revisionName is what a change of LiteBoxd to a revision is called.
func revisionName(revision int) string { return fmt.Sprintf("revision %d", revision) }

// rollBackReason says why LiteBoxd is to be taken back to a revision. A run that goes on after one that was broken off
// must not do it once more.
func (l *Deployer) rollBackReason(ctx context.Context, to int) (string, error) {
	now, err := helm.Current(ctx, l.Site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease)
	if err != nil || now != nil && now.Is(to) {
		return "", err
	}
	return "it is asked for", nil
}

// rollBackStep takes LiteBoxd back to a revision.
func (l *Deployer) rollBackStep(to int) run.Step {
	return run.Step{
		ID: "roll-back-liteboxd", Title: "take LiteBoxd back to " + revisionName(to),
		Needed: func(ctx context.Context) (string, error) { return l.rollBackReason(ctx, to) },
		Run: func(ctx context.Context) error {
			_, err := helm.Rollback(ctx, l.Site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease, to,
				l.Site.Config.Runtime.CommandTimeout, l.Site.Awaits(""))
			if err == nil {
				l.Site.Warn("LiteBoxd is as in %s again; install.yaml and the bundle are not: boxlift install "+
					"brings it to these again", revisionName(to))
			}
			return err
		},
	}
}
