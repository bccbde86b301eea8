package front

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// updates reports whether golden files are to be written: a library of tests that is linked in has the flag already.
func updates() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

const text = `cluster:
  servers:
    - {host: 10.0.0.11, agent: true, name: first}
    - {host: 10.0.0.12, agent: true}
    - {host: second.lan, agent: true, nodeIP: 10.0.0.13}
  agents: [{host: 10.0.0.21, agent: true}]
  front: {vip: 10.0.0.10}
`

// canary is a secret that boxlift may have made.
const canary = "canary22"

// keeper keeps the front of three servers, of which the first is a host of a test's.
func keeper(t *testing.T, text string) (*Keeper, *hosttest.Fake) {
	t.Helper()
	f := hosttest.New(t, "first")
	f.WriteFile(t, "/var/lib/boxlift/x", "", 0o600)
	f.WriteFile(t, site.HelperPath, "helper", 0o755)
	f.WriteFile(t, "/usr/sbin/keepalived", "", 0o755)
	f.Program("keepalived", func(_ context.Context, c *hosttest.Call) int { // the test of a config
		name := strings.TrimPrefix(c.Args[len(c.Args)-1], "--use-file=")
		content, err := os.ReadFile(c.Host.Path(name))
		if err != nil || !strings.Contains(string(content), "vrrp_instance front") || strings.Contains(string(content), "nonsense") {
			_, _ = fmt.Fprintf(c.Stderr, "Unknown keyword %q\n", content)
			return 5
		}
		return 0
	})
	s := sitetest.Example(t, text)
	for i, h := range s.Hosts {
		h.Platform = "linux/amd64"
		h.Facts = &facts.Facts{Network: facts.Network{Interfaces: []facts.Interface{{Name: "lo", Addresses: []string{"127.0.0.1/8"}},
			{Name: "eth1", Addresses: []string{"fe80::1/64", fmt.Sprintf("10.0.0.%d/24", 11+i), "10.0.0.10/32"}}}}}
	}
	s.Hosts[0].Conn = f
	const digest = "sha256:1a7ca3eb6ab8ca9adc0ef7b6d8ef1a85b4c2d5d1c8d6be3f2b1ad2f3c7b1a0c1"
	s.Contents.Files = append(s.Contents.Files, bundle.File{Component: bundle.ProgramsComponent, Name: bundle.NodeProgram,
		Platform: "linux/amd64", Digest: digest})
	return &Keeper{Site: s, Engine: &run.Engine{Site: s, Holds: run.NewHolds()}, secret: canary}, f
}

