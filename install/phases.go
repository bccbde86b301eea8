package install

import (
	"context"

	"github.com/liteboxd/boxlift/install/anchors"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/front"
	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/relocation"
	"github.com/liteboxd/boxlift/install/renewal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/schedule"
	"github.com/liteboxd/boxlift/install/timekeeping"
	"github.com/liteboxd/boxlift/install/workload"
	"github.com/liteboxd/boxlift/internal/backup"
)

// What each verb does, phase by phase.

// installPhases are the whole way to a platform, from hosts that have nothing. Each can be run alone, too.
func (in *installation) installPhases() []run.Phase {
	shipped, api, network := in.seeder.RequireShipped, in.requireAPI, inOrder(in.requireAPI, in.requireNetwork)
	ready := inOrder(in.surveyor.RequirePrepared, shipped)
	return []run.Phase{
		{Name: "preflight", Does: "logs in to all hosts, puts boxlift-node there, and judges them",
			Look: in.surveyor.Preflight, Gate: true},
		{Name: "leaving", Does: "judges whether agents that are not in install.yaml can go", Needs: api,
			Look: in.members.JudgeLeaving, Gate: true, If: in.removesAbsent},
		{Name: "ship", Prepares: true, Does: "brings the packs and files of the bundle that hosts lack",
			Look: in.seeder.Ship},
		{Name: "packages", Prepares: true, Does: "installs packages of the distribution that are asked for, from the bundle",
			Look: in.packages.Install},
		// Before anything on a host relies on it.
		{Name: anchors.Phase, Prepares: true,
			Does: "brings the root of the site's authority into the hosts' trust stores, and hosts its trust file",
			Look: inOrder(in.anchors.Keep, in.record.BringTrust)},
		// Before any node may pull from there.
		{Name: "registry", Prepares: true, Does: "brings up boxlift's registry on the servers, or pushes into yours",
			Needs: shipped, Look: inOrder(in.seeder.Seed, in.seeder.RequireImages)},
		// Before k3s is there, which needs what it changes.
		{Name: "prepare", Prepares: true,
			Does: "makes hosts ready, gives them names and serves these, where install.yaml says so",
			Look: inOrder(in.preparer.Prepare, in.surveyor.ReachPrepared, in.namer.Hosts, in.nameserver.Keep)},
		// Through firewalls that are open now, and before anything whose certificates begin now.
		{Name: timekeeping.Phase, Prepares: true,
			Does: "has hosts serve time and follow it by chrony, where install.yaml says so", Look: in.timekeeper.Keep},
		{Name: "place", Does: "places k3s and its service where there is none, and starts nothing", Needs: ready,
			Look: in.cluster.Place, Ahead: true},
		{Name: "majority", Does: "starts stopped servers together where etcd lacks its majority",
			Look: in.cluster.StartMembers, Ahead: true},
		{Name: "servers", Does: "sets up and starts k3s on the servers, one by one", Needs: ready,
			Look: in.cluster.RunServers},
		// Before agents join by its address.
		{Name: front.Phase, Does: "brings up the address that servers have in turn", Needs: api, Look: in.front.Keep,
			If: in.hasFront},
		// Before the network, so that Cilium comes up on all nodes at the same time.
		{Name: "agents", Does: "sets up and starts k3s on the agents, which join the servers",
			Needs: inOrder(ready, api), Look: in.cluster.RunAgents},
		{Name: "network", Does: "installs or upgrades Cilium", Needs: api,
			Look: inOrder(in.network.Judge, in.network.Network)},
		{Name: "converge", Does: "waits for all nodes, sets labels and taints, removes agents that are to go", Needs: api,
			Look: inOrder(in.members.Converge, in.namer.Pods, in.siteKey.Keep)},
		{Name: renewal.Phase, Does: "has k3s' certificates renewed ahead of their end, by a timer on each host",
			Needs: api, Look: in.renewal.Keep},
		// Before anything is to run from them.
		{Name: "images", Does: "proves that containerd has all images, and pins them", Needs: api,
			Look: in.importer.Images},
		// Now that the images are there by the way that is asked for.
		{Name: "retire", Does: "removes a registry and a front that install.yaml does not ask for any more", Needs: api,
			Look: inOrder(in.seeder.Retire, in.front.Retire), If: in.engine.WholeCluster},
		{Name: "liteboxd", Does: "deploys LiteBoxd", Needs: network, Look: in.deployer.Deploy},
		{Name: workload.Phase, Does: "deploys the other workloads of install.yaml", Needs: network,
			Look: in.workloads.Deploy},
		{Name: schedule.Phase, Does: "has the servers make backups by themselves, where install.yaml says so",
			Needs: shipped, Look: in.schedule.Keep},
		{Name: "verify", Does: "waits until all nodes are Ready and all that belongs to the platform runs", Needs: network,
			Look: in.inspector.Verify},
		{Name: "finish", Does: "removes temporary files and writes the kubeconfig", Needs: api,
			Look: in.inspector.Finish, Ahead: true},
	}
}

