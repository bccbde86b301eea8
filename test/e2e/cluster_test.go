package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

// tryKubectl runs kubectl on a server.
func tryKubectl(t *testing.T, server *lab.Host, args ...string) (string, error) {
	t.Helper()
	out, err := server.Exec(t.Context(), append([]string{"/usr/local/bin/k3s", "kubectl"}, args...)...)
	return string(out), err
}

// kubectl is tryKubectl that must succeed.
func kubectl(t *testing.T, server *lab.Host, args ...string) string {
	t.Helper()
	out, err := tryKubectl(t, server, args...)
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return out
}

// samePods makes sure that no pod was ended or started again. If one was, how its containers
// ended is told, with what containerd and the kubelet said at the time: only they know the reason.
func samePods(t *testing.T, site *testbed.Site, what string, before, after map[string]string) {
	t.Helper()
	diff := cmp.Diff(before, after)
	if diff == "" {
		return
	}
	t.Errorf("%s before and after: %s", what, diff)
	server := site.Hosts[0]
	again := kubectl(t, server, "get", "pods", "-A", "-o", `jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name} {.status.containerStatuses[*].lastState}{"\n"}{end}`)
	for line := range strings.Lines(again) {
		fields := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if len(fields) < 3 || !strings.Contains(fields[2], "terminated") {
			continue
		}
		t.Logf("%s", line)
		logs, err := tryKubectl(t, server, "-n", fields[0], "logs", fields[1], "--previous", "--tail", "40")
		t.Logf("its log: %v\n%s", err, logs)
	}
	for _, h := range site.Hosts {
		t.Logf("%s: %s", h.Name, onHost(t, h, "sh", "-c", `journalctl --no-pager -o short-precise -u k3s -u k3s-agent |
			grep -i -E 'shim|failed to load|deadline exceeded|ContainerDied|exitCode|unknown state|Started|Stopped' | tail -n 60`))
	}
}

// applyYAML applies objects.
func applyYAML(t *testing.T, server *lab.Host, yaml string) {
	t.Helper()
	if out, err := server.ExecInput(t.Context(), []byte(yaml), "/usr/local/bin/k3s", "kubectl", "apply", "-f", "-"); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// eventually waits for something that a cluster brings about by itself.
func eventually(t *testing.T, what string, limit time.Duration, ask func() (done bool, detail string)) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		done, detail := ask()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %v: %s", what, limit, detail)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// nodes are the nodes of a cluster and whether they are Ready.
func nodes(t *testing.T, server *lab.Host) map[string]string {
	t.Helper()
	out := kubectl(t, server, "get", "nodes", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
	ready := make(map[string]string)
	for line := range strings.Lines(out) {
		name, status, _ := strings.Cut(strings.TrimSpace(line), " ")
		ready[name] = status
	}
	return ready
}

const clusterConfig = `cluster:
  name: e2e
  servers:
    - host: %[1]s
      name: server
      password: ${ROOT_PASSWORD}
  agents:
    - host: %[2]s
      name: behind
      user: admin
      password: ${ADMIN_PASSWORD}
      sudo: true
      bastion: server
      labels: {boxlift.test/pool: sandboxes}
%[3]s
  absentAgentLogin: {user: root, identityFile: %[4]s}
ssh:
  knownHostsFile: known_hosts
registries:
  mirrors:
    registry.example.lan: {endpoint: ["https://registry.example.lan:5000"]}
  configs:
    registry.example.lan:5000: {auth: {username: puller, password: "${REGISTRY_PASSWORD}"}}
network:
  cni: cilium
%[7]s
runtime:
  commandTimeoutSeconds: %[8]d
  drainTimeoutSeconds: %[5]d
%[6]s
%[9]s
`

// cluster is the site of TestCluster.
type cluster struct {
	*testbed.Site
	server, behind, direct, late *lab.Host
	secrets                      *canaries
	// sections are further ones of install.yaml.
	sections string
	// stopWatching ends the search for secrets in command lines.
	stopWatching func()
}

// write writes install.yaml: with further agents, a time for draining, and more of the
// section runtime.
func (c *cluster) write(t *testing.T, agents string, drainSeconds int, runtime string) {
	t.Helper()
	c.writeAgents(t, c.directEntry(c.direct.Address.String(), "direct")+agents, drainSeconds, runtime)
}

// writeAgents is write with what follows the agent that is behind the server.
func (c *cluster) writeAgents(t *testing.T, agents string, drainSeconds int, runtime string) {
	t.Helper()
	writeConfig(t, c.Bed, clusterConfig, c.server.Address, c.behind.Address, agents, c.KeyFile(), drainSeconds, runtime, "", 240, c.sections)
}

// writeNetwork writes install.yaml with values for Cilium's chart, and how long the hosts
// may take.
func (c *cluster) writeNetwork(t *testing.T, values string, timeout int) {
	t.Helper()
	agents := c.directEntry(c.direct.Address.String(), "direct")
	writeConfig(t, c.Bed, clusterConfig, c.server.Address, c.behind.Address, agents, c.KeyFile(), 60, "", "  cilium: {values: "+values+"}", timeout, c.sections)
}

// directEntry is an agent of install.yaml, by whatever address and name.
func (c *cluster) directEntry(address, name string) string {
	return fmt.Sprintf("    - {host: %s, name: %s, identityFile: %s, taints: ['boxlift.test/dedicated=yes:PreferNoSchedule']}\n", address, name, c.KeyFile())
}

// One server and two agents, one of them behind the server, the other with a key, from
// nothing to a cluster that works; then again, and changed by others. Only hosts and CoreDNS show that names are found.
func TestCluster(t *testing.T) {
	parallel(t, 5*time.Minute)
	c := newCluster(t)
	c.sections = "hosts: {prepare: true}\nnames: {hosts: {git.lan: 10.77.0.250}}\n"
	c.run(t, []part{
		{"dry run", testDryRun},
		{"one agent fails", testOneAgentFails},
		{"install", testInstall},
		{"again", testAgain},
		{"pods", testPods},
		{"secrets", testSecrets},
		{"names", testNames},
		{"drift", testDrift},
		{"given back", testGivenBack},
	})
}

// The same cluster gets other versions, settings and tokens, grows and shrinks.
func TestChanges(t *testing.T) {
	parallel(t, 13*time.Minute)
	c := newCluster(t)
	mustRun(t, install(t.Context(), c.Site))
	c.run(t, []part{
		{"the cilium command", testCiliumCommand},
		{"network", testNetwork},
		{"tokens", testTokens},
		{"add", testAdd},
		{"remove with a budget in the way", testRemoveWithBudget},
		{"remove a host that is gone", testRemoveUnreachable},
		{"a host that is down and not listed", testDownUnlisted},
		{"converge with a budget in the way", testConvergeWithBudget},
		{"converge", testConverge},
		{"servers stay", testServersStay},
		// After these two the cluster is of no use.
		{"a host of another cluster stays", testStrangerStays},
		{"a server without a node stays", testServerWithoutNodeStays},
	})
}

// newCluster boots the hosts and writes install.yaml.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	site := newSite(t,
		lab.HostOptions{Name: "server", RootPassword: rootPassword},
		lab.HostOptions{Name: "behind", Users: []lab.User{{Name: "admin", Password: adminPassword, Sudo: lab.SudoWithPassword}}},
		lab.HostOptions{Name: "direct"},
	)
	c := &cluster{
		Site: site, server: site.Hosts[0], behind: site.Hosts[1], direct: site.Hosts[2],
		secrets: &canaries{secrets: []string{rootPassword, adminPassword, registryPassword, testbed.KeyPassword}},
	}
	c.write(t, "", 60, "")
	// From the operator's place this host does not answer.
	onHost(t, c.behind, "iptables", "-I", "INPUT", "-s", "10.77.0.2", "-j", "DROP")
	return c
}

