package k3s

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/atrest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// All servers of a new cluster encrypt, and others go on as they are; agents never have the setting.
func TestServersEncryptSecrets(t *testing.T) {
	asks := func(value string) string {
		return strings.Replace(sitetest.ThreeServers, "serverConfig: {",
			"serverConfig: {secrets-encryption: "+value+", ", 1)
	}
	begun, encrypts := atrest.Server{Begun: true}, atrest.Server{Begun: true, Set: true, HasKey: true}
	tests := []struct {
		name, config string
		servers      map[int]atrest.Server
		want         any
	}{
		{"a new cluster", sitetest.ThreeServers, nil, true},
		{"a new cluster of a user who does not want it", asks("false"), nil, false},
		{"one without it gets a server", sitetest.ThreeServers, map[int]atrest.Server{1: begun, 2: begun}, nil},
		{"one with it gets a server", sitetest.ThreeServers, map[int]atrest.Server{1: encrypts, 2: encrypts}, true},
		{"one without it, against the user", asks("true"), map[int]atrest.Server{0: begun}, true},
		{"one with it, against the user", asks("false"), map[int]atrest.Server{0: encrypts}, false},
		{
			"what one server is given is meant for all", strings.Replace(sitetest.ThreeServers,
				"nodeIP: 192.168.0.11", "k3s: {installArgs: [--secrets-encryption=false]}", 1),
			nil, nil,
		},
	}
	for _, test := range tests {
		in := example(t, test.config, "k3s=v1.36.4+k3s1")
		for i, s := range test.servers {
			in.site.Hosts[i].AtRest = s
		}
		for i, h := range in.site.Hosts {
			got := in.cluster.NodeWith(h, in.site.SeedServer(), "the-token").Settings()[atrest.Setting]
			switch {
			case i == 3 && got != nil:
				t.Errorf("%s: an agent has %v", test.name, got)
			case i > 0 && i < 3 && got != test.want:
				t.Errorf("%s: server %d has %v, want %v", test.name, i, got, test.want)
			}
		}
	}
}

// What a server says about its Secrets is found where k3s keeps it.
func TestLookForEncryption(t *testing.T) {
	tests := []struct {
		name, config string
		files        []string // of those that are looked for
		want         atrest.Server
		member       bool
	}{
		{name: "nothing"},
		{name: "written and not started", config: "secrets-encryption: true\n", want: atrest.Server{Set: true}},
		{name: "started", config: `secrets-encryption: "true"`, files: []string{K3sDatabases}, want: atrest.Server{Begun: true, Set: true}},
		{
			name: "in a cluster", config: "secrets-encryption: true\n", files: []string{site.K3sNodeToken, K3sDatabases, site.K3sEncryptionKey},
			want: atrest.Server{Begun: true, Set: true, HasKey: true}, member: true,
		},
		{name: "in an old cluster", config: "secrets-encryption: false\n", files: []string{site.K3sNodeToken, K3sDatabases}, want: atrest.Server{Begun: true}, member: true},
		{name: "no YAML", config: "\t- {", files: []string{K3sDatabases}, want: atrest.Server{Begun: true}},
	}
	for _, test := range tests {
		dir := t.TempDir()
		args := []string{"-c", lookScript, "sh"}
		for _, name := range lookedFor {
			args = append(args, dir+name)
			if slices.Contains(test.files, name) {
				if err := os.MkdirAll(filepath.Dir(dir+name), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(dir+name, []byte("x"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		out, err := exec.CommandContext(t.Context(), "/bin/sh", args...).Output()
		if err != nil {
			t.Fatal(err)
		}
		var seen []string
		for line := range strings.Lines(string(out)) {
			if !strings.HasPrefix(line, "missing ") { // of which the machine of a test may lack some
				seen = append(seen, line)
			}
		}
		var h site.Host
		takeConfig(&h, test.config)
		if err := takeSeen(&h, strings.Join(seen, "")); err != nil {
			t.Fatal(err)
		}
		if h.AtRest != test.want || h.Member != test.member {
			t.Errorf("%s: %+v, in a cluster: %t", test.name, h.AtRest, h.Member)
		}
	}
}
