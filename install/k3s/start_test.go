package k3s

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// startable is a host on which all steps are done but the one that starts k3s, and whose kubelet is where an argument
// of it says.
func startable(t *testing.T, place int, kubelet string) (*hosttest.Fake, *Node, run.Step) {
	t.Helper()
	f, n := shipped(t, place)
	f.Program("boxlift-node", helper)
	unit := site.UnitDir + n.service() + ".service"
	f.Unit(n.service())
	n.Host.Config.K3s.Config = map[string]any{"kubelet-arg": []string{kubelet}}
	content, err := n.configFile()
	if err != nil {
		t.Fatal(err)
	}
	write(t, f, map[string]string{
		site.K3sBinary: program, site.K3sConfigFile: string(content), site.K3sTokenFile: n.Token + "\n",
		unit: "[Service]\n", unit + ".env": "",
	})
	if place == 0 {
		f.WriteFile(t, site.K3sAgentTokenFile, n.agentToken+"\n", 0o600)
	}
	return f, n, stepOf(t, stepsOf(t, n), StartID)
}

// K3s is started where it does not run, does not start with its host, or runs with anything else than there is.
func TestStartStep(t *testing.T) {
	const change = "its program, unit or config changed since it was started"
	well := kubelet(t, http.StatusOK)
	write := func(name string) func(*testing.T, *hosttest.Fake, *Node) {
		return func(t *testing.T, f *hosttest.Fake, n *Node) {
			f.WriteFile(t, name, "another", 0o600)
			n.Host.Binary = "" // so that the program is looked at again
		}
	}
	systemctl := func(command string) func(*testing.T, *hosttest.Fake, *Node) {
		return func(t *testing.T, _ *hosttest.Fake, n *Node) {
			if _, err := n.Host.Root(t.Context(), command, "systemctl", command, n.service()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name   string
		change func(*testing.T, *hosttest.Fake, *Node) // after k3s was started, nil when it never was
		why    [2]string                               // of a server, and of an agent
		whole  bool                                    // all of what a step promises is proven, not the reason alone
	}{
		{"never started", nil, [2]string{"the service is inactive", "the service is inactive"}, true},
		{"it runs with what there is", func(*testing.T, *hosttest.Fake, *Node) {}, [2]string{}, true},
		{"it was stopped", systemctl("stop"), [2]string{"the service is inactive", "the service is inactive"}, false},
		{"it was disabled", systemctl("disable"), [2]string{"not start with the host", "not start with the host"}, true},
		{"another program", write(site.K3sBinary), [2]string{change, change}, false},
		{"another config", write(site.K3sConfigFile), [2]string{change, change}, true},
		{"another token", write(site.K3sTokenFile), [2]string{change, change}, false},
		{"another agents' token", write(site.K3sAgentTokenFile), [2]string{change, ""}, false},
		{"registries", write(site.K3sRegistries), [2]string{change, change}, false},
		{"a resolv.conf", write(site.K3sResolvConf), [2]string{change, change}, false},
		{"a drop-in", func(t *testing.T, f *hosttest.Fake, n *Node) {
			const name = "/etc/systemd/system/others.conf"
			f.WriteFile(t, name, "[Service]\n", 0o644)
			f.Unit(n.service()).DropIns(name).Stale()
		}, [2]string{change, change}, false},
		{"a file that k3s does not read", write(site.K3sConfigDir + "/other"), [2]string{}, false},
	} {
		for place, role := range []string{"server", "agent"} {
			t.Run(role+"/"+test.name, func(t *testing.T) {
				fresh := func(t *testing.T) (*hosttest.Fake, run.Step) {
					f, n, start := startable(t, place, well)
					if test.change != nil {
						carryOut(t, start)
						test.change(t, f, n)
					}
					return f, start
				}
				if test.whole {
					steptest.Prove(t, steptest.Case{Why: test.why[place], Fresh: fresh})
					return
				}
				_, start := fresh(t)
				reason, err := start.Needed(t.Context())
				if err != nil || (reason == "") != (test.why[place] == "") || !strings.Contains(reason, test.why[place]) {
					t.Errorf("needed because %q, want %q: %v", reason, test.why[place], err)
				}
			})
		}
	}
}

// A start that fails says what k3s said, without secrets, and is tried again by the next run.
func TestStartFails(t *testing.T) {
	well, ill := kubelet(t, http.StatusOK), kubelet(t, http.StatusServiceUnavailable)
	fails := func(f *hosttest.Fake) {
		f.Unit("k3s-agent").OnStart(func(*hosttest.Fake) error { return errors.New("no") })
	}
	for _, test := range []struct {
		name string
		set  func(*hosttest.Fake, *Node)
		want []string
	}{
		{"k3s ends", func(f *hosttest.Fake, _ *Node) {
			fails(f)
			f.Program("journalctl", hosttest.Prints("level=fatal msg=\"token K10abc::node:the-token\x1b[2J refused\"\n"))
		}, []string{
			"k3s-agent does not start (exit-code, tried again 0 times); the last lines of its journal:",
			"token [secret]", " refused", "hint: see `journalctl -u k3s-agent` on the host",
		}},
		{"the journal is huge", func(f *hosttest.Fake, _ *Node) {
			fails(f)
			f.Program("journalctl", hosttest.Prints(strings.Repeat("a line\n", 1<<19)+"the last one\n"))
		}, []string{"k3s-agent does not start", "the last one"}},
		{"its journal cannot be read", func(f *hosttest.Fake, _ *Node) {
			fails(f)
			f.Program("journalctl", hosttest.Fails(1, "no journal"))
		}, []string{"k3s-agent does not start", "its journal cannot be read", "no journal"}},
		{"it is not there", func(f *hosttest.Fake, _ *Node) {
			f.Program("systemctl", hosttest.Fails(5, "Unit k3s-agent.service not loaded."))
		}, []string{"exit code 5: Unit k3s-agent.service not loaded."}},
		{"its kubelet does not come up", func(f *hosttest.Fake, n *Node) {
			n.Host.Config.K3s.Config["kubelet-arg"] = []string{ill}
			n.Cluster.Site.Config.Runtime.CommandTimeout = 100 * time.Millisecond
			f.Program("journalctl", hosttest.Prints("importing images\n"))
		}, []string{"k3s-agent was not ready after 100ms", "importing images"}},
		{"the helper is missing", func(f *hosttest.Fake, _ *Node) {
			f.Program("boxlift-node", helperBut("probe", hosttest.Fails(127, "not found")))
		}, []string{"ask the kubelet whether it is well: exit code 127"}},
		{"the helper says nothing", func(f *hosttest.Fake, _ *Node) {
			f.Program("boxlift-node", helperBut("probe", hosttest.Prints("")))
		}, []string{"the stream ended before its line of JSON did"}},
		{"the helper tells of something else", func(f *hosttest.Fake, _ *Node) {
			f.Program("boxlift-node", helperBut("probe", hosttest.Prints(
				`{"version":1,"results":[{"kind":"http","target":"http://10.0.0.1/\u001b[2J","state":"ok","status":200}]}`+"\n")))
		}, []string{"result 0 is about something else"}},
		{"the helper does not end its line", func(f *hosttest.Fake, _ *Node) {
			f.Program("boxlift-node", helperBut("probe", hosttest.Prints(strings.Repeat("x", 3<<20))))
		}, []string{"protocol error: the stream ended before its line of JSON did"}},
		{"systemd names no end of files", func(f *hosttest.Fake, _ *Node) {
			f.Program("systemctl", hosttest.Prints(strings.Repeat("/etc/one\n", 1000)))
		}, []string{"it has 1000 drop-ins, 100 is the most"}},
		{"systemd names what is no file", func(f *hosttest.Fake, _ *Node) {
			f.Program("systemctl", hosttest.Prints("\x1b[2J\x00\xff"))
		}, []string{"a command cannot contain a NUL byte"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, n, start := startable(t, 1, well)
			test.set(f, n)
			refuses(t, start, test.want...)
		})
	}
	// The cause is mended, and the same step starts it.
	f, n, start := startable(t, 1, well)
	fails(f)
	f.Program("journalctl", hosttest.Prints("no\n"))
	refuses(t, start, "does not start")
	f.Unit("k3s-agent").OnStart(nil)
	carryOut(t, start)
	if reason, err := start.Needed(t.Context()); reason != "" || err != nil || f.Unit(n.service()).Active() != "active" {
		t.Errorf("it is %s, and to be started because %q: %v", f.Unit(n.service()).Active(), reason, err)
	}
}

// Who ends boxlift while k3s is at its images has asked for that, and is told so at once.
func TestStartIsBrokenOff(t *testing.T) {
	f, _, start := startable(t, 1, kubelet(t, http.StatusServiceUnavailable))
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	f.Unit("k3s-agent").OnStart(func(*hosttest.Fake) error {
		cancel(enough)
		return nil
	})
	if err := start.Run(ctx); !errors.Is(err, enough) {
		t.Errorf("broken off: %v", err)
	}
}

// What an earlier run started, and is still at its images, is waited for; unless it starts with something else.
func TestStartGoesOn(t *testing.T) {
	for _, test := range []struct {
		name, started string
		want          int
	}{
		{"the same", "", 1},
		{"with another config", "other\n", 2},
	} {
		f, n, start := startable(t, 1, kubelet(t, http.StatusOK))
		carryOut(t, start)
		if test.started != "" {
			f.WriteFile(t, site.StartedFile, test.started, 0o600)
		}
		f.Unit(n.service()).Starting(1)
		if err := start.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := f.Unit(n.service()).Starts(); got != test.want || f.Unit(n.service()).Active() != "active" {
			t.Errorf("%s: started %d times, want %d", test.name, got, test.want)
		}
	}
}

// Clients of the only API server wait while it is started again. Where that cannot be had, k3s is started all the same.
func TestClientsWait(t *testing.T) {
	for _, test := range []struct {
		name  string
		place int
		runs  bool
		// stall is what boxlift-node does instead of letting them wait.
		stall hosttest.Program
		want  []string
		note  string
	}{
		{name: "a first start", want: []string{"start"}},
		{name: "an agent", place: 1, runs: true, want: []string{"start"}},
		{name: "started again", runs: true, want: []string{"they wait", "start", "they go on"}},
		{
			name: "the kernel has no nftables", runs: true, stall: hosttest.Fails(1, "tell the kernel: not supported"),
			want: []string{"start"}, note: "cannot be let wait: first (10.0.0.11): let clients of the API wait: exit code 1",
		},
		{
			name: "they do not wait", runs: true, stall: hosttest.Prints(`{"stalled":false}` + "\n"),
			want: []string{"start"}, note: "clients of the API server are not left waiting",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, n, start := startable(t, test.place, kubelet(t, http.StatusOK))
			if test.runs {
				carryOut(t, start)
			}
			var events []string
			f.Unit(n.service()).OnStart(func(*hosttest.Fake) error {
				events = append(events, "start")
				return nil
			})
			stall := test.stall
			if stall == nil {
				stall = func(ctx context.Context, c *hosttest.Call) int {
					events = append(events, "they wait")
					code := helper(ctx, c)
					events = append(events, "they go on")
					return code
				}
			}
			f.Program("boxlift-node", helperBut("stall", stall))
			told := &messages{Reporter: progress.Discard}
			n.Cluster.Site.Reporter = told
			if err := start.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, events); diff != "" {
				t.Error(diff)
			}
			if all := strings.Join(told.texts, "\n"); !strings.Contains(all, test.note) || (all == "") != (test.note == "") {
				t.Errorf("told %q, want %q", all, test.note)
			}
		})
	}
}

