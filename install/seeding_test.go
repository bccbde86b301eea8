package install

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/registry/push"
)

const (
	ownRegistry = "seeding: {mode: registry, agents: boot}\n"
	harbor      = `seeding:
  mode: external
  external:
    address: harbor.lan
    rewrites: [{registry: docker.io, match: '^(.*)$', replace: plant/$1}]
    pull: {username: robot$pull, password: the-password}
`
	peers  = "seeding: {peerToPeer: true}\n"
	ownLAN = `registries:
  mirrors:
    registry.lan: {}
    docker.io: {endpoint: ["https://cache.lan:5000"]}
  configs:
    cache.lan:5000: {auth: {username: u, password: p}}
    other.lan:5000: {auth: {username: u, password: p}}
`
)

// seeded is an installer whose bundle has images of two registries.
func seeded(t *testing.T, text string) *installation {
	t.Helper()
	in := example(t, text, "k3s=v1.36.4+k3s1", "cilium=1.20.0")
	in.site.k3s = "v1.36.4+k3s1"
	for _, name := range []string{"docker.io/rancher/mirrored-pause:3.6", "quay.io/cilium/cilium:v1.20.0", "quay.io/cilium/cilium-envoy:v1.37"} {
		in.site.contents.Images = append(in.site.contents.Images, bundle.Image{Name: name})
	}
	return in
}

// What nodes have in registries.yaml, by the mode and by their place.
func TestSeedingRegistries(t *testing.T) {
	tests := []struct {
		golden, text string
		host         int
	}{
		{"registries-server.yaml", threeServers + ownRegistry, 1},
		{"registries-agent.yaml", threeServers + ownRegistry, 3},
		{"registries-own-too.yaml", exampleConfig + ownRegistry + ownLAN, 0},
		{"registries-external.yaml", exampleConfig + harbor, 0},
		{"registries-peers.yaml", exampleConfig + peers, 1},
	}
	for _, test := range tests {
		in := seeded(t, test.text)
		r, err := in.seeder.registriesWith(in.site.hosts[test.host], "the-password")
		if err != nil {
			t.Errorf("%s: %v", test.golden, err)
			continue
		}
		got, err := r.Render()
		if err != nil {
			t.Fatal(err)
		}
		checkGolden(t, test.golden, got)
	}
	in := seeded(t, exampleConfig)
	if r, err := in.seeder.registries(in.site.hosts[0]); r != nil || err != nil {
		t.Errorf("in mode images: %v, %v", r, err)
	}
}

// Servers ask themselves first, the others share the servers out among them, and one server
// more or less does not turn the order of the others round.
func TestEndpointOrder(t *testing.T) {
	in := seeded(t, threeServers+ownRegistry)
	order := func(in *installation, h *host) []string {
		var names []string
		for _, s := range in.seeder.endpointOrder(h) {
			names = append(names, s.name)
		}
		return names
	}
	for _, s := range in.site.servers() {
		if got := order(in, s); got[0] != s.name || len(got) != 3 {
			t.Errorf("%s asks %v", s.name, got)
		}
	}
	first := make(map[string]bool)
	for i := range 32 {
		h := &host{config: config.Host{Role: config.Agent, NodeIP: netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})}}
		all := order(in, h)
		first[all[0]] = true
		less := newRooms(Options{Config: &config.Config{Cluster: config.Cluster{Servers: in.site.Config.Cluster.Servers[:2]}}})
		less.site.hosts = in.site.hosts[:2]
		without := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == in.site.hosts[2].name })
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
		"images":                    {exampleConfig, ""},
		"own registry":              {exampleConfig + ownRegistry + ownLAN, ""},
		"another's rewrites":        {exampleConfig + ownRegistry + "registries: {mirrors: {docker.io: {endpoint: [cache.lan], rewrite: {'^a': b}}}}\n", "rewrite"},
		"no authority there":        {exampleConfig + "seeding: {mode: external, external: {address: harbor.lan, caFile: missing.crt}}\n", "missing.crt"},
		"an authority of one's own": {exampleConfig + "seeding: {mode: registry, registry: {caFile: missing.crt, caKeyFile: missing.key}}\n", "missing.crt"},
		"k3s that does not share":   {exampleConfig + peers, "do not share"},
	} {
		in := seeded(t, test.text)
		if strings.Contains(name, "share") {
			in.site.k3s = "v1.34.2+k3s1"
		}
		err := in.seeder.checkSeeding()
		switch {
		case test.want == "" && err == nil:
		case test.want == "" || err == nil || !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), test.want):
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
	if seeded(t, exampleConfig).seeder.servesDigests(images) {
		t.Error("in mode images nobody serves anything")
	}
	if !seeded(t, exampleConfig+ownRegistry).seeder.servesDigests(images) {
		t.Error("boxlift's registry serves images by digest")
	}
	in := seeded(t, exampleConfig+harbor)
	if in.seeder.servesDigests(images) {
		t.Error("what an external registry has is not known before it was asked")
	}
	in.seeder.pushed = &push.Result{Images: []push.Image{{Name: kept, Digest: a, TargetDigest: a}, {Name: changed, Digest: a, TargetDigest: b}}}
	if !in.seeder.servesDigests(images) {
		t.Error("the external registry has kept the digest")
	}
	if in.seeder.servesDigests(append(images, changed+"@"+a.String())) {
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
	for _, path := range []string{registryProgram + " serve --config " + registryConfig + "\n", registryImages + "\n", "User=" + registryUser + "\n"} {
		if !strings.Contains(registryUnitTemplate, path) {
			t.Errorf("the unit does not have %q", path)
		}
	}
}