// statusPhases look at all that an installation would do. Hosts are not judged.
func (in *installation) statusPhases() []run.Phase {
	return []run.Phase{
		{Name: "survey", Look: in.surveyor.Survey},
		{Name: "ship", Look: in.seeder.Ship},
		{Name: "packages", Look: in.packages.Install},
		{Name: anchors.Phase, Look: inOrder(in.anchors.Keep, in.record.BringTrust)},
		{Name: "registry", Look: in.seeder.Seed},
		{Name: "prepare", Look: inOrder(in.preparer.Prepare, in.namer.Hosts, in.nameserver.Keep)},
		{Name: timekeeping.Phase, Look: in.timekeeper.Keep},
		{Name: "servers", Look: in.cluster.RunServers},
		{Name: front.Phase, Look: in.front.Keep, If: in.hasFront},
		{Name: "agents", Look: in.cluster.RunAgents},
		{Name: "network", Look: in.network.Network},
		{Name: "converge", Look: inOrder(in.members.Converge, in.namer.Pods, in.siteKey.Keep)},
		{Name: renewal.Phase, Look: in.renewal.Keep},
		{Name: "images", Look: in.importer.Images},
		{Name: "retire", Look: inOrder(in.seeder.Retire, in.front.Retire)},
		{Name: "liteboxd", Look: in.deployer.Deploy},
		{Name: workload.Phase, Look: in.workloads.Deploy},
		{Name: schedule.Phase, Look: in.schedule.Keep},
		{Name: "verify", Look: in.inspector.Verify},
		{Name: "overview", Look: in.inspector.LookAround},
	}
}

// liteboxdPhases bring LiteBoxd alone to a cluster that is there.
func (in *installation) liteboxdPhases() []run.Phase {
	return []run.Phase{
		{Name: "preflight", Look: in.surveyor.Preflight, Gate: true},
		{Name: "ship", Prepares: true, Look: in.seeder.Ship},
		{Name: "registry", Prepares: true, Look: inOrder(in.seeder.SeedAnew, in.seeder.RequireImages)},
		{Name: "servers", Look: in.cluster.FindServers},
		{Name: "images", Look: in.importer.Images},
		{Name: "liteboxd", Look: in.deployer.Deploy},
		{Name: "verify", Look: in.inspector.Verify},
		{Name: "finish", Look: in.inspector.Finish, Ahead: true},
	}
}

// restorePhases make a cluster anew from a backup, with the bundle that it ran.
func (in *installation) restorePhases() []run.Phase {
	return []run.Phase{
		{Name: "preflight", Look: in.surveyor.Preflight, Gate: true},
		{Name: "ship", Prepares: true, Look: in.seeder.Ship},
		{Name: "packages", Prepares: true, Look: in.packages.Install},
		{Name: anchors.Phase, Prepares: true, Look: inOrder(in.anchors.Keep, in.record.BringTrust)},
		{Name: "registry", Prepares: true, Look: inOrder(in.seeder.Seed, in.seeder.RequireImages)},
		{Name: run.RestorePhase, Look: in.recovery.StopToRestore},
		{Name: "prepare", Look: inOrder(in.preparer.Prepare, in.surveyor.ReachPrepared, in.namer.Hosts,
			in.nameserver.Keep)},
		{Name: timekeeping.Phase, Look: in.timekeeper.Keep},
		{Name: "place", Look: in.cluster.Place, Ahead: true},
		{Name: "servers", Look: in.cluster.RunServers},
		{Name: front.Phase, Look: in.front.Keep, If: in.hasFront},
		{Name: "agents", Look: in.cluster.RunAgents},
		{Name: "network", Look: in.network.Network},
		{Name: "converge", Look: inOrder(in.members.Converge, in.namer.Pods, in.siteKey.Keep)},
		{Name: renewal.Phase, Look: in.renewal.Keep},
		{Name: "images", Look: in.importer.Images},
		{Name: "retire", Look: inOrder(in.seeder.Retire, in.front.Retire), If: in.engine.WholeCluster},
		{Name: "liteboxd", Look: in.deployer.Deploy},
		{Name: workload.Phase, Look: in.workloads.Deploy},
		{Name: schedule.Phase, Look: in.schedule.Keep},
		{Name: "verify", Look: in.inspector.Verify},
		{Name: "finish", Look: in.inspector.Finish, Ahead: true},
	}
}

