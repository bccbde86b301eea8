// Package install has the verbs: what boxlift does to a site, with a bundle and an install.yaml.
//
// Each verb makes the rooms ([site], [run], [seed], [k3s], ...) for what is asked for, and goes through phases: install
// and upgrade through a list of them, others through one of their own. A phase turns what is wanted into steps, and the
// engine of package run asks each step whether it is needed, carries it out, and keeps account of it.
//
// Nothing on a host is changed before the bundle has been verified by the caller and
// every host has passed preflight, except that preflight puts boxlift's own helper there,
// which gathers the facts. Errors of hosts are gathered: one host's failure
// does not keep the others from being worked on, and all are reported ([site.ErrHosts]).
//
// Secrets reach hosts through the standard input of commands and files that only root
// can read; they never appear in arguments, messages, errors or the state.
package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/install/anchors"
	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/front"
	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/names"
	"github.com/liteboxd/boxlift/install/nameserver"
	"github.com/liteboxd/boxlift/install/network"
	"github.com/liteboxd/boxlift/install/packages"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/prepare"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/relocation"
	"github.com/liteboxd/boxlift/install/renewal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/schedule"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/sitekey"
	"github.com/liteboxd/boxlift/install/survey"
	"github.com/liteboxd/boxlift/install/timekeeping"
	"github.com/liteboxd/boxlift/install/upgrade"
	"github.com/liteboxd/boxlift/install/workload"
	"github.com/liteboxd/boxlift/internal/progress"
)

// Options say what to install where. Config and StatePath are required, and Bundle but
// for removing nodes. The caller has verified the bundle: its signature, or that the user
// does without, and its contents.
type Options struct {
	Config *config.Config
	// ConfigPath is where Config was read from; it is noted in the state.
	ConfigPath string
	Bundle     *bundle.Reader
	// Demand is what the bundle's signatures were asked for, and Approval what came of it; nil where the user does
	// without. Without a bundle, its policy is the trust file that the user names.
	Demand   approval.Demand
	Approval *approval.Approval
	// Version is that of this boxlift, for the cluster's record.
	Version string
	// StatePath is where state.json lies. A dry run does not touch it.
	StatePath string
	// Only names the agents to work on, by what install.yaml calls them; the servers are
	// always among the hosts. Nil means all. Then nothing is removed.
	Only []string
	// Command is the name of the command in the state; "" means install.
	Command string
	// Flags are those of the command that stand for what these options say, for a run that
	// goes on. They are noted in the state.
	Flags []string
	// DryRun finds out what would be done and changes nothing, neither hosts nor state.
	DryRun bool
	// Resume goes on with the run in the state, and refuses when it was another one.
	Resume bool
	// Kubeconfig is where to write access to the cluster; "" means nowhere.
	// MergeKubeconfig adds it to the file that is there.
	Kubeconfig      string
	MergeKubeconfig bool
	// Scope says which part of the platform is worked on.
	Scope run.Scope
	// NoRollback leaves a LiteBoxd that could not be rolled out as it is.
	NoRollback bool
	// ForceAfter ends connections of users that hold up a change of LiteBoxd for longer; 0
	// lets them have the time that LiteBoxd gives them.
	ForceAfter time.Duration
	// AcceptOlderBundle lets the bundle be older than one that the cluster has had.
	AcceptOlderBundle bool
	// GiveUpDataOn names hosts, as install.yaml or the cluster has them: when they leave, they take data with
	// them that is on no other host.
	GiveUpDataOn []string
	// Restore is the backup that the cluster is brought back from; nil for none.
	Restore *recovery.Restore
	// backup is what LiteBoxd's database alone is put back from; nil for nothing.
	backup *relocation.Source
	// Dial reaches hosts in another way than install.yaml says; nil is that way.
	Dial site.Dial
	// Reporter is told of the work; nil discards it.
	Reporter progress.Reporter
	// Log is told of every connection and command, at level debug; nil discards it.
	Log *slog.Logger
}

