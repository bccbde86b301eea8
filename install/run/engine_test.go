package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/sitetest"
)

func TestHostsErrorNamesThemAll(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	in.site.Hosts[0].Fail(errors.New("it is on fire"))
	in.site.Hosts[0].Fail(errors.New("a later error adds nothing"))
	err := in.engine.HostErrors(in.engine.unfinished()...)
	want := "1 of 2 hosts failed\nfirst (10.0.0.11): it is on fire\nnot gone on with because of that: 10.0.0.12"
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(err, site.ErrHosts) {
		t.Error("it is not ErrHosts")
	}
}

// A cluster that cannot be looked at must not pass for one that is as it is to be.
func TestInspectTellsWhatItCouldNotSee(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	broken := errors.New("the API does not answer")
	last := false
	err := in.engine.Look(t.Context(), []Phase{
		{Name: "converge", Look: func(context.Context) error { return broken }},
		{Name: "verify", Look: func(context.Context) error { last = true; return nil }},
	})
	if !errors.Is(err, broken) || !errors.Is(err, site.ErrCluster) || !last {
		t.Errorf("got %v, went on: %v; want the error of the phase that failed, and to go on", err, last)
	}
	// What would be refused is told as that, not as a cluster that cannot be looked at.
	refused := fmt.Errorf("%w: it holds data", site.ErrRefused)
	err = in.engine.Look(t.Context(), []Phase{{Name: "remove", Look: func(context.Context) error { return refused }}})
	if !errors.Is(err, site.ErrRefused) || errors.Is(err, site.ErrCluster) {
		t.Errorf("got %v", err)
	}
}

// Which phases a run has: who only looks leaves out what goes ahead of others, a gate ends both kinds, any other
// failure only what acts.
func TestPhases(t *testing.T) {
	broken := errors.New("broken")
	var done []string
	phase := func(name string, err error) Phase {
		return Phase{Name: name, Look: func(context.Context) error {
			done = append(done, name)
			return err
		}}
	}
	ahead, gate, closed, without, fails := phase("ahead", nil), phase("gate", nil), phase("closed", broken), phase("without", nil), phase("fails", broken)
	ahead.Ahead, gate.Gate, closed.Gate, without.If = true, true, true, func() bool { return false }
	last := phase("last", nil)
	for _, test := range []struct {
		name   string
		phases []Phase
		looked string
		acted  string
		failed bool
	}{
		{"all is well", []Phase{gate, ahead, last}, "gate last", "gate ahead last", false},
		{"one that does not come", []Phase{without, last}, "last", "last", false},
		{"a gate that does not open", []Phase{closed, last}, "closed", "closed", true},
		{"a failure", []Phase{fails, last}, "fails last", "fails", true},
	} {
		for acts, want := range map[bool]string{false: test.looked, true: test.acted} {
			in := example(t, sitetest.ExampleConfig)
			done = nil
			goThrough := in.engine.Look
			if acts {
				goThrough = in.engine.Apply
			}
			err := goThrough(t.Context(), test.phases)
			if got := strings.Join(done, " "); got != want || errors.Is(err, broken) != test.failed {
				t.Errorf("%s, acts: %t: %q, %v, want %q", test.name, acts, got, err, want)
			}
		}
	}
}

// screen is a terminal of which only the last drawing is kept.
type screen struct {
	mu   sync.Mutex
	last string
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = string(p)
	return len(p), nil
}

// await waits until a drawing has all of the texts.
func (s *screen) await(t *testing.T, texts ...string) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		last := s.last
		s.mu.Unlock()
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(last, text) }) {
			return
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("%q is not drawn within a minute; the last drawing is %q", texts, last)
		}
	}
}

