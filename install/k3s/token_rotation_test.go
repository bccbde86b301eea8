package k3s

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const oldToken = "K10abc::server:the-token\n"

// rotating is a cluster of three servers whose k3s can be asked for another token, and the agent. One server breaks.
type rotating struct {
	fakes  []*hosttest.Fake
	api    *clusterAPI
	asked  []string // what k3s was asked to change to
	breaks int
}

// newRotating starts such a cluster. k3s changes on the first server, whatever becomes of its answer.
func newRotating(t *testing.T) *rotating {
	t.Helper()
	_, fakes := reached(t, sitetest.ThreeServers)
	w := &rotating{fakes: fakes, api: &clusterAPI{}}
	w.api.asked = func() { w.change(t) }
	kubeconfig := w.api.start(t)
	for i, f := range fakes {
		f.Program("boxlift-node", helper)
		if i < 3 {
			f.Unit("k3s").Runs()
			write(t, f, map[string]string{K3sServerToken: oldToken, site.K3sKubeconfig: kubeconfig})
		}
	}
	return w
}

// change is what k3s does when it is asked for another token: the servers that it is not told by are told later.
func (w *rotating) change(t *testing.T) {
	_, next, _ := strings.Cut(strings.TrimSuffix(w.api.given, `"}`), `"newToken":"`)
	w.asked = append(w.asked, next)
	if w.api.refusal == "" {
		w.fakes[0].WriteFile(t, K3sServerToken, "K10abc::server:"+next+"\n", 0o600)
	}
}

// anew is what a run that begins now knows of the cluster.
func (w *rotating) anew(t *testing.T) *installation {
	t.Helper()
	in, _ := reached(t, sitetest.ThreeServers)
	for i, h := range in.site.Hosts {
		h.Conn = w.fakes[i]
	}
	in.site.Hosts[0].Config.K3s.Config = map[string]any{"kubelet-arg": []string{kubelet(t, http.StatusOK)}}
	in.site.StatePath = filepath.Join(t.TempDir(), "state.json")
	var err error
	if in.engine.Journal, err = journal.Open(in.site.StatePath); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.engine.Journal.Close() })
	return in
}

// stage is the beginning of a change of the servers' token, by a run that acts.
func (in *installation) stage(t *testing.T) error {
	t.Helper()
	if err := in.engine.Journal.Begin(journal.Run{Command: "token rotate"}); err != nil {
		t.Fatal(err)
	}
	return in.engine.Apply(t.Context(), []run.Phase{{Name: TokensPhase, Look: func(ctx context.Context) error {
		_, err := (&rotation{in.cluster}).stage(ctx, in.site.Hosts[0])
		return err
	}}})
}

func (w *rotating) BreakAfter(n int)    { w.fakes[w.breaks].BreakAfter(n) }
func (w *rotating) Lost(err error) bool { return errors.Is(err, hosttest.ErrLost) }

// apiAddress is where the API listens, which is at another port each time.
var apiAddress = regexp.MustCompile(`(?m)^.*` + regexp.QuoteMeta(site.K3sKubeconfig) + ` [0-9a-f]{64}\n`)

func (w *rotating) Snapshot(t testing.TB) string {
	text := strings.Join(w.asked, " ") + "\n"
	for _, f := range w.fakes {
		text += f.Snapshot(t)
	}
	return apiAddress.ReplaceAllString(text, "")
}

// The next token is on a server, and readable by root alone, before k3s is told of it.
func TestStagedStep(t *testing.T) {
	for _, test := range []struct {
		why, content string
		mode         fs.FileMode
	}{
		{why: "is missing"}, {why: "differs", content: "another\n", mode: 0o600},
		{why: "has another mode or owner", content: "next\n", mode: 0o644}, {content: "next\n", mode: 0o600},
	} {
		steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
			f := hosttest.New(t, "a")
			if test.content != "" {
				f.WriteFile(t, stagedTokenFile, test.content, test.mode)
			}
			return f, stagedStep(&site.Host{Conn: f}, "next")
		}})
	}
}

// k3s is asked for the next token, unless it has it already on any server.
func TestChangeStep(t *testing.T) {
	const changed = "K10abc::server:next\n"
	for _, test := range []struct {
		name   string
		tokens [3]string
		why    string
	}{
		{"none has it", [3]string{oldToken, oldToken, oldToken}, "the servers are to have another one than now"},
		{"a server that has not begun", [3]string{oldToken, oldToken, ""}, "another one than now"},
		{"a token that only begins so", [3]string{oldToken, changed + "x", oldToken}, "another one than now"},
		{"the first has it", [3]string{changed, oldToken, oldToken}, ""},
		{"the last has it", [3]string{oldToken, oldToken, changed}, ""},
		{"without the authority", [3]string{oldToken, "next\n", oldToken}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			steptest.ProveIn(t, steptest.Wide{Why: test.why,
				Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
					w := newRotating(t)
					for i, token := range test.tokens {
						w.fakes[i].WriteFile(t, K3sServerToken, token, 0o600)
					}
					return w, func() run.Step {
						in := w.anew(t)
						return (&rotation{in.cluster}).changeStep(in.site.Hosts[0], "next")
					}
				}})
		})
	}
	// A server that does not say what it has is not taken for one that has the old one.
	w := newRotating(t)
	for i := range 3 {
		in := w.anew(t)
		w.fakes[i].BreakAfter(0)
		reason, err := (&rotation{in.cluster}).changeStep(in.site.Hosts[0], "next").Needed(t.Context())
		if reason != "" || !w.Lost(err) {
			t.Errorf("server %d is gone: %q, %v", i, reason, err)
		}
		w.fakes[i].BreakAfter(-1)
	}
}

