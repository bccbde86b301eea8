package e2e

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

// writeServers writes install.yaml of a cluster that its servers seed. Several of them have an address in turn, and two
// serve time and names.
func writeServers(t *testing.T, bed *testbed.Testbed, servers []*lab.Host, agent *lab.Host) {
	t.Helper()
	var list strings.Builder
	for _, h := range servers {
		fmt.Fprintf(&list, "    - {host: %s, name: %s, password: '${ROOT_PASSWORD}'}\n", h.Address, h.Name)
	}
	front, serve := "", ""
	if len(servers) > 1 {
		front = "  front: {vip: " + frontAddress + "}\n"
		two := servers[0].Name + ", " + servers[1].Name
		serve = "time: {servers: [" + two + "]}\nnames: {hosts: {git.lan: 10.77.0.250}, serve: {on: [" + two + "]}}\n"
	}
	writeConfig(t, bed, `cluster:
  name: ha
  servers:
%s  agents:
    - {host: %s, name: agent, password: '${ROOT_PASSWORD}'}
%sssh: {knownHostsFile: known_hosts}
network: {cni: cilium}
runtime: {sshTimeoutSeconds: 10, commandTimeoutSeconds: 240}
seeding: {mode: registry, agents: boot}
liteboxd: {ingressHost: box.example.lan}
%s`, list.String(), agent.Address, front, serve)
}

// A cluster of one server gets two more, which join one by one, also when one of them goes down
// while it joins; its objects move from SQLite to etcd. With them come an address that the servers
// have in turn, and servers of time and names, by Debian's packages out of the bundle. Servers renew
// their certificates in turn when all their timers go off at once. The servers seed the cluster. Only
// here it can be seen for how long nothing answers at the address when the host that has it is lost,
// its keepalived, or etcd's leader. When all were
// stopped, the next run starts them together. With the one lost that began it, the cluster still
// answers, boxlift still works with it, and an agent that would ask its registry first pulls from
// the next one; so it does while that registry's certificate is not valid yet. It is upgraded from
// its own registries. A server that is removed takes its registry with it.
func TestThreeServers(t *testing.T) {
	parallel(t, 13*time.Minute)
	var hosts []lab.HostOptions
	for _, name := range []string{"one", "two", "three", "agent"} {
		hosts = append(hosts, lab.HostOptions{Name: name, RootPassword: rootPassword})
	}
	site := newSite(t, hosts...)
	servers, agent := site.Hosts[:3], site.Hosts[3]
	// The first server is to be the one whose registry the agent asks first, which follows
	// from the addresses of both.
	slices.SortFunc(servers, func(a, b *lab.Host) int {
		weight := func(h *lab.Host) []byte {
			sum := sha256.Sum256([]byte(agent.Address.String() + " " + h.Address.String()))
			return sum[:]
		}
		return bytes.Compare(weight(a), weight(b))
	})
	first, second, third := servers[0], servers[1], servers[2]
	ownPackages := debianPackages(t, third)
	packages := packagesOf(t, agent, "keepalived", "chrony", "dnsmasq-base")
	carry(t, site.Bed, bundleOf(t, upstream.LockOptions{More: packages}))
	for _, h := range servers {
		onHost(t, h, "sh", "-c", "echo CATTLE_NEW_SIGNED_CERT_EXPIRATION_DAYS=50 >"+shortLifetime)
	}
	writeServers(t, site.Bed, servers[:1], agent)
	mustRun(t, install(t.Context(), site))
	kubectl(t, first, "create", "configmap", "kept")
	writeServers(t, site.Bed, servers, agent)
	joinWithPowerCut(t, site)
	kubectl(t, second, "get", "configmap", "kept")
	checkOneByOne(t, servers)
	all := map[string]string{"one": "True", "two": "True", "three": "True", "agent": "True"}
	for _, h := range servers {
		if diff := cmp.Diff(all, nodes(t, h)); diff != "" {
			t.Errorf("as %s sees it: %s", h.Name, diff)
		}
	}
	contains(t, "the second run", mustRun(t, install(t.Context(), site, "--kubeconfig", "kubeconfig")).stdout, "nothing to do")
	for _, h := range servers {
		checkFirstEndpoint(t, h, h)
	}
	checkFirstEndpoint(t, agent, first)
	checkFront(t, site, servers, agent)
	front := watchFront(t, site)
	checkRenewedInTurn(t, site, servers, agent, front)
	checkKeepalivedLost(t, site, servers, front)
	checkNothingLeaked(t, site)

	keepIngressOn(t, servers, agent)
	front.take(t, "until the host that has it is lost")
	cutPower(t, first)
	awaitHolders(t, "the host that has it is lost", servers[1:], second)
	front.take(t, "the power of the host that has it is cut")
	checkWithoutFirst(t, site, servers)
	checkFrontWithoutFirst(t, site, servers, agent)
	front.take(t, "without that host")
	s := &seeded{Site: site, server: second}
	applyYAML(t, second, pod("second", "agent", netcheckImage))
	s.awaitPod(t, "second")

	powerUp(t, first)
	eventually(t, "the server is back", 2*time.Minute, func() (bool, string) {
		out, err := nodesSeen(t, first)
		return err == nil && strings.Count(out, "=True") == 4, fmt.Sprint(out, err)
	})
	awaitHolders(t, "the host is back", servers, first)
	front.take(t, "the host is back, and has it again")
	checkLeaderLost(t, servers, front)
	front.stop()
	contains(t, "the last run", mustRun(t, install(t.Context(), site)).stdout, "nothing to do")
	checkStoppedTogether(t, site, servers)
	checkRefusedCertificate(t, s, first, agent)
	for _, c := range s.health(t)["registry"] {
		contains(t, "health", c, ": ok: 3 of 3 registries answer")
	}
	checkSeededUpgrade(t, s, first, agent, packages)
	mustRun(t, site.Boxlift(t.Context(), passwords, "node", "remove", "-f", "install.yaml", "--hosts", third.Name))
	if out := leftovers(t, third); out != "" {
		t.Errorf("%s still has:\n%s", third.Name, out)
	}
	checkGivenBack(t, third, ownPackages)
	awaitHolders(t, "a server has left", servers, first)

	checkNothingLeakedButServices(t, site)
}

