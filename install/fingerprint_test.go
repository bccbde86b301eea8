package install

import (
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/config"
)

// K3s is started again for what it goes by at every start, and for nothing else.
func TestEffectiveConfig(t *testing.T) {
	in := example(t, threeServers, "k3s=v1.36.4+k3s1")
	n := &k3sNode{cluster: in.cluster, host: in.site.hosts[3], server: "https://10.0.0.11:6443", token: "the-token"}
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
	n.host.config.Taints = []config.Taint{{Key: "other", Effect: "NoExecute"}}
	if effective(render()) != effective(before) || render() == before {
		t.Error("another taint")
	}
	n.host.config.Taints = nil
	if effective(render()) != effective(before) {
		t.Error("no taint")
	}
	n.server = "https://10.0.0.12:6443"
	if effective(render()) == effective(before) {
		t.Error("another server is the same")
	}
	for _, other := range []string{"", "not: [yaml", "- a list"} {
		if effective(other) == effective(before) || effective(other) == effective(other+"x") {
			t.Errorf("%q", other)
		}
	}
}
