package members

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/reach"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// rejoining is a cluster whose kubelets register their nodes when they start, and its agent, which breaks.
type rejoining struct {
	*kubetest.Memory
	fakes []*hosttest.Fake // of the server, and of the agent
}

func (w rejoining) BreakAfter(n int)    { w.fakes[1].BreakAfter(n) }
func (w rejoining) Lost(err error) bool { return errors.Is(err, hosttest.ErrLost) }

func (w rejoining) Snapshot(t testing.TB) string {
	text := w.Memory.Snapshot(t)
	for _, f := range w.fakes {
		text += startCounts.ReplaceAllString(f.Snapshot(t), "")
	}
	return text
}

// startCounts are how often services were started: who was broken off right after a start starts them again.
var startCounts = regexp.MustCompile(` starts:\d+`)

// kubeletIsWell is boxlift-node on a host whose kubelet is well.
func kubeletIsWell(_ context.Context, c *hosttest.Call) int {
	if len(c.Args) != 5 || c.Args[0] != "probe" {
		_, _ = io.WriteString(c.Stderr, "unknown command\n") // the caller may have gone
		return 2
	}
	target := reach.ProbeTarget{Kind: reach.ProbeHTTP, Target: c.Args[4]}
	_ = json.NewEncoder(c.Stdout).Encode(reach.ProbeReport{Version: reach.ProbeVersion,
		Results: []reach.ProbeResult{{ProbeTarget: target, State: reach.OK, Status: http.StatusOK}}})
	return 0
}

// newRejoining is such a cluster, with these nodes of the two hosts.
func newRejoining(t *testing.T, nodes ...string) rejoining {
	t.Helper()
	w := rejoining{Memory: kubetest.NewMemory(t)}
	for i, service := range []string{"k3s", "k3s-agent"} {
		name := []string{"first", "worker"}[i]
		f := hosttest.New(t, name)
		f.Program("boxlift-node", kubeletIsWell)
		f.WriteFile(t, site.K3sBinary, "the program", 0o755)
		f.Unit(service).Runs().OnStart(func(*hosttest.Fake) error {
			w.Put(t, kubetest.Labelled(name, nil))
			return nil
		})
		w.fakes = append(w.fakes, f)
	}
	// They run with what there is.
	for i, h := range w.anew(t).site.Hosts {
		n := &k3s.Node{Cluster: w.anew(t).cluster, Host: h}
		fingerprint, err := n.Started(t.Context(), []string{"k3s", "k3s-agent"}[i])
		if err != nil {
			t.Fatal(err)
		}
		w.fakes[i].WriteFile(t, site.StartedFile, fingerprint+"\n", 0o600)
	}
	for _, name := range nodes {
		w.Put(t, kubetest.Labelled(name, nil))
	}
	return w
}

// anew is what a run that begins now knows.
func (w rejoining) anew(t *testing.T) *installation {
	t.Helper()
	in := example(t, sitetest.ExampleConfig, "k3s=v1.36.4+k3s1")
	in.reach(t, w.Memory)
	for i, h := range in.site.Hosts {
		h.Conn, h.Hostname = w.fakes[i], []string{"first", "worker"}[i]
	}
	in.site.StatePath = filepath.Join(t.TempDir(), "state.json")
	var err error
	if in.engine.Journal, err = journal.Open(in.site.StatePath); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.engine.Journal.Close() })
	if err := in.engine.Journal.Begin(journal.Run{Command: "install"}); err != nil {
		t.Fatal(err)
	}
	return in
}

// step has a run look, and one act, as one step: which hosts there is something to do on is found out by both.
func (w rejoining) step(t *testing.T, set func(*installation)) run.Step {
	t.Helper()
	phases := func(in *installation) []run.Phase {
		set(in)
		return []run.Phase{{Name: "converge", Look: in.members.rejoin}}
	}
	return run.Step{
		ID: "rejoin", Title: "rejoin",
		Needed: func(ctx context.Context) (string, error) {
			in := w.anew(t)
			err := in.engine.Look(ctx, phases(in))
			var reasons []string
			for _, h := range in.site.Hosts {
				for _, c := range h.Changes {
					if c.Reason != "" {
						reasons = append(reasons, h.Name+": "+c.Title+": "+c.Reason)
					}
				}
			}
			return strings.Join(reasons, "\n"), err
		},
		Run: func(ctx context.Context) error {
			in := w.anew(t)
			return in.engine.Apply(ctx, phases(in))
		},
	}
}

