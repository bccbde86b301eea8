package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/test/certificate"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

// upgradeHosts are a server and agents.
const upgradeHosts = `cluster:
  name: e2e
  servers: [{host: %s, password: "${ROOT_PASSWORD}"}]
  agents:
%sssh: {knownHostsFile: known_hosts}
`

const plainNetwork = "network: {cni: cilium}\n"

// upgrade is boxlift upgrade, agents one by one.
func upgrade(t *testing.T, site *testbed.Site, bundle string, more ...string) result {
	t.Helper()
	return run(t, site.Boxlift(t.Context(), passwords, append([]string{"upgrade", "--bundle", bundle, "--key", "boxlift.pub", "--batch-size", "1"}, more...)...))
}

// kubelets are the versions of the nodes by name.
func kubelets(t *testing.T, server *lab.Host) map[string]string {
	t.Helper()
	found := make(map[string]string)
	out := kubectl(t, server, "get", "nodes", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.nodeInfo.kubeletVersion}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		found[name] = version
	}
	return found
}

// checkPodsReady makes sure that no pod of a node is unready now.
func checkPodsReady(t *testing.T, server *lab.Host, node string) {
	t.Helper()
	out := kubectl(t, server, "get", "pods", "-A", "--field-selector", "spec.nodeName="+node, "-o",
		`jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
	if len(out) == 0 {
		t.Errorf("no pod is on %s", node)
	}
	for line := range strings.Lines(out) {
		if !strings.HasSuffix(line, " True\n") {
			t.Errorf("on %s a pod is not ready: %s", node, line)
		}
	}
}

// A cluster goes to the next patch of k3s and the next LiteBoxd while it is used: no request fails, and no connection
// to a sandbox is cut off before LiteBoxd's turn. Only hosts show what users of a cluster see whose API is started
// again, and only with the machine for themselves that it was not the machine.
func TestUpgrade(t *testing.T) {
	parallelIn(t, 6*time.Minute, alone)
	u := newUpgrade(t, bundleOf(t, upstream.LockOptions{Release: upstream.Patched}), "server", "a", "b")
	site, server := u.Site, u.Hosts[0]
	type list struct{ Items []json.RawMessage }
	made := func() (found [2]int) {
		for i, what := range []string{"templates", "images/prepull"} {
			var l list
			u.box.call(http.MethodGet, what, nil, &l)
			found[i] = len(l.Items)
		}
		return found
	}
	u.box.call(http.MethodPost, "images/prepull", map[string]any{"image": upstream.SandboxRef}, nil)
	before := made()
	echo := lifetime(u.box.socket(gatewayHost, u.boxes[1].path(8080), u.boxes[1].header()))
	load, start := u.box.load(u.boxes[0]), time.Now()
	done := succeeded(t, "the upgrade under load", upgrade(t, site, u.next, "--canary", "1", "--pause-between", "2s"))
	load.check(t, 2500)
	outlivesDrain(t, "the gateway's WebSocket", echo, start)
	t.Log(done.stdout)
	contains(t, "progress", done.stderr, "pause for 2s before the next agents")
	samePods(t, site, "sandboxes", u.sandboxes, sandboxPods(t, server))
	if diff := cmp.Diff(before, made()); diff != "" {
		t.Errorf("templates and prepulls: %s", diff)
	}
	checkBackup(t, server, done.stdout, backedUp{len(u.boxes), before[0], before[1]})
	checkAll(t, site, upstream.Patched.K3s)
	if got := u.box.version(); got != upstream.LiteBoxdNext {
		t.Errorf("LiteBoxd is %s", got)
	}
	if h := history(t, site); len(h) != 2 || h[0].State != "succeeded" || h[0].Attempts != 1 || !h[0].Current {
		t.Errorf("after the upgrade: %+v", h)
	}
	contains(t, "the upgrade again", succeeded(t, "the upgrade again", upgrade(t, site, u.next)).stdout, "nothing to do")
	checkNothingLeaked(t, site)
}

// outlivesDrain makes sure that a connection was cut off with the pod that it went through, which drains first.
func outlivesDrain(t *testing.T, what string, cut <-chan time.Time, start time.Time) {
	t.Helper()
	select {
	case at := <-cut:
		if at.Sub(start) < drainLimit {
			t.Errorf("%s was cut off %v after the upgrade began, the limit is %v", what, at.Sub(start), drainLimit)
		}
	case <-time.After(2 * drainLimit):
		t.Errorf("%s is still open: its old pod was not replaced", what)
	}
}

// upgraded is a cluster with LiteBoxd, and with sandboxes on it, that is to be upgraded.
type upgraded struct {
	*testbed.Site
	next      string // the bundle to go to
	box       *box
	boxes     []boxed
	sandboxes map[string]string // by [sandboxPods]
}

// newUpgrade installs a cluster of a server and two agents or more. On the server and on the second agent the newer k3s
// does not start while the file /root/fault is there.
func newUpgrade(t *testing.T, next string, names ...string) *upgraded {
	t.Helper()
	var hosts []lab.HostOptions
	for _, name := range names {
		hosts = append(hosts, lab.HostOptions{Name: name, RootPassword: rootPassword})
	}
	u := &upgraded{Site: newSite(t, hosts...), next: next}
	server := u.Hosts[0]
	u.configure(t, plainNetwork)
	writeSite(t, u.Site, "values.env", "LOG_LEVEL=debug\n")
	putFault(t, server, "k3s")
	putFault(t, u.Hosts[2], "k3s-agent")
	first := mustRun(t, install(t.Context(), u.Site))
	shown := shownLogin.FindStringSubmatch(first.stdout)
	if shown == nil {
		t.Fatalf("the first login was not shown:\n%s", first.stdout)
	}
	u.box = newBox(t, u.Site, server)
	u.box.login(shown[1], shown[2])
	u.box.newTemplate()
	u.boxes = []boxed{u.box.newSandbox(), u.box.newSandbox(), u.box.newSandbox()}
	u.sandboxes = sandboxPods(t, server)
	return u
}

// configure writes install.yaml with something more.
func (u *upgraded) configure(t *testing.T, more string) {
	t.Helper()
	var agents strings.Builder
	for _, h := range u.Hosts[1:] {
		fmt.Fprintf(&agents, "    - {host: %s, password: \"${ROOT_PASSWORD}\"}\n", h.Address)
	}
	writeConfig(t, u.Bed, upgradeHosts+withLiteBoxd+more, u.Hosts[0].Address, agents.String())
}

// The new k3s never starts on the server, and then on one agent: that node goes back, what comes after it is not
// touched, and when the cause is gone the upgrade goes on, also from another machine. Then the cluster goes back to
// where it came from. Sandboxes run on all the while. Only hosts show that a k3s which does not start gives way to the
// one before, with the data that both have used.
func TestUpgradeGoesBack(t *testing.T) {
	parallel(t, 9*time.Minute)
	next, newer := movedBundle(t, upstream.LockOptions{Release: upstream.Patched}, movedRef)
	u := newUpgrade(t, next, "server", "a", "b", "c")
	site, server, broken := u.Site, u.Hosts[0], u.Hosts[2]
	older := movedTag(t, server)
	testNoBackup(t, site, next)
	testServerIsDown(t, u)
	endsSoon := putAuthority(t, server, 30*24*time.Hour)
	plan := mustRun(t, site.Boxlift(t.Context(), passwords, "upgrade", "plan", "--bundle", next, "--key", "boxlift.pub"))
	contains(t, "the plan", plan.stdout, endsSoon)
	onHost(t, broken, "touch", "/root/fault")
	r := upgrade(t, site, next, "--accept-drift")
	if r.code != 6 {
		t.Fatalf("want exit code 6: %v", r)
	}
	checkPodsReady(t, server, "b")
	contains(t, "the error", r.stderr, broken.Address.String()+": start k3s", "the host went back to k3s "+release.K3s+", and is Ready with it",
		"not touched because of that: "+site.Hosts[3].Address.String(), "boxlift resume goes on")
	if diff := cmp.Diff(map[string]string{"server": upstream.Patched.K3s, "a": upstream.Patched.K3s, "b": release.K3s, "c": release.K3s}, kubelets(t, server)); diff != "" {
		t.Errorf("after one agent went back: %s", diff)
	}
	if h := history(t, site); len(h) != 2 || h[0].State != "failed" || h[0].Command != "upgrade" || !strings.Contains(h[0].Result, "went back to k3s") || !h[1].Current {
		t.Errorf("after one agent went back: %+v", h)
	}
	backups := onlyFiles(t, filepath.Join(site.Bed.Dir, "backups", "e2e"))
	if len(backups) != 1 {
		t.Errorf("backups: %v", backups)
	}

	// The laptop is lost, and another one has the configuration and the bundle.
	testResumeElsewhere(t, site, next)
	for _, name := range []string{"releases", "state.json", "state.json.lock"} {
		if err := os.RemoveAll(filepath.Join(site.Bed.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	onHost(t, broken, "rm", "/root/fault")
	testBrokenCilium(t, u)
	if after := onlyFiles(t, filepath.Join(site.Bed.Dir, "backups", "e2e")); cmp.Diff(backups, after) != "" {
		t.Errorf("another backup was made in between two versions: %v", after)
	}
	// The backup lies elsewhere, too.
	if err := os.Rename(filepath.Join(site.Bed.Dir, "backups"), filepath.Join(site.Bed.Dir, "backups-elsewhere")); err != nil {
		t.Fatal(err)
	}

	done := succeeded(t, "the upgrade that goes on", upgrade(t, site, next))
	t.Log(done.stdout)
	samePods(t, site, "sandboxes", u.sandboxes, sandboxPods(t, server))
	checkAll(t, site, upstream.Patched.K3s)
	if h := history(t, site); len(h) != 4 || h[0].State != "succeeded" || h[0].Attempts != 1 || !h[0].Current {
		t.Errorf("after the upgrade: %+v", h)
	}
	contains(t, "the upgrade's warnings", done.stdout, endsSoon)
	contains(t, "the upgrade without its backup", done.stdout+done.stderr, "the backup that this upgrade began with, "+backups[0]+", is not here")
	if h := history(t, site); h[0].Backup != backups[0] {
		t.Errorf("the way back is the backup %s, want that from before, %s", h[0].Backup, backups[0])
	}
	statusIsWell(t, site, next)
	checkMovedTag(t, site, next, newer)

	testRollbackTo(t, site, next)
	checkMovedTag(t, site, "bundle.tar", older)
	samePods(t, site, "sandboxes, with the rollback,", u.sandboxes, sandboxPods(t, server))
	testAdopt(t, site, next)
	checkNothingLeaked(t, site)
}

// movedRef is an image that upstream pushes again under the same tag between the two bundles of an upgrade.
const movedRef = "docker.io/library/ubuntu:24.04"

// movedTag is what movedRef stands for on a host.
func movedTag(t *testing.T, h *lab.Host) digest.Digest {
	t.Helper()
	out := onHost(t, h, "k3s", "ctr", "images", "ls", "name=="+movedRef)
	for field := range strings.FieldsSeq(out) {
		if target := digest.Digest(field); target.Validate() == nil {
			return target
		}
	}
	t.Fatalf("%s has no image %s:\n%s", h.Name, movedRef, out)
	return ""
}

// checkMovedTag makes sure that movedRef stands for a bundle's image on all hosts, and does so when k3s of a server and
// of an agent is started again with the packs of two bundles lying there.
func checkMovedTag(t *testing.T, site *testbed.Site, bundle string, want digest.Digest) {
	t.Helper()
	check := func() {
		t.Helper()
		for _, h := range site.Hosts {
			if got := movedTag(t, h); got != want {
				t.Errorf("%s: %s is %s, the bundle's is %s", h.Name, movedRef, got, want)
			}
		}
	}
	check()
	for _, h := range site.Hosts[:2] {
		onHost(t, h, "systemctl", "restart", service(t, h))
	}
	// k3s imports its last archive while it runs already.
	statusIsWell(t, site, bundle)
	check()
}

// putFault keeps the newer k3s from starting on a host while the file /root/fault is there. It
// is part of the unit before boxlift knows the host: a unit that changes is a difference.
func putFault(t *testing.T, h *lab.Host, service string) {
	t.Helper()
	onHost(t, h, "sh", "-c", `mkdir -p "$1" && cat >"$1/fault.conf" <<'END'
[Service]
RestartSec=1
ExecStartPre=/bin/sh -c '! [ -e /root/fault ] || ! /usr/local/bin/k3s --version | grep -qF `+upstream.Patched.K3s+`'
END`, "sh", "/etc/systemd/system/"+service+".service.d")
}

// putNetworkFault keeps an agent's node from getting Ready with the newer minor version while the
// file /root/fault is there: k3s starts, and pods have no network. With any other version it has.
func putNetworkFault(t *testing.T, h *lab.Host) {
	t.Helper()
	onHost(t, h, "sh", "-c", `mkdir -p "$1" && cat >"$1/fault.conf" <<'END'
[Service]
ExecStartPre=/bin/sh -c 'umount -l /etc/cni/net.d 2>/dev/null; ! [ -e /root/fault ] || ! /usr/local/bin/k3s --version | grep -qF `+release.K3s+` || mount -t tmpfs hidden /etc/cni/net.d'
END`, "sh", "/etc/systemd/system/k3s-agent.service.d")
}

// testNoBackup begins an upgrade that cannot make its backup: nothing is brought to any host, and no
// k3s is started anew.
func testNoBackup(t *testing.T, site *testbed.Site, next string) {
	t.Helper()
	seen := func() map[string]string {
		found := make(map[string]string)
		for _, h := range site.Hosts {
			found[h.Name] = onHost(t, h, "sh", "-c", `ls -i /var/lib/rancher/k3s/agent/images /var/lib/boxlift/files /usr/local/bin /etc/rancher/k3s && systemctl show -p ExecMainStartTimestampMonotonic "$1"`, "sh", service(t, h))
		}
		return found
	}
	before := seen()
	inTheWay := filepath.Join(site.Bed.Dir, "backups")
	if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := upgrade(t, site, next)
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if r.code != 3 {
		t.Errorf("want exit code 3: %v", r)
	}
	contains(t, "the error", r.stderr, "back up the cluster: refused: make the folder for the backup: ", "not a directory")
	if diff := cmp.Diff(before, seen()); diff != "" {
		t.Errorf("without a backup, hosts were changed: %s", diff)
	}
	for _, s := range readState(t, site).Steps {
		if s.Phase != "preflight" && s.Phase != "backup" {
			t.Errorf("without a backup, the upgrade went on: %+v", s)
		}
	}
	if h := history(t, site); len(h) != 2 || h[0].State != "failed" || h[0].Backup != "" || !h[1].Current {
		t.Errorf("without a backup: %+v", h)
	}
}

// testServerIsDown goes on with an upgrade that boxlift died in, whose only server does not come
// up, from another folder: no API can be asked, but the server keeps what it was. It goes back by
// itself, and nothing else was touched. Meanwhile the state of the one that died is not for another command.
func testServerIsDown(t *testing.T, u *upgraded) {
	t.Helper()
	site, server := u.Site, u.Hosts[0]
	args := []string{"upgrade", "--bundle", u.next, "--key", "boxlift.pub", "--batch-size", "1"}
	onHost(t, server, "touch", "/root/fault")
	killAt(t, site.Boxlift(t.Context(), passwords, args...), server.Address.String()+": start k3s")
	onHost(t, server, "sh", "-c", "systemctl restart k3s || :") // whether it died before or after that
	before := readState(t, site)
	r := run(t, install(t.Context(), site))
	if r.code != 3 {
		t.Errorf("want exit code 3: %v", r)
	}
	contains(t, "an installation in an upgrade", r.stderr, "boxlift upgrade with the bundle", "has begun on hosts and did not end", "boxlift resume goes on with it")
	if diff := cmp.Diff(before, readState(t, site)); diff != "" {
		t.Errorf("an installation that was refused has changed the state: %s", diff)
	}

	u.configure(t, plainNetwork+"runtime: {commandTimeoutSeconds: 75}\n")
	r = run(t, elsewhere(t, site)(args...))
	u.configure(t, plainNetwork)
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the upgrade from another folder", r.stdout+r.stderr, "whether the upgrade may go on was not judged again",
		"the host went back to k3s "+release.K3s+", and is Ready with it")
	checkAll(t, site, release.K3s)
	if h := history(t, site); len(h) != 2 || h[0].State != "failed" || h[0].Attempts < 2 ||
		!strings.Contains(h[0].Result, "went back to k3s") || !h[1].Current {
		t.Errorf("after the server went back: %+v", h)
	}
	onHost(t, server, "rm", "/root/fault")
}

// testResumeElsewhere goes on, in another folder, with the upgrade that failed on one agent, which
// is still broken: the cluster tells what to go on with, and how.
func testResumeElsewhere(t *testing.T, site *testbed.Site, next string) {
	t.Helper()
	before := kubelets(t, site.Hosts[0])
	r := run(t, elsewhere(t, site)("resume", "--bundle", next, "--key", "boxlift.pub"))
	if r.code != 2 {
		t.Errorf("want exit code 2: %v", r)
	}
	contains(t, "resume that agrees to nothing", r.stderr,
		"the run began with --accept-drift=true: resume takes no such flag")
	r = run(t, elsewhere(t, site)("resume", "--bundle", next, "--key", "boxlift.pub", "--accept-drift"))
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "resume in another folder", r.stderr, "going on with boxlift upgrade --batch-size=1, as of release 2 of the cluster",
		site.Hosts[2].Address.String()+": start k3s", "the host went back to k3s "+release.K3s, "not touched because of that: "+site.Hosts[3].Address.String())
	if diff := cmp.Diff(before, kubelets(t, site.Hosts[0])); diff != "" {
		t.Errorf("after resume in another folder: %s", diff)
	}
	if h := history(t, site); len(h) != 2 || h[0].State != "failed" {
		t.Errorf("after resume in another folder: %+v", h)
	}
	nothing := run(t, elsewhere(t, site)("resume", "--bundle", site.Bed.Bundle(), "--key", "boxlift.pub"))
	if nothing.code != 3 {
		t.Errorf("want exit code 3: %v", nothing)
	}
	contains(t, "resume with another bundle", nothing.stderr, "release 2 of the cluster (boxlift upgrade", "give that bundle")
}

// elsewhere is boxlift in a folder that has nothing but what was carried there: configuration, the
// hosts' keys, and the key that bundles are signed with.
func elsewhere(t *testing.T, site *testbed.Site) func(args ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"install.yaml", "known_hosts", "boxlift.pub"} {
		content, err := os.ReadFile(filepath.Join(site.Bed.Dir, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(dir, "site"), os.DirFS(filepath.Join(site.Bed.Dir, "site"))); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) *exec.Cmd {
		c := site.Boxlift(t.Context(), passwords, args...)
		c.Dir = dir
		return c
	}
}

// putAuthority puts an authority's certificate among those of k3s on a server, and returns how a
// warning of its end begins.
func putAuthority(t *testing.T, server *lab.Host, left time.Duration) string {
	t.Helper()
	now := time.Now()
	authority, _, err := certificate.Valid(now.Add(-time.Hour), now.Add(left+time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	const path = "/var/lib/rancher/k3s/server/tls/another-ca.crt"
	onHost(t, server, "sh", "-c", "cat >"+path+" <<'END'\n"+string(authority)+"END")
	return fmt.Sprintf("the certificate %s on %s ends in %d days", path, server.Address, int(left.Hours()/24))
}

// testBrokenCilium goes on with an upgrade and settings with which Cilium's agents never answer
// their probe: Cilium goes back, and no host that is yet to come is touched.
func testBrokenCilium(t *testing.T, u *upgraded) {
	t.Helper()
	site, server := u.Site, u.Hosts[0]
	before := kubelets(t, server)
	u.configure(t, "network: {cni: cilium, cilium: {values: {extraConfig: {boxlift-test-fail: agent}}}}\nruntime: {commandTimeoutSeconds: 75}\n")
	r := upgrade(t, site, u.next, "--accept-drift")
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, "DaemonSet kube-system/cilium", "rolled back to revision")
	if diff := cmp.Diff(before, kubelets(t, server)); diff != "" {
		t.Errorf("after Cilium went back: %s", diff)
	}
	kubectl(t, server, "-n", "kube-system", "rollout", "status", "daemonset", "cilium", "--timeout", "2m")
	if got := kubectl(t, server, "-n", "kube-system", "get", "configmap", "cilium-config", "-o", "jsonpath={.data.boxlift-test-fail}"); got != "" {
		t.Errorf("Cilium still has the setting that breaks it: %s", got)
	}
	if h := history(t, site); len(h) != 3 || h[0].State != "failed" || !strings.Contains(h[0].Result, "rolled back to revision") {
		t.Errorf("after Cilium went back: %+v", h)
	}
	u.configure(t, plainNetwork)
}

// testRollbackTo goes back to the first release, in place.
func testRollbackTo(t *testing.T, site *testbed.Site, next string) {
	t.Helper()
	rollback := func(args ...string) result {
		return run(t, site.Boxlift(t.Context(), passwords, append([]string{"rollback", "--key", "boxlift.pub", "--batch-size", "3"}, args...)...))
	}
	r := rollback("--to", "1", "--bundle", next)
	if r.code != 3 {
		t.Errorf("want exit code 3: %v", r)
	}
	contains(t, "the error", r.stderr, "release 1 was of bundle", "give that bundle")
	if r := rollback("--to", "7", "--bundle", "bundle.tar"); r.code != 3 || !strings.Contains(r.stderr, "no release 7") {
		t.Errorf("want exit code 3: %v", r)
	}
	r = succeeded(t, "the rollback", rollback("--to", "1", "--bundle", "bundle.tar"))
	t.Log(r.stdout)
	checkAll(t, site, release.K3s)
	h := history(t, site)
	if len(h) != 5 || h[0].Command != "rollback --to 1" || h[0].State != "succeeded" || h[1].State != "rolled_back" || !h[0].Current {
		t.Errorf("after the rollback: %+v", h)
	}
	statusIsWell(t, site, "bundle.tar")

	confirm := func() result {
		return mustRun(t, site.Boxlift(t.Context(), passwords, "upgrade", "confirm"))
	}
	contains(t, "confirm", confirm().stdout, "k3s "+upstream.Patched.K3s+" is kept to go back to")
	contains(t, "confirm again", confirm().stdout, "nothing to do")
	for _, host := range site.Hosts {
		if out := onHost(t, host, "sh", "-c", "ls -d /var/lib/boxlift/previous* 2>/dev/null || :"); out != "" {
			t.Errorf("%s still keeps %s", host.Name, out)
		}
	}
}

// checkAll makes sure that every node runs a version of k3s.
func checkAll(t *testing.T, site *testbed.Site, version string) {
	t.Helper()
	want := make(map[string]string)
	for _, h := range site.Hosts {
		want[h.Name] = version
	}
	if diff := cmp.Diff(want, kubelets(t, site.Hosts[0])); diff != "" {
		t.Errorf("versions of the nodes: %s", diff)
	}
}

// onlyFiles are the names in a folder.
func onlyFiles(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Cilium goes to the next minor version, back, and there again. Then three servers go to the next minor version of
// Kubernetes, with the Cilium after that, while one of their APIs always answers, also when one of them fails in
// between. The agent never gets Ready at first: it goes back, the servers stay. Then only the backup from before leads
// back.
func TestUpgradeMinor(t *testing.T) {
	parallel(t, 12*time.Minute)
	var hosts []lab.HostOptions
	for _, name := range []string{"one", "two", "three", "agent"} {
		hosts = append(hosts, lab.HostOptions{Name: name, RootPassword: rootPassword})
	}
	site := newSite(t, hosts...)
	ctx, first, agent := t.Context(), site.Hosts[0], site.Hosts[3]
	writeThreeServers(t, site, "")
	putNetworkFault(t, agent)
	oldest, older := olderBundles(t)
	mustRun(t, site.Boxlift(ctx, passwords, "install", "--bundle", oldest, "--key", "boxlift.pub"))
	testCiliumMinor(t, site, oldest, older)
	checkAll(t, site, upstream.Older.K3s)
	kubectl(t, first, "create", "configmap", "before")

	api := watchAPI(t, site)
	onHost(t, agent, "touch", "/root/fault")
	writeThreeServers(t, site, shortWaits)
	r := upgradeWithServerDown(t, site)
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	together, each := api.stop()
	t.Logf("longest time without any of the three APIs: %v; without one of them: %v", together, each)
	if together == 0 || together > 5*time.Second {
		t.Errorf("no API answered for %v", together)
	}
	contains(t, "the error", r.stderr, "its node agent is not Ready", "the host went back to k3s "+upstream.Older.K3s+", and is Ready with it")
	if diff := cmp.Diff(map[string]string{"one": release.K3s, "two": release.K3s, "three": release.K3s, "agent": upstream.Older.K3s}, kubelets(t, first)); diff != "" {
		t.Errorf("after the agent went back: %s", diff)
	}
	onHost(t, agent, "rm", "/root/fault")
	writeThreeServers(t, site, "")
	r = succeeded(t, "the upgrade that goes on", upgrade(t, site, "bundle.tar"))
	t.Log(r.stdout)
	checkAll(t, site, release.K3s)
	statusIsWell(t, site, "bundle.tar")
	kubectl(t, first, "create", "configmap", "after")

	rollback := func(more ...string) *exec.Cmd {
		return site.Boxlift(ctx, passwords, append([]string{"rollback", "--to", "4", "--bundle", older, "--key", "boxlift.pub"}, more...)...)
	}
	r = run(t, rollback())
	if r.code != 2 {
		t.Errorf("want exit code 2: %v", r)
	}
	contains(t, "the error", r.stderr, "no terminal", "--lose-what-changed-since-the-backup-of e2e does it")
	checkAll(t, site, release.K3s)
	confirmed := []string{"--lose-what-changed-since-the-backup-of", "e2e"}
	killOnce(t, rollback(confirmed...), ": restore the backup", "releases since: 5 (upgrade, k3s "+release.K3s+", succeeded)", "ConfigMap default/after")
	contains(t, "resume after the rollback was killed", run(t, resume(t, site)).stderr,
		"go on with boxlift backup restore "+filepath.Join(site.Bed.Dir, "backups", "e2e", slices.Max(onlyFiles(t, filepath.Join(site.Bed.Dir, "backups", "e2e")))))
	r = succeeded(t, "the rollback", run(t, rollback(confirmed...)))
	if state := readState(t, site); state.Resumed != 1 {
		t.Errorf("the rollback began anew: %+v", state)
	}
	contains(t, "what is lost", r.stderr, "This replaces the cluster e2e by what it was at")
	checkAll(t, site, upstream.Older.K3s)
	for _, h := range site.Hosts[:3] {
		if diff := cmp.Diff(map[string]string{"one": "True", "two": "True", "three": "True", "agent": "True"}, nodes(t, h)); diff != "" {
			t.Errorf("as %s sees it: %s", h.Name, diff)
		}
	}
	kubectl(t, first, "get", "configmap", "before")
	if out, err := tryKubectl(t, first, "get", "configmap", "after"); err == nil {
		t.Errorf("what was made since the backup is still there: %s", out)
	}
	if h := history(t, site); len(h) != 6 || h[0].State != "succeeded" || !h[0].Current || h[1].State != "rolled_back" {
		t.Errorf("after the rollback: %+v", h)
	}
	statusIsWell(t, site, older)
	testDrain(t, site)
	checkNothingLeaked(t, site)
}

// writeThreeServers writes install.yaml for three servers and an agent. What is not done in time
// with shortWaits has failed.
func writeThreeServers(t *testing.T, site *testbed.Site, more string) {
	t.Helper()
	writeConfig(t, site.Bed, `cluster:
  name: e2e
  servers:
    - {host: %s, password: "${ROOT_PASSWORD}"}
    - {host: %s, password: "${ROOT_PASSWORD}"}
    - {host: %s, password: "${ROOT_PASSWORD}"}
  agents: [{host: %s, password: "${ROOT_PASSWORD}"}]
ssh: {knownHostsFile: known_hosts}
network: {cni: cilium}
`+more, site.Hosts[0].Address, site.Hosts[1].Address, site.Hosts[2].Address, site.Hosts[3].Address)
}

const shortWaits = "runtime: {commandTimeoutSeconds: 90}\n"

// upgradeWithServerDown upgrades three servers, of which the third is down when the second one's
// turn comes: that one is not started again before the third answers.
func upgradeWithServerDown(t *testing.T, site *testbed.Site) result {
	t.Helper()
	first, second, third := site.Hosts[0], site.Hosts[1], site.Hosts[2]
	var stdout, stderr lockedBuffer
	c := site.Boxlift(t.Context(), passwords, "upgrade", "--bundle", "bundle.tar", "--key", "boxlift.pub", "--batch-size", "1")
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, &stderr, "wait for the node of "+first.Address.String())
	onHost(t, third, "systemctl", "stop", "k3s")
	waitFor(t, &stderr, "wait for the other servers, before "+second.Address.String()+" is started again")
	if got := kubelets(t, first); got["one"] != release.K3s || got["two"] != upstream.Older.K3s {
		t.Errorf("with a server down: %v", got)
	}
	onHost(t, third, "systemctl", "start", "--no-block", "k3s")
	_ = c.Wait()
	return result{c.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// testCiliumMinor upgrades a cluster whose Cilium alone is another one, goes back in place, and upgrades again. Pods
// stay.
func testCiliumMinor(t *testing.T, site *testbed.Site, oldest, older string) {
	t.Helper()
	first := site.Hosts[0]
	applyYAML(t, first, strings.Replace(pod("kept", "agent", netcheckImage), "Always", "IfNotPresent", 1))
	kubectl(t, first, "wait", "--for=condition=Ready", "pod/kept", "--timeout", "2m")
	uid := func() string {
		return kubectl(t, first, "get", "pod", "kept", "-o", "jsonpath={.metadata.uid} {.status.containerStatuses[0].restartCount}")
	}
	before := uid()
	moved := func(r result, version string) {
		t.Helper()
		succeeded(t, "going to Cilium "+version, r)
		image := kubectl(t, first, "-n", "kube-system", "get", "daemonset", "cilium", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
		if want := "quay.io/cilium/cilium:v" + version; image != want {
			t.Errorf("Cilium is %s, want %s", image, want)
		}
		if diff := cmp.Diff(before, uid()); diff != "" {
			t.Errorf("with Cilium %s, a pod is another one: %s", version, diff)
		}
		checkAll(t, site, upstream.Older.K3s)
	}
	moved(upgrade(t, site, older), upstream.Older.Cilium)
	moved(run(t, site.Boxlift(t.Context(), passwords, "rollback", "--to", "1", "--bundle", oldest, "--key", "boxlift.pub")), upstream.Oldest.Cilium)
	moved(upgrade(t, site, older), upstream.Older.Cilium)
	kubectl(t, first, "delete", "pod", "kept", "--wait=false")
}

// testDrain upgrades by a lock that asks for drained nodes: nothing ends unless that is wanted.
func testDrain(t *testing.T, site *testbed.Site) {
	t.Helper()
	first := site.Hosts[0]
	drained := bundleOf(t, upstream.LockOptions{Release: release, RequiresDrain: true})
	applyYAML(t, first, `apiVersion: v1
kind: Pod
metadata: {name: alone}
spec:
  nodeName: agent
  terminationGracePeriodSeconds: 1
  containers: [{name: alone, image: `+netcheckImage+`, args: [serve]}]
`)
	kubectl(t, first, "wait", "--for=condition=Ready", "pod/alone", "--timeout", "2m")
	r := upgrade(t, site, drained)
	if r.code != 3 {
		t.Errorf("want exit code 3: %v", r)
	}
	contains(t, "the error", r.stderr, "drain: k3s: the lock asks that nodes are drained")
	kubectl(t, first, "get", "pod", "alone")
	applyYAML(t, first, `apiVersion: v1
kind: PersistentVolume
metadata: {name: data}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  local: {path: /mnt/data}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [agent]}]}]}}
`)
	r = upgrade(t, site, drained, "--drain-nodes-and-end-their-sandboxes")
	if r.code != 3 {
		t.Errorf("a node with data: want exit code 3: %v", r)
	}
	contains(t, "the refusal to drain", r.stderr, "data: agent: the node would be drained, and holds data that is on no other: the volume data, ",
		"1 thing in the way")
	testDrainInVain(t, site, drained)
	r = succeeded(t, "the upgrade that drains", upgrade(t, site, drained, "--drain-nodes-and-end-their-sandboxes",
		"--interrupt-what-has-its-data-on", "agent"))
	t.Log(r.stdout)
	contains(t, "the upgrade that drains", r.stderr, "drain the node agent", "pod default/alone has left")
	checkAll(t, site, release.K3s)
	if out, err := tryKubectl(t, first, "get", "pod", "alone"); err == nil {
		t.Errorf("a pod was not evicted: %s", out)
	}
	if out := kubectl(t, first, "get", "nodes", "-o", "jsonpath={.items[*].spec.unschedulable}"); out != "" {
		t.Errorf("nodes are still cordoned: %s", out)
	}
	statusIsWell(t, site, drained)
}

// testDrainInVain upgrades while a pod on the agent may not be evicted: the servers are upgraded,
// and pods come to the agent again.
func testDrainInVain(t *testing.T, site *testbed.Site, drained string) {
	t.Helper()
	first := site.Hosts[0]
	kubectl(t, first, "label", "pod", "alone", "app=alone")
	applyYAML(t, first, `apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: alone}
