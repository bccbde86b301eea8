package survey

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/hold"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// surveyed is a run on new hosts of install.yaml, and the hosts by address.
func surveyed(t *testing.T, text string) (*installation, map[string]*hosttest.Fake) {
	t.Helper()
	in := example(t, text)
	in.site.Bundle = sitetest.WholeBundle(t, lock.Validity{Serial: 8}, "v1.36.4+k3s1", "1.20.0")
	in.site.StatePath = filepath.Join(t.TempDir(), "state.json")
	var err error
	if in.site.Contents, err = in.site.Bundle.Contents(); err != nil {
		t.Fatal(err)
	}
	in.site.K3s = in.site.Version(site.K3sComponent)
	fakes, dial := sitetest.Hosts(t, in.site.Config)
	in.site.Conns = site.NewConnections(in.site.Config, nil, dial)
	t.Cleanup(in.engine.Close)
	return in, fakes
}

// snapshots are those of all hosts.
func snapshots(t *testing.T, fakes map[string]*hosttest.Fake) string {
	t.Helper()
	var all string
	for _, name := range slices.Sorted(maps.Keys(fakes)) {
		all += fakes[name].Snapshot(t)
	}
	return all
}

// preflight judges the hosts as an installation does, with its state open, or as `boxlift preflight` does.
func (in *installation) preflight(t *testing.T, ctx context.Context, recorded bool) error { //nolint:revive // t comes first here
	t.Helper()
	if recorded {
		var err error
		if in.engine.Journal, err = journal.Open(in.site.StatePath); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = in.engine.Journal.Close() })
	}
	return in.engine.Apply(ctx, []run.Phase{{Name: "preflight", Look: in.surveyor.Preflight, Gate: true}})
}