// part goes on with what the one before has left.
type part struct {
	name string
	test func(*testing.T, *cluster)
}

func (c *cluster) run(t *testing.T, parts []part) {
	t.Helper()
	for _, p := range parts {
		if !t.Run(p.name, func(t *testing.T) { p.test(t, c) }) {
			t.FailNow()
		}
	}
	checkNothingLeaked(t, c.Site)
}

// A dry run changes nothing, whether a flag or install.yaml asks for it.
func testDryRun(t *testing.T, c *cluster) {
	c.write(t, "", 60, "  dryRun: true")
	runs := []result{mustRun(t, install(t.Context(), c.Site))}
	c.write(t, "", 60, "")
	for _, dry := range append(runs, mustRun(t, install(t.Context(), c.Site, "--dry-run"))) {
		contains(t, "the dry run", dry.stdout, "would ship the bundle's contents", "would start k3s",
			"would start k3s-agent", "would set up Cilium", "nothing was changed")
	}
	for _, h := range c.Hosts {
		if out := onHost(t, h, "sh", "-c", "ls -d /var/lib/boxlift /var/lib/rancher /etc/rancher 2>/dev/null || true"); out != "" {
			t.Errorf("%s: after a dry run there is %s", h.Name, out)
		}
	}
	if _, err := os.Stat(filepath.Join(c.Bed.Dir, "state.json")); err == nil {
		t.Error("a dry run wrote state.json")
	}
}

// One agent's failure harms nobody else, and is all that is left to the next run.
func testOneAgentFails(t *testing.T, c *cluster) {
	const dropIn = "/etc/systemd/system/k3s-agent.service.d"
	onHost(t, c.direct, "sh", "-c", "mkdir "+dropIn+" && printf '[Service]\\nExecStartPre=/bin/false\\nRestartSec=1\\n' >"+dropIn+"/fail.conf")
	c.stopWatching = c.secrets.watchCommandLines(t)
	r := run(t, install(t.Context(), c.Site, "--verbose"))
	c.secrets.search(t, "the output", r.String())
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, "1 of 3 hosts failed", "direct ("+c.direct.Address.String()+"): start k3s-agent: k3s-agent does not start")
	if diff := cmp.Diff(map[string]string{"server": "True", "behind": "True"}, nodes(t, c.server)); diff != "" {
		t.Errorf("the others: %s", diff)
	}
	checkNothingUnfinished(t, c.Site)
	onHost(t, c.direct, "rm", "-r", dropIn)
}

func testInstall(t *testing.T, c *cluster) {
	first := mustRun(t, install(t.Context(), c.Site, "--verbose", "--kubeconfig", "kubeconfig"))
	c.stopWatching()
	t.Logf("%s", first.stdout)
	c.secrets.search(t, "the output", first.String())
	contains(t, "the summary", first.stdout, "cluster e2e runs", "kube-system/cilium", "namespaces:", "boxlift's own work")
	want := map[string]string{"server": "True", "behind": "True", "direct": "True"}
	if diff := cmp.Diff(want, nodes(t, c.server)); diff != "" {
		t.Error(diff)
	}
	contains(t, "the label", kubectl(t, c.server, "get", "node", "behind", "--show-labels"), "boxlift.test/pool=sandboxes")
	c.checkCiliumCommand(t, upstream.CiliumCLIs[0])
	contains(t, "the taint", kubectl(t, c.server, "get", "node", "direct", "-o", "jsonpath={.spec.taints}"), "boxlift.test/dedicated")
	checkRunning(t, c.Site)
	for _, h := range c.Hosts {
		if out := onHost(t, h, "stat", "-c", "%a %U", "/etc/rancher/k3s/registries.yaml"); out != "600 root\n" {
			t.Errorf("%s: registries.yaml has mode and owner %s", h.Name, out)
		}
		contains(t, "containerd's hosts.toml", onHost(t, h, "sh", "-c", "cat /var/lib/rancher/k3s/agent/etc/containerd/certs.d/registry.example.lan/hosts.toml"), "registry.example.lan:5000")
	}

	// The exported file works from elsewhere, and is for nobody else.
	path := filepath.Join(c.Bed.Dir, "kubeconfig")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig: %v, %v", info, err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.direct.ExecInput(t.Context(), content, "/usr/local/bin/k3s", "kubectl", "--kubeconfig", "/dev/stdin", "--context", "e2e", "get", "nodes")
	if err != nil {
		t.Errorf("with the exported kubeconfig: %v\n%s", err, out)
	}
}

