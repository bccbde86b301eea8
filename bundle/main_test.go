package bundle

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/test/upstream"
)

var update = flag.Bool("update", false, "write the golden files")

// shared is made at first use and serves all tests of the process, one after another:
// they inject faults and read the log of requests.
var shared struct {
	dir   string
	start func() (*upstream.Server, error)
	lock  func() ([]byte, error)
	built func() (string, error)
}

// sharedDir is the folder that all tests of the process share.
func sharedDir() string { return shared.dir }

func runTests(m *testing.M) int {
	flag.Parse()
	var err error
	if shared.dir, err = os.MkdirTemp("", "boxlift-bundle-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(shared.dir) }()
	// The credentials of whoever runs the tests are not for the tests.
	_ = os.Setenv("DOCKER_CONFIG", shared.dir)
	var server *upstream.Server
	shared.start = sync.OnceValues(func() (*upstream.Server, error) {
		var err error
		server, err = upstream.Start(context.Background(), upstream.Options{Dir: shared.dir})
		if err != nil {
			return nil, err
		}
		// Read at the first TLS connection of the process, which comes later.
		return server, os.Setenv("SSL_CERT_FILE", server.CAFile())
	})
	shared.lock = sync.OnceValues(resolveSmallLock)
	shared.built = sync.OnceValues(buildReference)
	code := m.Run()
	if server != nil {
		if err := server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

const (
	pauseRef    = "docker.io/rancher/mirrored-pause:3.10.2"           // Docker's media types
	busyboxRef  = "docker.io/rancher/mirrored-library-busybox:1.37.0" // arm64 has a variant
	operatorRef = "quay.io/cilium/operator-generic:v1.20.0"
	gatewayRef  = "ghcr.io/fslongjin/liteboxd-gateway:v0.6.10" // amd64 and an attestation
	webRef      = "ghcr.io/fslongjin/web:v0.6.10"              // amd64, no index
	installURL  = "https://raw.githubusercontent.com/k3s-io/k3s/v1.36.4%2Bk3s1/install.sh"
	chartURL    = "https://helm.cilium.io/cilium-1.20.0.tgz"
	archiveURL  = "https://github.com/k3s-io/k3s/releases/download/v1.36.4%2Bk3s1/k3s-airgap-images-amd64.tar.zst"
)

// unpinned is a small lock with one image of each kind.
const unpinned = `apiVersion: boxlift.dev/v1
kind: Lock
platforms: [linux/amd64, linux/arm64]
components:
  k3s:
    version: v1.36.4+k3s1
    files:
      - {name: install.sh, url: "` + installURL + `"}
    images:
      - {ref: "` + pauseRef + `"}
      - {ref: "` + busyboxRef + `"}
  cilium:
    version: 1.20.0
    charts:
      - {name: cilium, url: "` + chartURL + `"}
    images:
      - {ref: "` + operatorRef + `"}
  liteboxd:
    version: v0.6.10
    platforms: [linux/amd64]
    images:
      - {ref: "` + gatewayRef + `"}
      - {ref: "` + webRef + `"}
`

func resolveSmallLock() ([]byte, error) {
	s, err := shared.start()
	if err != nil {
		return nil, err
	}
	document, err := lock.ParseDocument(LockFile, []byte(unpinned))
	if err != nil {
		return nil, err
	}
	err = Resolve(context.Background(), ResolveOptions{Document: document, Source: newClient(s)})
	return document.Bytes(), err
}

func buildReference() (string, error) {
	content, err := shared.lock()
	if err != nil {
		return "", err
	}
	s, err := shared.start()
	if err != nil {
		return "", err
	}
	path := filepath.Join(shared.dir, "reference.tar")
	_, err = build(context.Background(), content, newClient(s), path, nil)
	return path, err
}

// upstreamServer returns the server without faults and with an empty log.
func upstreamServer(t testing.TB) *upstream.Server {
	t.Helper()
	s, err := shared.start()
	if err != nil {
		t.Fatal(err)
	}
	s.Heal()
	// What all tests share must neither meet their faults nor be in their logs.
	_ = reference(t)
	s.ResetRequests()
	t.Cleanup(s.Heal)
	return s
}

func smallLock(t testing.TB) []byte {
	t.Helper()
	content, err := shared.lock()
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// reference returns an unsigned bundle of the small lock, which no test may change.
func reference(t testing.TB) string {
	t.Helper()
	path, err := shared.built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// newClient gives one that soon gives up.
func newClient(s *upstream.Server, change ...func(*source.Options)) *source.Client {
	o := source.Options{MaxTries: 2, IdleTimeout: 20 * time.Second, Pause: time.Millisecond}
	for _, m := range s.Mirrors() {
		mirror, err := source.ParseMirror(m)
		if err != nil {
			panic(err)
		}
		o.Mirrors = append(o.Mirrors, mirror)
	}
	for _, f := range change {
		f(&o)
	}
	return source.New(o)
}

func planOptions(content []byte, client *source.Client) (PlanOptions, error) {
	l, err := lock.Parse(LockFile, content)
	if err != nil {
		return PlanOptions{}, err
	}
	o := PlanOptions{Lock: l, LockName: LockFile, LockContent: content, Source: client, Version: "v0.0.0-test"}
	for _, platform := range l.Platforms {
		for _, name := range []string{NodeProgram, OperatorProgram} {
			path := filepath.Join(shared.dir, name+"-"+platform.Architecture())
			if err := os.WriteFile(path, []byte(name+" for "+string(platform)), 0o755); err != nil {
				return PlanOptions{}, err
			}
			o.Programs = append(o.Programs, Program{Name: name, Platform: platform, Path: path})
		}
	}
	return o, nil
}

// build plans and builds.
func build(ctx context.Context, content []byte, client *source.Client, path string, signer *signature.Signer, change ...func(*PlanOptions)) (*BuildResult, error) {
	o, err := planOptions(content, client)
	if err != nil {
		return nil, err
	}
	for _, f := range change {
		f(&o)
	}
	plan, err := NewPlan(ctx, o)
	if err != nil {
		return nil, err
	}
	return plan.Build(ctx, BuildOptions{Path: path, Signer: signer})
}

func mustBuild(t testing.TB, content []byte, client *source.Client, path string, signer *signature.Signer, change ...func(*PlanOptions)) *BuildResult {
	t.Helper()
	result, err := build(t.Context(), content, client, path, signer, change...)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func mustOpen(t testing.TB, path string) *Reader {
	t.Helper()
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func mustWrite(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func sameFiles(t testing.TB, a, b string) {
	t.Helper()
	if !bytes.Equal(mustRead(t, a), mustRead(t, b)) {
		t.Errorf("%s and %s differ", a, b)
	}
}

// noFile checks that nothing goes by the final name.
func noFile(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there: %v", path, err)
	}
}

func wantError(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, expected one with %q", parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q:\n%v", part, err)
		}
	}
}

// Keys are slow to make and to open, on purpose.
var signers = [2]func() (*signature.Signer, error){sync.OnceValues(makeSigner), sync.OnceValues(makeSigner)}

func makeSigner() (*signature.Signer, error) {
	private, _, err := signature.GenerateKey([]byte("password"))
	if err != nil {
		return nil, err
	}
	return signature.LoadSigner(private, []byte("password"))
}

// signerOf returns one of two signers.
func signerOf(t testing.TB, which int) *signature.Signer {
	t.Helper()
	signer, err := signers[which]()
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// downloads lists the files and blobs that were asked for since the log was reset, with
// how often each was begun. Manifests are not among them.
func downloads(s *upstream.Server) map[string]int {
	result := make(map[string]int)
	for _, r := range s.Requests() {
		isRegistry := strings.HasPrefix(r.Path, "/v2/")
		if r.Method != "GET" || r.Status/100 == 3 || r.Path == "/token" || isRegistry && !strings.Contains(r.Path, "/blobs/") {
			continue
		}
		name := r.Path
		if isRegistry {
			// Repositories share blobs.
			_, name, _ = strings.Cut(r.Path, "/blobs/")
		}
		result[name]++
	}
	return result
}

// once is what downloads returns when everything was fetched exactly once.
func once(downloads map[string]int) map[string]int {
	result := make(map[string]int)
	for name := range downloads {
		result[name] = 1
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
		mustWrite(t, path, []byte(got))
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), -update writes it anew:\n%s", path, diff)
	}
}

// replaced changes a text exactly once.
func replaced(t testing.TB, content []byte, old, with string) []byte {
	t.Helper()
	if n := bytes.Count(content, []byte(old)); n != 1 {
		t.Fatalf("%q is there %d times, expected once", old, n)
	}
	return bytes.Replace(content, []byte(old), []byte(with), 1)
}

// recorder is a reporter that keeps the messages.
type recorder struct {
	mu       sync.Mutex
	messages []string
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.messages)
}
