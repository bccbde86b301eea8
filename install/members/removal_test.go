package members

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/install/front"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/packages"
	"github.com/liteboxd/boxlift/install/prepare"
	"github.com/liteboxd/boxlift/install/renewal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/timekeeping"
	"github.com/liteboxd/boxlift/test/debtest"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// What k3s, Cilium and boxlift have on an agent, and what its uninstaller takes away.
var (
	onAgent = []string{
		"/usr/local/bin/k3s", "/usr/local/bin/k3s-killall.sh", "/usr/local/bin/k3s-agent-uninstall.sh",
		"/etc/systemd/system/k3s-agent.service", "/etc/systemd/system/k3s-agent.service.env",
		"/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/boxlift-token", "/var/lib/rancher/k3s/agent/client.crt",
		"/var/lib/kubelet/config", "/etc/cni/net.d/05-cilium.conflist", "/opt/cni/bin/cilium-cni", "/var/run/cilium/x",
		"/var/lib/cilium/x", "/usr/local/bin/cilium",
		run.RegistryUnit, run.RegistryProgram, run.RegistryDir + "/config.json", site.HelperPath,
		"/etc/boxlift-backup/config.json",
	}
	ofUninstaller = []string{
		"/etc/systemd/system/k3s-agent.service", "/etc/systemd/system/k3s-agent.service.env", "/etc/rancher/k3s",
		"/var/lib/rancher/k3s", "/var/lib/kubelet", "/usr/local/bin/k3s", "/usr/local/bin/k3s-killall.sh",
		"/usr/local/bin/k3s-agent-uninstall.sh",
	}
)

// agent is a host with files of onAgent, and with others.
func agent(t *testing.T, files ...string) *hosttest.Fake {
	t.Helper()
	f := hosttest.New(t, "worker")
	for _, name := range files {
		f.WriteFile(t, name, "x", 0o755)
	}
	f.WriteFile(t, "/etc/hostname", "worker", 0o644)
	f.WriteFile(t, "/var/lib/rancher/other/data", "somebody else's", 0o644)
	f.Unit("k3s-agent").Runs()
	f.Program("ip", hosttest.Fails(1, "no such device"))
	f.Program("k3s-agent-uninstall.sh", removes(ofUninstaller))
	return f
}

const renewalTimer = "/etc/systemd/system/boxlift-renewal.timer"

// ofRenewal are the files of the timer that renews certificates.
var ofRenewal = []string{renewalTimer, "/etc/systemd/system/boxlift-renewal.service", renewal.Program}

// dnsUnit is that of the DNS server on a host that serves names.
const dnsUnit = "/etc/systemd/system/boxlift-dns.service"

// What a host was before boxlift prepared it and gave it names.
const (
	inotify  = "/proc/sys/fs/inotify/max_user_instances"
	ownHosts = "127.0.0.1 localhost\n10.9.9.9 theirs"
)

// ofTime is what a host has that keeps time.
var ofTime = []string{timekeeping.KeptFile, timekeeping.ConfigurationFile, timekeeping.UnitFile}

// prepared is a host that boxlift has prepared, given names, and has renew its certificates.
func prepared(t *testing.T, f *hosttest.Fake) *hosttest.Fake {
	t.Helper()
	f.WriteFile(t, inotify, "8192\n", 0o644)
	f.WriteFile(t, front.ConfigFile, "x", 0o600)
	f.WriteFile(t, prepare.KeptFile,
		`{"format":1,"sysctls":[{"name":"fs.inotify.max_user_instances","before":"128","set":"8192"}]}`, 0o600)
	f.WriteFile(t, "/etc/hosts", ownHosts+"\n# begin boxlift, after a line without an end: names of install.yaml. What is "+
		"written between these lines is lost\n10.0.0.11 first\n# end boxlift\n", 0o644)
	for _, name := range append([]string{dnsUnit, run.DNSDir + "/dnsmasq.conf", "/var/lib/boxlift/dns-started"}, ofRenewal...) {
		f.WriteFile(t, name, "x", 0o644)
	}
	f.Unit("boxlift-renewal.timer").Runs()
	f.Unit("boxlift-dns").Runs()
	f.WriteFile(t, timekeeping.KeptFile, `{"version":1}`, 0o600)
	f.WriteFile(t, timekeeping.ConfigurationFile, "server 10.0.0.11 iburst\n", 0o644)
	f.WriteFile(t, timekeeping.UnitFile, "[Service]\n", 0o644)
	f.Unit("chrony").Runs()
	return f
}

