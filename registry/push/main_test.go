package push

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/registry/rewrite"
	"github.com/liteboxd/boxlift/test/target"
	"github.com/liteboxd/boxlift/test/upstream"
)

var update = flag.Bool("update", false, "write the golden files")

// shared is made at first use and serves all tests of the process.
var shared struct {
	dir   string
	built func() (string, error)
}

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(childVariable) != "" {
		os.Exit(runChild())
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	var err error
	if shared.dir, err = os.MkdirTemp("", "boxlift-push-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(shared.dir) }()
	// The credentials of whoever runs the tests are not for the tests.
	_ = os.Setenv("DOCKER_CONFIG", shared.dir)
	shared.built = sync.OnceValues(buildBundle)
	return m.Run()
}

// buildBundle makes one with everything that the stand-in for upstream has.
func buildBundle() (_ string, err error) {
	s, err := upstream.Start(context.Background(), upstream.Options{Dir: shared.dir})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	// Read at the first TLS connection of the process that needs the system's authorities.
	if err := os.Setenv("SSL_CERT_FILE", s.CAFile()); err != nil {
		return "", err
	}
	content, err := s.PinnedLockYAML(upstream.LockOptions{})
	if err != nil {
		return "", err
	}
	o := plan.Options{LockName: "versions.lock", LockContent: content, Version: "v0.0.0-test"}
	if o.Lock, err = lock.Parse(o.LockName, content); err != nil {
		return "", err
	}
	client := source.Options{}
	for _, m := range s.Mirrors() {
		mirror, err := source.ParseMirror(m)
		if err != nil {
			return "", err
		}
		client.Mirrors = append(client.Mirrors, mirror)
	}
	o.Source = source.New(client)
	for _, platform := range o.Lock.Platforms {
		for _, name := range []string{bundle.NodeProgram, bundle.OperatorProgram} {
			path := filepath.Join(shared.dir, name+"-"+platform.Architecture())
			if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
				return "", err
			}
			o.Programs = append(o.Programs, plan.Program{Name: name, Platform: platform, Path: path})
		}
	}
	planned, err := plan.New(context.Background(), o)
	if err != nil {
		return "", err
	}
	path := filepath.Join(shared.dir, "b.tar")
	_, err = build.Write(context.Background(), planned, build.Options{Path: path})
	return path, err
}

func bundlePath(t testing.TB) string {
	t.Helper()
	path, err := shared.built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func openBundle(t testing.TB, path string) *bundle.Reader {
	t.Helper()
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// The user of the registries in tests has a name as Harbor gives them to robots.
const (
	robot    = "robot$plant+push"
	password = "canary-in-a-coal-mine"
)

var users = map[string]string{robot: password}

// optionsFor are those of a push of the shared bundle.
func optionsFor(t testing.TB, s *target.Server, change ...func(*Options)) Options {
	t.Helper()
	o := Options{
		Bundle: openBundle(t, bundlePath(t)), Address: s.Address(), CA: s.CA(),
		Rewrites: rules(t, rewrite.Rule{Registry: "*", Match: "^(.*)$", Replace: "plant/$1"}),
		Username: robot, Password: password,
	}
	for _, f := range change {
		f(&o)
	}
	return o
}

func rules(t testing.TB, rules ...rewrite.Rule) rewrite.Rules {
	t.Helper()
	parsed, err := rewrite.Parse(rules)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// impatient makes a pusher try again soon.
func impatient(p *pusher) { p.client.patient.pause = time.Millisecond }

// pushWith pushes with a changed pusher.
func pushWith(ctx context.Context, o Options, change func(*pusher)) (*Result, error) {
	p, err := newPusher(o, auth.ActionPull, auth.ActionPush)
	if err != nil {
		return nil, err
	}
	defer p.client.close()
	change(p)
	work, err := p.check(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.transfer(ctx, work); err != nil {
		return nil, err
	}
	return p.result(), nil
}

func mustPush(t testing.TB, o Options) *Result {
	t.Helper()
	result, err := pushWith(t.Context(), o, impatient)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), -update writes it anew:\n%s", path, diff)
	}
}

// run runs a program that reads from the registry, with no way to the internet.
func run(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "HTTP_PROXY=http://127.0.0.1:1", "HTTPS_PROXY=http://127.0.0.1:1",
		"NO_PROXY=127.0.0.1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out)
}

// childVariable tells the test program to be one that pushes, and where to.
const childVariable = "BOXLIFT_TEST_PUSH_TO"

// runChild is what a killed process did until then.
func runChild() int {
	r, err := bundle.Open(os.Getenv("BOXLIFT_TEST_PUSH_BUNDLE"))
	if err == nil {
		defer r.Close()
		var rules rewrite.Rules
		if rules, err = rewrite.Parse([]rewrite.Rule{{Registry: "*", Match: "^(.*)$",
			Replace: "plant/$1"}}); err == nil {
			_, err = Push(context.Background(), Options{
				Bundle: r, Address: os.Getenv(childVariable), CA: []byte(os.Getenv("BOXLIFT_TEST_PUSH_CA")),
				Rewrites: rules,
				Username: robot, Password: password,
				Log: slog.New(slog.DiscardHandler),
			})
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
