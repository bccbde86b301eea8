package members

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
)

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
		if err := checkServersLeft(test.nodes, test.remove); errors.Is(err, site.ErrRefused) != test.refused || err != nil && !test.refused {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// A list of hosts that ends with a comma must not mean some host that has no name.
func TestNobodyIsCalledNothing(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	nodes := []kube.Node{{Name: "first", Server: true, Addresses: []string{"10.0.0.11"}}, {Name: "second", Addresses: []string{"10.0.0.12"}}}
	if r, err := in.members.removalOf(t.Context(), "", nodes); !errors.Is(err, site.ErrRefused) {
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
	in.site.Conns = site.NewConnections(in.site.Config, nil, nil)
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
		{wanted: "localhost", err: site.ErrHosts},
		{wanted: "two", node: "two"},
		{wanted: "10.0.0.9", err: site.ErrRefused},
		{wanted: "three", err: site.ErrRefused},
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
			name = r.host.Name
		}
		if r.node.Name != test.node || name != test.host || r.gone {
			t.Errorf("%s: removes node %q of host %q (gone: %v), want %q of %q", test.wanted, r.node.Name, name, r.gone, test.node, test.host)
		}
	}
}

// The warning of a node that is down has the command that takes it away.
func TestWarningOfNodesThatAreDown(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	if _, err := in.members.absentRemovals(t.Context(), []kube.Node{
		{Name: "alive", Ready: true, Addresses: []string{"10.0.0.13"}},
		{Name: "dead", Addresses: []string{"10.0.0.14", "dead"}},
		{Name: "gone", Server: true, Addresses: []string{"10.0.0.15"}},
	}); err != nil {
		t.Fatal(err)
	}
	const down = ", and is not Ready: nothing waits for it; if its host is gone for good: boxlift node remove --hosts "
	want := []string{
		"the node alive (10.0.0.13) is in the cluster and not in install.yaml; it stays: remove it with boxlift node remove, or set runtime.removeAbsentAgents",
		"the node dead (10.0.0.14, dead) is in the cluster and not in install.yaml" + down + "dead --forget-unreachable-host",
		"the node gone (10.0.0.15) is in the cluster and not in install.yaml" + down + "gone --forget-unreachable-host",
	}
	if diff := cmp.Diff(want, in.site.Warnings); diff != "" {
		t.Error(diff)
	}
}

// With runtime.removeAbsentAgents, one that cannot be reached ends no run when it is down.
func TestAbsentAgentsThatAreDownStay(t *testing.T) {
	in := example(t, strings.Replace(sitetest.ExampleConfig, "network:\n", "runtime: {removeAbsentAgents: true, sshTimeoutSeconds: 1}\nssh: {trustOnFirstUse: true}\nnetwork:\n", 1))
	in.site.Conns = site.NewConnections(in.site.Config, nil, nil)
	for _, ready := range []bool{true, false} {
		in.site.Warnings = nil
		other := kube.Node{Name: "other", Ready: ready, Addresses: []string{"127.0.0.1"}}
		removals, err := in.members.absentRemovals(t.Context(), []kube.Node{other})
		for _, r := range removals {
			err = errors.Join(err, r.run(t.Context()))
		}
		if (err != nil) != ready {
			t.Errorf("Ready %v: got %v", ready, err)
		}
		if warned := strings.Contains(strings.Join(in.site.Warnings, "\n"), ForgetCommand("other")); warned == ready {
			t.Errorf("Ready %v: warnings %q", ready, in.site.Warnings)
		}
	}
}
