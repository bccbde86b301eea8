package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/backup"
	"github.com/liteboxd/boxlift/install/gate"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/release"
)

// An upgrade takes a running cluster to another bundle. Everything is shipped and imported
// everywhere while the old versions serve; then servers are started with the new k3s one by
// one, Cilium follows, then the agents in batches, and LiteBoxd comes last. Nothing is drained
// unless it is asked for: k3s is started anew under its pods.

// UpgradeOptions say what to upgrade to, and how. Options.Bundle is the new bundle.
type UpgradeOptions struct {
	Options
	UpgradeSettings
}

// UpgradeSettings say how an upgrade goes about its work.
type UpgradeSettings struct {
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
	return u.site.Config.Runtime.Parallelism
}

// upgrading is what an upgrade knows besides.
type upgrading struct {
	UpgradeSettings
	// underWay tells that the state, or a server, knows of this upgrade, which got as far as the
	// servers.
	underWay bool
	// agentsDone tells that the agents' phase is over, with no more failures than are allowed.
	agentsDone bool
}

// upgradeCommand is what state and record call an upgrade.
const upgradeCommand = "upgrade"

// verb is what state and record call the run.
func (o *UpgradeSettings) verb() string {
	if o.RollbackTo > 0 {
		return fmt.Sprintf("rollback --to %d", o.RollbackTo)
	}
	return upgradeCommand
}

// UpgradeOf tells whether a command in the state was an upgrade, and the release that it goes
// back to, 0 for none.
func UpgradeOf(command string) (rollbackTo int, ok bool) {
	if command == upgradeCommand {
		return 0, true
	}
	n, err := fmt.Sscanf(command, "rollback --to %d", &rollbackTo)
	return rollbackTo, n == 1 && err == nil
}

// Upgrade takes a cluster to another bundle, if the gates let it through and a backup has been
// made and proven. The summary is nil when nothing was begun. The error wraps [ErrRefused]
// when a gate refuses; nothing is changed then.
func Upgrade(ctx context.Context, o UpgradeOptions) (*Summary, error) {
	o.Command = o.verb()
	underWay := o.isUnderWay()
	plan, err := PlanUpgrade(ctx, o)
	if plan == nil && errors.Is(err, ErrCluster) && !underWay {
		underWay = o.isKept(ctx)
	}
	if err != nil && (plan != nil || !underWay || !errors.Is(err, ErrCluster)) {
		return nil, err
	}
	in, err := newInstaller(o.Options)
	if err != nil {
		return nil, err
	}
	defer in.engine.close()
	in.upgrader.upgrade = &upgrading{UpgradeSettings: o.UpgradeSettings, underWay: underWay}
	in.engine.upgrades, in.record.takesBack = true, o.RollbackTo
	in.engine.tolerates = in.upgrader.toleratesFailures
	in.cluster.splitsToken = true
	if plan == nil {
		in.site.warn("the cluster's API does not answer: whether the upgrade may go on was not judged again")
	}
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	err = in.recorded(func() error { return in.record.endRelease(ctx, in.engine.run(ctx, in.installation())) })
	if in.engine.phases == nil {
		return nil, err
	}
	return in.engine.summary(), err
}

// isUnderWay tells, by the state alone, whether this upgrade has begun and not ended. A cluster
// whose servers were hit in the middle of it cannot be asked.
func (o *UpgradeOptions) isUnderWay() bool {
	last, err := journal.Read(o.StatePath)
	return err == nil && upgradeBegan(last) && last.Command == o.Command && last.Bundle == o.Bundle.Digest().String()
}

// upgradePhases are those of an upgrade, in their order.
func (in *installation) upgradePhases() []phase {
	return []phase{
		{"preflight", in.surveyor.preflight},
		{"backup", in.upgrader.backUpFirst},
		{"ship", in.seeder.ship},
		{"registry", in.seeder.seed},
		// From here on, every node has all that it is going to run.
		{"import", in.upgrader.importImages},
		{"servers", in.upgrader.upgradeServers},
		{"network", in.network.network},
		{"agents", in.upgrader.upgradeAgents},
		{tokensPhase, in.cluster.rotateExposed},
		{"converge", in.members.converge},
		{"images", in.importer.images},
		{"retire", in.seeder.retire},
		{"liteboxd", in.deployer.liteboxd},
		{"verify", in.inspector.verify},
		{"finish", in.inspector.finish},
	}
}

