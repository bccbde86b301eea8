package settings

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	type values = map[string][]string
	for _, test := range []struct {
		name, command, config, first, second string
		args, environ                        []string
		want                                 values
		err                                  string
	}{
		{name: "lists, switches and numbers", command: "server", config: "tls-san: [a, b]\ncluster-init: true\nhttps-listen-port: 1000000\ntoken: 007\n",
			want: values{"tls-san": {"a", "b"}, "cluster-init": {"true"}, "https-listen-port": {"1000000"}, "token": {"7"}}},
		{name: "later files replace and add", command: "server", config: "tls-san: [a]\nnode-ip: 10.0.0.1\n", first: "tls-san+: [b]\nnode-ip: 10.0.0.2\n",
			second: "tls-san+: c\n", want: values{"tls-san": {"a", "b", "c"}, "node-ip": {"10.0.0.2"}}},
		{name: "a key and its addition in one file", command: "server", config: "tls-san+: [b]\ntls-san: [a]\n", want: values{"tls-san": {"a", "b"}}},
		{name: "command line before environment before file", command: "agent", config: "token: file\nserver: https://file\nnode-label: [a=1]\n",
			environ: []string{"K3S_TOKEN=environment", "K3S_URL=https://environment", "K3S_CLUSTER_INIT=true", "K3S_NODE_NAME="},
			args:    []string{"--server=https://line", "--node-label", "b=2", "-t", "line"},
			want:    values{"server": {"https://line"}, "token": {"line"}, "node-label": {"b=2"}}},
		{name: "empty files", command: "server", config: "", want: values{}},
		{name: "agent without server", command: "agent", config: "token: x\n", err: "--server is required"},
		{name: "plain http", command: "agent", config: "server: http://s\n", err: "only https://"},
		{name: "unknown key", command: "server", config: "flanel-backend: none\n", err: "flag provided but not defined: -flanel-backend"},
		{name: "unknown key that adds", command: "server", first: "flanel-backend+: none\n", err: "flag provided but not defined: -flanel-backend"},
		{name: "server's key on an agent", command: "agent", config: "flannel-backend: none\n", err: "not defined: -flannel-backend"},
		{name: "unknown flag", command: "server", args: []string{"--no-such"}, err: "flag provided but not defined: -no-such"},
		{name: "flag without its value", command: "server", args: []string{"--token"}, err: "needs an argument"},
		{name: "switch that is none", command: "server", config: "disable-kube-proxy: maybe\n", err: "invalid boolean"},
		{name: "what there is no part for", command: "server", config: "datastore-endpoint: mysql://x\n", err: "does not have it"},
		{name: "not YAML", command: "server", config: "a: [", err: "read " + config},
	} {
		t.Run(test.name, func(t *testing.T) {
			write("config.yaml", test.config)
			write("config.yaml.d/10-first.yaml", test.first)
			write("config.yaml.d/20-second.yaml", test.second)
			got, err := Read(test.command, append([]string{"--config", config}, test.args...), test.environ)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error is %v, want %q in it", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			delete(got.Values, "config")
			if diff := cmp.Diff(test.want, got.Values); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, values := range map[string]map[string][]string{
		"":          {},
		"given":     {"token": {"given"}, "token-file": {file}},
		"from-file": {"token-file": {file}},
	} {
		if got, err := (Settings{Values: values}).Token(""); err != nil || got != want {
			t.Errorf("token of %v is %q, %v; want %q", values, got, err, want)
		}
	}
	if _, err := (Settings{Values: map[string][]string{"token-file": {file + "x"}}}).Token(""); err == nil {
		t.Error("a token file that is not there is no error")
	}
}

func TestSplit(t *testing.T) {
	s := Settings{Values: map[string][]string{"disable": {"traefik, servicelb", "coredns"}}}
	if diff := cmp.Diff([]string{"traefik", "servicelb", "coredns"}, s.Split("disable")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"x"}, s.Split("tls-san", "x")); diff != "" {
		t.Error(diff)
	}
}
