package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// withState is a run that acts on an example, with its state open.
func withState(t *testing.T) *installation {
	t.Helper()
	in := example(t, sitetest.ExampleConfig)
	in.site.StatePath = t.TempDir() + "/state.json"
	in.engine.acts, in.engine.Command = true, "install"
	in.begin(t)
	return in
}

// What the state says of steps is what resume, and the people who ask what happened, have: also of one in the middle of
// which boxlift ends.
func TestStepsInTheState(t *testing.T) {
	in := withState(t)
	h := in.site.Hosts[0]
	var later func(error) error
	failed := errors.New("no space left on device")
	named := func(id string, s Step) Step {
		s.ID, s.Title = id, id+" it"
		return s
	}
	unneeded := func(context.Context) (string, error) { return "", nil }
	lined := named("line-up", step(func() error { return nil }))
	lined.Later = &later
	err := in.engine.RunSteps(t.Context(), "servers", &h.Subject, []Step{
		named("keep", Step{Needed: unneeded}),
		named("make", step(func() error {
			last, err := journal.Read(in.site.StatePath)
			if s := last.Steps[len(last.Steps)-1]; err != nil || s.ID != "make" || s.Result != journal.Running {
				t.Errorf("in the middle of it: %+v, %v", s, err)
			}
			return nil
		})),
		lined,
		named("break", step(func() error { return failed })),
		named("never", step(func() error { t.Error("it is done after a failure"); return nil })),
	})
	if !errors.Is(err, failed) || !strings.HasPrefix(err.Error(), "break it: ") {
		t.Errorf("got %v", err)
	}
	states := func() []string {
		last, err := journal.Read(in.site.StatePath)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, s := range last.Steps {
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s %d %s", s.Host, s.ID, s.Result, s.Attempts, s.Error)))
		}
		return all
	}
	want := []string{
		h.Name + " keep unchanged 0", h.Name + " make done 1", h.Name + " line-up running 1",
		h.Name + " break failed 1 no space left on device",
	}
	if diff := cmp.Diff(want, states()); diff != "" {
		t.Error(diff)
	}
	// What was lined up ends when it has been done together with that of others; what failed, found done, has been
	// done.
	if err := later(nil); err != nil {
		t.Error(err)
	}
	if err := in.engine.RunSteps(t.Context(), "servers", &h.Subject, []Step{named("break", Step{Needed: unneeded}),
		named("make", step(func() error { return nil }))}); err != nil {
		t.Error(err)
	}
	want[1], want[2], want[3] = h.Name+" make done 2", h.Name+" line-up done 1", h.Name+" break done 1"
	if diff := cmp.Diff(want, states()); diff != "" {
		t.Error(diff)
	}
}

// A step whose beginning cannot be noted is not done: nobody would know of it.
func TestNoStepWithoutState(t *testing.T) {
	in := withState(t)
	if err := os.RemoveAll(in.site.StatePath[:strings.LastIndex(in.site.StatePath, "/")]); err != nil {
		t.Fatal(err)
	}
	done := false
	err := in.engine.RunSteps(t.Context(), "servers", &in.engine.Cluster, []Step{step(func() error { done = true; return nil })})
	if err == nil || done || !strings.Contains(err.Error(), "write the state") {
		t.Errorf("done: %t, %v", done, err)
	}
}

