package k3s

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/adoption"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// adopted is an agent whose k3s was adopted and runs. Programs on it, but for the bundle's, say the version that is all
// they consist of.
func adopted(t *testing.T, installed, kubelet string) (*hosttest.Fake, *Node) {
	t.Helper()
	f, n := shipped(t, 1)
	n.Host.Adopted = &adoption.Found{
		Role: config.Agent, Program: site.K3sBinary, Settings: map[string][]string{"kubelet-arg": {kubelet}},
	}
	f.Program("boxlift-node", helper)
	f.Program("k3s", func(_ context.Context, c *hosttest.Call) int {
		version := c.Host.ReadFile(t, site.K3sBinary)
		if version == program {
			version = "v1.36.4+k3s1"
		}
		return hosttest.Prints("k3s version "+version+" (0123abcd)\ngo version go1.26\n")(t.Context(), c)
	})
	if installed != "" {
		f.WriteFile(t, site.K3sBinary, installed, 0o755)
	}
	f.Unit("k3s-agent").Runs()
	return f, n
}

// The program of an adopted k3s is replaced when it is of another version, and k3s started again then. What boxlift has
// not changed, it does not start again.
func TestAdoptedStepsDone(t *testing.T) {
	const current = "v1.36.4+k3s1"
	well := kubelet(t, http.StatusOK)
	for _, test := range []struct {
		name, installed string
		started         string // what boxlift has noted, "" for nothing
		stopped         bool
		id, why         string
	}{
		{name: "the bundle's program", installed: program, id: "place-k3s"},
		{name: "another build of its version", installed: current, id: "place-k3s"},
		{name: "an older version", installed: "v1.35.8+k3s1", id: "place-k3s", why: "it is v1.35.8+k3s1"},
		{name: "a newer version", installed: "v1.37.0+k3s1", id: "place-k3s", why: "it is v1.37.0+k3s1"},
		{name: "none", id: "place-k3s", why: "is missing"},
		{name: "as it was found", installed: current, id: StartID},
		{name: "as boxlift has started it", installed: current, started: "adopted " + current, id: StartID},
		{name: "about to be changed", installed: current, started: setup.ChangedMark, id: StartID, why: "changed since"},
		{name: "replaced by its owner", installed: current, started: "adopted v1.35.8+k3s1", id: StartID, why: "changed"},
		{name: "stopped", installed: current, started: "adopted " + current, stopped: true, id: StartID, why: "is inactive"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f, n := adopted(t, test.installed, well)
				if test.started != "" {
					f.WriteFile(t, site.StartedFile, test.started+"\n", 0o600)
				}
				if test.stopped {
					if _, err := n.Host.Root(t.Context(), "stop it", "systemctl", "stop", "k3s-agent"); err != nil {
						t.Fatal(err)
					}
				}
				last = f
				return f, stepOf(t, stepsOf(t, n), test.id)
			}})
			if strings.Contains(last.Snapshot(t), site.K3sConfigDir) {
				t.Error("boxlift has written where its owner writes")
			}
			if last.Unit("k3s-agent").Starts() > 0 && test.why == "" {
				t.Error("it was started")
			}
		})
	}
	// Both at once: broken off after the program was replaced, the next run still starts k3s.
	f, n := adopted(t, "v1.35.8+k3s1", well)
	steps := stepsOf(t, n)
	carryOut(t, steps[0])
	if reason, err := steps[1].Needed(t.Context()); !strings.Contains(reason, "changed since") || err != nil {
		t.Errorf("it is to be started because %q: %v", reason, err)
	}
	carryOut(t, steps...)
	if got := f.ReadFile(t, site.StartedFile); got != "adopted v1.36.4+k3s1\n" || f.Unit("k3s-agent").Starts() != 1 {
		t.Errorf("it was started with %q", got)
	}
}

// A program that tells no version is no reason to replace it unseen.
func TestAdoptedProgramFails(t *testing.T) {
	for name, test := range map[string]struct {
		program hosttest.Program
		want    string
	}{
		"it is another program": {hosttest.Prints("busybox\x1b[2J\n"), "it printed \"busybox"},
		"it says no end of it":  {hosttest.Prints(strings.Repeat("k3s\n", 1<<19)), "it printed \"k3s"},
		"it does not run":       {hosttest.Fails(126, "Exec format error"), "exit code 126: Exec format error"},
	} {
		t.Run(name, func(t *testing.T) {
			f, n := adopted(t, "another", "")
			f.Program("k3s", test.program)
			for _, step := range stepsOf(t, n) {
				refuses(t, step, "ask k3s for its version: ", test.want)
			}
			if got := f.ReadFile(t, site.K3sBinary); got != "another" {
				t.Errorf("the program is %q", got)
			}
		})
	}
}

