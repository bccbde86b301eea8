// Package install brings hosts to what a bundle and an install.yaml ask for.
//
// The work is a list of phases, each in a file of its own: preflight, ship, servers,
// agents, verify. A phase turns what is wanted into steps. A step knows how to find out
// whether it is needed, and why, before it does anything; that is what makes a second
// run change nothing, a dry run possible, and an interrupted run easy to go on with.
// Steps of one host run in their order, hosts run in parallel.
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
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/progress"
)

var (
	// ErrHosts is wrapped by errors that say that at least one host failed.
	ErrHosts = errors.New("failed on some hosts")
	// ErrConfig is wrapped by errors that say that install.yaml and the bundle do not go
	// together.
	ErrConfig = errors.New("install.yaml does not fit the bundle")
	// ErrDifferent says that a cluster is not what it is to be.
	ErrDifferent = errors.New("the cluster differs from what was asked for")
)

// Options say what to install where. Config, Bundle and StatePath are required. The
// caller has verified the bundle: its signature, or that the user does without, and its
// contents.
type Options struct {
	Config *config.Config
	Bundle *bundle.Reader
	// StatePath is where state.json lies. A dry run does not touch it.
	StatePath string
	// DryRun finds out what would be done and changes nothing, neither hosts nor state.
	DryRun bool
	// Reporter is told of the work; nil discards it.
	Reporter progress.Reporter
	// Log is told of every connection and command, at level debug; nil discards it.
	Log *slog.Logger
}

// Summary says what an installation did.
type Summary struct {
	Cluster string        `json:"cluster"`
	Bundle  string        `json:"bundle"`
	DryRun  bool          `json:"dryRun,omitempty"`
	Hosts   []HostSummary `json:"hosts"`
	Phases  []PhaseTime   `json:"phases"`
}

// HostSummary says what was done on one host.
type HostSummary struct {
	Host string      `json:"host"`
	Role config.Role `json:"role"`
	// Changes are the steps that were needed, or in a dry run would be.
	Changes []Change `json:"changes"`
	// Sent is how many bytes of blobs travelled, Copied how many the host had already.
	Sent   int64  `json:"sent"`
	Copied int64  `json:"copied"`
	Images int    `json:"images"`
	K3s    string `json:"k3s,omitempty"`
	// Error is why the host failed.
	Error string `json:"error,omitempty"`
}

// Change is one step that was needed.
type Change struct {
	Title  string `json:"title"`
	Reason string `json:"reason"`
}

// PhaseTime is how long a phase took.
type PhaseTime struct {
	Phase   string  `json:"phase"`
	Seconds float64 `json:"seconds"`
}

// Changes counts the changes on all hosts.
func (s *Summary) Changes() int {
	n := 0
	for _, h := range s.Hosts {
		n += len(h.Changes)
	}
	return n
}

// installer holds what the phases share.
type installer struct {
	Options
	contents *bundle.Contents
	k3s      string // the version in the bundle
	hosts    []*host
	journal  *journal.Journal // nil in a dry run
	phases   []PhaseTime
}

// Install brings all hosts to the wanted state. The summary is there even when it
// fails.
func Install(ctx context.Context, o Options) (*Summary, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.close()
	if !o.DryRun {
		if in.journal, err = journal.Open(o.StatePath); err != nil {
			return nil, err
		}
		defer in.journal.Close() //nolint:errcheck // it only holds a lock
		if err := in.journal.Begin(o.Config.Cluster.Name, o.Bundle.Digest().String(), o.Config.Fingerprint()); err != nil {
			return nil, err
		}
	}
	err = in.run(ctx)
	if in.journal != nil {
		err = errors.Join(err, in.journal.End(err))
	}
	return in.summary(), err
}

func newInstaller(o Options) (*installer, error) {
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	contents, err := o.Bundle.Contents()
	if err != nil {
		return nil, err
	}
	in := &installer{Options: o, contents: contents}
	if err := in.checkConfig(); err != nil {
		return nil, err
	}
	for _, h := range o.Config.Hosts() {
		in.hosts = append(in.hosts, &host{config: h, name: hostName(h)})
	}
	return in, nil
}

