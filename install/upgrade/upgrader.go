// Package upgrade takes a running cluster to another bundle: the plan with its gates, the servers one by one, the
// agents in batches, and each host back to what it ran when it does not come up.
package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"filippo.io/age"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/gate"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/survey"
	"github.com/liteboxd/boxlift/install/workload"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/fault"
)

// Upgrader takes a running cluster to another bundle.
type Upgrader struct {
	Site      *site.Site
	Engine    *run.Engine
	Record    *run.Record
	Seeder    *seed.Seeder
	Cluster   *k3s.Cluster
	Importer  *images.Importer
	Deployer  *liteboxd.Deployer
	Workloads *workload.Room
	Renewer   *certificates.Renewer
	Members   *members.Members
	Recovery  *recovery.Recovery
	Surveyor  *survey.Surveyor
	Inspector *inspect.Inspector

	Upgrade *Upgrading // nil unless the cluster goes to another bundle
}

// Settings say how an upgrade goes about its work.
type Settings struct {
	Accept gate.Accept
	// Via are bundles that an upgrade may go by; only plans look at them.
	Via []*bundle.Reader

	Batches
	// BackupRecipients are whom the backup is encrypted to; without any it is in the clear.
	BackupRecipients []age.Recipient
	// RollbackTo is the number of the release that is gone back to, which was of Options.Bundle;
	// 0 goes to a bundle that is new to the cluster.
	RollbackTo int
}

// Batches say how many agents are worked on at the same time.
type Batches struct {
	// Canary agents come first, by themselves; 0 means none.
	Canary int
	// Size is that of the other batches; 0 means as many as runtime.parallelism allows.
	Size int
	// MaxFailures is how many agents may fail before no further batch is begun.
	MaxFailures int
	// Pause lies between two batches.
	Pause time.Duration
}

// split puts agents into batches.
func split[T any](agents []T, canary, size int) [][]T {
	var batches [][]T
	if canary > 0 && len(agents) > 0 {
		canary = min(canary, len(agents))
		batches, agents = append(batches, agents[:canary]), agents[canary:]
	}
	return slices.AppendSeq(batches, slices.Chunk(agents, size))
}

// batchSize is that of batches that are no canaries.
func (u *Upgrader) batchSize(b Batches) int {
	if b.Size > 0 {
		return b.Size
	}
	return u.Site.Config.Runtime.Parallelism
}

// Upgrading is what an upgrade knows besides.
type Upgrading struct {
	Settings
	// UnderWay tells that the state, or a server, knows of this upgrade, which got as far as the
	// servers.
	UnderWay bool
	// agentsDone tells that the agents' phase is over, with no more failures than are allowed.
	agentsDone bool
}

// Verb is what state and record call the run.
func (o *Settings) Verb() journal.Verb {
	if o.RollbackTo > 0 {
		return journal.Rollback
	}
	return journal.Upgrade
}

// isThat reports whether a release is of this upgrade.
func (o *Settings) isThat(r *release.Release, bundle digest.Digest) bool {
	return r.IsSame(&release.Release{Verb: o.Verb(), RollbackTo: o.RollbackTo, Bundle: bundle})
}

// Name is what people call the run.
func (o *Settings) Name() string {
	if o.RollbackTo > 0 {
		return fmt.Sprintf("rollback --to %d", o.RollbackTo)
	}
	return run.UpgradeCommand
}

// freshBackup is how old a backup may be from which an upgrade that has not changed anything that
// runs goes on.
const freshBackup = time.Hour

// BackUpFirst makes a backup, unless this upgrade has made one already: what it would hold now
// is a cluster between two versions. Where that one is not at hand, another is made, for the
// case that all is lost; the way back stays the one on record.
func (u *Upgrader) BackUpFirst(ctx context.Context) error {
	if err := u.Engine.ReachAPI(ctx, u.Site.Servers()); err != nil {
		if u.Upgrade.UnderWay {
			u.Site.Warn("no backup was made: %v", err)
			// Nobody can say how far it got: servers stay as they are, rather than go back.
			u.Cluster.Crossing.Minor, u.Cluster.Crossing.Moved = true, true
			return nil
		}
		return err
	}
	if err := u.lookAtMinor(ctx); err != nil {
		return err
	}
	return u.Engine.RunSteps(ctx, "backup", &u.Engine.Cluster, []run.Step{u.backupStep()})
}