// Who only looks is told of what would follow from a change, and not of what would not.
func TestStepsThatFollow(t *testing.T) {
	unneeded := func(context.Context) (string, error) { return "", nil }
	change, alone := step(nil), step(nil)
	alone.Alone = true
	restart := Step{ID: "restart", Title: "start it", Needed: unneeded, Follows: true}
	other := Step{ID: "other", Title: "another", Needed: unneeded}
	for _, test := range []struct {
		name  string
		steps []Step
		acts  bool
		want  []string
	}{
		{name: "after a change", steps: []Step{change, other, restart},
			want: []string{"do: it is missing", "restart: what it depends on changes"}},
		{name: "before it", steps: []Step{restart, change}, want: []string{"do: it is missing"}},
		{name: "after what stands alone", steps: []Step{alone, restart}, want: []string{"do: it is missing"}},
		{name: "who acts asks the step itself", steps: []Step{step(func() error { return nil }), restart}, acts: true,
			want: []string{"do: it is missing"}},
	} {
		in := withState(t)
		in.engine.acts = test.acts
		h := in.site.Hosts[0]
		if err := in.engine.RunSteps(t.Context(), "servers", &h.Subject, test.steps); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		var got []string
		for _, c := range h.Changes {
			got = append(got, c.ID+": "+c.Reason)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
		// Other steps do not follow from it, neither those of another phase nor those of the same one.
		for _, phase := range []string{"agents", "servers"} {
			if err := in.engine.RunSteps(t.Context(), phase, &h.Subject, []Step{restart}); err != nil {
				t.Error(err)
			}
			if n := len(h.Changes); n != len(got) {
				t.Errorf("%s: a change of other steps is followed in phase %s", test.name, phase)
			}
		}
	}
	// What cannot be looked at says of which step that is.
	in := withState(t)
	broken := Step{ID: "x", Title: "look for it", Needed: func(context.Context) (string, error) { return "", hosttest.ErrLost }}
	if err := in.engine.RunSteps(t.Context(), "servers", &in.engine.Cluster, []Step{broken, change}); !errors.Is(err, hosttest.ErrLost) ||
		!strings.HasPrefix(err.Error(), "look for it: ") || in.engine.Cluster.Changes != nil {
		t.Errorf("got %v", err)
	}
}

// After a failure and after Ctrl-C, what a run has left lying on its hosts goes; hosts that were not its own, it does
// not touch, and packs that are not whole stay for the next run.
func TestCleaning(t *testing.T) {
	pressed := errors.New("Ctrl-C")
	failed := errors.New("not rolled out")
	for _, test := range []struct {
		name            string
		phase           string
		fails           error
		interrupt       bool
		looks, isPacked bool
		held, helper    bool
		want            string // part of the command on the host, "" for none
	}{
		{name: "a failure", phase: "network", fails: failed, held: true, helper: true, want: "clean -age 1s -dir /usr/local/bin"},
		{name: "Ctrl-C", phase: "network", interrupt: true, held: true, helper: true, want: "clean -age 1s"},
		{name: "all packs are there", phase: "network", fails: failed, held: true, helper: true, isPacked: true, want: "-unfinished"},
		{name: "a host that is not the run's", phase: "network", fails: failed, helper: true},
		{name: "without boxlift-node", phase: "network", fails: failed, held: true},
		{name: "who only looks", phase: "network", fails: failed, looks: true, held: true, helper: true},
		{name: "the phase that cleans itself", phase: "finish", fails: failed, held: true, helper: true},
		{name: "no failure", phase: "network", held: true, helper: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := withState(t)
			f := sitetest.NewHost(t, "first", nil)
			if test.helper {
				f.WriteFile(t, site.HelperPath, "", 0o755)
			}
			var asked []string
			f.Program("boxlift-node", func(_ context.Context, c *hosttest.Call) int {
				asked = append(asked, strings.Join(c.Args, " "))
				return 0
			})
			in.site.Hosts = in.site.Hosts[:1]
			h := in.site.Hosts[0]
			h.Conn, h.Held, h.Shipped = f, test.held, test.isPacked
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			later := false
			goThrough := in.engine.Apply
			if test.looks {
				goThrough = in.engine.Look
				in.engine.acts = false
			}
			err := goThrough(ctx, []Phase{
				{Name: test.phase, Look: func(context.Context) error {
					if test.interrupt {
						cancel(pressed)
					}
					return test.fails
				}},
				{Name: "last", Look: func(context.Context) error { later = true; return nil }},
			})
			switch {
			case test.interrupt && err != pressed: //nolint:errorlint // what the user did is said by itself
				t.Errorf("got %v", err)
			case !test.interrupt && !errors.Is(err, test.fails):
				t.Errorf("got %v", err)
			}
			if later == (test.interrupt || test.fails != nil && !test.looks) {
				t.Errorf("it went on: %t", later)
			}
			if got := strings.Join(asked, "\n"); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("asked %q, want %q", got, test.want)
			}
			if !test.isPacked && slices.ContainsFunc(asked, func(s string) bool { return strings.Contains(s, "-unfinished") }) {
				t.Error("packs that the next run goes on with are removed")
			}
		})
	}
}

