// Package steptest proves, on hosts of package hosttest, what every step of the engine promises.
package steptest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
)

// Case is a host, and a step that meets it.
type Case struct {
	// Fresh makes the host as the step meets it, and the step, anew each time that it is called.
	Fresh func(t *testing.T) (*hosttest.Fake, run.Step)
	// Why is a part of the reason why the step is needed, "" when it is not.
	Why string
}

// Prove goes through what a step promises: it says why it is needed, or that it is not, and changes nothing by looking;
// done, it is not needed any more; and broken off after any of its commands and done again, it comes to the same end.
func Prove(t *testing.T, c Case) {
	t.Helper()
	f, step := c.Fresh(t)
	before := f.Snapshot(t)
	reason, err := step.Needed(t.Context())
	if err != nil || (reason == "") != (c.Why == "") || !strings.Contains(reason, c.Why) {
		t.Fatalf("it is needed because %q, want %q: %v", reason, c.Why, err)
	}
	if diff := cmp.Diff(before, f.Snapshot(t)); diff != "" {
		t.Errorf("looking has changed the host: %s", diff)
	}
	if step.ID == "" || step.Title == "" {
		t.Errorf("the step has the id %q and the title %q", step.ID, step.Title)
	}
	if c.Why == "" {
		return
	}
	do(t, step, "at once")
	end := f.Snapshot(t)
	const most = 100
	for n := range most {
		f, step := c.Fresh(t)
		f.BreakAfter(n)
		err := step.Run(t.Context())
		f.BreakAfter(-1)
		if err == nil {
			return // it has no more commands than that
		}
		if !errors.Is(err, hosttest.ErrLost) {
			t.Fatalf("broken off after %d commands: %v", n, err)
		}
		if reason, err := step.Needed(t.Context()); err != nil {
			t.Fatalf("looked at after it was broken off after %d commands: %v", n, err)
		} else if reason != "" {
			do(t, step, "again")
		}
		if diff := cmp.Diff(end, f.Snapshot(t)); diff != "" {
			t.Errorf("broken off after %d commands and done again, it comes to another end: %s", n, diff)
		}
	}
	t.Errorf("it has more than %d commands", most)
}

// do carries a step out, after which it must not be needed.
func do(t *testing.T, step run.Step, how string) {
	t.Helper()
	if err := step.Run(t.Context()); err != nil {
		t.Fatalf("done %s: %v", how, err)
	}
	if reason, err := step.Needed(context.WithoutCancel(t.Context())); reason != "" || err != nil {
		t.Errorf("done %s, it is still needed: %q, %v", how, reason, err)
	}
}