// installation has all rooms, for the verbs.
type installation struct {
	site       *site.Site
	engine     *run.Engine
	record     *run.Record
	seeder     *seed.Seeder
	preparer   *prepare.Preparer
	namer      *names.Namer
	nameserver *nameserver.Keeper
	cluster    *k3s.Cluster
	importer   *images.Importer
	network    *network.Network
	deployer   *liteboxd.Deployer
	workloads  *workload.Room
	renewer    *certificates.Renewer
	anchors    *anchors.Keeper
	renewal    *renewal.Keeper
	members    *members.Members
	siteKey    *sitekey.Keeper
	front      *front.Keeper
	packages   *packages.Room
	timekeeper *timekeeping.Keeper
	schedule   *schedule.Scheduler
	recovery   *recovery.Recovery
	surveyor   *survey.Surveyor
	inspector  *inspect.Inspector
	upgrader   *upgrade.Upgrader
	relocation *relocation.Relocation
	// backup is what LiteBoxd's database alone is put back from; nil for nothing.
	backup *relocation.Source
}

// newRooms makes the rooms for what is asked for. Nothing is looked at.
func newRooms(o Options) *installation {
	in := &installation{
		backup: o.backup,
		site: &site.Site{Config: o.Config, Bundle: o.Bundle, StatePath: o.StatePath, Reporter: o.Reporter, Log: o.Log,
			Misfit: site.ErrConfig},
	}
	site := in.site
	in.engine = &run.Engine{
		Site: site, ConfigPath: o.ConfigPath, Only: o.Only, Command: o.Command, Flags: o.Flags, DryRun: o.DryRun,
		Resume: o.Resume,
		Scope:  o.Scope, Holds: run.NewHolds(), Restores: o.Restore != nil,
	}
	engine := in.engine
	in.record = &run.Record{Site: site, Engine: engine, AcceptOlderBundle: o.AcceptOlderBundle, Version: o.Version,
		Demand: o.Demand, Approval: o.Approval}
	engine.Record = in.record
	in.seeder = &seed.Seeder{Site: site, Engine: engine}
	in.cluster = &k3s.Cluster{Site: site, Engine: engine, Record: in.record, Seeder: in.seeder}
	in.preparer = &prepare.Preparer{Site: site, Engine: engine}
	in.namer = &names.Namer{Site: site, Engine: engine, Cluster: in.cluster}
	in.nameserver = &nameserver.Keeper{Site: site, Engine: engine, Namer: in.namer}
	in.importer = &images.Importer{Site: site, Engine: engine, Seeder: in.seeder}
	in.network = &network.Network{Site: site, Engine: engine, Seeder: in.seeder}
	in.deployer = &liteboxd.Deployer{Site: site, Engine: engine, Cluster: in.cluster, NoRollback: o.NoRollback,
		ForceAfter: o.ForceAfter}
	in.workloads = &workload.Room{Site: site, Engine: engine, Cluster: in.cluster, NoRollback: o.NoRollback}
	in.renewer = &certificates.Renewer{Site: site, Engine: engine, Cluster: in.cluster, Seeder: in.seeder}
	in.packages = &packages.Room{Site: site, Engine: engine}
	in.timekeeper = &timekeeping.Keeper{Site: site, Engine: engine}
	in.anchors = &anchors.Keeper{Site: site, Engine: engine}
	in.renewal = &renewal.Keeper{Site: site, Engine: engine}
	in.front = &front.Keeper{Site: site, Engine: engine}
	in.members = &members.Members{Site: site, Engine: engine, Cluster: in.cluster, Deployer: in.deployer,
		Preparer: in.preparer, Namer: in.namer, Timekeeper: in.timekeeper, Packages: in.packages, Renewal: in.renewal,
		Front: in.front, GiveUpDataOn: o.GiveUpDataOn}
	in.schedule = &schedule.Scheduler{Site: site, Engine: engine}
	in.siteKey = &sitekey.Keeper{Site: site, Engine: engine}
	in.recovery = &recovery.Recovery{Site: site, Engine: engine, Cluster: in.cluster, Deployer: in.deployer,
		Restore: o.Restore}
	in.relocation = &relocation.Relocation{Site: site, Engine: engine, Deployer: in.deployer, Members: in.members}
	in.surveyor = &survey.Surveyor{
		Site: site, Engine: engine, Record: in.record, Seeder: in.seeder, Cluster: in.cluster, Network: in.network,
		Deployer: in.deployer, Workloads: in.workloads,
		Recovery: in.recovery, Packages: in.packages, Front: in.front,
	}
	surveyor := in.surveyor
	in.preparer.Judged = func() (preflight.Need, []preflight.Subject) { return surveyor.Needs(), surveyor.Subjects() }
	in.inspector = &inspect.Inspector{
		Site: site, Engine: engine, Seeder: in.seeder, Cluster: in.cluster, Importer: in.importer,
		Deployer: in.deployer, Workloads: in.workloads, Renewer: in.renewer, Namer: in.namer,
		Nameserver: in.nameserver, Front: in.front,
		Kubeconfig: o.Kubeconfig, MergeKubeconfig: o.MergeKubeconfig, Trust: o.Demand.Policy,
	}
	in.upgrader = &upgrade.Upgrader{
		Site: site, Engine: engine, Record: in.record, Seeder: in.seeder, Cluster: in.cluster, Importer: in.importer,
		Deployer: in.deployer, Workloads: in.workloads,
		Renewer: in.renewer, Members: in.members, Recovery: in.recovery, Surveyor: in.surveyor,
		Inspector: in.inspector,
	}
	return in
}