// checkUntouched makes sure that a run changed neither hosts nor cluster.
func (c *cluster) checkUntouched(t *testing.T, hosts []*lab.Host, work func()) {
	t.Helper()
	look := func() map[string]string {
		state := hostFiles(t, hosts)
		state["releases"] = kubectl(t, c.server, "get", "secrets", "-n", "kube-system", "-l", "owner=helm", "-o", "name")
		for _, h := range hosts {
			state["node "+h.Name] = kubectl(t, c.server, "get", "node", h.Name, "-o", "jsonpath={.metadata.uid} {.metadata.labels} {.spec}")
		}
		return state
	}
	before := look()
	work()
	if diff := cmp.Diff(before, look()); diff != "" {
		t.Errorf("something was changed:\n%s", diff)
	}
}

// allHeld is the line of a host to which nothing was shipped, and that had something: SENT, FROM
// HOSTS, REUSED and CHANGES.
var allHeld = regexp.MustCompile(`(?m) 0 B +0 B +[1-9][0-9.]* [KMG]iB +0$`)

func testAgain(t *testing.T, c *cluster) {
	c.checkUntouched(t, c.Hosts, func() {
		for _, kind := range []string{"plain", "json", "tty"} {
			start := time.Now()
			again := mustRun(t, install(t.Context(), c.Site, "--progress", kind))
			t.Logf("a run without changes took %v", time.Since(start))
			contains(t, "the second run", again.stdout, "nothing to do")
			if held := allHeld.FindAllString(again.stdout, -1); len(held) != len(c.Hosts) {
				t.Errorf("%d of %d hosts had all already:\n%s", len(held), len(c.Hosts), again.stdout)
			}
			c.secrets.search(t, "the output with --progress "+kind, again.String())
		}
	})
	c.checkFirewallFound(t)
	status := mustRun(t, c.status(t, "-o", "json"))
	contains(t, "status", status.stdout, `"service": "active"`)
	r := run(t, resume(t, c.Site))
	if r.code != 3 {
		t.Errorf("resume of a finished run: %v", r)
	}
	contains(t, "resume of a finished run", r.stderr, "nothing to go on with")
}

// checkFirewallFound makes sure that preflight alone finds a firewall that came after the
// installation, and nothing when it is gone.
func (c *cluster) checkFirewallFound(t *testing.T) {
	t.Helper()
	for _, blocked := range []bool{true, false} {
		change := map[bool]string{true: "--insert", false: "--delete"}[blocked]
		onHost(t, c.direct, "iptables", "--wait", change, "INPUT", "--protocol", "tcp", "--dport", "4240", "--jump", "DROP")
		r, findings := runPreflight(t, c.Site, "", "install.yaml")
		want := map[string]int{}
		if blocked {
			want = map[string]int{"server (" + c.server.Address.String() + ")": 1, "behind (" + c.behind.Address.String() + ")": 1}
		}
		got := map[string]int{}
		for _, f := range findings {
			if f.Check == "reach" {
				got[f.Host]++
				contains(t, "the finding", f.Found, "it does not reach direct ("+c.direct.Address.String()+")", "4240/tcp for Cilium's health checks (no answer)")
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("blocked: %v: %s\n%v", blocked, diff, r)
		}
		if (r.code == 6) != blocked {
			t.Errorf("blocked: %v: %v", blocked, r)
		}
	}
}

func (c *cluster) status(t *testing.T, more ...string) *exec.Cmd {
	t.Helper()
	return c.Boxlift(t.Context(), passwords, append([]string{"status", "--bundle", "bundle.tar", "--key", "boxlift.pub"}, more...)...)
}

const webYAML = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: web
          image: ` + netcheckImage + `
          args: [serve]
`

// Pods on different nodes reach each other, by address and by name.
func testPods(t *testing.T, c *cluster) {
	applyYAML(t, c.server, webYAML)
	type pod struct{ name, ip, node string }
	var pods []pod
	eventually(t, "a pod on every node", 90*time.Second, func() (bool, string) {
		out := kubectl(t, c.server, "get", "pods", "-l", "app=web", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.podIP} {.spec.nodeName} {.status.phase}{"\n"}{end}`)
		pods = pods[:0]
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) == 4 && f[3] == "Running" {
				pods = append(pods, pod{f[0], f[1], f[2]})
			}
		}
		return len(pods) == len(c.Hosts), out
	})
	get := func(from pod, url, want string) {
		t.Helper()
		eventually(t, url+" from "+from.node, 30*time.Second, func() (bool, string) {
			out, err := tryKubectl(t, c.server, "exec", from.name, "--", "netcheck", "get", url)
			return err == nil && strings.Contains(out, want), fmt.Sprint(out, err)
		})
	}
	for _, from := range pods {
		for _, to := range pods {
			get(from, "http://"+to.ip+":8080/", to.name)
		}
		get(from, "http://web.default.svc.cluster.local/", "web-")
	}
}

// Names of install.yaml are found on hosts and in pods, beside what /etc/hosts had.
func testNames(t *testing.T, c *cluster) {
	for _, h := range c.Hosts {
		for _, name := range []string{"git.lan", "server", "localhost"} {
			onHost(t, h, "getent", "hosts", name)
		}
	}
	eventually(t, "names in pods", 3*time.Minute, func() (bool, string) {
		r := run(t, c.Boxlift(t.Context(), passwords, "health", "-f", "install.yaml", "--only", "names,dns"))
		return r.code == 0 && strings.Contains(r.stdout, "git.lan is 10.77.0.250"), r.String()
	})
}

// A host that leaves has no names and nothing else of boxlift's any more.
func testGivenBack(t *testing.T, c *cluster) {
	mustRun(t, c.remove(t, "--hosts", "direct"))
	checkClean(t, c.direct)
	if out := onHost(t, c.direct, "sh", "-c", "cat /etc/hosts; ls /etc/*/*boxlift* 2>/dev/null || true"); strings.Contains(out, "boxlift") ||
		!strings.Contains(out, "localhost") {
		t.Errorf("it has\n%s", out)
	}
}

