package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/test/testbed"
)

// resume is boxlift resume on the operator's place. It takes the bundle from the state.
func resume(t *testing.T, site *testbed.Site, more ...string) *exec.Cmd {
	t.Helper()
	return site.Boxlift(t.Context(), passwords, append([]string{"resume", "--key", "boxlift.pub", "-f", "install.yaml"}, more...)...)
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
