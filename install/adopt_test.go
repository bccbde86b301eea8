package install

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/adoption"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/node/facts"
)

// Somebody else's k3s is one that has a unit of install.sh's and nothing of boxlift's.
func TestForeignK3s(t *testing.T) {
	const server, agent = unitDir + "k3s.service", unitDir + "k3s-agent.service"
	tests := []struct {
		name         string
		files        []string
		own, foreign bool
		unit         string
		differences  int
	}{
		{name: "nothing"},
		{name: "boxlift's", files: []string{k3sTokenFile, serviceFile, server}, own: true, unit: "k3s"},
		{name: "boxlift's that has lost its token", files: []string{serviceFile, agent}, own: true, unit: "k3s-agent"},
		{name: "boxlift's that was broken off", files: []string{serviceFile}, own: true},
		{name: "somebody's server", files: []string{server}, foreign: true, unit: "k3s"},
		{name: "somebody's agent with a config of several files", files: []string{agent, k3sConfigDropIns + "/a.yaml"}, foreign: true, unit: "k3s-agent"},
		{name: "boxlift's with such a config", files: []string{k3sTokenFile, server, k3sConfigDropIns + "/a.yaml"}, own: true, unit: "k3s", differences: 1},
	}
	for _, test := range tests {
		dir := t.TempDir()
		args := []string{"-c", lookScript, "sh"}
		for _, name := range lookedFor {
			args = append(args, dir+name)
		}
		for _, name := range test.files {
			if err := os.MkdirAll(filepath.Dir(dir+name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dir+name, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out, err := exec.CommandContext(t.Context(), "/bin/sh", args...).Output()
		if err != nil {
			t.Fatal(err)
		}
		var h host
		_ = takeSeen(&h, string(out)) // of commands, the machine of a test may lack some
		if h.own != test.own || h.foreign != test.foreign || h.foreignUnit != test.unit || len(h.differences) != test.differences {
			t.Errorf("%s: own %t, foreign %t, unit %q, differences %q", test.name, h.own, h.foreign, h.foreignUnit, h.differences)
		}
	}
}

// What k3s runs with is read from systemd and from all files that k3s goes by.
func TestReadK3sScript(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"bin/systemctl": `#!/bin/sh
case "$*" in
"show -p ExecStart --value k3s.service") echo "{ path=/usr/local/bin/k3s ; argv[]=/usr/local/bin/k3s server --flannel-backend=none ; ignore_errors=no ; pid=7 }" ;;
"show -p Environment --value k3s.service") echo "K3S_NODE_NAME=first OTHER=x" ;;
*) exit 1 ;;
esac
`,
		"k3s.service.env": "K3S_TOKEN=the-token", "config.yaml": "disable: [traefik]\n",
		"config.yaml.d/b.yaml": "selinux: false", "config.yaml.d/a.yaml": "selinux: true\ncluster-dns: 10.43.0.9\n", "config.yaml.d/c.txt": "- no YAML",
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	run := func(config string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), "/bin/sh", "-c", readK3sScript, "sh", "k3s", dir+"/k3s.service.env", config, config+".d")
		c.Env = []string{"PATH=" + dir + "/bin:" + os.Getenv("PATH")}
		out, err := c.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for _, test := range []struct {
		config string
		more   map[string][]string
	}{
		{dir + "/config.yaml", map[string][]string{"disable": {"traefik"}, "selinux": {"false"}, "cluster-dns": {"10.43.0.9"}}},
		{dir + "/none", nil},
	} {
		want := &adoption.Found{Role: config.Server, Program: k3sBinary, Settings: map[string][]string{
			"flannel-backend": {"none"}, "node-name": {"first"}, "token": {"the-token"},
		}}
		for key, values := range test.more {
			want.Settings[key] = values
		}
		got, err := parseK3s(run(test.config))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", test.config, err, diff)
		}
	}
	for _, text := range []string{"", "x", strings.Repeat("x", maxK3sFiles) + "\x00"} {
		if found, err := parseK3s(text); err == nil {
			t.Errorf("%.10q: %+v", text, found)
		}
	}
}

// adoptedExample is a cluster of three servers and an agent, all of them adopted.
func adoptedExample(t *testing.T, text string) *installation {
	t.Helper()
	in := example(t, text, "k3s=v1.36.4+k3s1", "cilium=1.20.0")
	in.site.k3s = "v1.36.4+k3s1"
	for _, h := range in.site.hosts {
		h.platform, h.foreign = "linux/amd64", true
		settings := map[string][]string{"server": {"https://10.0.0.11:6443"}, "kubelet-arg": {"max-pods=200"}}
		if h.config.Role == config.Server {
			settings = map[string][]string{
				"flannel-backend": {"none"}, "disable-network-policy": {"true"}, "disable-kube-proxy": {"true"}, "disable": {"traefik"}, "secrets-encryption": {"true"},
			}
		}
		h.adopted = &adoption.Found{Role: h.config.Role, Program: k3sBinary, Settings: settings}
	}
	for _, name := range []string{k3sProgram, installScript} {
		in.site.contents.Files = append(in.site.contents.Files, bundle.File{Component: k3sComponent, Name: name, Platform: "linux/amd64", Digest: digest.FromString(name)})
	}
	return in
}

// Install.yaml is compared with what a k3s was set up with: what every boxlift cluster has is no difference.
func TestCompareAdopted(t *testing.T) {
	const noDefault = "disable-default-registry-endpoint is not set"
	const apiEndpoint = "  apiEndpoint: k3s.lan:6443\n  serverConfig:"
	tests := []struct {
		name, from, to string
		set            func(*installation)
		refused        string
		different      map[int]string // by host
	}{
		{name: "all is as it is to be"},
		{name: "another role", set: func(in *installation) { in.site.hosts[3].adopted.Role = config.Server }, refused: "it runs k3s server"},
		{name: "flannel", set: func(in *installation) { delete(in.site.hosts[1].adopted.Settings, "flannel-backend") }, refused: "flannel-backend is vxlan"},
		{name: "another datastore", set: func(in *installation) {
			in.site.hosts[0].adopted.Settings["datastore-endpoint"] = []string{"mysql://u:p@x"}
		}, refused: "datastore-endpoint is set"},
		{name: "another folder", set: func(in *installation) { in.site.hosts[3].adopted.Settings["data-dir"] = []string{"/srv"} }, refused: "data-dir is /srv"},
		{name: "a registry of boxlift's", from: "network:", to: "seeding: {mode: registry}\nnetwork:", refused: "write seeding.mode: images", different: map[int]string{
			0: noDefault, 1: noDefault, 2: noDefault, 3: noDefault,
		}},
		{
			name: "names of the API", from: "  serverConfig:", to: apiEndpoint,
			different: map[int]string{
				0: "tls-san is not set, and install.yaml makes it k3s.lan", 1: "makes it k3s.example.internal,k3s.lan", 2: "makes it k3s.lan",
			},
			set: func(in *installation) { in.site.hosts[0].config.NodeIP = in.site.hosts[1].config.NodeIP },
		},
		{
			name: "names of the API that it has", from: "  serverConfig:", to: apiEndpoint,
			set: func(in *installation) {
				for _, h := range in.site.hosts[:3] {
					h.adopted.Settings["tls-san"] = []string{"other,k3s.lan", "k3s.example.internal"}
				}
				in.site.hosts[0].config.NodeIP = in.site.hosts[1].config.NodeIP
			},
		},
		{
			name: "kubelets", set: func(in *installation) { in.site.hosts[3].adopted.Settings["kubelet-arg"] = []string{"max-pods=50"} },
			different: map[int]string{3: "kubelet-arg is max-pods=50, and install.yaml makes it max-pods=200: k3s was adopted and keeps what it has"},
		},
		{
			name: "no nameserver",
			set: func(in *installation) {
				for _, h := range in.site.hosts[2:] {
					h.resolverless, h.ip = true, mustAddr(t, "10.0.0.13")
				}
				in.site.hosts[3].adopted.Settings["resolv-conf"] = []string{"/etc/ours"}
			},
			different: map[int]string{2: "resolv-conf is not set"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			text := strings.Replace(threeServers, ", nodeIP: 192.168.0.11", "", 1)
			text = strings.Replace(text, ", k3s: {config: {tls-san: [k3s.example.internal]}}", "", 1)
			if test.from == "  serverConfig:" {
				text = strings.Replace(threeServers, ", nodeIP: 192.168.0.11", "", 1)
			}
			in := adoptedExample(t, strings.Replace(text, test.from, test.to, 1))
			if test.set != nil {
				test.set(in)
			}
			refusals := 0
			for i, h := range in.site.hosts {
				refused, err := in.cluster.compareAdopted(t.Context(), h)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range refused {
					refusals++
					if test.refused == "" || !strings.Contains(r.Reason+"; "+r.Way, test.refused) {
						t.Errorf("host %d: %+v", i, r)
					}
				}
				if want, got := test.different[i], strings.Join(h.differences, "|"); (want == "") != (got == "") || !strings.Contains(got, want) {
					t.Errorf("host %d: got %q, want %q", i, got, want)
				}
			}
			if (refusals > 0) != (test.refused != "") {
				t.Errorf("%d refusals, want %q", refusals, test.refused)
			}
		})
	}
}

func TestUnkeptError(t *testing.T) {
	err := error(&unkeptError{[]adoption.Refusal{{Reason: "a is b", Way: "make it c"}, {Reason: "d", Way: "e"}}})
	if want := "its k3s was adopted, and boxlift cannot keep it as it is: a is b; make it c\n  d; e"; err.Error() != want || !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}

// Of a k3s that was adopted, boxlift replaces the program and nothing else.
func TestAdoptedSteps(t *testing.T) {
	in := adoptedExample(t, threeServers)
	for _, h := range in.site.hosts {
		steps, err := in.cluster.nodeWith(h, in.site.seedServer(), "the-token").steps()
		if err != nil {
			t.Fatal(err)
		}
		var titles []string
		for _, s := range steps {
			if titles = append(titles, s.title); !s.starts {
				t.Errorf("%s: %q does not start k3s", h.name, s.title)
			}
		}
		if diff := cmp.Diff([]string{"place k3s v1.36.4+k3s1", "start " + unit(h.config.Role)}, titles); diff != "" {
			t.Errorf("%s: %s", h.name, diff)
		}
	}
}

// A program of the bundle's version stays, whatever build it is.
func TestAdoptedProgram(t *testing.T) {
	const wanted = "v1.36.4+k3s1"
	for _, test := range []struct{ differs, version, want string }{
		{"", wanted, ""},
		{k3sBinary + " differs", wanted, ""},
		{k3sBinary + " differs", "v1.35.1+k3s1", "it is v1.35.1+k3s1"},
		{k3sBinary + " is missing", "", k3sBinary + " is missing"},
	} {
		if got := programReason(test.differs, test.version, wanted); got != test.want {
			t.Errorf("%+v: %q", test, got)
		}
	}
}

// A host that was adopted is in its cluster: nobody takes it for one that is about to join, and preflight judges it as
// boxlift's own.
func TestAdoptedIsOwn(t *testing.T) {
	in := adoptedExample(t, threeServers)
	for _, h := range in.site.hosts {
		h.facts = &facts.Facts{Units: []facts.Unit{{Name: unit(h.config.Role) + ".service", LoadState: "loaded", ActiveState: "active"}}}
		h.facts.K3s = facts.K3s{Path: k3sBinary, Version: in.site.k3s}
		if isNew(h) {
			t.Errorf("%s is new", h.name)
		}
	}
	judged := func() []string {
		var texts []string
		for _, f := range preflight.Judge(in.surveyor.needs(), in.surveyor.subjects()) {
			if f.Check == "k3s" {
				texts = append(texts, f.Host+": "+f.Found+"; "+f.Hint)
			}
		}
		return texts
	}
	if got := judged(); got != nil {
		t.Errorf("%q", got)
	}
	if in.site.hosts[0].facts.K3s.Managed {
		t.Error("what a host has said was changed")
	}
	in.site.hosts[0].adopted = nil
	if got := judged(); len(got) != 1 || !strings.Contains(got[0], "and not by boxlift; if it is a node of the cluster of install.yaml, boxlift adopt") {
		t.Errorf("%q", got)
	}
	in.site.hosts[0].facts.K3s.Version = "v1.35.0+k3s1"
	if got := judged(); len(got) != 2 {
		t.Errorf("another version: %q", got)
	}
}

// The record tells nothing while nobody has asked for it: without somebody else's k3s no server is asked.
func TestFindAdoptedAsksNobody(t *testing.T) {
	in := example(t, threeServers)
	if err := in.cluster.findAdopted(t.Context()); err != nil {
		t.Error(err)
	}
	in.site.hosts[0].foreign, in.engine.restores = true, true
	if err := in.cluster.findAdopted(t.Context()); err != nil || in.site.hosts[0].adopted != nil {
		t.Errorf("a restore keeps k3s: %v", err)
	}
	// Nor is one taken for adopted that no record knows.
	in.engine.restores, in.site.StatePath = false, filepath.Join(t.TempDir(), "state.json")
	in.cluster.splitsToken = true
	if err := in.cluster.findAdopted(t.Context()); err != nil || in.site.hosts[0].adopted != nil || !in.cluster.splitsToken || in.cluster.keepsTokens() {
		t.Errorf("%v, %+v", err, in.site.hosts[0].adopted)
	}
	if len(in.site.hosts[0].differences) != 1 || !strings.Contains(in.site.hosts[0].differences[0], "boxlift adopt finds out") || in.site.hosts[1].differences != nil {
		t.Errorf("%q, %q", in.site.hosts[0].differences, in.site.hosts[1].differences)
	}
	in.site.hosts[0].differences, in.site.hosts[0].facts = nil, &facts.Facts{}
	if err := in.cluster.findAdopted(t.Context()); err != nil || in.site.hosts[0].differences != nil {
		t.Errorf("preflight judges it: %q, %v", in.site.hosts[0].differences, err)
	}
	in.engine.mode = inspect
	if err := in.cluster.findAdopted(t.Context()); err != nil || len(in.site.hosts[0].differences) != 1 {
		t.Errorf("status: %q, %v", in.site.hosts[0].differences, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := in.cluster.findAdopted(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A node is called what its k3s says, or else as its host.
func TestRunsAs(t *testing.T) {
	h := &host{identity: identity{hostname: "Server-1"}}
	found := &adoption.Found{Settings: map[string][]string{}}
	if got := runsAs(h, found); got != "server-1" {
		t.Error(got)
	}
	found.Settings["node-name"] = []string{"one", "two"}
	if got := runsAs(h, found); got != "two" {
		t.Error(got)
	}
}

// Nobody gets another token while a host keeps the one that it was set up with.
func TestAdoptedKeepTheirTokens(t *testing.T) {
	in := adoptedExample(t, threeServers)
	for i := range in.site.hosts {
		for _, h := range in.site.hosts {
			h.adopted = nil
		}
		if in.cluster.keepsTokens() {
			t.Error("no host was adopted")
		}
		in.site.hosts[i].adopted = &adoption.Found{}
		if !in.cluster.keepsTokens() {
			t.Errorf("%s was adopted", in.site.hosts[i].name)
		}
	}
	// It has no connection to ask for what was begun.
	if err := in.cluster.rotateExposed(t.Context()); err != nil {
		t.Error(err)
	}
}

func mustAddr(t *testing.T, s string) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