// What keepalived and systemd read.
func TestRendered(t *testing.T) {
	k, _ := keeper(t, text)
	for i, h := range k.Hosts() {
		content, err := k.content(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		unit, err := k.unit(h)
		if err != nil {
			t.Fatal(err)
		}
		for name, got := range map[string]string{"keepalived.conf": string(content), "service": string(unit)} {
			if strings.Contains(got, "@") {
				t.Errorf("something was not filled in:\n%s", got)
			}
			file := filepath.Join("testdata", fmt.Sprintf("%d.%s", i+1, name))
			if updates() {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s: %s", file, diff)
			}
		}
	}
}

// Priorities go down in the order of install.yaml, and the last without an API comes after the last with one.
func TestPriority(t *testing.T) {
	k, _ := keeper(t, text)
	of := k.Site.Config.Cluster.Front.On
	for len(of) < 40 {
		of = append(of, fmt.Sprint(len(of)))
	}
	lost := 100 // of keepalived.conf
	if !strings.Contains(configTemplate, fmt.Sprintf("weight -%d\n", lost)) {
		t.Fatal("the config has another weight")
	}
	last := 255
	for _, path := range of {
		p := priority(of, path)
		if p > last || p < 1+lost || p <= 250-lost {
			t.Errorf("%s has the priority %d after %d", path, p, last)
		}
		last = p
	}
}

// What a host cannot be told is an error with the host, and why.
func TestSettingsFail(t *testing.T) {
	for name, test := range map[string]struct {
		set  func(*Keeper)
		want string
	}{
		"no facts":            {func(k *Keeper) { k.Site.Hosts[0].Facts = nil }, "has not told which networks it is in"},
		"another network":     {func(k *Keeper) { k.Site.Config.Cluster.Front.VIP = netip.MustParseAddr("10.9.0.10") }, "eth1 has 10.0.0.11/24, and 10.9.0.10 is not in that network"},
		"not its own address": {func(k *Keeper) { k.Site.Hosts[0].Config.NodeIP = netip.MustParseAddr("10.0.0.99") }, "no interface has the host's own address 10.0.0.99"},
		"no address": {func(k *Keeper) {
			k.Site.Hosts[2].Config.NodeIP = netip.Addr{} // it is called by a name, and was not reached
		}, "the host's address is not known"},
	} {
		k, _ := keeper(t, text)
		test.set(k)
		if _, err := k.unit(k.Site.Hosts[0]); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each step is needed where it has to be, and comes to the same end after it was broken off.
func TestSteps(t *testing.T) {
	whole := func(t *testing.T, k *Keeper, f *hosttest.Fake) {
		t.Helper()
		for _, step := range k.steps(k.Site.Hosts[0])[1:] {
			if err := step.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		f.WriteFile(t, Program, "helper", 0o755)
	}
	for _, test := range []struct {
		name string
		step int
		set  func(*testing.T, *Keeper, *hosttest.Fake)
		why  string
	}{
		{"no config", 1, func(*testing.T, *Keeper, *hosttest.Fake) {}, ConfigFile + " is missing"},
		{"another config", 1, func(t *testing.T, k *Keeper, f *hosttest.Fake) {
			whole(t, k, f)
			f.WriteFile(t, ConfigFile, "x", 0o600)
		}, ConfigFile + " differs"},
		{"a config for everybody", 1, func(t *testing.T, k *Keeper, f *hosttest.Fake) {
			whole(t, k, f)
			if err := os.Chmod(f.Path(ConfigFile), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "another mode or owner"},
		{"the config", 1, whole, ""},
		{"no unit", 2, func(*testing.T, *Keeper, *hosttest.Fake) {}, UnitFile + " is missing"},
		{"another unit", 2, func(t *testing.T, _ *Keeper, f *hosttest.Fake) { f.WriteFile(t, UnitFile, "x", 0o644) }, UnitFile + " differs"},
		{"the unit", 2, whole, ""},
		{"not started", 3, func(t *testing.T, k *Keeper, f *hosttest.Fake) {
			for _, step := range k.steps(k.Site.Hosts[0])[1:3] {
				if err := step.Run(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			f.Unit(Service) // systemd has read its file
		}, "the service is inactive"},
		{"started with another unit", 3, func(t *testing.T, k *Keeper, f *hosttest.Fake) {
			whole(t, k, f)
			f.WriteFile(t, startedFile, "x", 0o600)
		}, "changed since it was started"},
		{"it has read another config", 3, func(t *testing.T, k *Keeper, f *hosttest.Fake) {
			whole(t, k, f)
			f.WriteFile(t, loadedFile, "x", 0o600)
		}, "its config changed since it was read"},
		{"started", 3, whole, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				k, f := keeper(t, text)
				f.Systemd(hosttest.Services{})
				test.set(t, k, f)
				return f, k.steps(k.Site.Hosts[0])[test.step]
			}})
		})
	}
	// Only what is started with makes keepalived start again: another config it reads.
	k, f := keeper(t, text)
	f.Systemd(hosttest.Services{})
	whole(t, k, f)
	f.WriteFile(t, loadedFile, "x", 0o600)
	if err := k.startStep(k.Site.Hosts[0]).Run(t.Context()); err != nil || f.Unit(Service).Starts() != 1 {
		t.Errorf("it was started %d times, %v", f.Unit(Service).Starts(), err)
	}
}

// The program comes from boxlift-node, where it is not the bundle's.
func TestProgramStep(t *testing.T) {
	k, f := keeper(t, text)
	step := k.steps(k.Site.Hosts[0])[0]
	if reason, err := step.Needed(t.Context()); reason != Program+" is missing" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
	if err := step.Run(t.Context()); err != nil || f.ReadFile(t, Program) != "helper" {
		t.Errorf("%q, %v", f.ReadFile(t, Program), err)
	}
	k.Site.Contents.Files = nil
	if _, err := step.Needed(t.Context()); err == nil || !strings.Contains(err.Error(), "carries no boxlift-node for linux/amd64") {
		t.Error(err)
	}
}

// A config that keepalived does not take leaves the one that is there, no draft, and nothing of the secret in the error.
func TestRefusedConfig(t *testing.T) {
	k, f := keeper(t, text)
	f.WriteFile(t, ConfigFile, "before", 0o600)
	before := f.Snapshot(t)
	err := k.writeConfig(t.Context(), k.Site.Hosts[0], []byte("nonsense "+canary))
	if err == nil || strings.Contains(err.Error(), canary) || !strings.Contains(err.Error(), "nonsense [secret]") {
		t.Error(err)
	}
	if diff := cmp.Diff(before, f.Snapshot(t)); diff != "" {
		t.Error(diff)
	}
}

// What a host says to anything is bounded and fit to be shown.
func TestHostile(t *testing.T) {
	for i := range 4 {
		steptest.Hostile(t, func(t *testing.T, h host.Host) run.Step {
			k, _ := keeper(t, text)
			k.Site.Hosts[0].Conn = h
			return k.steps(k.Site.Hosts[0])[i]
		})
	}
	steptest.Hostile(t, func(_ *testing.T, h host.Host) run.Step { return removeStep(h, "") })
	steptest.Hostile(t, func(t *testing.T, h host.Host) run.Step {
		k, _ := keeper(t, text)
		k.Site.Hosts[0].Conn = h
		return k.heldStep()
	})
}

// All of the front goes from a host that leaves, or that the front does not have any more, also after half of it went.
func TestRemove(t *testing.T) {
	const of = " is there, of the address that servers have in turn"
	for name, test := range map[string]struct {
		files []string
		why   string
	}{
		"all of it":        {[]string{UnitFile, ConfigFile, Program, startedFile, loadedFile}, UnitFile + of},
		"the folder alone": {[]string{ConfigFile}, Dir + of},
		"a mark alone":     {[]string{loadedFile}, loadedFile + of},
		"nothing":          {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var last *hosttest.Fake
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				k, f := keeper(t, text)
				f.Systemd(hosttest.Services{})
				for _, file := range test.files {
					f.WriteFile(t, file, "x", 0o600)
				}
				last = f
				return f, k.TakeAway(f)
			}})
			for _, file := range test.files {
				if _, err := os.Stat(last.Path(file)); err == nil {
					t.Errorf("%s is still there", file)
				}
			}
		})
	}
	// A service that cannot be stopped may have the address: it is not forgotten.
	k, f := keeper(t, text)
	f.WriteFile(t, UnitFile, "x", 0o644)
	f.Program("systemctl", hosttest.Fails(1, "Failed to stop"))
	if err := k.TakeAway(f).Run(t.Context()); err == nil || f.ReadFile(t, UnitFile) != "x" {
		t.Error(err)
	}
}

