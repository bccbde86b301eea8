package upgrade

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/test/sitetest"
)

func TestUpgradeOrder(t *testing.T) {
	in := example(t, sitetest.ThreeServers, "k3s=v1.34.4+k3s1")
	hosts := []Host{
		{Host: "s1", Role: config.Server, K3s: "v1.33.13+k3s1", Ship: 5}, {Host: "s2", Role: config.Server, K3s: "v1.33.13+k3s1", Ship: 5}, {Host: "s3", Role: config.Server, K3s: "v1.34.4+k3s1"},
		{Host: "a1", Role: config.Agent, K3s: "v1.33.13+k3s1"}, {Host: "a2", Role: config.Agent, K3s: "v1.33.13+k3s1"}, {Host: "a3", Role: config.Agent, K3s: "v1.33.13+k3s1"},
		{Host: "gone", Role: config.Agent, Error: "no route"},
	}
	p := &Plan{Hosts: hosts, Components: []ComponentChange{
		{"k3s", []string{"v1.33.13+k3s1", "v1.34.4+k3s1"}, "v1.34.4+k3s1"}, {"cilium", []string{"v1.18.6"}, "1.18.12"}, {"liteboxd", []string{"v0.6.9"}, "v0.6.10"},
	}}
	u := &planner{upgrader: in.upgrader, options: Settings{Batches: Batches{Canary: 1, Size: 1}},
		phases: []string{"preflight", "backup", "ship", "servers", "network", "agents", k3s.TokensPhase, "liteboxd", "verify"}}
	const restart = "start k3s v1.34.4+k3s1 in place, pods go on"
	want := []Step{
		{"back up the cluster, and prove the backup", nil},
		{"ship and import the bundle's contents, while the old versions serve", []string{"s1", "s2"}},
		{restart, []string{"s1"}}, {restart, []string{"s2"}},
		{"upgrade Cilium from v1.18.6 to 1.18.12", nil},
		{restart, []string{"a1"}}, {restart, []string{"a2"}}, {restart, []string{"a3"}},
		{"upgrade LiteBoxd from v0.6.9 to v0.6.10", nil},
	}
	if diff := cmp.Diff(want, u.order(p)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	p = &Plan{Components: []ComponentChange{{"k3s", nil, "v1"}, {"cilium", []string{"v1.18.12"}, "1.18.12"}, {"liteboxd", nil, "v0.6.10"}}}
	if diff := cmp.Diff([]Step{{What: "back up the cluster, and prove the backup"}, {What: "deploy LiteBoxd v0.6.10"}}, u.order(p)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	p.Components[2].From = []string{"v0.6.10"}
	p.Hosts = []Host{{Host: "s1", Role: config.Server, K3s: "v1"}, {Host: "a1", Role: config.Agent, K3s: "v1", Restart: "registries.yaml differs"}}
	if diff := cmp.Diff([]Step{{What: "back up the cluster, and prove the backup"}, {"start k3s v1 in place, pods go on", []string{"a1"}}}, u.order(p)); diff != "" {
		t.Errorf("with other settings alone, -want +got:\n%s", diff)
	}
	p.Hosts = nil
	if steps := u.order(p); steps != nil {
		t.Errorf("there is nothing to do, and it is %v", steps)
	}
}

func TestGatesError(t *testing.T) {
	e := &gatesError{[]gate.Finding{
		{Gate: gate.Nodes, Outcome: gate.Refused, Subject: "a1", Reason: "the node is not Ready"},
		{Gate: gate.Drift, Outcome: gate.Accepted, Reason: "no"}, {Gate: gate.Record, Outcome: gate.Refused, Reason: "no record"},
	}}
	if got, want := e.Error(), "refused: 2 things in the way of the upgrade\n  nodes: a1: the node is not Ready\n  record: no record"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
