package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/upstream"
)

// Whenever boxlift dies while it deploys LiteBoxd, upgrades it, takes it back because a version does not start, or
// takes it back on request, the next run completes the job. Only a cluster shows what pods and their volume go through
// meanwhile.
func TestLiteBoxdKilled(t *testing.T) {
	parallel(t, 6*time.Minute)
	site := newSite(t, lab.HostOptions{Name: "server", RootPassword: rootPassword})
	server, bundle := site.Hosts[0], site.Bed.Bundle()
	writeSite(t, site, "values.env", "")
	writeConfig(t, site.Bed, `cluster:
  master: {host: %s, password: "${ROOT_PASSWORD}"}
ssh: {knownHostsFile: known_hosts}
`+withLiteBoxd, server.Address)
	mustRun(t, install(t.Context(), site, "--skip", "liteboxd"))

	boxlift := func(args ...string) func() *exec.Cmd {
		return func() *exec.Cmd { return site.Boxlift(t.Context(), passwords, args...) }
	}
	deploy := func(bundle string) func() *exec.Cmd {
		return boxlift("install", "--only", "liteboxd", "--bundle", bundle, "--key", "boxlift.pub", "-f", "install.yaml")
	}
	goOn := func() *exec.Cmd { return resume(t, site) }
	// everywhere runs a command to its end, and kills it wherever it was not killed yet in the steps that work on
	// LiteBoxd.
	everywhere := func(what string, begin, goOn func() *exec.Cmd) result {
		t.Helper()
		start := time.Now()
		k := &killer{Site: site, boundaries: make(map[boundary]bool), starts: make(map[string]int), within: func(s stepID) []time.Duration {
			if strings.HasPrefix(s.title, "deploy LiteBoxd") || strings.HasPrefix(s.title, "take LiteBoxd back") {
				return []time.Duration{300 * time.Millisecond, 1500 * time.Millisecond} // Helm's record is made; pods are waited for
			}
			return nil
		}, only: []string{"back up LiteBoxd", "deploy LiteBoxd", "take LiteBoxd back"}}
		for next := begin; k.kills < 30; next = goOn {
			if wasKilled, r := k.killAtNew(t, next()); !wasKilled {
				t.Logf("%s: %d kills in %v", what, k.kills, time.Since(start).Round(time.Second))
				if k.kills < 3 {
					t.Errorf("%s: %d kills, want some more", what, k.kills)
				}
				return r
			}
		}
		t.Fatalf("%s: it was killed %d times, and there is no end: %v", what, k.kills, k.boundaries)
		return result{}
	}
	b := newBox(t, site, server)
	runs := func(what, version string) {
		t.Helper()
		if got := b.version(); got != version {
			t.Errorf("%s: LiteBoxd is %s, want %s", what, got, version)
		}
		deployed := kubectl(t, server, "get", "secrets", "-n", "kube-system", "-l", "owner=helm,name=liteboxd,status=deployed", "-o", "name")
		if strings.Count(deployed, "\n") != 1 {
			t.Errorf("%s: deployed revisions: %q", what, deployed)
		}
	}
	key := func() string {
		return kubectl(t, server, "get", "secret", "-n", "liteboxd-system", "liteboxd-keys", "-o", "jsonpath={.metadata.uid} {.data}")
	}

	first := succeeded(t, "the first deployment", everywhere("the first deployment", deploy(bundle), goOn))
	runs("the first deployment", release.LiteBoxd)
	keys := key()
	shown := shownLogin.FindStringSubmatch(first.stdout)
	if shown == nil {
		t.Fatalf("the first login was not shown by the run that came to its end:\n%s", first.stdout)
	}
	b.login(shown[1], shown[2])
	b.newTemplate()
	b.newSandbox()
	sandboxes := sandboxPods(t, server)

	writeSite(t, site, "values.env", "LOG_LEVEL=debug\n")
	next := bundleWith(t, upstream.LiteBoxdNext)
	succeeded(t, "the upgrade", everywhere("the upgrade", deploy(next), goOn))
	runs("the upgrade", upstream.LiteBoxdNext)

	back := boxlift("rollback", "liteboxd", "-f", "install.yaml", "--revision", b.revision(site, release.LiteBoxd))
	succeeded(t, "the rollback", everywhere("the rollback", back, back))
	runs("the rollback", release.LiteBoxd)

	broken := bundleWith(t, upstream.LiteBoxdBroken)
	// Kubernetes gives up sooner than a user would like to wait for a test.
	deadline := "system/patches/deadline.yaml"
	writeSite(t, site, deadline, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: liteboxd-api}\nspec: {progressDeadlineSeconds: 45}\n")
	r := everywhere("a version that does not start", deploy(broken), goOn)
	if r.code != 6 {
		t.Errorf("a version that does not start: %v", r)
	}
	contains(t, "the report", r.stderr, "never becomes ready", "rolled back")
	runs("a version that does not start", release.LiteBoxd)
	// In the middle of its going back, too.
	c := deploy(broken)()
	var output lockedBuffer
	c.Stderr = &output
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, &output, "rolling back to")
	time.Sleep(300 * time.Millisecond)
	if err := c.Process.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	_ = c.Wait()
	if err := os.Remove(filepath.Join(site.Bed.Dir, "site", deadline)); err != nil {
		t.Fatal(err)
	}
	succeeded(t, "the version before, after a rollback that was killed", run(t, deploy(bundle)()))
	runs("after a rollback that was killed", release.LiteBoxd)

	if diff := cmp.Diff(keys, key()); diff != "" {
		t.Errorf("the Secret with the key: %s", diff)
	}
	samePods(t, site, "sandboxes", sandboxes, sandboxPods(t, server))
	checkNothingLeaked(t, site)
}