func testSecrets(t *testing.T, c *cluster) {
	token := onHost(t, c.server, "cat", "/var/lib/rancher/k3s/server/node-token")
	_, password, _ := strings.Cut(strings.TrimSpace(token), "::server:")
	if len(password) < 32 {
		t.Fatalf("the cluster's token has no password: %q", token)
	}
	agents := strings.TrimSpace(onHost(t, c.server, "cat", "/etc/rancher/k3s/boxlift-agent-token"))
	if len(agents) < 32 {
		t.Fatalf("the agents' token has no password: %q", agents)
	}
	c.secrets.secrets = append(c.secrets.secrets, password, agents)
	checkAgentToken(t, c.server, c.direct)
	checkAgentToken(t, c.server, c.behind)
	checkSecretsAtRest(t, c.server)
	c.secrets.searchOperator(t, c.Site)
	for _, h := range c.Hosts {
		c.secrets.searchHost(t, h)
	}
	c.secrets.searchCommandLines(t)
}

// checkSecretsAtRest makes sure that Secrets are encrypted in the datastore of a server with SQLite.
func checkSecretsAtRest(t *testing.T, server *lab.Host) {
	t.Helper()
	const shown, hidden = "text-of-a-config-map", "text-of-a-secret"
	kubectl(t, server, "create", "configmap", "at-rest", "--from-literal=text="+shown)
	kubectl(t, server, "create", "secret", "generic", "at-rest", "--from-literal=text="+hidden)
	const search = `for text in "$@"; do if grep -aqF "$text" /var/lib/rancher/k3s/server/db/state.db*; then echo found; else echo none; fi; done`
	if got := onHost(t, server, "sh", "-c", search, "sh", shown, hidden, "k8s:enc:aescbc:v1:"); got != "found\nnone\nfound\n" {
		t.Errorf("in the datastore, a ConfigMap's text, a Secret's, and what k3s has encrypted: %q", got)
	}
	if got := kubectl(t, server, "get", "secret", "at-rest", "-o", "go-template={{.data.text | base64decode}}"); got != hidden {
		t.Errorf("the Secret has %q", got)
	}
	kubectl(t, server, "delete", "configmap/at-rest", "secret/at-rest")
}

// What others change is found, and mended by the next run.
func testDrift(t *testing.T, c *cluster) {
	onHost(t, c.direct, "systemctl", "stop", "k3s-agent")
	onHost(t, c.server, "sh", "-c", "rm /var/lib/rancher/k3s/agent/images/boxlift-liteboxd-*.tar")
	onHost(t, c.server, "rm", ciliumCommand)
	onHost(t, c.behind, "sh", "-c", "echo '# changed' >>/etc/rancher/k3s/config.yaml")
	const dropIn = "/etc/rancher/k3s/config.yaml.d/site.yaml"
	onHost(t, c.behind, "sh", "-c", "mkdir -p /etc/rancher/k3s/config.yaml.d && echo 'node-label: [site=a]' >"+dropIn)
	onHost(t, c.behind, "/usr/local/bin/k3s", "ctr", "-n", "k8s.io", "images", "rm", netcheckImage)
	layer := removeLayer(t, c.server, netcheckImage)
	kubectl(t, c.server, "label", "node", "behind", "boxlift.test/pool-")
	kubectl(t, c.server, "-n", "kube-system", "delete", "configmap", "coredns-custom")
	onHost(t, c.direct, "sed", "-i", "s/git.lan/got.lan/", "/etc/hosts")
	kubectl(t, c.server, "-n", "kube-system", "patch", "configmap", "cilium-config", "-p", `{"data":{"routing-mode":"native"}}`)
	r := run(t, c.status(t, "-o", "json"))
	if r.code != 7 {
		t.Fatalf("status of a changed cluster: %v", r)
	}
	var status struct {
		Hosts []struct {
			Host        string
			Differences []string
		}
		Differences []string
	}
	if err := json.Unmarshal([]byte(r.stdout), &status); err != nil {
		t.Fatalf("status -o json: %v\n%s", err, r.stdout)
	}
	for i, want := range [][]string{{"packs and files are missing", ciliumCommand + " is missing", netcheckImage + ": blob " + layer + " is not in containerd"}, {"config.yaml differs", dropIn + " is there", "label", netcheckImage}, {"the service is inactive", "the names in /etc/hosts differ"}} {
		contains(t, "status of "+status.Hosts[i].Host, strings.Join(status.Hosts[i].Differences, "\n"), want...)
	}
	contains(t, "status of the cluster", strings.Join(status.Differences, "\n"), "cilium-config", "the ConfigMap coredns-custom has no key boxlift.server")
	t.Logf("%s", run(t, c.status(t)).stdout)
	repair := mustRun(t, install(t.Context(), c.Site))
	contains(t, "the warnings", repair.stderr+repair.stdout, dropIn+" is there: k3s takes its settings over those of install.yaml")
	onHost(t, c.behind, "rm", dropIn) // which is not boxlift's
	mustRun(t, install(t.Context(), c.Site))
	checkRunning(t, c.Site)
	c.checkCiliumCommand(t, upstream.CiliumCLIs[0])
	if r := run(t, c.status(t)); r.code != 0 {
		t.Errorf("after the repair\n%v\nstatus says\n%v", repair, r)
	}
}

// removeLayer takes a layer of an image out of containerd's content, and returns its digest. The
// image keeps its name.
func removeLayer(t *testing.T, h *lab.Host, image string) string {
	t.Helper()
	ctr := func(args ...string) string {
		t.Helper()
		return onHost(t, h, append([]string{"/usr/local/bin/k3s", "ctr", "-n", "k8s.io"}, args...)...)
	}
	_, line, _ := strings.Cut(ctr("images", "ls", "name=="+image), "\n") // after REF TYPE DIGEST
	fields := strings.Fields(line)
	if len(fields) < 3 {
		t.Fatalf("%s: containerd's list of %s is %q", h.Name, image, line)
	}
	type descriptor struct {
		Digest   string
		Platform struct{ Architecture string }
	}
	var manifest struct{ Manifests, Layers []descriptor }
	for next := fields[2]; next != ""; {
		manifest.Manifests = nil
		if err := json.Unmarshal([]byte(ctr("content", "get", next)), &manifest); err != nil {
			t.Fatal(err)
		}
		next = ""
		for _, m := range manifest.Manifests {
			if m.Platform.Architecture == "amd64" {
				next = m.Digest
			}
		}
	}
	if len(manifest.Layers) == 0 {
		t.Fatalf("%s: %s has no layers", h.Name, image)
	}
	layer := manifest.Layers[len(manifest.Layers)-1].Digest
	ctr("content", "rm", layer)
	return layer
}