// freshBackup is how old a backup may be from which an upgrade that has not changed anything that
// runs goes on.
const freshBackup = time.Hour

// backUpFirst makes a backup, unless this upgrade has made one already: what it would hold now
// is a cluster between two versions. Where that one is not at hand, another is made, for the
// case that all is lost; the way back stays the one on record.
func (u *Upgrader) backUpFirst(ctx context.Context) error {
	if err := u.engine.reachAPI(ctx, u.site.servers()); err != nil {
		if u.upgrade.underWay {
			u.site.warn("no backup was made: %v", err)
			// Nobody can say how far it got: servers stay as they are, rather than go back.
			u.cluster.crossing.minor, u.cluster.crossing.moved = true, true
			return nil
		}
		return err
	}
	if err := u.lookAtMinor(ctx); err != nil {
		return err
	}
	wayBackStays := false // something has moved: the way back is the backup on record
	return u.engine.runSteps(ctx, "backup", &u.engine.cluster, []step{{
		title: "back up the cluster",
		needed: func(ctx context.Context) (string, error) {
			r, _, err := readRecord(ctx, u.site.api)
			if err != nil {
				return "", err
			}
			newest := lastStanding(r)
			switch {
			case newest == nil:
				return "nothing is known of one", nil
			case newest.Bundle == u.site.Bundle.Digest() && newest.State == release.Succeeded &&
				newest.Config == u.site.Config.Fingerprint() && !u.cluster.sharesToken:
				return "", nil // there is nothing to upgrade
			case newest.Bundle == u.site.Bundle.Digest() && newest.Command == u.engine.Command && newest.Backup != "":
				found, err := u.inspector.findRunning(ctx)
				if err != nil {
					return "", err
				}
				begun := hasBegun(newest, r.Current(), found, u.cluster.crossing.moved)
				made, err := provenAgain(ctx, filepath.Join(BackupsDir(u.site.StatePath, u.site.Config.Cluster.Name), newest.Backup))
				if err == nil && (begun || time.Since(made) < freshBackup) {
					return "", nil
				}
				if err == nil {
					break // nothing has changed since, but people have worked
				}
				if errors.Is(err, fs.ErrNotExist) {
					u.site.warn("the backup that this upgrade began with, %s, is not here: keep it wherever it is, for it alone has the cluster from before", newest.Backup)
				} else {
					u.site.warn("the backup that this upgrade began with, %s, can no longer be used: look for a copy of it, for it alone has the cluster from before: %v", newest.Backup, err)
				}
				wayBackStays = begun
			}
			return "the upgrade is to have a way back", nil
		},
		run: func(ctx context.Context) error {
			report, err := u.recovery.createBackup(ctx, BackupSettings{Recipients: u.upgrade.BackupRecipients, Boxlift: u.record.Version})
			if err != nil {
				return err
			}
			u.site.clusterBackup = report.Path
			u.record.recorder.Lock()
			defer u.record.recorder.Unlock()
			return u.record.changeRecord(ctx, func(r *release.Record) error {
				if one := r.Find(u.record.recorder.number); one != nil && !wayBackStays {
					one.Backup = filepath.Base(report.Path)
				}
				return nil
			})
		},
	}})
}

// hasBegun tells whether an upgrade, which ended or was broken off, has changed what runs: then a
// backup made now is not one of the cluster from before. current is the release from before, nil
// when it is not known; moved tells that an API server has another minor version.
func hasBegun(upgrade, current *release.Release, found *running, moved bool) bool {
	return moved || upgrade.State == release.Running || current != nil && len(found.mismatches(current.Version)) > 0
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
	nodes, err := u.site.api.Nodes(ctx)
	if err != nil {
		return err
	}
	u.cluster.crossing.minor, u.cluster.crossing.moved = minorStep(nodes, u.cluster.apiVersions(ctx), u.site.k3s)
	return nil
}

