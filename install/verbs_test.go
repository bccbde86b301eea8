package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/upgrade"
	"github.com/liteboxd/boxlift/node/hold"
	nodeimages "github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// state writes a state that a run has left.
func (w *world) state(t *testing.T, change func(*journal.State)) {
	t.Helper()
	s := journal.State{Version: journal.Version, Result: journal.Failed, Steps: []journal.Step{}, Started: time.Unix(1000, 0).UTC()}
	s.Command, s.Verb, s.Cluster = "install", journal.Install, w.Config.Cluster.Name
	s.Bundle, s.BundleFile, s.Config = w.Bundle.Digest().String(), "/bundles/b.tar", w.Config.Fingerprint()
	if change != nil {
		change(&s)
	}
	text, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(w.StatePath, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// upgrading is the state of an upgrade that has begun on a server.
func upgrading(s *journal.State) {
	s.Command, s.Verb = "upgrade", journal.Upgrade
	s.Steps = []journal.Step{{Phase: "servers", Host: "first", ID: "start-k3s", Attempts: 1, Result: journal.Failed}}
}

// A dry run tells of each host what an installation would do there, and leaves no trace, not even a state.
func TestDryRun(t *testing.T) {
	w := newWorld(t, sitetest.ExampleConfig)
	w.DryRun = true
	before := w.snapshot(t)
	summary, err := Install(t.Context(), w.Options)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, w.snapshot(t)); diff != "" || w.api.Changes() != nil {
		t.Errorf("it has changed %s; %q", diff, w.api.Changes())
	}
	if !summary.DryRun || summary.Cluster != "example" || summary.Bundle != w.Bundle.Digest().String() {
		t.Errorf("%+v", summary)
	}
	for i, phase := range []string{"servers", "agents"} {
		h := summary.Hosts[i]
		var phases []string
		for _, c := range h.Changes {
			if c.Reason == "" || c.Title == "" {
				t.Errorf("%s: %+v", h.Host, c)
			}
			phases = append(phases, c.Phase)
		}
		if diff := cmp.Diff([]string{"ship", phase, "renewal"}, slices.Compact(phases)); diff != "" {
			t.Errorf("%s: %s", h.Host, diff)
		}
	}
	// A host that is down is told of, and the others all the same.
	w = newWorld(t, sitetest.ExampleConfig)
	w.DryRun, w.Dial = true, sitetest.DialTo(map[string]host.Host{"10.0.0.11": w.fakes["10.0.0.11"]})
	summary, err = Install(t.Context(), w.Options)
	if !errors.Is(err, site.ErrHosts) || summary.Hosts[1].Error == "" || len(summary.Hosts[0].Changes) != 0 {
		t.Errorf("preflight is a gate also for who looks: %v, %+v", err, summary.Hosts)
	}
	status, err := Inspect(t.Context(), w.Options)
	if !errors.Is(err, site.ErrHosts) || status == nil || len(status.Hosts[0].Differences) == 0 {
		t.Errorf("status looks on: %v", err)
	}
}

// What is wrong with what is asked for is told before any host is asked, and leaves no state behind.
func TestInstallRefusesBeforeHosts(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*testing.T, *world)
		is     error
		says   string
		dryToo bool
	}{
		{name: "a bundle for others", change: func(t *testing.T, w *world) {
			w.Bundle = sitetest.WholeBundle(t, lock.Validity{Audience: []string{"lan-*"}}, "v1.36.4+k3s1", "1.20.0")
		}, is: site.ErrConfig, says: "the bundle is for the clusters lan-*", dryToo: true},
		{name: "a host that install.yaml does not have", change: func(_ *testing.T, w *world) { w.Only = []string{"10.0.0.12", "10.0.0.99"} },
			is: site.ErrRefused, says: "install.yaml has no host 10.0.0.99: add it there first", dryToo: true},
		{name: "LiteBoxd alone, without its section", change: func(_ *testing.T, w *world) { w.Scope = run.OnlyLiteBoxd },
			is: site.ErrConfig, says: "install.yaml has no section liteboxd", dryToo: true},
		{name: "another operator with this state", change: func(t *testing.T, w *world) {
			j, err := journal.Open(w.StatePath)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = j.Close() })
		}, is: journal.ErrLocked, says: "another boxlift is working with this state"},
		{name: "a state of a later boxlift", change: func(t *testing.T, w *world) { w.state(t, func(s *journal.State) { s.Version = 9 }) },
			is: journal.ErrInvalid, says: "has version 9, this boxlift knows version 2", dryToo: true},
		{name: "a state that is damaged", change: func(t *testing.T, w *world) {
			if err := os.WriteFile(w.StatePath, []byte(`{"version":2,"steps":"\u001b[2J"`), 0o600); err != nil {
				t.Fatal(err)
			}
		}, is: journal.ErrInvalid, says: "move it away, and boxlift finds out from the hosts what is there", dryToo: true},
		{name: "an upgrade that is under way", change: func(t *testing.T, w *world) { w.state(t, upgrading) },
			is: site.ErrRefused, says: "boxlift upgrade with the bundle sha256:"},
		{name: "a restore that is under way", change: func(t *testing.T, w *world) {
			w.state(t, func(s *journal.State) {
				s.Command, s.Verb, s.BackupFile = "backup restore", journal.Restore, "/b/1.tar"
				s.Steps = []journal.Step{{Phase: run.RestorePhase, ID: "stop-k3s", Attempts: 1}}
			})
		}, is: site.ErrRefused, says: "go on with boxlift backup restore /b/1.tar"},
	} {
		for _, dry := range []bool{false, true} {
			if dry && !test.dryToo {
				continue
			}
			w := newWorld(t, sitetest.ExampleConfig)
			w.DryRun = dry
			test.change(t, w)
			before := w.snapshot(t)
			summary, err := Install(t.Context(), w.Options)
			if summary != nil || !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("%s, dry: %t: %+v, %v", test.name, dry, summary, err)
			}
			after := strings.ReplaceAll(w.snapshot(t), "/state.json.lock \n", "") // stays as a file that nobody has locked
			if diff := cmp.Diff(strings.ReplaceAll(before, "/state.json.lock \n", ""), after); diff != "" {
				t.Errorf("%s, dry: %t: it has changed %s", test.name, dry, diff)
			}
			for name, f := range w.fakes {
				if f.Commands() != nil {
					t.Errorf("%s, dry: %t: %s was asked %q", test.name, dry, name, f.Commands())
				}
			}
		}
	}
}

