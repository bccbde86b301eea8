package members

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/site/sitetest"
)

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
	in.site.Conns = site.NewConnections(in.site.Config, nil)
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
