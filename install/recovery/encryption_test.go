package recovery

import (
	"archive/tar"
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/test/sitetest"
)

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
			want: "take that out of install.yaml", is: site.ErrRefused,
		},
		{
			name: "only install.yaml", config: in("true"), files: map[string]string{file: "cluster-init: true\n"},
			want: "take it out", is: site.ErrRefused,
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
			r := sitetest.BackupWith(t, backup.Manifest{Cluster: "example", K3s: "v1.34.4+k3s1"}, map[string]string{
				backup.Token: sitetest.FullToken, backup.ServerFiles: content.String(),
			})
			in := example(t, test.config, "k3s=v1.34.4+k3s1")
			in.site.K3s, in.recovery.Restore, in.engine.Restores = "v1.34.4+k3s1", &Restore{Backup: r}, true
			err := in.recovery.CheckRestore()
			if !errors.Is(err, test.is) || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %v with %q", err, test.is, test.want)
			}
			if err == nil && in.cluster.Encrypts() != test.encrypts {
				t.Errorf("the cluster encrypts: %t", in.cluster.Encrypts())
			}
		})
	}
}
