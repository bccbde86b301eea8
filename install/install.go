// Package install brings hosts to what a bundle and an install.yaml ask for.
//
// The work is a list of phases, each in a file of its own: preflight, ship, registry,
// servers, agents, network, converge, images, retire, liteboxd, verify, finish. An upgrade has
// some of its own, and goes from host to host. A phase turns what is wanted into steps. A step
// knows how to find out whether it is needed, and why, before it does anything; that is what
// makes a second run change nothing, a dry run possible, and an interrupted run easy to go on
// with. Steps of one host run in their order, hosts run in parallel.
//
// Nothing on a host is changed before the bundle has been verified by the caller and
// every host has passed preflight, except that preflight puts boxlift's own helper there,
// which gathers the facts. Errors of hosts are gathered: one host's failure
// does not keep the others from being worked on, and all are reported ([ErrHosts]).
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
	"sync"
	"time"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/registry/push"
)

var (
	// ErrHosts is wrapped by errors that say that at least one host failed.
	ErrHosts = errors.New("failed on some hosts")
	// ErrCluster is wrapped by errors of the cluster as a whole.
	ErrCluster = errors.New("the cluster cannot be brought to what was asked for")
	// ErrConfig is wrapped by errors that say that install.yaml and the bundle do not go
	// together.
	ErrConfig = errors.New("install.yaml does not fit the bundle")
	// ErrLock is wrapped by errors that say that a lock lacks images.
	ErrLock = errors.New("the lock is incomplete")
	// ErrRefused is wrapped by errors about what boxlift does not do. Nothing was changed.
	ErrRefused = errors.New("refused")
	// ErrDifferent says that a cluster is not what it is to be.
	ErrDifferent = errors.New("the cluster differs from what was asked for")
	// ErrNothingToResume says that there is no run to go on with.
	ErrNothingToResume = errors.New("nothing to go on with")
	// ErrChanged says that the run to go on with was one of something else.
	ErrChanged = errors.New("bundle or configuration changed since the run was broken off")
)

// Options say what to install where. Config and StatePath are required, and Bundle but
// for removing nodes. The caller has verified the bundle: its signature, or that the user
// does without, and its contents.
type Options struct {
	Config *config.Config
	// ConfigPath is where Config was read from; it is noted in the state.
	ConfigPath string
	Bundle     *bundle.Reader
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
	Scope Scope
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
	Restore *Restore
	// Reporter is told of the work; nil discards it.
	Reporter progress.Reporter
	// Log is told of every connection and command, at level debug; nil discards it.
	Log *slog.Logger
}

// Scope is a part of the platform.
type Scope int

// The scopes.
const (
	Everything      Scope = iota
	OnlyLiteBoxd          // on a cluster that is there; nothing else is changed
	WithoutLiteBoxd       // the cluster alone
)

// mode is what a run is for.
type mode int

const (
	apply   mode = iota // bring everything to the wanted state
	plan                // say what that would take
	inspect             // say what differs, also where nothing can be done about it
)

// Site is what a verb works on: what is asked for, and the hosts and the cluster that it is asked of.
type Site struct {
	Config    *config.Config
	Bundle    *bundle.Reader // nil for verbs that need none
	StatePath string
	Reporter  progress.Reporter
	Log       *slog.Logger

	contents *bundle.Contents
	k3s      string // the version in the bundle
	hosts    []*host
	conns    *connections
	api      *kube.Cluster // nil until the servers are up
	// apiServer is the server that the API is reached through.
	apiServer *host
	meter     meter
	// misfit is what errors about images that nobody carries wrap.
	misfit error

	Outcome
}

// Outcome is what a run has to tell besides its steps.
type Outcome struct {
	warned   sync.Mutex // for warnings and ended: hosts are worked on at the same time
	warnings []string
	// differences are those of the cluster that no step stands for.
	differences []string
	overview    *Overview
	// ended are the sandboxes that ended by themselves while an upgrade started k3s anew.
	ended  []string
	backup string // folder of the backup of LiteBoxd that the run has made
	// clusterBackup is the file with the backup of the cluster that the run has made.
	clusterBackup string
	login         *Login // of LiteBoxd's first user, if it is to be shown
}

