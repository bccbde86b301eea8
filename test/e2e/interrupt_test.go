package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
)

// resume is boxlift resume on the operator's place. It takes the bundle from the state.
func resume(t *testing.T, site *testbed.Site, more ...string) *exec.Cmd {
	t.Helper()
	return site.Boxlift(t.Context(), passwords, append([]string{"resume", "--key", "boxlift.pub", "-f", "install.yaml"}, more...)...)
}

// killedConfig has something to do in every step that there is: registries, labels. Logging in
// with keys keeps the many runs short.
const killedConfig = `cluster:
  name: e2e
  servers:
    - {host: %[1]s, identityFile: %[3]s, labels: {boxlift.test/part: server}}
  agents:
    - {host: %[2]s, user: admin, identityFile: %[3]s, sudo: true, labels: {boxlift.test/part: agent}}
ssh: {knownHostsFile: known_hosts}
network: {cni: cilium}
registries:
  mirrors: {registry.example.lan: {endpoint: ["https://registry.example.lan:5000"]}}
`

// Whenever boxlift dies, resume completes the job, and nothing is done twice that may be
// done once only. It is killed right after each step began and right after each ended, and
// then at random moments.
func TestKilledAtEveryStep(t *testing.T) {
	parallel(t, 7*time.Minute)
	site := newSite(t,
		lab.HostOptions{Name: "server"},
		lab.HostOptions{Name: "agent", Users: []lab.User{{Name: "admin", Sudo: lab.SudoNoPassword}}},
	)
	writeConfig(t, site.Bed, killedConfig, site.Hosts[0].Address, site.Hosts[1].Address, site.KeyFile())
	k := &killer{Site: site, boundaries: make(map[boundary]bool), seen: make(map[string]string), starts: make(map[string]int)}
	k.everyStep(t)
	t.Logf("%d kills at %d boundaries of steps", k.kills, len(k.boundaries))
	checkCluster(t, site, 1)
	if k.look(t); !k.known {
		t.Fatalf("not all that must stay was seen: %v", k.seen)
	}

	const wantKills = 40
	atRandom := max(6, wantKills-k.kills)
	random := rand.New(rand.NewPCG(20261121, 3))
	for tries := 0; atRandom > 0 && tries < 100; tries++ {
		for _, i := range random.Perm(len(k.steps))[:4] {
			k.spoil(t, k.steps[i])
		}
		c := install(t.Context(), site)
		if tries%2 == 1 && readState(t, site).Result != "done" {
			c = resume(t, site)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.Int64N(int64(6 * time.Second))))
		_ = c.Process.Signal(syscall.SIGKILL) // it may have ended
		_ = c.Wait()
		k.count(t)
		if killed(c) {
			k.kills++
			atRandom--
		}
	}
	if k.kills < wantKills || atRandom > 0 {
		t.Errorf("%d kills, want %d; %d more at random moments were wanted", k.kills, wantKills, atRandom)
	}
	if readState(t, site).Result != "done" {
		mustRun(t, resume(t, site))
		k.count(t)
	}
	mustRun(t, install(t.Context(), site))
	k.count(t)
	checkCluster(t, site, 1)
	k.look(t)
	k.checkStarts(t)
	contains(t, "the run after the last", mustRun(t, install(t.Context(), site)).stdout, "nothing to do")
	checkNothingLeaked(t, site)
}