// A terminal shows a run as it goes: phases, what hosts do, which have failed, what is waited for.
func TestRunOnATerminal(t *testing.T) {
	in := withState(t)
	var s screen
	display := progress.NewTerminal(&s, func() progress.Size { return progress.Size{Columns: 100, Rows: 30} })
	in.site.Reporter = display
	in.engine.Took = map[string]time.Duration{"servers": time.Minute, "agents": 5 * time.Minute, "verify": 5 * time.Minute}
	server, agent := in.site.Hosts[0], in.site.Hosts[1]
	needed := func(context.Context) (string, error) { return "it is not there", nil }
	phases := []Phase{
		{Name: "servers", Look: func(ctx context.Context) error {
			return in.engine.InTurn(ctx, in.site.Hosts, func(ctx context.Context, h *site.Host) error {
				return in.engine.RunSteps(ctx, "servers", &h.Subject, []Step{{ID: "place", Title: "place it", Needed: needed,
					Run: func(ctx context.Context) error {
						if h == agent {
							s.await(t, server.Name+"  done, 1 change", agent.Name+"          place it")
							return errors.New("no space left on device")
						}
						return in.site.Waiting(ctx, "wait for the API on "+h.Name, func(context.Context) error {
							in.site.Awaits(h.Name)("its node is not registered")
							s.await(t, "install, cluster example, phase 1 of 2", "about 6m left", "running  servers",
								server.Name+"  place it: wait for the API", "its node is not registered",
								agent.Name+"          to come", "to come  verify")
							return nil
						})
					}}})
			})
		}},
		{Name: "left out", If: func() bool { return false }},
		{Name: "verify", Look: func(context.Context) error {
			s.await(t, "FAILED   servers", "running  verify", agent.Name+"  FAILED: place it: no space left on device")
			return nil
		}},
	}
	if err := in.engine.Apply(t.Context(), phases); !errors.Is(err, site.ErrHosts) {
		t.Errorf("got %v", err)
	}
	if err := display.Close(); err != nil {
		t.Error(err)
	}
}

// A proof is no change. Who looks is told what it would wait for, unless something is changed before it; who acts
// waits, each time.
func TestProofs(t *testing.T) {
	waited := 0
	proof := Step{ID: "await", Title: "wait for it", Proves: true,
		Needed: func(context.Context) (string, error) { return "it is not there", nil },
		Run:    func(context.Context) error { waited++; return nil }}
	change := Step{ID: "make", Title: "make it",
		Needed: func(context.Context) (string, error) { return "it is missing", nil },
		Run:    func(context.Context) error { return nil }}
	silent := proof
	silent.Needed = nil
	for _, test := range []struct {
		name  string
		steps []Step
		want  []string
	}{
		{"by itself", []Step{proof}, []string{"it is not there"}},
		{"after a change", []Step{change, proof}, nil},
		{"before a change", []Step{proof, change}, []string{"it is not there"}},
		{"one that says nothing", []Step{silent}, nil},
	} {
		in := example(t, sitetest.ExampleConfig)
		h := in.site.Hosts[0]
		if err := in.engine.Look(t.Context(), []Phase{{Name: "x", Look: func(ctx context.Context) error {
			return in.engine.RunSteps(ctx, "x", &h.Subject, test.steps)
		}}}); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(test.want, h.Differences); diff != "" || waited != 0 {
			t.Errorf("%s: waited %d times: %s", test.name, waited, diff)
		}
		if n := len(in.engine.Summary().Warnings); n != len(test.want) {
			t.Errorf("%s: the summary has %d warnings", test.name, n)
		}
	}
	in := example(t, sitetest.ExampleConfig)
	for range 2 {
		if err := in.engine.Apply(t.Context(), []Phase{{Name: "x", Look: func(ctx context.Context) error {
			return in.engine.RunSteps(ctx, "x", &in.engine.Cluster, []Step{proof, silent})
		}}}); err != nil {
			t.Error(err)
		}
	}
	if waited != 4 || in.engine.Cluster.Changes != nil || in.engine.Cluster.Differences != nil {
		t.Errorf("waited %d times: %+v", waited, in.engine.Cluster)
	}
	silent.Run = func(context.Context) error { return errors.New("given up") }
	if err := in.engine.RunSteps(t.Context(), "x", &in.engine.Cluster, []Step{silent, change}); err == nil ||
		err.Error() != "wait for it: given up" {
		t.Errorf("got %v", err)
	}
}

// Hosts in turn: what acts ends with the first that fails, who looks sees them all.
func TestInTurn(t *testing.T) {
	for acts, want := range map[bool]int{false: 2, true: 1} {
		in := example(t, sitetest.ExampleConfig)
		in.engine.acts = acts
		seen := 0
		err := in.engine.InTurn(t.Context(), in.site.Hosts, func(context.Context, *site.Host) error {
			seen++
			return errors.New("broken")
		})
		if err == nil || seen != want {
			t.Errorf("acts: %t: %d hosts, %v", acts, seen, err)
		}
	}
}

