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

// installer holds what the phases share.
type installer struct {
	Options
	mode     mode
	contents *bundle.Contents
	k3s      string // the version in the bundle
	hosts    []*host
	cluster  subject
	conns    *connections
	holds    *holds
	api      *kube.Cluster // nil until the servers are up
	// apiServer is the server that the API is reached through.
	apiServer *host
	journal   *journal.Journal
	recorder  recorder
	meter     meter
	phases    []PhaseTime
	warned    sync.Mutex // for warnings and ended: hosts are worked on at the same time
	warnings  []string
	findings  []preflight.Finding
	// left are the hosts that the last run has left behind.
	left []journal.Left
	// differences are those of the cluster that no step stands for.
	differences []string
	overview    *Overview

	// registryCA is the authority of boxlift's registry, and pushed what the site's own
	// registry has of the bundle, once that is known.
	registryCA openedAuthority
	pushed     *push.Result

	// releaseImages are the images that charts ask for, by the digest of chart and values.
	releaseImages map[[sha256.Size]byte][]string

	// misfit is what errors about images that nobody carries wrap.
	misfit error

	// ended are the sandboxes that ended by themselves while an upgrade started k3s anew.
	ended []string

	// upgrades tells that the cluster goes to another bundle, restores that a backup is restored.
	upgrades, restores bool
	// tolerates tells whether phases go on although agents have failed; nil is yes.
	tolerates func() bool
	// takesBack is the release that is gone back to, 0 for none.
	takesBack int
	crossing  crossing
	// restoration is what a restore gives to k3s, nil for none.
	restoration *restoration

	upgrade    *upgrading  // nil unless the cluster goes to another bundle
	restoring  *restoring  // nil unless a backup is restored
	deployment *Deployment // LiteBoxd as it is to be; nil when it is not worked on
	backup     string      // folder of the backup of LiteBoxd that the run has made
	// clusterBackup is the file with the backup of the cluster that the run has made.
	clusterBackup string
	login         *Login // of LiteBoxd's first user, if it is to be shown

	// agentsPassword is what agents join with, once that is known.
	agentsPassword agentsPassword
	// sharesToken tells that agents have the servers' token, splitsToken that they are to get one of their own.
	sharesToken, splitsToken bool
}

// changing tells whether the run carries out its steps.
func (in *installer) changing() bool { return in.mode == apply }

func (in *installer) servers() []*host { return in.hosts[:len(in.Config.Cluster.Servers)] }
func (in *installer) agents() []*host  { return in.hosts[len(in.Config.Cluster.Servers):] }

// Install brings all hosts to the wanted state. The summary is there even when it
// fails.
func Install(ctx context.Context, o Options) (*Summary, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.close()
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	if o.DryRun {
		in.mode = plan
		if err := in.recall(); err != nil {
			return nil, err
		}
		err := in.run(ctx, in.installation())
		return in.summary(), err
	}
	err = in.recorded(func() error { return in.endRelease(ctx, in.run(ctx, in.installation())) })
	if in.phases == nil {
		return nil, err
	}
	return in.summary(), err
}

// check finds out, before any host is asked, whether bundle and install.yaml go together.
func (in *installer) check(ctx context.Context) (err error) {
	if err := in.checkDelta(); err != nil {
		return err
	}
	if err := in.checkChart(ctx); err != nil {
		return err
	}
	if err := in.checkSeeding(); err != nil {
		return err
	}
	if err := in.checkRestore(); err != nil {
		return err
	}
	switch {
	case in.Scope == WithoutLiteBoxd, in.Only != nil: // other hosts would not get the images
		return nil
	case in.Config.LiteBoxd == nil && in.Scope == OnlyLiteBoxd:
		return errNoLiteBoxd
	case in.Config.LiteBoxd == nil:
		return nil
	}
	in.deployment, err = in.renderLiteBoxd()
	return err
}

