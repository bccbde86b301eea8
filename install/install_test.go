package install

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/node"
)

var update = flag.Bool("update", false, "write the golden files")

const exampleConfig = `cluster:
  name: example
  master:
    host: 10.0.0.11
    name: first
    nodeIP: 10.0.0.11
    password: server-secret
    k3s:
      tlsSAN: [k3s.example.internal, 10.0.0.11]
      installArgs: ["--disable=traefik", "--disable=servicelb", "--secrets-encryption", "--flannel-backend=none"]
  agents:
    - {host: 10.0.0.12, password: agent-secret}
network:
  cni: cilium
  cilium: {podCIDR: 10.52.0.0/16}
`

// example is an installer for exampleConfig and a bundle with the components given as
// name=version.
func example(t *testing.T, text string, components ...string) *installer {
	t.Helper()
	c, _, err := config.Parse("install.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	in := &installer{Options: Options{Config: c}, contents: &bundle.Contents{}}
	for _, component := range components {
		name, version, _ := strings.Cut(component, "=")
		in.contents.Components = append(in.contents.Components, name)
		in.contents.Files = append(in.contents.Files, bundle.File{Component: name, Version: version, Name: "file"})
	}
	for _, h := range c.Hosts() {
		in.hosts = append(in.hosts, &host{config: h, name: hostName(h)})
	}
	return in
}

func TestConfigFiles(t *testing.T) {
	in := example(t, exampleConfig, "k3s=v1.36.4+k3s1")
	for i, name := range []string{"server.yaml", "agent.yaml"} {
		n := &k3sNode{installer: in, host: in.hosts[i], settings: in.settingsFor(in.hosts[i]), token: "the-token"}
		got, err := n.configFile()
		if err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s: %s", golden, diff)
		}
		if strings.Contains(string(got), "the-token") {
			t.Errorf("%s holds the token", golden)
		}
	}
}

