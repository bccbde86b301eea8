package k3s

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

	"github.com/liteboxd/boxlift/install/adoption"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// Somebody else's k3s is one that has a unit of install.sh's and nothing of boxlift's.
func TestForeignK3s(t *testing.T) {
	const server, agent = site.UnitDir + "k3s.service", site.UnitDir + "k3s-agent.service"
	tests := []struct {
		name         string
		files        []string
		own, foreign bool
		unit         string
		differences  int
	}{
		{name: "nothing"},
		{name: "boxlift's", files: []string{site.K3sTokenFile, site.ServiceFile, server}, own: true, unit: "k3s"},
		{name: "boxlift's that has lost its token", files: []string{site.ServiceFile, agent}, own: true, unit: "k3s-agent"},
		{name: "boxlift's that was broken off", files: []string{site.ServiceFile}, own: true},
		{name: "somebody's server", files: []string{server}, foreign: true, unit: "k3s"},
		{name: "somebody's agent with a config of several files", files: []string{agent, site.K3sConfigDropIns + "/a.yaml"}, foreign: true, unit: "k3s-agent"},
		{name: "boxlift's with such a config", files: []string{site.K3sTokenFile, server, site.K3sConfigDropIns + "/a.yaml"}, own: true, unit: "k3s", differences: 1},
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
		var h site.Host
		_ = takeSeen(&h, string(out)) // of commands, the machine of a test may lack some
		if h.Own != test.own || h.Foreign != test.foreign || h.ForeignUnit != test.unit || len(h.Differences) != test.differences {
			t.Errorf("%s: own %t, foreign %t, unit %q, differences %q", test.name, h.Own, h.Foreign, h.ForeignUnit,
				h.Differences)
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
		c := exec.CommandContext(t.Context(), "/bin/sh", "-c", readK3sScript, "sh", "k3s", dir+"/k3s.service.env",
			config, config+".d")
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
		want := &adoption.Found{Role: config.Server, Program: site.K3sBinary, Settings: map[string][]string{
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
	for _, text := range []string{"", "x", strings.Repeat("x", 1<<20)} {
		if found, err := parseK3s(text); err == nil {
			t.Errorf("%.10q: %+v", text, found)
		}
	}
}

// A k3s is not judged by the end of what it runs with: settings of its first files would be missing.
func TestReadK3sWhole(t *testing.T) {
	const unit = "argv[]=/usr/local/bin/k3s server ; ignore_errors=no\n\x00\n\x00disable: [traefik]\n"
	for printed, want := range map[string]string{
		unit: "",
		"argv[]=/usr/local/bin/k3s server --token the-secret ; ignore_errors=no\n\x00\n" +
			strings.Repeat("#", 1<<20) + unit: "it is more than 1048576 bytes",
		"the-secret": "the host printed 10 bytes, and not what it was to",
	} {
		found, err := ReadK3s(t.Context(), &site.Host{Conn: hosttest.Liar{Output: []byte(printed)}})
		if want == "" && (err != nil || found.Role != config.Server) ||
			want != "" && (err == nil || err.Error() != "read what k3s runs with: "+want) {
			t.Errorf("%d bytes: got %+v, %v, want %q", len(printed), found, err, want)
		}
	}
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
		{name: "another role", set: func(in *installation) { in.site.Hosts[3].Adopted.Role = config.Server }, refused: "it runs k3s server"},
		{name: "flannel", set: func(in *installation) { delete(in.site.Hosts[1].Adopted.Settings, "flannel-backend") }, refused: "flannel-backend is vxlan"},
		{name: "another datastore", set: func(in *installation) {
			in.site.Hosts[0].Adopted.Settings["datastore-endpoint"] = []string{"mysql://u:p@x"}
		}, refused: "datastore-endpoint is set"},
		{name: "another folder", set: func(in *installation) { in.site.Hosts[3].Adopted.Settings["data-dir"] = []string{"/srv"} }, refused: "data-dir is /srv"},
		{name: "a registry of boxlift's", from: "network:", to: "seeding: {mode: registry}\nnetwork:", refused: "write seeding.mode: images", different: map[int]string{
			0: noDefault, 1: noDefault, 2: noDefault, 3: noDefault,
		}},
		{
			name: "names of the API", from: "  serverConfig:", to: apiEndpoint,
			different: map[int]string{
				0: "tls-san is not set, and install.yaml makes it k3s.lan", 1: "makes it k3s.example.internal,k3s.lan", 2: "makes it k3s.lan",
			},
			set: func(in *installation) { in.site.Hosts[0].Config.NodeIP = in.site.Hosts[1].Config.NodeIP },
		},
		{
			name: "names of the API that it has", from: "  serverConfig:", to: apiEndpoint,
			set: func(in *installation) {
				for _, h := range in.site.Hosts[:3] {
					h.Adopted.Settings["tls-san"] = []string{"other,k3s.lan", "k3s.example.internal"}
				}
				in.site.Hosts[0].Config.NodeIP = in.site.Hosts[1].Config.NodeIP
			},
		},
		{
			name: "kubelets", set: func(in *installation) { in.site.Hosts[3].Adopted.Settings["kubelet-arg"] = []string{"max-pods=50"} },
			different: map[int]string{3: "kubelet-arg is max-pods=50, and install.yaml makes it max-pods=200: k3s was adopted and keeps what it has"},
		},
		{
			name: "no nameserver",
			set: func(in *installation) {
				for _, h := range in.site.Hosts[2:] {
					h.Resolverless, h.IP = true, mustAddr(t, "10.0.0.13")
				}
				in.site.Hosts[3].Adopted.Settings["resolv-conf"] = []string{"/etc/ours"}
			},
			different: map[int]string{2: "resolv-conf is not set"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			text := strings.Replace(sitetest.ThreeServers, ", nodeIP: 192.168.0.11", "", 1)
			text = strings.Replace(text, ", k3s: {config: {tls-san: [k3s.example.internal]}}", "", 1)
			if test.from == "  serverConfig:" {
				text = strings.Replace(sitetest.ThreeServers, ", nodeIP: 192.168.0.11", "", 1)
			}
			in := adoptedExample(t, strings.Replace(text, test.from, test.to, 1))
			if test.set != nil {
				test.set(in)
			}
			refusals := 0
			for i, h := range in.site.Hosts {
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
				if want, got := test.different[i], strings.Join(h.Differences, "|"); (want == "") != (got == "") || !strings.Contains(got, want) {
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
	if want := "its k3s was adopted, and boxlift cannot keep it as it is: a is b; make it c\n  d; e"; err.Error() != want || !errors.Is(err, site.ErrRefused) {
		t.Error(err)
	}
}

// Of a k3s that was adopted, boxlift replaces the program and nothing else.
func TestAdoptedSteps(t *testing.T) {
	in := adoptedExample(t, sitetest.ThreeServers)
	for _, h := range in.site.Hosts {
		steps, err := in.cluster.NodeWith(h, in.site.SeedServer(), "the-token").steps()
		if err != nil {
			t.Fatal(err)
		}
		var titles []string
		for _, s := range steps {
			if titles = append(titles, s.Title); !s.Starts {
				t.Errorf("%s: %q does not start k3s", h.Name, s.Title)
			}
		}
		if diff := cmp.Diff([]string{"place k3s v1.36.4+k3s1", "start " + site.Unit(h.Config.Role)}, titles); diff != "" {
			t.Errorf("%s: %s", h.Name, diff)
		}
	}
}

// A program of the bundle's version stays, whatever build it is.
func TestAdoptedProgram(t *testing.T) {
	const wanted = "v1.36.4+k3s1"
	for _, test := range []struct{ differs, version, want string }{
		{"", wanted, ""},
		{site.K3sBinary + " differs", wanted, ""},
		{site.K3sBinary + " differs", "v1.35.1+k3s1", "it is v1.35.1+k3s1"},
		{site.K3sBinary + " is missing", "", site.K3sBinary + " is missing"},
	} {
		if got := programReason(test.differs, test.version, wanted); got != test.want {
			t.Errorf("%+v: %q", test, got)
		}
	}
}

// The record tells nothing while nobody has asked for it: without somebody else's k3s no server is asked.
func TestFindAdoptedAsksNobody(t *testing.T) {
	in := example(t, sitetest.ThreeServers)
	if err := in.cluster.FindAdopted(t.Context()); err != nil {
		t.Error(err)
	}
	in.site.Hosts[0].Foreign, in.engine.Restores = true, true
	if err := in.cluster.FindAdopted(t.Context()); err != nil || in.site.Hosts[0].Adopted != nil {
		t.Errorf("a restore keeps k3s: %v", err)
	}
	// Nor is one taken for adopted that no record knows.
	in.engine.Restores, in.site.StatePath = false, filepath.Join(t.TempDir(), "state.json")
	in.cluster.SplitsToken = true
	if err := in.cluster.FindAdopted(t.Context()); err != nil || in.site.Hosts[0].Adopted != nil || !in.cluster.SplitsToken || in.cluster.keepsTokens() {
		t.Errorf("%v, %+v", err, in.site.Hosts[0].Adopted)
	}
	if len(in.site.Hosts[0].Differences) != 1 || !strings.Contains(in.site.Hosts[0].Differences[0], "boxlift adopt finds out") || in.site.Hosts[1].Differences != nil {
		t.Errorf("%q, %q", in.site.Hosts[0].Differences, in.site.Hosts[1].Differences)
	}
	in.site.Hosts[0].Differences, in.site.Hosts[0].Facts = nil, &facts.Facts{}
	if err := in.cluster.FindAdopted(t.Context()); err != nil || in.site.Hosts[0].Differences != nil {
		t.Errorf("preflight judges it: %q, %v", in.site.Hosts[0].Differences, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := in.cluster.FindAdopted(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A node is called what its k3s says, or else as its host.
func TestRunsAs(t *testing.T) {
	h := &site.Host{Identity: site.Identity{Hostname: "Server-1"}}
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
	in := adoptedExample(t, sitetest.ThreeServers)
	for i := range in.site.Hosts {
		for _, h := range in.site.Hosts {
			h.Adopted = nil
		}
		if in.cluster.keepsTokens() {
			t.Error("no host was adopted")
		}
		in.site.Hosts[i].Adopted = &adoption.Found{}
		if !in.cluster.keepsTokens() {
			t.Errorf("%s was adopted", in.site.Hosts[i].Name)
		}
	}
	// It has no connection to ask for what was begun.
	if err := in.cluster.RotateExposed(t.Context()); err != nil {
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