// resume goes on with the run in the state, and with no other one.
func TestResumeRefuses(t *testing.T) {
	for _, test := range []struct {
		name string
		last func(*journal.State)
		is   error
		says string
	}{
		{name: "no state", is: site.ErrNothingToResume, says: "holds no run"},
		{name: "one that has ended", last: func(s *journal.State) { s.Result, s.Ended = journal.Done, time.Unix(2000, 0).UTC() },
			is: site.ErrNothingToResume, says: "the last run (install, ended 1970-01-01T00:33:20Z) was finished"},
		{name: "another verb", last: func(s *journal.State) { s.Verb, s.Command = journal.Remove, "node remove" },
			is: site.ErrNothingToResume, says: "the last run was boxlift node remove: run that command again"},
		{name: "another bundle", last: func(s *journal.State) { s.Bundle = digest.FromString("x").String() },
			is: site.ErrChanged, says: "(/bundles/b.tar), this is sha256:"},
		{name: "another install.yaml", last: func(s *journal.State) { s.Config = strings.Repeat("a", 64) },
			is: site.ErrChanged, says: "install.yaml asks for another cluster than when the run began at 1970-01-01T00:16:40Z"},
	} {
		w := newWorld(t, sitetest.ExampleConfig)
		w.Resume = true
		if test.last != nil {
			w.state(t, test.last)
		}
		before, _ := os.ReadFile(w.StatePath)
		if summary, err := Install(t.Context(), w.Options); summary != nil || !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %+v, %v", test.name, summary, err)
		}
		if after, _ := os.ReadFile(w.StatePath); string(before) != string(after) {
			t.Errorf("%s: the state is now %s", test.name, after)
		}
	}
}

