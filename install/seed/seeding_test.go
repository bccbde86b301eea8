package seed

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/registry/push"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// What nodes have in registries.yaml, by the mode and by their place.
func TestSeedingRegistries(t *testing.T) {
	tests := []struct {
		golden, text string
		host         int
	}{
		{"registries-server.yaml", sitetest.ThreeServers + sitetest.OwnRegistry, 1},
		{"registries-agent.yaml", sitetest.ThreeServers + sitetest.OwnRegistry, 3},
		{"registries-own-too.yaml", sitetest.ExampleConfig + sitetest.OwnRegistry + sitetest.OwnLAN, 0},
		{"registries-external.yaml", sitetest.ExampleConfig + sitetest.Harbor, 0},
		{"registries-peers.yaml", sitetest.ExampleConfig + sitetest.Peers, 1},
	}
	for _, test := range tests {
		in := seeded(t, test.text)
		r, err := in.seeder.registriesWith(in.site.Hosts[test.host], "the-password")
		if err != nil {
			t.Errorf("%s: %v", test.golden, err)
			continue
		}
		got, err := r.Render()
		if err != nil {
			t.Fatal(err)
		}
		sitetest.CheckGolden(t, test.golden, got)
	}
	in := seeded(t, sitetest.ExampleConfig)
	if r, err := in.seeder.Registries(in.site.Hosts[0]); r != nil || err != nil {
		t.Errorf("in mode images: %v, %v", r, err)
	}
}

// Servers ask themselves first, the others share the servers out among them, and one server
// more or less does not turn the order of the others round.
func TestEndpointOrder(t *testing.T) {
	in := seeded(t, sitetest.ThreeServers+sitetest.OwnRegistry)
	order := func(in *installation, h *site.Host) []string {
		var names []string
		for _, s := range in.seeder.endpointOrder(h) {
			names = append(names, s.Name)
		}
		return names
	}
	for _, s := range in.site.Servers() {
		if got := order(in, s); got[0] != s.Name || len(got) != 3 {
			t.Errorf("%s asks %v", s.Name, got)
		}
	}
	first := make(map[string]bool)
	for i := range 32 {
		h := &site.Host{Config: config.Host{Role: config.Agent, NodeIP: netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})}}
		all := order(in, h)
		first[all[0]] = true
		less := roomsOf(&site.Site{Config: &config.Config{Cluster: config.Cluster{Servers: in.site.Config.Cluster.Servers[:2]}}})
		less.site.Hosts = in.site.Hosts[:2]
		without := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == in.site.Hosts[2].Name })
		if diff := cmp.Diff(without, order(less, h)); diff != "" {
			t.Errorf("with one server less: %s", diff)
		}
	}
	if len(first) != 3 {
		t.Errorf("32 agents ask only %v first", first)
	}
}

func TestCheckSeeding(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"images":                    {sitetest.ExampleConfig, ""},
		"own registry":              {sitetest.ExampleConfig + sitetest.OwnRegistry + sitetest.OwnLAN, ""},
		"another's rewrites":        {sitetest.ExampleConfig + sitetest.OwnRegistry + "registries: {mirrors: {docker.io: {endpoint: [cache.lan], rewrite: {'^a': b}}}}\n", "rewrite"},
		"no authority there":        {sitetest.ExampleConfig + "seeding: {mode: external, external: {address: harbor.lan, caFile: missing.crt}}\n", "missing.crt"},
		"an authority of one's own": {sitetest.ExampleConfig + "seeding: {mode: registry, registry: {caFile: missing.crt, caKeyFile: missing.key}}\n", "missing.crt"},
		"k3s that does not share":   {sitetest.ExampleConfig + sitetest.Peers, "do not share"},
	} {
		in := seeded(t, test.text)
		if strings.Contains(name, "share") {
			in.site.K3s = "v1.34.2+k3s1"
		}
		err := in.seeder.CheckSeeding()
		switch {
		case test.want == "" && err == nil:
		case test.want == "" || err == nil || !errors.Is(err, site.ErrConfig) || !strings.Contains(err.Error(), test.want):
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// Images can be pulled by the digests that they have upstream from boxlift's registry, and
// from one that keeps them.
func TestServesDigests(t *testing.T) {
	const kept, changed = "quay.io/cilium/cilium:v1.20.0", "quay.io/cilium/cilium-envoy:v1.37"
	a, b := digest.FromString("a"), digest.FromString("b")
	images := []string{kept + "@" + a.String()}
	if seeded(t, sitetest.ExampleConfig).seeder.ServesDigests(images) {
		t.Error("in mode images nobody serves anything")
	}
	if !seeded(t, sitetest.ExampleConfig+sitetest.OwnRegistry).seeder.ServesDigests(images) {
		t.Error("boxlift's registry serves images by digest")
	}
	in := seeded(t, sitetest.ExampleConfig+sitetest.Harbor)
	if in.seeder.ServesDigests(images) {
		t.Error("what an external registry has is not known before it was asked")
	}
	in.seeder.pushed = &push.Result{Images: []push.Image{{Name: kept, Digest: a, TargetDigest: a}, {Name: changed, Digest: a, TargetDigest: b}}}
	if !in.seeder.ServesDigests(images) {
		t.Error("the external registry has kept the digest")
	}
	if in.seeder.ServesDigests(append(images, changed+"@"+a.String())) {
		t.Error("the external registry has not kept the digest of " + changed)
	}
}

// The unit takes a capability only where the port asks for it.
func TestRegistryUnit(t *testing.T) {
	for port, want := range map[int]string{5443: "CapabilityBoundingSet=\n", 443: "CapabilityBoundingSet=CAP_NET_BIND_SERVICE\n"} {
		text := string(registryUnitText(port))
		if !strings.Contains(text, want) || strings.Contains(text, "@") && !strings.Contains(text, "=@system-service\n") || strings.Contains(text, "@cap") {
			t.Errorf("port %d:\n%s", port, text)
		}
	}
	for _, path := range []string{run.RegistryProgram + " serve --config " + run.RegistryConfig + "\n", run.RegistryImages + "\n", "User=" + run.RegistryUser + "\n"} {
		if !strings.Contains(registryUnitTemplate, path) {
			t.Errorf("the unit does not have %q", path)
		}
	}
}