// Preflight brings boxlift-node to new hosts, and nothing else. Who only looks brings nothing, and is told so.
func TestPreflightOfNewHosts(t *testing.T) {
	for _, recorded := range []bool{false, true} {
		in, fakes := surveyed(t, sitetest.ExampleConfig)
		if err := in.preflight(t, t.Context(), recorded); err != nil {
			t.Fatal(err)
		}
		for _, h := range in.site.Hosts {
			if h.Held != recorded || h.Facts == nil || h.Images != 2 || h.Helper == "" || h.Refused {
				t.Errorf("recorded: %t: %s: held %t, %d images, boxlift-node %q", recorded, h.Name, h.Held, h.Images, h.Helper)
			}
			f := fakes[h.Config.Host]
			if f.ReadFile(t, site.HelperPath) != "boxlift-node for linux/amd64" {
				t.Errorf("recorded: %t: %s has no boxlift-node", recorded, h.Name)
			}
			var puts []string
			for _, c := range f.Commands() {
				if strings.HasPrefix(c, "put ") {
					puts = append(puts, c)
				}
			}
			if diff := cmp.Diff([]string{"put " + site.HelperPath}, puts); diff != "" {
				t.Errorf("recorded: %t: %s: %s", recorded, h.Name, diff)
			}
		}
		for _, f := range in.surveyor.Findings {
			if f.Severity == preflight.Error {
				t.Errorf("recorded: %t: %+v", recorded, f)
			}
		}
		if got := in.surveyor.Unseen(); got != nil {
			t.Errorf("recorded: %t: not seen: %+v", recorded, got)
		}

		looked, fakes := surveyed(t, sitetest.ExampleConfig)
		before := snapshots(t, fakes)
		for name, look := range map[string]func(context.Context) error{"survey": looked.surveyor.Survey, "preflight": looked.surveyor.Preflight} {
			if err := looked.engine.Look(t.Context(), []run.Phase{{Name: name, Look: look, Gate: true}}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			told := []string{"boxlift-node is not on the host"}
			if name == "preflight" {
				told = nil
			}
			if diff := cmp.Diff(told, looked.site.Hosts[1].Differences); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
			looked.site.Hosts[0].Differences, looked.site.Hosts[1].Differences = nil, nil
		}
		if diff := cmp.Diff(before, snapshots(t, fakes)); diff != "" {
			t.Errorf("looking has changed the hosts: %s", diff)
		}
	}
}

// cluster has the first host be the server of a cluster, which another operator has installed.
func cluster(t *testing.T, in *installation, fakes map[string]*hosttest.Fake, nodes ...runtime.Object) *kubetest.Memory {
	t.Helper()
	m := kubetest.NewMemory(t, append(nodes, kubetest.Labelled("first", nil))...)
	f := fakes["10.0.0.11"]
	f.WriteFile(t, site.K3sKubeconfig, string(m.Kubeconfig), 0o600)
	f.WriteFile(t, site.K3sNodeToken, sitetest.FullToken, 0o600)
	f.WriteFile(t, "/etc/systemd/system/k3s.service", "", 0o644)
	f.WriteFile(t, site.ServiceFile, "made", 0o600)
	told := sitetest.Facts("node-1", "10.0.0.11")
	told.K3s = facts.K3s{Path: site.K3sBinary, Version: in.site.K3s, Managed: true, DataDirs: []string{"/var/lib/rancher/k3s/server"}}
	told.Units = []facts.Unit{{Name: "k3s.service", LoadState: "loaded", ActiveState: "active", UnitFileState: "enabled"}}
	server := sitetest.NewServer(t, "node-1", told, m)
	node := func(ctx context.Context, c *hosttest.Call) int { // its boxlift-node, on the host that is there
		if c.Args[0] == "facts" {
			if err := json.NewEncoder(c.Stdout).Encode(told); err != nil {
				return 1
			}
			return 0
		}
		c.Args = append([]string{site.HelperPath}, c.Args...)
		if err := hold.Run(ctx, c.Stdin, c.Stdout, hold.Options{Dir: f.Path(hold.Dir)}); err != nil {
			return 1
		}
		return 0
	}
	f.Program("boxlift-node", node)
	server.Fake = f
	dial := sitetest.DialTo(map[string]host.Host{"10.0.0.11": server, "10.0.0.12": fakes["10.0.0.12"]})
	in.site.Conns = site.NewConnections(in.site.Config, nil, dial)
	return m
}

// A host that cannot become what it is to be is refused, with what is wrong and what to do; nothing but boxlift-node
// comes to any host, and the host beside it is as well as it was.
func TestHostsAreRefused(t *testing.T) {
	say := func(title, text string) func(*testing.T, *installation, map[string]*hosttest.Fake) {
		return func(_ *testing.T, in *installation, fakes map[string]*hosttest.Fake) {
			in.site.Conns = site.NewConnections(in.site.Config, nil, sitetest.DialTo(map[string]host.Host{
				"10.0.0.11": fakes["10.0.0.11"], "10.0.0.12": sitetest.Saying{Host: fakes["10.0.0.12"], Title: title, Text: text},
			}))
		}
	}
	node := func(p hosttest.Program) func(*testing.T, *installation, map[string]*hosttest.Fake) {
		return func(_ *testing.T, _ *installation, fakes map[string]*hosttest.Fake) {
			was := fakes["10.0.0.12"]
			was.Program("boxlift-node", p)
		}
	}
	const id2 = "00000000000000000000000000000002"
	machine := func(name, id string) *corev1.Node {
		n := kubetest.Labelled(name, nil)
		n.Status.NodeInfo.MachineID = id
		return n
	}
	for _, test := range []struct {
		name   string
		change func(*testing.T, *installation, map[string]*hosttest.Fake)
		want   string
		check  string // of the finding on a host that could not be looked at
		hint   string
	}{
		{name: "not reached", change: func(_ *testing.T, in *installation, fakes map[string]*hosttest.Fake) {
			in.site.Conns = site.NewConnections(in.site.Config, nil, sitetest.DialTo(map[string]host.Host{"10.0.0.11": fakes["10.0.0.11"]}))
		}, want: "10.0.0.12: no route to host", check: preflight.CheckFacts, hint: "boxlift preflight"},
		{name: "another platform", change: say("find out the platform", "1700000000.0\nLinux aarch64\nnode-2\n\n"),
			want: "its programs are linux/amd64"},
		{name: "no platform", change: say("find out the platform", "1700000000.0\nLinux i686\nnode-2\n\n"),
			want: "boxlift installs on Linux x86_64 and aarch64 only", check: preflight.CheckPlatform, hint: "choose another host"},
		{name: "one that says nothing of itself", change: say("find out the platform", "\x1b[2J"),
			want: `the host printed "\x1b[2J"`, check: preflight.CheckFacts, hint: "boxlift preflight"},
		{name: "tools are missing", change: say("look for a cluster", "missing tar\nmissing \x1b]0;x\n"),
			want: "the host has no tar, \ufffd]0;x", check: preflight.CheckFacts},
		{name: "programs do not run there", change: node(hosttest.Fails(126, "Permission denied")), want: "Permission denied",
			check: preflight.CheckNoExec, hint: "findmnt -T"},
		{name: "facts that are none", change: node(hosttest.Prints(`{"version":2,"hostname":"\u001b[2J"}`)),
			want: "10.0.0.12: gather facts: read facts: ", check: preflight.CheckFacts},
		{name: "too small", change: func(t *testing.T, _ *installation, fakes map[string]*hosttest.Fake) {
			t.Helper()
			told := sitetest.Facts("node-2", "10.0.0.12")
			told.Memory.Total, told.Memory.Available = 1<<20, 1<<20
			text, err := json.Marshal(told)
			if err != nil {
				t.Fatal(err)
			}
			fakes["10.0.0.12"].Program("boxlift-node", func(ctx context.Context, c *hosttest.Call) int {
				if c.Args[0] != "facts" {
					return 1
				}
				return hosttest.Prints(string(text))(ctx, c)
			})
		}, want: "memory"},
		{name: "the name of another machine's node", change: func(t *testing.T, in *installation, fakes map[string]*hosttest.Fake) {
			t.Helper()
			cluster(t, in, fakes, machine("node-2", "another"))
		}, want: "the cluster has that node on another machine", check: preflight.CheckHostname, hint: "boxlift node remove --hosts node-2"},
		{name: "a copy of another machine", change: func(t *testing.T, in *installation, fakes map[string]*hosttest.Fake) {
			t.Helper()
			cluster(t, in, fakes, machine("original", id2))
		}, want: "it is a copy of that machine", check: preflight.CheckMachineID, hint: "systemd-machine-id-setup"},
		{name: "of another cluster", change: func(t *testing.T, in *installation, fakes map[string]*hosttest.Fake) {
			t.Helper()
			cluster(t, in, fakes)
			fakes["10.0.0.12"].WriteFile(t, site.K3sTokenFile, "K10fff::node:password", 0o600)
		}, want: "cluster", check: preflight.CheckFacts},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, fakes := surveyed(t, sitetest.ExampleConfig)
			test.change(t, in, fakes)
			err := in.preflight(t, t.Context(), false)
			good, bad := in.site.Hosts[0], in.site.Hosts[1]
			if !errors.Is(err, site.ErrHosts) || bad.Err == nil || !bad.Refused || good.Err != nil || good.Facts == nil {
				t.Fatalf("got %v; the good host: %v", err, good.Err)
			}
			kubetest.Contains(t, err.Error(), test.want)
			if strings.Contains(err.Error(), "\x1b") {
				t.Errorf("it is not fit to be shown: %q", err)
			}
			found := slices.Concat(in.surveyor.Findings, in.surveyor.Unseen())
			i := slices.IndexFunc(found, func(f preflight.Finding) bool { return f.Host == bad.Name && f.Severity == preflight.Error })
			if i < 0 || test.check != "" && found[i].Check != test.check || !strings.Contains(found[i].Hint, test.hint) {
				t.Errorf("findings: %+v", found)
			}
			for _, c := range fakes["10.0.0.12"].Commands() {
				if strings.HasPrefix(c, "put ") && c != "put "+site.HelperPath {
					t.Errorf("the refused host got %q", c)
				}
			}
		})
	}
}

