package inspect

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/release"
)

func TestMismatches(t *testing.T) {
	versions := map[string]string{"k3s": "v1.34.4+k3s1", "cilium": "1.18.6", "liteboxd": "v0.6.10"}
	for _, test := range []struct {
		name   string
		change func(*Running)
		want   []string
	}{
		{"all is as it is to be", func(*Running) {}, nil},
		{"a node", func(r *Running) { r.Nodes[1].Kubelet = "v1.34.3+k3s1" }, []string{"the node a1 runs k3s v1.34.3+k3s1, not v1.34.4+k3s1"}},
		{"no Cilium", func(r *Running) { r.Cilium = nil }, []string{"there is no Helm release cilium in kube-system"}},
		{"a Cilium that is pending", func(r *Running) { r.Cilium.Status = "pending-upgrade" }, []string{"the Helm release cilium is pending-upgrade"}},
		{"another Cilium", func(r *Running) { r.Cilium.ChartVersion = "1.18.5" }, []string{"Cilium is 1.18.5, not 1.18.6"}},
		{"another LiteBoxd", func(r *Running) { r.LiteBoxd = "v0.6.9" }, []string{"LiteBoxd is v0.6.9, not v0.6.10"}},
		{"no LiteBoxd", func(r *Running) { r.LiteBoxd = "" }, nil},
	} {
		r := &Running{
			Nodes:    []kube.Node{{Name: "s1", Kubelet: "v1.34.4+k3s1"}, {Name: "a1", Kubelet: "v1.34.4+k3s1"}},
			Cilium:   &helm.State{ChartVersion: "1.18.6", Status: "deployed"},
			LiteBoxd: "v0.6.10",
		}
		test.change(r)
		if diff := cmp.Diff(test.want, r.Mismatches(func(c string) string { return versions[c] })); diff != "" {
			t.Errorf("%s: -want +got:\n%s", test.name, diff)
		}
	}
	r := &Running{Cilium: &helm.State{ChartVersion: "v1.18.6", Status: "deployed"}, LiteBoxd: "v0.6.10"}
	delete(versions, "liteboxd")
	if diff := cmp.Diff([]string{"LiteBoxd v0.6.10 runs, which the lock does not have"}, r.Mismatches(func(c string) string { return versions[c] })); diff != "" {
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

func TestSince(t *testing.T) {
	start := time.Unix(1000, 0)
	if got := Since(&release.Release{Started: start}); !got.Equal(start) {
		t.Error(got)
	}
	if got := Since(&release.Release{Started: start, Ended: start.Add(1)}); !got.Equal(start.Add(1)) {
		t.Error(got)
	}
}