// backupStep makes the backup that an upgrade begins with.
func (u *Upgrader) backupStep() run.Step {
	wayBackStays := false // something has moved: the way back is the backup on record
	return run.Step{
		ID: "back-up-cluster", Title: "back up the cluster",
		Needed: func(ctx context.Context) (string, error) {
			r, _, err := run.ReadRecord(ctx, u.Site.API)
			if err != nil {
				return "", err
			}
			newest := run.LastStanding(r)
			switch {
			case newest == nil:
				return "nothing is known of one", nil
			case newest.Bundle == u.Site.Bundle.Digest() && newest.State == release.Succeeded &&
				newest.Config == u.Site.Config.Fingerprint() && !u.Cluster.SharesToken:
				return "", nil // there is nothing to upgrade
			case u.Upgrade.isThat(newest, u.Site.Bundle.Digest()) && newest.Backup != "":
				found, err := u.Inspector.FindRunning(ctx)
				if err != nil {
					return "", err
				}
				begun := hasBegun(newest, r.Current(), found, u.Cluster.Crossing.Moved)
				made, err := provenAgain(ctx, filepath.Join(recovery.BackupsDir(u.Site.StatePath,
					u.Site.Config.Cluster.Name), newest.Backup))
				if err == nil && (begun || time.Since(made) < freshBackup) {
					return "", nil
				}
				if err == nil {
					break // nothing has changed since, but people have worked
				}
				if errors.Is(err, fs.ErrNotExist) {
					u.Site.Warn("the backup that this upgrade began with, %s, is not here: keep it wherever it is, "+
						"for it alone has the cluster from before", newest.Backup)
				} else {
					u.Site.Warn("the backup that this upgrade began with, %s, can no longer be used: look for a copy "+
						"of it, for it alone has the cluster from before: %v", newest.Backup, err)
				}
				wayBackStays = begun
			}
			return "the upgrade is to have a way back", nil
		},
		Run: func(ctx context.Context) error {
			report, err := u.Recovery.CreateBackup(ctx, recovery.Settings{Recipients: u.Upgrade.BackupRecipients,
				Boxlift: u.Record.Version})
			if err != nil {
				return err
			}
			u.Site.ClusterBackup = report.Path
			u.Record.Recorder.Lock()
			defer u.Record.Recorder.Unlock()
			return u.Record.ChangeRecord(ctx, func(r *release.Record) error {
				if one := r.Find(u.Record.Recorder.Number); one != nil && !wayBackStays {
					one.Backup = filepath.Base(report.Path)
				}
				return nil
			})
		},
	}
}

// hasBegun reports whether an upgrade, which ended or was broken off, has changed what runs: then a
// backup made now is not one of the cluster from before. current is the release from before, nil
// when it is not known; moved tells that an API server has another minor version.
func hasBegun(upgrade, current *release.Release, found *inspect.Running, moved bool) bool {
	return moved || upgrade.State == release.Running || current != nil && len(found.Mismatches(current.Version)) > 0
}

// provenAgain proves a backup that an earlier run has made, and tells when it was written. Of one
// that is encrypted, all that can be known without its key is that it is there.
func provenAgain(ctx context.Context, path string) (made time.Time, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}, err
	}
	r, err := backup.Open(path)
	if errors.Is(err, backup.ErrEncrypted) {
		return info.ModTime(), nil
	}
	if err != nil {
		return time.Time{}, err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if _, err := r.Verify(ctx); err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// lookAtMinor finds out whether the servers are to move by a minor version of Kubernetes, and
// whether one has done it already.
func (u *Upgrader) lookAtMinor(ctx context.Context) error {
	nodes, err := u.Site.API.Nodes(ctx)
	if err != nil {
		return err
	}
	u.Cluster.Crossing.Minor, u.Cluster.Crossing.Moved = k3s.MinorStep(nodes, u.Cluster.APIVersions(ctx), u.Site.K3s)
	return nil
}

// ImportImages brings the images of the bundle into the containerd of every node, while the
// old k3s runs. A node whose k3s is down imports them when it is started.
func (u *Upgrader) ImportImages(ctx context.Context) error {
	return u.Engine.EachHost(ctx, u.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		state, err := machine.FindService(ctx, h.Conn, site.Unit(h.Config.Role))
		if err != nil || state.Active != "active" {
			return err
		}
		return u.Engine.RunSteps(ctx, "import", &h.Subject, u.Importer.ImagesSteps(h))
	})
}

