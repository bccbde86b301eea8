// Package run is the engine: it goes through phases, asks each step whether it is needed, carries out those that
// are, and keeps account of it.
//
// A [Phase] turns what is wanted into steps. A [Step] finds out whether it is needed, and why, before it does
// anything; that is what makes a second run change nothing, a dry run possible, and an interrupted run easy to go
// on with. Steps of one host are done in their order, hosts are worked on at the same time.
//
// The engine notes every step in the journal beside the state, and the run in the cluster's record of releases
// ([Record]); it keeps other runs away from hosts ([Engine.Hold]), gathers the errors of hosts ([HostsError]), and
// decides whether a run goes on after some of them have failed. One host's failure keeps no other from being
// worked on.
package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
)

// Scope is a part of the platform.
type Scope int

// The scopes.
const (
	Everything      Scope = iota
	OnlyLiteBoxd          // on a cluster that is there; nothing else is changed
	WithoutLiteBoxd       // the cluster alone
)

// Engine goes through phases and carries out their steps. As it is made it only looks; [Engine.Apply] lets it act.
// Nobody else has to know which: what is to happen in one way only is a step.
type Engine struct {
	Site   *site.Site
	Record *Record

	ConfigPath     string
	Only           []string
	Command        string
	Verb           journal.Verb
	Flags          []string
	DryRun, Resume bool
	Scope          Scope

	acts bool
	// prepares is that of the phase that the run is in.
	prepares bool
	Cluster  site.Subject
	Journal  *journal.Journal
	Holds    *Holds
	Phases   []PhaseTime
	// Left are the hosts that the last run has left behind.
	Left []journal.Left
	// Upgrades tells that the cluster goes to another bundle, restores that a backup is restored.
	Upgrades, Restores bool
	// Took is how long phases took in a run of the same kind before, nil where there was none.
	Took map[string]time.Duration
	// Tolerates reports whether phases go on although agents have failed; nil is yes.
	Tolerates func() bool
}

// Record is a run's part in the cluster's record of releases.
type Record struct {
	Site   *site.Site
	Engine *Engine

	AcceptOlderBundle bool
	Version           string // of this boxlift
	// NoRelease says that the run is a part of what makes a release, and makes none.
	NoRelease bool
	// Demand is what the bundle's signatures were asked for, Approval by whom it was found good; nil where nothing was
	// asked for.
	Demand   approval.Demand
	Approval *approval.Approval

	Recorder recorder
	// ofHosts are the trust files that hosts have, the oldest first, once they were asked.
	ofHosts []hostTrust
	// TakesBack is the release that is gone back to, 0 for none.
	TakesBack int
}

// Phase is one part of a run.
type Phase struct {
	Name string
	// Does says to people what the phase does, where it can be run alone.
	Does string
	// Needs refuses to run the phase alone where something is missing that phases before it bring; nil for nothing. It
	// changes nothing.
	Needs func(context.Context) error
	// Look finds out which steps there are, and hands them to the engine ([Engine.RunSteps]). It changes nothing by
	// itself.
	Look func(context.Context) error
	// Gate says that a run ends with the phase where it fails, also one that only looks.
	Gate bool
	// Ahead says that the phase does what later ones list anyway, or tidies up after them: who looks, leaves it out.
	Ahead bool
	// Prepares says that the phase changes hosts and nothing of the cluster: k3s, its datastore and what runs there
	// stay as they are. Who has got no further can leave it at that, and goes back without a backup.
	Prepares bool
	// If reports whether the run has the phase, when it is the phase's turn; nil is yes.
	If func() bool
}

// Command is the command that works on a scope.
func (s Scope) Command() string {
	return map[Scope]string{Everything: "install", OnlyLiteBoxd: "install --only liteboxd",
		WithoutLiteBoxd: "install --skip liteboxd"}[s]
}

// Verb is what state and record call an installation of a scope.
func (s Scope) Verb() journal.Verb {
	return map[Scope]journal.Verb{Everything: journal.Install, OnlyLiteBoxd: journal.InstallLiteBoxd,
		WithoutLiteBoxd: journal.InstallCluster}[s]
}

// ScopeOf is the scope that a verb is an installation of, if it is one.
func ScopeOf(verb journal.Verb) (Scope, bool) {
	for _, s := range []Scope{Everything, OnlyLiteBoxd, WithoutLiteBoxd} {
		if s.Verb() == verb {
			return s, true
		}
	}
	return 0, false
}

// Look goes through phases in their order and asks each step whether it is needed. It ends with the first gate that
// does not open; what else cannot be looked at keeps nothing from being looked at.
func (en *Engine) Look(ctx context.Context, phases []Phase) error {
	phases = slices.DeleteFunc(slices.Clone(phases), func(p Phase) bool { return p.Ahead })
	return en.run(ctx, phases)
}

