package setup

import (
	"context"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/steptest"
)

// A file that only root can read is written where it is missing, is another one, or may be read by others.
func TestFileStep(t *testing.T) {
	const name, content = "/etc/rancher/k3s/config.yaml", "a: 1\n"
	for _, test := range []struct {
		name string
		make func(*testing.T, *hosttest.Fake)
		why  string
	}{
		{"missing", func(*testing.T, *hosttest.Fake) {}, name + " is missing"},
		{"another one", func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, name, "a: 2\n", 0o600) }, name + " differs"},
		{"for everybody", func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, name, content, 0o644) }, "another mode or owner"},
		{"as it is to be", func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, name, content, 0o600) }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f := hosttest.New(t, "a")
				test.make(t, f)
				last = f
				return f, FileStep(&site.Host{Conn: f}, "write the config", name, []byte(content))
			}})
			if got := last.ReadFile(t, name); got != content {
				t.Errorf("it has %q", got)
			}
		})
	}
}

// A service is started again when what it runs with is not what it was started with, and where it does not run.
func TestStartReason(t *testing.T) {
	const service, started = "k3s", "/var/lib/boxlift/k3s-started"
	for _, test := range []struct {
		name string
		make func(*testing.T, *hosttest.Fake)
		want string
	}{
		{"it runs", func(t *testing.T, f *hosttest.Fake) { f.Unit(service).Runs(); f.WriteFile(t, started, "one\n", 0o600) }, ""},
		{"it runs with another config", func(t *testing.T, f *hosttest.Fake) {
			f.Unit(service).Runs()
			f.WriteFile(t, started, "two\n", 0o600)
		}, "changed since it was started"},
		{"nobody knows what it runs with", func(_ *testing.T, f *hosttest.Fake) { f.Unit(service).Runs() }, "changed since it was started"},
		{"it does not run", func(_ *testing.T, f *hosttest.Fake) { f.Unit(service) }, "the service is inactive"},
		{"there is none", func(*testing.T, *hosttest.Fake) {}, "the service is inactive"},
	} {
		f := hosttest.New(t, "a")
		test.make(t, f)
		before := f.Snapshot(t)
		got, err := StartReason(t.Context(), &site.Host{Conn: f}, service, started, func(context.Context) (string, error) { return "one", nil })
		if err != nil || (got == "") != (test.want == "") || !strings.Contains(got, test.want) || f.Snapshot(t) != before {
			t.Errorf("%s: got %q, %v, want %q", test.name, got, err, test.want)
		}
	}
}

// What has to be started again is noted before anything is changed: else a run that dies in between leaves a service
// with what it had.
func TestRestarting(t *testing.T) {
	const started = "/var/lib/boxlift/k3s-started"
	f := hosttest.New(t, "a")
	f.WriteFile(t, started, "one\n", 0o600)
	h := &site.Host{Conn: f}
	step := Restarting(h, started, FileStep(h, "write the config", "/etc/a", []byte("a")))
	f.BreakAfter(2) // after the note
	if err := step.Run(t.Context()); err == nil {
		t.Error("the connection was not lost")
	}
	f.BreakAfter(-1)
	if got := f.ReadFile(t, started); got != "" || !step.Starts {
		t.Errorf("%s has %q", started, got)
	}
}
