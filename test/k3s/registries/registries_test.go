package registries

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHosts(t *testing.T) {
	const head = heading + "\n\n"
	for _, test := range []struct {
		name, text string
		noDefault  bool
		want       map[string]string
	}{
		{name: "nothing", want: map[string]string{}},
		{name: "a mirror", text: "mirrors: {docker.io: {endpoint: ['mirror.lan:5000', 'https://other/v2/', 'https://third/proxy']}}",
			want: map[string]string{"docker.io": head + `server = "https://registry-1.docker.io/v2"
capabilities = ["pull", "resolve", "push"]

[host]
[host."https://mirror.lan:5000/v2"]
  capabilities = ["pull", "resolve"]
[host."https://other/v2"]
  capabilities = ["pull", "resolve"]
[host."https://third/proxy"]
  capabilities = ["pull", "resolve"]
  override_path = true
`}},
		{name: "no way past the mirrors", noDefault: true, text: "mirrors: {docker.io: {endpoint: [https://a, https://b]}, quay.io: {}}",
			want: map[string]string{"docker.io": head + `server = "https://b/v2"
capabilities = ["pull", "resolve", "push"]

[host]
[host."https://a/v2"]
  capabilities = ["pull", "resolve"]
`}},
		{name: "all registries, a local port, rewrites", text: `mirrors: {"*": {endpoint: ["localhost:5000"], rewrite: {"^x/(.*)": "y/$1"}}}`,
			want: map[string]string{"_default": head + `
[host]
[host."http://localhost:5000/v2"]
  capabilities = ["pull", "resolve"]
  [host."http://localhost:5000/v2".rewrite]
    "^x/(.*)" = "y/$1"
`}},
		{name: "TLS", text: `configs: {"r.lan:5000": {tls: {ca_file: /ca, cert_file: /c, key_file: /k, insecure_skip_verify: true}, auth: {username: u, password: p}}}`,
			want: map[string]string{"r.lan:5000": head + `server = "https://r.lan:5000/v2"
capabilities = ["pull", "resolve", "push"]
skip_verify = true
ca = ["/ca"]
client = [["/c", "/k"]]

[host]
`}},
		{name: "one mirror and no way past it", noDefault: true, text: "mirrors: {docker.io: {endpoint: [https://a]}}",
			want: map[string]string{"docker.io": head + `server = "https://a/v2"
capabilities = ["pull", "resolve", "push"]

[host]
`}},
		{name: "only how to talk to it", noDefault: true, text: `{mirrors: {"*": {endpoint: [https://a]}}, configs: {r.lan: {auth: {username: u, password: p}}}}`,
			want: map[string]string{
				"_default": head + `server = "https://a/v2"
capabilities = ["pull", "resolve", "push"]

[host]
`,
				"r.lan": head + `server = "https://r.lan/v2"
capabilities = ["pull", "resolve", "push"]

[host]
`,
			}},
		{name: "nothing to say of a registry", text: `{mirrors: {docker.io: {}, "*": {endpoint: [https://a]}}}`,
			want: map[string]string{"_default": head + `
[host]
[host."https://a/v2"]
  capabilities = ["pull", "resolve"]
`}},
		{name: "settings are for one host and port", text: `{mirrors: {"*": {endpoint: ["https://a:5000"]}}, configs: {a: {tls: {ca_file: /a}}, "*": {tls: {ca_file: /all}}, "a:5000": {tls: {insecure_skip_verify: true}}}}`,
			want: map[string]string{
				"_default": head + `
[host]
[host."https://a:5000/v2"]
  capabilities = ["pull", "resolve"]
  skip_verify = true
`,
				"a": head + `server = "https://a/v2"
capabilities = ["pull", "resolve", "push"]
ca = ["/a"]

[host]
`,
				"a:5000": head + `server = "https://a:5000/v2"
capabilities = ["pull", "resolve", "push"]
skip_verify = true

[host]
`,
			}},
		{name: "a mirror and a login, and no way past the mirror", noDefault: true, text: `{mirrors: {docker.io: {endpoint: [https://a], rewrite: {b: c}}}, configs: {docker.io: {auth: {username: u, password: p}}}}`,
			want: map[string]string{"docker.io": head + `server = "https://registry-1.docker.io/v2"
capabilities = ["pull", "resolve", "push"]

[host]
[host."https://a/v2"]
  capabilities = ["pull", "resolve"]
  [host."https://a/v2".rewrite]
    "b" = "c"
`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "registries.yaml")
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := Read(path)
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.Hosts(test.noDefault)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, err := (Config{Mirrors: map[string]Mirror{"a": {Endpoints: []string{"http://"}}}}).Hosts(false); err == nil {
		t.Error("an endpoint without a host is no error")
	}
}

func TestAuths(t *testing.T) {
	c := Config{Configs: map[string]HostSettings{"b": {Auth: &Auth{Username: "u"}}, "a": {Auth: &Auth{Auth: "x"}}, "c": {}}}
	want := []HostAuth{{"a", Auth{Auth: "x"}}, {"b", Auth{Username: "u"}}}
	if diff := cmp.Diff(want, c.Auths()); diff != "" {
		t.Error(diff)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "foreign", "hosts.toml")
	if err := errors.Join(os.MkdirAll(filepath.Dir(foreign), 0o755), os.WriteFile(foreign, []byte("server = 1\n"), 0o600),
		Write(dir, map[string]string{"old": heading + "\nold", "foreign": heading}), Write(dir, map[string]string{"new": heading + "\nnew"})); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	files, err := filepath.Glob(dir + "/*/hosts.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got[filepath.Base(filepath.Dir(file))] = string(text)
	}
	if diff := cmp.Diff(map[string]string{"foreign": "server = 1\n", "new": heading + "\nnew"}, got); diff != "" {
		t.Error(diff)
	}
}
