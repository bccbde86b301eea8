package gate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/lock"
)

// running is a cluster of two servers' worth of nodes that passes every gate to target.
func running() Cluster {
	return Cluster{
		Nodes: []Node{
			{Name: "s1", Server: true, Kubelet: "v1.32.9+k3s1", Ready: true, Listed: true},
			{Name: "a1", Kubelet: "v1.32.9+k3s1", Ready: true, Listed: true},
		},
		Hosts: []Host{
			{Name: "10.0.0.11", Platform: "linux/amd64", Node: "s1", CgroupVersion: 2},
			{Name: "10.0.0.12", Platform: "linux/arm64/v8", Node: "a1", CgroupVersion: 2},
		},
		EmbeddedEtcd: true,
		Cilium:       "1.17.9", LiteBoxd: "v0.6.9",
	}
}

func target() Target {
	return Target{
		K3s: "v1.33.13+k3s1", Cilium: "1.18.6", LiteBoxd: "v0.6.10",
		UpgradesFrom: map[string][]string{"cilium": {">=1.17.0 <1.19.0"}},
		Platforms:    []lock.Platform{"linux/amd64", "linux/arm64"},
	}
}

// said is what findings say beside what passed: gate, outcome, subject and the beginning of
// the reason.
func said(findings []Finding) []string {
	var lines []string
	for _, f := range findings {
		if f.Outcome != Passed {
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s: %s", f.Gate, f.Outcome, f.Subject, f.Reason)))
		}
	}
	return lines
}

