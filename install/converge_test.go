package install

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/kube"
)

// Only what is certainly no host of install.yaml, and not Ready, is left out.
func TestLeftOut(t *testing.T) {
	nodes := []kube.Node{
		{Name: "first", Ready: true, Addresses: []string{"10.0.0.11"}},
		{Name: "worker", MachineID: "0123", Addresses: []string{"10.0.0.99"}},
		{Name: "alive", Ready: true, Addresses: []string{"10.0.0.13"}},
		{Name: "dead", Addresses: []string{"10.0.0.14"}},
	}
	for _, test := range []struct {
		name  string
		known bool // the agent has said who it is
		only  bool // the run does not work on the agent
		agent string
		want  []string
	}{
		{"all hosts are known", true, false, "", []string{"dead"}},
		{"one that was not asked may be any of them", false, false, "", nil},
		{"one that the run leaves alone may be any of them", false, true, "", nil},
		{"its name tells which one it is", false, true, "worker", []string{"dead"}},
		{"so does its address", false, true, "10.0.0.99", []string{"dead"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := exampleConfig
			switch test.agent {
			case "worker":
				config = strings.Replace(config, "host: 10.0.0.12,", "host: 10.0.0.12, name: worker,", 1)
			case "10.0.0.99":
				config = strings.Replace(config, "host: 10.0.0.12,", "host: 10.0.0.99,", 1)
			}
			in := example(t, config)
			if test.known {
				in.site.hosts[1].hostname, in.site.hosts[1].machineID = "renamed", "0123"
			}
			if test.only {
				in.site.hosts = in.site.hosts[:1]
			}
			var got []string
			for _, n := range in.site.leftOut(nodes) {
				got = append(got, n.Name)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The warning of a node that is down has the command that takes it away.
func TestWarningOfNodesThatAreDown(t *testing.T) {
	in := example(t, exampleConfig)
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
	if diff := cmp.Diff(want, in.site.warnings); diff != "" {
		t.Error(diff)
	}
}

// With runtime.removeAbsentAgents, one that cannot be reached ends no run when it is down.
func TestAbsentAgentsThatAreDownStay(t *testing.T) {
	in := example(t, strings.Replace(exampleConfig, "network:\n", "runtime: {removeAbsentAgents: true, sshTimeoutSeconds: 1}\nssh: {trustOnFirstUse: true}\nnetwork:\n", 1))
	in.site.conns = newConnections(in.site.Config, nil)
	for _, ready := range []bool{true, false} {
		in.site.warnings = nil
		other := kube.Node{Name: "other", Ready: ready, Addresses: []string{"127.0.0.1"}}
		removals, err := in.members.absentRemovals(t.Context(), []kube.Node{other})
		for _, r := range removals {
			err = errors.Join(err, r.run(t.Context()))
		}
		if (err != nil) != ready {
			t.Errorf("Ready %v: got %v", ready, err)
		}
		if warned := strings.Contains(strings.Join(in.site.warnings, "\n"), forgetCommand("other")); warned == ready {
			t.Errorf("Ready %v: warnings %q", ready, in.site.warnings)
		}
	}
}

// Pods of LiteBoxd that leave a node that is down are not waited for.
func TestPodsBeside(t *testing.T) {
	pods := []kube.Pod{{Name: "a", Node: "worker"}, {Name: "b", Node: "dead"}, {Name: "c"}}
	want := []kube.Pod{{Name: "a", Node: "worker"}, {Name: "c"}}
	if diff := cmp.Diff(want, podsBeside([]kube.Node{{Name: "dead"}}, pods)); diff != "" {
		t.Error(diff)
	}
}