spec: {minAvailable: 1, selector: {matchLabels: {app: alone}}}
`)
	writeThreeServers(t, site, shortWaits)
	cilium := func() string {
		return kubectl(t, first, "-n", "kube-system", "get", "daemonset", "cilium", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	}
	if got, want := cilium(), "quay.io/cilium/cilium:v"+upstream.Older.Cilium; got != want {
		t.Errorf("before the agents are done, Cilium is %s, want %s", got, want)
	}
	// One agent may fail: what comes after the agents is done.
	r := upgrade(t, site, drained, "--drain-nodes-and-end-their-sandboxes", "--interrupt-what-has-its-data-on", "agent", "--max-failures", "1")
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	if got, want := cilium(), "quay.io/cilium/cilium:v"+release.Cilium; got != want {
		t.Errorf("after one agent failed, which may be, Cilium is %s, want %s", got, want)
	}
	contains(t, "the error", r.stderr, "drain the node agent", "PodDisruptionBudget alone does not let go", "pods come to the node agent again")
	if diff := cmp.Diff(map[string]string{"one": release.K3s, "two": release.K3s, "three": release.K3s, "agent": upstream.Older.K3s}, kubelets(t, first)); diff != "" {
		t.Errorf("after a node could not be drained: %s", diff)
	}
	if out := kubectl(t, first, "get", "nodes", "-o", "jsonpath={.items[*].spec.unschedulable}"); out != "" {
		t.Errorf("nodes are still cordoned: %s", out)
	}
	kubectl(t, first, "delete", "pdb", "alone")
	writeThreeServers(t, site, "")
}

// apiWatch asks the APIs of several servers.
type apiWatch struct {
	quit chan struct{}
	done sync.WaitGroup

	mu       sync.Mutex
	answered []time.Time // the last time, by server
	gap      time.Duration
	gaps     []time.Duration
}

// watchAPI asks the three servers whether they live until it is stopped.
func watchAPI(t *testing.T, site *testbed.Site) *apiWatch {
	t.Helper()
	servers := site.Hosts[:3]
	w := &apiWatch{quit: make(chan struct{}), answered: make([]time.Time, len(servers)), gaps: make([]time.Duration, len(servers))}
	for i := range servers {
		w.answered[i] = time.Now()
	}
	for i, h := range servers {
		client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // only whether it answers is asked
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return site.Dial(ctx, network, net.JoinHostPort(h.Address.String(), "6443"))
			},
		}}
		w.done.Go(func() {
			for {
				select {
				case <-w.quit:
					return
				case <-time.After(100 * time.Millisecond):
				}
				response, err := client.Get("https://server/livez")
				if err != nil {
					continue
				}
				_ = response.Body.Close()
				if response.StatusCode < http.StatusInternalServerError { // it wants to know who asks
					w.note(i, time.Now())
				}
			}
		})
	}
	return w
}

func (w *apiWatch) note(server int, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := slices.MaxFunc(w.answered, time.Time.Compare)
	w.gap = max(w.gap, now.Sub(last))
	w.gaps[server] = max(w.gaps[server], now.Sub(w.answered[server]))
	w.answered[server] = now
}

// stop returns the longest times in which no server answered, and in which each did not.
func (w *apiWatch) stop() (together time.Duration, each []time.Duration) {
	close(w.quit)
	w.done.Wait()
	return w.gap, w.gaps
}