func TestJudge(t *testing.T) {
	nodes := func(versions ...string) func(*Cluster, *Target, *Accept) {
		return func(c *Cluster, _ *Target, _ *Accept) {
			for i, v := range versions {
				c.Nodes[i].Kubelet = v
			}
		}
	}
	k3s := func(from, to string) func(*Cluster, *Target, *Accept) {
		return func(c *Cluster, t *Target, _ *Accept) {
			c.Nodes[0].Kubelet, c.Nodes[1].Kubelet, t.K3s = from, from, to
			c.Cilium, t.Cilium, t.UpgradesFrom = "1.21.3", "1.21.3", nil
		}
	}
	cilium := func(from, to string, ranges ...string) func(*Cluster, *Target, *Accept) {
		return func(c *Cluster, t *Target, _ *Accept) {
			c.Cilium, t.Cilium, t.UpgradesFrom = from, to, nil
			if ranges != nil {
				t.UpgradesFrom = map[string][]string{"cilium": ranges}
			}
		}
	}
	const unknownTests = "cilium-kubernetes warning cilium: which versions of Kubernetes Cilium 1.21 is tested with is not known to this boxlift; the bundle has "
	const olderText = "the bundle has the serial 8, and the cluster has had one with the serial 9: it is older"
	tests := []struct {
		name   string
		change func(*Cluster, *Target, *Accept)
		want   []string
	}{
		{"all is well", nil, nil},

		{"the record refuses", func(c *Cluster, _ *Target, _ *Accept) { c.Record = "release 3 is running" }, []string{"record refused : release 3 is running"}},
		{"no record", func(c *Cluster, _ *Target, _ *Accept) { c.Unrecorded = true }, []string{"record refused : the cluster has no record of what was installed"}},
		{"a host that does not answer", func(c *Cluster, _ *Target, _ *Accept) {
			c.Hosts[1] = Host{Name: "10.0.0.12", Error: "no route"}
		}, []string{"hosts refused 10.0.0.12: no route"}},
		{"a host without a node", func(c *Cluster, _ *Target, _ *Accept) { c.Hosts[1].Node = "" }, []string{"hosts refused 10.0.0.12: it has no node in the cluster"}},
		{"a node without a host", func(c *Cluster, _ *Target, _ *Accept) { c.Nodes[1].Listed = false },
			[]string{"hosts refused a1: the node is in the cluster and not in install.yaml: it would stay behind"}},
		{"a node that is not Ready", func(c *Cluster, _ *Target, _ *Accept) {
			c.Nodes[1].Ready, c.Nodes[1].Reason = false, "NodeStatusUnknown"
		},
			[]string{"nodes refused a1: the node is not Ready: NodeStatusUnknown"}},
		{"an older bundle", func(c *Cluster, t *Target, _ *Accept) { c.Serial, t.Serial = 9, 8 },
			[]string{"serial refused : " + olderText}},
		{"a bundle without a serial after one with", func(c *Cluster, _ *Target, _ *Accept) { c.Serial = 9 },
			[]string{"serial refused : " + OlderText(0, 9)}},
		{"a bundle of the same serial", func(c *Cluster, t *Target, _ *Accept) { c.Serial, t.Serial = 9, 9 }, nil},
		{"a newer bundle", func(c *Cluster, t *Target, _ *Accept) { c.Serial, t.Serial = 9, 10 }, nil},
		{"the bundle that the cluster was last taken to", func(c *Cluster, t *Target, _ *Accept) {
			c.Serial, t.Serial, c.Standing = 9, 8, true
		}, nil},
		{"an older bundle that is accepted", func(c *Cluster, t *Target, a *Accept) {
			c.Serial, t.Serial, a.OlderBundle = 9, 8, true
		}, []string{"serial accepted : " + olderText}},
		{"an older bundle that is gone back to", func(c *Cluster, t *Target, a *Accept) {
			c.Serial, t.Serial, a.Downgrade = 9, 8, true
		}, []string{"serial accepted : " + olderText}},
		{"a bundle that was revoked", func(c *Cluster, _ *Target, _ *Accept) { c.Untrusted, c.UntrustedWay = "revoked: lost", "take another" }, []string{"trust refused : revoked: lost"}},
		{"drift", func(c *Cluster, _ *Target, _ *Accept) { c.Hosts[0].Drift, c.Drift = []string{"one"}, []string{"two"} },
			[]string{"drift refused 10.0.0.11: one", "drift refused : two"}},
		{"accepted drift", func(c *Cluster, _ *Target, a *Accept) {
			c.Hosts[0].Drift, c.Drift, a.Drift = []string{"one"}, []string{"two"}, true
		}, []string{"drift accepted 10.0.0.11: one", "drift accepted : two"}},
		{"another platform", func(c *Cluster, t *Target, _ *Accept) { t.Platforms = []lock.Platform{"linux/amd64"} },
			[]string{"platforms refused 10.0.0.12: the host is linux/arm64/v8, and the bundle is for linux/amd64"}},
		{"preflight", func(c *Cluster, _ *Target, _ *Accept) {
			c.Hosts[0].Preflight, c.Hosts[1].Unjudged = []Trouble{{"1 GiB free", "make room"}}, "its disk is not known"
		}, []string{"preflight refused 10.0.0.11: 1 GiB free", "preflight warning 10.0.0.12: its disk is not known"}},
		{"a volume", func(c *Cluster, _ *Target, _ *Accept) { c.Volume = "it is Lost" }, []string{"volume refused liteboxd: it is Lost"}},

		{"data on a node that is not drained", func(c *Cluster, _ *Target, _ *Accept) { c.Nodes[1].Holds = []string{"a database"} }, nil},
		{"data on a node that is drained", func(c *Cluster, _ *Target, a *Accept) {
			c.Nodes[1].Holds, a.Drain = []string{"a database", "a sandbox"}, true
		}, []string{
			"drain accepted k3s: each node is drained before it gets v1.33.13+k3s1, which ends the sandboxes on it",
			"data refused a1: the node would be drained, and holds data that is on no other: a database; a sandbox",
		}},
		{"data on two, of which one may be down", func(c *Cluster, _ *Target, a *Accept) {
			c.Nodes[0].Holds, c.Nodes[1].Holds, a.Drain, a.Interrupt = []string{"one"}, []string{"two"}, true, []string{"a1"}
		}, []string{
			"drain accepted k3s: each node is drained before it gets v1.33.13+k3s1, which ends the sandboxes on it",
			"data refused s1: the node would be drained, and holds data that is on no other: one",
			"data accepted a1: the node would be drained, and holds data that is on no other: two",
		}},
		{"data on a node that has the version already", func(c *Cluster, _ *Target, a *Accept) {
			nodes("v1.33.13+k3s1", "v1.32.9+k3s1")(c, nil, nil)
			c.Nodes[0].Holds, a.Drain = []string{"a database"}, true
		}, []string{"drain accepted k3s: each node is drained before it gets v1.33.13+k3s1, which ends the sandboxes on it"}},

		{"an older patch", k3s("v1.33.13+k3s1", "v1.33.12+k3s1"), []string{"downgrade refused k3s: k3s v1.33.13+k3s1 runs, and the bundle has the older v1.33.12+k3s1", unknownTests + "1.33"}},
		{"an older revision", k3s("v1.33.13+k3s2", "v1.33.13+k3s1"), []string{"downgrade refused k3s: k3s v1.33.13+k3s2 runs, and the bundle has the older v1.33.13+k3s1", unknownTests + "1.33"}},
		{"a newer revision", k3s("v1.33.13+k3s1", "v1.33.13+k3s2"), []string{unknownTests + "1.33"}},
		{"from a release to its candidate", k3s("v1.33.13+k3s1", "v1.33.13-rc1+k3s1"), []string{"downgrade refused k3s: k3s v1.33.13+k3s1 runs, and the bundle has the older v1.33.13-rc1+k3s1", unknownTests + "1.33"}},
		{"back to a patch that ran", func(c *Cluster, t *Target, a *Accept) {
			k3s("v1.33.13+k3s1", "v1.33.12+k3s1")(c, t, a)
			t.UpgradesFrom, a.Downgrade = map[string][]string{"k3s": {"<1.33.12"}}, true
		}, []string{"downgrade accepted k3s: k3s goes back from v1.33.13+k3s1 to v1.33.12+k3s1", unknownTests + "1.33"}},
		{"back over a minor version", func(c *Cluster, t *Target, a *Accept) {
			k3s("v1.34.4+k3s1", "v1.33.13+k3s1")(c, t, a)
			a.Downgrade = true
		}, []string{"downgrade refused k3s: Kubernetes 1.34 does not go back to 1.33: the API server has written what the older one cannot read", unknownTests + "1.33"}},
		{"back over two minor versions of Cilium", func(c *Cluster, t *Target, a *Accept) {
			cilium("1.18.6", "1.16.1")(c, t, a)
			a.Downgrade = true
		}, []string{"downgrade accepted cilium: Cilium goes back from 1.18.6 to 1.16.1",
			"cilium-minor refused cilium: from Cilium 1.18 to 1.16: Cilium is tested with steps of one minor version only",
			"cilium-kubernetes warning cilium: which versions of Kubernetes Cilium 1.16 is tested with is not known to this boxlift; the bundle has 1.33"}},
		{"what an upgrade left behind", func(c *Cluster, _ *Target, _ *Accept) {
			c.UnderWay, c.CiliumState, c.Drift = true, "pending-upgrade", []string{"cilium differs"}
			c.Nodes[1].Ready, c.Nodes[1].Reason = false, "KubeletNotReady"
		}, []string{"nodes warning a1: the node is not Ready: KubeletNotReady", "drift warning : cilium differs"}},
		{"a rollback under an API server that is ahead of its kubelet", func(c *Cluster, t *Target, a *Accept) {
			k3s("v1.33.13+k3s1", "v1.33.13+k3s1")(c, t, a)
			c.APIs, a.Downgrade = []string{"v1.34.2+k3s1", "v1.33.13+k3s1"}, true
		}, []string{"downgrade refused k3s: Kubernetes 1.34 does not go back to 1.33: the API server has written what the older one cannot read", unknownTests + "1.33"}},
		{"an older minor version", k3s("v1.33.13+k3s1", "v1.32.9+k3s1"), []string{"downgrade refused k3s: k3s v1.33.13+k3s1 runs, and the bundle has the older v1.32.9+k3s1", unknownTests + "1.32"}},
		{"an older Cilium", cilium("1.18.6", "1.17.9"), []string{"downgrade refused cilium: Cilium 1.18.6 runs, and the bundle has the older 1.17.9",
			"cilium-kubernetes warning cilium: which versions of Kubernetes Cilium 1.17 is tested with is not known to this boxlift; the bundle has 1.33"}},
		{"an older LiteBoxd", func(c *Cluster, _ *Target, _ *Accept) { c.LiteBoxd = "v0.6.11" }, []string{"downgrade refused liteboxd: LiteBoxd v0.6.11 runs, and the bundle has the older v0.6.10"}},
		{"no LiteBoxd here", func(c *Cluster, _ *Target, _ *Accept) { c.LiteBoxd = "" }, nil},
		{"no LiteBoxd there", func(_ *Cluster, t *Target, _ *Accept) { t.LiteBoxd = "" }, nil},
		{"what is no version", func(c *Cluster, _ *Target, _ *Accept) { c.Cilium = "latest" },
			[]string{`downgrade refused cilium: which version it is cannot be told: "latest" is not a version such as v1.36.4+k3s1`}},
		{"a pending release", func(c *Cluster, _ *Target, _ *Accept) { c.CiliumState = "pending-upgrade" }, []string{"downgrade refused cilium: its Helm release is pending-upgrade"}},

		{"outside of upgradesFrom", func(_ *Cluster, t *Target, _ *Accept) {
			t.UpgradesFrom = map[string][]string{"k3s": {">=1.32.10 <1.33.0", "=1.33"}}
		}, []string{"upgrades-from refused k3s: the lock lets k3s v1.33.13+k3s1 be reached from >=1.32.10 <1.33.0 or =1.33, and v1.32.9+k3s1 runs"}},
		{"in one of upgradesFrom", func(_ *Cluster, t *Target, _ *Accept) {
			t.UpgradesFrom = map[string][]string{"k3s": {">=1.33.0", "1.32"}, "liteboxd": {"v0.6"}}
		}, nil},
		{"an empty upgradesFrom", func(_ *Cluster, t *Target, _ *Accept) { t.UpgradesFrom = map[string][]string{"liteboxd": {}} },
			[]string{"upgrades-from refused liteboxd: the lock lets LiteBoxd v0.6.10 be reached from , and v0.6.9 runs"}},
		{"the same version needs no leave", cilium("1.18.6", "1.18.6", "=1.17"), nil},

		{"a skipped minor version", k3s("v1.31.14+k3s1", "v1.33.13+k3s1"), []string{"kubernetes-minor refused k3s: from Kubernetes 1.31 to 1.33: Kubernetes goes by one minor version at a time", unknownTests + "1.33"}},
		{"a drain that the lock asks for", func(_ *Cluster, t *Target, _ *Accept) { t.RequiresDrain = true },
			[]string{"drain refused k3s: the lock asks that nodes are drained before they get v1.33.13+k3s1 from another minor version, which ends the sandboxes on them"}},
		{"a drain that is wanted", func(_ *Cluster, t *Target, a *Accept) { t.RequiresDrain, a.Drain = true, true },
			[]string{"drain accepted k3s: each node is drained before it gets v1.33.13+k3s1, which ends the sandboxes on it"}},
		{"no drain for a patch", func(c *Cluster, t *Target, a *Accept) {
			k3s("v1.33.13+k3s1", "v1.33.13+k3s2")(c, t, a)
			t.RequiresDrain, a.Drain = true, true
		}, []string{unknownTests + "1.33"}},
		{"halfway", nodes("v1.33.13+k3s1", "v1.32.9+k3s1"), nil},
		{"halfway to something newer", nodes("v1.34.2+k3s1", "v1.32.9+k3s1"), []string{"downgrade refused k3s: k3s v1.34.2+k3s1 runs, and the bundle has the older v1.33.13+k3s1"}},
		{"a kubelet newer than the servers", nodes("v1.32.9+k3s1", "v1.33.13+k3s1"), []string{"kubelet-skew refused a1: its kubelet is v1.33.13+k3s1, newer than the API server's v1.32.9+k3s1"}},
		{"a newer patch than the servers is none", nodes("v1.32.9+k3s1", "v1.32.10+k3s1"), nil},
		{"a kubelet at the limit", nodes("v1.32.9+k3s1", "v1.30.14+k3s1"), nil},
		{"a kubelet too old", nodes("v1.32.9+k3s1", "v1.29.15+k3s1"), []string{"kubelet-skew refused a1: its kubelet is v1.29.15+k3s1: an API server of 1.33 works with kubelets that are up to 3 minor versions older"}},
		{"servers far apart", func(c *Cluster, _ *Target, _ *Accept) {
			c.Nodes[1].Server, c.Nodes[0].Kubelet, c.Nodes[1].Kubelet = true, "v1.31.14+k3s1", "v1.33.12+k3s1"
		}, []string{"kubernetes-minor refused k3s: from Kubernetes 1.31 to 1.33: Kubernetes goes by one minor version at a time",
			"kubelet-skew refused a1: its API server is v1.33.12+k3s1, and another one is v1.31.14+k3s1: they may be one minor version apart"}},

		{"etcd 3.6 from too early a patch", k3s("v1.33.7+k3s1", "v1.34.4+k3s1"), []string{
			"etcd refused s1: its k3s v1.33.7+k3s1 brings an etcd before 3.5.26, from which etcd 3.6 (k3s from v1.34.0 on) may come up with members that are long gone", unknownTests + "1.34"}},
		{"etcd 3.6 from a candidate of the right patch", k3s("v1.33.8-rc1+k3s1", "v1.34.4+k3s1"), []string{
			"etcd refused s1: its k3s v1.33.8-rc1+k3s1 brings an etcd before 3.5.26, from which etcd 3.6 (k3s from v1.34.0 on) may come up with members that are long gone", unknownTests + "1.34"}},
		{"etcd 3.6 from the right patch", k3s("v1.33.8+k3s1", "v1.34.4+k3s1"), []string{unknownTests + "1.34"}},
		{"etcd 3.6 already", k3s("v1.34.1+k3s1", "v1.34.4+k3s1"), []string{unknownTests + "1.34"}},
		{"SQLite", func(c *Cluster, t *Target, a *Accept) {
			k3s("v1.33.7+k3s1", "v1.34.4+k3s1")(c, t, a)
			c.EmbeddedEtcd = false
		}, []string{unknownTests + "1.34"}},
		{"an agent has no etcd", func(c *Cluster, t *Target, a *Accept) {
			k3s("v1.33.8+k3s1", "v1.34.4+k3s1")(c, t, a)
			c.Nodes[1].Kubelet = "v1.33.1+k3s1"
		}, []string{unknownTests + "1.34"}},

		{"cgroup v1 before 1.35", func(c *Cluster, t *Target, a *Accept) {
			k3s("v1.34.1+k3s1", "v1.34.4+k3s1")(c, t, a)
			c.Hosts[0].CgroupVersion = 1
		}, []string{unknownTests + "1.34"}},
		{"cgroup v1 from 1.35 on", func(c *Cluster, t *Target, a *Accept) {
			k3s("v1.34.4+k3s1", "v1.35.0+k3s1")(c, t, a)
			c.Hosts[0].CgroupVersion, c.Hosts[1].CgroupVersion = 1, 0
		}, []string{"cgroup refused 10.0.0.11: the host has cgroup v1, which the kubelet refuses from Kubernetes 1.35 on",
			"cgroup warning 10.0.0.12: which version of cgroup the host has is not known; the kubelet refuses v1 from Kubernetes 1.35 on", unknownTests + "1.35"}},
		{"cgroup v1 from 1.35 on, allowed", func(c *Cluster, t *Target, a *Accept) {
			k3s("v1.34.4+k3s1", "v1.35.0+k3s1")(c, t, a)
			c.Hosts[0].CgroupVersion, c.Hosts[1].CgroupVersion = 1, 1
			c.Hosts[1].CgroupV1Allowed = true
		}, []string{"cgroup refused 10.0.0.11: the host has cgroup v1, which the kubelet refuses from Kubernetes 1.35 on", unknownTests + "1.35"}},

		{"a skipped minor version of Cilium", cilium("1.16.19", "1.18.6"), []string{"cilium-minor refused cilium: from Cilium 1.16 to 1.18: Cilium is tested with steps of one minor version only"}},
		{"Cilium and a Kubernetes too new", func(c *Cluster, t *Target, _ *Accept) {
			c.Cilium = "1.18.1"
			c.Nodes[0].Kubelet = "v1.33.13+k3s1"
			t.K3s = "v1.34.4+k3s1"
		},
			[]string{"cilium-kubernetes refused cilium: Cilium 1.18 is tested with Kubernetes 1.30 to 1.33, and the bundle has 1.34",
				"cilium-kubernetes warning cilium: until it is upgraded, after the servers, Cilium 1.18 works with Kubernetes 1.34, which it is not tested with"}},
		{"Cilium and a Kubernetes too old", func(c *Cluster, t *Target, _ *Accept) {
			k3s("v1.29.14+k3s1", "v1.29.15+k3s1")(c, t, nil)
			c.Cilium, t.Cilium = "1.18.6", "1.18.6"
		}, []string{"cilium-kubernetes refused cilium: Cilium 1.18 is tested with Kubernetes 1.30 to 1.33, and the bundle has 1.29"}},
		{"an untested Cilium that is accepted", func(c *Cluster, t *Target, a *Accept) {
			k3s("v1.33.13+k3s1", "v1.34.4+k3s1")(c, t, nil)
			c.Cilium, t.Cilium, a.UntestedCilium = "1.18.6", "1.18.6", true
		}, []string{"cilium-kubernetes accepted cilium: Cilium 1.18 is tested with Kubernetes 1.30 to 1.33, and the bundle has 1.34"}},
		{"a Cilium that is not known", cilium("1.20.3", "1.21.0"), []string{unknownTests + "1.33"}},
		{"a Cilium that is tested with this Kubernetes", cilium("1.18.12", "1.19.6"), nil},
		{"the next Cilium that is tested with it", cilium("1.19.6", "1.20.0"), nil},
		{"a Kubernetes that the next Cilium is tested with", func(c *Cluster, t *Target, a *Accept) {
			k3s("v1.35.6+k3s1", "v1.36.4+k3s1")(c, t, a)
			c.Cilium, t.Cilium = "1.19.6", "1.20.0"
		}, []string{"cilium-kubernetes warning cilium: until it is upgraded, after the servers, Cilium 1.19 works with Kubernetes 1.36, which it is not tested with"}},
		{"another major version", func(c *Cluster, t *Target, a *Accept) { k3s("v1.36.4+k3s1", "v2.0.0+k3s1")(c, t, a) },
			[]string{"kubernetes-minor refused k3s: from Kubernetes 1.36 to 2.0: Kubernetes goes by one minor version at a time",
				"kubelet-skew refused s1: its kubelet is v1.36.4+k3s1: an API server of 2.0 works with kubelets that are up to 3 minor versions older",
				"kubelet-skew refused a1: its kubelet is v1.36.4+k3s1: an API server of 2.0 works with kubelets that are up to 3 minor versions older",
				unknownTests + "2.0"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, to, accept := running(), target(), Accept{}
			if test.change != nil {
				test.change(&c, &to, &accept)
			}
			findings := Judge(c, to, accept)
			if diff := cmp.Diff(test.want, said(findings)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			refused := slices.ContainsFunc(test.want, func(line string) bool { return strings.Contains(line, " refused ") })
			if IsRefused(findings) != refused {
				t.Errorf("refused is %t", !refused)
			}
			for _, g := range Gates() {
				if !slices.ContainsFunc(findings, func(f Finding) bool { return f.Gate == g.Gate }) {
					t.Errorf("gate %s says nothing", g.Gate)
				}
			}
			for _, f := range findings {
				if f.Outcome != Passed && f.Way == "" && !strings.HasPrefix(test.name, "the record") && test.name != "a volume" {
					t.Errorf("%s does not say how to go on: %s", f.Gate, f.Reason)
				}
			}
		})
	}
}

// A node that is down and in no install.yaml is got rid of by one command.
func TestWayOfUnlistedNodes(t *testing.T) {
	for _, ready := range []bool{true, false} {
		c := running()
		c.Nodes[1].Listed, c.Nodes[1].Ready = false, ready
		for _, f := range Judge(c, target(), Accept{}) {
			const command = "boxlift node remove --hosts a1 --forget-unreachable-host"
			if f.Gate == Hosts && strings.Contains(f.Way, command) == ready {
				t.Errorf("Ready %v: the way forward is %s", ready, f.Way)
			}
			if f.Gate == Nodes && strings.Contains(f.Way, "boxlift health") {
				t.Errorf("Ready %v: %s", ready, f.Way)
			}
		}
	}
}

// Every minor version of Kubernetes to every other: only staying and the next one are
// allowed.
func TestEveryMinorStep(t *testing.T) {
	for from := 28; from <= 38; from++ {
		for to := 28; to <= 38; to++ {
			c, goal := running(), target()
			c.EmbeddedEtcd, goal.K3s = false, fmt.Sprintf("v1.%d.9+k3s1", to)
			for i := range c.Nodes {
				c.Nodes[i].Kubelet = fmt.Sprintf("v1.%d.9+k3s1", from)
			}
			got := allowed(c, goal, Accept{UntestedCilium: true})
			if want := to == from || to == from+1; got != want {
				t.Errorf("1.%d -> 1.%d: allowed is %t", from, to, got)
			}
			c, goal = running(), target()
			c.Cilium, goal.Cilium, goal.UpgradesFrom = fmt.Sprintf("1.%d.1", from-18), fmt.Sprintf("1.%d.1", to-18), nil
			got = allowed(c, goal, Accept{UntestedCilium: true})
			if want := to == from || to == from+1; got != want {
				t.Errorf("Cilium 1.%d -> 1.%d: allowed is %t", from-18, to-18, got)
			}
		}
	}
}

func TestVersions(t *testing.T) {
	ordered := []string{
		"v0.6.9", "0.6.10", "1.18.0-alpha", "1.18.0-alpha.1", "1.18.0-alpha.beta", "1.18.0-rc.2", "1.18.0-rc.10", "1.18.0", "v1.18.0+k3s1", "v1.18.0+k3s2", "v1.18.0+k3s10", "1.18.1", "1.20.0", "2.0.0",
	}
	for i, a := range ordered {
		for k, b := range ordered {
			v, err := parseVersion(a)
			if err != nil {
				t.Fatal(err)
			}
			w, err := parseVersion(b)
			if err != nil {
				t.Fatal(err)
			}
			if c := v.compare(w); c < 0 != (i < k) || c > 0 != (i > k) {
				t.Errorf("%s and %s compare as %d", a, b, c)
			}
		}
	}
	for _, bad := range []string{"", "1", "1.2", "v1.2.x", "1.2.3.4", "1.2.3-", "1.2.3+", " 1.2.3", "99999999999.0.0", "vv1.2.3"} {
		if _, err := parseVersion(bad); err == nil {
			t.Errorf("%q is taken for a version", bad)
		}
	}
}

func TestRanges(t *testing.T) {
	for _, test := range []struct {
		text    string
		in, out []string
	}{
		{">=1.19.0 <1.21.0", []string{"1.19.0", "1.20.9", "1.20.0-rc.1", "v1.19.3+k3s1"}, []string{"1.18.14", "1.21.0", "1.21.0-rc.1"}},
		{">=1.35 <1.37", []string{"v1.35.0+k3s1", "v1.36.4+k3s2"}, []string{"v1.34.9+k3s1", "v1.37.0+k3s1"}},
		{"1.19", []string{"1.19.0", "1.19.7"}, []string{"1.20.0", "1.18.0"}},
		{"=1", []string{"1.0.0", "1.99.9"}, []string{"2.0.0"}},
		{"v1.19.3", []string{"1.19.3", "v1.19.3+k3s4"}, []string{"1.19.4"}},
		{">1.19.3", []string{"1.19.4"}, []string{"1.19.3"}},
		{"<=1.19.3", []string{"1.19.3", "1.0.0"}, []string{"1.19.4"}},
		{">=1.20.0-rc.2", []string{"1.20.0-rc.2", "1.20.0"}, []string{"1.20.0-rc.1"}},
	} {
		for want, versions := range map[bool][]string{true: test.in, false: test.out} {
			for _, text := range versions {
				v, err := parseVersion(text)
				if err != nil {
					t.Fatal(err)
				}
				if got := inRange(v, test.text); got != want {
					t.Errorf("%s in %q is %t", text, test.text, got)
				}
			}
		}
	}
	if inRange(version{major: 1}, ">=1.0.0 or so") {
		t.Error("what is no range is taken for one")
	}
}

func TestPath(t *testing.T) {
	for _, test := range []struct {
		name           string
		k3s, cilium    string
		toK3s, toCilum string
		sqlite         bool
		want           []Step
	}{
		{"one step", "v1.33.13+k3s1", "1.18.6", "v1.34.4+k3s1", "1.19.1", false, nil},
		{"a patch", "v1.33.7+k3s1", "1.18.6", "v1.33.13+k3s1", "1.18.12", false, nil},
		{"back", "v1.34.4+k3s1", "1.19.1", "v1.32.4+k3s1", "1.18.6", false, nil},
		{"no version", "v1.34.4+k3s1", "latest", "v1.36.4+k3s1", "1.18.6", false, nil},
		{"three minor versions", "v1.31.14+k3s1", "1.18.6", "v1.34.4+k3s1", "1.20.0", false, []Step{
			{K3s: "1.32", Cilium: "1.18"}, {K3s: "v1.33.8 or a newer patch of 1.33", Cilium: "1.19"}, {K3s: "v1.34.4+k3s1", Cilium: "1.20.0"},
		}},
		{"Cilium moves before a Kubernetes that it is not tested with", "v1.33.8+k3s1", "1.18.6", "v1.35.1+k3s1", "1.19.0", false, []Step{
			{K3s: "1.34", Cilium: "1.19"}, {K3s: "v1.35.1+k3s1", Cilium: "1.19.0"},
		}},
		{"only Cilium is too far", "v1.33.13+k3s1", "1.18.6", "v1.33.13+k3s1", "1.20.0", false, []Step{
			{K3s: "1.33", Cilium: "1.19"}, {K3s: "v1.33.13+k3s1", Cilium: "1.20.0"},
		}},
		{"etcd's patch first", "v1.33.7+k3s1", "1.18.6", "v1.34.4+k3s1", "1.19.0", false, []Step{
			{K3s: "v1.33.8 or a newer patch of 1.33", Cilium: "1.18"}, {K3s: "v1.34.4+k3s1", Cilium: "1.19.0"},
		}},
		{"SQLite needs no patch", "v1.33.7+k3s1", "1.18.6", "v1.34.4+k3s1", "1.19.0", true, nil},
		{"too far to say", "v1.1.0+k3s1", "1.18.6", "v1.99.0+k3s1", "1.19.0", true, nil},
	} {
		c := running()
		c.EmbeddedEtcd, c.Cilium = !test.sqlite, test.cilium
		for i := range c.Nodes {
			c.Nodes[i].Kubelet = test.k3s
		}
		got := Path(c, Target{K3s: test.toK3s, Cilium: test.toCilum})
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", test.name, diff)
		}
	}
}