// Engine goes through phases and carries out their steps.
type Engine struct {
	site   *Site
	record *Record

	ConfigPath     string
	Only           []string
	Command        string
	Flags          []string
	DryRun, Resume bool
	Scope          Scope

	mode    mode
	cluster subject
	journal *journal.Journal
	holds   *holds
	phases  []PhaseTime
	// left are the hosts that the last run has left behind.
	left []journal.Left
	// upgrades tells that the cluster goes to another bundle, restores that a backup is restored.
	upgrades, restores bool
	// tolerates tells whether phases go on although agents have failed; nil is yes.
	tolerates func() bool
}

// Record is a run's part in the cluster's record of releases.
type Record struct {
	site   *Site
	engine *Engine

	AcceptOlderBundle bool
	Version           string // of this boxlift

	recorder recorder
	// takesBack is the release that is gone back to, 0 for none.
	takesBack int
}

// Seeder brings a bundle's contents to where nodes take them from.
type Seeder struct {
	site   *Site
	engine *Engine

	// registryCA is the authority of boxlift's registry, and pushed what the site's own
	// registry has of the bundle, once that is known.
	registryCA openedAuthority
	pushed     *push.Result
}

// Cluster is k3s on all hosts.
type Cluster struct {
	site   *Site
	engine *Engine
	record *Record
	seeder *Seeder

	crossing crossing
	// restoration is what a restore gives to k3s, nil for none.
	restoration *restoration
	// agentsPassword is what agents join with, once that is known.
	agentsPassword agentsPassword
	// sharesToken tells that agents have the servers' token, splitsToken that they are to get one of their own.
	sharesToken, splitsToken bool
}

// Importer makes the images on hosts complete, and removes old ones.
type Importer struct {
	site   *Site
	engine *Engine
	seeder *Seeder
}

// Network brings Cilium to what is asked for.
type Network struct {
	site   *Site
	engine *Engine
	seeder *Seeder

	// releaseImages are the images that charts ask for, by the digest of chart and values.
	releaseImages map[[sha256.Size]byte][]string
}

// Deployer brings LiteBoxd to what is asked for.
type Deployer struct {
	site    *Site
	engine  *Engine
	cluster *Cluster

	// NoRollback leaves a LiteBoxd that could not be rolled out as it is.
	NoRollback bool
	// ForceAfter is how long connections of users may hold up a change, 0 for as long as LiteBoxd gives them.
	ForceAfter time.Duration
	deployment *Deployment // LiteBoxd as it is to be; nil when it is not worked on
}

// Renewer reads the cluster's certificates and renews them.
type Renewer struct {
	site    *Site
	engine  *Engine
	cluster *Cluster
	seeder  *Seeder
}

// Members are the nodes of the cluster: which of them stay, and which leave.
type Members struct {
	site     *Site
	engine   *Engine
	cluster  *Cluster
	deployer *Deployer

	GiveUpDataOn []string
}

// Recovery makes backups and restores them.
type Recovery struct {
	site     *Site
	engine   *Engine
	cluster  *Cluster
	deployer *Deployer

	Restore   *Restore
	restoring *restoring // nil unless a backup is restored
}

// Surveyor looks at all hosts before anything is changed, and judges them.
type Surveyor struct {
	site     *Site
	engine   *Engine
	record   *Record
	seeder   *Seeder
	cluster  *Cluster
	network  *Network
	deployer *Deployer
	recovery *Recovery

	findings []preflight.Finding
}

// Inspector proves that the platform runs, and tells how it is.
type Inspector struct {
	site     *Site
	engine   *Engine
	seeder   *Seeder
	cluster  *Cluster
	importer *Importer
	deployer *Deployer
	renewer  *Renewer

	Kubeconfig      string
	MergeKubeconfig bool
}

// Upgrader takes a running cluster to another bundle.
type Upgrader struct {
	site      *Site
	engine    *Engine
	record    *Record
	seeder    *Seeder
	cluster   *Cluster
	importer  *Importer
	deployer  *Deployer
	renewer   *Renewer
	members   *Members
	recovery  *Recovery
	surveyor  *Surveyor
	inspector *Inspector

	upgrade *upgrading // nil unless the cluster goes to another bundle
}

