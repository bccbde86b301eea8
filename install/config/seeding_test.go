package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/registry/rewrite"
)

func TestSeedingDefaults(t *testing.T) {
	want := Seeding{Mode: SeedImages, Agents: AgentsFull, Registry: SeedingRegistry{Port: 5443}}
	for _, section := range []string{"", "seeding: {mode: images}", "seeding: {agents: full, peerToPeer: false}"} {
		cfg := mustParse(t, "f", "cluster: {master: {host: a, agent: true}}\n"+section)
		if diff := cmp.Diff(want, cfg.Seeding); diff != "" {
			t.Errorf("%q (-want +got):\n%s", section, diff)
		}
	}
}

func TestSeedingPathsAndSecrets(t *testing.T) {
	cfg := mustParse(t, "/etc/boxlift/install.yaml", mustRead(t, "testdata/valid/seeding-registry.yaml"))
	want := SeedingRegistry{Port: 6000, CAFile: "/etc/boxlift/tls/ca.crt", CAKeyFile: "/home/op/ca.key"}
	if diff := cmp.Diff(want, cfg.Seeding.Registry); diff != "" {
		t.Errorf("registry (-want +got):\n%s", diff)
	}
	cfg = mustParse(t, "/etc/boxlift/install.yaml", mustRead(t, "testdata/valid/seeding-external.yaml"))
	var secrets []string
	for _, s := range cfg.Secrets() {
		secrets = append(secrets, s.Reveal())
	}
	if diff := cmp.Diff([]string{"from the environment", "pull password"}, secrets); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
	e := cfg.Seeding.External
	if e.CAFile != "/etc/boxlift/harbor-ca.crt" || e.URL() != "https://harbor.example.lan:8443" ||
		e.Rewrites[2].Replace != "plant/${1}" {
		t.Errorf("external is %+v", e)
	}
}

func TestSeedingFingerprint(t *testing.T) {
	fingerprint := func(seeding string) string {
		return mustParse(t, "f", "cluster: {master: {host: a, agent: true}}\nseeding: "+seeding).Fingerprint()
	}
	const external = "{mode: external, external: {address: h.lan, push: {username: p, password: one}, pull: " +
		"{username: q, password: two}, caFile: a}}"
	original := fingerprint(external)
	for _, same := range [][2]string{
		{"password: one", "password: three"},
		{"password: two", "password: three"},
		{"push: {username: p, password: one}, ", ""},
		{"caFile: a", "caFile: b"},
	} {
		if fingerprint(strings.Replace(external, same[0], same[1], 1)) != original {
			t.Errorf("%q instead of %q changes the fingerprint", same[1], same[0])
		}
	}
	seen := map[string]bool{original: true}
	for _, other := range []string{
		"{}", "{mode: registry}", "{mode: registry, agents: boot}", "{mode: registry, peerToPeer: true}",
		"{mode: registry, registry: {port: 5000}}",
		strings.Replace(external, "h.lan", "i.lan", 1), strings.Replace(external, "username: q", "username: r", 1),
		strings.Replace(external, "caFile: a", "rewrites: [{match: a, replace: b}]", 1),
	} {
		f := fingerprint(other)
		if seen[f] {
			t.Errorf("%s has the fingerprint of another", other)
		}
		seen[f] = true
	}
}