// Install brings all hosts to the wanted state. The summary is there even when it
// fails.
func Install(ctx context.Context, o Options) (*run.Summary, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	in.deployer.WarnOfManifests()
	in.workloads.Warn()
	if in.engine.Verb = o.Scope.Verb(); o.Only != nil {
		in.engine.Verb = journal.AddNodes
	}
	phases := in.installPhases()
	switch {
	case o.Restore != nil:
		phases = in.restorePhases()
	case o.Scope == run.OnlyLiteBoxd:
		phases = in.liteboxdPhases()
	}
	return in.release(ctx, phases, o.DryRun)
}

// release goes through the phases of a verb that makes a release, or says what they would do. The summary is nil when
// nothing was begun.
func (in *installation) release(ctx context.Context, phases []run.Phase, dryRun bool) (*run.Summary, error) {
	if dryRun {
		if err := in.engine.Recall(); err != nil {
			return nil, err
		}
		err := in.engine.Look(ctx, phases)
		return in.engine.Summary(), err
	}
	err := in.recorded(phases, func() error { return in.record.EndRelease(ctx, in.engine.Apply(ctx, phases)) })
	if in.engine.Phases == nil {
		return nil, err
	}
	return in.engine.Summary(), err
}

// check finds out, before any host is asked, whether bundle and install.yaml go together.
func (in *installation) check(ctx context.Context) (err error) {
	if err := in.seeder.CheckDelta(); err != nil {
		return err
	}
	if err := in.network.CheckChart(ctx); err != nil {
		return err
	}
	if err := in.seeder.CheckSeeding(); err != nil {
		return err
	}
	if err := in.recovery.CheckRestore(); err != nil {
		return err
	}
	switch {
	case in.engine.Scope == run.WithoutLiteBoxd, in.engine.Only != nil: // other hosts would not get the images
		return nil
	case in.site.Config.LiteBoxd == nil && in.engine.Scope == run.OnlyLiteBoxd:
		return errNoLiteBoxd
	}
	if in.engine.Scope != run.OnlyLiteBoxd {
		if err := in.workloads.Render(ctx); err != nil {
			return err
		}
	}
	if in.site.Config.LiteBoxd == nil {
		return nil
	}
	in.deployer.Deployment, err = in.deployer.RenderLiteBoxd()
	return err
}