// A run that is broken off, by a host or by Ctrl-C, says in its state how far it got, lets go of its hosts, and is gone
// on with by the same command or resume.
func TestBrokenOffRuns(t *testing.T) {
	pressed := errors.New("Ctrl-C")
	for _, interrupt := range []bool{false, true} {
		w := newWorld(t, sitetest.ExampleConfig)
		w.Flags = []string{"--kubeconfig=/k.yaml"}
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		var mu sync.Mutex
		var held []string
		for name, f := range w.fakes {
			f.Program("boxlift-node", func(ctx context.Context, c *hosttest.Call) int {
				switch c.Args[0] {
				case "hold":
					mu.Lock()
					held = append(held, name)
					mu.Unlock()
					if err := hold.Run(ctx, c.Stdin, c.Stdout, hold.Options{Dir: c.Host.Path(hold.Dir)}); err != nil {
						return 1
					}
					return 0
				case "facts":
					if interrupt {
						cancel(pressed)
					}
				}
				_, _ = io.WriteString(c.Stderr, "killed\x1b[2J\n")
				return 137
			})
		}
		for _, resume := range []bool{false, true} {
			w.Resume = resume
			if resume {
				ctx = t.Context()
			}
			summary, err := Install(ctx, w.Options)
			if stopped := interrupt && !resume; errors.Is(err, pressed) != stopped || errors.Is(err, site.ErrHosts) == stopped || summary == nil {
				t.Fatalf("interrupted: %t, resume: %t: %+v, %v", interrupt, resume, summary, err)
			}
			if strings.Contains(err.Error(), "\x1b") {
				t.Errorf("it is not fit to be shown: %q", err)
			}
			last, readErr := journal.Read(w.StatePath)
			if readErr != nil || last.Result != journal.Failed || last.Verb != journal.Install || last.Command != "install" ||
				last.Error == "" || !last.Unfinished() || last.Bundle != w.Bundle.Digest().String() {
				t.Errorf("interrupted: %t: the state: %+v, %v", interrupt, last, readErr)
			}
			if (last.Resumed == 1) != resume || !cmp.Equal(last.Flags, w.Flags) || len(last.Plan) < 10 || last.Plan[0].Phase != "preflight" {
				t.Errorf("interrupted: %t: resumed %d times, %q, %+v", interrupt, last.Resumed, last.Flags, last.Plan)
			}
		}
		if len(held) < 3 {
			t.Errorf("held %q", held)
		}
		for name, f := range w.fakes {
			probe := example(t, sitetest.ExampleConfig)
			probe.site.Conns = site.NewConnections(probe.site.Config, nil, nil)
			probe.site.Hosts[0].Conn = f
			if err := probe.engine.Apply(t.Context(), []run.Phase{{Name: "x", Look: func(ctx context.Context) error {
				return probe.engine.Hold(ctx, probe.site.Hosts[0])
			}}}); err != nil {
				t.Errorf("interrupted: %t: %s is still held: %v", interrupt, name, err)
			}
			probe.engine.Close()
		}
	}
}

// leaving lets the agent be one that can be taken out.
func (w *world) leaving() *hosttest.Fake {
	f := w.fakes["10.0.0.12"]
	f.Unit("k3s-agent").Runs()
	f.Program("ip", hosttest.Fails(1, "no such device"))
	f.Program("k3s-agent-uninstall.sh", func(_ context.Context, c *hosttest.Call) int {
		if err := errors.Join(os.RemoveAll(c.Host.Path("/usr/local/bin/k3s-agent-uninstall.sh")), os.RemoveAll(c.Host.Path("/var/lib/rancher"))); err != nil {
			return 1
		}
		return 0
	})
	return f
}

