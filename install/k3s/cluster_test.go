package k3s

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// What k3s is configured with, by the host's place: the first server, one that joins it,
// and an agent.
func TestConfigFiles(t *testing.T) {
	in := example(t, sitetest.ExampleConfig, "k3s=v1.36.4+k3s1")
	three := example(t, sitetest.ThreeServers, "k3s=v1.36.4+k3s1")
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
		h := test.in.site.Hosts[test.host]
		n := test.in.cluster.NodeWith(h, test.in.site.SeedServer(), "the-token")
		n.agentToken = test.agentToken
		got, err := n.configFile()
		if err != nil {
			t.Fatal(err)
		}
		sitetest.CheckGolden(t, test.golden, got)
		for _, secret := range []string{"the-token", agents} {
			if strings.Contains(string(got), secret) {
				t.Errorf("%s holds %s", test.golden, secret)
			}
		}
	}
}

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
			in := example(t, sitetest.ThreeServers)
			for _, i := range test.members {
				in.site.Hosts[i].Member = true
			}
			for i, url := range test.joined {
				in.site.Hosts[i].Joined = url
			}
			if test.down >= 0 {
				in.site.Hosts[test.down].Fail(errors.New("no route"))
			}
			var got []string
			for _, h := range in.site.Hosts {
				got = append(got, in.cluster.JoinURL(h, in.site.SeedServer()))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Agents join by the front's address. Servers join each other: at the front's address nobody answers before they run.
func TestWhoJoinsByTheFront(t *testing.T) {
	const vip, first = "https://10.0.0.10:6443", "https://192.168.0.11:6443"
	in := example(t, strings.Replace(sitetest.ThreeServers, "cluster:\n", "cluster:\n  front: {vip: 10.0.0.10}\n", 1))
	for _, joined := range []string{"", vip} { // vip: as an apiEndpoint before
		in.site.Hosts[0].Member = joined != ""
		var got []string
		for i, h := range in.site.Hosts {
			if i > 0 {
				h.Joined = joined
			}
			got = append(got, in.cluster.JoinURL(h, in.site.SeedServer()))
		}
		if diff := cmp.Diff([]string{"", first, first, vip}, got); diff != "" {
			t.Error(diff)
		}
	}
	names := (&Node{Cluster: in.cluster, Host: in.site.Hosts[0]}).Settings()["tls-san"]
	if diff := cmp.Diff([]string{"10.0.0.11", "192.168.0.11", "10.0.0.10", "10.0.0.12", "10.0.0.13"}, names); diff != "" {
		t.Error(diff)
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

// What a host prints is shown without secrets and without anything that moves a cursor.
func TestWhatHostsPrint(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	n := &Node{Cluster: in.cluster, Host: in.site.Hosts[0], Token: "the-token"}
	got := printable.Text(strings.TrimSpace(n.Redact("fatal: token the-token refused\x1b[2J for server-secret\r\nnext line agent-secret\u009b\xff\n")))
	want := "fatal: token [secret] refused\ufffd[2J for [secret] \nnext line [secret]\ufffd\ufffd"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// A log may hold only the last part of the token that agents join with.
	n.Token = "K10ab::server:the-password"
	if got := n.Redact("K10ab::server:the-password the-password"); got != "[secret] [secret]" {
		t.Error(got)
	}
}