// checkStoppedTogether stops k3s on all servers, of which none alone comes up again: the next
// run brings the cluster back.
func checkStoppedTogether(t *testing.T, site *testbed.Site, servers []*lab.Host) {
	t.Helper()
	for _, h := range servers {
		onHost(t, h, "systemctl", "disable", "--now", "k3s")
	}
	r := mustRun(t, install(t.Context(), site))
	contains(t, "the run", r.stderr+r.stdout, "start k3s together with other servers", "it runs on 0 of 3 members of etcd")
	for _, h := range servers {
		if state := onHost(t, h, "systemctl", "is-enabled", "k3s"); state != "enabled\n" {
			t.Errorf("%s: k3s is %s", h.Name, state)
		}
		if got := etcdMembers(t, h); got != len(servers) {
			t.Errorf("%s: etcd has %d members, want %d", h.Name, got, len(servers))
		}
		eventually(t, "the cluster as "+h.Name+" sees it", time.Minute, func() (bool, string) {
			out, err := nodesSeen(t, h)
			return err == nil && strings.Count(out, "=True") == len(servers)+1, fmt.Sprint(out, err)
		})
	}
	contains(t, "the run after it", mustRun(t, install(t.Context(), site)).stdout, "nothing to do")
}

// checkFirstEndpoint makes sure of the server whose registry a host asks first.
func checkFirstEndpoint(t *testing.T, h, server *lab.Host) {
	t.Helper()
	endpoint := onHost(t, h, "sh", "-c", "grep -A2 'docker.io:' "+k3sRegistries+" | tail -1")
	contains(t, h.Name+"'s first endpoint", endpoint, "https://"+server.Address.String()+":5443")
}

// checkRefusedCertificate gives the registry that an agent asks first a certificate that has
// not begun, which is what the agent sees when its clock is behind: it pulls from the next one,
// and health says what is wrong.
func checkRefusedCertificate(t *testing.T, s *seeded, first, agent *lab.Host) {
	t.Helper()
	from := time.Now().AddDate(0, 1, 0)
	s.replaceCertificate(t, "ha", first, from, from.AddDate(0, 1, 0))
	kubectl(t, s.server, "delete", "pod", "second", "--now")
	onHost(t, agent, "/usr/local/bin/k3s", "crictl", "rmi", netcheckImage)
	applyYAML(t, s.server, pod("early", "agent", netcheckImage))
	s.awaitPod(t, "early")
	health := s.health(t)
	contains(t, "health", strings.Join(slices.Concat(health["registry"], health["certificate"]), "\n"),
		"warning: 2 of 3 registries answer", "is before", first.Name+" ("+first.Address.String()+"), port 5443: failed: begins in the future, at")
	contains(t, "the run after that", mustRun(t, install(t.Context(), s.Site)).stdout, "1 changes")
}