// UpgradeServers goes from server to server.
func (u *Upgrader) UpgradeServers(ctx context.Context) error {
	u.letEndpoints(ctx, "")
	return u.Cluster.EachServer(ctx, func(ctx context.Context, n *k3s.Node) error {
		m := &move{upgrader: u, host: n.Host, phase: "servers", wanted: n}
		return m.do(ctx, func(ctx context.Context) error {
			if err := u.Cluster.RunServer(ctx, n); err != nil {
				return err
			}
			u.Cluster.Crossing.Moved = u.Cluster.Crossing.Minor
			if u.Site.API != nil {
				return nil
			}
			return u.Engine.ReachAPI(ctx, []*site.Host{n.Host})
		})
	})
}

// UpgradeAgents goes from batch to batch. Once more agents have failed than may, no further
// one is touched.
func (u *Upgrader) UpgradeAgents(ctx context.Context) error {
	work, err := u.Cluster.AgentRunner(ctx, func(ctx context.Context, n *k3s.Node) error {
		m := &move{upgrader: u, host: n.Host, phase: "agents", wanted: n}
		return m.do(ctx, func(ctx context.Context) error { return n.Run(ctx, "agents") })
	})
	if err != nil {
		return err
	}
	left := u.Site.Agents()
	for _, batch := range split(u.Site.Agents(), u.Upgrade.Canary, u.batchSize(u.Upgrade.Batches)) {
		left = left[len(batch):]
		_ = u.Engine.EachHost(ctx, batch, work) // the hosts keep their errors
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if failed := u.failedAgents(); failed > u.Upgrade.MaxFailures {
			return &run.BatchError{HostsError: u.Engine.Failures(), Untouched: hostNames(left)}
		}
		worked := slices.ContainsFunc(batch, func(h *site.Host) bool {
			return slices.ContainsFunc(h.Changes, func(c site.Change) bool { return c.Phase == "agents" })
		})
		if len(left) > 0 && worked && u.Upgrade.Pause > 0 {
			if err := u.pause(ctx); err != nil {
				return err
			}
		}
	}
	u.Upgrade.agentsDone = true
	return nil
}

// pause lets people look before the next batch.
func (u *Upgrader) pause(ctx context.Context) error {
	task := u.Site.Reporter.Task(fmt.Sprintf("pause for %v before the next agents", u.Upgrade.Pause), 0)
	err := u.Site.Meter.Wait(func() error {
		timer := time.NewTimer(u.Upgrade.Pause)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return nil
		}
	})
	task.Done(err)
	return err
}

func (u *Upgrader) failedAgents() int {
	failed := 0
	for _, h := range u.Site.Agents() {
		if h.Err != nil {
			failed++
		}
	}
	return failed
}

func hostNames(hosts []*site.Host) []string {
	names := make([]string, 0, len(hosts))
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	return names
}

// ToleratesFailures reports whether an upgrade goes on although hosts have failed.
func (u *Upgrader) ToleratesFailures() bool {
	return u.Upgrade.agentsDone && u.failedAgents() <= u.Upgrade.MaxFailures
}

// forgetPrevious removes what a node keeps to go back to.
func (u *Upgrader) forgetPrevious(ctx context.Context, h *site.Host) error {
	if err := u.Site.Connect(ctx, h); err != nil {
		return err
	}
	if err := u.Engine.Hold(ctx, h); err != nil {
		return err
	}
	return u.Engine.RunSteps(ctx, "confirm", &h.Subject, []run.Step{forgetStep(h)})
}