// installation has all rooms, for the verbs.
type installation struct {
	site      *Site
	engine    *Engine
	record    *Record
	seeder    *Seeder
	cluster   *Cluster
	importer  *Importer
	network   *Network
	deployer  *Deployer
	renewer   *Renewer
	members   *Members
	recovery  *Recovery
	surveyor  *Surveyor
	inspector *Inspector
	upgrader  *Upgrader
}

// newRooms makes the rooms for what is asked for. Nothing is looked at.
func newRooms(o Options) *installation {
	in := &installation{
		site: &Site{Config: o.Config, Bundle: o.Bundle, StatePath: o.StatePath, Reporter: o.Reporter, Log: o.Log, misfit: ErrConfig},
	}
	site := in.site
	in.engine = &Engine{
		site: site, ConfigPath: o.ConfigPath, Only: o.Only, Command: o.Command, Flags: o.Flags, DryRun: o.DryRun, Resume: o.Resume,
		Scope: o.Scope, holds: newHolds(), restores: o.Restore != nil,
	}
	engine := in.engine
	in.record = &Record{site: site, engine: engine, AcceptOlderBundle: o.AcceptOlderBundle, Version: o.Version}
	engine.record = in.record
	in.seeder = &Seeder{site: site, engine: engine}
	in.cluster = &Cluster{site: site, engine: engine, record: in.record, seeder: in.seeder}
	in.importer = &Importer{site: site, engine: engine, seeder: in.seeder}
	in.network = &Network{site: site, engine: engine, seeder: in.seeder}
	in.deployer = &Deployer{site: site, engine: engine, cluster: in.cluster, NoRollback: o.NoRollback, ForceAfter: o.ForceAfter}
	in.renewer = &Renewer{site: site, engine: engine, cluster: in.cluster, seeder: in.seeder}
	in.members = &Members{site: site, engine: engine, cluster: in.cluster, deployer: in.deployer, GiveUpDataOn: o.GiveUpDataOn}
	in.recovery = &Recovery{site: site, engine: engine, cluster: in.cluster, deployer: in.deployer, Restore: o.Restore}
	in.surveyor = &Surveyor{
		site: site, engine: engine, record: in.record, seeder: in.seeder, cluster: in.cluster, network: in.network, deployer: in.deployer,
		recovery: in.recovery,
	}
	in.inspector = &Inspector{
		site: site, engine: engine, seeder: in.seeder, cluster: in.cluster, importer: in.importer, deployer: in.deployer, renewer: in.renewer,
		Kubeconfig: o.Kubeconfig, MergeKubeconfig: o.MergeKubeconfig,
	}
	in.upgrader = &Upgrader{
		site: site, engine: engine, record: in.record, seeder: in.seeder, cluster: in.cluster, importer: in.importer, deployer: in.deployer,
		renewer: in.renewer, members: in.members, recovery: in.recovery, surveyor: in.surveyor, inspector: in.inspector,
	}
	return in
}

// changing tells whether the run carries out its steps.
func (en *Engine) changing() bool { return en.mode == apply }

func (s *Site) servers() []*host { return s.hosts[:len(s.Config.Cluster.Servers)] }
func (s *Site) agents() []*host  { return s.hosts[len(s.Config.Cluster.Servers):] }

// Install brings all hosts to the wanted state. The summary is there even when it
// fails.
func Install(ctx context.Context, o Options) (*Summary, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.close()
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	if o.DryRun {
		in.engine.mode = plan
		if err := in.engine.recall(); err != nil {
			return nil, err
		}
		err := in.engine.run(ctx, in.installation())
		return in.engine.summary(), err
	}
	err = in.recorded(func() error { return in.record.endRelease(ctx, in.engine.run(ctx, in.installation())) })
	if in.engine.phases == nil {
		return nil, err
	}
	return in.engine.summary(), err
}

