package k3s

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// shippedWith is an agent of an install.yaml with more in it.
func shippedWith(t *testing.T, more string) (*hosttest.Fake, *Node) {
	t.Helper()
	f, n := shipped(t, 1)
	n.Cluster.Site.Config = example(t, sitetest.ExampleConfig+more).site.Config
	return f, n
}

// Registries are written as install.yaml has them, with their passwords for root alone; what somebody else has written
// stays where install.yaml has none.
func TestRegistriesStep(t *testing.T) {
	const written, removed = "file:" + site.K3sRegistries, "remove-registries"
	for _, test := range []struct {
		name, more, have string
		id, why          string
	}{
		{"missing", sitetest.OwnLAN, "", written, "is missing"},
		{"other ones", sitetest.OwnLAN, generatedHeader + "mirrors: {}\n", written, "differs"},
		{"somebody's", sitetest.OwnLAN, "mirrors: {}\n", written, "differs"},
		{"none, and none asked for", "", "", removed, ""},
		{"none asked for any more", "", generatedHeader + "mirrors: {}\n", removed, "asks for no registries any more"},
		{"somebody's, and none asked for", "", "mirrors: {}\n", removed, ""},
		{"the end of somebody's huge file", "", strings.Repeat("#\n", 1<<20) + generatedHeader, removed, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f, n := shippedWith(t, test.more)
				if test.have != "" {
					f.WriteFile(t, site.K3sRegistries, test.have, 0o600)
				}
				step, err := n.registriesStep()
				if err != nil || step.ID != test.id {
					t.Fatalf("%s, %v", step.ID, err)
				}
				last = f
				return f, step
			}})
			content := last.ReadFile(t, site.K3sRegistries)
			if test.id == written && !strings.Contains(content, "https://cache.lan:5000") {
				t.Errorf("it has:\n%s", content)
			}
			if test.id == removed && test.why == "" && content != test.have {
				t.Error("somebody's file has changed")
			}
		})
	}
}

// Pods of a host that knows no nameserver get none on the internet.
func TestResolverStep(t *testing.T) {
	const id = "file:" + site.K3sResolvConf
	fresh := func(t *testing.T) (*hosttest.Fake, *Node) {
		f, n := shipped(t, 1)
		n.Host.Resolverless, n.Host.IP = true, mustAddr(t, "10.0.0.12")
		return f, n
	}
	for name, why := range map[string]string{"missing": "is missing", "another one": "differs"} {
		t.Run(name, func(t *testing.T) {
			steptest.Prove(t, steptest.Case{Why: why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f, n := fresh(t)
				if why == "differs" {
					f.WriteFile(t, site.K3sResolvConf, "nameserver 8.8.8.8\n", 0o600)
				}
				return f, stepOf(t, stepsOf(t, n), id)
			}})
		})
	}
	f, n := fresh(t)
	carryOut(t, stepOf(t, stepsOf(t, n), id))
	if text := f.ReadFile(t, site.K3sResolvConf); !strings.HasSuffix(text, "\nnameserver 10.0.0.12\n") {
		t.Errorf("%q", text)
	}
	if got := n.Settings()["resolv-conf"]; got != site.K3sResolvConf {
		t.Errorf("k3s is told of %v", got)
	}
	n.Host.Resolverless = false
	if slices.Contains(ids(stepsOf(t, n)), id) || n.Settings()["resolv-conf"] != nil {
		t.Error("a host with nameservers gets another one")
	}
}

// Nameservers are looked for where k3s looks for them.
func TestLookAtResolvers(t *testing.T) {
	const own, resolved = "/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"
	for _, test := range []struct {
		name  string
		files map[string]string
		want  bool // that there are none
	}{
		{"no file", nil, true},
		{"one of the LAN", map[string]string{own: "search lan\nnameserver 10.0.0.1\n"}, false},
		{"systemd's own", map[string]string{own: "nameserver 127.0.0.53\n"}, true},
		{
			"systemd's own, and what it asks",
			map[string]string{own: "nameserver 127.0.0.53\n", resolved: "nameserver 10.0.0.1\n"}, false,
		},
		{"one of the host alone beside another", map[string]string{own: "nameserver 10.0.0.1\nnameserver ::1\n"}, true},
		{"of one link", map[string]string{own: "nameserver fe80::1%eth0\n"}, true},
		{
			"no address",
			map[string]string{own: "nameserver \x1b[2J\n", resolved: strings.Repeat("nameserver x\n", 1<<17)}, true,
		},
		{"nothing of use", map[string]string{own: "# nameserver 10.0.0.1\nnameserver\noptions edns0\n"}, true},
	} {
		f, n := shipped(t, 1)
		write(t, f, test.files)
		if err := lookAtResolvers(t.Context(), n.Host); err != nil || n.Host.Resolverless != test.want {
			t.Errorf("%s: none: %t, %v", test.name, n.Host.Resolverless, err)
		}
	}
}