// forgetStep removes it.
func forgetStep(h *site.Host) run.Step {
	return run.Step{
		ID: "forget-previous", Title: "forget what k3s was before",
		Needed: func(ctx context.Context) (string, error) {
			kept, err := readKept(ctx, h)
			if err != nil || kept == nil {
				return "", err
			}
			return "k3s " + kept.K3s + " is kept to go back to", nil
		},
		Run: func(ctx context.Context) error {
			_, err := h.Root(ctx, "forget what k3s was before", "rm", "-rf", k3s.PreviousDir)
			return err
		},
	}
}

// Confirm removes what nodes keep to go back to.
func (u *Upgrader) Confirm(ctx context.Context) error {
	if err := u.Engine.ConnectServers(ctx, nil); err != nil {
		return err
	}
	r, _, err := run.ReadRecord(ctx, u.Site.API)
	if err != nil {
		return err
	}
	if newest := run.LastStanding(r); newest == nil || newest.State != release.Succeeded {
		return fmt.Errorf("%w: the newest release has not succeeded: boxlift history shows it", site.ErrRefused)
	}
	err = u.Engine.EachHost(ctx, u.Site.Hosts, u.forgetPrevious)
	return errors.Join(err, u.Engine.HostErrors())
}

// ErrNoBackup says that no backup leads back to a release.
var ErrNoBackup = fault.NewKind(fault.Input, "no backup of a cluster that ran its bundle is on record")

// WayBack is the backup that leads back to a release; "" when the cluster goes back in place.
func (u *Upgrader) WayBack(ctx context.Context, o Settings) (backupFile string, err error) {
	// What is half restored has no release that could be asked for.
	if file := recovery.UnfinishedRestore(u.Site.StatePath, u.Site.Bundle.Digest()); file != "" {
		return file, nil
	}
	var r *release.Record
	if err = u.Engine.ConnectServers(ctx, nil); err == nil {
		r, _, err = run.ReadRecord(ctx, u.Site.API)
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		u.Site.Reporter.Message(fmt.Sprintf("warning: the cluster cannot be asked, its record beside the state is "+
			"read: %v", err))
		if r, err = release.ReadFile(u.Record.RecordCopy()); err != nil {
			return "", err
		}
	}
	planner := &planner{upgrader: u, options: o, record: r}
	if err := planner.checkRollback(); err != nil {
		return "", err
	}
	moved := func(version string) bool { return version != "" && !gate.SameMinor(version, u.Site.K3s) }
	if u.Site.API != nil {
		nodes, err := u.Site.API.Nodes(ctx)
		if err != nil {
			return "", fmt.Errorf("%w: %w", site.ErrCluster, err)
		}
		if !slices.ContainsFunc(nodes, func(n kube.Node) bool { return n.Server && moved(n.Kubelet) }) &&
			!slices.ContainsFunc(u.Cluster.APIVersions(ctx), moved) {
			return "", nil
		}
	} else if !slices.ContainsFunc(r.Releases, func(one release.Release) bool {
		return one.Number > o.RollbackTo && one.State != release.Created && moved(one.Version(site.K3sComponent))
	}) {
		return "", nil
	}
	if file := r.BackupOf(o.RollbackTo); file != "" {
		return filepath.Join(recovery.BackupsDir(u.Site.StatePath, u.Site.Config.Cluster.Name), file), nil
	}
	return "", fmt.Errorf("%w: the servers have run another minor version of Kubernetes than release %d, and %w: "+
		"boxlift backup list shows what there is, and --backup takes one of them", site.ErrRefused, o.RollbackTo,
		ErrNoBackup)
}

// IsKept reports whether a server keeps what it was before it was to get this bundle.
func (u *Upgrader) IsKept(ctx context.Context) bool {
	var found atomic.Bool
	// what cannot be read says nothing
	_ = u.Engine.EachHost(ctx, u.Site.Servers(), func(ctx context.Context, h *site.Host) error {
		if err := u.Site.Connect(ctx, h); err != nil {
			return err
		}
		k, err := readKept(ctx, h)
		if err == nil && k != nil && k.Bundle == u.Site.Bundle.Digest() {
			found.Store(true)
		}
		return err
	})
	return found.Load()
}