// Apply goes through phases in their order and carries out the steps that are needed. It ends with the first phase
// that fails, unless agents alone have failed.
func (en *Engine) Apply(ctx context.Context, phases []Phase) error {
	en.acts = true
	return en.run(ctx, phases)
}

func (en *Engine) run(ctx context.Context, phases []Phase) error {
	en.Site.Meter.Enter()
	defer en.Site.Meter.Leave()
	defer progress.Begin(en.Site.Reporter, en.plan(phases))()
	var unseen []error // what a run that only looks could not look at, besides hosts
	for _, phase := range phases {
		if phase.If != nil && !phase.If() {
			continue
		}
		start, worked := time.Now(), en.Site.Meter.Worked()
		en.prepares = phase.Prepares
		ended := progress.Phase(en.Site.Reporter, phase.Name)
		err := phase.Look(ctx)
		en.prepares = false
		for _, h := range en.Site.Hosts {
			if h.Err != nil {
				progress.Work(en.Site.Reporter, h.Name)(h.Err)
			}
		}
		ended(err)
		en.Phases = append(en.Phases, PhaseTime{
			Phase: phase.Name, Seconds: time.Since(start).Seconds(),
			Worked: (en.Site.Meter.Worked() - worked).Seconds(),
		})
		if ctx.Err() != nil {
			en.Clean(ctx)
			return context.Cause(ctx)
		}
		if err == nil || en.GoesOn(err) && !(phase.Gate && !en.acts) {
			if err != nil && !en.ofHost(err) {
				unseen = append(unseen, ofCluster(phase.Name, err))
			}
			continue
		}
		if phase.Name != "finish" {
			en.Clean(ctx)
		}
		return en.failure(phase.Name, err)
	}
	if unseen == nil {
		return en.HostErrors()
	}
	return errors.Join(append([]error{en.HostErrors()}, unseen...)...)
}

// plan is what a run through phases is going to do, for its picture.
func (en *Engine) plan(phases []Phase) progress.Plan {
	plan := progress.Plan{Title: "cluster " + en.Site.Config.Cluster.Name, Took: en.Took}
	if en.acts {
		plan.Title = cmp.Or(en.Command, en.Scope.Command()) + ", " + plan.Title
	}
	for _, p := range phases {
		if p.If == nil || p.If() {
			plan.Phases = append(plan.Phases, p.Name)
		}
	}
	for _, h := range en.Site.Hosts {
		plan.Hosts = append(plan.Hosts, h.Name)
	}
	return plan
}

// ofHost reports whether an error is one of a host that has failed.
func (en *Engine) ofHost(err error) bool { return isOf(err, en.Site.Hosts) }

// isOf reports whether an error is one of those of some hosts that have failed.
func isOf(err error, hosts []*site.Host) bool {
	name := fault.HostOf(err)
	return slices.ContainsFunc(hosts, func(h *site.Host) bool { return h.Err != nil && h.Name == name })
}

// failure is why a run ends with a phase: hosts that failed, or the cluster.
func (en *Engine) failure(phase string, err error) error {
	var stopped *BatchError
	if errors.As(err, &stopped) {
		return err
	}
	if en.ofHost(err) {
		return en.HostErrors(en.unfinished()...)
	}
	if of := ofCluster(phase, err); errors.Is(of, site.ErrCluster) {
		err = fault.WithHint(of, goOnHint)
	}
	return errors.Join(en.HostErrors(), err)
}

// ofCluster is an error of a phase, as one of the cluster unless it says that it is another one.
func ofCluster(phase string, err error) error {
	if errors.Is(err, site.ErrHosts) || errors.Is(err, site.ErrRefused) {
		return err
	}
	return fmt.Errorf("%w: %s: %w", site.ErrCluster, phase, err)
}

// goOnHint says how to go on. What to do about the cause, errors of the cluster themselves know.
const goOnHint = "when the cause is mended, run the same command again, which goes on from there; after an install " +
	"or node add, so does `boxlift resume`"

// unfinished names the hosts that are well.
func (en *Engine) unfinished() []string {
	var names []string
	for _, h := range en.Site.Hosts {
		if h.Err == nil {
			names = append(names, h.Name)
		}
	}
	return names
}

// GoesOn reports whether what comes after a failure still makes sense: as long as the
// servers are well, agents that failed harm nobody else; and nobody is harmed by looking.
func (en *Engine) GoesOn(err error) bool {
	if !en.acts {
		return true
	}
	for _, h := range en.Site.Servers() {
		if h.Err != nil {
			return false
		}
	}
	if en.Tolerates != nil && !en.Tolerates() {
		return false
	}
	return isOf(err, en.Site.Agents()) && en.passedPreflight()
}

func (en *Engine) passedPreflight() bool {
	return !slices.ContainsFunc(en.Site.Hosts, func(h *site.Host) bool { return h.Refused })
}

// HostErrors joins the errors of all hosts; waiting names those that are well but
// could not be finished.
func (en *Engine) HostErrors(waiting ...string) error {
	e := en.Failures()
	if len(e.Failed) == 0 {
		return nil
	}
	e.Waiting = waiting
	return e
}