// A host without the commands that are needed is told which; what it says is not believed further than that.
func TestTakeSeen(t *testing.T) {
	for out, want := range map[string]string{
		"missing tar\nmissing journalctl\n":     "the host has no tar, journalctl; needed: ",
		"missing \x1b[2J\n":                     "the host has no \ufffd[2J; needed: ",
		strings.Repeat("unknown words\n", 1000): "",
		"":                                      "",
	} {
		var h site.Host
		err := takeSeen(&h, out)
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.20q: %v", out, err)
		}
	}
	var h site.Host
	long := strings.Repeat("x", 10000)
	takeConfig(&h, "server: \"https://10.0.0.11:6443"+long+"\\x1b[2J\"\nsecrets-encryption: maybe\n")
	if err := takeSeen(&h, "setting "+long+"\x1b\nown\nunit "+long+"\n"); err != nil {
		t.Error(err)
	}
	for _, text := range append(h.Differences, h.Joined, h.ForeignUnit) {
		if len(text) > 600 || strings.Contains(text, "\x1b") || text == "" {
			t.Errorf("%d bytes: %q", len(text), text)
		}
	}
	if h.AtRest.Set || len(h.Differences) != 1 {
		t.Errorf("encrypts: %t, %q", h.AtRest.Set, h.Differences)
	}
}

// config.yaml is written anew when it says anything else to k3s, whatever it is.
func TestConfigStep(t *testing.T) {
	const id = "file:" + site.K3sConfigFile
	for name, content := range map[string]string{
		"no YAML": "{\x1b[2J", "a list": "- a\n", "huge": "a: " + strings.Repeat("b", 2<<20) + "\n",
		"another setting": "token-file: /tmp/x\n",
	} {
		t.Run(name, func(t *testing.T) {
			fresh := func(t *testing.T) (*hosttest.Fake, run.Step) {
				f, n := shipped(t, 1)
				f.WriteFile(t, site.K3sConfigFile, content, 0o600)
				return f, stepOf(t, stepsOf(t, n), id)
			}
			steptest.Prove(t, steptest.Case{Why: site.K3sConfigFile + " differs", Fresh: fresh})
		})
	}
}

// A restored host gets its data after all else is in its place, and before k3s starts.
func TestRestorationStep(t *testing.T) {
	_, n := shipped(t, 0)
	n.Cluster.Restoration = &Restoration{Step: func(of *Node) run.Step {
		return run.Step{ID: "restore " + of.Host.Name}
	}}
	all := ids(stepsOf(t, n))
	if diff := cmp.Diff([]string{"set-up-service", "restore " + n.Host.Name, StartID}, all[len(all)-3:]); diff != "" {
		t.Error(diff)
	}
}

// Of a program that does not get into its place, nothing is left, and what was there stays.
func TestPlaceProgramFails(t *testing.T) {
	for _, test := range []struct {
		name string
		set  func(*hosttest.Fake, *Node)
		want string
	}{
		{"it was not shipped", func(_ *hosttest.Fake, n *Node) {
			for i := range n.Cluster.Site.Contents.Files {
				n.Cluster.Site.Contents.Files[i].Digest = digest.FromString("not there")
			}
		}, "copy a program to /usr/local/bin/k3s: exit code 1: cp: "},
		{"the disk is full", func(f *hosttest.Fake, _ *Node) {
			f.Program("sync", hosttest.Fails(1, "sync: No space left on device"))
		}, "No space left on device"},
		{"the helper says no digest", func(f *hosttest.Fake, _ *Node) {
			f.Program("boxlift-node", hosttest.Prints("no digest\x1b[2J\n"))
		}, "look at /usr/local/bin/k3s: boxlift-node printed \"no digest"},
		{"the helper does not end", func(f *hosttest.Fake, _ *Node) {
			f.Program("boxlift-node", hosttest.Prints(strings.Repeat("0123456789abcdef", 1<<17)))
		}, "look at /usr/local/bin/k3s: boxlift-node printed \"0123456789abcdef"},
		{"nothing tells a digest", func(f *hosttest.Fake, _ *Node) {
			f.Program("cut", hosttest.Fails(1, "cut: \x1b[2J"))
		}, "look at /usr/local/bin/k3s: exit code 1: cut: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, n := shipped(t, 1)
			f.WriteFile(t, site.K3sBinary, "an older program", 0o755)
			test.set(f, n)
			refuses(t, stepOf(t, stepsOf(t, n), "place-k3s"), test.want)
			const beside = site.K3sBinary + ".boxlift-new"
			if got, left := f.ReadFile(t, site.K3sBinary), f.ReadFile(t, beside); got != "an older program" || left != "" {
				t.Errorf("in its place is %q, beside it %q", got, left)
			}
		})
	}
}

// What came into its place although its host said that it had not is looked at again.
func TestPlaceProgramUnawares(t *testing.T) {
	f, n := shipped(t, 1)
	step := stepOf(t, stepsOf(t, n), "place-k3s")
	f.WriteFile(t, site.K3sBinary, "an older program", 0o755)
	f.Program("mv", func(ctx context.Context, c *hosttest.Call) int {
		c.Host.WriteFile(t, site.K3sBinary, program, 0o755)
		return hosttest.Fails(1, "mv: Input/output error")(ctx, c)
	})
	refuses(t, step, "Input/output error")
	if reason, err := step.Needed(t.Context()); reason != "" || err != nil {
		t.Errorf("it is needed because %q: %v", reason, err)
	}
}

