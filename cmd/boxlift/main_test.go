package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/test/packagearchive"
	"github.com/liteboxd/boxlift/test/upstream"
)

var update = flag.Bool("update", false, "write what the scripts expect anew")

// server is started by the first test that needs it.
var server struct {
	sync.Once
	*upstream.Server
	packages *packagearchive.Sample
	err      error
}

func TestMain(m *testing.M) {
	if helm.RendersChart() {
		os.Exit(helm.RenderChart())
	}
	testscript.Main(around{m}, map[string]func(){"boxlift-measured": measuredMain})
}

// around builds the program before the tests, and stops the server after them.
type around struct{ *testing.M }

func (a around) Run() int {
	code, err := a.run()
	if server.Server != nil {
		err = errors.Join(err, server.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// run has boxlift as its users have it, static, as the first in PATH: a program that the race detector watches takes
// five times as long to start, and tests start it more than a thousand times. What runs at the same time inside of it
// is watched in the tests of its packages.
func (a around) run() (code int, err error) {
	folder, err := os.MkdirTemp("", "boxlift-program-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	c := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o",
		folder+"/boxlift", ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("go build: %w\n%s", err, out)
	}
	if err := os.Setenv("PATH", folder+":"+os.Getenv("PATH")); err != nil {
		return 0, err
	}
	return a.M.Run(), nil
}

func startUpstream() error {
	server.Do(func() {
		if server.packages, server.err = packagearchive.NewSample(); server.err != nil {
			return
		}
		server.Server, server.err = upstream.Start(context.Background(),
			upstream.Options{Files: server.packages.Files})
	})
	return server.err
}

// TestScripts runs the program as its users do.
//
// The scripts have the file packages.gpg, a keyring for the archives of OS packages that are upstream, and
// these variables: SSL_CERT_FILE, MIRROR_<HOST> for --mirror, and ROOT,
// the folder of the module. They have these commands besides testscript's own:
//
//	exits CODE PROGRAM ARGS...   run a program that ends with this code
//	bundle CODE ARGS...          the same for boxlift bundle, with every mirror
//	normalize NAME               write the last output, without what differs between
//	                             machines and runs, to a file
//	flip FILE OFFSET             change a byte; a negative offset counts from the end
//	mode FILE MODE               expect these permissions, in octal
//	keys PREFIX...               have key pairs as boxlift key generate makes them, with the
//	                             password canary; a prefix has the same one in all scripts
//	sitesign PREFIX FILE         sign a file as the site does whose private key is PREFIX.key,
//	                             made by boxlift key generate without a password
func TestScripts(t *testing.T) { runScripts(t, "testdata/script", nil) }

// runScripts runs the scripts of a folder. setup, unless nil, sets further variables.
func runScripts(t *testing.T, dir string, setup func(*testscript.Env) error) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			if err := startUpstream(); err != nil {
				return err
			}
			e.Setenv("ROOT", root)
			if err := os.WriteFile(filepath.Join(e.WorkDir, "packages.gpg"), server.packages.Keyring, 0o600); err != nil {
				return err
			}
			e.Setenv("DOCKER_CONFIG", e.WorkDir)
			e.Setenv("SSL_CERT_FILE", server.CAFile())
			for _, mirror := range server.Mirrors() {
				host, _, _ := strings.Cut(mirror, "=")
				e.Setenv("MIRROR_"+strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(host)), mirror)
			}
			if setup != nil {
				return setup(e)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "bundle": runBundle, "normalize": normalize, "flip": flip, "mode": mode, "digest": setDigest,
			"keys": giveKeys, "sitesign": signAsSite,
		},
	})
}

func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed):
		got = failed.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("it ended with %d, expected %d\n%s%s", got, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

// keyPairs are functions that return a [keyPair], by the prefix of its files. A password is slow on purpose: each is
// made once.
var keyPairs sync.Map

type keyPair struct{ private, public []byte }

func giveKeys(ts *testscript.TestScript, _ bool, args []string) {
	for _, prefix := range args {
		made, _ := keyPairs.LoadOrStore(prefix, sync.OnceValues(func() (keyPair, error) {
			private, public, err := signature.GenerateKey([]byte("canary"))
			return keyPair{private, public}, err
		}))
		keys, err := made.(func() (keyPair, error))()
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(prefix+".key"), keys.private, 0o600))
		ts.Check(os.WriteFile(ts.MkAbs(prefix+".pub"), keys.public, 0o644))
	}
}

// signAsSite writes the document again, signed.
func signAsSite(ts *testscript.TestScript, _ bool, args []string) {
	private, err := os.ReadFile(ts.MkAbs(args[0] + ".key"))
	ts.Check(err)
	signer, err := signature.LoadSigner(private, nil)
	ts.Check(err)
	content, err := os.ReadFile(ts.MkAbs(args[1]))
	ts.Check(err)
	ts.Check(writeSiteDocument(ts.MkAbs(args[1]), content, signer))
}