// A removal that was broken off between its last two steps is remembered.
func TestLeftBehind(t *testing.T) {
	left := func(node, address string) journal.Left {
		return journal.Left{Host: node + " (" + address + ")", Address: address, Node: node}
	}
	a, b, c := left("a", "10.0.0.1"), left("b", "10.0.0.2"), left("c", "10.0.0.3")
	leaves := func(left journal.Left, result journal.Result) journal.Step {
		return journal.Step{Phase: "converge", Host: left.Host, Result: result, Leaves: &left}
	}
	takes := func(left journal.Left, result journal.Result) journal.Step {
		return journal.Step{Phase: "converge", Host: left.Host, Result: result, Takes: true}
	}
	steps := []journal.Step{
		leaves(a, journal.Done), takes(a, journal.Done), leaves(b, journal.Done), takes(b, journal.Running), leaves(c, journal.Running),
		{Phase: "converge", Host: "d (10.0.0.4)", Result: journal.Failed}, leaves(left("e", "10.0.0.5"), journal.Failed),
	}
	want := []journal.Left{b, c}
	for result, want := range map[journal.Result][]journal.Left{journal.Running: want, journal.Failed: want, journal.Done: nil} {
		if diff := cmp.Diff(want, LeftBehind(journal.State{Version: journal.Version, Result: result, Steps: steps})); diff != "" {
			t.Errorf("after a run that is %s (-want +got):\n%s", result, diff)
		}
	}
	// Nor is it forgotten when the run that is to go on with it breaks off, too.
	again := journal.State{Version: journal.Version, Result: journal.Running, Run: journal.Run{Left: want}, Steps: []journal.Step{takes(b, journal.Done)}}
	if diff := cmp.Diff(want[1:], LeftBehind(again)); diff != "" {
		t.Errorf("after the next run (-want +got):\n%s", diff)
	}
}

// As many hosts are worked on at once as install.yaml allows, and one's error is its own.
func TestEachHost(t *testing.T) {
	in := example(t, strings.Replace(sitetest.ExampleConfig, "network:\n", "runtime: {parallelism: 2}\nnetwork:\n", 1))
	for range 6 {
		in.site.Hosts = append(in.site.Hosts, &site.Host{Subject: site.Subject{Name: "another"}})
	}
	var now, most, done atomic.Int32
	broken := errors.New("it is on fire")
	err := in.engine.EachHost(t.Context(), in.site.Hosts, func(_ context.Context, h *site.Host) error {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		done.Add(1)
		time.Sleep(2 * time.Millisecond)
		if h == in.site.Hosts[3] {
			return broken
		}
		return nil
	})
	if most.Load() > 2 || done.Load() != 8 || !errors.Is(err, broken) {
		t.Errorf("%d at once, %d done, %v", most.Load(), done.Load(), err)
	}
	for i, h := range in.site.Hosts {
		if (h.Err != nil) != (i == 3) {
			t.Errorf("host %d: %v", i, h.Err)
		}
	}
}

// Agents that failed harm nobody else, whoever has wrapped their errors; servers do, and so does
// what is of no host.
func TestGoesOn(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	server, agent := in.site.Hosts[0], in.site.Hosts[1]
	cause := errors.New("it is on fire")
	if !in.engine.GoesOn(cause) {
		t.Error("looking ends with a failure")
	}
	in.engine.acts = true
	if in.engine.GoesOn(fault.OnHost(cause, agent.Name)) {
		t.Error("it goes on after an error of a host that has not failed")
	}
	agent.Fail(cause)
	for _, test := range []struct {
		name string
		err  error
		want bool
	}{
		{"the agent's", agent.Err, true},
		{"in a text", fmt.Errorf("ship: %w", agent.Err), true},
		{"joined", errors.Join(cause, agent.Err), true},
		{"of no host", cause, false},
		{"of the server", fault.OnHost(cause, server.Name), false},
	} {
		if got := in.engine.GoesOn(test.err); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
	server.Fail(cause)
	if in.engine.GoesOn(agent.Err) {
		t.Error("it goes on without a server")
	}
}

// What fails for the cluster as a whole ends with the command to run next, as hosts' failures do.
func TestFailureOfCluster(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	cause := errors.New("not rolled out")
	err := in.engine.failure("network", cause)
	hint := strings.Join(fault.Hints(err), "")
	if !errors.Is(err, site.ErrCluster) || !errors.Is(err, cause) || !strings.Contains(hint, "run the same command again") {
		t.Errorf("%v", err)
	}
	if want := "the cluster cannot be brought to what was asked for: network: not rolled out"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if err := in.engine.failure("network", fmt.Errorf("%w: no", site.ErrRefused)); errors.Is(err, site.ErrCluster) || !errors.Is(err, site.ErrRefused) {
		t.Errorf("what is refused: %v", err)
	}
}