// Agents that failed hold up no others, unless the verb says so; a run that stops between agents says so in its own
// words; and those that are well but could not be finished are named.
func TestAgentsThatFail(t *testing.T) {
	broken := errors.New("it does not start")
	for _, test := range []struct {
		name     string
		fails    func(*installation) error
		change   func(*installation)
		goesOn   bool
		contains []string
	}{
		{name: "an agent", fails: func(in *installation) error { in.site.Hosts[1].Fail(broken); return in.site.Hosts[1].Err },
			goesOn: true, contains: []string{"1 of 2 hosts failed\n10.0.0.12: it does not start"}},
		{name: "an agent, where that is not tolerated",
			change:   func(in *installation) { in.engine.Tolerates = func() bool { return false } },
			fails:    func(in *installation) error { in.site.Hosts[1].Fail(broken); return in.site.Hosts[1].Err },
			contains: []string{"not gone on with because of that: first (10.0.0.11)"}},
		{name: "one that preflight refused",
			change:   func(in *installation) { in.site.Hosts[1].Refused = true },
			fails:    func(in *installation) error { in.site.Hosts[1].Fail(broken); return in.site.Hosts[1].Err },
			contains: []string{"10.0.0.12: it does not start"}},
		{name: "a server", fails: func(in *installation) error { in.site.Hosts[0].Fail(broken); return in.site.Hosts[0].Err },
			contains: []string{"first (10.0.0.11): it does not start", "not gone on with because of that: 10.0.0.12"}},
		{name: "a batch", fails: func(in *installation) error {
			in.site.Hosts[1].Fail(broken)
			return &BatchError{HostsError: in.engine.Failures(), Untouched: []string{"10.0.0.13"}}
		}, change: func(in *installation) { in.engine.Tolerates = func() bool { return false } },
			contains: []string{"not touched because of that: 10.0.0.13"}},
	} {
		in := withState(t)
		if test.change != nil {
			test.change(in)
		}
		later := false
		err := in.engine.Apply(t.Context(), []Phase{
			{Name: "agents", Look: func(context.Context) error { return test.fails(in) }},
			{Name: "last", Look: func(context.Context) error { later = true; return nil }},
		})
		if later != test.goesOn || !errors.Is(err, site.ErrHosts) || !errors.Is(err, broken) {
			t.Errorf("%s: it went on: %t, %v", test.name, later, err)
			continue
		}
		kubetest.Contains(t, err.Error(), test.contains...)
		if hints := fault.Hints(err); len(hints) == 0 || !strings.Contains(hints[0], "mended") && !strings.Contains(hints[0], "mend the cause") {
			t.Errorf("%s: hints %q", test.name, fault.Hints(err))
		}
	}
}

// What hosts say reaches the terminal without its control characters, and not in full.
func TestHostsErrorIsPrintable(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	in.site.Hosts[0].Fail(errors.New("\x1b]0;owned\a" + strings.Repeat("x", 1<<20)))
	in.site.Hosts[1].Fail(fault.WithHint(errors.New("\u202egnp.exe"), "mend it"))
	err := in.engine.HostErrors()
	if text := err.Error(); len(text) > 2*MaxHostError || strings.ContainsAny(text, "\x1b\a\u202e") {
		t.Errorf("%d bytes: %.200q", len(text), text)
	}
	// A host's own hint is better than the common one.
	if diff := cmp.Diff([]string{"mend it"}, fault.Hints(err)); diff != "" {
		t.Error(diff)
	}
}

// Each scope is a command and a verb of its own, by which resume and the record know it again.
func TestScopes(t *testing.T) {
	for _, s := range []Scope{Everything, OnlyLiteBoxd, WithoutLiteBoxd} {
		verb, back := journal.OfCommand(s.Command())
		if verb != s.Verb() || back != 0 {
			t.Errorf("%q is the verb %q, want %q", s.Command(), verb, s.Verb())
		}
		if got, ok := ScopeOf(s.Verb()); got != s || !ok {
			t.Errorf("%q is of the scope %v", s.Verb(), got)
		}
	}
	if _, ok := ScopeOf(journal.Upgrade); ok {
		t.Error("an upgrade is an installation")
	}
}