// recorded runs work with the state open: nobody else can work with it meanwhile.
func (in *installer) recorded(work func() error) (err error) {
	if in.journal, err = journal.Open(in.StatePath); err != nil {
		return err
	}
	defer in.journal.Close() //nolint:errcheck // it only holds a lock
	beside := in.isBeside(in.journal.State())
	if err := in.begin(); err != nil {
		return err
	}
	if err = work(); beside {
		return err
	}
	return errors.Join(err, in.journal.End(err))
}

// begin notes what the run works on, or compares it with the run that is to be gone on
// with.
func (in *installer) begin() error {
	run := journal.Run{
		Command: in.Command, Cluster: in.Config.Cluster.Name, Config: in.Config.Fingerprint(), ConfigFile: in.ConfigPath, Flags: in.Flags,
	}
	if in.deployment != nil {
		// What the site's own folder says is part of what is asked for.
		sum := sha256.Sum256([]byte(run.Config + "\n" + string(in.deployment.Rendered.YAML())))
		run.Config = hex.EncodeToString(sum[:])
	}
	if run.Command == "" {
		run.Command = in.Scope.Command()
	}
	if run.Command == in.Scope.Command() || in.upgrades {
		for _, p := range in.installation() {
			planned := journal.Planned{Phase: p.name}
			for _, h := range in.hosts {
				if p.name == "servers" && h.config.Role != config.Server || p.name == "agents" && h.config.Role != config.Agent ||
					p.name == "registry" && in.Config.Seeding.Mode == config.SeedImages {
					continue
				}
				planned.Hosts = append(planned.Hosts, h.name)
			}
			run.Plan = append(run.Plan, planned)
		}
	}
	if in.Bundle != nil {
		run.Bundle, run.BundleFile = in.Bundle.Digest().String(), in.Bundle.Path()
	}
	last := in.journal.State()
	if in.restores {
		return in.beginRestore(run, last)
	}
	if restoreBegan(last) {
		return fmt.Errorf("%w: boxlift %s has begun to restore a backup on hosts and did not end: go on with %s", ErrRefused, last.Command, RestoreCommand(last))
	}
	in.left = leftBehind(last)
	run.Left = in.left
	for _, left := range in.left {
		in.warn("the last run deleted the node of %s and did not get to uninstalling k3s from it: boxlift node remove --hosts %s does that, and with runtime.removeAbsentAgents so does boxlift install; for a host that is not in install.yaml it needs cluster.absentAgentLogin", left.Host, left.Node)
	}
	if in.isBeside(last) {
		return nil
	}
	if in.mustWait(last) {
		return &underWayError{last, in.StatePath}
	}
	if !in.Resume {
		return in.journal.Begin(run)
	}
	switch {
	case last.Version == 0:
		return fmt.Errorf("%w: %s holds no run", ErrNothingToResume, in.StatePath)
	case !last.Unfinished():
		return fmt.Errorf("%w: the last run (%s, ended %s) was finished", ErrNothingToResume, last.Command, last.Ended.Format(time.RFC3339))
	case last.Command != run.Command:
		return fmt.Errorf("%w: the last run was boxlift %s: run that command again", ErrNothingToResume, last.Command)
	case last.Bundle != run.Bundle:
		return fmt.Errorf("%w: the run began with the bundle %s (%s), this is %s: give that bundle, or begin anew with boxlift %s", ErrChanged, short(last.Bundle), last.BundleFile, short(run.Bundle), run.Command)
	case last.Config != run.Config:
		return fmt.Errorf("%w: %s asks for another cluster than when the run began at %s: take the change back, or begin anew with boxlift %s", ErrChanged, in.ConfigPath, last.Started.Format(time.RFC3339), run.Command)
	}
	return in.journal.Resume(run.Flags)
}

