package install

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/wire"
)

var update = flag.Bool("update", false, "write the golden files")

// checkGolden compares with a file of testdata.
func checkGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	golden := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s: %s", golden, diff)
	}
}

const exampleConfig = `cluster:
  name: example
  master:
    host: 10.0.0.11
    name: first
    nodeIP: 10.0.0.11
    password: server-secret
    k3s:
      tlsSAN: [k3s.example.internal, 10.0.0.11]
      installArgs: ["--disable=traefik", "--disable=servicelb", "--secrets-encryption", "--flannel-backend=none"]
  agents:
    - {host: 10.0.0.12, password: agent-secret}
network:
  cni: cilium
  cilium: {podCIDR: 10.52.0.0/16}
`

// example is an installer for exampleConfig and a bundle with the components given as
// name=version.
func example(t *testing.T, text string, components ...string) *installation {
	t.Helper()
	c, _, err := config.Parse("install.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	in := newRooms(Options{Config: c})
	in.site.contents = &bundle.Contents{}
	for _, component := range components {
		name, version, _ := strings.Cut(component, "=")
		in.site.contents.Components = append(in.site.contents.Components, name)
		in.site.contents.Files = append(in.site.contents.Files, bundle.File{Component: name, Version: version, Name: "file"})
	}
	for _, h := range c.Hosts() {
		in.site.hosts = append(in.site.hosts, &host{config: h, subject: subject{name: hostName(h)}})
	}
	return in
}

// What k3s is configured with, by the host's place: the first server, one that joins it,
// and an agent.
func TestConfigFiles(t *testing.T) {
	in := example(t, exampleConfig, "k3s=v1.36.4+k3s1")
	three := example(t, threeServers, "k3s=v1.36.4+k3s1")
	const agents = "the-agents-token"
	tests := []struct {
		golden     string
		in         *installation
		host       int
		agentToken string
	}{
		{"server.yaml", in, 0, agents},
		{"agent.yaml", in, 1, ""},
		{"first-of-three.yaml", three, 0, agents},
		{"second-of-three.yaml", three, 1, agents},
		{"agent-of-three.yaml", three, 3, ""},
		{"server-with-shared-token.yaml", in, 0, ""},
	}
	for _, test := range tests {
		h := test.in.site.hosts[test.host]
		n := test.in.cluster.nodeWith(h, test.in.site.seedServer(), "the-token")
		n.agentToken = test.agentToken
		got, err := n.configFile()
		if err != nil {
			t.Fatal(err)
		}
		checkGolden(t, test.golden, got)
		for _, secret := range []string{"the-token", agents} {
			if strings.Contains(string(got), secret) {
				t.Errorf("%s holds %s", test.golden, secret)
			}
		}
	}
}

const threeServers = `cluster:
  name: three
  serverConfig: {disable: [traefik]}
  servers:
    - {host: 10.0.0.11, password: p, nodeIP: 192.168.0.11}
    - {host: 10.0.0.12, password: p, k3s: {config: {tls-san: [k3s.example.internal]}}}
    - {host: 10.0.0.13, password: p}
  agents:
    - {host: 10.0.0.21, password: p, name: worker, taints: ["pool=sandboxes:NoSchedule"], k3s: {config: {kubelet-arg: ["max-pods=200"]}}}
network: {cni: cilium}
`

// A server that was set up anew joins those that still have the cluster, and a host
// keeps the server that it once joined.
func TestWhoJoinsWhom(t *testing.T) {
	const first, second, third = "https://192.168.0.11:6443", "https://10.0.0.12:6443", "https://10.0.0.13:6443"
	tests := []struct {
		name    string
		members []int // the servers that are in a cluster
		joined  map[int]string
		down    int // a host that is not reached; 0 is none but the first
		want    []string
	}{
		{name: "nothing is there", down: -1, want: []string{"", first, first, first}},
		{name: "all is there", members: []int{0, 1, 2}, joined: map[int]string{1: first, 2: first, 3: first}, down: -1, want: []string{"", first, first, first}},
		{name: "the first is down", members: []int{1, 2}, joined: map[int]string{1: first, 2: first}, down: 0, want: []string{second, first, first, second}},
		{name: "the first was set up anew", members: []int{1, 2}, joined: map[int]string{1: first, 2: first, 3: first}, down: -1, want: []string{second, first, first, first}},
		{name: "the second began it", members: []int{0, 1, 2}, joined: map[int]string{0: second, 2: second, 3: third}, down: -1, want: []string{second, "", second, third}},
		{name: "joined what is not there any more", members: []int{0, 1, 2}, joined: map[int]string{1: first, 2: "https://10.9.9.9:6443", 3: "https://10.9.9.9:6443"}, down: -1, want: []string{"", first, first, first}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := example(t, threeServers)
			for _, i := range test.members {
				in.site.hosts[i].member = true
			}
			for i, url := range test.joined {
				in.site.hosts[i].joined = url
			}
			if test.down >= 0 {
				in.site.hosts[test.down].fail(errors.New("no route"))
			}
			var got []string
			for _, h := range in.site.hosts {
				got = append(got, in.cluster.joinURL(h, in.site.seedServer()))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Members of etcd are started together only where one alone would wait for a majority in vain.
func TestStoppedMembers(t *testing.T) {
	tests := []struct {
		name   string
		states string // of each server: a word for k3s, - for one that is no member
		want   []int
	}{
		{name: "a first install", states: "- - -"},
		{name: "the second one joins", states: "active - -"},
		{name: "the second one was stopped when it joined", states: "active inactive -"},
		{name: "the first one alone was begun", states: "inactive - -"},
		{name: "all run", states: "active active active"},
		{name: "an upgrade broke off", states: "active failed active"},
		{name: "one more makes a majority", states: "inactive active inactive"},
		{name: "all are stopped", states: "inactive failed inactive", want: []int{0, 1, 2}},
		{name: "the first waits for the others", states: "activating inactive inactive", want: []int{1, 2}},
		{name: "the first two are stopped, and the third has not joined", states: "inactive inactive -", want: []int{0, 1}},
		{name: "one has lost its unit", states: "inactive inactive not-found", want: []int{0, 1}},
		{name: "one of five runs", states: "active inactive inactive inactive inactive", want: []int{1, 2, 3, 4}},
		{name: "two of five run", states: "active inactive active inactive inactive"},
		{name: "one server", states: "inactive"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var states []*machine.Service
			for _, word := range strings.Fields(test.states) {
				switch word {
				case "-":
					states = append(states, nil)
				case "not-found":
					states = append(states, &machine.Service{Active: "inactive", Load: word})
				default:
					states = append(states, &machine.Service{Active: word, Load: "loaded"})
				}
			}
			got, reason := stoppedMembers(states)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if (reason != "") != (test.want != nil) {
				t.Errorf("the reason is %q", reason)
			}
		})
	}
}

func TestCheckConfig(t *testing.T) {
	named := func(k3s, cilium string) string {
		text := strings.Replace(exampleConfig, "    k3s:\n", "    k3s:\n      version: "+k3s+"\n", 1)
		return strings.Replace(text, "cilium: {", "cilium: {version: "+cilium+", ", 1)
	}
	tests := []struct {
		name       string
		config     string
		components []string
		want       []string
	}{
		{name: "no versions named", config: exampleConfig, components: []string{"k3s=v1.36.4+k3s1", "cilium=1.20.0"}},
		{name: "the same versions", config: named("v1.36.4+k3s1", "1.20.0"), components: []string{"k3s=v1.36.4+k3s1", "cilium=1.20.0"}},
		{
			name: "other versions", config: named("v1.30.6+k3s1", "1.18.6"), components: []string{"k3s=v1.36.4+k3s1", "cilium=1.20.0"},
			want: []string{"asks for k3s v1.30.6+k3s1, the bundle carries v1.36.4+k3s1", "asks for Cilium 1.18.6, the bundle carries 1.20.0"},
		},
		{name: "no k3s", config: exampleConfig, components: []string{"cilium=1.20.0"}, want: []string{`carries no component "k3s"`}},
		{name: "no Cilium", config: exampleConfig, components: []string{"k3s=v1.36.4+k3s1"}, want: []string{`carries no component "cilium"`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := example(t, test.config, test.components...).checkConfig()
			if (err == nil) != (test.want == nil) {
				t.Fatalf("got %v, want errors %q", err, test.want)
			}
			if err != nil && !errors.Is(err, ErrConfig) {
				t.Errorf("%v is not ErrConfig", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
		})
	}
}

func TestPlatformOf(t *testing.T) {
	for uname, want := range map[string]string{"Linux x86_64": "linux/amd64", "Linux aarch64": "linux/arm64", "Linux i686": "", "Darwin arm64": "", "": ""} {
		got, err := platformOf(uname)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", uname, got, err)
		}
	}
}

// What a host prints is shown without secrets and without anything that moves a cursor.
func TestWhatHostsPrint(t *testing.T) {
	in := example(t, exampleConfig)
	n := &k3sNode{cluster: in.cluster, host: in.site.hosts[0], token: "the-token"}
	got := printable.Text(strings.TrimSpace(n.redact("fatal: token the-token refused\x1b[2J for server-secret\r\nnext line agent-secret\u009b\xff\n")))
	want := "fatal: token [secret] refused\ufffd[2J for [secret] \nnext line [secret]\ufffd\ufffd"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// A log may hold only the last part of the token that agents join with.
	n.token = "K10ab::server:the-password"
	if got := n.redact("K10ab::server:the-password the-password"); got != "[secret] [secret]" {
		t.Error(got)
	}
}

func TestHostsErrorNamesThemAll(t *testing.T) {
	in := example(t, exampleConfig)
	in.site.hosts[0].fail(errors.New("it is on fire"))
	in.site.hosts[0].fail(errors.New("a later error adds nothing"))
	err := in.engine.hostErrors(in.engine.unfinished()...)
	want := "1 of 2 hosts failed\nfirst (10.0.0.11): it is on fire\nnot gone on with because of that: 10.0.0.12"
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(err, ErrHosts) {
		t.Error("it is not ErrHosts")
	}
}

// What hosts say is shown without what could steer a terminal, and not without bound.
func TestHostsErrorIsFitToBeShown(t *testing.T) {
	in := example(t, exampleConfig)
	in.site.hosts[0].fail(&shipError{&wire.Failure{Text: "no room\x1b]0;title\a\u009b2J" + strings.Repeat("x", 4<<20)}})
	text := in.engine.hostErrors().Error()
	if strings.ContainsAny(text, "\x1b\a\u009b") || len(text) > 2*maxHostError {
		t.Errorf("%d bytes: %.100q", len(text), text)
	}
}

func TestServersLeft(t *testing.T) {
	tests := []struct {
		name   string
		ready  string // a letter for each server: r or n
		remove []int
		want   string
	}{
		{name: "the only one", ready: "r", remove: []int{0}, want: "the last server is never removed"},
		{name: "all", ready: "rrr", remove: []int{0, 1, 2}, want: "the last server is never removed"},
		{name: "one of three", ready: "rrr", remove: []int{1}},
		{name: "two of three", ready: "rrr", remove: []int{1, 2}},
		{name: "the one of three that is down", ready: "rnr", remove: []int{1}},
		{name: "another one than the one that is down", ready: "rnr", remove: []int{0}, want: "1 of 2 servers would be left that are Ready"},
		{name: "the one that is down, and then another", ready: "rnr", remove: []int{1, 0}},
		{name: "two are down", ready: "rnn", remove: []int{1}, want: "etcd needs a majority"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			nodes := []kube.Node{{Name: "agent", Ready: true}}
			for i, letter := range test.ready {
				nodes = append(nodes, kube.Node{Name: strconv.Itoa(i), Server: true, Ready: letter == 'r'})
			}
			removals := []*removal{{node: nodes[0]}}
			for _, i := range test.remove {
				removals = append(removals, &removal{node: nodes[i+1]})
			}
			err := checkServersLeft(nodes, removals)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// A server whose node was deleted may be the only one that runs.
func TestServersWithoutNodesAreLeft(t *testing.T) {
	server := func(name string, ready bool) kube.Node { return kube.Node{Name: name, Server: true, Ready: ready} }
	agent := kube.Node{Name: "agent", Ready: true}
	without := func(n kube.Node) *removal { return &removal{node: n, gone: true} }
	tests := []struct {
		name    string
		nodes   []kube.Node
		remove  []*removal
		refused bool
	}{
		{"the only server", []kube.Node{agent}, []*removal{without(server("a", false))}, true},
		{"the only one, which has come back meanwhile", []kube.Node{agent, server("a", true)}, []*removal{without(server("a", false))}, true},
		{"another one is Ready", []kube.Node{agent, server("b", true)}, []*removal{without(server("a", false))}, false},
		{"another one is not Ready", []kube.Node{agent, server("b", false)}, []*removal{without(server("a", false))}, true},
		{"the other one goes, too", []kube.Node{server("b", true)}, []*removal{without(server("a", false)), {node: server("b", true)}}, true},
		{"an agent", []kube.Node{server("a", false)}, []*removal{without(kube.Node{Name: "late"})}, false},
	}
	for _, test := range tests {
		if err := checkServersLeft(test.nodes, test.remove); errors.Is(err, ErrRefused) != test.refused || err != nil && !test.refused {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// A list of hosts that ends with a comma must not mean some host that has no name.
func TestNobodyIsCalledNothing(t *testing.T) {
	in := example(t, exampleConfig)
	nodes := []kube.Node{{Name: "first", Server: true, Addresses: []string{"10.0.0.11"}}, {Name: "second", Addresses: []string{"10.0.0.12"}}}
	if r, err := in.members.removalOf(t.Context(), "", nodes); !errors.Is(err, ErrRefused) {
		t.Errorf("to remove \"\" removes %v, %v", r, err)
	}
}

// What is removed is never guessed: a host that is drained is the one that is uninstalled.
func TestWhatIsRemoved(t *testing.T) {
	in := example(t, `cluster:
  master: {host: 127.0.0.1, port: 1, password: p}
  agents:
    - {host: 127.0.0.2, port: 1, password: p}
    - {host: localhost, port: 1, password: p}
ssh: {trustOnFirstUse: true}
network: {cni: cilium}
`)
	in.site.conns = newConnections(in.site.Config, nil)
	nodes := []kube.Node{
		{Name: "server", Server: true, Addresses: []string{"127.0.0.1"}},
		{Name: "one", Addresses: []string{"127.0.0.2", "one"}},
		{Name: "two", Addresses: []string{"10.0.0.9", "two"}},
		{Name: "old-two", Addresses: []string{"10.0.0.9", "old-two"}},
	}
	tests := []struct {
		wanted, node, host string
		err                error
	}{
		{wanted: "127.0.0.2", node: "one", host: "127.0.0.2"},
		{wanted: "one", node: "one", host: "127.0.0.2"},
		// The cluster knows it by another name, and it cannot be asked.
		{wanted: "localhost", err: ErrHosts},
		{wanted: "two", node: "two"},
		{wanted: "10.0.0.9", err: ErrRefused},
		{wanted: "three", err: ErrRefused},
	}
	for _, test := range tests {
		r, err := in.members.removalOf(t.Context(), test.wanted, nodes)
		if !errors.Is(err, test.err) {
			t.Errorf("%s: error %v, want %v", test.wanted, err, test.err)
		}
		if err != nil {
			continue
		}
		name := ""
		if r.host != nil {
			name = r.host.name
		}
		if r.node.Name != test.node || name != test.host || r.gone {
			t.Errorf("%s: removes node %q of host %q (gone: %v), want %q of %q", test.wanted, r.node.Name, name, r.gone, test.node, test.host)
		}
	}
}

// An installation has the hosts try each other when one is new, preflight alone always.
func TestTriesReach(t *testing.T) {
	in := example(t, exampleConfig)
	for _, test := range []struct {
		name             string
		isNew, installed bool
		want             bool
	}{
		{name: "preflight alone", want: true},
		{name: "preflight before a host joins", isNew: true, want: true},
		{name: "an installation that is there", installed: true},
		{name: "an installation with a new host", isNew: true, installed: true, want: true},
	} {
		in.site.hosts[0].member, in.site.hosts[1].joined, in.engine.journal = true, "https://10.0.0.11:6443", nil
		if test.isNew {
			in.site.hosts[1].joined = ""
		}
		if test.installed {
			in.engine.journal = &journal.Journal{}
		}
		if got := in.surveyor.triesReach(); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// Machines that were cloned have one machine-id. None of them may be taken for another, or
// be removed because another was found under its machine-id.
func TestClonedMachines(t *testing.T) {
	in := example(t, exampleConfig)
	h := in.site.hosts[1]
	h.hostname, h.machineID = "worker", "0123"
	nodes := []kube.Node{{Name: "clone", MachineID: "0123"}, {Name: "worker", MachineID: "0123"}}
	if n := in.site.nodeOf(h, nodes); n == nil || n.Name != "worker" {
		t.Errorf("the node of worker is %v", n)
	}
	if got := in.site.resembles(nodes[0]); got != h {
		t.Errorf("the node clone resembles %v, want worker", got)
	}
	if got := in.site.resembles(kube.Node{Name: "other", MachineID: "4567", Addresses: []string{"10.0.0.9"}}); got != nil {
		t.Errorf("the node other resembles %v", got)
	}
}

// A cluster that cannot be looked at must not pass for one that is as it is to be.
func TestInspectTellsWhatItCouldNotSee(t *testing.T) {
	in := example(t, exampleConfig)
	in.engine.mode = inspect
	broken := errors.New("the API does not answer")
	last := false
	err := in.engine.run(t.Context(), []phase{
		{"converge", func(context.Context) error { return broken }},
		{"finish", func(context.Context) error { last = true; return nil }},
	})
	if !errors.Is(err, broken) || !errors.Is(err, ErrCluster) || !last {
		t.Errorf("got %v, went on: %v; want the error of the phase that failed, and to go on", err, last)
	}
}

// A removal that was broken off between its last two steps is remembered.
func TestLeftBehind(t *testing.T) {
	step := func(host, title string, result journal.Result) journal.Step {
		return journal.Step{Phase: "converge", Host: host, Title: title, Result: result}
	}
	steps := []journal.Step{
		step("a (10.0.0.1)", "delete the node a", journal.Done), step("a (10.0.0.1)", uninstallTitle, journal.Done),
		step("b (10.0.0.2)", "delete the node b", journal.Done), step("b (10.0.0.2)", uninstallTitle, journal.Running),
		step("c (10.0.0.3)", "delete the node c", journal.Running),
		step("d (10.0.0.4)", "drain the node d", journal.Failed),
	}
	want := []journal.Left{{Host: "b (10.0.0.2)", Node: "b"}, {Host: "c (10.0.0.3)", Node: "c"}}
	for result, want := range map[journal.Result][]journal.Left{journal.Running: want, journal.Failed: want, journal.Done: nil} {
		if diff := cmp.Diff(want, leftBehind(journal.State{Version: 1, Result: result, Steps: steps})); diff != "" {
			t.Errorf("after a run that is %s (-want +got):\n%s", result, diff)
		}
	}
	// Nor is it forgotten when the run that is to go on with it breaks off, too.
	again := journal.State{Version: 1, Result: journal.Running, Run: journal.Run{Left: want}, Steps: []journal.Step{step("b (10.0.0.2)", uninstallTitle, journal.Done)}}
	if diff := cmp.Diff(want[1:], leftBehind(again)); diff != "" {
		t.Errorf("after the next run (-want +got):\n%s", diff)
	}
}

// As many hosts are worked on at once as install.yaml allows, and one's error is its own.
func TestEachHost(t *testing.T) {
	in := example(t, strings.Replace(exampleConfig, "network:\n", "runtime: {parallelism: 2}\nnetwork:\n", 1))
	for range 6 {
		in.site.hosts = append(in.site.hosts, &host{subject: subject{name: "another"}})
	}
	var now, most, done atomic.Int32
	broken := errors.New("it is on fire")
	err := in.engine.eachHost(t.Context(), in.site.hosts, func(_ context.Context, h *host) error {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		done.Add(1)
		time.Sleep(2 * time.Millisecond)
		if h == in.site.hosts[3] {
			return broken
		}
		return nil
	})
	if most.Load() > 2 || done.Load() != 8 || !errors.Is(err, broken) {
		t.Errorf("%d at once, %d done, %v", most.Load(), done.Load(), err)
	}
	for i, h := range in.site.hosts {
		if (h.err != nil) != (i == 3) {
			t.Errorf("host %d: %v", i, h.err)
		}
	}
}

// What fails for the cluster as a whole ends with the command to run next, as hosts' failures do.
func TestFailureOfCluster(t *testing.T) {
	in := example(t, exampleConfig)
	cause := errors.New("not rolled out")
	err := in.engine.failure("network", cause)
	var hinted *clusterError
	if !errors.Is(err, ErrCluster) || !errors.Is(err, cause) || !errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), "run the same command again") {
		t.Errorf("%v", err)
	}
	if want := "the cluster cannot be brought to what was asked for: network: not rolled out"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if err := in.engine.failure("network", fmt.Errorf("%w: no", ErrRefused)); errors.Is(err, ErrCluster) || !errors.Is(err, ErrRefused) {
		t.Errorf("what is refused: %v", err)
	}
}