// removes is a program that removes files and folders.
func removes(names []string) hosttest.Program {
	return func(_ context.Context, c *hosttest.Call) int {
		for _, name := range names {
			if err := os.RemoveAll(c.Host.Path(name)); err != nil {
				return 1
			}
		}
		return 0
	}
}

// leaving is a cluster that an agent leaves, and the agent. One of the two breaks.
type leaving struct {
	*kubetest.Memory
	host   *hosttest.Fake
	byHost bool
}

func (w leaving) BreakAfter(n int) {
	if w.byHost {
		w.host.BreakAfter(n)
		return
	}
	w.Memory.BreakAfter(n)
}

func (w leaving) Snapshot(t testing.TB) string { return w.Memory.Snapshot(t) + w.host.Snapshot(t) }

func (w leaving) Lost(err error) bool { return errors.Is(err, hosttest.ErrLost) || w.Memory.Lost(err) }

// anew is the removal of the agent by a run that begins now.
func (w leaving) anew(t *testing.T, in *installation) *removal {
	t.Helper()
	r := &removal{members: in.members, node: kube.Node{Name: "worker"}, phase: "remove", reason: "it is to be removed",
		gone: true}
	nodes, err := in.site.API.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if n.Name == "worker" {
			r.node, r.gone = n, false
		}
	}
	return r
}

// carryOut does the steps that are needed, in their order, as the engine does.
func (r *removal) carryOut(ctx context.Context, conn host.Host) error {
	for _, step := range r.steps(conn) {
		reason, err := step.Needed(ctx)
		if err == nil && reason != "" {
			err = step.Run(ctx)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step.Title, err)
		}
	}
	return nil
}

// Wherever a removal is broken off, and the one after it too, the next one ends where a removal at once does.
func TestRemovalGoesOn(t *testing.T) {
	fresh := func(byHost bool) (leaving, *installation) {
		in, m := onCluster(t, sitetest.ExampleConfig, working()...)
		return leaving{m, prepared(t, agent(t, onAgent...)), byHost}, in
	}
	w, in := fresh(false)
	if err := w.anew(t, in).carryOut(t.Context(), w.host); err != nil {
		t.Fatal(err)
	}
	end := w.Snapshot(t)
	for _, path := range []string{
		"/api/v1/nodes/worker", "/api/v1/namespaces/kube-system/secrets/worker.node-password.k3s",
		"/api/v1/namespaces/shop/pods/web",
	} {
		if w.Object(t, path) != nil {
			t.Errorf("%s is still there", path)
		}
	}
	for _, name := range append(onAgent, dnsUnit, run.DNSDir+"/dnsmasq.conf") {
		if w.host.ReadFile(t, name) != "" {
			t.Errorf("%s is still there", name)
		}
	}
	if active := w.host.Unit("boxlift-dns").Active(); active != "inactive" {
		t.Errorf("the DNS server is %s", active)
	}
	for name, before := range map[string]string{inotify: "128\n", "/etc/hosts": ownHosts} {
		if got := w.host.ReadFile(t, name); got != before {
			t.Errorf("%s is not as it was before boxlift: %q", name, got)
		}
	}
	if w.host.ReadFile(t, "/etc/hostname") == "" || w.host.ReadFile(t, "/var/lib/rancher/other/data") == "" {
		t.Error("what is somebody else's has gone")
	}
	// attempt breaks one removal off, and reports whether it has come to its end before that.
	attempt := func(w leaving, in *installation, n int) bool {
		t.Helper()
		r := w.anew(t, in)
		w.BreakAfter(n)
		err := r.carryOut(t.Context(), w.host)
		w.BreakAfter(-1)
		if err != nil && !w.Lost(err) {
			t.Fatalf("broken off after %d: %v", n, err)
		}
		return err == nil
	}
	for _, byHost := range []bool{false, true} {
		for n, ended := 0, false; !ended; n++ {
			for _, second := range []int{0, 3} {
				w, in := fresh(byHost)
				ended = attempt(w, in, n)
				w.byHost = !byHost
				attempt(w, in, second)
				if err := w.anew(t, in).carryOut(t.Context(), w.host); err != nil {
					t.Fatalf("broken off after %d and %d, done again: %v", n, second, err)
				}
				if diff := cmp.Diff(end, w.Snapshot(t)); diff != "" {
					t.Errorf("broken off after %d and %d (host: %v), it comes to another end: %s", n, second, byHost,
						diff)
				}
			}
			if n > 50 {
				t.Fatal("it does not end")
			}
		}
	}
}