// checkSeededUpgrade upgrades a cluster that its servers seed, of which one has a certificate that
// ends soon. It is renewed on the way, pods stay, and an agent with only what it needs to start
// pulls from the next bundle.
func checkSeededUpgrade(t *testing.T, s *seeded, first, agent *lab.Host, packages string) {
	t.Helper()
	next := bundleOf(t, upstream.LockOptions{Release: upstream.Patched, More: packages})
	soon := time.Now().AddDate(0, 0, 5)
	s.replaceCertificate(t, "ha", first, soon.AddDate(-1, 0, 0), soon)
	uid := func() string {
		return kubectl(t, s.server, "get", "pod", "early", "-o", "jsonpath={.metadata.uid} {.status.containerStatuses[*].restartCount}")
	}
	before := uid()
	t.Log(succeeded(t, "the upgrade", upgrade(t, s.Site, next)).stdout)
	checkAll(t, s.Site, upstream.Patched.K3s)
	if after := uid(); after != before {
		t.Errorf("a pod and its restarts: %s, before the upgrade %s", after, before)
	}
	content, err := os.ReadFile(filepath.Join(first.Root, "etc/boxlift-registry/tls.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(content, content)
	if err != nil {
		t.Fatal(err)
	}
	if ends := pair.Leaf.NotAfter; ends.Before(soon.AddDate(0, 1, 0)) {
		t.Errorf("after the upgrade, the certificate ends on %s", ends)
	}
	statusIsWell(t, s.Site, next)
	statusIsWellElsewhere(t, s.Site, next)
	for _, c := range s.health(t)["registry"] {
		contains(t, "health", c, ": ok: 3 of 3 registries answer")
	}
	checkLostAuthority(t, s, next, agent)
	applyYAML(t, s.server, pod("after", "agent", upstream.SandboxRef))
	s.awaitPod(t, "after")
}

// checkLostAuthority installs from a machine that has no more than the configuration and the bundle:
// nodes keep the password that they have, and all get the authority that takes the other's place.
func checkLostAuthority(t *testing.T, s *seeded, next string, agent *lab.Host) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(s.Bed.Dir, "registry-ca")); err != nil {
		t.Fatal(err)
	}
	registries := func() string { return onHost(t, agent, "sha256sum", k3sRegistries) }
	before := registries()
	refused := run(t, s.Boxlift(t.Context(), passwords, "node", "add", "--hosts", agent.Address.String(), "--bundle", next, "--key", "boxlift.pub"))
	if refused.code != 3 {
		t.Errorf("want exit code 3: %v", refused)
	}
	contains(t, "node add without the authority", refused.stderr, "would not trust another one")
	plan := run(t, s.Boxlift(t.Context(), passwords, "upgrade", "plan", "--bundle", next, "--key", "boxlift.pub"))
	contains(t, "the plan without the authority", plan.stdout, "which has the authority of the cluster's registry")
	r := mustRun(t, s.Boxlift(t.Context(), passwords, "install", "--bundle", next, "--key", "boxlift.pub"))
	contains(t, "the run without the authority", r.stderr, "which has the authority of the cluster's registry", "write the certificate of boxlift's registry")
	if after := registries(); after != before {
		t.Errorf("the agent's registries.yaml is another one: %s, before %s", after, before)
	}
	for _, c := range s.health(t)["registry"] {
		contains(t, "health", c, ": ok: 3 of 3 registries answer")
	}
	statusIsWell(t, s.Site, next)
}

// nodesSeen is whether nodes are Ready, as a server sees it.
func nodesSeen(t *testing.T, from *lab.Host) (string, error) {
	t.Helper()
	return tryKubectl(t, from, "get", "nodes", "--request-timeout=5s", "-o",
		`jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}`)
}