// check finds out, before any host is asked, whether bundle and install.yaml go together.
func (in *installation) check(ctx context.Context) (err error) {
	if err := in.seeder.checkDelta(); err != nil {
		return err
	}
	if err := in.network.checkChart(ctx); err != nil {
		return err
	}
	if err := in.seeder.checkSeeding(); err != nil {
		return err
	}
	if err := in.recovery.checkRestore(); err != nil {
		return err
	}
	switch {
	case in.engine.Scope == WithoutLiteBoxd, in.engine.Only != nil: // other hosts would not get the images
		return nil
	case in.site.Config.LiteBoxd == nil && in.engine.Scope == OnlyLiteBoxd:
		return errNoLiteBoxd
	case in.site.Config.LiteBoxd == nil:
		return nil
	}
	in.deployer.deployment, err = in.deployer.renderLiteBoxd()
	return err
}

// recorded runs work with the state open: nobody else can work with it meanwhile.
func (in *installation) recorded(work func() error) (err error) {
	if in.engine.journal, err = journal.Open(in.site.StatePath); err != nil {
		return err
	}
	defer in.engine.journal.Close() //nolint:errcheck // it only holds a lock
	beside := in.engine.isBeside(in.engine.journal.State())
	if err := in.begin(); err != nil {
		return err
	}
	if err = work(); beside {
		return err
	}
	return errors.Join(err, in.engine.journal.End(err))
}

// begin notes what the run works on, or compares it with the run that is to be gone on
// with.
func (in *installation) begin() error {
	begun := journal.Run{
		Command: in.engine.Command, Cluster: in.site.Config.Cluster.Name, Config: in.site.Config.Fingerprint(), ConfigFile: in.engine.ConfigPath, Flags: in.engine.Flags,
	}
	if in.deployer.deployment != nil {
		// What the site's own folder says is part of what is asked for.
		sum := sha256.Sum256([]byte(begun.Config + "\n" + string(in.deployer.deployment.Rendered.YAML())))
		begun.Config = hex.EncodeToString(sum[:])
	}
	if begun.Command == "" {
		begun.Command = in.engine.Scope.Command()
	}
	if begun.Command == in.engine.Scope.Command() || in.engine.upgrades {
		for _, p := range in.installation() {
			planned := journal.Planned{Phase: p.name}
			for _, h := range in.site.hosts {
				if p.name == "servers" && h.config.Role != config.Server || p.name == "agents" && h.config.Role != config.Agent ||
					p.name == "registry" && in.site.Config.Seeding.Mode == config.SeedImages {
					continue
				}
				planned.Hosts = append(planned.Hosts, h.name)
			}
			begun.Plan = append(begun.Plan, planned)
		}
	}
	if in.site.Bundle != nil {
		begun.Bundle, begun.BundleFile = in.site.Bundle.Digest().String(), in.site.Bundle.Path()
	}
	last := in.engine.journal.State()
	if in.engine.restores {
		return in.recovery.beginRestore(begun, last)
	}
	if restoreBegan(last) {
		return fmt.Errorf("%w: boxlift %s has begun to restore a backup on hosts and did not end: go on with %s", ErrRefused, last.Command, RestoreCommand(last))
	}
	in.engine.left = leftBehind(last)
	begun.Left = in.engine.left
	for _, left := range in.engine.left {
		in.site.warn("the last run deleted the node of %s and did not get to uninstalling k3s from it: boxlift node remove --hosts %s does that, and with runtime.removeAbsentAgents so does boxlift install; for a host that is not in install.yaml it needs cluster.absentAgentLogin", left.Host, left.Node)
	}
	if in.engine.isBeside(last) {
		return nil
	}
	if in.engine.mustWait(last) {
		return &underWayError{last, in.site.StatePath}
	}
	if !in.engine.Resume {
		return in.engine.journal.Begin(begun)
	}
	switch {
	case last.Version == 0:
		return fmt.Errorf("%w: %s holds no run", ErrNothingToResume, in.site.StatePath)
	case !last.Unfinished():
		return fmt.Errorf("%w: the last run (%s, ended %s) was finished", ErrNothingToResume, last.Command, last.Ended.Format(time.RFC3339))
	case last.Command != begun.Command:
		return fmt.Errorf("%w: the last run was boxlift %s: run that command again", ErrNothingToResume, last.Command)
	case last.Bundle != begun.Bundle:
		return fmt.Errorf("%w: the run began with the bundle %s (%s), this is %s: give that bundle, or begin anew with boxlift %s", ErrChanged, short(last.Bundle), last.BundleFile, short(begun.Bundle), begun.Command)
	case last.Config != begun.Config:
		return fmt.Errorf("%w: %s asks for another cluster than when the run began at %s: take the change back, or begin anew with boxlift %s", ErrChanged, in.engine.ConfigPath, last.Started.Format(time.RFC3339), begun.Command)
	}
	return in.engine.journal.Resume(begun.Flags)
}

