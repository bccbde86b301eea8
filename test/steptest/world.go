package steptest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/run"
)

// World is what a step changes that is about more than one host: a cluster, hosts, what is beside the state.
type World interface {
	// Snapshot describes everything that can change, without what differs each time that the same is done.
	Snapshot(t testing.TB) string
	// BreakAfter lets n more operations be done, and none after those; below 0 all are done (again).
	BreakAfter(n int)
	// Lost reports whether an error says that an operation was not done because of that.
	Lost(err error) bool
}

// Wide is a world, and a step that meets it.
type Wide struct {
	// Fresh makes the world as the step meets it, and what makes the step for a run: who goes on after a run that broke
	// off knows nothing of it.
	Fresh func(t *testing.T) (World, func() run.Step)
	// Why is a part of the reason why the step is needed, "" when it is not.
	Why string
}

// ProveIn is Prove for a step that is about more than one host. Each run looks before it acts, as the engine does.
func ProveIn(t *testing.T, c Wide) {
	t.Helper()
	w, making := c.Fresh(t)
	step, before := making(), w.Snapshot(t)
	reason, err := step.Needed(t.Context())
	if err != nil || (reason == "") != (c.Why == "") || !strings.Contains(reason, c.Why) {
		t.Fatalf("it is needed because %q, want %q: %v", reason, c.Why, err)
	}
	if diff := cmp.Diff(before, w.Snapshot(t)); diff != "" {
		t.Errorf("looking has changed something: %s", diff)
	}
	if step.ID == "" || step.Title == "" {
		t.Errorf("the step has the id %q and the title %q", step.ID, step.Title)
	}
	if c.Why == "" {
		return
	}
	do(t, step, "at once")
	if reason, err := making().Needed(t.Context()); reason != "" || err != nil {
		t.Errorf("the next run finds it needed: %q, %v", reason, err)
	}
	end := w.Snapshot(t)
	const most = 100
	for n := range most {
		w, making := c.Fresh(t)
		step := making()
		if _, err := step.Needed(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.BreakAfter(n)
		err := step.Run(t.Context())
		w.BreakAfter(-1)
		if err == nil { // it does no more than that
			if diff := cmp.Diff(end, w.Snapshot(t)); diff != "" {
				t.Errorf("it says that it is done when it is broken off after %d operations: %s", n, diff)
			}
			return
		}
		if !w.Lost(err) {
			t.Fatalf("broken off after %d operations: %v", n, err)
		}
		again := making()
		if reason, err := again.Needed(t.Context()); err != nil {
			t.Fatalf("looked at after it was broken off after %d operations: %v", n, err)
		} else if reason != "" {
			do(t, again, "again")
		}
		if diff := cmp.Diff(end, w.Snapshot(t)); diff != "" {
			t.Errorf("broken off after %d operations and done again, it comes to another end: %s", n, diff)
		}
	}
	t.Errorf("it does more than %d operations", most)
}