// A change is forgotten on each server once, by whichever of its two notes it is known there.
func TestForgetChangeStep(t *testing.T) {
	for _, test := range []struct {
		name  string
		files []string
		why   string
	}{
		{"both", []string{stagedTokenFile, exposedFile}, "it is done"},
		{"a next token", []string{stagedTokenFile}, "it is done"},
		{"agents had the servers'", []string{exposedFile}, "it is done"}, {"none", nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f := hosttest.New(t, "a")
				write(t, f, map[string]string{site.K3sTokenFile: "the-token\n", site.K3sAgentTokenFile: "agents\n"})
				for _, name := range test.files {
					f.WriteFile(t, name, "x", 0o600)
				}
				return f, forgetChangeStep(&site.Host{Conn: f})
			}})
		})
	}
	f := hosttest.New(t, "a")
	f.WriteFile(t, stagedTokenFile, "next\n", 0o600)
	f.FailNext("rm", 1, "Read-only file system")
	refuses(t, forgetChangeStep(&site.Host{Conn: f}), "forget the change of the token: exit code 1",
		"Read-only file system")
	steptest.Hostile(t, func(_ *testing.T, h machine.Host) run.Step { return forgetChangeStep(&site.Host{Conn: h}) })
	steptest.Hostile(t, func(t *testing.T, h machine.Host) run.Step {
		in, _ := reached(t, sitetest.ThreeServers)
		for _, s := range in.site.Hosts {
			s.Conn = h
		}
		return (&rotation{in.cluster}).changeStep(in.site.Hosts[0], "next")
	})
}

// Wherever a change is broken off, all servers have the token to come before k3s changes to it, and it changes to no
// other one: a server that did not know it could not come up again.
func TestStageGoesOn(t *testing.T) {
	stage := func(t *testing.T, w *rotating) error { return w.anew(t).stage(t) }
	fresh := func(t *testing.T) *rotating {
		w := newRotating(t)
		change := w.api.asked
		w.api.asked = func() {
			change()
			for i, f := range w.fakes[:3] {
				if staged := f.ReadFile(t, stagedTokenFile); staged != w.asked[len(w.asked)-1]+"\n" {
					t.Errorf("k3s changes to %q, and server %d knows %q", w.asked, i, staged)
				}
			}
		}
		return w
	}
	ends := func(t *testing.T, w *rotating) {
		t.Helper()
		if err := stage(t, w); err != nil {
			t.Fatal(err)
		}
		asked := len(w.asked)
		if err := stage(t, w); err != nil || len(w.asked) != asked {
			t.Errorf("k3s is asked once more: %q, %v", w.asked, err)
		}
		if different := slices.Compact(slices.Clone(w.asked)); len(different) != 1 || len(different[0]) != 64 {
			t.Errorf("k3s was asked to change to %q", w.asked)
		}
		if w.fakes[3].ReadFile(t, stagedTokenFile) != "" {
			t.Error("the agent was given the servers' next token")
		}
	}
	for server := range 3 {
		for n := 0; ; n++ {
			w := fresh(t)
			w.fakes[server].BreakAfter(n)
			err := stage(t, w)
			w.fakes[server].BreakAfter(-1)
			if err != nil && !w.Lost(err) {
				t.Fatalf("server %d breaks after %d commands: %v", server, n, err)
			}
			ends(t, w)
			if err == nil {
				break
			}
		}
	}
	for name, test := range map[string]struct {
		set   func(*rotating)
		asked int
	}{
		"at once":        {func(*rotating) {}, 1},
		"k3s refuses it": {func(w *rotating) { w.api.refusal = "no quorum" }, 2},
		"its answer is lost": {func(w *rotating) {
			asked := w.api.asked
			w.api.asked = func() {
				asked()
				w.api.asked = asked
				panic(http.ErrAbortHandler)
			}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := fresh(t)
			test.set(w)
			err := stage(t, w)
			if w.api.refusal != "" && (err == nil || !strings.Contains(err.Error(), "no quorum")) {
				t.Errorf("%v", err)
			}
			w.api.refusal = ""
			ends(t, w)
			if len(w.asked) != test.asked {
				t.Errorf("k3s was asked %d times, want %d", len(w.asked), test.asked)
			}
		})
	}
}

// Of two next tokens on servers, all take the first.
func TestStageTakesOne(t *testing.T) {
	w := newRotating(t)
	w.fakes[1].WriteFile(t, stagedTokenFile, "one\n", 0o600)
	w.fakes[2].WriteFile(t, stagedTokenFile, "two\n", 0o600)
	err := w.anew(t).stage(t)
	var staged []string
	for _, f := range w.fakes[:3] {
		staged = append(staged, f.ReadFile(t, stagedTokenFile))
	}
	if diff := cmp.Diff([]string{"one\n", "one\n", "one\n"}, staged); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
}