// A host leaves the cluster, and the record says who took it out; a dry run shows the same and does none of it; and one
// that is broken off is gone on with.
func TestRemoveNodes(t *testing.T) {
	fresh := func(t *testing.T) (*world, RemoveOptions) {
		t.Helper()
		w := newWorld(t, sitetest.ExampleConfig).clustered(t)
		w.Bundle = nil
		f := w.leaving()
		f.WriteFile(t, "/usr/local/bin/k3s-agent-uninstall.sh", "", 0o755)
		f.WriteFile(t, "/var/lib/rancher/k3s/agent/x", "", 0o600)
		return w, RemoveOptions{Options: w.Options, Settings: members.Settings{Hosts: []string{"10.0.0.12"}}}
	}
	ids := func(s *run.Summary) []string {
		var all []string
		for _, c := range s.Changes {
			all = append(all, c.ID)
		}
		for _, h := range s.Hosts {
			for _, c := range h.Changes {
				all = append(all, c.ID)
			}
		}
		return all
	}
	want := []string{"cordon-node", "drain-node", "delete-node", "uninstall-k3s"}
	for _, how := range []string{"by the flag", "by install.yaml"} {
		w, o := fresh(t)
		o.DryRun, o.Config.Runtime.DryRun = how == "by the flag", how != "by the flag"
		before := w.snapshot(t)
		s, err := RemoveNodes(t.Context(), o)
		if err != nil || !s.DryRun || w.api.Changes() != nil {
			t.Fatalf("%s: %+v, %v, %q", how, s, err, w.api.Changes())
		}
		if diff := cmp.Diff(before, w.snapshot(t)) + cmp.Diff(want, ids(s)); diff != "" {
			t.Errorf("%s: %s", how, diff)
		}
	}
	w, o := fresh(t)
	s, err := RemoveNodes(t.Context(), o)
	if err != nil || s.DryRun {
		t.Fatalf("%+v, %v", s, err)
	}
	if diff := cmp.Diff(want, ids(s)); diff != "" {
		t.Error(diff)
	}
	if w.api.Object(t, "/api/v1/nodes/node-2") != nil || w.fakes["10.0.0.12"].ReadFile(t, "/usr/local/bin/k3s-agent-uninstall.sh") != "" {
		t.Error("it is still there")
	}
	r, err := History(t.Context(), w.Options)
	if err != nil || len(r.Events) != 1 || r.Events[0].Command != "node remove" || r.Events[0].Result != "4 changes" || r.Events[0].By != site.Operator() {
		t.Errorf("on record: %+v, %v", r, err)
	}
	// Broken off at the API, it is noted as not at its end, and the same command ends it.
	w, o = fresh(t)
	w.fakes["10.0.0.12"].FailNext("k3s-agent-uninstall.sh", 1, "target is busy")
	if _, err := RemoveNodes(t.Context(), o); err == nil {
		t.Fatal("it went well")
	}
	if last, err := journal.Read(w.StatePath); err != nil || !last.Unfinished() || len(run.LeftBehind(last)) != 1 {
		t.Errorf("the state: %+v, %v", last, err)
	}
	if _, err := RemoveNodes(t.Context(), o); err != nil || w.fakes["10.0.0.12"].ReadFile(t, "/var/lib/rancher/k3s/agent/x") != "" {
		t.Errorf("done again: %v", err)
	}
	if r, err := History(t.Context(), w.Options); err != nil || len(r.Events) != 2 || !r.Events[0].Failed || r.Events[1].Failed {
		t.Errorf("on record: %+v, %v", r, err)
	}
}