const ciliumCommand = "/usr/local/bin/cilium"

// checkCiliumCommand makes sure that the cilium command is on the first server and nowhere
// else, and runs.
func (c *cluster) checkCiliumCommand(t *testing.T, version string) {
	t.Helper()
	if out := onHost(t, c.server, "stat", "-c", "%a %U %G", ciliumCommand); out != "755 root root\n" {
		t.Errorf("%s has mode and owner %s", ciliumCommand, out)
	}
	if out := onHost(t, c.server, ciliumCommand, "version"); out != "cilium-cli: "+version+"\n" {
		t.Errorf("%s says %q, want version %s", ciliumCommand, out, version)
	}
	for _, h := range c.Hosts[1:] {
		if out := onHost(t, h, "sh", "-c", "ls -d "+ciliumCommand+" /var/lib/boxlift/files/cilium-linux-* 2>/dev/null || true"); out != "" {
			t.Errorf("%s has %s", h.Name, out)
		}
	}
}

// Another bundle's cilium command takes the place of the one that is there. The bundle comes as
// a delta, without what the hosts have said that they hold.
func testCiliumCommand(t *testing.T, c *cluster) {
	bed := connected(t)
	dir := t.TempDir()
	lock := strings.ReplaceAll(string(bed.Upstream.LockYAML(upstream.LockOptions{})), upstream.CiliumCLIs[0], upstream.CiliumCLIs[1])
	if err := os.WriteFile(filepath.Join(dir, "versions.lock"), []byte(lock), 0o644); err != nil {
		t.Fatal(err)
	}
	other, delta, sinceOld := filepath.Join(dir, "other.tar"), filepath.Join(dir, "delta.tar"), filepath.Join(dir, "since-old.tar")
	written := filepath.Join(dir, "HAVE.json")
	r := mustRun(t, c.Boxlift(t.Context(), passwords, "have", "--nodes", "--sign", "-f", "install.yaml", "-o", written))
	contains(t, "what the hosts hold", r.stdout, "linux/amd64: all hosts hold ", " written; the bundle", "signed: by the key of the site, ")
	build := []string{"bundle", "build", "-f", filepath.Join(dir, "versions.lock"), "--key", "boxlift.key", "-o"}
	for _, args := range [][]string{
		{"bundle", "lock", "-f", filepath.Join(dir, "versions.lock")},
		append(slices.Clone(build), other),
		append(slices.Clone(build), delta, "--since", written, "--reuse", other),
		append(slices.Clone(build), sinceOld, "--since", bed.Bundle()),
	} {
		mustRun(t, bed.Command(t.Context(), append(args, bed.MirrorFlags()...)...))
	}
	installFrom := func(bundle string, more ...string) *exec.Cmd {
		return c.Boxlift(t.Context(), passwords, append([]string{"install", "--bundle", bundle, "--key", "boxlift.pub", "-f", "install.yaml"}, more...)...)
	}
	// The hosts have no chart, and the operator has not named the bundle that has it.
	c.checkUntouched(t, c.Hosts, func() {
		r := run(t, installFrom(sinceOld))
		if r.code != 4 {
			t.Errorf("want exit code 4: %v", r)
		}
		contains(t, "the error", r.stderr, "incomplete bundle: "+sinceOld+" is a delta that leaves out 1 blob", "of cilium-"+release.Cilium+".tgz", "hint: name the bundle that the delta was built on with --base")
	})
	r = mustRun(t, installFrom(delta))
	contains(t, "the summary", r.stdout, "2 changes")
	c.checkCiliumCommand(t, upstream.CiliumCLIs[1])
	// It was all of the bundle: the packs are the same, and so is what is on record.
	contains(t, "the run with the whole bundle", mustRun(t, installFrom(other)).stdout, "nothing to do")
	contains(t, "the run with the other delta", mustRun(t, installFrom(sinceOld, "--base", "bundle.tar")).stdout, "nothing to do")
	mustRun(t, install(t.Context(), c.Site))
	c.checkCiliumCommand(t, upstream.CiliumCLIs[0])
}

// Values for Cilium's chart reach it, and an upgrade that does not come up is taken back.
func testNetwork(t *testing.T, c *cluster) {
	revisions := func() string {
		return kubectl(t, c.server, "get", "secrets", "-n", "kube-system", "-l", "owner=helm,status=deployed", "-o", "name")
	}
	before := revisions()
	c.writeNetwork(t, "{debug: {enabled: true}}", 240)
	r := mustRun(t, install(t.Context(), c.Site))
	contains(t, "the summary", r.stdout, "1 changes")
	if after := revisions(); after == before {
		t.Errorf("still %s", after)
	}
	contains(t, "Cilium's configuration", kubectl(t, c.server, "-n", "kube-system", "get", "configmap", "cilium-config", "-o", "jsonpath={.data.debug}"), "true")

	// This makes the stand-in for the agent answer that it is not well.
	c.writeNetwork(t, "{extraConfig: {boxlift-test-fail: agent}}", 30)
	r = run(t, install(t.Context(), c.Site))
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, "DaemonSet kube-system/cilium", "rolled back", "Startup probe failed")
	checkNothingUnfinished(t, c.Site)
	c.write(t, "", 60, "")
	mustRun(t, install(t.Context(), c.Site))
	if r := run(t, c.status(t)); r.code != 0 {
		t.Errorf("after the failed upgrade: %v", r)
	}
}

// A host that joins is the only one that is touched.
func testAdd(t *testing.T, c *cluster) {
	late, err := c.Lab.Host(t.Context(), lab.HostOptions{Name: "late", RootPassword: rootPassword})
	if err != nil {
		t.Fatal(err)
	}
	before := c.Hosts
	c.Hosts, c.late = append(c.Hosts, late), late
	if err := c.WriteKnownHosts(); err != nil {
		t.Fatal(err)
	}
	c.write(t, c.lateEntry(), 60, "")
	add := func() result {
		return run(t, c.Boxlift(t.Context(), passwords, "node", "add", "--hosts", "late", "--bundle", "bundle.tar", "--key", "boxlift.pub", "-f", "install.yaml"))
	}
	testTaken(t, c, add)
	c.checkUntouched(t, before, func() {
		// What was refused goes on, with the hosts that were named then.
		t.Logf("%s", succeeded(t, "resume of node add", run(t, resume(t, c.Site))).stdout)
	})
	contains(t, "node add once more", succeeded(t, "node add", add()).stdout, "nothing to do")
	if nodes(t, c.server)["late"] != "True" {
		t.Errorf("the new node is not Ready: %v", nodes(t, c.server))
	}
	contains(t, "the run after it", mustRun(t, install(t.Context(), c.Site)).stdout, "nothing to do")
}

