package install

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/node/wire"
)

func TestMismatches(t *testing.T) {
	versions := map[string]string{"k3s": "v1.34.4+k3s1", "cilium": "1.18.6", "liteboxd": "v0.6.10"}
	for _, test := range []struct {
		name   string
		change func(*running)
		want   []string
	}{
		{"all is as it is to be", func(*running) {}, nil},
		{"a node", func(r *running) { r.nodes[1].Kubelet = "v1.34.3+k3s1" }, []string{"the node a1 runs k3s v1.34.3+k3s1, not v1.34.4+k3s1"}},
		{"no Cilium", func(r *running) { r.cilium = nil }, []string{"there is no Helm release cilium in kube-system"}},
		{"a Cilium that is pending", func(r *running) { r.cilium.Status = "pending-upgrade" }, []string{"the Helm release cilium is pending-upgrade"}},
		{"another Cilium", func(r *running) { r.cilium.ChartVersion = "1.18.5" }, []string{"Cilium is 1.18.5, not 1.18.6"}},
		{"another LiteBoxd", func(r *running) { r.liteboxd = "v0.6.9" }, []string{"LiteBoxd is v0.6.9, not v0.6.10"}},
		{"no LiteBoxd", func(r *running) { r.liteboxd = "" }, nil},
	} {
		r := &running{
			nodes:    []kube.Node{{Name: "s1", Kubelet: "v1.34.4+k3s1"}, {Name: "a1", Kubelet: "v1.34.4+k3s1"}},
			cilium:   &helm.State{ChartVersion: "1.18.6", Status: "deployed"},
			liteboxd: "v0.6.10",
		}
		test.change(r)
		if diff := cmp.Diff(test.want, r.mismatches(func(c string) string { return versions[c] })); diff != "" {
			t.Errorf("%s: -want +got:\n%s", test.name, diff)
		}
	}
	r := &running{cilium: &helm.State{ChartVersion: "v1.18.6", Status: "deployed"}, liteboxd: "v0.6.10"}
	delete(versions, "liteboxd")
	if diff := cmp.Diff([]string{"LiteBoxd v0.6.10 runs, which the lock does not have"}, r.mismatches(func(c string) string { return versions[c] })); diff != "" {
		t.Error(diff)
	}
}

func TestLiteBoxdTag(t *testing.T) {
	for image, want := range map[string]string{
		"ghcr.io/fslongjin/liteboxd-server:v0.6.10": "v0.6.10", "registry.lan:5000/x/liteboxd-server:v1@sha256:" + strings.Repeat("a", 64): "v1",
		"registry.lan:5000/liteboxd-server": "", "ghcr.io/fslongjin/liteboxd-web:v0.6.10": "",
	} {
		if got := liteboxdTag([]string{"docker.io/library/ubuntu:24.04", image}); got != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
}

func TestLastStanding(t *testing.T) {
	r := release.New("c")
	if lastStanding(nil) != nil || lastStanding(r) != nil {
		t.Error("a record without releases has one that stands")
	}
	r.Releases = []release.Release{{Number: 1, State: release.Succeeded}, {Number: 2, State: release.Failed}, {Number: 3, State: release.RolledBack}}
	if got := lastStanding(r); got.Number != 2 {
		t.Errorf("it is %d", got.Number)
	}
}

func TestSince(t *testing.T) {
	start := time.Unix(1000, 0)
	if got := since(&release.Release{Started: start}); !got.Equal(start) {
		t.Error(got)
	}
	if got := since(&release.Release{Started: start, Ended: start.Add(1)}); !got.Equal(start.Add(1)) {
		t.Error(got)
	}
}

// What is the same counts once, wherever a host has it.
func TestAccount(t *testing.T) {
	blob := func(name string, size int64) wire.Blob { return wire.Blob{Digest: digest.FromString(name), Size: size} }
	want := wire.Want{
		ImagesDir: "/images",
		Packs: []wire.PackWant{
			{Name: "whole.tar", Blobs: []wire.Blob{blob("a", 1), blob("shared", 10)}},
			{Name: "lacking.tar", Blobs: []wire.Blob{blob("shared", 10), blob("old", 100), blob("new", 1000), blob("twice", 10000)}},
			{Name: "other.tar", Blobs: []wire.Blob{blob("twice", 10000)}},
		},
		Files: []wire.FileWant{{Path: "/files/k3s", Digest: digest.FromString("k3s"), Size: 5}, {Path: "/files/new", Digest: digest.FromString("file"), Size: 7}},
	}
	ship, kept := account(want, map[string]bool{"/images/whole.tar": true, "/files/k3s": true}, map[digest.Digest]int64{digest.FromString("old"): 100, digest.FromString("new"): 1})
	sum := func(m map[digest.Digest]int64) (n int64) {
		for _, size := range m {
			n += size
		}
		return n
	}
	if got := [2]int64{sum(ship), sum(kept)}; got != [2]int64{11007, 116} {
		t.Errorf("ship and kept are %v", got)
	}
}

func TestUpgradeOrder(t *testing.T) {
	in := example(t, threeServers, "k3s=v1.34.4+k3s1")
	hosts := []UpgradeHost{
		{Host: "s1", Role: config.Server, K3s: "v1.33.13+k3s1", Ship: 5}, {Host: "s2", Role: config.Server, K3s: "v1.33.13+k3s1", Ship: 5}, {Host: "s3", Role: config.Server, K3s: "v1.34.4+k3s1"},
		{Host: "a1", Role: config.Agent, K3s: "v1.33.13+k3s1"}, {Host: "a2", Role: config.Agent, K3s: "v1.33.13+k3s1"}, {Host: "a3", Role: config.Agent, K3s: "v1.33.13+k3s1"},
		{Host: "gone", Role: config.Agent, Error: "no route"},
	}
	p := &UpgradePlan{Hosts: hosts, Components: []ComponentChange{
		{"k3s", []string{"v1.33.13+k3s1", "v1.34.4+k3s1"}, "v1.34.4+k3s1"}, {"cilium", []string{"v1.18.6"}, "1.18.12"}, {"liteboxd", []string{"v0.6.9"}, "v0.6.10"},
	}}
	u := &upgradePlanner{upgrader: in.upgrader, options: UpgradeSettings{Batches: Batches{Canary: 1, Size: 1}}}
	const restart = "start k3s v1.34.4+k3s1 in place, pods go on"
	want := []UpgradeStep{
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
	p = &UpgradePlan{Components: []ComponentChange{{"k3s", nil, "v1"}, {"cilium", []string{"v1.18.12"}, "1.18.12"}, {"liteboxd", nil, "v0.6.10"}}}
	if diff := cmp.Diff([]UpgradeStep{{What: "deploy LiteBoxd v0.6.10"}}, u.order(p)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	p.Components[2].From = []string{"v0.6.10"}
	p.Hosts = []UpgradeHost{{Host: "s1", Role: config.Server, K3s: "v1"}, {Host: "a1", Role: config.Agent, K3s: "v1", Restart: "registries.yaml differs"}}
	if diff := cmp.Diff([]UpgradeStep{{What: "back up the cluster, and prove the backup"}, {"start k3s v1 in place, pods go on", []string{"a1"}}}, u.order(p)); diff != "" {
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
