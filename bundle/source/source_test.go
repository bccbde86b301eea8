package source

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/test/upstream"
)

const (
	pauseRef   = "docker.io/rancher/mirrored-pause:3.10.2"
	webRef     = "ghcr.io/fslongjin/web:v0.6.10" // one manifest without an index
	releaseURL = "https://github.com/k3s-io/k3s/releases/download/v1.36.4%2Bk3s1/sha256sum-amd64.txt"
	chartURL   = "https://helm.cilium.io/cilium-1.20.0.tgz"

	password = "correct-horse-battery"
)

// The servers that all tests share, one after another.
var (
	server    *upstream.Server
	odd       *httptest.Server // does what no registry should
	plaintext *httptest.Server // speaks HTTP without TLS, and should never be asked
	asked     atomic.Int64     // how often it was

	connections atomic.Int64 // through the proxy
)

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "boxlift-source-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	_ = os.Setenv("DOCKER_CONFIG", dir)
	if server, err = upstream.Start(context.Background(), upstream.Options{Dir: dir}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = server.Close() }()
	plaintext = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer plaintext.Close()
	odd = httptest.NewTLSServer(http.HandlerFunc(beOdd))
	defer odd.Close()
	proxy := httptest.NewServer(http.HandlerFunc(beProxy))
	defer proxy.Close()
	// Read at the first request of the process. It is not asked for addresses of this host.
	_ = os.Setenv("HTTPS_PROXY", proxy.URL)
	authorities, err := os.ReadFile(server.CAFile())
	if err == nil {
		authorities = append(authorities, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: odd.Certificate().Raw})...)
		err = os.WriteFile(server.CAFile(), authorities, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Read at the first TLS connection of the process.
	_ = os.Setenv("SSL_CERT_FILE", server.CAFile())
	return m.Run()
}

// beProxy leads everybody to the odd server, whose certificate is for example.com too.
func beProxy(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect || r.Host != "example.com:443" {
		http.Error(w, "no", http.StatusForbidden)
		return
	}
	connections.Add(1)
	to, err := net.Dial("tcp", odd.Listener.Addr().String())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = to.Close() }()
	from, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = from.Close() }()
	_, _ = io.WriteString(from, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() { _, _ = io.Copy(to, buffered) }()
	_, _ = io.Copy(from, to)
}