// testTaken lets another machine have had a node of the new host's name, and then one of its
// machine-id: the host is refused. The command that the error names makes room for it.
func testTaken(t *testing.T, c *cluster, add func() result) {
	t.Helper()
	applyYAML(t, c.server, "apiVersion: v1\nkind: Node\nmetadata: {name: late}\n")
	kubectl(t, c.server, "patch", "node", "late", "--subresource=status", "-p", `{"status":{"nodeInfo":{"machineID":"0123456789abcdef0123456789abcdef"}}}`)
	r := add()
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "node add", r.stderr, "the host would join as the node late", "its machine-id is 0123456789abcdef0123456789abcdef", "boxlift node remove --hosts late --forget-unreachable-host")
	mustRun(t, c.Boxlift(t.Context(), passwords, "node", "remove", "--hosts", "late", "--forget-unreachable-host", "-f", "install.yaml"))

	// The host is a copy of a machine that has a node under its own name.
	applyYAML(t, c.server, "apiVersion: v1\nkind: Node\nmetadata: {name: original}\n")
	machineID := strings.TrimSpace(onHost(t, c.late, "cat", "/etc/machine-id"))
	kubectl(t, c.server, "patch", "node", "original", "--subresource=status", "-p", fmt.Sprintf(`{"status":{"nodeInfo":{"machineID":%q}}}`, machineID))
	r = add()
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "node add", r.stderr, "the host has the /etc/machine-id "+machineID+", as the cluster's node original", "systemd-machine-id-setup")
	kubectl(t, c.server, "delete", "node", "original")
}

func (c *cluster) lateEntry() string {
	return fmt.Sprintf("    - {host: %s, name: late, password: '${ROOT_PASSWORD}'}\n", c.late.Address)
}

// budgetYAML is a pod that must run and can do so on one node only.
const budgetYAML = `apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: precious}
spec:
  minAvailable: 1
  selector: {matchLabels: {app: precious}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: precious}
spec:
  replicas: 1
  selector: {matchLabels: {app: precious}}
  template:
    metadata: {labels: {app: precious}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {kubernetes.io/hostname: %s}
      containers:
        - name: precious
          image: ` + netcheckImage + `
          args: [serve]
`

func (c *cluster) remove(t *testing.T, more ...string) *exec.Cmd {
	t.Helper()
	return c.Boxlift(t.Context(), passwords, append([]string{"node", "remove", "-f", "install.yaml"}, more...)...)
}

// A PodDisruptionBudget holds a removal up and is named; nothing after it happens. When
// it gives way, the removal goes through in its order.
func testRemoveWithBudget(t *testing.T, c *cluster) {
	applyYAML(t, c.server, fmt.Sprintf(budgetYAML, "late"))
	kubectl(t, c.server, "rollout", "status", "deployment/precious", "--timeout=60s")
	c.write(t, c.lateEntry(), 5, "")
	r := run(t, c.remove(t, "--hosts", "late,direct"))
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, "drain", "precious", "PodDisruptionBudget", "not touched because of that: direct")
	if got := nodes(t, c.server); len(got) != 4 {
		t.Errorf("nodes: %v", got)
	}
	if out := onHost(t, c.late, "systemctl", "is-active", "k3s-agent"); out != "active\n" {
		t.Errorf("k3s-agent is %s", out)
	}
	if cordoned := kubectl(t, c.server, "get", "node", "direct", "-o", "jsonpath={.spec.unschedulable}"); cordoned != "" {
		t.Error("the node after the one that failed was cordoned")
	}

	kubectl(t, c.server, "delete", "pdb", "precious")
	// Nothing brings this pod back elsewhere, as nothing does a sandbox.
	applyYAML(t, c.server, `apiVersion: v1
kind: Pod
metadata: {name: alone}
spec:
  nodeName: late
  terminationGracePeriodSeconds: 1
  containers: [{name: alone, image: `+netcheckImage+`, args: [serve]}]
`)
	kubectl(t, c.server, "wait", "--for=condition=Ready", "pod/alone", "--timeout=60s")
	r = run(t, c.remove(t, "--hosts", "late"))
	if r.code != 6 {
		t.Errorf("a pod that nothing brings back: want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, "nothing was evicted", "default/alone", "--delete-unmanaged-pods")
	kubectl(t, c.server, "wait", "--for=condition=Ready", "pod/alone", "--timeout=5s")
	c.removeKilled(t)
	if out, err := tryKubectl(t, c.server, "get", "pod", "alone"); err == nil {
		t.Errorf("the pod is still there: %s", out)
	}
	kubectl(t, c.server, "delete", "deployment", "precious")

	// It can come back.
	c.write(t, c.lateEntry(), 15, "")
	mustRun(t, install(t.Context(), c.Site))
	if nodes(t, c.server)["late"] != "True" {
		t.Errorf("the node did not come back: %v", nodes(t, c.server))
	}
}

// removeKilled removes a host that install.yaml does not have. Boxlift dies when the node is
// deleted and k3s not yet uninstalled: then only the state is left to say which host is meant.
func (c *cluster) removeKilled(t *testing.T) {
	t.Helper()
	c.write(t, "", 60, "")
	c.killBeforeUninstall(t, c.remove(t, "--hosts", "late", "--delete-unmanaged-pods"), "remove")
	contains(t, "the dry run", mustRun(t, c.remove(t, "--hosts", "late", "--dry-run")).stdout, "would uninstall k3s on late")
	r := mustRun(t, c.remove(t, "--hosts", "late,"+c.late.Address.String()))
	contains(t, "what is said of the run before", r.stdout+r.stderr, "did not get to uninstalling k3s", "boxlift node remove --hosts late", c.late.Address.String())
	if diff := cmp.Diff([]string{"remove the timer that renews certificates", "uninstall k3s"}, readState(t, c.Site).titles("remove")); diff != "" {
		t.Errorf("the steps: %s", diff)
	}
	checkClean(t, c.late)
	contains(t, "the run after it", mustRun(t, install(t.Context(), c.Site)).stdout, "nothing to do")
}

// killBeforeUninstall runs a command that removes the host late in a phase, and kills it when the
// node is deleted and k3s not yet uninstalled.
func (c *cluster) killBeforeUninstall(t *testing.T, remove *exec.Cmd, phase string) {
	t.Helper()
	before := len(nodes(t, c.server))
	var output lockedBuffer
	remove.Stdout, remove.Stderr = &output, &output
	if err := remove.Start(); err != nil {
		t.Fatal(err)
	}
	// From here on the host does not hear what it is told, so that the uninstall cannot begin.
	waitFor(t, &output, "cordon the node late")
	if err := c.late.BlockSSH(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, &output, "delete the node late")
	eventually(t, "the node is deleted", time.Minute, func() (bool, string) {
		titles := readState(t, c.Site).titles(phase)
		return slices.Contains(titles, "delete the node late"), fmt.Sprint(titles, output.String())
	})
	_ = remove.Process.Signal(syscall.SIGKILL)
	if _ = remove.Wait(); !killed(remove) {
		t.Fatalf("it came to its end:\n%s", output.String())
	}
	if err := c.late.UnblockSSH(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"cordon the node late", "drain the node late", "delete the node late"}, readState(t, c.Site).titles(phase)); diff != "" {
		t.Errorf("the steps: %s", diff)
	}
	if got := nodes(t, c.server); len(got) != before-1 {
		t.Errorf("nodes: %v", got)
	}
	onHost(t, c.late, "test", "-x", "/usr/local/bin/k3s-agent-uninstall.sh")
}

