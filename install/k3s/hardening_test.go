package k3s

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/hardening"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// hardenedConfig is the example, hardened.
var hardenedConfig = strings.Replace(sitetest.ExampleConfig, "cluster:\n", "cluster:\n  hardening: cis\n", 1)

// hardened is a host of it, by its place, whose kernel has these values beside those that a kubelet insists on.
func hardened(t *testing.T, place int, values map[string]string) (*hosttest.Fake, *Node) {
	t.Helper()
	in, fakes := reached(t, hardenedConfig)
	f, n := fakes[place], in.cluster.NodeWith(in.site.Hosts[place], in.site.Hosts[0], "the-token")
	for _, name := range hardening.SysctlNames() {
		value, given := values[name]
		if !given {
			value = hardening.Sysctls[name]
		}
		f.WriteFile(t, sysctlPath(name), value+"\n", 0o644)
	}
	return f, n
}

// step is a host and one of its steps of hardening.
func hardeningStep(id string, place int, values map[string]string,
	prepare func(*testing.T, *hosttest.Fake)) func(*testing.T) (*hosttest.Fake, run.Step) {
	return func(t *testing.T) (*hosttest.Fake, run.Step) {
		f, n := hardened(t, place, values)
		if prepare != nil {
			prepare(t, f)
		}
		steps := append(n.hardeningSteps(), modesStep(n.Host), softenStep(n.Host, hardens(n)))
		return f, stepOf(t, steps, id)
	}
}

func TestHardeningSteps(t *testing.T) {
	const server, agent = 0, 1
	const logs = "/var/lib/rancher/k3s/server/logs"
	key := func(mode os.FileMode) func(*testing.T, *hosttest.Fake) {
		return func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, "/var/lib/rancher/k3s/server/tls/etcd/server-ca.key", "a key", mode)
			f.WriteFile(t, "/var/lib/rancher/k3s/server/tls/server-ca.crt", "a certificate", 0o644)
		}
	}
	folder := func(mode os.FileMode) func(*testing.T, *hosttest.Fake) {
		return func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, logs+"/audit.log", "{}", 0o600)
			if err := os.Chmod(filepath.Dir(f.Path(logs+"/audit.log")), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name, id string
		place    int
		values   map[string]string
		prepare  func(*testing.T, *hosttest.Fake)
		why      string
	}{
		{name: "a host that boots", id: "file:" + hardening.SysctlFile, place: agent, why: "is missing"},
		{name: "the kernel is as the kubelet wants", id: "set-kernel-values", place: agent},
		{name: "the kernel is not", id: "set-kernel-values", place: agent,
			values: map[string]string{"vm.overcommit_memory": "0", "kernel.panic": "0"},
			why:    "kernel.panic is 0, not 10, vm.overcommit_memory is 0, not 1, and the kubelet does not start then"},
		{name: "no policy", id: "file:" + hardening.AuditPolicyFile, place: server, why: "is missing"},
		{name: "no admission", id: "file:" + hardening.AdmissionFile, place: server, why: "is missing"},
		{name: "another policy", id: "file:" + hardening.AuditPolicyFile, place: server, why: "differs",
			prepare: func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, hardening.AuditPolicyFile, "rules: []", 0o600) }},
		{name: "no folder", id: "make-audit-folder", place: server, why: logs + " is missing"},
		{name: "a folder for all", id: "make-audit-folder", place: server, prepare: folder(0o755), why: "has another mode or owner"},
		{name: "a folder for root", id: "make-audit-folder", place: server, prepare: folder(0o700)},
		{name: "k3s has made nothing yet", id: "set-file-modes", place: server},
		{name: "files as k3s makes them", id: "set-file-modes", place: server, prepare: key(0o600)},
		{name: "a key that others can read", id: "set-file-modes", place: server, prepare: key(0o644),
			why: "/var/lib/rancher/k3s/server/tls/etcd/server-ca.key is of user 0 and has the mode 0644"},
		{name: "hardening stays", id: "remove-hardening", place: server},
	} {
		t.Run(test.name, func(t *testing.T) {
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: hardeningStep(test.id, test.place, test.values, test.prepare)})
		})
	}
}