// short is as much of a digest as people compare.
func short(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

func newInstaller(o Options) (*installer, error) {
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	in := &installer{Options: o, misfit: ErrConfig, holds: newHolds(), restores: o.Restore != nil}
	if o.Bundle != nil {
		if err := checkAudience(o.Bundle.Validity(), o.Config.Cluster.Name); err != nil {
			return nil, err
		}
		var err error
		if in.contents, err = o.Bundle.Contents(); err != nil {
			return nil, err
		}
		if err := in.checkConfig(); err != nil {
			return nil, err
		}
	}
	in.conns = newConnections(o.Config, o.Log)
	left := slices.Clone(o.Only)
	for _, h := range o.Config.Hosts() {
		named := func(name string) bool { return isCalled(h, name) }
		chosen := slices.ContainsFunc(o.Only, named)
		left = slices.DeleteFunc(left, named)
		if o.Only == nil || chosen || h.Role == config.Server {
			in.hosts = append(in.hosts, &host{config: h, subject: subject{name: hostName(h)}})
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
func (in *installer) version(component string) string {
	for _, c := range in.contents.Describe() {
		if c.Name == component {
			return c.Version
		}
	}
	return ""
}

// checkConfig compares what install.yaml asks for with what can be had. Versions are the
// bundle's to decide: another one in the file is a mistake.
func (in *installer) checkConfig() error {
	var errs []error
	differs := func(what, wanted, has string) {
		if wanted != "" && strings.TrimPrefix(wanted, "v") != strings.TrimPrefix(has, "v") {
			errs = append(errs, fmt.Errorf("%w: install.yaml asks for %s %s, the bundle carries %s: change install.yaml, or build a bundle with that version", ErrConfig, what, wanted, has))
		}
	}
	for _, component := range []string{k3sComponent, CiliumComponent} {
		if in.version(component) == "" {
			errs = append(errs, fmt.Errorf("%w: the bundle carries no component %q", ErrConfig, component))
		}
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	in.k3s = in.version(k3sComponent)
	differs("k3s", in.Config.K3sVersion(), in.k3s)
	differs("Cilium", in.Config.Network.Cilium.Version, in.version(CiliumComponent))
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
func (in *installer) installation() []phase {
	if in.upgrade != nil {
		return in.upgradePhases()
	}
	if in.Scope == OnlyLiteBoxd {
		return []phase{
			{"preflight", in.preflight},
			{"ship", in.ship},
			{"registry", in.seedAnew},
			{"servers", in.findServers},
			{"images", in.images},
			{"liteboxd", in.liteboxd},
			{"verify", in.verify},
			{"finish", in.finish},
		}
	}
	phases := []phase{
		{"preflight", in.preflight},
		{"ship", in.ship},
		// Before any node may pull from there.
		{"registry", in.seed},
		{"place", in.place},
		{"servers", in.runServers},
		// Before the network, so that Cilium comes up on all nodes at the same time.
		{"agents", in.runAgents},
		{"network", in.network},
		{"converge", in.converge},
		// Before anything is to run from them.
		{"images", in.images},
		// Now that the images are there by the way that is asked for.
		{"retire", in.retire},
		{"liteboxd", in.liteboxd},
		{"verify", in.verify},
		{"finish", in.finish},
	}
	if in.judgesEarly() {
		phases = slices.Insert(phases, 1, phase{"leaving", in.judgeLeaving})
	}
	if in.Restore != nil {
		phases = slices.Insert(phases, 3, phase{restorePhase, in.stopToRestore})
	}
	return phases
}

// judgesEarly reports whether the removal of absent agents is judged before anything else is done.
func (in *installer) judgesEarly() bool {
	whole := in.Only == nil && in.Scope != OnlyLiteBoxd && in.Restore == nil && in.upgrade == nil
	return in.Config.Runtime.RemoveAbsentAgents && in.mode == apply && whole
}

// run goes through phases in their order.
func (in *installer) run(ctx context.Context, phases []phase) error {
	in.meter.enter()
	defer in.meter.leave()
	var unseen []error // what a run that only looks could not look at, besides hosts
	for _, phase := range phases {
		start, worked := time.Now(), in.meter.worked()
		err := phase.run(ctx)
		in.phases = append(in.phases, PhaseTime{
			Phase: phase.name, Seconds: time.Since(start).Seconds(), Worked: (in.meter.worked() - worked).Seconds(),
		})
		if ctx.Err() != nil {
			in.clean(ctx)
			return context.Cause(ctx)
		}
		if err == nil || in.goesOn(err) {
			if err != nil && !in.ofHost(err) {
				unseen = append(unseen, fmt.Errorf("%w: %s: %w", ErrCluster, phase.name, err))
			}
			continue
		}
		if phase.name != "finish" {
			in.clean(ctx)
		}
		return in.failure(phase.name, err)
	}
	if unseen == nil {
		return in.hostErrors()
	}
	return errors.Join(append([]error{in.hostErrors()}, unseen...)...)
}

// ofHost tells whether an error is one that a host failed with.
func (in *installer) ofHost(err error) bool {
	return slices.ContainsFunc(in.hosts, func(h *host) bool { return h.err != nil && errors.Is(err, h.err) })
}

// failure is why a run ends with a phase: hosts that failed, or the cluster.
func (in *installer) failure(phase string, err error) error {
	var stopped *batchError
	if errors.As(err, &stopped) {
		return err
	}
	if in.ofHost(err) {
		return in.hostErrors(in.unfinished()...)
	}
	if !errors.Is(err, ErrHosts) && !errors.Is(err, ErrRefused) {
		err = &clusterError{phase, err}
	}
	return errors.Join(in.hostErrors(), err)
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
func (in *installer) unfinished() []string {
	var names []string
	for _, h := range in.hosts {
		if h.err == nil {
			names = append(names, h.name)
		}
	}
	return names
}

// goesOn reports whether the phases after a failed one still make sense: as long as the
// servers are well, agents that failed harm nobody else.
func (in *installer) goesOn(err error) bool {
	if in.mode == inspect {
		return true
	}
	for _, h := range in.servers() {
		if h.err != nil {
			return false
		}
	}
	if in.tolerates != nil && !in.tolerates() {
		return false
	}
	own := slices.ContainsFunc(in.agents(), func(h *host) bool { return h.err != nil && errors.Is(err, h.err) })
	return own && in.passedPreflight()
}

func (in *installer) passedPreflight() bool {
	return !slices.ContainsFunc(in.hosts, func(h *host) bool { return h.refused })
}

// hostErrors joins the errors of all hosts; waiting names those that are well but
// could not be finished.
func (in *installer) hostErrors(waiting ...string) error {
	e := in.failures()
	if len(e.Failed) == 0 {
		return nil
	}
	e.Waiting = waiting
	return e
}

// failures are the errors of all hosts.
func (in *installer) failures() *HostsError {
	e := &HostsError{Total: len(in.hosts)}
	for _, h := range in.hosts {
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
func (in *installer) eachHost(ctx context.Context, hosts []*host, do func(context.Context, *host) error) error {
	in.atOnce(hosts, func(h *host) {
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
func (in *installer) atOnce(hosts []*host, do func(*host)) {
	slots := make(chan struct{}, in.Config.Runtime.Parallelism)
	done := make(chan struct{})
	for _, h := range hosts {
		in.meter.enter()
		go func() {
			defer func() {
				in.meter.leave()
				done <- struct{}{}
			}()
			slots <- struct{}{}
			defer func() { <-slots }()
			do(h)
		}()
	}
	_ = in.meter.wait(func() error {
		for range hosts {
			<-done
		}
		return nil
	})
}

// warn notes something that does not stop the run, for the summary.
func (in *installer) warn(format string, args ...any) {
	text := printable.Text(fmt.Sprintf(format, args...))
	in.warned.Lock()
	defer in.warned.Unlock()
	if !slices.Contains(in.warnings, text) {
		in.warnings = append(in.warnings, text)
	}
}

func (in *installer) close() {
	in.holds.release()
	in.conns.close()
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