// importImages brings the images of the bundle into the containerd of every node, while the
// old k3s runs. A node whose k3s is down imports them when it is started.
func (u *Upgrader) importImages(ctx context.Context) error {
	return u.engine.eachHost(ctx, u.site.hosts, func(ctx context.Context, h *host) error {
		state, err := machine.FindService(ctx, h.conn, unit(h.config.Role))
		if err != nil || state.Active != "active" {
			return err
		}
		return u.engine.runSteps(ctx, "import", &h.subject, []step{u.importer.imagesStep(h)})
	})
}

// upgradeServers goes from server to server.
func (u *Upgrader) upgradeServers(ctx context.Context) error {
	u.letEndpoints(ctx, "")
	return u.cluster.eachServer(ctx, func(ctx context.Context, n *k3sNode) error {
		m := &move{upgrader: u, host: n.host, phase: "servers", wanted: n}
		return m.do(ctx, func(ctx context.Context) error {
			if err := u.cluster.runServer(ctx, n); err != nil {
				return err
			}
			u.cluster.crossing.moved = u.cluster.crossing.minor
			if u.site.api != nil {
				return nil
			}
			return u.engine.reachAPI(ctx, []*host{n.host})
		})
	})
}

// upgradeAgents goes from batch to batch. Once more agents have failed than may, no further
// one is touched.
func (u *Upgrader) upgradeAgents(ctx context.Context) error {
	work, err := u.cluster.agentRunner(ctx, func(ctx context.Context, n *k3sNode) error {
		m := &move{upgrader: u, host: n.host, phase: "agents", wanted: n}
		return m.do(ctx, func(ctx context.Context) error { return n.run(ctx, "agents") })
	})
	if err != nil {
		return err
	}
	left := u.site.agents()
	for _, batch := range split(u.site.agents(), u.upgrade.Canary, u.batchSize(u.upgrade.Batches)) {
		left = left[len(batch):]
		_ = u.engine.eachHost(ctx, batch, work) // the hosts keep their errors
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if failed := u.failedAgents(); failed > u.upgrade.MaxFailures {
			return &batchError{HostsError: u.engine.failures(), Untouched: hostNames(left)}
		}
		worked := slices.ContainsFunc(batch, func(h *host) bool {
			return slices.ContainsFunc(h.changes, func(c Change) bool { return c.Phase == "agents" })
		})
		if len(left) > 0 && worked && u.upgrade.Pause > 0 {
			if err := u.pause(ctx); err != nil {
				return err
			}
		}
	}
	u.upgrade.agentsDone = true
	return nil
}