// ofHost are the steps that give a host back, in their order.
var ofHost = []string{
	"remove-front",
	"remove-backups",
	"remove-renewal",
	"remove-dns",
	"give-time-back",
	"give-host-back",
	"remove-names",
	"uninstall-k3s",
}

// What is done to a node depends on what there is: without a host to log in to nothing is uninstalled, and of a node
// that has gone nothing but its host is left.
func TestRemovalSteps(t *testing.T) {
	conn := prepared(t, agent(t, onAgent...))
	for _, test := range []struct {
		name string
		gone bool
		conn host.Host
		want []string
	}{
		{"a node", false, conn, slices.Concat([]string{"cordon-node", "drain-node", "delete-node"}, ofHost)},
		{"a node whose host is not reached", false, nil, []string{"cordon-node", "drain-node", "delete-node"}},
		{"a host without a node", true, conn, ofHost},
		{"neither", true, nil, nil},
	} {
		in, m := onCluster(t, sitetest.ExampleConfig, working()...)
		r := &removal{
			members: in.members, node: kube.Node{Name: "worker", Addresses: []string{"10.0.0.9", "worker"}},
			gone:   test.gone,
			reason: "it is to be removed",
		}
		var ids []string
		for _, step := range r.steps(test.conn) {
			ids = append(ids, step.ID)
			reason, err := step.Needed(t.Context())
			want := r.reason
			if reason, ofHost := map[string]string{
				"uninstall-k3s":  "/usr/local/bin/k3s-agent-uninstall.sh is there",
				"remove-renewal": renewalTimer + " is there",
				"give-time-back": timekeeping.ConfigurationFile + " is there, and the host does not keep time with boxlift any more",
				"remove-backups": "/etc/boxlift-backup is there, and no backups are to be made any more; those that were " +
					"made stay in /var/backups/boxlift",
				"give-host-back": prepare.KeptFile + " is there",
				"remove-dns":     dnsUnit + " is there, and the host is not to serve names",
				"remove-names":   "/etc/hosts has names of install.yaml",
				"remove-front":   front.Dir + " is there, of the address that servers have in turn",
			}[step.ID]; ofHost {
				want = reason
			}
			if reason != want || err != nil {
				t.Errorf("%s: %s is needed because %q, %v", test.name, step.ID, reason, err)
			}
			if step.Takes != (step.ID == "uninstall-k3s") {
				t.Errorf("%s: %s takes away what was left behind: %v", test.name, step.ID, step.Takes)
			}
			// A run that ends between these two leaves a host behind of which the cluster tells nothing.
			left := &journal.Left{Host: "worker (10.0.0.9)", Node: "worker", Address: "10.0.0.9"}
			if step.ID != "delete-node" {
				left = nil
			}
			if diff := cmp.Diff(left, step.Leaves); diff != "" {
				t.Errorf("%s: %s leaves %s", test.name, step.ID, diff)
			}
		}
		if diff := cmp.Diff(test.want, ids); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
		if m.Changes() != nil {
			t.Errorf("%s: looking has changed %q", test.name, m.Changes())
		}
		// Once the node has gone, its steps are not needed even when they were made before.
		steps := r.steps(test.conn)
		r.gone = true
		for _, step := range steps {
			if reason, err := step.Needed(t.Context()); !slices.Contains(ofHost, step.ID) && (reason != "" || err != nil) {
				t.Errorf("%s: %s is needed because %q, %v", test.name, step.ID, reason, err)
			}
		}
	}
	in := example(t, sitetest.ExampleConfig)
	r := &removal{members: in.members, node: kube.Node{Name: "worker"}, host: in.site.Hosts[1]}
	if diff := cmp.Diff(&journal.Left{Host: "10.0.0.12", Node: "worker", Address: "10.0.0.12"}, r.left()); diff != "" {
		t.Errorf("one of install.yaml leaves %s", diff)
	}
}

