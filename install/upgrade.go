package install

import (
	"context"
	"errors"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/upgrade"
)

// An upgrade takes a running cluster to another bundle. Everything is shipped and imported
// everywhere while the old versions serve; then servers are started with the new k3s one by
// one, Cilium follows, then the agents in batches, and LiteBoxd comes last. Nothing is drained
// unless it is asked for: k3s is started anew under its pods.

// UpgradeOptions say what to upgrade to, and how. Options.Bundle is the new bundle.
type UpgradeOptions struct {
	Options
	upgrade.Settings
}

// Upgrade takes a cluster to another bundle, if the gates let it through and a backup has been
// made and proven. The summary is nil when nothing was begun. The error wraps [site.ErrRefused]
// when a gate refuses; nothing is changed then.
func Upgrade(ctx context.Context, o UpgradeOptions) (*run.Summary, error) {
	o.Command = o.Name()
	underWay := o.isUnderWay()
	plan, err := PlanUpgrade(ctx, o)
	if plan == nil && errors.Is(err, site.ErrCluster) && !underWay {
		underWay = o.isKept(ctx)
	}
	if err != nil && (plan != nil || !underWay || !errors.Is(err, site.ErrCluster)) {
		return nil, err
	}
	in, err := newInstaller(o.Options)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	in.upgrader.Upgrade = &upgrade.Upgrading{Settings: o.Settings, UnderWay: underWay}
	in.engine.Upgrades, in.record.TakesBack = true, o.RollbackTo
	in.engine.Verb = o.Verb()
	in.engine.Tolerates = in.upgrader.ToleratesFailures
	in.cluster.SplitsToken = true
	if plan == nil {
		in.site.Warn("the cluster's API does not answer: whether the upgrade may go on was not judged again")
	}
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	in.deployer.WarnOfManifests()
	return in.release(ctx, in.upgradePhases(), false)
}

// isUnderWay tells, by the state alone, whether this upgrade has begun and not ended. A cluster
// whose servers were hit in the middle of it cannot be asked.
func (o *UpgradeOptions) isUnderWay() bool {
	last, err := journal.Read(o.StatePath)
	return err == nil && run.UpgradeBegan(last) && last.Verb == o.Verb() && last.RollbackTo == o.RollbackTo &&
		last.Bundle == o.Bundle.Digest().String()
}

// Confirm takes an upgrade as done: what the nodes keep of the version before is removed. The
// error wraps [site.ErrRefused] while the newest release has not succeeded.
func Confirm(ctx context.Context, o Options) (*run.Summary, error) {
	o.Command = "upgrade confirm"
	return o.run(ctx, journal.Confirm, (*installation).confirmPhases)
}

// WayBack tells how a cluster gets back to a release: in place when backup is "", or else by
// restoring this backup, with the bundle of that release. Servers that have run a newer minor
// version of Kubernetes have written what the older one cannot read. When the cluster cannot
// be asked, its record's copy beside the state is. The error wraps [site.ErrRefused] when there is
// no way back, and [upgrade.ErrNoBackup] besides when it would take a backup that nobody knows of.
func WayBack(ctx context.Context, o UpgradeOptions) (backupFile string, err error) {
	in, err := newInstaller(o.Options)
	if err != nil {
		return "", err
	}
	defer in.engine.Close()
	return in.upgrader.WayBack(ctx, o.Settings)
}

// PlanUpgrade finds out what an upgrade to a bundle would do, and whether the gates let it
// through. It touches nothing: no file on a host, no object, no state. The error wraps
// [site.ErrRefused] when a gate refuses, [site.ErrHosts] when a host cannot be looked at, and
// [bundle.ErrIncomplete] when nobody has what a delta leaves out; the plan is complete in these
// cases.
func PlanUpgrade(ctx context.Context, o UpgradeOptions) (*upgrade.Plan, error) {
	if o.RollbackTo > 0 {
		o.Accept.Downgrade = true
	}
	o.Accept.OlderBundle = o.AcceptOlderBundle
	in, err := newInstaller(o.Options)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	in.cluster.SplitsToken = true
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	in.deployer.WarnOfManifests()
	return in.upgrader.Plan(ctx, o.Settings, in.upgradePhases())
}