// upgradePhases take a cluster that runs to another bundle.
func (in *installation) upgradePhases() []run.Phase {
	return []run.Phase{
		{Name: "preflight", Look: in.surveyor.Preflight, Gate: true},
		{Name: "backup", Prepares: true, Look: in.upgrader.BackUpFirst},
		{Name: "ship", Prepares: true, Look: in.seeder.Ship},
		{Name: "packages", Prepares: true, Look: in.packages.Install},
		{Name: anchors.Phase, Prepares: true, Look: inOrder(in.anchors.Keep, in.record.BringTrust)},
		{Name: "registry", Prepares: true, Look: inOrder(in.seeder.Seed, in.seeder.RequireImages)},
		{Name: "prepare", Prepares: true, Look: inOrder(in.preparer.Prepare, in.surveyor.ReachPrepared, in.namer.Hosts,
			in.nameserver.Keep)},
		{Name: timekeeping.Phase, Prepares: true, Look: in.timekeeper.Keep},
		// From here on, every node has all that it is going to run.
		{Name: "import", Prepares: true, Look: in.upgrader.ImportImages},
		{Name: "majority", Look: in.cluster.StartMembers, Ahead: true},
		{Name: "servers", Look: in.upgrader.UpgradeServers},
		{Name: front.Phase, Look: in.front.Keep, If: in.hasFront},
		{Name: "network", Look: in.network.Network},
		{Name: "agents", Look: in.upgrader.UpgradeAgents},
		{Name: k3s.TokensPhase, Look: in.cluster.RotateExposed},
		{Name: "converge", Look: inOrder(in.members.Converge, in.namer.Pods, in.siteKey.Keep)},
		{Name: renewal.Phase, Look: in.renewal.Keep},
		{Name: "images", Look: in.importer.Images},
		{Name: "retire", Look: inOrder(in.seeder.Retire, in.front.Retire), If: in.engine.WholeCluster},
		{Name: "liteboxd", Look: in.deployer.Deploy},
		{Name: workload.Phase, Look: in.workloads.Deploy},
		{Name: schedule.Phase, Look: in.schedule.Keep},
		// k3s was started again where it changed: what ends soon all the same needs somebody.
		{Name: "verify", Look: inOrder(in.inspector.Verify, in.renewer.WarnOfAll)},
		{Name: "finish", Look: in.inspector.Finish, Ahead: true},
	}
}

// preflightPhases only look at hosts.
func (in *installation) preflightPhases() []run.Phase {
	return []run.Phase{{Name: "preflight", Look: in.surveyor.Preflight, Gate: true}}
}

// removePhases take hosts out of the cluster.
func (in *installation) removePhases(s members.Settings) []run.Phase {
	remove := func(ctx context.Context) error { return in.members.Remove(ctx, s) }
	return []run.Phase{{Name: "remove", Gate: true, Look: remove}}
}

// rollbackPhases take LiteBoxd back to a revision, or to the last good one when that is 0.
func (in *installation) rollbackPhases(revision int) []run.Phase {
	return []run.Phase{{Name: "rollback", Gate: true, Look: inOrder(in.reachServers,
		func(ctx context.Context) error { return in.deployer.RollBack(ctx, revision) })}}
}

// removeWorkloadPhases take a workload off the cluster.
func (in *installation) removeWorkloadPhases(name string, withData bool) []run.Phase {
	return []run.Phase{{Name: workload.RemovalPhase, Gate: true, Look: inOrder(in.reachServers,
		func(ctx context.Context) error { return in.workloads.Remove(ctx, name, withData) })}}
}