// The front is retired where install.yaml has it not, and nowhere else; not when others are not worked on.
func TestRetire(t *testing.T) {
	without := strings.Replace(text, "  front: {vip: 10.0.0.10}\n", "", 1)
	onTwo := strings.Replace(text, "vip: 10.0.0.10", "vip: 10.0.0.10, on: [second.lan, 10.0.0.12]", 1)
	for _, test := range []struct {
		name, text string
		only       []string
		want       []string
	}{
		{"there is a front", text, nil, nil},
		{"there is none", without, nil, []string{"remove-front"}},
		{"the host is not in it", onTwo, nil, []string{"remove-front"}},
		{"others are not worked on", without, []string{"10.0.0.21"}, nil},
	} {
		k, f := keeper(t, test.text)
		k.Engine.Only = test.only
		f.WriteFile(t, ConfigFile, "x", 0o600)
		for _, h := range k.Site.Hosts[1:] {
			h.Fail(sitetest.ErrNoRoute)
		}
		_ = k.Engine.Look(t.Context(), []run.Phase{{Name: "retire", Look: k.Retire}}) // of hosts that failed
		var ids []string
		for _, c := range k.Site.Hosts[0].Changes {
			ids = append(ids, c.ID)
		}
		if !slices.Equal(ids, test.want) {
			t.Errorf("%s: %q", test.name, ids)
		}
	}
}