// checkClean looks for what boxlift and k3s brought to a host.
func checkClean(t *testing.T, h *lab.Host) {
	t.Helper()
	left := onHost(t, h, "sh", "-c", `ls -d /usr/local/bin/k3s* /etc/rancher/k3s /var/lib/rancher/k3s /var/lib/boxlift /etc/systemd/system/k3s* /etc/cni/net.d/*cilium* 2>/dev/null || true
ps -eo comm | grep -E 'k3s|containerd' || true; ip -o link | grep -E 'cilium|lxc|veth' || true`)
	if left != "" {
		t.Errorf("%s: it is not clean:\n%s", h.Name, left)
	}
	// And its network is whole.
	onHost(t, h, "ping", "-c", "1", "-W", "2", "10.77.0.1")
}

// A host that cannot be reached is only removed when that is asked for in so many words.
func testRemoveUnreachable(t *testing.T, c *cluster) {
	if err := c.late.PowerCut(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := run(t, c.remove(t, "--hosts", "late"))
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, "nothing was changed", "unreachable", "--forget-unreachable-host")
	if cordoned := kubectl(t, c.server, "get", "node", "late", "-o", "jsonpath={.spec.unschedulable}"); cordoned != "" {
		t.Error("the node was cordoned")
	}
	mustRun(t, c.remove(t, "--hosts", "late", "--forget-unreachable-host"))
	if _, there := nodes(t, c.server)["late"]; there {
		t.Error("the node is still there")
	}
	// It comes back with its old k3s, which the next run takes in again.
	if err := c.late.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustRun(t, install(t.Context(), c.Site))
	if nodes(t, c.server)["late"] != "True" {
		t.Errorf("the node did not come back: %v", nodes(t, c.server))
	}
}

// A node that is down and that install.yaml does not have holds up no rollout, although
// DaemonSets want a pod there. The warning says how to get rid of it. When its host is back and
// k3s does not run there, it can be removed.
func testDownUnlisted(t *testing.T, c *cluster) {
	applyYAML(t, c.server, fmt.Sprintf(budgetYAML, "late"))
	kubectl(t, c.server, "rollout", "status", "deployment/precious", "--timeout=60s")
	kubectl(t, c.server, "delete", "pdb", "precious")
	onHost(t, c.late, "systemctl", "disable", "k3s-agent")
	if err := c.late.PowerCut(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is not Ready", 2*time.Minute, func() (bool, string) {
		state := nodes(t, c.server)["late"]
		return state == "Unknown", state
	})
	generation := func() string {
		return kubectl(t, c.server, "-n", "kube-system", "get", "daemonset", "cilium", "-o", "jsonpath={.metadata.generation}")
	}
	before := generation()
	c.writeNetwork(t, "{debug: {enabled: true}, podAnnotations: {boxlift.test/rollout: anew}}", 120)
	r := mustRun(t, install(t.Context(), c.Site))
	contains(t, "the warning", r.stderr+r.stdout, "the node late", "not in install.yaml", "not Ready", "boxlift node remove --hosts late --forget-unreachable-host")
	if after := generation(); after == before {
		t.Errorf("Cilium's DaemonSet is still of generation %s: nothing was rolled out", after)
	}
	if state := nodes(t, c.server)["late"]; state != "Unknown" {
		t.Errorf("the node that was to be down is Ready: %s", state)
	}
	if err := c.late.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Nobody on the host will say that the pod has ended.
	mustRun(t, c.remove(t, "--hosts", "late"))
	checkClean(t, c.late)
	kubectl(t, c.server, "delete", "deployment", "precious")
	c.write(t, c.lateEntry(), 15, "")
	mustRun(t, install(t.Context(), c.Site))
	if nodes(t, c.server)["late"] != "True" {
		t.Errorf("the node did not come back: %v", nodes(t, c.server))
	}
}