// rollBackWorkloadPhases take a workload back to a revision, or to the last good one when that is 0.
func (in *installation) rollBackWorkloadPhases(name string, revision int) []run.Phase {
	return []run.Phase{{Name: workload.RollbackPhase, Gate: true, Look: inOrder(in.reachServers,
		func(ctx context.Context) error { return in.workloads.RollBack(ctx, name, revision) })}}
}

// movePhases bring LiteBoxd's database to another node.
func (in *installation) movePhases(to string) []run.Phase {
	return []run.Phase{{Name: relocation.MovePhase, Gate: true, Look: inOrder(in.reachServers,
		func(ctx context.Context) error { return in.relocation.Move(ctx, to) })}}
}

// confirmMovePhases remove the volumes that LiteBoxd's database was on before.
func (in *installation) confirmMovePhases(forgetUnreachable bool) []run.Phase {
	return []run.Phase{{Name: relocation.ConfirmPhase, Gate: true, Look: inOrder(in.reachServers,
		func(ctx context.Context) error { return in.relocation.Confirm(ctx, forgetUnreachable) })}}
}

// restoreLiteBoxdPhases put LiteBoxd's database back from a backup.
func (in *installation) restoreLiteBoxdPhases(s *relocation.Source, to string) []run.Phase {
	return []run.Phase{{Name: relocation.RestorePhase, Gate: true, Look: inOrder(in.reachServers,
		func(ctx context.Context) error { return in.relocation.Restore(ctx, s, to) })}}
}

// confirmPhases take an upgrade as done.
func (in *installation) confirmPhases() []run.Phase {
	return []run.Phase{{Name: "confirm", Gate: true, Look: in.upgrader.Confirm}}
}

// trustPhases have the cluster keep a newer trust file, and its hosts.
func (in *installation) trustPhases() []run.Phase {
	return []run.Phase{{Name: "trust", Gate: true,
		Look: inOrder(in.reachServers, in.record.KeepTrust, in.record.BringTrust)}}
}

// certificatePhases renew k3s' certificates.
func (in *installation) certificatePhases() []run.Phase {
	return []run.Phase{{Name: "certificates", Gate: true, Look: in.renewer.Rotate}}
}

// tokenPhases give servers, agents or both another token.
func (in *installation) tokenPhases(o RotateOptions) []run.Phase {
	return []run.Phase{{Name: k3s.TokensPhase, Gate: true, Look: inOrder(in.cluster.OccupyAll,
		func(ctx context.Context) error { return in.rotateTokens(ctx, o) })}}
}

// backupPhases back up the cluster while it runs.
func (in *installation) backupPhases(s recovery.Settings, report **backup.Report) []run.Phase {
	create := func(ctx context.Context) (err error) {
		*report, err = in.recovery.CreateBackup(ctx, s)
		return err
	}
	return []run.Phase{{Name: "backup", Prepares: true, Gate: true, Look: inOrder(in.reachServers, create)}}
}

// prunePhases remove from all hosts what no release needs.
func (in *installation) prunePhases(o PruneOptions, pruning **images.Pruning) []run.Phase {
	return []run.Phase{{Name: "prune", Look: func(ctx context.Context) error {
		*pruning = in.importer.PruneAll(ctx, o.DropPrevious, !o.DryRun)
		return nil
	}}}
}

// inOrder is one look after the other, until one fails.
func inOrder(looks ...func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, look := range looks {
			if err := look(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// removesAbsent reports whether agents that install.yaml does not have are to go.
func (in *installation) removesAbsent() bool {
	return in.site.Config.Runtime.RemoveAbsentAgents && in.engine.Only == nil
}

// hasFront reports whether servers are to have an address in turn.
func (in *installation) hasFront() bool { return in.site.Config.Cluster.Front != nil }

// reachServers reaches the cluster that is there.
func (in *installation) reachServers(ctx context.Context) error {
	return in.engine.ConnectServers(ctx, nil)
}

// worksOn reports whether a phase has to do with a host, for the plan of a run.
func (in *installation) worksOn(phase string, role config.Role) bool {
	switch phase {
	case "servers", schedule.Phase:
		return role == config.Server
	case front.Phase:
		return role == config.Server && in.hasFront()
	case "agents":
		return role == config.Agent
	case "registry":
		return in.site.Config.Seeding.Mode != config.SeedImages
	}
	return true
}