// What an adopted k3s has as registries stays, and is told where it is not what install.yaml says.
func TestAdoptedRegistries(t *testing.T) {
	const differs = site.K3sRegistries + " is another one than install.yaml makes it: k3s was adopted and keeps what " +
		"it has; change it there, or in install.yaml"
	for name, want := range map[string][]string{"the same": nil, "another one": {differs}, "none": {differs}} {
		in := adoptedExample(t, sitetest.ThreeServers+sitetest.OwnLAN)
		h := in.site.Hosts[3]
		f := hosttest.New(t, h.Name)
		h.Conn = f
		registries, err := in.seeder.Registries(h)
		if err != nil {
			t.Fatal(err)
		}
		content, err := registries.Render()
		if err != nil {
			t.Fatal(err)
		}
		switch name {
		case "the same":
			f.WriteFile(t, site.K3sRegistries, string(content), 0o600)
		case "another one":
			f.WriteFile(t, site.K3sRegistries, "mirrors: {}\n", 0o600)
		}
		before := f.Snapshot(t)
		refused, err := in.cluster.compareAdopted(t.Context(), h)
		if diff := cmp.Diff(want, h.Differences); diff != "" || len(refused) > 0 || err != nil || before != f.Snapshot(t) {
			t.Errorf("%s: %s, %+v, %v", name, diff, refused, err)
		}
		f.BreakAfter(0)
		if _, err := in.cluster.compareAdopted(t.Context(), h); !errors.Is(err, hosttest.ErrLost) {
			t.Errorf("a host that does not answer: %v", err)
		}
	}
}

// A host's k3s can be adopted when its unit runs the node that the cluster knows, with what boxlift can keep.
func TestAdoptable(t *testing.T) {
	unit := func(args string) hosttest.Program {
		return func(ctx context.Context, c *hosttest.Call) int {
			text := "\n"
			if strings.Contains(strings.Join(c.Args, " "), "ExecStart") {
				text = "{ path=/usr/local/bin/k3s ; argv[]=/usr/local/bin/k3s " + args + " ; ignore_errors=no ; pid=7 }\n"
			}
			return hosttest.Prints(text)(ctx, c)
		}
	}
	const agent = "agent --server https://10.0.0.11:6443 --token the-token --node-name "
	type change = func(*site.Host, *hosttest.Fake, *kube.Node)
	// with lets a program of the host's be another one.
	with := func(name string, p hosttest.Program) change {
		return func(_ *site.Host, f *hosttest.Fake, _ *kube.Node) { f.Program(name, p) }
	}
	worker := []release.Adopted{{Node: "worker", MachineID: "machine-3"}}
	for _, test := range []struct {
		name string
		set  change
		want []release.Adopted
		// unfit is a part of why not, wrong of an error.
		unfit, wrong string
	}{
		{name: "as it is to be", want: worker},
		{name: "its node is another machine", unfit: "the cluster's node with its name, address or machine-id is worker",
			set: func(_ *site.Host, _ *hosttest.Fake, n *kube.Node) { n.MachineID = "other" }},
		{name: "it has no machine-id", unfit: "with the machine-id unknown",
			set: func(h *site.Host, _ *hosttest.Fake, n *kube.Node) { h.MachineID, n.MachineID = "", "" }},
		{name: "it runs as another node", unfit: "is other\ufffd[2J with the machine-id",
			set: with("systemctl", unit(agent+"other\x1b[2J"))},
		{name: "it has no unit of install.sh's", unfit: "has no /etc/systemd/system/k3s-agent.service",
			set: func(h *site.Host, _ *hosttest.Fake, _ *kube.Node) { h.Foreign = false }},
		{name: "boxlift's own", set: func(h *site.Host, _ *hosttest.Fake, _ *kube.Node) { h.Foreign, h.Own = false, true }},
		{name: "no node", set: func(_ *site.Host, _ *hosttest.Fake, n *kube.Node) { *n = kube.Node{Name: "stranger"} }},
		{name: "its data lies elsewhere", unfit: "data-dir is /srv", want: worker,
			set: with("systemctl", unit(agent+"worker --data-dir /srv"))},
		{name: "its command line comes from variables", wrong: "parts of it come from variables",
			set: with("systemctl", unit("agent $ARGS"))},
		{name: "its config is no YAML", wrong: "read its config: it is no YAML",
			set: with("cat", hosttest.Prints("token: the-token\n\t- {\n"))},
		{name: "it tells no end of it", wrong: "read what k3s runs with: ",
			set: with("cat", hosttest.Prints(strings.Repeat("x\x00", 2<<20)))},
		{name: "it does not answer", wrong: "connection lost",
			set: func(_ *site.Host, f *hosttest.Fake, _ *kube.Node) { f.BreakAfter(0) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, fakes := reached(t, sitetest.ThreeServers)
			for _, h := range in.site.Servers() {
				h.Own = true
			}
			h, f := in.site.Hosts[3], fakes[3]
			h.Foreign = true
			f.Program("systemctl", unit(agent+"worker"))
			write(t, f, map[string]string{site.K3sConfigFile: "kubelet-arg: [max-pods=200]\n"})
			nodes := []kube.Node{{Name: "worker", MachineID: "machine-3"}}
			if test.set != nil {
				test.set(h, f, &nodes[0])
			}
			got, unfit, err := in.cluster.Adoptable(t.Context(), nodes)
			text := strings.Join(unfit, "\n")
			if err != nil {
				text += err.Error()
			}
			if (err == nil) != (test.wrong == "") || (unfit == nil) != (test.unfit == "") ||
				!strings.Contains(text, test.unfit) || !strings.Contains(text, test.wrong) {
				t.Errorf("unfit because %q, %v", unfit, err)
			}
			if strings.Contains(text, "the-token") || strings.Contains(text, "\x1b") {
				t.Errorf("%q", text)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