// While another operator works on the cluster, no host is taken out of it.
func TestRemoveNodesOfABusyCluster(t *testing.T) {
	w := newWorld(t, sitetest.ExampleConfig).clustered(t)
	other := example(t, sitetest.ExampleConfig)
	other.site.Conns = site.NewConnections(other.site.Config, nil, nil)
	other.site.Hosts[0].Conn = w.fakes["10.0.0.11"]
	if err := other.engine.Apply(t.Context(), []run.Phase{{Name: "x", Look: func(ctx context.Context) error {
		return other.engine.Hold(ctx, other.site.Hosts[0])
	}}}); err != nil {
		t.Fatal(err)
	}
	defer other.engine.Close()
	cluster := w.api.Snapshot(t)
	_, err := RemoveNodes(t.Context(), RemoveOptions{Options: w.Options, Settings: members.Settings{Hosts: []string{"10.0.0.12"}}})
	if !errors.As(err, new(*run.BusyError)) || !errors.Is(err, site.ErrHosts) || w.api.Snapshot(t) != cluster {
		t.Errorf("got %v, %q", err, w.api.Changes())
	}
}

// What prune frees is on record; who only asks frees nothing; and what an unfinished run has brought stays.
func TestPrune(t *testing.T) {
	const old = "boxlift-k3s-0123456789ab.tar"
	for _, test := range []struct {
		name   string
		change func(*testing.T, *world, *PruneOptions)
		is     error
		says   string
		frees  bool
		events int
	}{
		{name: "old packs", frees: true, events: 1},
		{name: "a dry run", change: func(_ *testing.T, _ *world, o *PruneOptions) { o.DryRun = true }},
		{name: "an installation that is not at its end", change: func(t *testing.T, w *world, o *PruneOptions) {
			w.state(t, nil)
			o.Bundle = nil
		}, is: site.ErrRefused, says: "(/bundles/b.tar) was not finished"},
		{name: "the same, dry", change: func(t *testing.T, w *world, o *PruneOptions) {
			w.state(t, nil)
			o.Bundle, o.DryRun = nil, true
		}, is: site.ErrRefused, says: "or give that bundle, so that what it brought stays"},
		{name: "the same, with its bundle", change: func(t *testing.T, w *world, _ *PruneOptions) { w.state(t, nil) }, frees: true, events: 1},
		{name: "another operator", change: func(t *testing.T, w *world, _ *PruneOptions) {
			j, err := journal.Open(w.StatePath)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = j.Close() })
		}, is: journal.ErrLocked},
		{name: "a state of a later boxlift", change: func(t *testing.T, w *world, o *PruneOptions) {
			w.state(t, func(s *journal.State) { s.Version = 9 })
			o.DryRun = true
		}, is: journal.ErrInvalid},
		{name: "a host that is down", change: func(_ *testing.T, w *world, o *PruneOptions) {
			o.Dial = sitetest.DialTo(map[string]host.Host{"10.0.0.11": w.server})
		}, is: site.ErrHosts, says: "10.0.0.12: no route to host", frees: true, events: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, sitetest.ExampleConfig).clustered(t)
			for _, f := range w.fakes {
				f.Program("boxlift-node", func(ctx context.Context, c *hosttest.Call) int {
					if c.Args[0] != "prune" {
						if err := hold.Run(ctx, c.Stdin, c.Stdout, hold.Options{Dir: c.Host.Path(hold.Dir)}); err != nil {
							return 1
						}
						return 0
					}
					var asked nodeimages.PruneRequest
					if err := json.NewDecoder(c.Stdin).Decode(&asked); err != nil {
						return 1
					}
					if asked.Remove {
						c.Host.WriteFile(t, "/freed", "", 0o600)
					}
					report := nodeimages.PruneReport{Version: nodeimages.PruneVersion, Removed: asked.Remove,
						Items: []nodeimages.PruneItem{{Kind: nodeimages.PrunePack, Name: old, Size: 1 << 20, Remove: true, Reason: "no release needs it"}}}
					if err := json.NewEncoder(c.Stdout).Encode(report); err != nil {
						return 1
					}
					return 0
				})
			}
			o := PruneOptions{Options: w.Options}
			if test.change != nil {
				test.change(t, w, &o)
			}
			state, _ := os.ReadFile(w.StatePath)
			pruning, err := Prune(t.Context(), o)
			if !errors.Is(err, test.is) || err != nil && (test.is == nil || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("got %v", err)
			}
			if test.is == nil && (pruning.Hosts[1].Bytes != 1<<20 || pruning.Empty()) {
				t.Errorf("%+v", pruning)
			}
			_, statErr := os.Stat(w.fakes["10.0.0.11"].Path("/freed"))
			if freed := statErr == nil; freed != test.frees {
				t.Errorf("freed: %t", freed)
			}
			r, err := History(t.Context(), w.Options)
			if err != nil || r == nil && test.events > 0 || r != nil && len(r.Events) != test.events {
				t.Errorf("on record: %+v, %v", r, err)
			}
			// An installation that was broken off can be gone on with.
			if after, _ := os.ReadFile(w.StatePath); string(after) != string(state) {
				t.Errorf("the state is now %s", after)
			}
		})
	}
}

