package site_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// connected reaches a cluster through the first host, as a server of it.
func connected(t *testing.T, s *site.Site, m *kubetest.Memory) *kube.Cluster {
	t.Helper()
	h := *s.Hosts[0]
	h.Conn = sitetest.NewServer(t, "first", nil, m)
	s.Config.Runtime.CommandTimeout = time.Minute
	api, err := s.APIThrough(t.Context(), &h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	return api
}

// The API is reached with what the server has for itself, and with nothing that only looks like it.
func TestAPIThrough(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*testing.T, sitetest.Server)
		is     error
		says   string
	}{
		{name: "a server"},
		{name: "one without k3s", is: site.ErrNoCluster, change: func(t *testing.T, s sitetest.Server) {
			t.Helper()
			if err := os.Remove(s.Path(site.K3sKubeconfig)); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "one that has gone", says: "connection lost", change: func(_ *testing.T, s sitetest.Server) { s.BreakAfter(0) }},
		{name: "one that has another address in mind", says: "kubeconfig", change: func(t *testing.T, s sitetest.Server) {
			t.Helper()
			s.WriteFile(t, site.K3sKubeconfig, "\x1b[2J: [", 0o600)
		}},
		{name: "half a kubeconfig", says: "kubeconfig", change: func(t *testing.T, s sitetest.Server) {
			t.Helper()
			s.WriteFile(t, site.K3sKubeconfig, string(s.Cluster.Kubeconfig[:len(s.Cluster.Kubeconfig)/2]), 0o600)
		}},
	} {
		s := sitetest.Example(t, sitetest.ExampleConfig)
		server := sitetest.NewServer(t, "first", nil, kubetest.NewMemory(t, kubetest.Labelled("first", nil)))
		if test.change != nil {
			test.change(t, server)
		}
		s.Hosts[0].Conn = server
		api, err := s.APIThrough(t.Context(), s.Hosts[0])
		if test.is == nil && test.says == "" {
			if err != nil {
				t.Fatal(err)
			}
			nodes, err := api.Nodes(t.Context())
			if err != nil || len(nodes) != 1 {
				t.Errorf("%s: %v, %v", test.name, nodes, err)
			}
			continue
		}
		if err == nil || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) ||
			strings.Contains(err.Error(), "t0ken") || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// notReady is a node that is not Ready, for a reason.
func notReady(name, reason string) *corev1.Node {
	n := kubetest.Labelled(name, nil)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: reason}}
	return n
}

// A server is there when its own node is registered; who waits in vain is told what is missing.
func TestAwaitServer(t *testing.T) {
	t.Parallel()
	m := kubetest.NewMemory(t, kubetest.Labelled("another", nil))
	s := sitetest.Example(t, sitetest.ExampleConfig)
	s.Config.Runtime.CommandTimeout = time.Minute
	h := s.Hosts[0]
	h.Conn = sitetest.NewServer(t, "first", nil, m)
	looked := 0
	m.Instead = func(_ http.ResponseWriter, r *http.Request) bool {
		if looked++; r.URL.Path == "/api/v1/nodes" && looked > 2 {
			m.Put(t, kubetest.Labelled("first", nil)) // k3s registers it a little later
		}
		return false
	}
	if err := s.AwaitServer(t.Context(), h); err != nil || looked < 3 {
		t.Errorf("after %d looks: %v", looked, err)
	}
	m.Remove(t, "/api/v1/nodes/first")
	m.Instead = nil
	s.Config.Runtime.CommandTimeout = 3 * time.Second
	if err := s.AwaitServer(t.Context(), h); err == nil || !strings.Contains(err.Error(), "given up after 3s: ") {
		t.Errorf("in vain: %v", err)
	}
	if err := os.Remove(h.Conn.(sitetest.Server).Path(site.K3sKubeconfig)); err != nil {
		t.Fatal(err)
	}
	if err := s.AwaitServer(t.Context(), h); !errors.Is(err, site.ErrNoCluster) || !strings.HasPrefix(err.Error(), "reach the API: ") {
		t.Errorf("without k3s: %v", err)
	}
	if m.Changes() != nil {
		t.Errorf("waiting has changed %q", m.Changes())
	}
}

