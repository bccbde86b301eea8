package install

import (
	"context"
	"slices"

	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/run"
)

// What each verb does, phase by phase.

// phases are those of an installation, of the part of it that is asked for, or of an upgrade.
func (in *installation) phases() []run.Phase {
	switch {
	case in.upgrader.Upgrade != nil:
		return in.upgradePhases()
	case in.engine.Scope == run.OnlyLiteBoxd:
		return in.liteboxdPhases()
	}
	return in.installPhases()
}

// installPhases are the whole way to a platform, from hosts that have nothing or from a backup.
func (in *installation) installPhases() []run.Phase {
	return inOrder(
		run.Phase{Name: "preflight", Run: in.surveyor.Preflight},
		only(in.judgesEarly(), run.Phase{Name: "leaving", Run: in.members.JudgeLeaving}),
		run.Phase{Name: "ship", Run: in.seeder.Ship},
		// Before any node may pull from there.
		run.Phase{Name: "registry", Run: in.seeder.Seed},
		only(in.recovery.Restore != nil, run.Phase{Name: run.RestorePhase, Run: in.recovery.StopToRestore}),
		run.Phase{Name: "place", Run: in.cluster.Place},
		run.Phase{Name: "servers", Run: in.cluster.RunServers},
		// Before the network, so that Cilium comes up on all nodes at the same time.
		run.Phase{Name: "agents", Run: in.cluster.RunAgents},
		run.Phase{Name: "network", Run: in.network.Network},
		run.Phase{Name: "converge", Run: in.members.Converge},
		// Before anything is to run from them.
		run.Phase{Name: "images", Run: in.importer.Images},
		// Now that the images are there by the way that is asked for.
		run.Phase{Name: "retire", Run: in.seeder.Retire},
		run.Phase{Name: "liteboxd", Run: in.deployer.Deploy},
		run.Phase{Name: "verify", Run: in.inspector.Verify},
		run.Phase{Name: "finish", Run: in.inspector.Finish},
	)
}

// liteboxdPhases bring LiteBoxd alone to a cluster that is there.
func (in *installation) liteboxdPhases() []run.Phase {
	return inOrder(
		run.Phase{Name: "preflight", Run: in.surveyor.Preflight},
		run.Phase{Name: "ship", Run: in.seeder.Ship},
		run.Phase{Name: "registry", Run: in.seeder.SeedAnew},
		run.Phase{Name: "servers", Run: in.cluster.FindServers},
		run.Phase{Name: "images", Run: in.importer.Images},
		run.Phase{Name: "liteboxd", Run: in.deployer.Deploy},
		run.Phase{Name: "verify", Run: in.inspector.Verify},
		run.Phase{Name: "finish", Run: in.inspector.Finish},
	)
}

// upgradePhases take a cluster that runs to another bundle.
func (in *installation) upgradePhases() []run.Phase {
	return inOrder(
		run.Phase{Name: "preflight", Run: in.surveyor.Preflight},
		run.Phase{Name: "backup", Run: in.upgrader.BackUpFirst},
		run.Phase{Name: "ship", Run: in.seeder.Ship},
		run.Phase{Name: "registry", Run: in.seeder.Seed},
		// From here on, every node has all that it is going to run.
		run.Phase{Name: "import", Run: in.upgrader.ImportImages},
		run.Phase{Name: "servers", Run: in.upgrader.UpgradeServers},
		run.Phase{Name: "network", Run: in.network.Network},
		run.Phase{Name: "agents", Run: in.upgrader.UpgradeAgents},
		run.Phase{Name: k3s.TokensPhase, Run: in.cluster.RotateExposed},
		run.Phase{Name: "converge", Run: in.members.Converge},
		run.Phase{Name: "images", Run: in.importer.Images},
		run.Phase{Name: "retire", Run: in.seeder.Retire},
		run.Phase{Name: "liteboxd", Run: in.deployer.Deploy},
		run.Phase{Name: "verify", Run: in.inspector.Verify},
		run.Phase{Name: "finish", Run: in.inspector.Finish},
	)
}

// preflightPhases only look at hosts.
func (in *installation) preflightPhases() []run.Phase {
	return inOrder(run.Phase{Name: "preflight", Run: in.surveyor.Preflight})
}

// removePhases take hosts out of the cluster.
func (in *installation) removePhases(s members.Settings) []run.Phase {
	return inOrder(run.Phase{Name: "remove", Run: func(ctx context.Context) error { return in.members.Remove(ctx, s) }})
}

// rollbackPhases take LiteBoxd back to a revision, or to the last good one when that is 0.
func (in *installation) rollbackPhases(revision int) []run.Phase {
	return inOrder(run.Phase{Name: "rollback", Run: func(ctx context.Context) error {
		if err := in.engine.ConnectServers(ctx, nil); err != nil {
			return err
		}
		return in.deployer.RollBack(ctx, revision)
	}})
}

// confirmPhases take an upgrade as done.
func (in *installation) confirmPhases() []run.Phase {
	return inOrder(run.Phase{Name: "confirm", Run: in.upgrader.Confirm})
}

// certificatePhases renew k3s' certificates.
func (in *installation) certificatePhases() []run.Phase {
	return inOrder(run.Phase{Name: "certificates", Run: in.renewer.Rotate})
}

// tokenPhases give servers, agents or both another token.
func (in *installation) tokenPhases(o RotateOptions) []run.Phase {
	return inOrder(run.Phase{Name: k3s.TokensPhase, Run: func(ctx context.Context) error {
		return in.rotateTokens(ctx,
			o)
	}})
}

// only is a phase that a run has where that is so.
func only(so bool, p run.Phase) run.Phase {
	if !so {
		return run.Phase{}
	}
	return p
}

// inOrder are the phases that a run has.
func inOrder(phases ...run.Phase) []run.Phase {
	return slices.DeleteFunc(phases, func(p run.Phase) bool { return p.Run == nil })
}

// judgesEarly reports whether the removal of absent agents is judged before anything else is done.
func (in *installation) judgesEarly() bool {
	whole := in.engine.Only == nil && in.engine.Scope != run.OnlyLiteBoxd && in.recovery.Restore == nil &&
		in.upgrader.Upgrade == nil
	return in.site.Config.Runtime.RemoveAbsentAgents && in.engine.Mode == run.Apply && whole
}