// Whatever is left of k3s and boxlift, alone, has to go; where it has gone, nothing has to.
func TestUninstallStep(t *testing.T) {
	step := func(in *installation, f host.Host) run.Step {
		steps := (&removal{members: in.members, node: kube.Node{Name: "worker"}, gone: true}).steps(f)
		return steps[len(steps)-1]
	}
	for _, test := range []struct {
		name  string
		files []string
		why   string
		stays []string
	}{
		{name: "nothing"},
		{name: "all of it", files: onAgent, why: "k3s-agent-uninstall.sh is there"},
		{name: "the uninstaller alone", files: onAgent[2:3], why: "k3s-agent-uninstall.sh is there"},
		{name: "the program alone", files: onAgent[:1], why: "/usr/local/bin/k3s is there"},
		{name: "a registry and boxlift-node", files: onAgent[14:], why: run.RegistryUnit + " is there"},
		{name: "k3s' data alone", files: []string{"/var/lib/rancher/k3s/agent/x"},
			why: "/var/lib/rancher/k3s is there"},
		{name: "a registry alone", files: []string{run.RegistryDir + "/config.json"},
			why: run.RegistryDir + " is there"},
		// The run got no further than boxlift-node: kubelet and Cilium are somebody else's.
		{name: "boxlift-node beside another cluster's kubelet", files: []string{
			site.HelperPath, "/var/lib/kubelet/config", "/etc/cni/net.d/05-cilium.conflist", "/opt/cni/bin/cilium-cni"},
			why: "/var/lib/boxlift is there", stays: []string{
				"/var/lib/kubelet/config", "/etc/cni/net.d/05-cilium.conflist", "/opt/cni/bin/cilium-cni"}},
	} {
		for _, byHost := range []bool{true, false} {
			if !byHost && len(test.files) < len(onAgent) {
				continue // the cluster is asked for the same
			}
			t.Run(fmt.Sprintf("%s/host %v", test.name, byHost), func(t *testing.T) {
				var last *hosttest.Fake
				steptest.ProveIn(t, steptest.Wide{Why: test.why,
					Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
						in, m := onCluster(t, sitetest.ExampleConfig)
						last = agent(t, test.files...)
						w := leaving{m, last, byHost}
						return w, func() run.Step { return step(in, w.host) }
					}})
				for _, name := range test.stays {
					if last.ReadFile(t, name) == "" {
						t.Errorf("%s has gone", name)
					}
				}
				if unit := last.Unit("k3s-agent"); slices.Contains(test.files, onAgent[0]) &&
					unit.Active() != "inactive" {
					t.Errorf("k3s is %s", unit.Active())
				}
			})
		}
	}
}

// An uninstall that does not get to its end says so, and can be done again.
func TestUninstallStepFails(t *testing.T) {
	const uninstaller = "k3s-agent-uninstall.sh"
	for _, test := range []struct {
		name  string
		meets func(*testing.T, *installation, *hosttest.Fake) host.Host
		want  []string
	}{
		{"k3s' own script fails", func(_ *testing.T, _ *installation, f *hosttest.Fake) host.Host {
			f.Program(uninstaller, hosttest.Fails(7, "umount: target is busy\x1b[2J"))
			return f
		}, []string{"uninstall k3s", "umount: target is busy\ufffd[2J"}},
		{"k3s' own script leaves itself", func(_ *testing.T, _ *installation, f *hosttest.Fake) host.Host {
			f.Program(uninstaller, hosttest.Prints("done\n"))
			return f
		}, []string{"/usr/local/bin/" + uninstaller + " is there after its uninstall script ran"}},
		{"it takes longer than a command may", func(_ *testing.T, in *installation, f *hosttest.Fake) host.Host {
			f.Program(uninstaller, func(context.Context, *hosttest.Call) int { return 0 })
			return ending{f}
		}, []string{"context deadline exceeded"}},
		{"what it says then has no end", func(_ *testing.T, _ *installation, f *hosttest.Fake) host.Host {
			return saying{f, "look for k3s", strings.Repeat("\x1b]0;", 1<<18)}
		}, []string{"after its uninstall script ran"}},
	} {
		in, _ := onCluster(t, sitetest.ExampleConfig)
		f := agent(t, onAgent...)
		r := &removal{members: in.members, node: kube.Node{Name: "worker"}, gone: true}
		steps := r.steps(test.meets(t, in, f))
		err := steps[len(steps)-1].Run(t.Context())
		if err == nil {
			t.Errorf("%s: it went well", test.name)
			continue
		}
		kubetest.Contains(t, err.Error(), test.want...)
		if len(err.Error()) > 1000 || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: the error has %d bytes: %.200q", test.name, len(err.Error()), err)
		}
		f.Program(uninstaller, removes(ofUninstaller))
		if err := r.carryOut(t.Context(), f); err != nil {
			t.Errorf("%s, done again: %v", test.name, err)
		}
	}
	// Where the host does not say what is there, nothing is taken for gone.
	in, _ := onCluster(t, sitetest.ExampleConfig)
	f := agent(t, onAgent...)
	f.BreakAfter(0)
	steps := (&removal{members: in.members, gone: true}).steps(f)
	if reason, err := steps[0].Needed(t.Context()); !errors.Is(err, hosttest.ErrLost) {
		t.Errorf("%q, %v", reason, err)
	}
}