// Failures are the errors of all hosts.
func (en *Engine) Failures() *HostsError {
	e := &HostsError{Total: len(en.Site.Hosts)}
	for _, h := range en.Site.Hosts {
		if h.Err != nil {
			e.Failed = append(e.Failed, h.Err)
		}
	}
	return e
}

// MaxHostError bounds what is shown of one host's error, in bytes.
const MaxHostError = 16 << 10

// HostsError reports every host that failed.
type HostsError struct {
	Failed []error
	// Waiting are the hosts that are well but could not be finished because of others.
	Waiting []string
	Total   int
}

func (e *HostsError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %s failed", len(e.Failed), printable.Counted(e.Total, "host"))
	for _, err := range e.Failed {
		// It may quote what a host has said.
		b.WriteString("\n" + printable.Clip(printable.Text(err.Error()), MaxHostError))
	}
	if len(e.Waiting) > 0 {
		b.WriteString("\nnot gone on with because of that: " + strings.Join(e.Waiting, ", "))
	}
	return b.String()
}

// Unwrap gives the hosts' own errors and ErrHosts.
func (e *HostsError) Unwrap() []error { return append([]error{site.ErrHosts}, e.Failed...) }

// Hint says how to go on, where none of the hosts' errors does.
func (e *HostsError) Hint() string {
	if len(fault.Hints(errors.Join(e.Failed...))) > 0 {
		return ""
	}
	return goOnHint
}

// EachHost runs do on the hosts that have not failed, as many at a time as the
// configuration allows, and keeps their errors with them.
func (en *Engine) EachHost(ctx context.Context, hosts []*site.Host, do func(context.Context, *site.Host) error) error {
	en.queue(hosts)
	en.Site.AtOnce(hosts, func(h *site.Host) {
		if h.Err != nil || ctx.Err() != nil {
			return
		}
		rests := progress.Work(en.Site.Reporter, h.Name)
		err := do(ctx, h)
		if err != nil {
			h.Fail(err)
		}
		rests(err)
	})
	for _, h := range hosts {
		if h.Err != nil {
			return h.Err
		}
	}
	return ctx.Err()
}

// queue tells of the hosts that are going to be worked on.
func (en *Engine) queue(hosts []*site.Host) {
	var names []string
	for _, h := range hosts {
		if h.Err == nil {
			names = append(names, h.Name)
		}
	}
	progress.Queue(en.Site.Reporter, names)
}

// InTurn runs do on the hosts that have not failed, one after the other. What acts, ends with the first that fails.
func (en *Engine) InTurn(ctx context.Context, hosts []*site.Host, do func(context.Context, *site.Host) error) error {
	en.queue(hosts)
	var failed error
	for _, h := range hosts {
		if err := en.EachHost(ctx, []*site.Host{h}, do); err != nil {
			failed = cmp.Or(failed, err)
			if en.acts || ctx.Err() != nil {
				return failed
			}
		}
	}
	return failed
}

// Close lets go of the hosts and ends all connections.
func (en *Engine) Close() {
	en.Holds.release()
	en.Site.Conns.Close()
}

// WholeCluster reports whether every host of install.yaml is well so far.
func (en *Engine) WholeCluster() bool {
	return !slices.ContainsFunc(en.Site.Hosts, func(h *site.Host) bool { return h.Err != nil })
}

// preparedDirs have the files that hosts are prepared with, and those of others that are changed for it.
var preparedDirs = []string{"/etc", "/etc/modules-load.d", "/etc/sysctl.d", "/etc/NetworkManager/conf.d", DNSDir,
	"/etc/chrony", "/etc/systemd/system/chrony.service.d"}

// Clean removes what runs may have left on hosts, whether this one went well or not. What
// has arrived of packs stays where the next run goes on from it: on hosts that do not have
// all of them yet. Failing to clean is no failure of the run: the next one tries again.
func (en *Engine) Clean(ctx context.Context) {
	if !en.acts {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), site.CleanTimeout)
	defer cancel()
	en.Site.AtOnce(en.Site.Hosts, func(h *site.Host) {
		if !h.Held { // nothing was put there, or another boxlift is at work
			return
		}
		args := []string{"/bin/sh", "-c", `[ ! -x "$1" ] || "$@"`, "sh", site.HelperPath, "clean", "-age", "1s", "-dir",
			path.Dir(site.K3sBinary), "-dir", site.K3sConfigDir,
			"-dir", FrontDir, "-dir", RegistryDir, "-dir", path.Dir(RegistryProgram), "-dir", path.Dir(RegistryUnit)}
		for _, folder := range preparedDirs {
			args = append(args, "-dir", folder)
		}
		if h.Shipped {
			args = append(args, "-unfinished")
		}
		_, _ = h.Root(ctx, "remove temporary files", args...)
	})
}