// checkWithoutFirst makes sure that two servers of three go on without the first.
func checkWithoutFirst(t *testing.T, site *testbed.Site, servers []*lab.Host) {
	t.Helper()
	first, second, third := servers[0], servers[1], servers[2]
	eventually(t, "the cluster answers and misses the node", 2*time.Minute, func() (bool, string) {
		out, err := nodesSeen(t, second)
		return err == nil && strings.Contains(out, first.Name+"=Unknown") && strings.Count(out, "=True") == 3, fmt.Sprint(out, err)
	})
	kubectl(t, third, "create", "configmap", "written-without-the-first")
	r := run(t, site.Boxlift(t.Context(), passwords, "status", "--bundle", "bundle.tar", "--key", "boxlift.pub"))
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "status", r.stdout+r.stderr, "host is unreachable", "active")
	// Taking another one away now would end the cluster.
	r = run(t, site.Boxlift(t.Context(), passwords, "node", "remove", "-f", "install.yaml", "--hosts", second.Name))
	if r.code != 3 {
		t.Errorf("want exit code 3: %v", r)
	}
	contains(t, "the error", r.stderr, "etcd needs a majority")
}

// joinWithPowerCut begins a cluster of three. The second server's power is cut when it is a
// member of etcd that does not vote yet.
func joinWithPowerCut(t *testing.T, site *testbed.Site) {
	t.Helper()
	second, third := site.Hosts[1], site.Hosts[2]
	var stderr lockedBuffer
	c := install(t.Context(), site)
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, &stderr, second.Name+" ("+second.Address.String()+"): start k3s")
	eventually(t, "the second server joins", 2*time.Minute, func() (bool, string) {
		_, err := second.Exec(t.Context(), "test", "-d", "/var/lib/rancher/k3s/server/db/etcd/member")
		return err == nil, stderr.String()
	})
	if err := second.PowerCut(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 6 {
		t.Errorf("exit code %d after a power cut, want 6\n%s", code, stderr.String())
	}
	contains(t, "the report of the power cut", stderr.String(), "1 of 4 hosts failed\n  "+second.Name+" ("+second.Address.String()+"):", "boxlift: hint: ", "command again")
	// It has been placed, and must not even start with its host.
	if out := onHost(t, third, "sh", "-c", "systemctl is-enabled k3s; ls -d /etc/rancher/k3s/config.yaml /var/lib/rancher/k3s/server 2>/dev/null || true"); out != "disabled\n" {
		t.Errorf("the third server was begun before the second was one: %s", out)
	}
	if err := second.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustRun(t, resume(t, site))
}

// checkOneByOne makes sure that each server's k3s was started when that of the one before was
// ready, by what systemd of the hosts says: all have the same clock.
func checkOneByOne(t *testing.T, servers []*lab.Host) {
	t.Helper()
	var ready int
	for _, h := range servers {
		turn := turnOf(t, h)
		if turn.started <= ready || turn.ready <= turn.started {
			t.Errorf("%s: k3s was started at %d µs and ready at %d µs, the server before it was ready at %d µs", h.Name, turn.started, turn.ready, ready)
		}
		ready = turn.ready
		if got := etcdMembers(t, h); got != len(servers) {
			t.Errorf("%s: etcd has %d members, want %d", h.Name, got, len(servers))
		}
	}
}

// k3sTurn is when a server's k3s was stopped last, started and ready again, in microseconds of the clock that all hosts
// have in common.
type k3sTurn struct{ stopped, started, ready int }

// turnOf asks systemd.
func turnOf(t *testing.T, h *lab.Host) (turn k3sTurn) {
	t.Helper()
	at := map[string]*int{"ActiveExitTimestampMonotonic": &turn.stopped, "InactiveExitTimestampMonotonic": &turn.started,
		"ActiveEnterTimestampMonotonic": &turn.ready}
	out := onHost(t, h, "systemctl", "show", "-p", strings.Join(slices.Collect(maps.Keys(at)), ","), "k3s")
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		n, err := strconv.Atoi(value)
		if err != nil || at[name] == nil {
			t.Fatalf("%s: systemd says %q", h.Name, out)
		}
		*at[name] = n
	}
	return turn
}

// etcdMembers is how many members of etcd a server knows, itself included.
func etcdMembers(t *testing.T, server *lab.Host) int {
	t.Helper()
	members := 0
	for line := range strings.Lines(etcdMetrics(t, server)) {
		if strings.HasPrefix(line, "etcd_network_known_peers{") && strings.HasSuffix(line, " 1\n") {
			members++
		}
	}
	return members
}

// etcdMetrics is what a server's etcd says of itself.
func etcdMetrics(t *testing.T, server *lab.Host) string {
	t.Helper()
	return onHost(t, server, "bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/2381; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3`)
}