// messages keeps what an operator is told.
type messages struct {
	progress.Reporter
	texts []string
}

func (m *messages) Message(text string) { m.texts = append(m.texts, text) }

// A server that starts with a newer minor version has moved the cluster to it, unless it is known that it has not.
func TestStartMoves(t *testing.T) {
	for _, test := range []struct {
		name, version string
		fails, silent bool
		want          bool
	}{
		{name: "it starts", version: "v1.36.4+k3s1", want: true},
		{name: "it fails, and nobody has answered", version: "v1.35.8+k3s1", fails: true},
		{name: "it fails after it has answered", version: "v1.36.4+k3s1", fails: true, want: true},
		{name: "it fails, and nobody could look", fails: true, silent: true, want: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, n, start := startable(t, 0, kubelet(t, http.StatusOK))
			f.Program("journalctl", hosttest.Prints("no\n"))
			n.Cluster.Crossing.Minor = true
			if !test.silent {
				f.WriteFile(t, site.K3sKubeconfig, (&clusterAPI{version: test.version}).start(t), 0o600)
			}
			if test.fails {
				f.Unit(n.service()).OnStart(func(*hosttest.Fake) error { return errors.New("no") })
			}
			if err := start.Run(t.Context()); (err != nil) != test.fails {
				t.Error(err)
			}
			if n.Cluster.Crossing.Moved != test.want {
				t.Errorf("moved: %t", n.Cluster.Crossing.Moved)
			}
		})
	}
}

