package liteboxd

import (
	"context"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/workload"
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
	release := kube.ReleaseName{Namespace: seed.ReleasesNamespace, Name: seed.LiteBoxdRelease}
	to, err := workload.Target(ctx, l.Site, release, revision)
	if err != nil {
		return err
	}
	back := &workload.Rollback{Site: l.Site, Release: release, Name: "LiteBoxd", To: to}
	u := l.UpgradeTo(workload.RevisionName(to))
	if err := l.checkVolume(ctx, u.System); err != nil {
		return err
	}
	asked := func() (string, error) { return back.Reason(ctx) }
	return l.Engine.RunSteps(ctx, "rollback", &l.Engine.Cluster,
		append([]run.Step{u.BackupStep(asked)}, u.changeSteps(back.Step("roll-back-liteboxd"))...))
}
