package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// Whenever boxlift is killed in an installation, in an upgrade or in going back, and whenever hosts lose their power or
// are rebooted meanwhile, the run that goes on ends with a whole cluster in the version that it was to have: resume, or
// the same command from a machine that knows nothing. What is left by a kill before and after each single thing is
// tried in test/platform. Only hosts show what goes on there while nobody is left to hear of it: k3s that starts,
// containerd that imports, a datastore that is copied.
func TestKilled(t *testing.T) {
	parallel(t, 9*time.Minute)
	site := newSite(t,
		lab.HostOptions{Name: "server"},
		lab.HostOptions{Name: "agent", Users: []lab.User{{Name: "admin", Sudo: lab.SudoNoPassword}}},
	)
	ctx, server := t.Context(), site.Hosts[0]
	writeConfig(t, site.Bed, killedConfig, server.Address, site.Hosts[1].Address, site.KeyFile())
	next := bundleOf(t, upstream.LockOptions{Release: upstream.Patched.WithLiteBoxd(release.LiteBoxd)})
	k := &killer{Site: site, boundaries: make(map[boundary]bool), seen: make(map[string]string), starts: make(map[string]int)}
	// The long steps are died in, too.
	k.within = func(s stepID) []time.Duration {
		if strings.HasPrefix(s.title, "start k3s") || s.phase == "backup" {
			return []time.Duration{300 * time.Millisecond, 1500 * time.Millisecond, 4 * time.Second}
		}
		return nil
	}

	k.only = []string{"ship ", "start k3s", "set up Cilium ", "make the images "}
	k.through(t, 12, "bundle.tar", func() *exec.Cmd { return install(ctx, site) })
	checkCluster(t, site, 1)
	if k.look(t); !k.known {
		t.Fatalf("not all that must stay was seen: %v", k.seen)
	}
	k.checkStarts(t)

	forth := func() *exec.Cmd {
		return site.Boxlift(ctx, passwords, "upgrade", "--bundle", next, "--key", "boxlift.pub")
	}
	testPowerCutInUpgrade(t, site, forth())
	k.disasters = true
	k.through(t, 0, next, forth)
	checkAll(t, site, upstream.Patched.K3s)
	k.only = []string{"place k3s ", "start k3s"}
	k.through(t, 5, "bundle.tar", func() *exec.Cmd {
		return site.Boxlift(ctx, passwords, "rollback", "--to", "1", "--bundle", "bundle.tar", "--key", "boxlift.pub")
	})
	checkAll(t, site, release.K3s)
	k.only = []string{"back up ", "start k3s"}
	k.through(t, 5, next, forth)
	checkAll(t, site, upstream.Patched.K3s)
	t.Logf("%d kills", k.kills)
	checkCluster(t, site, 2)
	k.look(t)
	statusIsWell(t, site, next)
	checkNothingLeakedButServices(t, site)
}

// through runs a command to its end, and kills it and what goes on with it so often before, each time at another
// boundary. The bundle is the command's.
func (k *killer) through(t *testing.T, kills int, bundle string, begin func() *exec.Cmd) {
	t.Helper()
	clear(k.boundaries)
	command, killed, again := begin, 0, 0
	for {
		var wasKilled bool
		var r result
		if killed < kills {
			wasKilled, r = k.killAtNew(t, command())
		} else {
			r = run(t, command())
			k.count(t)
		}
		switch {
		case wasKilled:
			killed++
			command = k.goOn(t, killed, bundle, begin)
		case r.code == 0:
			t.Logf("%d kills before it came to its end", killed)
			if killed < kills/2 {
				t.Errorf("it was killed %d times only", killed)
			}
			return
		case r.code == 3 && strings.Contains(r.stderr, "nothing to go on with: release"):
			command = begin // it was killed at its very end
		case (killed > 0 || k.disasters) && again < 5 && (r.code == 6 || r.code == 3 && strings.Contains(r.stderr, "not Ready")):
			// A host that has lost its power may not be back yet.
			again++
			t.Logf("tried again: %v", r)
			awaitAPI(t, k.Hosts[0])
		default:
			t.Fatal(r)
		}
	}
}

// goOn returns what goes on with a command that was killed so often, after something worse has happened now and then.
func (k *killer) goOn(t *testing.T, killed int, bundle string, begin func() *exec.Cmd) func() *exec.Cmd {
	t.Helper()
	switch {
	case k.disasters && killed == 3:
		k.downs++
		h, what := k.Hosts[0], "loses its power"
		down := func(ctx context.Context) error { return errors.Join(h.PowerCut(ctx), h.Up(ctx)) }
		if k.downs > 1 {
			h, what, down = k.Hosts[1], "is rebooted", k.Hosts[1].Reboot
		}
		t.Logf("%s %s", h.Name, what)
		if err := down(t.Context()); err != nil {
			t.Fatal(err)
		}
		return begin
	case k.disasters && killed == 4:
		t.Log("the operator's folder is lost")
		for _, name := range []string{"releases", "state.json", "state.json.lock"} {
			if err := os.RemoveAll(filepath.Join(k.Bed.Dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		// The cluster tells what to go on with, unless boxlift died right at the end. Only the record knows a rollback.
		awaitAPI(t, k.Hosts[0])
		return func() *exec.Cmd { return resume(t, k.Site, "--bundle", bundle) }
	case readState(t, k.Site).Result == "done": // it came after the last step
		return begin
	}
	return func() *exec.Cmd { return resume(t, k.Site) }
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
	// only are what titles of steps begin with in which to kill.
	only []string
	// disasters are to happen besides; downs is how often a host was down.
	disasters bool
	downs     int
	seen      map[string]string
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
		if !slices.ContainsFunc(k.only, func(title string) bool { return strings.HasPrefix(step.Title, title) }) {
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
