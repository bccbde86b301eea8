package k3s

import (
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// K3s is started again for what it goes by at every start, and for nothing else.
func TestEffectiveConfig(t *testing.T) {
	in := example(t, sitetest.ThreeServers, "k3s=v1.36.4+k3s1")
	n := &Node{Cluster: in.cluster, Host: in.site.Hosts[3], Server: "https://10.0.0.11:6443", Token: "the-token"}
	render := func() string {
		t.Helper()
		content, err := n.configFile()
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	before := render()
	if !strings.Contains(before, "node-taint") {
		t.Fatalf("the host has no taint:\n%s", before)
	}
	n.Host.Config.Taints = []config.Taint{{Key: "other", Effect: "NoExecute"}}
	if effective(render()) != effective(before) || render() == before {
		t.Error("another taint")
	}
	n.Host.Config.Taints = nil
	if effective(render()) != effective(before) {
		t.Error("no taint")
	}
	n.Server = "https://10.0.0.12:6443"
	if effective(render()) == effective(before) {
		t.Error("another server is the same")
	}
	for _, other := range []string{"", "not: [yaml", "- a list"} {
		if effective(other) == effective(before) || effective(other) == effective(other+"x") {
			t.Errorf("%q", other)
		}
	}
}