// One host has the address: none or two is a difference, which who acts waits to end.
func TestHeldStep(t *testing.T) {
	for _, test := range []struct {
		name  string
		holds []bool
		want  string
	}{
		{"one", []bool{false, true}, ""},
		{"none", []bool{false, false}, "no server has 10.0.0.10"},
		{"two", []bool{true, true}, "first (10.0.0.11) and 10.0.0.12 have 10.0.0.10 at the same time"},
	} {
		k, _ := keeper(t, text)
		for i, holds := range test.holds {
			f := hosttest.New(t, "a")
			f.Program("ip", func(ctx context.Context, c *hosttest.Call) int {
				if want := []string{"-o", "address", "show", "to", "10.0.0.10"}; !slices.Equal(c.Args, want) {
					t.Errorf("ip %q", c.Args)
				}
				if holds {
					return hosttest.Prints("2: eth1    inet 10.0.0.10/32 scope global eth1\n")(ctx, c)
				}
				return 0
			})
			k.Site.Hosts[i].Conn = f
		}
		got, err := k.heldStep().Needed(t.Context())
		if got != test.want || err != nil {
			t.Errorf("%s: %q, %v", test.name, got, err)
		}
		if test.want == "" {
			if err := k.heldStep().Run(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

// Who has answered at an address, the kernel's table says.
func TestNeighbour(t *testing.T) {
	const table = `IP address       HW type     Flags       HW address            Mask     Device
10.0.0.10        0x1         0x2         02:00:00:00:00:aa     *        eth1
10.0.0.1         0x1         0x2         02:00:00:00:00:01     *        eth1
10.0.0.100       0x1         0x0         00:00:00:00:00:00     *        eth1
10.0.0.101       0x1         0x2
10.0.0.102       0x1         0xzz        02:00:00:00:00:02     *        eth1
10.0.0.103       0x1         0x6         ` + "\x1b[2J" + `     *        eth1
`
	for address, want := range map[string]string{"10.0.0.10": "02:00:00:00:00:aa", "10.0.0.100": "", "10.0.0.101": "", "10.0.0.102": "",
		"10.0.0.103": "", "10.0.0.104": ""} {
		if got := neighbour([]byte(table), address); got != want {
			t.Errorf("%s: %q", address, got)
		}
	}
}

// cluster is a cluster in memory, in whose description the secret is left out: each is another one.
type cluster struct{ *kubetest.Memory }

var secrets = regexp.MustCompile(`("` + SecretKey + `":)"[^"]*"`)

func (c cluster) Snapshot(t testing.TB) string {
	t.Helper()
	return secrets.ReplaceAllString(c.Memory.Snapshot(t), "$1")
}

// The secret is made where there is none of boxlift's, and otherwise the cluster's is taken.
func TestSecretStep(t *testing.T) {
	carrying := func(secret string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: SecretNamespace, Name: SecretName}, Type: secretKind,
			Data: map[string][]byte{SecretKey: []byte(secret)}}
	}
	for _, test := range []struct {
		name  string
		there *corev1.Secret
		why   string
	}{
		{"none", nil, "the Secret boxlift-front is missing"},
		{"one", carrying(canary), ""},
		{"too short a one", carrying("x"), "or is none of boxlift's"},
		{"one that would be config", carrying("x}\nfoo {"), "or is none of boxlift's"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *Keeper
			steptest.ProveIn(t, steptest.Wide{Why: test.why, Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
				m := kubetest.NewMemory(t)
				if test.there != nil {
					m.Put(t, test.there)
				}
				return cluster{m}, func() run.Step {
					k, _ := keeper(t, text)
					api, err := kube.Connect(kube.Options{Name: "first", Kubeconfig: m.Kubeconfig, Dial: m.Dial})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(api.Close)
					k.Site.API, k.secret = api, ""
					last = k
					return k.secretStep()
				}
			}})
			secret, err := last.readSecret(t.Context())
			if !secretForm.MatchString(secret) || err != nil || test.why == "" && secret != canary {
				t.Errorf("it has %d bytes, %v", len(secret), err)
			}
		})
	}
	k, _ := keeper(t, text)
	k.secret = ""
	if reason, err := k.secretStep().Needed(t.Context()); reason != "there is no cluster yet" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
}