func TestCheckConfig(t *testing.T) {
	named := func(k3s, cilium string) string {
		text := strings.Replace(exampleConfig, "    k3s:\n", "    k3s:\n      version: "+k3s+"\n", 1)
		return strings.Replace(text, "cilium: {", "cilium: {version: "+cilium+", ", 1)
	}
	tests := []struct {
		name       string
		config     string
		components []string
		want       []string
	}{
		{name: "no versions named", config: exampleConfig, components: []string{"k3s=v1.36.4+k3s1", "cilium=1.20.0"}},
		{name: "the same versions", config: named("v1.36.4+k3s1", "1.20.0"), components: []string{"k3s=v1.36.4+k3s1", "cilium=1.20.0"}},
		{
			name: "other versions", config: named("v1.30.6+k3s1", "1.18.6"), components: []string{"k3s=v1.36.4+k3s1", "cilium=1.20.0"},
			want: []string{"asks for k3s v1.30.6+k3s1, the bundle carries v1.36.4+k3s1", "asks for Cilium 1.18.6, the bundle carries 1.20.0"},
		},
		{name: "no k3s", config: exampleConfig, components: []string{"cilium=1.20.0"}, want: []string{`carries no component "k3s"`}},
		{
			name:       "several servers",
			config:     "cluster:\n  servers:\n" + strings.Repeat("    - {host: 10.0.0.1X, password: p}\n", 3) + "network: {cni: cilium}\n",
			components: []string{"k3s=v1.36.4+k3s1"},
			want:       []string{"lists 3 servers"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, digit := range []string{"1", "2", "3"} {
				test.config = strings.Replace(test.config, "1X", "1"+digit, 1)
			}
			err := example(t, test.config, test.components...).checkConfig()
			if (err == nil) != (test.want == nil) {
				t.Fatalf("got %v, want errors %q", err, test.want)
			}
			if err != nil && !errors.Is(err, ErrConfig) {
				t.Errorf("%v is not ErrConfig", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
		})
	}
}

func TestPlatformOf(t *testing.T) {
	for uname, want := range map[string]string{"Linux x86_64": "linux/amd64", "Linux aarch64": "linux/arm64", "Linux i686": "", "Darwin arm64": "", "": ""} {
		got, err := platformOf(uname)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", uname, got, err)
		}
	}
}

// What a host prints is shown without secrets and without anything that moves a cursor.
func TestWhatHostsPrint(t *testing.T) {
	in := example(t, exampleConfig)
	n := &k3sNode{installer: in, host: in.hosts[0], token: "the-token"}
	got := printable(n.redact("fatal: token the-token refused\x1b[2J for server-secret\r\nnext line agent-secret\u009b\xff\n"))
	want := "fatal: token [secret] refused [2J for [secret] \nnext line [secret]"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// A log may hold only the last part of the token that agents join with.
	n.token = "K10ab::server:the-password"
	if got := n.redact("K10ab::server:the-password the-password"); got != "[secret] [secret]" {
		t.Error(got)
	}
}

func TestJudge(t *testing.T) {
	good := func() *node.Facts {
		return &node.Facts{
			Systemd: node.Systemd{State: "running"},
			Mounts: []node.Mount{
				{Path: "/etc", MountPoint: "/"}, {Path: "/usr/local", MountPoint: "/"}, {Path: node.FilesDir, MountPoint: "/"},
				{Path: "/var/lib/rancher", MountPoint: "/data", Free: 1 << 40},
			},
		}
	}
	tests := []struct {
		name  string
		spoil func(*node.Facts)
		want  string
	}{
		{name: "nothing wrong", spoil: func(*node.Facts) {}},
		{name: "not root", spoil: func(f *node.Facts) { f.User = 1000 }, want: "boxlift-node runs as the user 1000; needed: root"},
		{name: "no systemd", spoil: func(f *node.Facts) { f.Systemd.State = "offline" }, want: "systemd does not run the host"},
		{name: "read-only", spoil: func(f *node.Facts) { f.Mounts[3].ReadOnly = true }, want: "/var/lib/rancher is on /data, which is mounted read-only"},
		{name: "noexec", spoil: func(f *node.Facts) { f.Mounts[1].NoExec = true }, want: "/usr/local is on /, which is mounted noexec"},
		{name: "full", spoil: func(f *node.Facts) { f.Mounts[3].Free = 3 << 20 }, want: "/var/lib/rancher has 3.0 MiB free on /data; needed: 4.0 MiB"},
		{name: "other version", spoil: func(f *node.Facts) { f.K3s.Version = "v1.35.8+k3s1" }, want: "k3s v1.35.8+k3s1 is installed; needed: k3s v1.36.4+k3s1"},
		{name: "other role", spoil: func(f *node.Facts) {
			f.Units = []node.Unit{{Name: "k3s-agent.service", LoadState: "loaded"}, {Name: "k3s.service", LoadState: "loaded"}}
		}, want: "the host runs k3s as agent already; needed: a host without k3s, or with k3s as server; remove k3s from it with k3s-agent-uninstall.sh"},
		{name: "the same role", spoil: func(f *node.Facts) {
			f.Units = []node.Unit{{Name: "k3s-agent.service", LoadState: "not-found"}, {Name: "k3s.service", LoadState: "loaded"}}
		}},
		{name: "the same version", spoil: func(f *node.Facts) { f.K3s.Version = "v1.36.4+k3s1" }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := &installer{k3s: "v1.36.4+k3s1"}
			h := &host{config: config.Host{Role: config.Server}, facts: good(), packs: []bundle.Pack{{Component: "k3s", Index: []byte("{}"), Size: 2 << 20}}}
			test.spoil(h.facts)
			err := in.judge(h)
			if (err == nil) != (test.want == "") {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			if err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// Packs that a host holds need no room again.
func TestJudgeCountsWhatIsThere(t *testing.T) {
	pack := bundle.Pack{Component: "k3s", Index: []byte("{}"), Size: 2 << 20}
	h := &host{
		facts: &node.Facts{
			Systemd: node.Systemd{State: "degraded"},
			Packs:   []node.Pack{{Name: packName(pack)}},
			Mounts:  []node.Mount{{Path: "/var/lib/rancher"}},
		},
		packs: []bundle.Pack{pack},
	}
	if err := (&installer{}).judge(h); err != nil {
		t.Error(err)
	}
}

func TestHostsErrorNamesThemAll(t *testing.T) {
	in := example(t, exampleConfig)
	in.hosts[0].fail(errors.New("it is on fire"))
	in.hosts[0].fail(errors.New("a later error adds nothing"))
	err := in.hostErrors(in.unfinished()...)
	want := "1 of 2 hosts failed\nfirst (10.0.0.11): it is on fire\nnot gone on with because of that: 10.0.0.12"
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(err, ErrHosts) {
		t.Error("it is not ErrHosts")
	}
}

// What hosts say is shown without what could steer a terminal, and not without bound.
func TestHostsErrorIsFitToBeShown(t *testing.T) {
	in := example(t, exampleConfig)
	in.hosts[0].fail(&shipError{&node.Failure{Text: "no room\x1b]0;title\a\u009b2J" + strings.Repeat("x", 4<<20)}})
	text := in.hostErrors().Error()
	if strings.ContainsAny(text, "\x1b\a\u009b") || len(text) > 2*maxHostError {
		t.Errorf("%d bytes: %.100q", len(text), text)
	}
}

// Every entry that is a host once more is named, also when another host failed.
func TestCheckUnique(t *testing.T) {
	in := &installer{hosts: []*host{
		{name: "down"},
		{name: "a", facts: &node.Facts{MachineID: "1"}},
		{name: "b", facts: &node.Facts{MachineID: "1"}},
		{name: "c", facts: &node.Facts{MachineID: "2"}},
		{name: "d", facts: &node.Facts{MachineID: "1"}},
	}}
	in.hosts[0].fail(errors.New("no route"))
	err := in.checkUnique()
	var failed []string
	for _, h := range in.hosts {
		if h.err != nil {
			failed = append(failed, h.name)
		}
	}
	if diff := cmp.Diff([]string{"down", "b", "d"}, failed); diff != "" {
		t.Error(diff)
	}
	if err == nil || !strings.Contains(err.Error(), "same /etc/machine-id as a") {
		t.Errorf("got %v", err)
	}
}