// short is as much of a digest as people compare.
func short(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

func newInstaller(o Options) (*installation, error) {
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	in := newRooms(o)
	if o.Bundle != nil {
		if err := checkAudience(o.Bundle.Validity(), o.Config.Cluster.Name); err != nil {
			return nil, err
		}
		var err error
		if in.site.contents, err = o.Bundle.Contents(); err != nil {
			return nil, err
		}
		if err := in.checkConfig(); err != nil {
			return nil, err
		}
	}
	in.site.conns = newConnections(o.Config, o.Log)
	left := slices.Clone(o.Only)
	for _, h := range o.Config.Hosts() {
		named := func(name string) bool { return isCalled(h, name) }
		chosen := slices.ContainsFunc(o.Only, named)
		left = slices.DeleteFunc(left, named)
		if o.Only == nil || chosen || h.Role == config.Server {
			in.site.hosts = append(in.site.hosts, &host{config: h, subject: subject{name: hostName(h)}})
		}
	}
	if len(left) > 0 {
		return nil, fmt.Errorf("%w: install.yaml has no host %s: add it there first", ErrRefused, strings.Join(left, ", "))
	}
	return in, nil
}

// isCalled tells whether a host goes by a name or address in install.yaml. Most hosts have
// no name there: "" is nobody's.
func isCalled(h config.Host, name string) bool {
	return name != "" && (name == h.Host || name == h.Name || h.NodeIP.IsValid() && name == h.NodeIP.String())
}

// version is that of a component in the bundle, or "".
func (s *Site) version(component string) string {
	for _, c := range s.contents.Describe() {
		if c.Name == component {
			return c.Version
		}
	}
	return ""
}

// checkConfig compares what install.yaml asks for with what can be had. Versions are the
// bundle's to decide: another one in the file is a mistake.
func (in *installation) checkConfig() error {
	var errs []error
	differs := func(what, wanted, has string) {
		if wanted != "" && strings.TrimPrefix(wanted, "v") != strings.TrimPrefix(has, "v") {
			errs = append(errs, fmt.Errorf("%w: install.yaml asks for %s %s, the bundle carries %s: change install.yaml, or build a bundle with that version", ErrConfig, what, wanted, has))
		}
	}
	for _, component := range []string{k3sComponent, CiliumComponent} {
		if in.site.version(component) == "" {
			errs = append(errs, fmt.Errorf("%w: the bundle carries no component %q", ErrConfig, component))
		}
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	in.site.k3s = in.site.version(k3sComponent)
	differs("k3s", in.site.Config.K3sVersion(), in.site.k3s)
	differs("Cilium", in.site.Config.Network.Cilium.Version, in.site.version(CiliumComponent))
	return errors.Join(errs...)
}

// phase is one part of a run.
type phase struct {
	name string
	run  func(context.Context) error
}

// Command is the command that works on a scope.
func (s Scope) Command() string {
	return map[Scope]string{Everything: "install", OnlyLiteBoxd: "install --only liteboxd", WithoutLiteBoxd: "install --skip liteboxd"}[s]
}

// installation is the whole way to a platform, or the part that is asked for.
func (in *installation) installation() []phase {
	if in.upgrader.upgrade != nil {
		return in.upgradePhases()
	}
	if in.engine.Scope == OnlyLiteBoxd {
		return []phase{
			{"preflight", in.surveyor.preflight},
			{"ship", in.seeder.ship},
			{"registry", in.seeder.seedAnew},
			{"servers", in.cluster.findServers},
			{"images", in.importer.images},
			{"liteboxd", in.deployer.liteboxd},
			{"verify", in.inspector.verify},
			{"finish", in.inspector.finish},
		}
	}
	phases := []phase{
		{"preflight", in.surveyor.preflight},
		{"ship", in.seeder.ship},
		// Before any node may pull from there.
		{"registry", in.seeder.seed},
		{"place", in.cluster.place},
		{"servers", in.cluster.runServers},
		// Before the network, so that Cilium comes up on all nodes at the same time.
		{"agents", in.cluster.runAgents},
		{"network", in.network.network},
		{"converge", in.members.converge},
		// Before anything is to run from them.
		{"images", in.importer.images},
		// Now that the images are there by the way that is asked for.
		{"retire", in.seeder.retire},
		{"liteboxd", in.deployer.liteboxd},
		{"verify", in.inspector.verify},
		{"finish", in.inspector.finish},
	}
	if in.judgesEarly() {
		phases = slices.Insert(phases, 1, phase{"leaving", in.members.judgeLeaving})
	}
	if in.recovery.Restore != nil {
		phases = slices.Insert(phases, 3, phase{restorePhase, in.recovery.stopToRestore})
	}
	return phases
}

// judgesEarly reports whether the removal of absent agents is judged before anything else is done.
func (in *installation) judgesEarly() bool {
	whole := in.engine.Only == nil && in.engine.Scope != OnlyLiteBoxd && in.recovery.Restore == nil && in.upgrader.upgrade == nil
	return in.site.Config.Runtime.RemoveAbsentAgents && in.engine.mode == apply && whole
}

// run goes through phases in their order.
func (en *Engine) run(ctx context.Context, phases []phase) error {
	en.site.meter.enter()
	defer en.site.meter.leave()
	var unseen []error // what a run that only looks could not look at, besides hosts
	for _, phase := range phases {
		start, worked := time.Now(), en.site.meter.worked()
		err := phase.run(ctx)
		en.phases = append(en.phases, PhaseTime{
			Phase: phase.name, Seconds: time.Since(start).Seconds(), Worked: (en.site.meter.worked() - worked).Seconds(),
		})
		if ctx.Err() != nil {
			en.clean(ctx)
			return context.Cause(ctx)
		}
		if err == nil || en.goesOn(err) {
			if err != nil && !en.ofHost(err) {
				unseen = append(unseen, fmt.Errorf("%w: %s: %w", ErrCluster, phase.name, err))
			}
			continue
		}
		if phase.name != "finish" {
			en.clean(ctx)
		}
		return en.failure(phase.name, err)
	}
	if unseen == nil {
		return en.hostErrors()
	}
	return errors.Join(append([]error{en.hostErrors()}, unseen...)...)
}

// ofHost tells whether an error is one that a host failed with.
func (en *Engine) ofHost(err error) bool {
	return slices.ContainsFunc(en.site.hosts, func(h *host) bool { return h.err != nil && errors.Is(err, h.err) })
}

// failure is why a run ends with a phase: hosts that failed, or the cluster.
func (en *Engine) failure(phase string, err error) error {
	var stopped *batchError
	if errors.As(err, &stopped) {
		return err
	}
	if en.ofHost(err) {
		return en.hostErrors(en.unfinished()...)
	}
	if !errors.Is(err, ErrHosts) && !errors.Is(err, ErrRefused) {
		err = &clusterError{phase, err}
	}
	return errors.Join(en.hostErrors(), err)
}

// clusterError says that a phase failed for the cluster as a whole.
type clusterError struct {
	phase string
	err   error
}

func (e *clusterError) Error() string { return fmt.Sprintf("%v: %s: %v", ErrCluster, e.phase, e.err) }

func (e *clusterError) Unwrap() []error { return []error{ErrCluster, e.err} }

// Hint says how to go on. What to do about the cause, errors of the cluster themselves know.
func (*clusterError) Hint() string { return goOnHint }

const goOnHint = "when the cause is mended, run the same command again, which goes on from there; after an install or node add, so does `boxlift resume`"

// unfinished names the hosts that are well.
func (en *Engine) unfinished() []string {
	var names []string
	for _, h := range en.site.hosts {
		if h.err == nil {
			names = append(names, h.name)
		}
	}
	return names
}

// goesOn reports whether the phases after a failed one still make sense: as long as the
// servers are well, agents that failed harm nobody else.
func (en *Engine) goesOn(err error) bool {
	if en.mode == inspect {
		return true
	}
	for _, h := range en.site.servers() {
		if h.err != nil {
			return false
		}
	}
	if en.tolerates != nil && !en.tolerates() {
		return false
	}
	own := slices.ContainsFunc(en.site.agents(), func(h *host) bool { return h.err != nil && errors.Is(err, h.err) })
	return own && en.passedPreflight()
}

func (en *Engine) passedPreflight() bool {
	return !slices.ContainsFunc(en.site.hosts, func(h *host) bool { return h.refused })
}

// hostErrors joins the errors of all hosts; waiting names those that are well but
// could not be finished.
func (en *Engine) hostErrors(waiting ...string) error {
	e := en.failures()
	if len(e.Failed) == 0 {
		return nil
	}
	e.Waiting = waiting
	return e
}

// failures are the errors of all hosts.
func (en *Engine) failures() *HostsError {
	e := &HostsError{Total: len(en.site.hosts)}
	for _, h := range en.site.hosts {
		if h.err != nil {
			e.Failed = append(e.Failed, h.err)
		}
	}
	return e
}

// maxHostError bounds what is shown of one host's error, in bytes.
const maxHostError = 16 << 10

// HostsError reports every host that failed.
type HostsError struct {
	Failed []error
	// Waiting are the hosts that are well but could not be finished because of others.
	Waiting []string
	Total   int
}

func (e *HostsError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %s failed", len(e.Failed), counted(e.Total, "host"))
	for _, err := range e.Failed {
		// It may quote what a host has said.
		b.WriteString("\n" + printable.Clip(printable.Text(err.Error()), maxHostError))
	}
	if len(e.Waiting) > 0 {
		b.WriteString("\nnot gone on with because of that: " + strings.Join(e.Waiting, ", "))
	}
	return b.String()
}

// Unwrap gives the hosts' own errors and ErrHosts.
func (e *HostsError) Unwrap() []error { return append([]error{ErrHosts}, e.Failed...) }

// Hint says how to go on, where none of the hosts' errors does.
func (e *HostsError) Hint() string {
	for _, err := range e.Failed {
		var own interface{ Hint() string }
		if errors.As(err, &own) && own.Hint() != "" {
			return ""
		}
	}
	return goOnHint
}

// eachHost runs do on the hosts that have not failed, as many at a time as the
// configuration allows, and keeps their errors with them.
func (en *Engine) eachHost(ctx context.Context, hosts []*host, do func(context.Context, *host) error) error {
	en.site.atOnce(hosts, func(h *host) {
		if h.err != nil || ctx.Err() != nil {
			return
		}
		if err := do(ctx, h); err != nil {
			h.fail(err)
		}
	})
	for _, h := range hosts {
		if h.err != nil {
			return h.err
		}
	}
	return ctx.Err()
}

// atOnce runs do on all hosts, as many at a time as the configuration allows.
func (s *Site) atOnce(hosts []*host, do func(*host)) {
	slots := make(chan struct{}, s.Config.Runtime.Parallelism)
	done := make(chan struct{})
	for _, h := range hosts {
		s.meter.enter()
		go func() {
			defer func() {
				s.meter.leave()
				done <- struct{}{}
			}()
			slots <- struct{}{}
			defer func() { <-slots }()
			do(h)
		}()
	}
	_ = s.meter.wait(func() error {
		for range hosts {
			<-done
		}
		return nil
	})
}

// warn notes something that does not stop the run, for the summary.
func (s *Site) warn(format string, args ...any) {
	text := printable.Text(fmt.Sprintf(format, args...))
	s.warned.Lock()
	defer s.warned.Unlock()
	if !slices.Contains(s.warnings, text) {
		s.warnings = append(s.warnings, text)
	}
}

func (en *Engine) close() {
	en.holds.release()
	en.site.conns.close()
}

// counted is a number of things.
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// platformsText lists platforms for a message.
func platformsText(platforms []lock.Platform) string {
	names := make([]string, 0, len(platforms))
	for _, p := range platforms {
		names = append(names, string(p))
	}
	return strings.Join(names, ", ")
}