func killed(c *exec.Cmd) bool {
	status, ok := c.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

// stepID is a step of a run.
type stepID struct{ phase, host, title string }

// boundary is the begin or the end of a step, or a time after the begin of a long one.
type boundary struct {
	stepID
	end   bool
	after time.Duration
}

func (b boundary) String() string {
	which := "begin"
	switch {
	case b.end:
		which = "end"
	case b.after > 0:
		which = b.after.String() + " after the begin"
	}
	return fmt.Sprintf("%s of %q on %q in %s", which, b.title, b.host, b.phase)
}

// killer kills boxlift and remembers where, and what must stay as it is from when it is first
// seen.
type killer struct {
	*testbed.Site
	boundaries map[boundary]bool
	kills      int
	// within says when else to kill after the begin of a step, from the shortest on.
	within func(stepID) []time.Duration
	// only are what titles of steps begin with in which to kill; none: in all.
	only []string
	// steps are those of a run that came to its end, in their order.
	steps []stepID
	seen  map[string]string
	// known says that everything that must stay was seen.
	known bool
	// starts are how often the start of a host's k3s was begun in the runs so far, and
	// counted how much of that is from the run in the state.
	starts  map[string]int
	counted counted
}

// counted is what was counted of a run.
type counted struct {
	run    time.Time
	starts map[string]int
}

// everyStep kills boxlift at the first boundary at which it was not killed yet, until there
// is none left.
func (k *killer) everyStep(t *testing.T) {
	t.Helper()
	next := func() *exec.Cmd { return install(t.Context(), k.Site) }
	for range 400 {
		wasKilled, r := k.killAtNew(t, next())
		if wasKilled {
			next = func() *exec.Cmd { return resume(t, k.Site) }
			if readState(t, k.Site).Result == "done" { // it came after the last step
				next = func() *exec.Cmd { return install(t.Context(), k.Site) }
			}
			continue
		}
		if r.code != 0 {
			t.Fatal(r)
		}
		s := readState(t, k.Site)
		if s.Result != "done" {
			t.Fatalf("the state after a run that came to its end: %+v", s)
		}
		if k.steps == nil {
			if s.Resumed == 0 {
				t.Errorf("the run was never gone on with: %+v", s)
			}
			for _, step := range s.Steps {
				k.steps = append(k.steps, stepID{step.Phase, step.Host, step.Title})
			}
		}
		// What was done although boxlift died at its begin does not come again by itself.
		missing := k.missing()
		if len(missing) == 0 {
			return
		}
		t.Logf("not killed at yet: %v", missing)
		for _, b := range missing {
			k.spoil(t, b.stepID)
		}
		next = func() *exec.Cmd { return install(t.Context(), k.Site) }
	}
	t.Fatalf("after %d kills there are boundaries left: %v", k.kills, k.missing())
}

func (k *killer) missing() []boundary {
	var missing []boundary
	for _, step := range k.steps {
		for _, end := range []bool{false, true} {
			if b := (boundary{stepID: step, end: end}); !k.boundaries[b] {
				missing = append(missing, b)
			}
		}
	}
	return missing
}

// otherProgram makes another program of k3s, which may be running.
const otherProgram = "set -e; cd /usr/local/bin; cp k3s k3s-new; echo >>k3s-new; mv k3s-new k3s"

// spoil undoes what a step has done, so that it is needed again.
func (k *killer) spoil(t *testing.T, step stepID) {
	t.Helper()
	server, h, unit := k.Hosts[0], k.Hosts[0], "k3s"
	if step.host == k.Hosts[1].Address.String() {
		h, unit = k.Hosts[1], "k3s-agent"
	}
	sh := func(script string) { onHost(t, h, "sh", "-c", script) }
	switch title := step.title; {
	case title == "ship the bundle's contents":
		sh("rm -f /var/lib/rancher/k3s/agent/images/boxlift-netcheck-*.tar")
	case step.phase == "place": // it passes by hosts that have the unit
		sh("rm -f /etc/systemd/system/" + unit + ".service && systemctl daemon-reload") // k3s and its pods run on
		if strings.HasPrefix(title, "place k3s ") {
			sh(otherProgram)
		}
	case strings.HasPrefix(title, "place k3s "):
		sh(otherProgram)
	case title == "write the agents' token":
		sh("echo >>/etc/rancher/k3s/boxlift-agent-token")
	case title == "write k3s' token":
		sh("echo >>/etc/rancher/k3s/boxlift-token")
	case title == "write k3s' config":
		sh("echo 'debug: true' >>/etc/rancher/k3s/config.yaml")
	case title == "write how the node registers into k3s' config":
		sh("echo '# changed' >>/etc/rancher/k3s/config.yaml") // k3s goes by none of it
	case title == "write k3s' registries":
		sh("echo '# changed' >>/etc/rancher/k3s/registries.yaml")
	case title == "write k3s' resolv.conf":
		sh("echo '# changed' >>/etc/rancher/k3s/boxlift-resolv.conf")
	case strings.HasPrefix(title, "set up the service "):
		sh("echo '# changed' >>/etc/systemd/system/" + unit + ".service")
	case strings.HasPrefix(title, "start k3s"):
		sh("! systemctl cat " + unit + " >/dev/null 2>&1 || systemctl stop " + unit) // it may have been taken away
	case strings.HasPrefix(title, "set up Cilium "):
		_, _ = tryKubectl(t, server, "-n", "kube-system", "patch", "configmap", "cilium-config", "-p", `{"data":{"routing-mode":"native"}}`)
	case title == "place the cilium command":
		sh("rm -f /usr/local/bin/cilium")
	case strings.HasPrefix(title, "label the node "):
		// The cluster may be down.
		_, _ = tryKubectl(t, server, "label", "node", strings.TrimPrefix(title, "label the node "), "boxlift.test/part-")
	case title == "make the images in containerd complete":
		// Where k3s is down containerd is too.
		_, _ = h.Exec(t.Context(), "/usr/local/bin/k3s", "ctr", "-n", "k8s.io", "images", "rm", netcheckImage)
	case title == "remove boxlift's registry":
		sh("mkdir -p /etc/boxlift-registry")
	case title == "remove the authority of the registry":
		sh("echo >" + registryCA)
	case title == "remove old packs":
		sh("echo >/var/lib/boxlift/files/old-000000000000") // which no release needs
	default:
		t.Fatalf("nothing is known that makes the step %+v needed again", step)
	}
}

// killAtNew runs a command and kills it at the first boundary of a step at which it was not
// killed yet. It returns false, and what the command left, when that came to its end first.
func (k *killer) killAtNew(t *testing.T, c *exec.Cmd) (bool, result) {
	t.Helper()
	var stdout, stderr lockedBuffer
	c.Stdout, c.Stderr = &stdout, &stderr
	before, written := k.tryState(t), time.Time{}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = c.Wait()
		close(ended)
	}()
	start := time.Now()
	for {
		select {
		case <-ended:
			k.count(t)
			return false, result{code: c.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
		case <-time.After(2 * time.Millisecond):
		}
		if time.Since(start) > 5*time.Minute {
			_ = c.Process.Signal(syscall.SIGQUIT)
			<-ended
			t.Fatalf("%v hangs:\n%s", c.Args, stderr.String())
		}
		info, err := os.Stat(filepath.Join(k.Bed.Dir, "state.json"))
		if err != nil || info.ModTime().Equal(written) {
			continue
		}
		written = info.ModTime()
		found := k.newIn(before, k.tryState(t))
		if len(found) == 0 {
			continue
		}
		time.Sleep(found[0].after)
		_ = c.Process.Signal(syscall.SIGKILL)
		<-ended
		if !killed(c) {
			continue // it was faster
		}
		// It may have got further meanwhile: what counts is where it was when it died.
		k.count(t)
		k.kills++
		for _, b := range k.newIn(before, k.tryState(t)) {
			t.Logf("killed at the %s", b)
			k.boundaries[b] = true
			if !k.known && b.end && (strings.HasPrefix(b.title, "start k3s") || b.phase == "network") {
				k.look(t) // as soon as there may be something to see
			}
		}
		return true, result{}
	}
}

// tryState is the state, or an empty one where there is none yet.
func (k *killer) tryState(t *testing.T) state {
	t.Helper()
	if _, err := os.Stat(filepath.Join(k.Bed.Dir, "state.json")); err != nil {
		return state{}
	}
	return readState(t, k.Site)
}

// newIn are the boundaries at which a run now is and boxlift was not killed yet: steps that
// began and did not end, and those that ended and nothing began after them.
func (k *killer) newIn(before, now state) []boundary {
	had := make(map[stepID]time.Time)
	if before.Started.Equal(now.Started) {
		for _, step := range before.Steps {
			had[stepID{step.Phase, step.Host, step.Title}] = step.Started
		}
	}
	last := make(map[string]time.Time) // when a host's last step began
	for _, step := range now.Steps {
		if step.Started.After(last[step.Host]) {
			last[step.Host] = step.Started
		}
	}
	var found []boundary
	for _, step := range now.Steps {
		id := stepID{step.Phase, step.Host, step.Title}
		b := boundary{stepID: id, end: step.Result == "done"}
		current := !step.Started.IsZero() && !step.Started.Equal(had[id]) && step.Started.Equal(last[step.Host])
		if !current || step.Result != "running" && step.Result != "done" {
			continue
		}
		if k.only != nil && !slices.ContainsFunc(k.only, func(title string) bool { return strings.HasPrefix(step.Title, title) }) {
			continue
		}
		moments := []time.Duration{0}
		if k.within != nil && !b.end {
			moments = append(moments, k.within(id)...)
		}
		for _, b.after = range moments {
			if !k.boundaries[b] {
				found = append(found, b)
				break
			}
		}
	}
	return found
}

// count adds up how often k3s was to be started.
func (k *killer) count(t *testing.T) {
	t.Helper()
	s := k.tryState(t)
	if !s.Started.Equal(k.counted.run) {
		k.counted = counted{run: s.Started, starts: make(map[string]int)}
	}
	for _, step := range s.Steps {
		if strings.HasPrefix(step.Title, "start k3s") {
			k.starts[step.Host] += step.Attempts - k.counted.starts[step.Host]
			k.counted.starts[step.Host] = step.Attempts
		}
	}
}

// checkStarts makes sure that k3s was started no more often than steps began to.
func (k *killer) checkStarts(t *testing.T) {
	t.Helper()
	for _, h := range k.Hosts {
		unit := service(t, h) + ".service"
		started := strings.Count(onHost(t, h, "journalctl", "--no-pager", "-o", "cat", "-u", unit), "Starting "+unit)
		t.Logf("%s was started %d times, steps to start it began %d times", unit, started, k.starts[h.Address.String()])
		if started == 0 || started > k.starts[h.Address.String()] {
			t.Errorf("%s: %s was started %d times, and steps to start it began %d times", h.Name, unit, started, k.starts[h.Address.String()])
		}
		if out := onHost(t, h, "systemctl", "show", "-p", "NRestarts", "--value", unit); out != "0\n" {
			t.Errorf("%s: systemd started %s again %s times", h.Name, unit, out)
		}
	}
}

// look makes sure that what exists once stays what it was when it was first seen: the token,
// the cluster, and the nodes.
func (k *killer) look(t *testing.T) {
	t.Helper()
	same := func(what, is string) {
		t.Helper()
		if was, ok := k.seen[what]; ok && was != is {
			t.Errorf("%s was %q and is %q", what, was, is)
		}
		k.seen[what] = is
	}
	for what, file := range map[string]string{
		"the servers' token": "/etc/rancher/k3s/boxlift-token", "the agents' token": "/etc/rancher/k3s/boxlift-agent-token",
	} {
		if out, err := k.Hosts[0].Exec(t.Context(), "cat", file); err == nil {
			same(what, strings.TrimSpace(string(out)))
		}
	}
	if out, err := k.Hosts[1].Exec(t.Context(), "cat", "/etc/rancher/k3s/boxlift-token"); err == nil {
		_, password, _ := strings.Cut(strings.TrimSpace(string(out)), "::node:")
		same("the agents' token", password)
	}
	server := k.Hosts[0]
	if out, err := server.Exec(t.Context(), "cat", "/var/lib/rancher/k3s/server/node-token"); err == nil {
		same("the full token", strings.TrimSpace(string(out)))
	}
	const kubeconfig = "/etc/rancher/k3s/k3s.yaml"
	if _, err := server.Exec(t.Context(), "test", "-s", kubeconfig); err != nil {
		return // it has not begun
	}
	out, err := tryKubectl(t, server, "get", "namespaces,nodes", "--request-timeout=5s", "-o",
		`jsonpath={range .items[?(@.kind=="Node")]}{.metadata.name} {.metadata.uid}{"\n"}{end}{range .items[?(@.metadata.name=="kube-system")]}cluster {.metadata.uid}{"\n"}{end}`)
	if err != nil {
		return // it is just starting
	}
	for line := range strings.Lines(out) {
		name, uid, _ := strings.Cut(strings.TrimSpace(line), " ")
		same("the uid of "+name, uid)
	}
	k.known = k.seen["the uid of cluster"] != "" && k.seen["the uid of server"] != "" && k.seen["the uid of agent"] != ""
}

// checkCluster makes sure that the cluster is whole, and that what exists once was made
// once. Hosts hold the packs of so many releases at most.
func checkCluster(t *testing.T, site *testbed.Site, releases int) {
	t.Helper()
	checkRunning(t, site)
	server := site.Hosts[0]
	want := make(map[string]string)
	for _, h := range site.Hosts {
		want[h.Name] = "True"
	}
	if diff := cmp.Diff(want, nodes(t, server)); diff != "" {
		t.Errorf("nodes: %s", diff)
	}
	deployed := kubectl(t, server, "get", "secrets", "-n", "kube-system", "-l", "owner=helm,name=cilium,status=deployed", "-o", "name")
	if strings.Count(deployed, "\n") != 1 {
		t.Errorf("deployed revisions of Cilium: %q", deployed)
	}
	tokens := make(map[string]bool)
	for _, h := range site.Hosts {
		token := strings.TrimSpace(onHost(t, h, "cat", "/etc/rancher/k3s/boxlift-token"))
		tokens[service(t, h)+" "+token[strings.LastIndex(token, ":")+1:]] = true
		packs := make(map[string]int)
		for name := range strings.Lines(onHost(t, h, "ls", "/var/lib/rancher/k3s/agent/images")) {
			if component, ok := strings.CutPrefix(strings.TrimSpace(name), "boxlift-"); ok {
				packs[component[:strings.LastIndex(component, "-")]]++
			}
		}
		for component, n := range packs {
			if n > releases {
				t.Errorf("%s: %d packs of %s", h.Name, n, component)
			}
		}
	}
	checkNothingUnfinished(t, site)
	agents := strings.TrimSpace(onHost(t, server, "cat", "/etc/rancher/k3s/boxlift-agent-token"))
	if len(tokens) != 2 || !tokens["k3s-agent "+agents] {
		t.Errorf("%d tokens are in use, want the servers' and the agents' own", len(tokens))
	}
}

// checkNothingUnfinished looks for temporary files, of which a run that came to its end leaves none,
// whether it went well or not.
func checkNothingUnfinished(t *testing.T, site *testbed.Site) {
	t.Helper()
	for _, h := range site.Hosts {
		left := onHost(t, h, "sh", "-c", "find /var/lib/boxlift /var/lib/rancher/k3s/agent/images /etc/rancher /usr/local/bin /tmp -name '*.part' -o -name '.boxlift-*' -o -name '*.boxlift-new'")
		if left != "" {
			t.Errorf("%s: unfinished files are left:\n%s", h.Name, left)
		}
	}
}

// Ctrl-C ends in good order; a second run beside the first is refused; hosts that lose their
// power while they receive or join, or are rebooted, are reported; what was changed meanwhile is not gone on
// with; and resume completes.
func TestInterrupted(t *testing.T) {
	parallel(t, 165*time.Second)
	site := newTwoHosts(t)
	ctx := t.Context()
	start := func(c *exec.Cmd) *lockedBuffer {
		t.Helper()
		var stderr lockedBuffer
		c.Stderr = &stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return &stderr
	}
	server, agent := site.Hosts[0], site.Hosts[1]
	// Agents and users reach the API at an address that another server could take over.
	const endpoint = "10.77.0.200:6443"
	onHost(t, server, "ip", "address", "add", strings.TrimSuffix(endpoint, ":6443")+"/24", "dev", "eth0")
	writeConfig(t, site.Bed, strings.Replace(twoHosts, "  name: e2e\n", "  name: e2e\n  apiEndpoint: "+endpoint+"\n", 1), server.Address, agent.Address)
	// lost runs a command and takes the agent down when the step that is named begins.
	lost := func(c *exec.Cmd, step string, down func(context.Context) error) {
		t.Helper()
		stderr := start(c)
		waitFor(t, stderr, agent.Address.String()+": "+step)
		if err := down(ctx); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		if code := c.ProcessState.ExitCode(); code != 6 {
			t.Errorf("exit code %d after the host went down, want 6\n%s", code, stderr.String())
		}
		contains(t, "the report of it", stderr.String(), "1 of 2 hosts failed\n  "+agent.Address.String()+":")
		if err := agent.Up(ctx); err != nil {
			t.Fatal(err)
		}
	}

	// So slow that shipping is still going on when it is interrupted.
	if err := site.LimitLinks(ctx, "100mbit"); err != nil {
		t.Fatal(err)
	}
	c := install(ctx, site, "--kubeconfig", "kubeconfig")
	stderr := start(c)
	waitFor(t, stderr, "ship the bundle's contents")
	second := run(t, install(ctx, site))
	if second.code != 3 {
		t.Errorf("a second run: %v", second)
	}
	contains(t, "the second run", second.stderr, "another boxlift is working with this state")
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d after Ctrl-C, want 130\n%s", code, stderr.String())
	}
	contains(t, "stderr", stderr.String(), "interrupted", "boxlift resume")

	lost(resume(t, site), "ship the bundle's contents", agent.PowerCut)
	lost(resume(t, site), "ship the bundle's contents", agent.Reboot)
	if err := site.LimitLinks(ctx, ""); err != nil {
		t.Fatal(err)
	}
	lost(resume(t, site), "start k3s-agent", agent.PowerCut)

	// Another configuration is another job, and so is another bundle.
	path := filepath.Join(site.Bed.Dir, "install.yaml")
	config, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(config, []byte("network:\n"), []byte("network:\n  cilium: {podCIDR: 10.52.0.0/16}\n"), 1)
	if err := os.WriteFile(path, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(t, resume(t, site)); r.code != 3 || !strings.Contains(r.stderr, "asks for another cluster than when the run began") {
		t.Errorf("resume with another configuration: %v", r)
	}
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(t, resume(t, site, "--bundle", bundleWithK3s(t, "v1.36.5+k3s1"))); r.code != 3 || !strings.Contains(r.stderr, "the run began with the bundle") {
		t.Errorf("resume with another bundle: %v", r)
	}

	mustRun(t, resume(t, site))
	checkCluster(t, site, 1)
	// What was asked for at the beginning is there, although no resume said it again.
	access, err := os.ReadFile(filepath.Join(site.Bed.Dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	contains(t, "the kubeconfig", string(access), "current-context: e2e", "server: https://"+endpoint)
	out, err := agent.ExecInput(ctx, access, "/usr/local/bin/k3s", "kubectl", "--kubeconfig", "/dev/stdin", "get", "nodes")
	if err != nil || !strings.Contains(string(out), "agent") {
		t.Errorf("with the exported kubeconfig: %v\n%s", err, out)
	}
	contains(t, "how the agent joined", onHost(t, agent, "sh", "-c", "cat /etc/rancher/k3s/config.yaml /etc/rancher/k3s/config.yaml.d/* 2>/dev/null || true"), "https://"+endpoint)
	checkNothingLeaked(t, site)
}

// lockedBuffer may be read while a command writes to it.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// waitFor waits until a running command has written text.
func waitFor(t *testing.T, output *lockedBuffer, text string) {
	t.Helper()
	for range 2400 {
		if strings.Contains(output.String(), text) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%q did not come:\n%s", text, output.String())
}
