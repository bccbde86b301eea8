// Package e2e tests boxlift as its users have it: the real program, a real bundle, real
// hosts with real systemd, OpenSSH, containerd and Kubernetes, and no mock in between.
// k3s is the distribution in test/k3s, which is made of the real Kubernetes and takes k3s'
// place as far as the installer sees; of Cilium the chart is real and its images stand in.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

// The secrets of the tests are canaries: they are searched for in everything that
// boxlift leaves behind.
const (
	rootPassword  = "canary-root-password-3b7a"
	adminPassword = "canary-admin-password-9c2e"

	registryPassword = "canary-registry-password-51f0"
)

// release is what the clusters of the tests are made of.
var release = upstream.Newer

// releases are all that upstream offers: with further versions of LiteBoxd, and of k3s. The older
// minor of Kubernetes, which takes long to build, is only TestUpgradeMinor's.
var releases = []upstream.Release{
	release, release.WithLiteBoxd(upstream.LiteBoxdNext), release.WithLiteBoxd(upstream.LiteBoxdBroken),
	upstream.Patched, upstream.Patched.WithLiteBoxd(release.LiteBoxd),
}

const netcheckImage = upstream.NetcheckRef

// shared is the connected side that all tests use; the bundle is built once.
var shared struct {
	once sync.Once
	bed  *testbed.Testbed
	err  error
}

func TestMain(m *testing.M) {
	if dir := os.Getenv(registryEnv); dir != "" {
		fmt.Fprintln(os.Stderr, serveSiteRegistry(dir))
		os.Exit(1)
	}
	flag.Parse()
	// How many tests run at a time is the queue's business, which has to know them all.
	err := flag.Set("test.parallel", "1000")
	if err == nil {
		clustersAtATime, err = readClusters()
	}
	var dir string
	if err == nil {
		dir, err = os.MkdirTemp("", "boxlift-e2e-")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	sharedDir = dir
	code := m.Run()
	if shared.bed != nil {
		err = shared.bed.Close()
	}
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var sharedDir string

// connected returns the shared testbed with its bundle.
func connected(t *testing.T) *testbed.Testbed {
	t.Helper()
	shared.once.Do(func() {
		// Where nothing is in the cache, Kubernetes is built first.
		ctx, cancel := context.WithTimeout(context.Background(), 40*time.Minute)
		defer cancel()
		logf := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
		if shared.bed, shared.err = testbed.New(ctx, testbed.Options{Dir: sharedDir, Releases: releases, Logf: logf}); shared.err == nil {
			shared.err = shared.bed.MakeBundle(ctx, upstream.LockOptions{})
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.bed
}

// carried returns a testbed of its own folder with the shared bundle and public key in
// it, as if they had been carried there.
func carried(t *testing.T) *testbed.Testbed {
	t.Helper()
	from := connected(t)
	bed := &testbed.Testbed{Dir: t.TempDir(), Programs: from.Programs, Upstream: from.Upstream}
	carry(t, bed, from.Bundle())
	if err := os.Symlink(from.PublicKey(), bed.PublicKey()); err != nil {
		t.Fatal(err)
	}
	return bed
}

// carry brings a bundle to a testbed, in the place of one that is there.
func carry(t *testing.T, bed *testbed.Testbed, bundle string) {
	t.Helper()
	if err := os.Remove(bed.Bundle()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.Symlink(bundle, bed.Bundle()); err != nil {
		t.Fatal(err)
	}
}

// newSite boots hosts for one test.
func newSite(t *testing.T, hosts ...lab.HostOptions) *testbed.Site {
	t.Helper()
	lab.Require(t)
	site, err := testbed.NewSite(t.Context(), carried(t), lab.Options{Name: "e2e", Log: func(line string) { t.Log(line) }}, hosts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		t.Logf("the hosts had a processor for %v", site.Lab.ProcessorTime().Round(time.Second))
		if err := site.Close(); err != nil {
			t.Error(err)
		}
	})
	return site
}

// writeConfig writes install.yaml into the site's folder.
func writeConfig(t *testing.T, bed *testbed.Testbed, format string, args ...any) {
	t.Helper()
	config := strings.Replace(fmt.Sprintf(format, args...), "cluster:\n", "cluster:\n"+testbed.CgroupV1, 1)
	if err := os.WriteFile(filepath.Join(bed.Dir, "install.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
}

// result is what one run of boxlift left.
type result struct {
	code           int
	stdout, stderr string
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d\nstdout:\n%s\nstderr:\n%s", r.code, r.stdout, r.stderr)
}

// run runs a command to its end.
func run(t *testing.T, c *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{code: c.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
}

// mustRun fails the test unless the command succeeds.
func mustRun(t *testing.T, c *exec.Cmd) result {
	t.Helper()
	r := run(t, c)
	if r.code != 0 {
		t.Fatalf("%s: %v", strings.Join(c.Args, " "), r)
	}
	return r
}

// passwords are the environment in which install.yaml finds the hosts' passwords.
var passwords = []string{"ROOT_PASSWORD=" + rootPassword, "ADMIN_PASSWORD=" + adminPassword, "REGISTRY_PASSWORD=" + registryPassword}

var installArgs = []string{"install", "--bundle", "bundle.tar", "--key", "boxlift.pub", "-f", "install.yaml"}

// install is boxlift install on the operator's place.
func install(ctx context.Context, site *testbed.Site, more ...string) *exec.Cmd {
	return site.Boxlift(ctx, passwords, append(append([]string{}, installArgs...), more...)...)
}

// onHost runs a program on a host, not over SSH.
func onHost(t *testing.T, h *lab.Host, args ...string) string {
	t.Helper()
	out, err := h.Exec(t.Context(), args...)
	if err != nil {
		t.Fatalf("%s: %v: %v\n%s", h.Name, args, err, out)
	}
	return string(out)
}

// contains checks a text for parts.
func contains(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s does not say %q:\n%s", what, part, text)
		}
	}
}
