package renewal

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/adoption"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/renewal"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const text = `cluster:
  servers: [{host: 10.0.0.11, agent: true, name: first, k3s: {config: {kubelet-arg: [port=1, "--port=10251", address=10.0.0.11]}}}]
  agents: [{host: 10.0.0.21, agent: true}]
`

const off = "  renewCertificates: false\n"

const program = "the program"

// keeper keeps the timers of an install.yaml, with a bundle that carries the program.
func keeper(t *testing.T, text string) *Keeper {
	t.Helper()
	s := sitetest.Example(t, text)
	s.Contents.Files = []bundle.File{{Component: bundle.ProgramsComponent, Name: bundle.NodeProgram, Platform: "linux/amd64",
		Digest: digest.FromString(program), Size: int64(len(program))}}
	for _, h := range s.Hosts {
		h.Platform, h.Hostname = "linux/amd64", "Worker"
	}
	return &Keeper{Site: s, Engine: &run.Engine{Site: s, Holds: run.NewHolds()}}
}

// onHost is a host of that, by its place, with boxlift-node on it, on which the steps before the named one were done.
func onHost(t *testing.T, text string, place int, id string) (*hosttest.Fake, *Keeper, run.Step) {
	t.Helper()
	k := keeper(t, text)
	h := k.Site.Hosts[place]
	f := hosttest.New(t, h.Name)
	h.Conn = f
	f.Unit(timer) // systemd knows units when somebody asks for them
	f.Unit(Service)
	f.WriteFile(t, site.HelperPath, program, 0o755)
	f.WriteFile(t, "/etc/systemd/system/other.timer", "somebody else's", 0o644)
	steps, err := k.steps(h)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		if step.ID == id {
			return f, k, step
		}
		if err := step.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("there is no step %s", id)
	return nil, nil, run.Step{}
}

// Each step is proven where those before it are done.
func TestSteps(t *testing.T) {
	change := func(name, content string) func(*testing.T, *hosttest.Fake) {
		return func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, name, content, 0o644) }
	}
	systemctl := func(args ...string) func(*testing.T, *hosttest.Fake) {
		return func(t *testing.T, f *hosttest.Fake) {
			if _, err := machine.Root(t.Context(), f, "do it", append([]string{"systemctl"}, args...)...); err != nil {
				t.Fatal(err)
			}
		}
	}
	done := func(id string) func(*testing.T, *hosttest.Fake) {
		return func(t *testing.T, f *hosttest.Fake) {
			other, _, _ := onHost(t, text, 0, "prove-renewal")
			f.WriteFile(t, Program, other.ReadFile(t, Program), 0o755)
			for _, name := range []string{serviceFile, timerFile} {
				f.WriteFile(t, name, other.ReadFile(t, name), 0o644)
			}
			systemctl("daemon-reload")(t, f)
			if id == "start-renewal" {
				systemctl("enable", "--now", timer)(t, f)
			}
		}
	}
	for _, test := range []struct {
		name, id string
		change   func(*testing.T, *hosttest.Fake)
		why      string
	}{
		{"no program", "place-renewal", nil, Program + " is missing"},
		{"an older program", "place-renewal", change(Program, "older"), Program + " differs"},
		{"the program", "place-renewal", done(""), ""},
		{"no service", "file:" + serviceFile, nil, serviceFile + " is missing"},
		{"another service", "file:" + serviceFile, change(serviceFile, "x"), serviceFile + " differs"},
		{"no timer", "file:" + timerFile, nil, timerFile + " is missing"},
		{"a timer that somebody has changed", "file:" + timerFile, change(timerFile, "x"), timerFile + " differs"},
		{"a timer", "file:" + timerFile, done(""), ""},
		{"a timer that others may change", "file:" + timerFile, func(t *testing.T, f *hosttest.Fake) {
			done("")(t, f)
			if err := os.Chmod(f.Path(timerFile), 0o666); err != nil {
				t.Fatal(err)
			}
		}, timerFile + " has another mode or owner"},
		{"it was never started", "start-renewal", nil, "the timer is inactive"},
		{"it runs", "start-renewal", done("start-renewal"), ""},
		{"it was stopped", "start-renewal", func(t *testing.T, f *hosttest.Fake) {
			done("start-renewal")(t, f)
			systemctl("stop", timer)(t, f)
		}, "the timer is inactive"},
		{"it was disabled", "start-renewal", func(t *testing.T, f *hosttest.Fake) {
			done("start-renewal")(t, f)
			systemctl("disable", timer)(t, f)
		}, "the timer does not start with the host"},
		{"systemd has an older timer", "start-renewal", func(t *testing.T, f *hosttest.Fake) {
			done("start-renewal")(t, f)
			f.Unit(timer).Stale()
		}, "systemd has not read boxlift-renewal.timer as it is now"},
		{"systemd has an older service", "start-renewal", func(t *testing.T, f *hosttest.Fake) {
			done("start-renewal")(t, f)
			f.Unit(Service).Stale()
		}, "systemd has not read boxlift-renewal.service as it is now"},
	} {
		t.Run(test.name, func(t *testing.T) {
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f, _, step := onHost(t, text, 0, test.id)
				if test.change != nil {
					test.change(t, f)
				}
				return f, step
			}})
		})
	}
}

