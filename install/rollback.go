package install

import (
	"context"
	"errors"
	"fmt"

	"github.com/liteboxd/boxlift/install/kube"
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
	return o.runPhase(ctx, "rollback", func(ctx context.Context, in *installer) error {
		if err := in.connectServers(ctx, nil); err != nil {
			return err
		}
		return in.rollBack(ctx, revision)
	})
}

func (in *installer) rollBack(ctx context.Context, revision int) error {
	running, err := in.runningObjects(ctx)
	if err != nil {
		return err
	}
	if err := in.checkNamespaces(running); err != nil {
		return err
	}
	to, err := in.api.RollbackTarget(ctx, releasesNamespace, liteboxdRelease, revision)
	if errors.Is(err, kube.ErrNoRevision) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err != nil {
		return err
	}
	target := fmt.Sprintf("revision %d", to)
	// A run that goes on after one that was broken off must not do it once more.
	asked := func() (string, error) {
		now, err := in.api.ReleaseState(ctx, releasesNamespace, liteboxdRelease)
		if err != nil || now != nil && now.Is(to) {
			return "", err
		}
		return "it is asked for", nil
	}
	u := in.upgradeTo(target)
	return in.runSteps(ctx, "rollback", &in.cluster, append([]step{u.backupStep(asked)}, u.changeSteps(step{
		title:  "take LiteBoxd back to " + target,
		needed: func(context.Context) (string, error) { return asked() },
		run: func(ctx context.Context) error {
			_, err := in.api.RollbackRelease(ctx, releasesNamespace, liteboxdRelease, to, in.Config.Runtime.CommandTimeout, in.Reporter.Message)
			if err == nil {
				in.warn("LiteBoxd is as in %s again; install.yaml and the bundle are not: boxlift install brings it to these again", target)
			}
			return err
		},
	})...))
}

// LiteBoxdHistory lists the revisions of LiteBoxd's release, the newest last. It changes
// nothing.
func LiteBoxdHistory(ctx context.Context, o Options) ([]kube.ReleaseState, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.close()
	in.mode = plan
	if err := in.connectServers(ctx, nil); err != nil {
		return nil, err
	}
	history, err := in.api.ReleaseHistory(ctx, releasesNamespace, liteboxdRelease)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCluster, err)
	}
	return history, nil
}