// All hosts are waited for together. Those whose nodes lack something fail, each with what that is and where to look;
// hosts that have failed before are not waited for.
func TestAwaitEachNode(t *testing.T) {
	well := func(name string) *corev1.Node {
		n := kubetest.Labelled(name, nil)
		n.Status.NodeInfo.KubeletVersion = "v1.36.4+k3s1"
		return n
	}
	sick := notReady("worker", "cni plugin not initialized\x1b[2J")
	sick.Status.NodeInfo.KubeletVersion = "v1.36.4+k3s1"
	for _, test := range []struct {
		name   string
		nodes  []*corev1.Node
		failed bool // the agent has failed before
		want   []string
	}{
		{name: "all are Ready", nodes: []*corev1.Node{well("first"), well("worker")}},
		{name: "one is not registered", nodes: []*corev1.Node{well("first")},
			want: []string{"worker (10.0.0.12): its node is not registered in the cluster (given up after 3s"}},
		{name: "it has failed before", nodes: []*corev1.Node{well("first")}, failed: true},
		{name: "one is not Ready", nodes: []*corev1.Node{well("first"), sick},
			want: []string{"worker (10.0.0.12): its node worker is not Ready: ", "cni plugin not initialized"}},
		{name: "one runs another version", nodes: []*corev1.Node{well("first"), kubetest.Labelled("worker", nil)},
			want: []string{"its node worker runs , and is to run v1.36.4+k3s1"}},
		{name: "none is registered", want: []string{"its node is not registered"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // most wait in vain
			s := sitetest.Example(t, strings.Replace(sitetest.ExampleConfig, "{host: 10.0.0.12", "{host: 10.0.0.12, name: worker", 1))
			m := kubetest.NewMemory(t)
			for _, n := range test.nodes {
				m.Put(t, n)
			}
			s.API = connected(t, s, m)
			s.Config.Runtime.CommandTimeout = 3 * time.Second
			before := errors.New("it failed before")
			if test.failed {
				s.Hosts[1].Fail(before)
			}
			err := s.AwaitEachNode(t.Context(), "wait", s.Hosts, site.ReadyWith("v1.36.4+k3s1"))
			if test.want == nil {
				if err != nil || s.Hosts[0].Err != nil || test.failed != errors.Is(s.Hosts[1].Err, before) {
					t.Errorf("%s: %v", test.name, err)
				}
				return
			}
			if err == nil || (s.Hosts[0].Err == nil) != (test.nodes != nil) || s.Hosts[1].Err == nil {
				t.Errorf("%s: %v; the hosts: %v, %v", test.name, err, s.Hosts[0].Err, s.Hosts[1].Err)
				return
			}
			kubetest.Contains(t, s.Hosts[1].Err.Error(), test.want...)
			kubetest.Contains(t, strings.Join(fault.Hints(s.Hosts[1].Err), ""), "journalctl -u k3s-agent", "describe node worker")
		})
	}
}

// Ctrl-C, and an API that does not answer, are no fault of a host's.
func TestAwaitEachNodeInVain(t *testing.T) {
	t.Parallel()
	s := sitetest.Example(t, sitetest.ExampleConfig)
	m := kubetest.NewMemory(t)
	s.API = connected(t, s, m)
	s.Config.Runtime.CommandTimeout = 3 * time.Second
	m.BreakAfter(0)
	if err := s.AwaitEachNode(t.Context(), "wait", s.Hosts, site.ReadyWith("v1")); err == nil || s.Hosts[0].Err != nil || s.Hosts[1].Err != nil {
		t.Errorf("without an API: %v, %v", err, s.Hosts[0].Err)
	}
	m.BreakAfter(-1)
	pressed := errors.New("Ctrl-C")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(pressed)
	if err := s.AwaitEachNode(ctx, "wait", s.Hosts, site.ReadyWith("v1")); !errors.Is(err, pressed) {
		t.Errorf("after Ctrl-C: %v", err)
	}
}