// Who only starts k3s again knows none of its tokens. Its journal is shown without them all the same, and not at all
// where the host does not say what they are.
func TestStartShowsNoTokens(t *testing.T) {
	const full, agents, staged = "K10abc::server:first-secret", "second-secret", "third-secret"
	for _, readable := range []bool{true, false} {
		f, n, start := startable(t, 0, kubelet(t, http.StatusOK))
		f.WriteFile(t, site.K3sTokenFile, full+"\n", 0o600)
		f.WriteFile(t, site.K3sAgentTokenFile, agents+"\n", 0o600)
		f.WriteFile(t, stagedTokenFile, staged+"\n", 0o600)
		f.Unit(n.service()).OnStart(func(f *hosttest.Fake) error {
			if !readable {
				f.Program("cat", hosttest.Fails(1, "input/output error"))
			}
			return errors.New("no")
		})
		f.Program("journalctl", hosttest.Prints("it began\nbad token "+full+", not first-secret, "+agents+" or "+staged+"\n"))
		n.Token, n.agentToken = "", ""
		err := start.Run(t.Context())
		if err == nil || strings.Contains(err.Error(), "-secret") || strings.Contains(err.Error(), "it began") != readable {
			t.Errorf("readable: %t: %v", readable, err)
		}
	}
}

// The versions of a cluster's API servers are those that answer, and else those of the programs in place.
func TestAPIVersions(t *testing.T) {
	in, fakes := reached(t, sitetest.ThreeServers)
	fakes[0].WriteFile(t, site.K3sKubeconfig, (&clusterAPI{version: "v1.36.4+k3s1\x1b"}).start(t), 0o600)
	fakes[1].Program("k3s", hosttest.Prints("k3s version v1.35.8+k3s1 (abc)\n"))
	fakes[2].Program("k3s", hosttest.Prints("another program\n"))
	got := in.cluster.APIVersions(t.Context())
	slices.Sort(got)
	if diff := cmp.Diff([]string{"v1.35.8+k3s1", "v1.36.4+k3s1\ufffd"}, got); diff != "" {
		t.Error(diff)
	}
	in.site.Hosts[0].Conn = nil // it could not be connected to
	if diff := cmp.Diff([]string{"v1.35.8+k3s1"}, in.cluster.APIVersions(t.Context())); diff != "" {
		t.Error(diff)
	}
}