// recorded runs work with the state open: nobody else can work with it meanwhile. The state has the phases as the plan.
func (in *installation) recorded(plan []run.Phase, work func() error) (err error) {
	if in.engine.Journal, err = journal.Open(in.site.StatePath); err != nil {
		return err
	}
	defer in.engine.Journal.Close() //nolint:errcheck // it only holds a lock
	beside := in.engine.IsBeside(in.engine.Journal.State())
	if err := in.begin(plan); err != nil {
		return err
	}
	if err = work(); beside {
		return err
	}
	if err == nil {
		took := map[string]float64{}
		for _, p := range in.engine.Phases {
			took[p.Phase] = p.Seconds
		}
		in.engine.Journal.Took(len(in.site.Hosts), took)
	}
	return errors.Join(err, in.engine.Journal.End(err))
}

// begin notes what the run works on, or compares it with the run that is to be gone on
// with.
func (in *installation) begin(plan []run.Phase) error {
	begun := journal.Run{
		Command: in.engine.Command, Verb: in.engine.Verb, RollbackTo: in.record.TakesBack,
		Cluster: in.site.Config.Cluster.Name, Config: in.site.Config.Fingerprint(), ConfigFile: in.engine.ConfigPath,
		Flags: in.engine.Flags,
	}
	if in.backup != nil {
		begun.BackupFile, begun.Config = in.backup.Path, restoringLiteBoxd(in.site.Config, in.backup)
	}
	if in.deployer.Deployment != nil {
		// What the site's own folder says is part of what is asked for.
		sum := sha256.Sum256([]byte(begun.Config + "\n" + string(in.deployer.Deployment.Rendered.YAML())))
		begun.Config = hex.EncodeToString(sum[:])
	}
	if text := in.workloads.Fingerprint(); text != "" {
		sum := sha256.Sum256([]byte(begun.Config + "\n" + text))
		begun.Config = hex.EncodeToString(sum[:])
	}
	if begun.Command == "" {
		begun.Command = in.engine.Scope.Command()
	}
	for _, p := range plan {
		planned := journal.Planned{Phase: p.Name}
		for _, h := range in.site.Hosts {
			if in.worksOn(p.Name, h.Config.Role) {
				planned.Hosts = append(planned.Hosts, h.Name)
			}
		}
		begun.Plan = append(begun.Plan, planned)
	}
	if in.site.Bundle != nil {
		begun.Bundle, begun.BundleFile = in.site.Bundle.Digest().String(), in.site.Bundle.Path()
	}
	last := in.engine.Journal.State()
	if !in.engine.Resume {
		in.engine.Took = last.TookBefore(begun, len(in.site.Hosts))
	}
	if in.engine.Restores {
		begun.Verb = journal.Restore
		return in.recovery.BeginRestore(begun, last)
	}
	if run.RestoreBegan(last) {
		return fmt.Errorf("%w: boxlift %s has begun to restore a backup on hosts and did not end: go on with %s",
			site.ErrRefused, last.Command, run.RestoreCommand(last))
	}
	in.engine.Left = run.LeftBehind(last)
	begun.Left = in.engine.Left
	for _, left := range in.engine.Left {
		in.site.Warn("the last run deleted the node of %s and did not get to uninstalling k3s from it: boxlift node "+
			"remove --hosts %s does that, and with runtime.removeAbsentAgents so does boxlift install; for a host "+
			"that is not in install.yaml it needs cluster.absentAgentLogin", left.Host, left.Node)
	}
	if in.engine.IsBeside(last) {
		return nil
	}
	if in.engine.MustWait(last) {
		return &run.UnderWayError{Last: last, State: in.site.StatePath}
	}
	if !in.engine.Resume {
		return in.engine.Journal.Begin(begun)
	}
	switch {
	case last.Version == 0:
		return fmt.Errorf("%w: %s holds no run", site.ErrNothingToResume, in.site.StatePath)
	case !last.Unfinished():
		return fmt.Errorf("%w: the last run (%s, ended %s) was finished", site.ErrNothingToResume, last.Command,
			last.Ended.Format(time.RFC3339))
	case last.Verb != begun.Verb || last.RollbackTo != begun.RollbackTo:
		return fmt.Errorf("%w: the last run was boxlift %s: run that command again", site.ErrNothingToResume,
			last.Command)
	case last.Bundle != begun.Bundle:
		return fmt.Errorf("%w: the run began with the bundle %s (%s), this is %s: give that bundle, or begin anew "+
			"with boxlift %s", site.ErrChanged, site.Short(last.Bundle), last.BundleFile, site.Short(begun.Bundle),
			begun.Command)
	case last.Config != begun.Config:
		return fmt.Errorf("%w: %s asks for another cluster than when the run began at %s: take the change back, or "+
			"begin anew with boxlift %s", site.ErrChanged, in.engine.ConfigPath, last.Started.Format(time.RFC3339),
			begun.Command)
	}
	return in.engine.Journal.Resume(begun.Flags)
}