// Of nodes that are to go, those after one that cannot be drained are untouched.
func testConvergeWithBudget(t *testing.T, c *cluster) {
	applyYAML(t, c.server, fmt.Sprintf(budgetYAML, "direct"))
	kubectl(t, c.server, "rollout", "status", "deployment/precious", "--timeout=60s")
	c.writeAgents(t, "", 5, "  removeAbsentAgents: true")
	r := run(t, install(t.Context(), c.Site))
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, "remove direct", "drain", "precious", "PodDisruptionBudget")
	if diff := cmp.Diff([]string{"cordon the node direct"}, readState(t, c.Site).titles("converge")); diff != "" {
		t.Errorf("the steps: %s", diff)
	}
	want := map[string]string{"server": "True", "behind": "True", "direct": "True", "late": "True"}
	if diff := cmp.Diff(want, nodes(t, c.server)); diff != "" {
		t.Error(diff)
	}
	if cordoned := kubectl(t, c.server, "get", "node", "late", "-o", "jsonpath={.spec.unschedulable}"); cordoned != "" {
		t.Error("the node after the one that failed was cordoned")
	}
	for _, h := range []*lab.Host{c.direct, c.late} {
		if out := onHost(t, h, "systemctl", "is-active", "k3s-agent"); out != "active\n" {
			t.Errorf("%s: k3s-agent is %s", h.Name, out)
		}
	}
	kubectl(t, c.server, "delete", "pdb/precious", "deployment/precious")
	kubectl(t, c.server, "uncordon", "direct")
}

// A node that was taken out of install.yaml stays with a warning, until the file says
// that such nodes go. A host that is in the file stays, also when the cluster knows it by
// another address or name.
func testConverge(t *testing.T, c *cluster) {
	c.write(t, "", 60, "")
	r := mustRun(t, install(t.Context(), c.Site))
	contains(t, "the warning", r.stderr+r.stdout, "late", "not in install.yaml", "removeAbsentAgents")
	if got := nodes(t, c.server); len(got) != 4 {
		t.Errorf("nodes: %v", got)
	}

	const second = "10.77.0.240"
	onHost(t, c.direct, "ip", "address", "add", second+"/24", "dev", "eth0")
	c.alsoKnownAs(t, c.direct, second)
	const remove = "  removeAbsentAgents: true"
	c.writeAgents(t, c.directEntry(second, "renamed"), 60, remove)
	r = mustRun(t, install(t.Context(), c.Site, "--dry-run"))
	contains(t, "the dry run", r.stdout, "would cordon the node late")
	if strings.Contains(r.stdout, "the node direct") {
		t.Errorf("a host with another name and address would be removed: %v", r)
	}
	c.writeAgents(t, c.directEntry(second, "direct"), 60, remove)
	uid := func() string {
		return kubectl(t, c.server, "get", "node", "direct", "-o", "jsonpath={.metadata.uid} {.spec}")
	}
	before := uid()
	// Boxlift dies on the way, and the cluster has nothing of that node any more.
	c.killBeforeUninstall(t, install(t.Context(), c.Site), "converge")
	mustRun(t, resume(t, c.Site))
	if diff := cmp.Diff(before, uid()); diff != "" {
		t.Errorf("the node direct: %s", diff)
	}
	want := []string{"cordon the node late", "drain the node late", "delete the node late",
		"remove the timer that renews certificates", "uninstall k3s"}
	if diff := cmp.Diff(want, readState(t, c.Site).titles("converge")); diff != "" {
		t.Errorf("the steps: %s", diff)
	}
	if diff := cmp.Diff(map[string]string{"server": "True", "behind": "True", "direct": "True"}, nodes(t, c.server)); diff != "" {
		t.Error(diff)
	}
	checkClean(t, c.late)
	contains(t, "the run after it", mustRun(t, install(t.Context(), c.Site)).stdout, "nothing to do")
	c.removeBegun(t)
	onHost(t, c.direct, "ip", "address", "delete", second+"/24", "dev", "eth0")
	c.write(t, "", 60, "")
}

// removeBegun removes a host that has got no further than boxlift-node, and has a kubelet of
// another Kubernetes, which stays.
func (c *cluster) removeBegun(t *testing.T) {
	t.Helper()
	c.write(t, c.lateEntry(), 60, "")
	onHost(t, c.late, "mkdir", "-p", "/var/lib/boxlift/bin", "/var/lib/kubelet/pki")
	mustRun(t, c.remove(t, "--hosts", "late"))
	onHost(t, c.late, "rmdir", "/var/lib/kubelet/pki")
	checkClean(t, c.late)
}

// alsoKnownAs notes a host's key under a further address.
func (c *cluster) alsoKnownAs(t *testing.T, h *lab.Host, address string) {
	t.Helper()
	line, err := h.KnownHosts()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(c.Bed.Dir, "known_hosts")
	known, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	known = append(known, strings.Replace(line, h.Address.String(), address, 1)+"\n"...)
	if err := os.WriteFile(name, known, 0o600); err != nil {
		t.Fatal(err)
	}
}

func testServersStay(t *testing.T, c *cluster) {
	r := run(t, c.remove(t, "--hosts", "server"))
	if r.code != 3 {
		t.Errorf("want exit code 3: %v", r)
	}
	contains(t, "the error", r.stderr, "the last server is never removed")
}

// k3s that has the token of another cluster is not uninstalled, although install.yaml names the
// host and the cluster has no node of it.
func testStrangerStays(t *testing.T, c *cluster) {
	kubectl(t, c.server, "delete", "node", "direct")
	onHost(t, c.direct, "sed", "-i", "s/^K10/K10f/", "/etc/rancher/k3s/boxlift-token")
	c.checkStays(t, c.direct, "the host is in another cluster", "take the host out of install.yaml", "/usr/local/bin/k3s-agent-uninstall.sh")
}

// The last server stays also when somebody has deleted its node.
func testServerWithoutNodeStays(t *testing.T, c *cluster) {
	kubectl(t, c.server, "delete", "node", "server")
	c.checkStays(t, c.server, "the last server is never removed")
}

// checkStays makes sure that a host is not removed, and why.
func (c *cluster) checkStays(t *testing.T, h *lab.Host, why ...string) {
	t.Helper()
	r := run(t, c.remove(t, "--hosts", h.Name))
	if r.code != 3 {
		t.Errorf("want exit code 3: %v", r)
	}
	contains(t, "the error", r.stderr, why...)
	if out := onHost(t, h, "systemctl", "is-active", service(t, h)); out != "active\n" {
		t.Errorf("%s: k3s is %s", h.Name, out)
	}
	onHost(t, h, "test", "-d", "/var/lib/rancher/k3s")
}