// It is taken away where it is not wanted any more, and from hosts that leave, and nothing else is.
func TestTakenAway(t *testing.T) {
	for _, test := range []struct {
		name, why string
		leaves    bool
		change    func(*testing.T, *hosttest.Fake)
	}{
		{"turned off", timerFile + " is there, and install.yaml turns the renewal of certificates off", false, nil},
		{"a host that leaves", timerFile + " is there", true, nil},
		{"broken off", Program + " is there", true, func(t *testing.T, f *hosttest.Fake) {
			for _, name := range []string{timerFile, serviceFile} {
				if err := os.Remove(f.Path(name)); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"nothing but what came of it", renewal.File + " is there", true, func(t *testing.T, f *hosttest.Fake) {
			for _, name := range []string{timerFile, serviceFile, Program} {
				if err := os.Remove(f.Path(name)); err != nil {
					t.Fatal(err)
				}
			}
			f.WriteFile(t, renewal.File, "{}", 0o600)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f, _, _ := onHost(t, text, 0, "prove-renewal")
				f.WriteFile(t, stampFile, "", 0o644)
				if test.change != nil {
					test.change(t, f)
				}
				last = f
				k := keeper(t, text+off)
				if test.leaves {
					return f, k.TakeAway(f)
				}
				k.Site.Hosts[0].Conn = f
				steps, err := k.steps(k.Site.Hosts[0])
				if err != nil || len(steps) != 1 {
					t.Fatalf("%d steps, %v", len(steps), err)
				}
				return f, steps[0]
			}})
			if got := last.ReadFile(t, "/etc/systemd/system/other.timer"); got != "somebody else's" {
				t.Errorf("somebody else's timer is %q", got)
			}
			if left := last.Snapshot(t); strings.Contains(strings.ReplaceAll(left, "unit boxlift-renewal", ""), "boxlift-renewal") {
				t.Errorf("something is left: %s", left)
			}
		})
	}
	steptest.Prove(t, steptest.Case{Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
		f := hosttest.New(t, "a")
		return f, keeper(t, text).TakeAway(f)
	}})
	// What systemd does not do is told of, and the rest stays, so that the next run does it.
	f, k, _ := onHost(t, text, 0, "prove-renewal")
	f.FailNext("systemctl", 1, "Failed to connect to bus")
	if err := k.TakeAway(f).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Failed to connect to bus") {
		t.Errorf("%v", err)
	}
	if reason, err := k.TakeAway(f).Needed(t.Context()); reason == "" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
}