// A kubelet registers its node when it starts: it is started again on agents whose node is gone, and nowhere else.
func TestRejoin(t *testing.T) {
	const why = "10.0.0.12: start k3s-agent: its node is not registered in the cluster"
	for _, test := range []struct {
		name  string
		nodes []string
		set   func(*installation)
		why   string
	}{
		{name: "the agent's is gone", nodes: []string{"first"}, why: why},
		{name: "all are there", nodes: []string{"first", "worker"}},
		// Who deletes the node of a server takes it out of etcd.
		{name: "the server's is gone", nodes: []string{"worker"}},
		{name: "both are gone", why: why},
		{name: "the agent has failed", nodes: []string{"first"}, set: func(in *installation) {
			in.site.Hosts[1].Err = errors.New("no route")
		}},
		{name: "this run has started it already", nodes: []string{"first"}, set: func(in *installation) {
			in.site.Hosts[1].Changes = []site.Change{{Phase: "agents", ID: k3s.StartID}}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var w rejoining
			if test.set == nil {
				test.set = func(*installation) {}
			}
			if test.why != "" {
				steptest.ProveIn(t, steptest.Wide{Why: test.why,
					Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
						fresh := newRejoining(t, test.nodes...)
						if w.Memory == nil {
							w = fresh
						}
						return fresh, func() run.Step { return fresh.step(t, test.set) }
					}})
			} else {
				w = newRejoining(t, test.nodes...)
				before := w.Snapshot(t)
				step := w.step(t, test.set)
				reason, _ := step.Needed(t.Context())
				_ = step.Run(t.Context()) // a host that has failed is still told of
				if reason != "" || w.Snapshot(t) != before {
					t.Errorf("needed because %q", reason)
				}
			}
			if got := w.fakes[0].Unit("k3s").Starts(); got != 0 {
				t.Errorf("k3s was started %d times on the server", got)
			}
			if got, want := w.fakes[1].Unit("k3s-agent").Starts(), min(len(test.why), 1); got != want {
				t.Errorf("k3s was started %d times on the agent, want %d", got, want)
			}
			if w.Changes() != nil {
				t.Errorf("the cluster was changed: %q", w.Changes())
			}
		})
	}
}

// An agent whose k3s does not start fails with what its journal says, and alone.
func TestRejoinFails(t *testing.T) {
	w := newRejoining(t, "first")
	w.fakes[1].Unit("k3s-agent").OnStart(func(*hosttest.Fake) error { return errors.New("no") })
	w.fakes[1].Program("journalctl", hosttest.Prints("fatal: duplicate hostname\x1b[2J\n"))
	in := w.anew(t)
	err := in.engine.Apply(t.Context(), []run.Phase{{Name: "converge", Look: in.members.rejoin}})
	var failed *run.HostsError
	if !errors.As(err, &failed) || in.site.Hosts[0].Err != nil || in.site.Hosts[1].Err == nil {
		t.Fatal(err)
	}
	text := kubetest.Explained(in.site.Hosts[1].Err)
	kubetest.Contains(t, text, "start k3s-agent: k3s-agent does not start", "fatal: duplicate hostname")
	if strings.Contains(text, "\x1b") {
		t.Errorf("it is not fit for a terminal: %q", text)
	}
	w.Memory.BreakAfter(0)
	if err := w.anew(t).members.rejoin(t.Context()); !w.Memory.Lost(err) || w.fakes[1].Unit("k3s-agent").Starts() != 1 {
		t.Errorf("without an API nobody is known to be gone: %v", err)
	}
}