// What the cluster's record says ends a run before its hosts are judged; `boxlift preflight` tells all of it.
func TestRecordRefuses(t *testing.T) {
	for _, test := range []struct {
		name     string
		only     []string
		recorded bool
		document func(*testing.T) []byte
		want     string
	}{
		{name: "an older bundle", recorded: true, want: "it is older"},
		{name: "an older bundle, in preflight alone", want: "it is older"},
		{name: "hosts join another bundle's cluster", recorded: true, only: []string{"10.0.0.12"}, want: "it is older"},
		{name: "a record that nobody can read", recorded: true, document: func(*testing.T) []byte { return []byte("\x1b[2J") },
			want: "the record of releases cannot be used"},
		{name: "another bundle of the same age", recorded: true, only: []string{"10.0.0.12"}, document: func(t *testing.T) []byte {
			t.Helper()
			text, err := sitetest.RecordOf(t, 8).Encode()
			if err != nil {
				t.Fatal(err)
			}
			return text
		}, want: "add hosts with the cluster's own bundle"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, fakes := surveyed(t, sitetest.ExampleConfig)
			m := cluster(t, in, fakes)
			document, err := sitetest.RecordOf(t, 9).Encode()
			if test.document != nil {
				document, err = test.document(t), nil
			}
			if err != nil {
				t.Fatal(err)
			}
			secret := &corev1.Secret{Data: map[string][]byte{release.SecretKey: document}}
			secret.Namespace, secret.Name = release.SecretNamespace, release.SecretName
			m.Put(t, secret)
			before := m.Snapshot(t)
			in.engine.Only = test.only
			err = in.preflight(t, t.Context(), test.recorded)
			if !errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), test.want) || m.Snapshot(t) != before {
				t.Errorf("got %v; %q", err, m.Changes())
			}
			if judged := in.surveyor.Findings != nil; judged == test.recorded {
				t.Errorf("it was judged: %t", judged)
			}
		})
	}
}