// setDigest puts the bundle digest of a bundle into the variable DIGEST.
func setDigest(ts *testscript.TestScript, _ bool, args []string) {
	r, err := bundle.Open(ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Setenv("DIGEST", r.Digest().String())
	ts.Check(r.Close())
}

func runBundle(ts *testscript.TestScript, neg bool, args []string) {
	args = append([]string{args[0], "boxlift", "bundle"}, args[1:]...)
	for _, m := range server.Mirrors() {
		args = append(args, "--mirror", m)
	}
	exits(ts, neg, args)
}

var varying = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "HEX"},
	{regexp.MustCompile(`\bsha256:[0-9a-f]{12}\b`), "sha256:SHORT"},
	{regexp.MustCompile(`\d+ bytes`), "N bytes"},
	{regexp.MustCompile(`\d+(\.\d+)? ([kKMG]i?)?B\b`), "SIZE"},
	{regexp.MustCompile(`"size": \d+`), `"size": 0`},
	{regexp.MustCompile(`in \d+(\.\d+)?(s|ms)`), "in TIME"},
	{regexp.MustCompile(`(?m)  +([^ ])`), "  $1"}, // columns are as wide as the sizes
	{regexp.MustCompile(`[0-9A-Za-z+/]{43}=`), "KEYID"},
	{regexp.MustCompile(`by the key \S+`), "by the key ID"},
}

func normalize(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile("stdout")
	for _, v := range varying {
		text = v.pattern.ReplaceAllString(text, v.with)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

func flip(ts *testscript.TestScript, _ bool, args []string) {
	content := []byte(ts.ReadFile(args[0]))
	at, err := strconv.Atoi(args[1])
	ts.Check(err)
	if at < 0 {
		at += len(content)
	}
	content[at] ^= 1
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), content, 0o600))
}

func mode(ts *testscript.TestScript, _ bool, args []string) {
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := fmt.Sprintf("%o", info.Mode().Perm()); got != args[1] {
		ts.Fatalf("%s has the mode %s, expected %s", args[0], got, args[1])
	}
}

// packerSite is a folder from which bundles can be built.
type packerSite struct {
	dir  string
	args []string
	env  []string
}

func newSite(t *testing.T) *packerSite {
	t.Helper()
	if err := startUpstream(); err != nil {
		t.Fatal(err)
	}
	server.Heal()
	t.Cleanup(server.Heal)
	s := &packerSite{dir: t.TempDir()}
	content, err := server.PinnedLockYAML(upstream.LockOptions{Components: []string{"k3s"}, Platforms: []string{"linux/amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "versions.lock", content)
	for _, name := range []string{"boxlift", "boxlift-node"} {
		s.write(t, filepath.Join("programs", "linux-amd64", name), []byte(name))
	}
	s.args = []string{"bundle", "build", "-f", "versions.lock", "--programs", "programs", "--unsigned"}
	for _, m := range server.Mirrors() {
		s.args = append(s.args, "--mirror", m)
	}
	s.env = append(os.Environ(), "SSL_CERT_FILE="+server.CAFile(), "DOCKER_CONFIG="+s.dir)
	return s
}

func (s *packerSite) write(t *testing.T, name string, content []byte) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// build starts a build in a process of its own.
func (s *packerSite) build(t *testing.T, output string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "boxlift", append(slices.Clone(s.args), "-o", output)...)
	cmd.Dir, cmd.Env = s.dir, s.env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, &out
}

func (s *packerSite) read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func (s *packerSite) partials(t *testing.T, output string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(s.dir, output+".*.partial"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestInterruptedBuild presses Ctrl-C.
func TestInterruptedBuild(t *testing.T) {
	s := newSite(t)
	stall := server.Inject(upstream.Rule{Path: "install.sh$", Fault: upstream.Slow{BytesPerSecond: 10}})
	cmd, out := s.build(t, "b.tar")
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for stall.Hits() == 0 {
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, out)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("it succeeded")
	}
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
		t.Errorf("it ended with %d\n%s", code, out)
	}
	if !strings.Contains(out.String(), "boxlift: interrupted; what was finished is kept, and the same command goes on from there; ") {
		t.Errorf("it says:\n%s", out)
	}
	if _, err := os.Lstat(filepath.Join(s.dir, "b.tar")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something has the final name: %v", err)
	}
	if left := s.partials(t, "b.tar"); len(left) != 1 {
		t.Errorf("the partial files are %v", left)
	}
	server.Heal()
	cmd, out = s.build(t, "b.tar")
	if err := cmd.Wait(); err != nil {
		t.Errorf("the next run: %v\n%s", err, out)
	}
}

// TestSecretsStayOutOfArguments looks through the flags of all commands for one that takes
// a secret: arguments are for every user of the host to see.
func TestSecretsStayOutOfArguments(t *testing.T) {
	for _, args := range [][]string{{"key", "generate"}, {"bundle", "build"}, {"bundle", "verify"}, {"bundle", "sbom"}, {"bundle", "provenance"}} {
		c, _, err := newRootCommand().Find(args)
		if err != nil {
			t.Fatal(err)
		}
		usage := c.Flags().FlagUsages()
		for _, line := range strings.Split(usage, "\n") {
			if strings.Contains(line, "password") && !strings.Contains(line, "file that holds") || strings.Contains(line, "--token") {
				t.Errorf("%q has the flag %s", args, line)
			}
		}
	}
}