// The others join the server that began the cluster. No server begins a second one while another has the first.
func TestSeedServer(t *testing.T) {
	const member, joined, failed = 1, 2, 4
	for _, test := range []struct {
		name  string
		state [3]int
		want  int // -1 for none
	}{
		{"new hosts", [3]int{}, 0},
		{"the first has begun", [3]int{member, member | joined, member | joined}, 0},
		{"the first was set up anew", [3]int{0, member | joined, member | joined}, 1},
		{"the second has begun", [3]int{member | joined, member, member | joined}, 1},
		{"the one that has begun has failed", [3]int{member | failed, member | joined, 0}, 1},
		{"the only member has failed", [3]int{failed | member, 0, 0}, 1},
		{"all have failed", [3]int{failed, failed, failed}, -1},
	} {
		s := sitetest.Example(t, sitetest.ThreeServers)
		for i, state := range test.state {
			h := s.Servers()[i]
			if h.Member = state&member != 0; state&joined != 0 {
				h.Joined = "https://10.0.0.99:6443"
			}
			if state&failed != 0 {
				h.Fail(errors.New("it is on fire"))
			}
		}
		got := -1
		for i, h := range s.Servers() {
			if h == s.SeedServer() {
				got = i
			}
		}
		if got != test.want {
			t.Errorf("%s: server %d, want %d", test.name, got, test.want)
		}
	}
}

// Nodes of install.yaml's hosts are not absent, by whatever they are known.
func TestAbsent(t *testing.T) {
	s := sitetest.Example(t, sitetest.ExampleConfig)
	s.Hosts[1].Hostname, s.Hosts[1].MachineID = "Worker", "0123"
	nodes := []kube.Node{
		{Name: "first"}, {Name: "old-name", MachineID: "0123"}, {Name: "gone", Addresses: []string{"10.0.0.19"}},
	}
	if diff := cmp.Diff([]kube.Node{nodes[2]}, s.Absent(nodes)); diff != "" {
		t.Error(diff)
	}
	if len(nodes) != 3 {
		t.Error("what was given has changed")
	}
}

// What is taken from a bundle is bounded, and what it lacks is said by the name that the lock has for it.
func TestContents(t *testing.T) {
	r, contents := bundleOf(t)
	s := sitetest.Seeded(t, sitetest.ExampleConfig)
	if diff := cmp.Diff([]string{"docker.io", "quay.io"}, s.CarriedRegistries()); diff != "" {
		t.Error(diff)
	}
	s.Bundle, s.Contents = r, contents
	f, err := s.K3sFile(site.InstallScript, "linux/amd64")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := s.ReadFile(f, 100); err != nil || string(text) != "#!/bin/sh\n" {
		t.Errorf("it has %q, %v", text, err)
	}
	if _, err := s.ReadFile(f, 5); !errors.Is(err, site.ErrConfig) || !strings.HasSuffix(err.Error(), "the bundle's install.sh has 10 bytes, 5 is the most") {
		t.Errorf("more than anybody reads: %v", err)
	}
	if _, err := s.K3sFile(site.K3sProgram, "linux/arm64"); err == nil || !strings.Contains(err.Error(), "has no file k3s for linux/arm64: add it to the lock") {
		t.Errorf("a file that is missing: %v", err)
	}
	other := f
	other.Digest = bundle.File{Digest: "sha256:" + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}.Digest
	if a, b := site.StoredPath(f), site.StoredPath(other); a == b || b != "/var/lib/boxlift/files/install.sh-0123456789ab" {
		t.Errorf("files of two bundles lie in %s and %s", a, b)
	}
	h := s.Hosts[0]
	h.Platform = "linux/amd64"
	if _, ok := s.CiliumCLIFile(h); ok {
		t.Error("it carries the cilium command")
	}
	if packs, err := s.PacksFor(h); err != nil || len(packs) != 0 {
		t.Errorf("a bundle without images has the packs %v, %v", packs, err)
	}
}