// A backup is refused before hosts are asked where there is no room for it here; without an API none is made, and none
// is on record.
func TestCreateBackupRefuses(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*testing.T, *world, *BackupOptions)
		is     error
		says   string
		asks   bool
	}{
		{name: "its folder is a file", change: func(t *testing.T, w *world, o *BackupOptions) {
			o.Dir = w.StatePath
			w.state(t, nil)
		}, is: site.ErrRefused, says: "is not a folder"},
		{name: "another operator", change: func(t *testing.T, w *world, _ *BackupOptions) {
			j, err := journal.Open(w.StatePath)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = j.Close() })
		}, is: journal.ErrLocked},
		{name: "no server is reached", change: func(_ *testing.T, _ *world, o *BackupOptions) { o.Dial = sitetest.DialTo(nil) },
			is: sitetest.ErrNoRoute, says: "first (10.0.0.11): no route to host"},
		{name: "a server that keeps its data elsewhere", is: site.ErrRefused, says: "no datastore of k3s' own", asks: true},
	} {
		w := newWorld(t, sitetest.ExampleConfig).clustered(t)
		o := BackupOptions{Options: w.Options, Settings: recovery.Settings{Boxlift: "v1"}}
		if test.change != nil {
			test.change(t, w, &o)
		}
		cluster := w.api.Snapshot(t)
		report, err := CreateBackup(t.Context(), o)
		if report != nil || !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %+v, %v", test.name, report, err)
		}
		if asked := w.fakes["10.0.0.11"].Commands() != nil; asked != test.asks || w.api.Snapshot(t) != cluster {
			t.Errorf("%s: hosts were asked: %t; %q", test.name, asked, w.api.Changes())
		}
		if left, err := filepath.Glob(filepath.Join(filepath.Dir(w.StatePath), "backups", "*", "*")); len(left) > 0 || err != nil {
			t.Errorf("%s: there is %q, %v", test.name, left, err)
		}
	}
}