// pause lets people look before the next batch.
func (u *Upgrader) pause(ctx context.Context) error {
	task := u.site.Reporter.Task(fmt.Sprintf("pause for %v before the next agents", u.upgrade.Pause), 0)
	err := u.site.meter.wait(func() error {
		timer := time.NewTimer(u.upgrade.Pause)
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
	for _, h := range u.site.agents() {
		if h.err != nil {
			failed++
		}
	}
	return failed
}

func hostNames(hosts []*host) []string {
	names := make([]string, 0, len(hosts))
	for _, h := range hosts {
		names = append(names, h.name)
	}
	return names
}

// batchError says that an upgrade has stopped between agents.
type batchError struct {
	*HostsError
	Untouched []string
}

func (e *batchError) Error() string {
	text := e.HostsError.Error()
	if len(e.Untouched) > 0 {
		text += "\nnot touched because of that: " + strings.Join(e.Untouched, ", ")
	}
	return text
}

func (e *batchError) Unwrap() error { return e.HostsError }

func (*batchError) Hint() string {
	return "mend the cause, and boxlift resume goes on; or go back to the release before with boxlift rollback --to"
}

// toleratesFailures tells whether an upgrade goes on although hosts have failed.
func (u *Upgrader) toleratesFailures() bool {
	return u.upgrade.agentsDone && u.failedAgents() <= u.upgrade.MaxFailures
}

// forgetPrevious removes what a node keeps to go back to.
func (u *Upgrader) forgetPrevious(ctx context.Context, h *host) error {
	if err := u.site.connect(ctx, h); err != nil {
		return err
	}
	if err := u.engine.hold(ctx, h); err != nil {
		return err
	}
	return u.engine.runSteps(ctx, "confirm", &h.subject, []step{{
		title: "forget what k3s was before",
		needed: func(ctx context.Context) (string, error) {
			kept, err := readKept(ctx, h)
			if err != nil || kept == nil {
				return "", err
			}
			return "k3s " + kept.K3s + " is kept to go back to", nil
		},
		run: func(ctx context.Context) error {
			_, err := h.root(ctx, "forget what k3s was before", "rm", "-rf", previousDir)
			return err
		},
	}})
}

// Confirm takes an upgrade as done: what the nodes keep of the version before is removed. The
// error wraps [ErrRefused] while the newest release has not succeeded.
func Confirm(ctx context.Context, o Options) (*Summary, error) {
	o.Command = "upgrade confirm"
	return o.runPhase(ctx, "confirm", func(ctx context.Context, in *installation) error {
		return in.upgrader.confirm(ctx)
	})
}

// confirm removes what nodes keep to go back to.
func (u *Upgrader) confirm(ctx context.Context) error {
	if err := u.engine.connectServers(ctx, nil); err != nil {
		return err
	}
	r, _, err := readRecord(ctx, u.site.api)
	if err != nil {
		return err
	}
	if newest := lastStanding(r); newest == nil || newest.State != release.Succeeded {
		return fmt.Errorf("%w: the newest release has not succeeded: boxlift history shows it", ErrRefused)
	}
	err = u.engine.eachHost(ctx, u.site.hosts, u.forgetPrevious)
	return errors.Join(err, u.engine.hostErrors())
}

// ErrNoBackup says that no backup leads back to a release.
var ErrNoBackup = errors.New("no backup of a cluster that ran its bundle is on record")

// WayBack tells how a cluster gets back to a release: in place when backup is "", or else by
// restoring this backup, with the bundle of that release. Servers that have run a newer minor
// version of Kubernetes have written what the older one cannot read. When the cluster cannot
// be asked, its record's copy beside the state is. The error wraps [ErrRefused] when there is
// no way back, and [ErrNoBackup] besides when it would take a backup that nobody knows of.
func WayBack(ctx context.Context, o UpgradeOptions) (backupFile string, err error) {
	in, err := newInstaller(o.Options)
	if err != nil {
		return "", err
	}
	defer in.engine.close()
	in.engine.mode = plan
	return in.upgrader.wayBack(ctx, o.UpgradeSettings)
}

// wayBack is the backup that leads back to a release; "" when the cluster goes back in place.
func (u *Upgrader) wayBack(ctx context.Context, o UpgradeSettings) (backupFile string, err error) {
	// What is half restored has no release that could be asked for.
	if file := unfinishedRestore(u.site.StatePath, u.site.Bundle.Digest()); file != "" {
		return file, nil
	}
	var r *release.Record
	if err = u.engine.connectServers(ctx, nil); err == nil {
		r, _, err = readRecord(ctx, u.site.api)
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		u.site.Reporter.Message(fmt.Sprintf("warning: the cluster cannot be asked, its record beside the state is read: %v", err))
		if r, err = release.ReadFile(u.record.recordCopy()); err != nil {
			return "", err
		}
	}
	planner := &upgradePlanner{upgrader: u, options: o, record: r}
	if err := planner.checkRollback(); err != nil {
		return "", err
	}
	moved := func(version string) bool { return version != "" && !gate.SameMinor(version, u.site.k3s) }
	if u.site.api != nil {
		nodes, err := u.site.api.Nodes(ctx)
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrCluster, err)
		}
		if !slices.ContainsFunc(nodes, func(n kube.Node) bool { return n.Server && moved(n.Kubelet) }) && !slices.ContainsFunc(u.cluster.apiVersions(ctx), moved) {
			return "", nil
		}
	} else if !slices.ContainsFunc(r.Releases, func(one release.Release) bool {
		return one.Number > o.RollbackTo && one.State != release.Created && moved(one.Version(k3sComponent))
	}) {
		return "", nil
	}
	if file := r.BackupOf(o.RollbackTo); file != "" {
		return filepath.Join(BackupsDir(u.site.StatePath, u.site.Config.Cluster.Name), file), nil
	}
	return "", fmt.Errorf("%w: the servers have run another minor version of Kubernetes than release %d, and %w: boxlift backup list shows what there is, and --backup takes one of them", ErrRefused, o.RollbackTo, ErrNoBackup)
}
