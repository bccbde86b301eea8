package e2e

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// Two operators, each with a state of his own, do not work on the same hosts at the same
// time. A run that is killed leaves nothing that keeps the next one away.
func TestTwoOperators(t *testing.T) {
	parallel(t, 30*time.Second)
	site := newTwoHosts(t)
	ctx := t.Context()
	// So slow that shipping is still going on when it is interrupted.
	if err := site.LimitLinks(ctx, "50mbit"); err != nil {
		t.Fatal(err)
	}
	begin := func(c *exec.Cmd) {
		t.Helper()
		var stderr lockedBuffer
		c.Stderr = &stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, &stderr, "ship the bundle's contents")
	}
	unfinished := func() string {
		t.Helper()
		return onHost(t, site.Hosts[0], "sh", "-c", "find /var/lib -name '*.part'")
	}
	// As little as the state: the other operator's files are elsewhere.
	other := []string{"--state", "other-state.json"}

	first := install(ctx, site)
	begin(first)
	for deadline := time.Now().Add(time.Minute); unfinished() == ""; {
		if time.Now().After(deadline) {
			t.Fatal("nothing is shipped")
		}
	}
	second := run(t, install(ctx, site, other...))
	if second.code != 6 {
		t.Errorf("a second operator: %v", second)
	}
	contains(t, "what the second operator is told", second.stderr,
		"2 of 2 hosts failed", "another boxlift is working on this host: ", ", process ", ", since 20", "wait for it to end, or end it")
	if unfinished() == "" {
		t.Error("the second operator has deleted what the first one ships")
	}

	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	third := install(ctx, site, other...)
	begin(third)
	if err := third.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := third.Wait(); third.ProcessState.ExitCode() != 130 {
		t.Errorf("after Ctrl-C: %v", err)
	}
	for _, h := range site.Hosts {
		onHost(t, h, "flock", "--nonblock", "/run/boxlift/run.lock", "true")
		if left := onHost(t, h, "sh", "-c", "find /etc /usr/local /var/lib/boxlift -name '.boxlift-*' -o -name '*.boxlift-new'"); left != "" {
			t.Errorf("%s: temporary files are left:\n%s", h.Name, left)
		}
	}
}