// checkConfig compares what install.yaml asks for with what can be had. Versions are the
// bundle's to decide: another one in the file is a mistake.
func (in *installer) checkConfig() error {
	versions := make(map[string]string)
	for _, c := range in.contents.Describe() {
		versions[c.Name] = c.Version
	}
	in.k3s = versions[k3sComponent]
	if in.k3s == "" {
		return fmt.Errorf("%w: the bundle carries no component %q", ErrConfig, k3sComponent)
	}
	var errs []error
	differs := func(what, wanted, has string) {
		if wanted != "" && strings.TrimPrefix(wanted, "v") != strings.TrimPrefix(has, "v") {
			errs = append(errs, fmt.Errorf("%w: install.yaml asks for %s %s, the bundle carries %s: change install.yaml, or build a bundle with that version", ErrConfig, what, wanted, has))
		}
	}
	if n := len(in.Config.Cluster.Servers); n > 1 {
		errs = append(errs, fmt.Errorf("%w: install.yaml lists %d servers; this version of boxlift installs one, with any number of agents", ErrConfig, n))
	}
	differs("k3s", in.Config.K3sVersion(), in.k3s)
	if has, ok := versions["cilium"]; ok {
		differs("Cilium", in.Config.Network.Cilium.Version, has)
	}
	return errors.Join(errs...)
}

// run goes through the phases in their order.
func (in *installer) run(ctx context.Context) error {
	for _, phase := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"preflight", in.preflight},
		{"ship", in.ship},
		{"servers", in.servers},
		{"agents", in.agents},
		{"verify", in.verify},
	} {
		start := time.Now()
		err := phase.run(ctx)
		in.phases = append(in.phases, PhaseTime{phase.name, time.Since(start).Seconds()})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && !in.goesOn() {
			return in.hostErrors(in.unfinished()...)
		}
	}
	return in.hostErrors()
}

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
// server is well, agents that failed harm nobody else.
func (in *installer) goesOn() bool {
	return in.hosts[0].err == nil && in.passedPreflight()
}

func (in *installer) passedPreflight() bool {
	return !slices.ContainsFunc(in.hosts, func(h *host) bool { return h.refused })
}

// hostErrors joins the errors of all hosts; waiting names those that are well but
// could not be finished.
func (in *installer) hostErrors(waiting ...string) error {
	e := &HostsError{Total: len(in.hosts), Waiting: waiting}
	for _, h := range in.hosts {
		if h.err != nil {
			e.Failed = append(e.Failed, h.err)
		}
	}
	if len(e.Failed) == 0 {
		return nil
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
		b.WriteString("\n" + clip(printable(err.Error()), maxHostError))
	}
	if len(e.Waiting) > 0 {
		b.WriteString("\nnot gone on with because of that: " + strings.Join(e.Waiting, ", "))
	}
	return b.String()
}

// Unwrap gives the hosts' own errors and ErrHosts.
func (e *HostsError) Unwrap() []error { return append([]error{ErrHosts}, e.Failed...) }

// eachHost runs do on the hosts that have not failed, as many at a time as the
// configuration allows, and keeps their errors with them.
func (in *installer) eachHost(ctx context.Context, hosts []*host, do func(context.Context, *host) error) error {
	slots := make(chan struct{}, in.Config.Runtime.Parallelism)
	done := make(chan struct{})
	for _, h := range hosts {
		go func() {
			defer func() { done <- struct{}{} }()
			slots <- struct{}{}
			defer func() { <-slots }()
			if h.err != nil || ctx.Err() != nil {
				return
			}
			if err := do(ctx, h); err != nil {
				h.fail(err)
			}
		}()
	}
	for range hosts {
		<-done
	}
	for _, h := range hosts {
		if h.err != nil {
			return h.err
		}
	}
	return ctx.Err()
}

func (in *installer) close() {
	for _, h := range in.hosts {
		h.close()
	}
}

func (in *installer) summary() *Summary {
	s := &Summary{
		Cluster: in.Config.Cluster.Name, Bundle: in.Bundle.Digest().String(),
		DryRun: in.DryRun, Phases: in.phases,
	}
	for _, h := range in.hosts {
		one := HostSummary{
			Host: h.name, Role: h.config.Role, Changes: append([]Change{}, h.changes...),
			Sent: h.sent, Copied: h.copied, Images: h.images, K3s: h.k3s,
		}
		if h.err != nil {
			one.Error = h.err.Error()
		}
		s.Hosts = append(s.Hosts, one)
	}
	return s
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