func newInstaller(o Options) (*installation, error) {
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	in := newRooms(o)
	if o.Bundle != nil {
		if err := run.CheckAudience(o.Bundle.Validity(), o.Config.Cluster.Name); err != nil {
			return nil, err
		}
		var err error
		if in.site.Contents, err = o.Bundle.Contents(); err != nil {
			return nil, err
		}
		if err := in.checkConfig(); err != nil {
			return nil, err
		}
		in.packages.Use(o.Bundle, in.site.Contents)
	}
	in.site.Conns = site.NewConnections(o.Config, o.Log, o.Dial)
	left := slices.Clone(o.Only)
	for _, h := range o.Config.Hosts() {
		named := func(name string) bool { return site.IsCalled(h, name) }
		chosen := slices.ContainsFunc(o.Only, named)
		left = slices.DeleteFunc(left, named)
		if o.Only == nil || chosen || h.Role == config.Server {
			in.site.Hosts = append(in.site.Hosts, &site.Host{Config: h, Subject: site.Subject{Name: site.HostName(h)}})
		}
	}
	in.nameserver.NeedPackages(in.packages.Need)
	for _, h := range in.front.Hosts() {
		in.packages.Need(h, front.Package)
	}
	if o.Config.Time != nil {
		for _, h := range in.site.Hosts {
			in.packages.Need(h, timekeeping.Package)
		}
	}
	if len(left) > 0 {
		return nil, fmt.Errorf("%w: install.yaml has no host %s: add it there first", site.ErrRefused,
			strings.Join(left, ", "))
	}
	return in, nil
}

// checkConfig compares what install.yaml asks for with what can be had. Versions are the
// bundle's to decide: another one in the file is a mistake.
func (in *installation) checkConfig() error {
	var errs []error
	differs := func(what, wanted, has string) {
		if wanted != "" && strings.TrimPrefix(wanted, "v") != strings.TrimPrefix(has, "v") {
			errs = append(errs, fmt.Errorf("%w: install.yaml asks for %s %s, the bundle carries %s: change "+
				"install.yaml, or build a bundle with that version", site.ErrConfig, what, wanted, has))
		}
	}
	for _, component := range []string{site.K3sComponent, site.CiliumComponent} {
		if in.site.Version(component) == "" {
			errs = append(errs, fmt.Errorf("%w: the bundle carries no component %q", site.ErrConfig, component))
		}
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	in.site.K3s = in.site.Version(site.K3sComponent)
	differs("k3s", in.site.Config.K3sVersion(), in.site.K3s)
	differs("Cilium", in.site.Config.Network.Cilium.Version, in.site.Version(site.CiliumComponent))
	return errors.Join(errs...)
}