func beOdd(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/to-http":
		http.Redirect(w, r, plaintext.URL+"/file", http.StatusFound)
	case r.URL.Path == "/escapes":
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, "\x1b[2Jfirst\n\u009bsecond \xff"+strings.Repeat("ü", 500))
	case r.URL.Path == "/v2/":
		if strings.HasPrefix(r.Header.Get("User-Agent"), "challenge") {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+plaintext.URL+`/token",service="s"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	case strings.HasSuffix(r.URL.Path, "/manifests/no-digest"):
	case strings.Contains(r.URL.Path, "/large/manifests/"):
		_, _ = io.Copy(w, io.LimitReader(zeros{}, maxWhole+2))
	default:
		http.NotFound(w, r)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 0
	}
	return len(p), nil
}

// heal makes the server fresh for a test.
func heal(t *testing.T) {
	t.Helper()
	server.Heal()
	server.ResetRequests()
	t.Cleanup(server.Heal)
}

// client gives one with the server's mirrors that soon gives up.
func client(t *testing.T, change ...func(*Options)) *Client {
	t.Helper()
	o := Options{MaxTries: 2, IdleTimeout: 10 * time.Second, Pause: time.Millisecond}
	for _, s := range server.Mirrors() {
		m, err := ParseMirror(s)
		if err != nil {
			t.Fatal(err)
		}
		o.Mirrors = append(o.Mirrors, m)
	}
	for _, f := range change {
		f(&o)
	}
	return New(o)
}

func wantError(t *testing.T, err error, status int, parts ...string) {
	t.Helper()
	var failed *Error
	if !errors.As(err, &failed) {
		t.Fatalf("%v (%T) is not an *Error", err, err)
	}
	if failed.Status != status {
		t.Errorf("status %d, expected %d: %v", failed.Status, status, err)
	}
	if failed.Hint() == "" {
		t.Errorf("no hint for %v", err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q:\n%v", part, err)
		}
	}
	noSecret(t, err)
}

// noSecret looks for what must not be in any text: passwords, tokens, signed addresses.
func noSecret(t *testing.T, err error) {
	t.Helper()
	text := fmt.Sprintf("%v %+v %q", err, err, err)
	for _, secret := range []string{
		password, base64.StdEncoding.EncodeToString([]byte("user:" + password)), "sig=",
	} {
		if strings.Contains(text, secret) {
			t.Errorf("the error has %q in it:\n%v", secret, err)
		}
	}
}

func read(t *testing.T, s *Stream, err error) []byte {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if s.Size >= 0 && int64(len(content)) != s.Size {
		t.Errorf("%d bytes came, %d were announced", len(content), s.Size)
	}
	return content
}

func TestParseMirror(t *testing.T) {
	for s, want := range map[string]Mirror{
		"docker.io=registry.lan":                {"docker.io", "registry.lan"},
		"docker.io=registry.lan:5000/a/b/":      {"docker.io", "registry.lan:5000/a/b"},
		"registry.lan:5000=harbor/proxy-cache":  {"registry.lan:5000", "harbor/proxy-cache"},
		"quay.io=[::1]:443/quay.io":             {"quay.io", "[::1]:443/quay.io"},
		"docker.io=https://registry.lan":        {},
		"docker.io=user:" + password + "@r.lan": {},
		"docker.io=r.lan/a?token=" + password:   {},
		"docker.io=r.lan/a b":                   {},
		"docker.io/library=registry.lan":        {},
		"docker.io=/proxy":                      {},
		"docker.io=":                            {},
		"=registry.lan":                         {},
		"docker.io":                             {},
		"":                                      {},
		"docker.io=registry.lan//x":             {},
		"docker.io=registry.lan\r\nHost: x":     {},
	} {
		got, err := ParseMirror(s)
		if (err == nil) != (want != Mirror{}) || got != want {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
		if err != nil {
			noSecret(t, err)
		}
	}
}

// wire notes where requests go, and lets none of them pass.
type wire struct{ hosts []string }

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.hosts = append(w.hosts, r.URL.String())
	return &http.Response{
		StatusCode: http.StatusNotFound, Status: "404 Not Found", Request: r,
		Body: io.NopCloser(bytes.NewReader(nil)), Header: http.Header{},
	}, nil
}

// TestAddresses checks which addresses are asked, for registries and files.
func TestAddresses(t *testing.T) {
	tests := []struct {
		mirror, repository, want string
	}{
		{"", "docker.io/library/busybox", "https://index.docker.io/v2/"},
		{"", "quay.io/cilium/cilium", "https://quay.io/v2/"},
		{"docker.io=registry.lan", "docker.io/library/busybox", "https://registry.lan/v2/"},
		{"docker.io=registry.lan:5000/proxy/hub", "docker.io/library/busybox", "https://registry.lan:5000/v2/"},
		// A host without a dot is not a part of a path on Docker Hub.
		{"docker.io=harbor/proxy", "docker.io/library/busybox", "https://harbor/v2/"},
		{"quay.io=docker.io/mirrors", "quay.io/cilium/cilium", "https://index.docker.io/v2/"},
		{"quay.io=registry.lan", "docker.io/library/busybox", "https://index.docker.io/v2/"},
	}
	for _, test := range tests {
		c := New(Options{MaxTries: 1})
		if test.mirror != "" {
			m, err := ParseMirror(test.mirror)
			if err != nil {
				t.Fatal(err)
			}
			c = New(Options{MaxTries: 1, Mirrors: []Mirror{m}})
		}
		w := &wire{}
		c.plain = w
		_, _, err := c.Manifest(t.Context(), test.repository, digest.FromString(""))
		wantError(t, err, http.StatusNotFound)
		if diff := cmp.Diff([]string{test.want}, w.hosts); diff != "" {
			t.Errorf("%q, %s (-expected +got):\n%s", test.mirror, test.repository, diff)
		}
	}

	c := New(Options{MaxTries: 1, Mirrors: []Mirror{{"github.com", "files.lan:8443/mirror/github"}}})
	w := &wire{}
	c.plain = w
	_, err := c.Open(t.Context(), "https://github.com/a/b%2Bc?raw=1")
	wantError(t, err, http.StatusNotFound, "get https://files.lan:8443/mirror/github/a/b%2Bc: ")
	if diff := cmp.Diff([]string{"https://files.lan:8443/mirror/github/a/b%2Bc?raw=1"}, w.hosts); diff != "" {
		t.Errorf("file (-expected +got):\n%s", diff)
	}
}

// TestMirrors fetches with and without a path in front of the repository.
func TestMirrors(t *testing.T) {
	heal(t)
	want := digest.Digest("")
	for _, image := range server.Images() {
		if image.Ref == pauseRef {
			want = image.Digest
		}
	}
	tests := map[string]string{
		"docker.io=" + server.Addr() + "/docker.io": pauseRef,
		"registry.example=" + server.Addr():         "registry.example/docker.io/rancher/mirrored-pause:3.10.2",
	}
	for mirror, ref := range tests {
		m, err := ParseMirror(mirror)
		if err != nil {
			t.Fatal(err)
		}
		c := New(Options{MaxTries: 1, Mirrors: []Mirror{m}})
		d, err := c.Resolve(t.Context(), ref)
		if err != nil || d.Digest != want || d.Size <= 0 || d.MediaType != format.DockerManifestList {
			t.Errorf("%s: %+v, %v", mirror, d, err)
		}
		repository, err := Repository(ref)
		if err != nil {
			t.Fatal(err)
		}
		content, mediaType, err := c.Manifest(t.Context(), repository, want)
		if err != nil || digest.FromBytes(content) != want || mediaType != format.DockerManifestList {
			t.Errorf("%s: manifest of %s, %v", mirror, mediaType, err)
		}
	}
}

// TestResolveByContent has a proxy that leaves out what its registry says of the digest.
func TestResolveByContent(t *testing.T) {
	heal(t)
	strips := httptest.NewTLSServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "https", Host: server.Addr()}) },
		ModifyResponse: func(r *http.Response) error {
			r.Header.Del("Docker-Content-Digest")
			return nil
		},
	})
	defer strips.Close()
	want, err := client(t).Resolve(t.Context(), pauseRef)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		fault upstream.Fault
		gets  int
	}{
		"undisturbed": {gets: 1},
		"cut":         {upstream.Cut{After: 20}, 2},
		"busy":        {upstream.Status{Code: 503}, 2},
	} {
		heal(t)
		if c.fault != nil {
			server.Inject(upstream.Rule{Method: "GET", Path: "/manifests/", Times: 1, Fault: c.fault})
		}
		mirrored := New(Options{
			MaxTries: 2, Pause: time.Millisecond, Authorities: trusting(strips),
			Mirrors: []Mirror{{"docker.io", strings.TrimPrefix(strips.URL, "https://") + "/docker.io"}},
		})
		got, err := mirrored.Resolve(t.Context(), pauseRef)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-stated +made):\n%s", name, diff)
		}
		gets := 0
		for _, r := range server.Requests() {
			if r.Method == http.MethodGet && strings.Contains(r.Path, "/manifests/") {
				gets++
			}
		}
		if gets != c.gets {
			t.Errorf("%s: it was fetched %d times, expected %d", name, gets, c.gets)
		}
	}
}

func TestRepository(t *testing.T) {
	for ref, want := range map[string]string{
		"docker.io/library/busybox:1.37": "docker.io/library/busybox",
		"registry.lan:5000/a/b:v1":       "registry.lan:5000/a/b",
		"localhost:5000/a:v1":            "localhost:5000/a",
		"busybox":                        "",
		"":                               "",
	} {
		if got, err := Repository(ref); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", ref, got, err)
		}
	}
}

// TestRedirects follows those of releases, whose addresses are signed.
func TestRedirects(t *testing.T) {
	heal(t)
	s, err := client(t).Open(t.Context(), releaseURL)
	content := read(t, s, err)
	if !strings.Contains(string(content), "k3s-airgap-images-amd64.tar.zst") {
		t.Errorf("got %q", content)
	}
	server.Inject(upstream.Rule{Path: upstream.FilePath(releaseURL), Fault: upstream.Status{Code: 403}})
	_, err = client(t).Open(t.Context(), releaseURL)
	wantError(t, err, 403, "sha256sum-amd64.txt: the server answered 403 Forbidden")
	server.Heal()
	server.Inject(upstream.Rule{Path: upstream.FilePath(releaseURL), Fault: upstream.Cut{After: 10}})
	s, err = client(t).Open(t.Context(), releaseURL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadAll(s)
	wantError(t, err, 200, "/sha256sum-amd64.txt: the connection broke after 50 of 168 bytes: ")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// dockerConfig logs in to the server.
func dockerConfig(t *testing.T, username, password string) {
	t.Helper()
	dir := t.TempDir()
	content, err := json.Marshal(map[string]any{"auths": map[string]any{
		server.Addr(): map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(username + ":" + password))},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
}

func TestCredentials(t *testing.T) {
	right := upstream.Auth{Prefix: "ghcr.io/fslongjin", Username: "user", Password: password}
	basic := right
	basic.Basic = true
	tests := map[string]struct {
		auth     upstream.Auth
		login    string // the password that is sent; "" for no login
		redirect bool
		status   int // of the error; 0 for success
	}{
		"bearer":                {auth: right, login: password},
		"bearer, redirected":    {auth: right, login: password, redirect: true},
		"basic":                 {auth: basic, login: password},
		"basic, redirected":     {auth: basic, login: password, redirect: true},
		"anonymous bearer":      {auth: upstream.Auth{Prefix: "ghcr.io/fslongjin"}},
		"bearer, wrong":         {auth: right, login: password + "x", status: 401},
		"basic, wrong":          {auth: basic, login: password + "x", status: 401},
		"bearer, not logged in": {auth: right, status: 401},
		"basic, not logged in":  {auth: basic, status: 401},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			heal(t)
			server.RequireAuth(test.auth)
			if test.redirect {
				server.Inject(upstream.Rule{Path: "/blobs/", Fault: upstream.Redirect{}})
			}
			if test.login != "" {
				dockerConfig(t, "user", test.login)
			}
			c := client(t)
			d, err := c.Resolve(t.Context(), webRef)
			if test.status != 0 {
				wantError(t, err, test.status)
				var failed *Error
				if errors.As(err, &failed); !strings.Contains(failed.Hint(), "docker login") {
					t.Errorf("the hint is %q", failed.Hint())
				}
				for _, r := range server.Requests() {
					if r.Method == http.MethodHead && r.Status == 200 {
						t.Errorf("%+v was answered", r)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			repository, err := Repository(webRef)
			if err != nil {
				t.Fatal(err)
			}
			content, _, err := c.Manifest(t.Context(), repository, d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			var manifest struct {
				Config struct{ Digest digest.Digest }
			}
			if err := json.Unmarshal(content, &manifest); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Config(t.Context(), repository, manifest.Config.Digest); err != nil {
				t.Error(err)
			}
			s, err := c.Blob(t.Context(), repository, manifest.Config.Digest)
			if got := digest.FromBytes(read(t, s, err)); got != manifest.Config.Digest {
				t.Errorf("the blob is %s, expected %s", got, manifest.Config.Digest)
			}
		})
	}
}

func TestRetries(t *testing.T) {
	tests := map[string]struct {
		rule   upstream.Rule
		tries  uint
		status int // of the error, 0 for success
		hits   int
		pauses []time.Duration // exact ones only
	}{
		"500 twice":            {upstream.Rule{Path: "cilium-1.20.0", Times: 2, Fault: upstream.Status{Code: 500}}, 3, 0, 2, nil},
		"500 too often":        {upstream.Rule{Path: "cilium-1.20.0", Fault: upstream.Status{Code: 502}}, 2, 502, 2, nil},
		"429, Retry-After":     {upstream.Rule{Path: "cilium-1.20.0", Times: 1, Fault: upstream.Status{Code: 429, RetryAfter: time.Second}}, 2, 0, 1, []time.Duration{time.Second}},
		"503, Retry-After":     {upstream.Rule{Path: "cilium-1.20.0", Times: 1, Fault: upstream.Status{Code: 503, RetryAfter: time.Second}}, 2, 0, 1, []time.Duration{time.Second}},
		"429 too often":        {upstream.Rule{Path: "cilium-1.20.0", Fault: upstream.Status{Code: 429}}, 2, 429, 2, nil},
		"404 is final":         {upstream.Rule{Path: "cilium-1.20.0", Fault: upstream.Status{Code: 404}}, 5, 404, 1, nil},
		"401 is final":         {upstream.Rule{Path: "cilium-1.20.0", Fault: upstream.Status{Code: 401}}, 5, 401, 1, nil},
		"cut before an answer": {upstream.Rule{Path: "cilium-1.20.0", Fault: upstream.Cut{After: 0}}, maxBreaks, 200, maxBreaks, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			heal(t)
			fault := server.Inject(test.rule)
			var pauses []time.Duration
			c := client(t, func(o *Options) {
				o.MaxTries = test.tries
				o.Retrying = func(err error, pause time.Duration) {
					noSecret(t, err)
					pauses = append(pauses, pause)
				}
			})
			s, err := c.Open(t.Context(), chartURL)
			if err == nil {
				_, err = io.ReadAll(s)
				_ = s.Close()
			}
			if test.status != 0 {
				wantError(t, err, test.status, "/cilium-1.20.0.tgz: ")
			} else if err != nil {
				t.Error(err)
			}
			if fault.Hits() != test.hits || len(pauses) > 0 && len(pauses) != int(test.tries)-1 {
				t.Errorf("%d hits and %d pauses, expected %d tries", fault.Hits(), len(pauses), test.tries)
			}
			if test.pauses != nil {
				if diff := cmp.Diff(test.pauses, pauses); diff != "" {
					t.Errorf("pauses (-expected +got):\n%s", diff)
				}
			}
		})
	}
}

// TestNothingInTheClear: no redirect, token server or second try leaves TLS.
func TestNothingInTheClear(t *testing.T) {
	address := strings.TrimPrefix(odd.URL, "https://")
	_, err := client(t).Open(t.Context(), "http://127.0.0.1/file")
	if err == nil || !strings.Contains(err.Error(), "only https addresses") {
		t.Errorf("an http address: %v", err)
	}
	_, err = client(t).Open(t.Context(), odd.URL+"/to-http")
	wantError(t, err, 0, "only https is used, not http")

	c := client(t, func(o *Options) { o.UserAgent = "challenge" })
	_, err = c.Resolve(t.Context(), address+"/a/b:1")
	wantError(t, err, 0, "use https")

	// The library tries HTTP with private addresses when HTTPS fails there.
	_, err = client(t).Resolve(t.Context(), strings.TrimPrefix(plaintext.URL, "http://")+"/a/b:1")
	wantError(t, err, 0)
	if n := asked.Load(); n != 0 {
		t.Errorf("%d requests went out in the clear", n)
	}
}

func TestUntrustedServer(t *testing.T) {
	strange, err := upstream.Start(t.Context(), upstream.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = strange.Close() })
	tries := 0
	c := New(Options{MaxTries: 3, Retrying: func(error, time.Duration) { tries++ }})
	_, err = c.Open(t.Context(), "https://"+strange.Addr()+"/helm.cilium.io/index.yaml")
	wantError(t, err, 0, "certificate")
	if tries != 0 {
		t.Errorf("tried again %d times with a server that nobody vouches for", tries)
	}
}

func TestOddAnswers(t *testing.T) {
	address := strings.TrimPrefix(odd.URL, "https://")
	_, err := client(t).Open(t.Context(), odd.URL+"/escapes")
	wantError(t, err, 400, "the server answered 400 Bad Request: \ufffd[2Jfirst \ufffdsecond ")
	if strings.ContainsAny(err.Error(), "\x1b\n\u009b") || !strings.HasSuffix(err.Error(), "ü…") {
		t.Errorf("%q is not fit for a terminal", err.Error())
	}
	_, err = client(t).Resolve(t.Context(), address+"/a/b:no-digest")
	wantError(t, err, 200, "the registry does not state the tag's digest, and what it sends is no manifest but \"\"")
	_, _, err = client(t).Manifest(t.Context(), address+"/a/large", digest.FromString(""))
	wantError(t, err, 200, "it is larger than")
	for _, ref := range []string{"busybox", "a b", address + "/a/b@sha256:" + strings.Repeat("0", 64)} {
		if _, err := client(t).Resolve(t.Context(), ref); err == nil {
			t.Errorf("%q was resolved", ref)
		}
	}
}

func TestManifestIsVerified(t *testing.T) {
	heal(t)
	c := client(t)
	d, err := c.Resolve(t.Context(), webRef)
	if err != nil {
		t.Fatal(err)
	}
	fault := server.Inject(upstream.Rule{Method: "GET", Path: "/manifests/", Fault: upstream.WrongByte{At: 5}})
	_, _, err = c.Manifest(t.Context(), "ghcr.io/fslongjin/web", d.Digest)
	wantError(t, err, 200, "/manifests/"+d.Digest.String()+": the bytes that came have the digest sha256:")
	if fault.Hits() != 1 {
		t.Errorf("it was fetched %d times", fault.Hits())
	}
}

func TestIdle(t *testing.T) {
	heal(t)
	server.Inject(upstream.Rule{Path: "cilium-1.20.0", Fault: upstream.Slow{BytesPerSecond: 1}})
	s, err := client(t, func(o *Options) { o.IdleTimeout = 50 * time.Millisecond }).Open(t.Context(), chartURL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadAll(s)
	wantError(t, err, 200, "the connection broke after ", " of 212169 bytes: nothing arrived for 50ms")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestCancel(t *testing.T) {
	heal(t)
	stop := errors.New("the user wants it to stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	server.Inject(upstream.Rule{Path: "cilium-1.20.0", Fault: upstream.Slow{BytesPerSecond: 1}})
	s, err := client(t).Open(ctx, chartURL)
	if err != nil {
		t.Fatal(err)
	}
	cancel(stop)
	if _, err := io.ReadAll(s); !errors.Is(err, stop) {
		t.Errorf("read: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := client(t).Open(ctx, chartURL); !errors.Is(err, stop) {
		t.Errorf("open: %v", err)
	}

	// And while it waits for the next try.
	server.Heal()
	server.Inject(upstream.Rule{Path: "cilium-1.20.0", Fault: upstream.Status{Code: 429, RetryAfter: 500 * time.Second}})
	ctx, cancel = context.WithCancelCause(t.Context())
	c := client(t, func(o *Options) { o.Retrying = func(error, time.Duration) { cancel(stop) } })
	if _, err := c.Open(ctx, chartURL); !errors.Is(err, stop) {
		t.Errorf("wait: %v", err)
	}
}

// TestSecretsInAddresses has a token in the query of an address.
func TestSecretsInAddresses(t *testing.T) {
	heal(t)
	_, err := client(t).Open(t.Context(), "https://helm.cilium.io/none.tgz?token="+password)
	wantError(t, err, 404, "/none.tgz: ")
	_, err = New(Options{MaxTries: 1}).Open(t.Context(), "https://127.0.0.1:1/none.tgz?token="+password)
	wantError(t, err, 0, "get https://127.0.0.1:1/none.tgz: ", "refused")
}

// TestStalledAnswers has answers that never begin, stop in the middle, or have no end, whatever they are for.
func TestStalledAnswers(t *testing.T) {
	const repository = "ghcr.io/fslongjin/web"
	resolve := func(ctx context.Context, c *Client) error {
		_, err := c.Resolve(ctx, webRef)
		return err
	}
	tags := func(ctx context.Context, c *Client) error {
		_, err := c.Tags(ctx, repository)
		return err
	}
	fetch := func(ctx context.Context, c *Client) error {
		_, err := c.File(ctx, releaseURL, 1<<20)
		return err
	}
	refused := upstream.Rule{Path: "sha256sum-amd64.txt", Fault: upstream.Status{Code: 503}}
	tests := map[string]struct {
		rules []upstream.Rule
		login bool
		do    func(context.Context, *Client) error
		// silent is the HeaderTimeout, whole the AnswerTimeout.
		silent, whole time.Duration
		want          string // empty where it succeeds nevertheless
	}{
		"error": {
			rules: []upstream.Rule{refused, {Path: refused.Path, Fault: upstream.Stall{}}}, do: fetch,
			want: "the server answered 503 Service Unavailable",
		},
		"file": {
			rules: []upstream.Rule{{Path: refused.Path, Fault: upstream.Stall{After: 10}}}, do: fetch,
			want: "nothing arrived for 100ms",
		},
		"slow file": {
			rules: []upstream.Rule{{Path: refused.Path, Fault: upstream.Slow{BytesPerSecond: 40}}}, do: fetch,
			whole: 150 * time.Millisecond, want: "it did not end within 150ms",
		},
		"how to log in": {
			rules: []upstream.Rule{{Path: "^/v2/$", Fault: upstream.Stall{}}}, do: resolve,
		},
		"how to log in, without end": {
			rules: []upstream.Rule{{Path: "^/v2/$", Fault: upstream.Endless{}}}, do: resolve,
		},
		"token": {
			rules: []upstream.Rule{{Path: "^/token$", Fault: upstream.Stall{After: 5}}}, login: true, do: resolve,
			want: "nothing arrived for 100ms",
		},
		"slow token": {
			rules: []upstream.Rule{{Path: "^/token$", Fault: upstream.Slow{BytesPerSecond: 40}}}, login: true,
			do: resolve, whole: 150 * time.Millisecond, want: "it did not end within 150ms",
		},
		"tags": {
			rules: []upstream.Rule{{Path: "/tags/list", Fault: upstream.Stall{After: 5}}}, do: tags,
			want: "nothing arrived for 100ms",
		},
		"no answer": {
			rules: []upstream.Rule{{Path: refused.Path, Fault: upstream.Silent{}}}, do: fetch,
			silent: 500 * time.Millisecond, want: "timeout awaiting response headers",
		},
		"no answer once": {
			rules: []upstream.Rule{{Path: refused.Path, Fault: upstream.Silent{}, Times: 1}}, do: fetch,
			silent: 500 * time.Millisecond,
		},
		"no token": {
			rules: []upstream.Rule{{Path: "^/token$", Fault: upstream.Silent{}}}, login: true,
			do: resolve, silent: 500 * time.Millisecond, want: "timeout awaiting response headers",
		},
		"redirect": {
			rules: []upstream.Rule{
				{Path: "/blobs/", Fault: upstream.Redirect{}},
				{Path: "^/v2/.*/blobs/", Fault: upstream.Stall{After: 5}},
			},
			do: func(ctx context.Context, c *Client) error {
				content, _, err := c.Manifest(ctx, repository, resolved(t))
				if err != nil {
					return err
				}
				_, err = c.Config(ctx, repository, manifestConfig(t, content))
				return err
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			heal(t)
			var faults []*upstream.Injection
			for _, rule := range test.rules {
				faults = append(faults, server.Inject(rule))
			}
			if test.login {
				server.RequireAuth(upstream.Auth{Prefix: repository})
			}
			// Only so that a test that fails says so soon.
			ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("it hangs"))
			defer cancel()
			err := test.do(ctx, client(t, func(o *Options) {
				o.IdleTimeout, o.AnswerTimeout = 100*time.Millisecond, test.whole
				o.HeaderTimeout = test.silent
			}))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, expected %q", err, test.want)
			}
			for i, fault := range faults {
				if fault.Hits() == 0 {
					t.Errorf("rule %d was never applied", i)
				}
			}
		})
	}
}

// resolved is the digest of webRef.
func resolved(t *testing.T) digest.Digest {
	t.Helper()
	d, err := client(t).Resolve(t.Context(), webRef)
	if err != nil {
		t.Fatal(err)
	}
	return d.Digest
}

func manifestConfig(t *testing.T, content []byte) digest.Digest {
	t.Helper()
	var manifest ocispec.Manifest
	if err := json.Unmarshal(content, &manifest); err != nil {
		t.Fatal(err)
	}
	return manifest.Config.Digest
}