// Ctrl-C while hosts are looked at ends that with what it says; none of them is called refused by it.
func TestPreflightInterrupted(t *testing.T) {
	in, fakes := surveyed(t, sitetest.ExampleConfig)
	pressed := errors.New("Ctrl-C")
	ctx, cancel := context.WithCancelCause(t.Context())
	fakes["10.0.0.12"].Program("boxlift-node", func(context.Context, *hosttest.Call) int {
		cancel(pressed)
		return 1
	})
	if err := in.preflight(t, ctx, false); !errors.Is(err, pressed) {
		t.Errorf("got %v", err)
	}
}

// A boxlift-node of another bundle, and a k3s of somebody else's, are told of by who only looks.
func TestSurveyTellsWhatIsOdd(t *testing.T) {
	in, fakes := surveyed(t, sitetest.ExampleConfig)
	fakes["10.0.0.12"].WriteFile(t, site.HelperPath, "older", 0o755)
	// The interpreter of scripts does not know "${10}", by which a unit is looked for.
	in.site.Conns = site.NewConnections(in.site.Config, nil, sitetest.DialTo(map[string]host.Host{"10.0.0.12": fakes["10.0.0.12"],
		"10.0.0.11": sitetest.Saying{Host: fakes["10.0.0.11"], Title: "look for a cluster", Text: "unit k3s\n"}}))
	before := snapshots(t, fakes)
	if err := in.engine.Look(t.Context(), []run.Phase{{Name: "survey", Look: in.surveyor.Survey}}); err != nil {
		t.Fatal(err)
	}
	want := [][]string{{k3s.NotAdopted, "boxlift-node is not on the host"}, {"boxlift-node is that of another bundle"}}
	for i, h := range in.site.Hosts {
		if diff := cmp.Diff(want[i], h.Differences); diff != "" {
			t.Errorf("%s: %s", h.Name, diff)
		}
	}
	if before != snapshots(t, fakes) {
		t.Error("looking has changed a host")
	}
}