func TestParseRegistryAddress(t *testing.T) {
	for address, want := range map[string]string{
		"harbor.lan": "", "harbor.lan:443": "", "harbor": "", "10.0.0.1": "", "10.0.0.1:5000": "", "[fd00::1]:5000": "",
		"[fd00::1]":               "",
		"https://harbor.lan":      "without https:// or http://",
		"harbor.lan/plant":        "without a path",
		"user:CANARY@harbor.lan":  "without a user",
		"harbor.lan:0":            "a port from 1 to 65535",
		"harbor.lan:65536":        "a port from 1 to 65535",
		"harbor.lan:0443":         "a port from 1 to 65535",
		"harbor.lan:":             "a port from 1 to 65535",
		"fd00::1":                 "in brackets",
		"Harbor.lan":              "in lower case",
		"10.0.0":                  "a host in lower case",
		"*":                       "a host in lower case",
		"0.0.0.0:5000":            "a host in lower case",
		"[fe80::1%eth0]:5000":     "a host in lower case",
		"harbor lan":              "a host in lower case",
		strings.Repeat("a.", 127): "a host in lower case",
	} {
		got, err := parseRegistryAddress(address)
		switch {
		case want == "" && (err != nil || got != address):
			t.Errorf("%q: got %q, %v", address, got, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: got %v, want an error with %q", address, err, want)
		}
	}
}

func TestHostPort(t *testing.T) {
	for _, test := range []struct {
		registry ExternalRegistry
		host     string
		port     int
	}{
		{ExternalRegistry{Address: "harbor.lan"}, "harbor.lan", 443},
		{ExternalRegistry{Address: "harbor.lan", PlainHTTP: true}, "harbor.lan", 80},
		{ExternalRegistry{Address: "harbor.lan:8443"}, "harbor.lan", 8443},
		{ExternalRegistry{Address: "[fd00::5]:5000", PlainHTTP: true}, "fd00::5", 5000},
		{ExternalRegistry{Address: "[fd00::5]"}, "fd00::5", 443},
	} {
		if host, port := test.registry.HostPort(); host != test.host || port != test.port {
			t.Errorf("%+v: got %s and %d", test.registry, host, port)
		}
	}
}

func TestCheckPeerToPeer(t *testing.T) {
	const names = "v1.32.11, v1.33.7, v1.34.3 or v1.35.0"
	for version, want := range map[string]string{
		"v1.32.11+k3s1": "", "v1.32.12+k3s3": "", "v1.33.7+k3s1": "", "v1.34.3+k3s1": "", "v1.35.0+k3s1": "",
		"v1.36.4+k3s1": "", "v2.0.0+k3s1": "",
		"v1.34.4-rc1+k3s1": "",
		"v1.30.14+k3s1":    names, "v1.31.99+k3s1": names, "v1.32.10+k3s1": names, "v1.33.6+k3s1": names,
		"v1.34.2+k3s1":     names,
		"v1.34.3-rc1+k3s1": names, "v1.35.0-rc2+k3s1": names, "v0.99.99+k3s1": names,
		"1.36.4": "such as v1.36.4+k3s1", "v1.36+k3s1": "such as", "": "such as", "v1.9999999.1+k3s1": "such as",
	} {
		err := CheckPeerToPeer(version)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", version, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), version)):
			t.Errorf("%s: got %v, want an error with %q", version, err, want)
		}
	}
}

func TestSeedingK3sConfig(t *testing.T) {
	type keys = map[string]any
	for _, test := range []struct {
		seeding       Seeding
		server, agent keys
	}{
		{Seeding{Mode: SeedImages}, keys{}, keys{}},
		{Seeding{Mode: SeedImages, PeerToPeer: true}, keys{"embedded-registry": true}, keys{}},
		{Seeding{Mode: SeedRegistry}, keys{"disable-default-registry-endpoint": true},
			keys{"disable-default-registry-endpoint": true}},
		{Seeding{Mode: SeedExternal, PeerToPeer: true},
			keys{"disable-default-registry-endpoint": true,
				"embedded-registry": true}, keys{"disable-default-registry-endpoint": true}},
	} {
		got := []keys{test.seeding.K3sConfig(Server), test.seeding.K3sConfig(Agent)}
		if diff := cmp.Diff([]keys{test.server, test.agent}, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", test.seeding, diff)
		}
	}
}

// checkSeeded holds an accepted seeding to what others rely on.
func checkSeeded(t *testing.T, cfg *Config) {
	t.Helper()
	s := cfg.Seeding
	if (s.External != nil) != (s.Mode == SeedExternal) || s.Agents == AgentsBoot && s.Mode == SeedImages ||
		s.Registry.Port < 1 || s.Registry.Port > 65535 || (s.Registry.CAFile == "") != (s.Registry.CAKeyFile == "") {
		t.Errorf("accepted %+v", s)
	}
	for _, h := range cfg.Hosts() {
		for key := range s.K3sConfig(h.Role) {
			if h.K3s.Value(key) != nil {
				t.Errorf("%s has %s", h.Path, key)
			}
		}
	}
	if s.External == nil {
		return
	}
	if host, port := s.External.HostPort(); host == "" || port < 1 || port > 65535 {
		t.Errorf("accepted the address %q", s.External.Address)
	}
	rules, err := rewrite.Parse(s.External.Rewrites)
	if err != nil {
		t.Fatal(err)
	}
	// What the bundle will have, and the user's own for that, is not known before.
	merged, err := s.External.Origin(rules, "/ca.crt").Merge(cfg.Registries)
	if err != nil {
		return
	}
	if _, err := merged.Render(); err != nil {
		t.Error(err)
	}
}
