package install

import (
	"context"
	"errors"
	"fmt"

	"github.com/liteboxd/boxlift/install/kube/helm"
)

// rollbackLiteBoxdCommand is what the state calls it.
const rollbackLiteBoxdCommand = "rollback liteboxd"

// RollbackLiteBoxd takes LiteBoxd back to an earlier revision of its release: the last
// one that was deployed with success before the one that runs, unless revision is one of
// [LiteBoxdHistory]. What is there is backed up first, as before an upgrade. The database
// stays as it is. Options.Bundle is not needed.
func RollbackLiteBoxd(ctx context.Context, o Options, revision int) (*Summary, error) {
	if o.Config.LiteBoxd == nil {
		return nil, errNoLiteBoxd
	}
	o.Command = rollbackLiteBoxdCommand
	return o.runPhase(ctx, "rollback", func(ctx context.Context, in *installation) error {
		if err := in.engine.connectServers(ctx, nil); err != nil {
			return err
		}
		return in.deployer.rollBack(ctx, revision)
	})
}

func (l *Deployer) rollBack(ctx context.Context, revision int) error {
	running, err := l.runningObjects(ctx)
	if err != nil {
		return err
	}
	if err := l.checkNamespaces(running); err != nil {
		return err
	}
	to, err := helm.RollbackTarget(ctx, l.site.api, releasesNamespace, liteboxdRelease, revision)
	if errors.Is(err, helm.ErrNoRevision) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err != nil {
		return err
	}
	target := fmt.Sprintf("revision %d", to)
	// A run that goes on after one that was broken off must not do it once more.
	asked := func() (string, error) {
		now, err := helm.Current(ctx, l.site.api, releasesNamespace, liteboxdRelease)
		if err != nil || now != nil && now.Is(to) {
			return "", err
		}
		return "it is asked for", nil
	}
	u := l.upgradeTo(target)
	return l.engine.runSteps(ctx, "rollback", &l.engine.cluster, append([]step{u.backupStep(asked)}, u.changeSteps(step{
		title:  "take LiteBoxd back to " + target,
		needed: func(context.Context) (string, error) { return asked() },
		run: func(ctx context.Context) error {
			_, err := helm.Rollback(ctx, l.site.api, releasesNamespace, liteboxdRelease, to, l.site.Config.Runtime.CommandTimeout, l.site.Reporter.Message)
			if err == nil {
				l.site.warn("LiteBoxd is as in %s again; install.yaml and the bundle are not: boxlift install brings it to these again", target)
			}
			return err
		},
	})...))
}

// LiteBoxdHistory lists the revisions of LiteBoxd's release, the newest last. It changes
// nothing.
func LiteBoxdHistory(ctx context.Context, o Options) ([]helm.State, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.close()
	in.engine.mode = plan
	if err := in.engine.connectServers(ctx, nil); err != nil {
		return nil, err
	}
	history, err := helm.History(ctx, in.site.api, releasesNamespace, liteboxdRelease)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCluster, err)
	}
	return history, nil
}