// An agent has no API server, and a user's own policy takes the place of boxlift's.
func TestHardeningStepsOf(t *testing.T) {
	ids := func(n *Node) (ids []string) {
		for _, s := range n.hardeningSteps() {
			ids = append(ids, s.ID)
		}
		return ids
	}
	_, agent := hardened(t, 1, nil)
	if diff := cmp.Diff([]string{"file:" + hardening.SysctlFile, "set-kernel-values"}, ids(agent)); diff != "" {
		t.Error(diff)
	}
	own := strings.Replace(hardenedConfig, "  hardening: cis\n", "  hardening: cis\n  serverConfig: {kube-apiserver-arg: "+
		"[audit-policy-file=/etc/audit.yaml, audit-log-path=/var/log/audit.log]}\n", 1)
	in, _ := reached(t, own)
	n := in.cluster.NodeWith(in.site.Hosts[0], in.site.Hosts[0], "the-token")
	if diff := cmp.Diff([]string{"file:" + hardening.SysctlFile, "set-kernel-values", "file:" + hardening.AdmissionFile},
		ids(n)); diff != "" {
		t.Error(diff)
	}
	if steps := shippedSteps(t); len(steps) != 0 {
		t.Errorf("a host that is not hardened has %v", steps)
	}
}

func shippedSteps(t *testing.T) []run.Step {
	_, n := shipped(t, 0)
	return n.hardeningSteps()
}

// When hardening ends, its files go.
func TestSoften(t *testing.T) {
	fresh := func(there bool) func(*testing.T) (*hosttest.Fake, run.Step) {
		return func(t *testing.T) (*hosttest.Fake, run.Step) {
			f, n := shipped(t, 0)
			if there {
				write(t, f, map[string]string{hardening.SysctlFile: "x", hardening.AdmissionFile: "x", hardening.AuditPolicyFile: "x"})
			}
			return f, softenStep(n.Host, hardens(n))
		}
	}
	steptest.Prove(t, steptest.Case{Why: "install.yaml asks for no hardening any more", Fresh: fresh(true)})
	steptest.Prove(t, steptest.Case{Fresh: fresh(false)})
}

// A kernel that keeps its values to itself, as that of a container does, is told with what to do.
func TestSysctlsRefused(t *testing.T) {
	f, n := hardened(t, 1, map[string]string{"kernel.panic": "0"})
	if err := os.Remove(f.Path(sysctlPath("kernel.panic"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(f.Path(sysctlPath("kernel.panic")), 0o755); err != nil {
		t.Fatal(err)
	}
	refuses(t, sysctlStep(n.Host), "set the kernel's values for the kubelet", "leave cluster.hardening out")
}

// k3s is started again for other files of hardening, and only where it reads them.
func TestHardenedFingerprint(t *testing.T) {
	started := func(config string, files map[string]string) string {
		t.Helper()
		f, n := hardened(t, 0, nil)
		write(t, f, map[string]string{site.K3sConfigFile: config, site.K3sBinary: "k3s"})
		write(t, f, files)
		text, err := n.Started(t.Context(), "k3s")
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	const named = "kube-apiserver-arg: [audit-policy-file=" + hardening.AuditPolicyFile + "]\n"
	one, other := map[string]string{hardening.AuditPolicyFile: "one"}, map[string]string{hardening.AuditPolicyFile: "other"}
	if started(named, one) == started(named, other) {
		t.Error("another policy does not matter")
	}
	if started("debug: true\n", one) != started("debug: true\n", other) {
		t.Error("a policy matters that nobody reads")
	}
}

func TestHostileHardening(t *testing.T) {
	steps := map[string]func(h *site.Host) run.Step{
		"sysctls": sysctlStep, "folder": auditFolderStep, "modes": modesStep,
		"soften": func(h *site.Host) run.Step { return softenStep(h, false) },
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			steptest.Hostile(t, func(t *testing.T, h host.Host) run.Step {
				in := example(t, hardenedConfig, "k3s=v1.36.4+k3s1")
				in.site.Hosts[0].Conn = h
				return step(in.site.Hosts[0])
			}, "0 777 0 /etc/shadow", "99 600 0 /x", "8 644 0 /var/lib/rancher/k3s/server/tls/a.key\x1b[2J")
		})
	}
}