func TestVia(t *testing.T) {
	bundle := func(name, k3s, cilium string) Candidate {
		return Candidate{name, Target{K3s: k3s, Cilium: cilium}}
	}
	c := running() // 1.32.9, Cilium 1.17.9, etcd
	goal := bundle("goal.tar", "v1.34.4+k3s1", "1.19.0")
	early, late := bundle("early.tar", "v1.33.7+k3s1", "1.18.6"), bundle("late.tar", "v1.33.8+k3s1", "1.18.6")
	for _, test := range []struct {
		name    string
		between []Candidate
		want    string
	}{
		{"none", nil, ""},
		{"one whose etcd is too old", []Candidate{early}, ""},
		{"the right one", []Candidate{late, early}, "late.tar goal.tar"},
		{"not of use", []Candidate{bundle("far.tar", "v1.36.4+k3s1", "1.20.0"), bundle("back.tar", "v1.31.0+k3s1", "1.17.0")}, ""},
		{"by way of two", []Candidate{early, bundle("patch.tar", "v1.33.9+k3s1", "1.19.0"), bundle("small.tar", "v1.33.7+k3s1", "1.17.9")}, "early.tar patch.tar goal.tar"},
	} {
		var names []string
		for _, s := range Via(c, goal, test.between, Accept{}) {
			names = append(names, s.Bundle)
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// Workloads go by the lock's upgradesFrom, and not back, as everything else does. One that the bundle does not have is
// nobody's concern here: it is left alone.
func TestWorkloads(t *testing.T) {
	for _, test := range []struct {
		name, from, to string
		accept         Accept
		want           []string
	}{
		{name: "a step", from: "v1.0.0", to: "v1.1.0"},
		{name: "the same", from: "v1.1.0", to: "v1.1.0"},
		{name: "not in the bundle", from: "v1.1.0"},
		{name: "back", from: "v1.2.0", to: "v1.1.0", want: []string{
			"downgrade refused gov: gov v1.2.0 runs, and the bundle has the older v1.1.0",
			"upgrades-from refused gov: the lock lets gov v1.1.0 be reached from >=1.0.0 <1.2.0, and v1.2.0 runs"}},
		{name: "back on purpose", from: "v1.2.0", to: "v1.1.0", accept: Accept{Downgrade: true}, want: []string{
			"downgrade accepted gov: gov goes back from v1.2.0 to v1.1.0"}},
		{name: "too far", from: "v0.9.0", to: "v1.1.0", want: []string{
			"upgrades-from refused gov: the lock lets gov v1.1.0 be reached from >=1.0.0 <1.2.0, and v0.9.0 runs"}},
	} {
		c, to := running(), target()
		c.Workloads = map[string][]string{"gov": {test.from}}
		to.UpgradesFrom["gov"] = []string{">=1.0.0 <1.2.0"}
		if to.Others = map[string]string{}; test.to != "" {
			to.Others["gov"] = test.to
		}
		if diff := cmp.Diff(test.want, said(Judge(c, to, test.accept))); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
	c, first, second := running(), target(), target()
	c.Workloads = map[string][]string{"gov": {"v1.0.0"}}
	first.Others, second.Others = map[string]string{"gov": "v1.1.0"}, map[string]string{"gov": "v1.2.0"}
	first.UpgradesFrom["gov"], second.UpgradesFrom["gov"] = []string{"=1.0.0"}, []string{"=1.1.0"}
	way := Via(c, Candidate{Name: "second", Target: second}, []Candidate{{Name: "first", Target: first}}, Accept{})
	if len(way) != 2 || way[0].Bundle != "first" {
		t.Errorf("by way of %+v", way)
	}
	if c.Workloads["gov"][0] != "v1.0.0" {
		t.Error("looking for a way changes what runs")
	}
}

func TestTargetOf(t *testing.T) {
	l := &lock.Lock{Platforms: []lock.Platform{"linux/amd64"}, Components: []lock.Component{
		{Name: "k3s", Version: "v1.34.4+k3s1", UpgradesFrom: []string{">=1.33.0 <1.35.0"}},
		{Name: "cilium", Version: "1.18.6"}, {Name: "liteboxd", Version: "v0.6.10"}, {Name: "other", Version: "v1"},
	}}
	want := Target{
		K3s: "v1.34.4+k3s1", Cilium: "1.18.6", LiteBoxd: "v0.6.10", Others: map[string]string{"other": "v1"},
		UpgradesFrom: map[string][]string{"k3s": {">=1.33.0 <1.35.0"}}, Platforms: []lock.Platform{"linux/amd64"},
	}
	if diff := cmp.Diff(want, TargetOf(l)); diff != "" {
		t.Error(diff)
	}
}

func FuzzVersion(f *testing.F) {
	for _, seed := range [][2]string{{"v1.36.4+k3s1", ">=1.35.0 <1.37.0"}, {"1.20.0-rc.1", "1.20"}, {"0.0.0", "=0"}, {"1.2.3-0.00.a", "<1.2.3-0"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, bounds string) {
		v, err := parseVersion(text)
		if err != nil {
			return
		}
		if v.compare(v) != 0 {
			t.Errorf("%q differs from itself", text)
		}
		w, err := parseVersion(bounds)
		if err == nil && v.compare(w) > 0 != (w.compare(v) < 0) {
			t.Errorf("%q and %q have no order", text, bounds)
		}
		if boundPattern.MatchString(bounds) && inRange(v, ">="+strings.TrimLeft(bounds, "<>=")) == inRange(v, "<"+strings.TrimLeft(bounds, "<>=")) {
			t.Errorf("%q is both, or neither, in >= and < of %q", text, bounds)
		}
	})
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"v1.34.9+k3s1", "v1.35.0", true},
		{"v1.35.0-rc1+k3s1", "v1.35.0", true},
		{"v1.35.0+k3s1", "v1.35.0", false},
		{"v1.36.4+k3s1", "v1.35.0", false},
		{"", "v1.35.0", false},
		{"v1.34.0", "new", false},
	} {
		if got := Older(c.a, c.b); got != c.want {
			t.Errorf("%q is older than %q: %v", c.a, c.b, got)
		}
	}
}