// The program's digest is the helper's to compute, once in a run; without the helper it is computed all the same.
func TestBinaryDigest(t *testing.T) {
	want := digest.FromString(program).Encoded()
	for name, helper := range map[string]hosttest.Program{"helper": hosttest.Prints(want + "\n"), "no helper": nil} {
		f, n := shipped(t, 1)
		f.WriteFile(t, site.K3sBinary, program, 0o755)
		if helper != nil {
			f.Program("boxlift-node", helper)
			f.Program("sha256sum", hosttest.Fails(1, "the helper was to do it"))
		}
		for range 2 {
			if got, err := BinaryDigest(t.Context(), n.Host); got != want || err != nil {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if got := len(f.Commands()); got != 1 {
			t.Errorf("%s: %d commands", name, got)
		}
	}
}

// A bundle without one of k3s' files is told by its own part, before anything is looked at.
func TestNoFileOfK3s(t *testing.T) {
	for _, name := range []string{site.K3sProgram, site.InstallScript} {
		f, n := shipped(t, 1)
		files := n.Cluster.Site.Contents.Files
		n.Cluster.Site.Contents.Files = slices.DeleteFunc(files, func(f bundle.File) bool { return f.Name == name })
		_, err := n.steps()
		if want := "has no file " + name + " for linux/amd64"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if f.Commands() != nil {
			t.Errorf("the host was asked: %q", f.Commands())
		}
	}
}

// k3s' own script makes the unit, and lets it start with the host only where k3s has its config.
func TestServiceStep(t *testing.T) {
	const id = "set-up-service"
	for enable, want := range map[bool]string{enabled: "false", disabled: "true"} {
		f, n := shipped(t, 0)
		var set []string
		f.Program("env", func(_ context.Context, c *hosttest.Call) int {
			set = c.Args
			f.WriteFile(t, "/etc/systemd/system/k3s.service", "[Service]\n", 0o644)
			return 0
		})
		step, err := n.unitStep(enable)
		if err != nil {
			t.Fatal(err)
		}
		carryOut(t, step)
		for _, part := range []string{
			"INSTALL_K3S_SKIP_ENABLE=" + want, "INSTALL_K3S_SKIP_START=true", "INSTALL_K3S_EXEC=server",
		} {
			if !slices.Contains(set, part) {
				t.Errorf("install.sh gets %q, want %s", set, part)
			}
		}
		if reason, err := step.Needed(t.Context()); reason != "" || err != nil {
			t.Errorf("done, it is needed: %q, %v", reason, err)
		}
	}
	for _, test := range []struct {
		name string
		set  func(*testing.T, *hosttest.Fake) // after the step was done
		why  string
	}{
		{"its environment was changed", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, "/etc/systemd/system/k3s-agent.service.env", "K3S_TOKEN=x\n", 0o600)
		}, "the unit was changed"},
		{"nobody knows who has made it", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, site.ServiceFile, "", 0o600)
		}, "made by another install.sh"},
		{"another install.sh has made it", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, site.ServiceFile, strings.Repeat("0", 64)+" "+strings.Repeat("0", 64), 0o600)
		}, "made by another install.sh"},
		{"what has made it is no end of text", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, site.ServiceFile, strings.Repeat("x", 2<<20), 0o600)
		}, "made by another install.sh"},
	} {
		t.Run(test.name, func(t *testing.T) {
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f, n := shipped(t, 1)
				step := stepOf(t, stepsOf(t, n), id)
				carryOut(t, step)
				test.set(t, f)
				return f, step
			}})
		})
	}
	// A script that fails leaves a host that is known as boxlift's, and the next run does it again.
	f, n := shipped(t, 1)
	step := stepOf(t, stepsOf(t, n), id)
	f.Program("env", hosttest.Fails(1, "[ERROR]  Can not find systemd\x1b[2J"))
	refuses(t, step, "run k3s' install.sh: exit code 1: [ERROR]  Can not find systemd")
	if f.ReadFile(t, site.ServiceFile) == "" {
		t.Error("nothing says that boxlift was at it")
	}
	if reason, err := step.Needed(t.Context()); reason != "the unit is missing" || err != nil {
		t.Errorf("after it has failed: %q, %v", reason, err)
	}
	// What a host says of files is read strictly.
	for _, said := range []string{"no digest\x1b[2J\n", strings.Repeat("x", 3<<20)} {
		f, n := shipped(t, 1)
		f.WriteFile(t, "/etc/systemd/system/k3s-agent.service", "", 0o644)
		f.Program("sha256sum", hosttest.Prints(said))
		refuses(t, stepOf(t, stepsOf(t, n), id), "look at files: sha256sum printed ")
	}
}
