package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
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

// upgradeHosts are a server and three agents, with their names.
const upgradeHosts = `cluster:
  name: e2e
  servers: [{host: %s, password: "${ROOT_PASSWORD}"}]
  agents:
    - {host: %s, password: "${ROOT_PASSWORD}"}
    - {host: %s, password: "${ROOT_PASSWORD}"}
    - {host: %s, password: "${ROOT_PASSWORD}"}
ssh: {knownHostsFile: known_hosts}
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

// A cluster goes to the next patch of k3s and the next LiteBoxd while it is used. First the new
// k3s never starts on the server, then on one agent: that node goes back, what comes after it is
// not touched, and when the cause is gone the upgrade goes on. Then the cluster goes back to where
// it came from.
func TestUpgrade(t *testing.T) {
	parallelIn(t, 18*time.Minute, alone)
	var hosts []lab.HostOptions
	for _, name := range []string{"server", "a", "b", "c"} {
		hosts = append(hosts, lab.HostOptions{Name: name, RootPassword: rootPassword})
	}
	site := newSite(t, hosts...)
	server, broken := site.Hosts[0], site.Hosts[2]
	configure := func(more string) {
		writeConfig(t, site.Bed, upgradeHosts+withLiteBoxd+more, server.Address, site.Hosts[1].Address, broken.Address, site.Hosts[3].Address)
	}
	configure(plainNetwork)
	writeSite(t, site, "values.env", "LOG_LEVEL=debug\n")
	next, newer := movedBundle(t, upstream.LockOptions{Release: upstream.Patched}, movedRef)
	putFault(t, server, "k3s")
	putFault(t, broken, "k3s-agent")
	first := mustRun(t, install(t.Context(), site))
	shown := shownLogin.FindStringSubmatch(first.stdout)
	if shown == nil {
		t.Fatalf("the first login was not shown:\n%s", first.stdout)
	}
	older := movedTag(t, server)
	b := newBox(t, site, server)
	b.login(shown[1], shown[2])
	b.newTemplate()
	testReleases(t, site, next)
	boxes := []boxed{b.newSandbox(), b.newSandbox(), b.newSandbox()}
	sandboxes := sandboxPods(t, server)

	testNoBackup(t, site, next)
	testServerGoesBack(t, site, next)
	testServerIsDown(t, site, next, configure)
	endsSoon := putAuthority(t, server, 30*24*time.Hour)
	plan := mustRun(t, site.Boxlift(t.Context(), passwords, "upgrade", "plan", "--bundle", next, "--key", "boxlift.pub"))
	contains(t, "the plan", plan.stdout, endsSoon)
	onHost(t, broken, "touch", "/root/fault")
	const requests = 5000
	echo := lifetime(b.socket(gatewayHost, boxes[1].path(8080), boxes[1].header()))
	load := b.load(boxes[0])
	r := upgrade(t, site, next, "--accept-drift")
	if r.code != 6 {
		t.Fatalf("want exit code 6: %v", r)
	}
	checkPodsReady(t, server, "b")
	load.check(t, requests/2)
	select {
	case <-echo:
		t.Error("a WebSocket to a sandbox was cut off before LiteBoxd's turn")
	default:
	}
	contains(t, "the error", r.stderr, broken.Address.String()+": start k3s", "the host went back to k3s "+release.K3s+", and is Ready with it",
		"not touched because of that: "+site.Hosts[3].Address.String(), "boxlift resume goes on")
	if diff := cmp.Diff(map[string]string{"server": upstream.Patched.K3s, "a": upstream.Patched.K3s, "b": release.K3s, "c": release.K3s}, kubelets(t, server)); diff != "" {
		t.Errorf("after one agent went back: %s", diff)
	}
	if h := history(t, site); len(h) != 3 || h[0].State != "failed" || h[0].Command != "upgrade" || !strings.Contains(h[0].Result, "went back to k3s") || !h[1].Current {
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
	testBrokenCilium(t, site, next, configure)
	if after := onlyFiles(t, filepath.Join(site.Bed.Dir, "backups", "e2e")); cmp.Diff(backups, after) != "" {
		t.Errorf("another backup was made in between two versions: %v", after)
	}
	// The backup lies elsewhere, too.
	if err := os.Rename(filepath.Join(site.Bed.Dir, "backups"), filepath.Join(site.Bed.Dir, "backups-elsewhere")); err != nil {
		t.Fatal(err)
	}

	echo = lifetime(b.socket(gatewayHost, boxes[1].path(8080), boxes[1].header()))
	load, start := b.load(boxes[0]), time.Now()
	done := succeeded(t, "the upgrade that goes on", upgrade(t, site, next, "--canary", "1", "--pause-between", "2s"))
	load.check(t, requests/2)
	select {
	case at := <-echo: // with its gateway, which drains first
		if at.Sub(start) < drainLimit {
			t.Errorf("a WebSocket to a sandbox was cut off %v after the last part of the upgrade began, the limit is %v", at.Sub(start), drainLimit)
		}
	case <-time.After(2 * drainLimit):
		t.Error("a WebSocket to a sandbox is still open: its gateway was not replaced")
	}
	t.Log(done.stdout)
	samePods(t, site, "sandboxes", sandboxes, sandboxPods(t, server))
	checkAll(t, site, upstream.Patched.K3s)
	if got := b.version(); got != upstream.LiteBoxdNext {
		t.Errorf("LiteBoxd is %s", got)
	}
	if h := history(t, site); len(h) != 5 || h[0].State != "succeeded" || h[0].Attempts != 1 || !h[0].Current {
		t.Errorf("after the upgrade: %+v", h)
	}
	contains(t, "progress", done.stderr, "pause for 2s before the next agents")
	contains(t, "the upgrade's warnings", done.stdout, endsSoon)
	contains(t, "the upgrade without its backup", done.stdout+done.stderr, "the backup that this upgrade began with, "+backups[0]+", is not here")
	if h := history(t, site); h[0].Backup != backups[0] {
		t.Errorf("the way back is the backup %s, want that from before, %s", h[0].Backup, backups[0])
	}
	statusIsWell(t, site, next)
	checkMovedTag(t, site, next, newer)
	contains(t, "the upgrade again", succeeded(t, "the upgrade again", upgrade(t, site, next)).stdout, "nothing to do")

	testRollbackTo(t, site, next)
	checkMovedTag(t, site, "bundle.tar", older)
	samePods(t, site, "sandboxes, with the rollback,", sandboxes, sandboxPods(t, server))
	testAdopt(t, site, next)
	checkNothingLeaked(t, site)
}

// movedRef is an image that upstream pushes again under the same tag between the two bundles of TestUpgrade.
const movedRef = "docker.io/library/ubuntu:24.04"

// movedBundle builds a bundle of an upstream that has moved a tag, and returns what the tag stands for there.
func movedBundle(t *testing.T, o upstream.LockOptions, ref string) (bundle string, target digest.Digest) {
	t.Helper()
	server, err := upstream.Start(t.Context(), upstream.Options{Releases: releases, Dir: t.TempDir(), Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	target = server.MoveTag(ref)
	return bundleFrom(t, server, o), target
}

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

// checkMovedTag makes sure that movedRef stands for a bundle's image on all hosts, and does so when k3s of a server and of
// an agent is started again with the packs of two bundles lying there.
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
	if h := history(t, site); len(h) != 3 || h[0].State != "failed" || h[0].Backup != "" || !h[1].Current {
		t.Errorf("without a backup: %+v", h)
	}
}

// testServerGoesBack upgrades a cluster whose server does not come up with the new k3s: it goes
// back by itself, and nothing else was touched.
func testServerGoesBack(t *testing.T, site *testbed.Site, next string) {
	t.Helper()
	server := site.Hosts[0]
	onHost(t, server, "touch", "/root/fault")
	r := upgrade(t, site, next)
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, server.Address.String()+": start k3s", "the host went back to k3s "+release.K3s+", and is Ready with it")
	checkAll(t, site, release.K3s)
	if h := history(t, site); len(h) != 3 || h[0].State != "failed" || !strings.Contains(h[0].Result, "went back to k3s") || !h[1].Current {
		t.Errorf("after the server went back: %+v", h)
	}
}

// testServerIsDown goes on with an upgrade that boxlift died in, whose only server does not come
// up, from another folder: no API can be asked, but the server keeps what it was. It goes back by
// itself once more. Meanwhile the state of the one that died is not for another command.
func testServerIsDown(t *testing.T, site *testbed.Site, next string, configure func(string)) {
	t.Helper()
	server := site.Hosts[0]
	args := []string{"upgrade", "--bundle", next, "--key", "boxlift.pub", "--batch-size", "1"}
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

	configure(plainNetwork + "runtime: {commandTimeoutSeconds: 75}\n")
	r = run(t, elsewhere(t, site)(args...))
	configure(plainNetwork)
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the upgrade from another folder", r.stdout+r.stderr, "whether the upgrade may go on was not judged again",
		"the host went back to k3s "+release.K3s+", and is Ready with it")
	checkAll(t, site, release.K3s)
	if h := history(t, site); len(h) != 3 || h[0].State != "failed" || h[0].Attempts < 2 || !h[1].Current {
		t.Errorf("after the server went back once more: %+v", h)
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
	contains(t, "resume in another folder", r.stderr, "going on with boxlift upgrade --batch-size=1, as of release 3 of the cluster",
		site.Hosts[2].Address.String()+": start k3s", "the host went back to k3s "+release.K3s, "not touched because of that: "+site.Hosts[3].Address.String())
	if diff := cmp.Diff(before, kubelets(t, site.Hosts[0])); diff != "" {
		t.Errorf("after resume in another folder: %s", diff)
	}
	if h := history(t, site); len(h) != 3 || h[0].State != "failed" {
		t.Errorf("after resume in another folder: %+v", h)
	}
	nothing := run(t, elsewhere(t, site)("resume", "--bundle", site.Bed.Bundle(), "--key", "boxlift.pub"))
	if nothing.code != 3 {
		t.Errorf("want exit code 3: %v", nothing)
	}
	contains(t, "resume with another bundle", nothing.stderr, "release 3 of the cluster (boxlift upgrade", "give that bundle")
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
func testBrokenCilium(t *testing.T, site *testbed.Site, next string, configure func(string)) {
	t.Helper()
	server := site.Hosts[0]
	before := kubelets(t, server)
	configure("network: {cni: cilium, cilium: {values: {extraConfig: {boxlift-test-fail: agent}}}}\nruntime: {commandTimeoutSeconds: 75}\n")
	r := upgrade(t, site, next, "--accept-drift")
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
	if h := history(t, site); len(h) != 4 || h[0].State != "failed" || !strings.Contains(h[0].Result, "rolled back to revision") {
		t.Errorf("after Cilium went back: %+v", h)
	}
	configure(plainNetwork)
}

// testRollbackTo goes back to the first release, in place.
func testRollbackTo(t *testing.T, site *testbed.Site, next string) {
	t.Helper()
	rollback := func(args ...string) result {
		return run(t, site.Boxlift(t.Context(), passwords, append([]string{"rollback", "--key", "boxlift.pub", "--batch-size", "3"}, args...)...))
	}
	r := rollback("--to", "2", "--bundle", next)
	if r.code != 3 {
		t.Errorf("want exit code 3: %v", r)
	}
	contains(t, "the error", r.stderr, "release 2 was of bundle", "give that bundle")
	if r := rollback("--to", "7", "--bundle", "bundle.tar"); r.code != 3 || !strings.Contains(r.stderr, "no release 7") {
		t.Errorf("want exit code 3: %v", r)
	}
	r = succeeded(t, "the rollback", rollback("--to", "2", "--bundle", "bundle.tar"))
	t.Log(r.stdout)
	checkAll(t, site, release.K3s)
	h := history(t, site)
	if len(h) != 6 || h[0].Command != "rollback --to 2" || h[0].State != "succeeded" || h[1].State != "rolled_back" || !h[0].Current {
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

// killsEnv says how often TestUpgradeKilled kills: 40 kills take a quarter of an hour.
const killsEnv = "BOXLIFT_UPGRADE_KILLS"

// Whenever boxlift dies in an upgrade or in going back, and whenever hosts lose their power or
// are rebooted meanwhile, the run that goes on ends with a whole cluster in one of the two
// versions: resume, or the same command from a machine that knows nothing.
func TestUpgradeKilled(t *testing.T) {
	parallel(t, 8*time.Minute)
	site := newTwoHosts(t)
	server, ctx := site.Hosts[0], t.Context()
	next := bundleOf(t, upstream.LockOptions{Release: upstream.Patched.WithLiteBoxd(release.LiteBoxd)})
	mustRun(t, install(ctx, site))
	forth := func() *exec.Cmd {
		return site.Boxlift(ctx, passwords, "upgrade", "--bundle", next, "--key", "boxlift.pub")
	}
	back := func() *exec.Cmd {
		return site.Boxlift(ctx, passwords, "rollback", "--to", "1", "--bundle", "bundle.tar", "--key", "boxlift.pub")
	}
	k := &killer{Site: site, boundaries: make(map[boundary]bool), seen: make(map[string]string), starts: make(map[string]int)}
	// The long steps are died in, too.
	k.within = func(s stepID) []time.Duration {
		if strings.HasPrefix(s.title, "start k3s") || s.phase == "backup" {
			return []time.Duration{300 * time.Millisecond, 1500 * time.Millisecond, 4 * time.Second}
		}
		return nil
	}
	wantKills := 12
	if text := os.Getenv(killsEnv); text != "" {
		var err error
		if wantKills, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", killsEnv, err)
		}
	}
	testPowerCutInUpgrade(t, site, forth())
	random := rand.New(rand.NewPCG(20261122, 6))
	ways, ended := []func() *exec.Cmd{forth, back}, 0
	command := ways[0]
	for tries, wasKilled := 0, true; k.kills < wantKills || wasKilled || ended < len(ways); tries++ {
		if tries > 4*wantKills {
			t.Fatalf("after %d kills there is no end", k.kills)
		}
		var r result
		before := k.kills
		if k.kills < wantKills {
			wasKilled, r = k.killAtNew(t, command())
		} else {
			wasKilled, r = false, run(t, command())
		}
		switch {
		case wasKilled && k.kills%6 == 0:
			h := site.Hosts[random.IntN(len(site.Hosts))]
			what, down := "is rebooted", h.Reboot
			if k.kills%12 == 0 {
				what, down = "loses its power", func(ctx context.Context) error { return errors.Join(h.PowerCut(ctx), h.Up(ctx)) }
			}
			t.Logf("%s %s", h.Name, what)
			if err := down(ctx); err != nil {
				t.Fatal(err)
			}
			command = ways[ended%len(ways)]
		case wasKilled && k.kills%5 == 0:
			for _, name := range []string{"releases", "state.json", "state.json.lock"} {
				if err := os.RemoveAll(filepath.Join(site.Bed.Dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			// The cluster tells what to go on with, unless boxlift died right at the end. Only the
			// record knows a rollback.
			awaitAPI(t, server)
			command = func() *exec.Cmd {
				bundle := []string{next, "bundle.tar"}[ended%len(ways)]
				return resume(t, site, "--bundle", bundle)
			}
		case wasKilled:
			command = func() *exec.Cmd { return resume(t, site) }
			if readState(t, site).Result == "done" {
				command = ways[ended%len(ways)]
			}
		case r.code == 0:
			ended++
			version := []string{release.K3s, upstream.Patched.K3s}[ended%len(ways)]
			checkAll(t, site, version)
			command = ways[ended%len(ways)]
			if k.kills == before && ended > len(ways) && k.kills < wantKills {
				// All boundaries are known by now: what is left is left to chance.
				clear(k.boundaries)
			}
		case r.code == 3 && strings.Contains(r.stderr, "nothing to go on with: release"):
			wasKilled, command = true, ways[ended%len(ways)]
		case tries > 0 && (r.code == 6 || r.code == 3 && strings.Contains(r.stderr, "not Ready")):
			// A host that has lost its power may not be back yet.
			wasKilled = true
			t.Logf("tried again: %v", r)
			awaitAPI(t, server)
		default:
			t.Fatal(r)
		}
	}
	t.Logf("%d kills at %d boundaries of steps; %d runs came to their end", k.kills, len(k.boundaries), ended)
	checkCluster(t, site, 2)
	k.look(t)
	version, bundle := release.K3s, "bundle.tar"
	if ended%len(ways) == 1 {
		version, bundle = upstream.Patched.K3s, next
	}
	checkAll(t, site, version)
	statusIsWell(t, site, bundle)
	checkNothingLeakedButServices(t, site)
}

// testPowerCutInUpgrade cuts the power of an agent while boxlift, which lives on, starts its k3s.
func testPowerCutInUpgrade(t *testing.T, site *testbed.Site, c *exec.Cmd) {
	t.Helper()
	agent := site.Hosts[1]
	var stderr lockedBuffer
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = c.Wait() // its exit code is looked at
		close(ended)
	}()
	eventually(t, "the agent is to be started", 5*time.Minute, func() (bool, string) {
		select {
		case <-ended:
			t.Fatalf("it has ended: %s", stderr.String())
		default:
		}
		return strings.Contains(stderr.String(), agent.Address.String()+": start k3s-agent"), stderr.String()
	})
	if err := agent.PowerCut(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-ended
	if code := c.ProcessState.ExitCode(); code != 6 {
		t.Errorf("exit code %d after a power cut, want 6\n%s", code, stderr.String())
	}
	contains(t, "the report of the power cut", stderr.String(), "1 of 2 hosts failed\n", "boxlift: hint: ")
	if err := agent.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent is back", 2*time.Minute, func() (bool, string) {
		found := nodes(t, site.Hosts[0])
		return found["agent"] == "True", fmt.Sprint(found)
	})
}

// awaitAPI waits until a server's API is ready.
func awaitAPI(t *testing.T, server *lab.Host) {
	t.Helper()
	eventually(t, "the API", 2*time.Minute, func() (bool, string) {
		out, err := tryKubectl(t, server, "get", "--raw", "/readyz")
		return err == nil, out
	})
}

// checkNothingLeakedButServices is for sites whose hosts were booted with pods on them: these
// run before Cilium has given a meaning to the addresses of services. Nothing else may have
// tried to leave.
func checkNothingLeakedButServices(t *testing.T, site *testbed.Site) {
	t.Helper()
	_, detail, err := site.LeakedPackets()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(detail) {
		if !strings.Contains(line, " -> 10.43.") {
			t.Errorf("packets tried to leave the LAN: %s", line)
		}
	}
}

// olderBundles builds bundles of the older minor version of Kubernetes, of which nothing else is made: one with the
// Cilium that it is upgraded from, and one with the Cilium before that.
func olderBundles(t *testing.T) (oldest, older string) {
	t.Helper()
	releases := []upstream.Release{upstream.Older, upstream.Oldest}
	server, err := upstream.Start(t.Context(), upstream.Options{Releases: releases, Dir: t.TempDir(), Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return bundleFrom(t, server, upstream.LockOptions{Release: upstream.Oldest}), bundleFrom(t, server, upstream.LockOptions{Release: upstream.Older})
}

// Cilium goes to the next minor version, back, and there again. Then
// three servers go to the next minor version of Kubernetes, with the Cilium after that, while one of their APIs always answers, also when one
// of them fails in between. The agent never gets Ready at first: it goes back, the servers stay. Then
// only the backup from before leads back.
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
	checkNothingLeakedButServices(t, site)
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

// testCiliumMinor upgrades a cluster whose Cilium alone is another one, goes back in place, and upgrades again. Pods stay.
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