// The service names the node as the cluster does, and where its kubelet answers.
func TestService(t *testing.T) {
	for _, test := range []struct {
		name, text string
		place      int
		change     func(*site.Host)
		want, err  string
	}{
		{name: "a server", text: text, want: " renew -unit k3s -name first -kubelet 10.0.0.11:10251\n"},
		{name: "an agent", text: text, place: 1, want: " renew -unit k3s-agent -name worker -kubelet 127.0.0.1:10250\n"},
		{name: "an adopted server without a kubelet", text: text, change: func(h *site.Host) {
			h.Adopted = &adoption.Found{Settings: map[string][]string{"disable-agent": {"true"}}}
		}, want: " renew -unit k3s -name first\n"},
		{name: "an adopted server", text: text, change: func(h *site.Host) {
			h.Adopted = &adoption.Found{Settings: map[string][]string{"kubelet-arg": {"address=::"}}}
		}, want: " renew -unit k3s -name first -kubelet 127.0.0.1:10250\n"},
		{name: "a name of the host's that is none", text: text, place: 1, change: func(h *site.Host) { h.Hostname = "a b\n[Service]" },
			err: "which is no name of a node"},
	} {
		h := keeper(t, test.text).Site.Hosts[test.place]
		if test.change != nil {
			test.change(h)
		}
		got, err := serviceText(h)
		if !strings.Contains(got, test.want) || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %v\n%s", test.name, err, got)
		}
		if strings.Contains(got, "@") {
			t.Errorf("%s: something was not filled in:\n%s", test.name, got)
		}
	}
	k := keeper(t, text)
	k.Site.Contents.Files = nil
	steps, err := k.steps(k.Site.Hosts[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := steps[0].Needed(t.Context()); fault.ClassOf(err) != fault.Bundle || !strings.Contains(err.Error(), "the bundle carries no boxlift-node for linux/amd64") {
		t.Errorf("%v", err)
	}
}

// A host says how it gets on, and what it says is read strictly.
func TestLook(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Second)
	document := func(s renewal.State) string {
		s.Version, s.Looked = renewal.StateVersion, now
		content, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	for _, test := range []struct {
		name, content          string
		result                 string
		failure, idle, problem string
	}{
		{name: "it has not looked yet"},
		{name: "it has looked", content: document(renewal.State{})},
		{name: "it failed", content: document(renewal.State{Failed: now, Error: "\x1b[2Jno"}), failure: "the renewal of certificates failed: "},
		{name: "it was not even begun", result: "exit-code", failure: "the program that renews certificates failed: exit-code"},
		{name: "not JSON", content: "x", problem: "read what came of the renewal of certificates"},
		{name: "too large", content: strings.Repeat("x", 1<<20), problem: "it has 16385 bytes, more than 16384"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, k, step := onHost(t, text, 0, "prove-renewal")
			if test.content != "" {
				f.WriteFile(t, renewal.File, test.content, 0o600)
			}
			if test.result == "exit-code" {
				f.Unit(Service).OnStart(func(*hosttest.Fake) error { return os.ErrNotExist })
				if _, err := machine.Root(t.Context(), f, "start it", "systemctl", "start", Service+".service"); err != nil {
					t.Fatal(err)
				}
			}
			found, err := Look(t.Context(), k.Site.Hosts[0])
			if test.problem != "" {
				if err == nil || !strings.Contains(err.Error(), test.problem) {
					t.Errorf("%v, want %q", err, test.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := found.Failure(); !strings.HasPrefix(got, test.failure) || (got == "") != (test.failure == "") || strings.Contains(got, "\x1b") {
				t.Errorf("failure %q, want %q", got, test.failure)
			}
			if got := found.Idle(); got != test.idle {
				t.Errorf("idle %q, want %q", got, test.idle)
			}
			difference, err := step.Needed(t.Context())
			if err != nil || difference != found.Failure() {
				t.Errorf("status tells %q, %v", difference, err)
			}
			if err := step.Run(t.Context()); err != nil || (len(k.Site.Warnings) > 0) != (test.failure != "") {
				t.Errorf("a run warns %q, %v", k.Site.Warnings, err)
			}
		})
	}
	h := keeper(t, text).Site.Hosts[0]
	h.Conn = hosttest.New(t, "a")
	if found, err := Look(t.Context(), h); err != nil || found.Idle() != "boxlift-renewal.timer is not there" {
		t.Errorf("nothing there: %+v, %v", found, err)
	}
}

func TestHostile(t *testing.T) {
	for _, id := range []string{"place-renewal", "file:" + serviceFile, "start-renewal", "prove-renewal"} {
		steptest.Hostile(t, func(t *testing.T, conn machine.Host) run.Step {
			k := keeper(t, text)
			k.Site.Hosts[0].Conn = conn
			steps, err := k.steps(k.Site.Hosts[0])
			if err != nil {
				t.Fatal(err)
			}
			for _, step := range steps {
				if step.ID == id {
					return step
				}
			}
			t.Fatalf("there is no step %s", id)
			return run.Step{}
		})
	}
	steptest.Hostile(t, func(t *testing.T, conn machine.Host) run.Step { return keeper(t, text).TakeAway(conn) })
}
