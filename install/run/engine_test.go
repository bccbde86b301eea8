package run

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
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
	in.engine.Mode = Inspect
	broken := errors.New("the API does not answer")
	last := false
	err := in.engine.Run(t.Context(), []Phase{
		{"converge", func(context.Context) error { return broken }},
		{"finish", func(context.Context) error { last = true; return nil }},
	})
	if !errors.Is(err, broken) || !errors.Is(err, site.ErrCluster) || !last {
		t.Errorf("got %v, went on: %v; want the error of the phase that failed, and to go on", err, last)
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
