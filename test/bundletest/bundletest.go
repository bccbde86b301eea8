// Package bundletest has what tests of bundles share: a small lock with its upstream, the bundle
// that is built of it, bundles made by hand, and ways to build others.
package bundletest

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

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/pins"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/packagearchive"
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
	// packages are archives of OS packages that the server has too.
	packages *packagearchive.Sample
}

// Dir is the folder that all tests of the process share.
func Dir() string { return shared.dir }

// Main runs the tests of a package, for its TestMain, and returns the exit code.
func Main(m *testing.M) int {
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
	if shared.packages, err = packagearchive.NewSample(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared.start = sync.OnceValues(func() (*upstream.Server, error) {
		var err error
		server, err = upstream.Start(context.Background(),
			upstream.Options{Dir: shared.dir, Files: shared.packages.Files})
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

// What the small lock has.
const (
	PauseRef    = "docker.io/rancher/mirrored-pause:3.10.2"           // Docker's media types
	BusyboxRef  = "docker.io/rancher/mirrored-library-busybox:1.37.0" // arm64 has a variant
	OperatorRef = "quay.io/cilium/operator-generic:v1.20.0"
	GatewayRef  = "ghcr.io/fslongjin/liteboxd-gateway:v0.6.10" // amd64 and an attestation
	WebRef      = "ghcr.io/fslongjin/web:v0.6.10"              // amd64, no index
	InstallURL  = "https://raw.githubusercontent.com/k3s-io/k3s/v1.36.4%2Bk3s1/install.sh"
	ChartURL    = "https://helm.cilium.io/cilium-1.20.0.tgz"
	ArchiveURL  = "https://github.com/k3s-io/k3s/releases/download/v1.36.4%2Bk3s1/k3s-airgap-images-amd64.tar.zst"
)

// Unpinned is a small lock with one image of each kind.
const Unpinned = `apiVersion: boxlift.dev/v1
kind: Lock
platforms: [linux/amd64, linux/arm64]
components:
  k3s:
    version: v1.36.4+k3s1
    files:
      - {name: install.sh, url: "` + InstallURL + `"}
    images:
      - {ref: "` + PauseRef + `"}
      - {ref: "` + BusyboxRef + `"}
  cilium:
    version: 1.20.0
    charts:
      - {name: cilium, url: "` + ChartURL + `"}
    images:
      - {ref: "` + OperatorRef + `"}
  liteboxd:
    version: v0.6.10
    platforms: [linux/amd64]
    images:
      - {ref: "` + GatewayRef + `"}
      - {ref: "` + WebRef + `"}
`

func resolveSmallLock() ([]byte, error) {
	s, err := shared.start()
	if err != nil {
		return nil, err
	}
	document, err := lock.ParseDocument(bundle.LockFile, []byte(Unpinned))
	if err != nil {
		return nil, err
	}
	err = pins.Fill(context.Background(), pins.Options{Document: document, Source: NewClient(s)})
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
	_, err = Build(context.Background(), content, NewClient(s), path, nil)
	return path, err
}

// UpstreamServer returns the server without faults and with an empty log.
func UpstreamServer(t testing.TB) *upstream.Server {
	t.Helper()
	s, err := shared.start()
	if err != nil {
		t.Fatal(err)
	}
	s.Heal()
	// What all tests share must neither meet their faults nor be in their logs.
	_ = Reference(t)
	s.ResetRequests()
	t.Cleanup(s.Heal)
	return s
}

// SmallLock returns the lock that [Unpinned] becomes.
func SmallLock(t testing.TB) []byte {
	t.Helper()
	content, err := shared.lock()
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Reference returns an unsigned bundle of the small lock, which no test may change.
func Reference(t testing.TB) string {
	t.Helper()
	path, err := shared.built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Packages are archives of OS packages that the shared server has.
func Packages() *packagearchive.Sample { return shared.packages }

// NewClient gives one that soon gives up.
func NewClient(s *upstream.Server, change ...func(*source.Options)) *source.Client {
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

// PlanOptions are those of a build of a lock, with programs that are none.
func PlanOptions(content []byte, client *source.Client) (plan.Options, error) {
	l, err := lock.Parse(bundle.LockFile, content)
	if err != nil {
		return plan.Options{}, err
	}
	o := plan.Options{Lock: l, LockName: bundle.LockFile, LockContent: content, Source: client, Version: "v0.0.0-test"}
	for _, platform := range l.Platforms {
		for _, name := range []string{bundle.NodeProgram, bundle.OperatorProgram} {
			path := filepath.Join(shared.dir, name+"-"+platform.Architecture())
			if err := os.WriteFile(path, []byte(name+" for "+string(platform)), 0o755); err != nil {
				return plan.Options{}, err
			}
			o.Programs = append(o.Programs, plan.Program{Name: name, Platform: platform, Path: path})
		}
	}
	return o, nil
}

// Build plans and builds.
func Build(
	ctx context.Context, content []byte, client *source.Client, path string, signer *signature.Signer,
	change ...func(*plan.Options),
) (*build.Result, error) {
	o, err := PlanOptions(content, client)
	if err != nil {
		return nil, err
	}
	for _, f := range change {
		f(&o)
	}
	planned, err := plan.New(ctx, o)
	if err != nil {
		return nil, err
	}
	return build.Write(ctx, planned, build.Options{Path: path, Signer: signer})
}

// MustBuild is Build that fails the test.
func MustBuild(
	t testing.TB, content []byte, client *source.Client, path string, signer *signature.Signer,
	change ...func(*plan.Options),
) *build.Result {
	t.Helper()
	result, err := Build(t.Context(), content, client, path, signer, change...)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// MustOpen opens a bundle until the test ends.
func MustOpen(t testing.TB, path string) *bundle.Reader {
	t.Helper()
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// MustRead returns the content of a file.
func MustRead(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// MustWrite writes a file.
func MustWrite(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// SameFiles checks that two files have the same content.
func SameFiles(t testing.TB, a, b string) {
	t.Helper()
	if !bytes.Equal(MustRead(t, a), MustRead(t, b)) {
		t.Errorf("%s and %s differ", a, b)
	}
}

// NoFile checks that nothing goes by the final name.
func NoFile(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there: %v", path, err)
	}
}

// WantError checks that there is an error, and that its text has these parts.
func WantError(t testing.TB, err error, parts ...string) {
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

// SignerOf returns one of two signers.
func SignerOf(t testing.TB, which int) *signature.Signer {
	t.Helper()
	signer, err := signers[which]()
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// Downloads lists the files and blobs that were asked for since the log was reset, with
// how often each was begun. Manifests are not among them.
func Downloads(s *upstream.Server) map[string]int {
	result := make(map[string]int)
	for _, r := range s.Requests() {
		isRegistry := strings.HasPrefix(r.Path, "/v2/")
		if r.Method != "GET" || r.Status/100 == 3 || r.Path == "/token" || isRegistry &&
			!strings.Contains(r.Path, "/blobs/") {
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

// Once is what downloads returns when everything was fetched exactly once.
func Once(downloads map[string]int) map[string]int {
	result := make(map[string]int)
	for name := range downloads {
		result[name] = 1
	}
	return result
}

// Golden compares a text with a file in testdata.
func Golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		MustWrite(t, path, []byte(got))
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), -update writes it anew:\n%s", path, diff)
	}
}

// Replaced changes a text exactly once.
func Replaced(t testing.TB, content []byte, old, with string) []byte {
	t.Helper()
	if n := bytes.Count(content, []byte(old)); n != 1 {
		t.Fatalf("%q is there %d times, expected once", old, n)
	}
	return bytes.Replace(content, []byte(old), []byte(with), 1)
}

// Recorder is a reporter that keeps the messages.
type Recorder struct {
	mu       sync.Mutex
	messages []string
}

// All returns the messages.
func (r *Recorder) All() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.messages)
}

// Task is not recorded.
func (r *Recorder) Task(string, int64) progress.Task { return progress.Discard.Task("", 0) }

// Message keeps a message.
func (r *Recorder) Message(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, text)
}