// Data is judged before the first thing that is taken from the host, and once more before the uninstall, not before
// each.
func TestDataIsJudgedBeforeTheHost(t *testing.T) {
	// What the steps of ofHost find on a host, in their order.
	found := [][]string{{front.Dir}, {"/etc/boxlift-backup"}, ofRenewal, {dnsUnit, run.DNSDir, "/var/lib/boxlift/dns-started"}, ofTime, {prepare.KeptFile}}
	type row struct {
		name   string
		set    func(*testing.T, *hosttest.Fake) *hosttest.Fake
		judges []string // the steps
	}
	tests := []row{{"nothing is to be given back", func(t *testing.T, f *hosttest.Fake) *hosttest.Fake {
		t.Helper()
		if err := os.RemoveAll(f.Path("/etc/boxlift-backup")); err != nil {
			t.Fatal(err)
		}
		return f
	}, []string{"uninstall-k3s"}}}
	for i := range len(found) + 1 {
		tests = append(tests, row{ofHost[i] + " is the first", func(t *testing.T, f *hosttest.Fake) *hosttest.Fake {
			t.Helper()
			prepared(t, f)
			for _, name := range slices.Concat(found[:i]...) {
				if err := os.RemoveAll(f.Path(name)); err != nil {
					t.Fatal(err)
				}
			}
			return f
		}, []string{ofHost[i], "uninstall-k3s"}})
	}
	for _, test := range tests {
		in, m := onCluster(t, sitetest.ExampleConfig)
		f := test.set(t, agent(t, onAgent...))
		r := &removal{members: in.members, node: kube.Node{Name: "worker"}, gone: true}
		var asked atomic.Bool
		m.Instead = func(_ http.ResponseWriter, r *http.Request) bool {
			if strings.HasPrefix(r.URL.Path, "/api/v1/persistentvolumes") {
				asked.Store(true)
			}
			return false
		}
		var judges []string
		for _, step := range r.steps(f) {
			reason, err := step.Needed(t.Context())
			if err == nil && reason != "" {
				asked.Store(false)
				err = step.Run(t.Context())
			}
			if err != nil {
				t.Fatalf("%s: %s: %v", test.name, step.ID, err)
			}
			if asked.Load() {
				judges = append(judges, step.ID)
			}
			asked.Store(false)
		}
		if diff := cmp.Diff(test.judges, judges); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

// timed notes which commands have a deadline.
type timed struct {
	host.Host
	limited map[string]bool
}

func (h timed) Run(ctx context.Context, c host.Command) (host.Result, error) {
	_, h.limited[c.Label()] = ctx.Deadline()
	return h.Host.Run(ctx, c)
}

// What an uninstall may take is not taken from the time of apt, nor the other way round: each script has its own limit.
func TestUninstallLimits(t *testing.T) {
	in, _ := onCluster(t, sitetest.ExampleConfig)
	f := agent(t, onAgent...)
	debtest.Install(t, f, debtest.Installed{Name: "haproxy", Version: "2"})
	f.WriteFile(t, packages.MarkFile, `{"version":1,"packages":[{"name":"haproxy","architecture":"amd64"}]}`, 0o600)
	h := timed{f, make(map[string]bool)}
	if err := (&removal{members: in.members, node: kube.Node{Name: "worker"}, gone: true}).uninstall(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if len(h.limited) < 5 || len(debtest.Packages(t, f)) != 0 {
		t.Errorf("it has run %v", h.limited)
	}
	for title, limited := range h.limited {
		if own := title == "uninstall k3s" || title == "remove boxlift's folders"; limited != own {
			t.Errorf("%s: limited is %t", title, limited)
		}
	}
}

// The packages that boxlift has installed go with k3s, and those that are the host's by now are told of. Broken off
// anywhere and done again, it comes to the same end.
func TestUninstallTakesPackages(t *testing.T) {
	const mark = `{"version":1,"packages":[{"name":"haproxy","architecture":"amd64"},{"name":"liblua","architecture":"amd64","automatic":true}]}`
	fresh := func(t *testing.T) (*installation, *hosttest.Fake, run.Step) {
		in, _ := onCluster(t, sitetest.ExampleConfig)
		f := agent(t, onAgent...)
		debtest.Install(t, f, debtest.Installed{Name: "haproxy", Version: "2", Depends: []string{"liblua"}},
			debtest.Installed{Name: "liblua", Version: "1", Auto: true}, debtest.Installed{Name: "nginx", Version: "1", Depends: []string{"liblua"}})
		f.WriteFile(t, packages.MarkFile, mark, 0o600)
		steps := (&removal{members: in.members, node: kube.Node{Name: "worker"}, gone: true}).steps(f)
		return in, f, steps[len(steps)-1]
	}
	in, f, step := fresh(t)
	reason, err := step.Needed(t.Context())
	if err != nil || !strings.HasSuffix(reason, " is there, and packages that boxlift has installed: haproxy, liblua") {
		t.Errorf("%q, %v", reason, err)
	}
	if err := step.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := debtest.Packages(t, f); len(all) != 2 || all["liblua"].Abbrev != "ii " || all["nginx"].Abbrev != "ii " {
		t.Errorf("left: %+v", all)
	}
	kubetest.Contains(t, strings.Join(in.site.Warnings, "\n"), "worker: a package that boxlift has installed stays: liblua: it is needed by nginx")
	end := f.Snapshot(t)
	for n := range 100 {
		_, f, step := fresh(t)
		f.BreakAfter(n)
		err := step.Run(t.Context())
		f.BreakAfter(-1)
		if err == nil {
			return
		}
		if reason, err := step.Needed(t.Context()); err != nil || reason == "" && f.Snapshot(t) != end {
			t.Fatalf("broken off after %d: %q, %v", n, reason, err)
		} else if reason != "" {
			if err := step.Run(t.Context()); err != nil {
				t.Fatalf("broken off after %d and done again: %v", n, err)
			}
		}
		if diff := cmp.Diff(end, f.Snapshot(t)); diff != "" {
			t.Errorf("broken off after %d and done again: %s", n, diff)
		}
	}
	t.Error("it does not come to its end")
}

// ending is a host whose commands take longer than they may.
type ending struct{ *hosttest.Fake }

func (e ending) Run(ctx context.Context, cmd host.Command) (host.Result, error) {
	if cmd.Title != "uninstall k3s" {
		return e.Fake.Run(ctx, cmd)
	}
	deadline, bounded := ctx.Deadline()
	if !bounded || time.Until(deadline) < time.Minute {
		return host.Result{}, errors.New("it is given no time, or all of it")
	}
	return host.Result{ExitCode: -1}, context.DeadlineExceeded
}

// saying is a host that answers one command with a text.
type saying struct {
	*hosttest.Fake
	title, text string
}

func (s saying) Run(ctx context.Context, cmd host.Command) (host.Result, error) {
	if cmd.Title == s.title {
		return host.Result{Stdout: []byte(s.text)}, nil
	}
	return s.Fake.Run(ctx, cmd)
}

// Cilium's rules go, and no others; what cannot be put right keeps nobody from the rest.
func TestCiliumIsTakenOut(t *testing.T) {
	// The interpreter of scripts looks for programs on this machine.
	script := strings.ReplaceAll(TakeCiliumOut, "command -v", "true")
	for name, test := range map[string]struct {
		rules, want string
		fails       bool
	}{
		"its rules among others": {rules: "*filter\n-A INPUT -j CILIUM_INPUT\n-A INPUT -p tcp -j ACCEPT\nCOMMIT\n",
			want: "*filter\n-A INPUT -p tcp -j ACCEPT\nCOMMIT\n"},
		"no rules":                 {},
		"rules that are not taken": {rules: "*filter\n:CILIUM_INPUT - [0:0]\nCOMMIT\n", fails: true},
	} {
		f := hosttest.New(t, "worker")
		var links, restored []string
		f.Program("ip", func(_ context.Context, c *hosttest.Call) int {
			links = append(links, strings.Join(c.Args, " "))
			return 1 // there is none
		})
		for _, family := range []string{"iptables", "ip6tables"} {
			f.Program(family+"-save", hosttest.Prints(test.rules))
			f.Program(family+"-restore", func(_ context.Context, c *hosttest.Call) int {
				text, err := io.ReadAll(c.Stdin)
				if err != nil || test.fails {
					return 4
				}
				restored = append(restored, string(text))
				return 0
			})
		}
		result, err := f.Run(t.Context(), host.Command{Args: []string{"/bin/sh", "-c", script}, Root: true})
		if err != nil || !slices.Contains(links, "link delete cilium_vxlan") || len(links) != 6 {
			t.Errorf("%s: %v, %q", name, err, links)
		}
		said := strings.Contains(string(result.Stderr), "the ip6tables rules of Cilium are still there")
		if said != test.fails {
			t.Errorf("%s: it says %q", name, result.Stderr)
		}
		var want []string
		if test.want != "" {
			want = []string{test.want, test.want}
		}
		if diff := cmp.Diff(want, restored); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// A host that loses its power in the middle of an uninstall, whatever has gone by then, comes to the same end later.
func TestUninstallIsCutOff(t *testing.T) {
	in, _ := onCluster(t, sitetest.ExampleConfig)
	uninstall := func(ctx context.Context, f *hosttest.Fake) error {
		return (&removal{members: in.members, node: kube.Node{Name: "worker"}, gone: true}).carryOut(ctx, f)
	}
	whole := agent(t, onAgent...)
	if err := uninstall(t.Context(), whole); err != nil {
		t.Fatal(err)
	}
	end := whole.Snapshot(t)
	for n := 0; ; n++ {
		f := agent(t, onAgent...)
		ctx, powerOff := context.WithCancel(t.Context())
		left := n
		remove := func(_ context.Context, c *hosttest.Call) int {
			names := c.Args
			if len(names) == 0 {
				names = ofUninstaller
			}
			for _, name := range names {
				if strings.HasPrefix(name, "-") {
					continue
				}
				if left == 0 {
					powerOff()
					return 1
				}
				left--
				if err := os.RemoveAll(c.Host.Path(name)); err != nil {
					t.Error(err)
				}
			}
			return 0
		}
		f.Program("rm", remove)
		f.Program("k3s-agent-uninstall.sh", remove)
		err := uninstall(ctx, f)
		powerOff()
		if err == nil {
			if n < 20 {
				t.Errorf("it is done when %d files were removed", n)
			}
			return
		}
		left = -1
		if err := uninstall(t.Context(), f); err != nil {
			t.Fatalf("cut off after %d files, done again: %v", n, err)
		}
		if diff := cmp.Diff(end, f.Snapshot(t)); diff != "" {
			t.Errorf("cut off after %d files and done again, it comes to another end: %s", n, diff)
		}
	}
}

// Pods are evicted from a node that somebody answers for; what cannot be brought back elsewhere is lost only when that
// is asked for.
func TestDrainStep(t *testing.T) {
	bare := owned("bare", "")
	for _, test := range []struct {
		name      string
		pods      []runtime.Object
		unmanaged bool
		node      kube.Node
		k3s       string // the state of the service on the host, "" where it is not reached
		evicted   []string
		want      string
	}{
		{name: "pods of controllers", node: kube.Node{Ready: true}, evicted: []string{"web"}},
		{name: "one that nobody makes anew", pods: []runtime.Object{bare}, node: kube.Node{Ready: true},
			want: "shop/bare"},
		{name: "one that nobody makes anew, as asked", pods: []runtime.Object{bare}, unmanaged: true,
			node:    kube.Node{Ready: true},
			evicted: []string{"bare", "web"}},
		{name: "a node that is down, whose k3s runs", k3s: "active", evicted: []string{"web"}},
		{name: "a node that is down, whose k3s does not run", k3s: "inactive", evicted: []string{"web"}},
	} {
		in, m := onCluster(t, sitetest.ExampleConfig, append(working(), test.pods...)...)
		test.node.Name = "worker"
		f := agent(t, onAgent...)
		if test.k3s == "inactive" {
			f = hosttest.New(t, "worker")
			f.Unit("k3s-agent")
		}
		r := &removal{members: in.members, node: test.node, unmanaged: test.unmanaged, reason: "it is to be removed"}
		err := r.steps(f)[1].Run(t.Context())
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
		var evicted []string
		for _, change := range m.Changes() {
			if name, ok := strings.CutPrefix(change, "POST /api/v1/namespaces/shop/pods/"); ok {
				evicted = append(evicted, strings.TrimSuffix(name, "/eviction"))
			}
		}
		slices.Sort(evicted)
		if diff := cmp.Diff(test.evicted, evicted); diff != "" {
			t.Errorf("%s: evicted %s", test.name, diff)
		}
		cordoned, _, err := unstructured.NestedBool(m.Object(t, "/api/v1/nodes/worker").Object, "spec", "unschedulable")
		if err != nil || !cordoned {
			t.Errorf("%s: new pods may come", test.name)
		}
	}
	// A node that has gone meanwhile is said to have gone.
	in, _ := onCluster(t, sitetest.ExampleConfig)
	r := &removal{members: in.members, node: kube.Node{Name: "worker", Ready: true}}
	for i, step := range r.steps(nil) {
		if err := step.Run(t.Context()); errors.Is(err, kube.ErrNoNode) != (i < 2) || i == 2 && err != nil {
			t.Errorf("%s: %v", step.ID, err)
		}
	}
}

// Whether anybody ends a node's pods is asked of its host, if that is reached.
func TestKubeletIsGone(t *testing.T) {
	for name, test := range map[string]struct {
		ready, unreachable, connected bool
		units                         map[string]string
		broken, gone                  bool
	}{
		"a node that is Ready":       {ready: true, connected: true, broken: true},
		"k3s runs as an agent":       {connected: true, units: map[string]string{"k3s-agent": "active"}},
		"k3s runs as a server":       {connected: true, units: map[string]string{"k3s": "active"}},
		"k3s does not run":           {connected: true, units: map[string]string{"k3s-agent": "inactive"}, gone: true},
		"there is no k3s":            {connected: true, gone: true},
		"the host is not reached":    {unreachable: true, gone: true},
		"it was not tried":           {},
		"Ready, and it is forgotten": {ready: true, unreachable: true},
	} {
		f := hosttest.New(t, "worker")
		for unit, state := range test.units {
			if u := f.Unit(unit); state == "active" {
				u.Runs()
			}
		}
		r := &removal{node: kube.Node{Name: "worker", Ready: test.ready}, unreachable: test.unreachable}
		var conn host.Host
		if test.connected {
			conn = f
		}
		if test.broken {
			f.BreakAfter(0)
		}
		if gone, err := r.kubeletIsGone(t.Context(), conn); gone != test.gone || err != nil {
			t.Errorf("%s: %v, %v", name, gone, err)
		}
	}
	f := hosttest.New(t, "worker")
	f.BreakAfter(0)
	if _, err := (&removal{}).kubeletIsGone(t.Context(), f); !errors.Is(err, hosttest.ErrLost) {
		t.Errorf("a host that does not answer: %v", err)
	}
}

// Servers may fail while others are removed: before each removal, what is left is judged anew.
func TestServersAreJudgedAgain(t *testing.T) {
	role := map[string]string{"node-role.kubernetes.io/etcd": "true"}
	remove := func(names ...string) []*removal {
		var removals []*removal
		for _, name := range names {
			removals = append(removals, &removal{node: kube.Node{Name: name, Server: name[0] == 's', Ready: true}})
		}
		return removals
	}
	for _, test := range []struct {
		name   string
		nodes  []runtime.Object
		remove []*removal
		want   string
	}{
		{"all are well", []runtime.Object{kubetest.Labelled("s1", role), kubetest.Labelled("s2", role),
			kubetest.Labelled("s3", role)},
			remove("s1", "s2"), ""},
		{"one that stays has failed", []runtime.Object{kubetest.Labelled("s1", role), kubetest.Labelled("s2", role),
			down("s3", role)},
			remove("s1"), "1 of 2 servers would be left that are Ready"},
		{"one that leaves has failed", []runtime.Object{down("s1", role), kubetest.Labelled("s2", role),
			kubetest.Labelled("s3", role)},
			remove("s1"), ""},
		{"the others have gone", []runtime.Object{kubetest.Labelled("s1", role)}, remove("s1"),
			"the last server is never removed"},
		{"agents do not count", nil, remove("a"), ""},
	} {
		in, _ := onCluster(t, sitetest.ExampleConfig, test.nodes...)
		err := in.members.checkStill(t.Context(), test.remove)
		if (err == nil) != (test.want == "") || err != nil &&
			(!errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
	in, m := onCluster(t, sitetest.ExampleConfig)
	m.Instead = func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "no", http.StatusInternalServerError)
		return true
	}
	if err := in.members.checkStill(t.Context(), remove("s1")); err == nil {
		t.Error("servers that nobody tells of are taken for well")
	}
}
