package k3s

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// afterPower are three servers as they are after all of them were off: members of etcd with k3s in a state each, "-"
// for one that has not joined.
func afterPower(t *testing.T, states ...string) *rotating {
	t.Helper()
	_, fakes := reached(t, sitetest.ThreeServers)
	w := &rotating{fakes: fakes}
	for i, state := range states {
		if state == "-" {
			continue
		}
		fakes[i].WriteFile(t, K3sDatabases+"/etcd/member/wal", "", 0o600)
		switch unit := fakes[i].Unit("k3s"); state {
		case "active":
			unit.Runs()
		case "activating":
			unit.Starting(0)
		}
	}
	return w
}

// startMembers is that phase of a run that acts.
func (in *installation) startMembers(t *testing.T) error {
	t.Helper()
	if err := in.engine.Journal.Begin(journal.Run{Command: "install"}); err != nil {
		t.Fatal(err)
	}
	return in.engine.Apply(t.Context(), []run.Phase{{Name: "majority", Look: in.cluster.StartMembers}})
}

// starts is how often k3s was started on each server.
func (w *rotating) starts() []int {
	var all []int
	for _, f := range w.fakes[:3] {
		all = append(all, f.Unit("k3s").Starts())
	}
	return all
}

// Members of etcd that would wait for each other are started together, enabled, and each once; others are left alone.
func TestStartMembers(t *testing.T) {
	for _, test := range []struct {
		name   string
		states []string
		set    func(*installation)
		starts []int
		moved  bool
	}{
		{name: "all were off", states: []string{"inactive", "inactive", "inactive"}, starts: []int{1, 1, 1}},
		{name: "one starts already", states: []string{"activating", "inactive", "inactive"}, starts: []int{0, 1, 1}},
		{name: "one runs", states: []string{"inactive", "active", "inactive"}, starts: []int{0, 0, 0}},
		{name: "one has not joined", states: []string{"inactive", "-", "inactive"}, starts: []int{1, 0, 1}},
		{name: "a new cluster", states: []string{"-", "-", "-"}, starts: []int{0, 0, 0}},
		{name: "a restore has stopped them", states: []string{"inactive", "inactive", "inactive"},
			set: func(in *installation) { in.cluster.Restoration = &Restoration{} }, starts: []int{0, 0, 0}},
		{name: "in the middle of an upgrade", states: []string{"inactive", "inactive", "inactive"},
			set: func(in *installation) { in.cluster.Crossing.Minor = true }, starts: []int{1, 1, 1}, moved: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := afterPower(t, test.states...)
			in := w.anew(t)
			if test.set != nil {
				test.set(in)
			}
			if err := in.startMembers(t); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.starts, w.starts()); diff != "" || in.cluster.Crossing.Moved != test.moved {
				t.Errorf("moved %t, started: %s", in.cluster.Crossing.Moved, diff)
			}
			for i, f := range w.fakes[:3] {
				state, err := machine.FindService(t.Context(), f, "k3s")
				if err != nil || test.starts[i] > 0 && !state.Enabled {
					t.Errorf("server %d would not start with its host: %v", i, err)
				}
			}
		})
	}
}

// None is waited for, so that one that does not come up keeps none of the others from it; and wherever it is broken
// off, the next run has a majority run, and starts none once more.
func TestStartMembersGoesOn(t *testing.T) {
	const inactive = "inactive"
	w := afterPower(t, inactive, inactive, inactive)
	w.fakes[0].Unit("k3s").OnStart(func(*hosttest.Fake) error { return errors.New("no") })
	if err := w.anew(t).startMembers(t); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]int{1, 1, 1}, w.starts()); diff != "" {
		t.Error(diff)
	}
	// A server whose state is not known may be the one that is missing: nothing is started on a guess.
	w = afterPower(t, inactive, inactive, inactive)
	w.fakes[1].FailNext("systemctl", 1, "Failed to connect to bus\x1b[2J")
	err := w.anew(t).startMembers(t)
	if err == nil || !strings.Contains(err.Error(), "Failed to connect to bus") ||
		strings.Contains(err.Error(), "\x1b") {
		t.Error(err)
	}
	if diff := cmp.Diff([]int{0, 0, 0}, w.starts()); diff != "" {
		t.Error(diff)
	}
	for server := range 3 {
		for n := 0; ; n++ {
			w := afterPower(t, inactive, inactive, inactive)
			w.fakes[server].BreakAfter(n)
			err := w.anew(t).startMembers(t)
			w.fakes[server].BreakAfter(-1)
			if err != nil && !w.Lost(err) {
				t.Fatal(err)
			}
			if again := w.anew(t).startMembers(t); again != nil {
				t.Fatal(again)
			}
			running := 0
			for i, f := range w.fakes[:3] {
				if f.Unit("k3s").Active() == "active" {
					running++
				}
				if f.Unit("k3s").Starts() > 1 {
					t.Errorf("server %d breaks after %d commands: %d was started more than once", server, n, i)
				}
			}
			if running < 2 {
				t.Errorf("server %d breaks after %d commands: %d servers are no majority", server, n, running)
			}
			if err == nil {
				break
			}
		}
	}
}
