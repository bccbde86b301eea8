package k3s

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/site"
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

// What a host has as config costs no more than its size allows: not with one key again and again, nor with very many.
func TestHostileConfig(t *testing.T) {
	const most = 32 << 20 // bytes; the YAML library takes 86 MiB for 5 kB of one key, and more than there is for 1 MB
	var distinct strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&distinct, "key%d: v\n", i)
	}
	for what, text := range map[string]string{
		"one key again and again": strings.Repeat("a: b\n", 1000), "and very often": strings.Repeat("a: b\n", 200_000),
		"very many keys": distinct.String(),
	} {
		for name, read := range map[string]func(string){
			"effective":       func(text string) { _ = effective(text) },
			"takeConfig":      func(text string) { takeConfig(new(site.Host), text) },
			"namesAgentToken": func(text string) { _ = namesAgentToken(text) },
			"adoption": func(text string) {
				// As readK3sScript prints it, with a NUL before each file.
				if _, err := parseK3s("argv[]=/usr/local/bin/k3s server ; ignore_errors=no\x00\x00" + text); err == nil {
					t.Errorf("%s: it is adopted with it", what)
				}
			},
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			read(text)
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > most {
				t.Fatalf("%s: %s: %d MiB for %d kB", name, what, got>>20, len(text)>>10)
			}
		}
	}
}