// copies writes a copy of the record beside the state.
func (w *world) copies(t *testing.T, document []byte) {
	t.Helper()
	beside := filepath.Join(filepath.Dir(w.StatePath), "releases", "example.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(beside), 0o700), os.WriteFile(beside, document, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// The record is the cluster's; where the cluster cannot be asked, it is the copy, and that is said.
func TestHistory(t *testing.T) {
	for _, test := range []struct {
		name     string
		document func(*testing.T, *world) []byte
		down     bool
		copied   string // what the copy beside the state is, "" for none
		releases int
		is       error
		says     string
	}{
		{name: "no record"},
		{name: "a record", document: func(t *testing.T, w *world) []byte { return w.record(t, release.Succeeded, nil) }, releases: 1},
		{name: "a record of hostile content", document: func(*testing.T, *world) []byte { return []byte("\x1b[2J") }, is: release.ErrInvalid,
			says: "read the record of releases: "},
		{name: "the same, with a copy", document: func(*testing.T, *world) []byte { return []byte(`{"format":9}`) }, is: site.ErrCluster, copied: "good",
			releases: 1},
		{name: "down, with a copy", down: true, copied: "good", releases: 1, is: sitetest.ErrNoRoute},
		{name: "down, without", down: true, is: sitetest.ErrNoRoute},
		{name: "down, with half a copy", down: true, copied: "{", is: release.ErrInvalid, says: "no route to host"},
	} {
		w := newWorld(t, sitetest.ExampleConfig).clustered(t)
		if test.document != nil {
			w.records(t, test.document(t, w))
		}
		if test.down {
			w.Dial = sitetest.DialTo(nil)
		}
		if text := []byte(test.copied); test.copied != "" {
			if test.copied == "good" {
				text = w.record(t, release.Failed, nil)
			}
			w.copies(t, text)
		}
		before := w.snapshot(t)
		r, err := History(t.Context(), w.Options)
		got := 0
		if r != nil {
			got = len(r.Releases)
		}
		if got != test.releases || !errors.Is(err, test.is) || err != nil && (test.is == nil || !strings.Contains(err.Error(), test.says) ||
			strings.Contains(err.Error(), "\x1b")) {
			t.Errorf("%s: %d releases, %v", test.name, got, err)
		}
		if diff := cmp.Diff(before, w.snapshot(t)); diff != "" {
			t.Errorf("%s: looking has changed %s", test.name, diff)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	pressed := errors.New("Ctrl-C")
	cancel(pressed)
	w := newWorld(t, sitetest.ExampleConfig).clustered(t)
	w.copies(t, w.record(t, release.Failed, nil)) // which is not what was asked for
	if r, err := History(ctx, w.Options); r != nil || !errors.Is(err, pressed) {
		t.Errorf("after Ctrl-C: %+v, %v", r, err)
	}
	if found, err := FindUnfinished(ctx, w.Options); found != nil || !errors.Is(err, pressed) {
		t.Errorf("after Ctrl-C: %+v, %v", found, err)
	}
}

// An operator without the state learns what to go on with from the cluster, and else from the copy and from what
// servers keep; flags by which the first operator has agreed to something are not taken over.
func TestFindUnfinished(t *testing.T) {
	flags := func(r *release.Record) { r.Releases[0].Flags = []string{"--batch-size=1", "--accept-drift=true"} }
	upgraded := &run.Unfinished{Release: 1, Command: "upgrade", Verb: journal.Upgrade, Flags: []string{"--batch-size=1"}, Anew: []string{"--accept-drift=true"}}
	for _, test := range []struct {
		name  string
		state release.State
		down  bool // the API
		copy  release.State
		kept  bool
		want  *run.Unfinished
		is    error
	}{
		{name: "no record", is: site.ErrNothingToResume},
		{name: "an upgrade", state: release.Running, want: upgraded},
		{name: "one that has succeeded", state: release.Succeeded, is: site.ErrNothingToResume},
		{name: "one that was taken back", state: release.RolledBack, is: site.ErrNothingToResume},
		{name: "no API, and a copy", down: true, copy: release.Failed, want: upgraded},
		{name: "no API, a copy that is at its end, and a server that keeps the version before", down: true, copy: release.Succeeded, kept: true,
			want: &run.Unfinished{Command: "upgrade", Verb: journal.Upgrade}},
		{name: "no API, no copy, and nothing is kept", down: true, is: site.ErrNothingToResume},
	} {
		w := newWorld(t, sitetest.ExampleConfig).clustered(t)
		if test.state != "" {
			w.records(t, w.record(t, test.state, flags))
		}
		if test.down {
			if err := os.Remove(w.fakes["10.0.0.11"].Path(site.K3sKubeconfig)); err != nil {
				t.Fatal(err)
			}
		}
		if test.copy != "" {
			w.copies(t, w.record(t, test.copy, flags))
		}
		if test.kept {
			text := fmt.Sprintf(`{"format":%d,"bundle":%q,"k3s":"v1.35.0+k3s1","pods":[]}`, k3s.KeptFormat, w.Bundle.Digest())
			w.fakes["10.0.0.11"].WriteFile(t, k3s.KeptFile, text, 0o600)
		}
		before := w.snapshot(t)
		found, err := FindUnfinished(t.Context(), w.Options)
		if diff := cmp.Diff(test.want, found); diff != "" || !errors.Is(err, test.is) || test.is == nil && err != nil {
			t.Errorf("%s: %v, %s", test.name, err, diff)
		}
		if diff := cmp.Diff(before, w.snapshot(t)); diff != "" {
			t.Errorf("%s: looking has changed %s", test.name, diff)
		}
	}
}

// An upgrade that the gates refuse, or whose cluster is not there, begins nothing.
func TestUpgradeBeginsNothing(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*testing.T, *world)
		is     error
		says   string
	}{
		{name: "no server is reached", change: func(_ *testing.T, w *world) { w.Dial = sitetest.DialTo(nil) }, is: sitetest.ErrNoRoute},
		{name: "hosts without a cluster", change: func(t *testing.T, w *world) {
			if err := os.Remove(w.fakes["10.0.0.11"].Path(site.K3sKubeconfig)); err != nil {
				t.Fatal(err)
			}
		}, says: "no k3s server runs yet"},
		{name: "an older bundle", change: func(t *testing.T, w *world) {
			w.records(t, w.record(t, release.Succeeded, func(r *release.Record) {
				r.Serial, r.Releases[0].Serial, r.Releases[0].Bundle = 9, 9, digest.FromString("newer")
			}))
		}, is: site.ErrRefused, says: "it is older"},
		{name: "a bundle for others", change: func(t *testing.T, w *world) {
			w.Bundle = sitetest.WholeBundle(t, lock.Validity{Audience: []string{"lan-2"}}, "v1.36.4+k3s1", "1.20.0")
		}, is: site.ErrConfig, says: "the bundle is for the clusters lan-2"},
	} {
		w := newWorld(t, sitetest.ExampleConfig).clustered(t)
		test.change(t, w)
		before := w.snapshot(t)
		summary, err := Upgrade(t.Context(), UpgradeOptions{Options: w.Options, Settings: upgrade.Settings{}})
		if summary != nil || err == nil || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(kubetest.Explained(err), test.says) {
			t.Errorf("%s: %+v, %v", test.name, summary, err)
		}
		if diff := cmp.Diff(before, w.snapshot(t)); diff != "" || w.api.Changes() != nil {
			t.Errorf("%s: it has changed %s, %q", test.name, diff, w.api.Changes())
		}
	}
}

// An upgrade counts as under way by its own state alone: by no other bundle's, verb's or release's.
func TestUpgradeIsUnderWay(t *testing.T) {
	w := newWorld(t, sitetest.ExampleConfig)
	for name, test := range map[string]struct {
		change func(*journal.State)
		to     int
		want   bool
	}{
		"this one":               {change: upgrading, want: true},
		"one that has ended":     {change: func(s *journal.State) { upgrading(s); s.Result = journal.Done }},
		"of another bundle":      {change: func(s *journal.State) { upgrading(s); s.Bundle = "sha256:0" }},
		"a way back":             {change: func(s *journal.State) { upgrading(s); s.Verb, s.RollbackTo = journal.Rollback, 3 }, to: 3, want: true},
		"to another release":     {change: func(s *journal.State) { upgrading(s); s.Verb, s.RollbackTo = journal.Rollback, 3 }, to: 2},
		"an upgrade, for a back": {change: upgrading, to: 3},
		"an installation":        {change: nil},
	} {
		w.state(t, test.change)
		o := UpgradeOptions{Options: w.Options, Settings: upgrade.Settings{RollbackTo: test.to}}
		if got := o.isUnderWay(); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// What stopped nothing is told at once by the verbs whose results have no place for it.
func TestTellWarnings(t *testing.T) {
	w := newWorld(t, sitetest.ExampleConfig)
	in, err := newInstaller(w.Options)
	if err != nil {
		t.Fatal(err)
	}
	in.site.Warn("the clock of %s is slow", "node-1\x1b[2J")
	in.tellWarnings()
	if diff := cmp.Diff([]string{"warning: the clock of node-1\ufffd[2J is slow"}, w.told.texts); diff != "" {
		t.Error(diff)
	}
}
