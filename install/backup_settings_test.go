package install

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/atrest"
	"github.com/liteboxd/boxlift/install/backup"
)

// All servers of a new cluster encrypt, and others go on as they are; agents never have the setting.
func TestServersEncryptSecrets(t *testing.T) {
	asks := func(value string) string {
		return strings.Replace(threeServers, "serverConfig: {", "serverConfig: {secrets-encryption: "+value+", ", 1)
	}
	begun, encrypts := atrest.Server{Begun: true}, atrest.Server{Begun: true, Set: true, HasKey: true}
	tests := []struct {
		name, config string
		servers      map[int]atrest.Server
		want         any
	}{
		{"a new cluster", threeServers, nil, true},
		{"a new cluster of a user who does not want it", asks("false"), nil, false},
		{"one without it gets a server", threeServers, map[int]atrest.Server{1: begun, 2: begun}, nil},
		{"one with it gets a server", threeServers, map[int]atrest.Server{1: encrypts, 2: encrypts}, true},
		{"one without it, against the user", asks("true"), map[int]atrest.Server{0: begun}, true},
		{"one with it, against the user", asks("false"), map[int]atrest.Server{0: encrypts}, false},
		{
			"what one server is given is meant for all", strings.Replace(threeServers, "nodeIP: 192.168.0.11", "k3s: {installArgs: [--secrets-encryption=false]}", 1),
			nil, nil,
		},
	}
	for _, test := range tests {
		in := example(t, test.config, "k3s=v1.36.4+k3s1")
		for i, s := range test.servers {
			in.site.hosts[i].atRest = s
		}
		for i, h := range in.site.hosts {
			got := in.cluster.nodeWith(h, in.site.seedServer(), "the-token").settings()[atrest.Setting]
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
		{name: "started", config: `secrets-encryption: "true"`, files: []string{k3sDatabases}, want: atrest.Server{Begun: true, Set: true}},
		{
			name: "in a cluster", config: "secrets-encryption: true\n", files: []string{k3sNodeToken, k3sDatabases, k3sEncryptionKey},
			want: atrest.Server{Begun: true, Set: true, HasKey: true}, member: true,
		},
		{name: "in an old cluster", config: "secrets-encryption: false\n", files: []string{k3sNodeToken, k3sDatabases}, want: atrest.Server{Begun: true}, member: true},
		{name: "no YAML", config: "\t- {", files: []string{k3sDatabases}, want: atrest.Server{Begun: true}},
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
		var h host
		takeConfig(&h, test.config)
		if err := takeSeen(&h, strings.Join(seen, "")); err != nil {
			t.Fatal(err)
		}
		if h.atRest != test.want || h.member != test.member {
			t.Errorf("%s: %+v, in a cluster: %t", test.name, h.atRest, h.member)
		}
	}
}

// A cluster comes back with the setting for its Secrets that it had, or not at all.
func TestRestoreKeepsSecretsEncryption(t *testing.T) {
	const plain = "cluster: {name: example, master: {host: 10.0.0.1, password: x}}\nnetwork: {cni: cilium}\n"
	in := func(value string) string {
		return strings.Replace(plain, "master:", "serverConfig: {secrets-encryption: "+value+"}, master:", 1)
	}
	const file, key = "etc/rancher/k3s/config.yaml", "var/lib/rancher/k3s/server/cred/encryption-config.json"
	const credential = "var/lib/rancher/k3s/server/cred/passwd"
	tests := []struct {
		name, config string
		files        map[string]string
		encrypts     bool
		want         string
		is           error
	}{
		{name: "both", config: in("true"), files: map[string]string{file: "secrets-encryption: true\n"}, encrypts: true},
		{name: "both, as text", config: in(`"true"`), files: map[string]string{file: "secrets-encryption: \"true\"\n"}, encrypts: true},
		{name: "only the backup", config: plain, files: map[string]string{"a": "x", file: "secrets-encryption: true\n", "z": "x"}, encrypts: true},
		{name: "only the backup's key", config: plain, files: map[string]string{file: "cluster-init: true\n", key: "{}"}, encrypts: true},
		{name: "a key and no config", config: plain, files: map[string]string{key: "{}"}, encrypts: true},
		{name: "neither", config: plain, files: map[string]string{file: "cluster-init: true\n"}},
		{name: "no config, and no key among others", config: plain, files: map[string]string{credential: "x"}},
		{name: "said to be off", config: in("false"), files: map[string]string{file: "disable: [traefik]\n"}},
		{name: "not known", config: in("true"), files: map[string]string{"etc/other": "x"}, encrypts: true},
		{name: "nothing is known", config: plain, files: map[string]string{"etc/other": "x"}},
		{
			name: "said to be off, and the backup encrypts", config: in("false"), files: map[string]string{file: "secrets-encryption: true\n"},
			want: "take that out of install.yaml", is: ErrRefused,
		},
		{
			name: "only install.yaml", config: in("true"), files: map[string]string{file: "cluster-init: true\n"},
			want: "take it out", is: ErrRefused,
		},
		{name: "no YAML", config: plain, files: map[string]string{file: "\t- {"}, want: "cannot be read", is: backup.ErrInvalid},
		{
			name: "huge", config: plain, files: map[string]string{file: strings.Repeat("# x\n", 1<<19)},
			want: "cannot be read", is: backup.ErrInvalid,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var content bytes.Buffer
			w := tar.NewWriter(&content)
			for _, name := range []string{"a", file, "etc/other", key, credential, "z"} {
				text, ok := test.files[name]
				if !ok {
					continue
				}
				header := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(text)), Typeflag: tar.TypeReg}
				if err := w.WriteHeader(header); err != nil {
					t.Fatal(err)
				}
				if _, err := w.Write([]byte(text)); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			r := backupWith(t, backup.Manifest{Cluster: "example", K3s: "v1.34.4+k3s1"}, map[string]string{
				backup.Token: fullToken, backup.ServerFiles: content.String(),
			})
			in := example(t, test.config, "k3s=v1.34.4+k3s1")
			in.site.k3s, in.recovery.Restore, in.engine.restores = "v1.34.4+k3s1", &Restore{Backup: r}, true
			err := in.recovery.checkRestore()
			if !errors.Is(err, test.is) || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %v with %q", err, test.is, test.want)
			}
			if err == nil && in.cluster.encrypts() != test.encrypts {
				t.Errorf("the cluster encrypts: %t", in.cluster.encrypts())
			}
		})
	}
}
