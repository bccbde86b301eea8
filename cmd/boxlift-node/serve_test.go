//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/certificate"
	"github.com/liteboxd/boxlift/test/ocilayout"
)

func TestServeConfig(t *testing.T) {
	good := map[string]any{
		"address": "192.0.2.1:5443", "imagesDir": "/var/lib/rancher/k3s/agent/images",
		"certificate": "/a/server.crt", "key": "/a/server.key",
		"username": "boxlift", "passwordSHA256": strings.Repeat("0a", 32),
	}
	tests := []struct {
		name, field string
		value       any
		want        string
	}{
		{"complete", "", nil, ""},
		{"IPv6", "address", "[2001:db8::1]:5443", ""},
		{"no port", "address", "192.0.2.1", "expected an address and a port"},
		{"empty port", "address", "192.0.2.1:", "expected an address and a port"},
		{"relative folder", "imagesDir", "images", "imagesDir \"images\": expected an absolute path"},
		{"no certificate", "certificate", "", "certificate \"\": expected an absolute path"},
		{"relative key", "key", "./k", "expected an absolute path"},
		{"no user", "username", "", "username \"\": expected"},
		{"colon in the user", "username", "a:b", "expected a name without a colon"},
		{"short password", "passwordSHA256", "0a", "expected 64 hexadecimal digits"},
		{"password itself", "passwordSHA256", strings.Repeat("x", 64), "expected 64 hexadecimal digits"},
		{"unknown field", "password", "secret", `unknown field "password"`},
		{"wrong type", "address", 5443, "cannot unmarshal number"},
	}
	for _, test := range tests {
		c := make(map[string]any)
		for k, v := range good {
			c[k] = v
		}
		if test.field != "" {
			c[test.field] = test.value
		}
		content, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = parseServeConfig(content)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, expected %q", test.name, err, test.want)
		}
	}
	whole, err := json.Marshal(good)
	if err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{
		"":                   "EOF",
		"[]":                 "cannot unmarshal",
		"null":               "expected an address",
		string(whole) + "{}": "something after the object",
		string(whole[:len(whole)-1]) + `,"username":"x"`: "unexpected EOF",
		strings.Repeat(" ", maxServeConfig+1):            "more than 65536 bytes",
	} {
		if _, _, err := parseServeConfig([]byte(content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, expected %q", content, err, want)
		}
	}
}

// served is `boxlift-node serve` as systemd runs it.
type served struct {
	images, cert, key string
	address           string
	pool              *x509.CertPool
	process           *exec.Cmd
	log               lockedBuffer
	states            chan string
}

func startServe(t *testing.T) *served {
	t.Helper()
	dir := t.TempDir()
	s := &served{images: filepath.Join(dir, "images"), cert: filepath.Join(dir, "server.crt"),
		key: filepath.Join(dir, "server.key"), pool: x509.NewCertPool(), states: make(chan string, 8)}
	s.certify(t)
	if err := os.Mkdir(s.images, 0o755); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("password"))
	config, err := json.Marshal(serveConfig{
		Address: "127.0.0.1:0", ImagesDir: s.images, Certificate: s.cert, Key: s.key,
		Username: "boxlift", PasswordSHA256: hex.EncodeToString(sum[:]),
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "serve.json"), config)
	socket, err := new(net.ListenConfig).ListenPacket(t.Context(), "unixgram", filepath.Join(dir, "notify"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	go func() {
		b := make([]byte, 100)
		for {
			n, _, err := socket.ReadFrom(b)
			if err != nil {
				return
			}
			s.states <- string(b[:n])
		}
	}()
	s.process = exec.Command(build(t, ""), "serve", "-config", filepath.Join(dir, "serve.json"))
	s.process.Env = append(os.Environ(), "NOTIFY_SOCKET="+filepath.Join(dir, "notify"))
	s.process.Stderr = &s.log
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.process.Process.Kill() })
	s.want(t, "READY=1")
	for deadline := time.Now().Add(time.Minute); s.address == ""; time.Sleep(time.Millisecond) {
		_, rest, found := strings.Cut(s.log.String(), "msg=listening address=")
		if address, _, ended := strings.Cut(rest, "\n"); found && ended {
			s.address = address
		}
		if time.Now().After(deadline) {
			t.Fatalf("it does not say where it listens: %s", &s.log)
		}
	}
	return s
}

// lockedBuffer is written and read at the same time.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// want waits for a word to systemd.
func (s *served) want(t *testing.T, state string) {
	t.Helper()
	select {
	case got := <-s.states:
		if got != state {
			t.Errorf("systemd is told %q, expected %q", got, state)
		}
	case <-time.After(time.Minute):
		t.Fatalf("systemd is not told %s: %s", state, &s.log)
	}
}

// certify writes a certificate and its key anew.
func (s *served) certify(t *testing.T) {
	t.Helper()
	cert, key, err := certificate.New()
	if err != nil {
		t.Fatal(err)
	}
	s.pool.AppendCertsFromPEM(cert)
	for path, content := range map[string][]byte{s.cert: cert, s.key: key} {
		write(t, path+".new", content)
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// place puts a pack with one image of one layer into the folder.
func (s *served) place(t *testing.T, name string, layer []byte) {
	t.Helper()
	blob := func(content []byte) map[string]any {
		return map[string]any{"digest": digest.FromBytes(content), "size": len(content)}
	}
	encode := func(v any) []byte {
		content, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	config := []byte("{}")
	manifest := encode(map[string]any{"schemaVersion": 2, "config": blob(config), "layers": []any{blob(layer)}})
	entry := blob(manifest)
	entry["annotations"] = map[string]string{"io.containerd.image.name": name}
	index := encode(map[string]any{"schemaVersion": 2, "manifests": []any{entry}})
	path := filepath.Join(s.images, wire.PackName("test", index))
	write(t, path+".part", ocilayout.Pack(t, index, config, manifest, layer))
	if err := os.Rename(path+".part", path); err != nil {
		t.Fatal(err)
	}
}

func (s *served) client() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.pool}, DisableKeepAlives: true}}
}

func (s *served) get(ctx context.Context, c *http.Client, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.address+path, nil)
	if err != nil {
		return nil, err
	}
	r.SetBasicAuth("boxlift", "password")
	return c.Do(r)
}

func (s *served) status(t *testing.T, path string) int {
	t.Helper()
	r, err := s.get(t.Context(), s.client(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return r.StatusCode
}

// TestServe runs the binary as its unit does, from its start to its stop.
func TestServe(t *testing.T) {
	s := startServe(t)
	if got := s.status(t, "/v2/app/manifests/1"); got != 404 {
		t.Errorf("without packs: status %d", got)
	}
	layer := []byte("layer")
	s.place(t, "docker.io/library/app:1", layer)
	if got := s.status(t, "/v2/library/app/manifests/1?ns=docker.io"); got != 200 {
		t.Errorf("with a pack: status %d", got)
	}
	r, err := s.get(t.Context(), s.client(), "/v2/library/app/blobs/"+digest.FromBytes(layer).String())
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r.Body)
	if _ = r.Body.Close(); err != nil || !bytes.Equal(got, layer) {
		t.Errorf("the layer is %q, %v", got, err)
	}
	s.certify(t)
	s.pool = x509.NewCertPool()
	s.certify(t) // only this one is trusted
	if got := s.status(t, "/v2/"); got != 200 {
		t.Errorf("with a new certificate: status %d", got)
	}
	anonymous, err := s.client().Get("https://" + s.address + "/v2/")
	if err != nil {
		t.Fatal(err)
	}
	if _ = anonymous.Body.Close(); anonymous.StatusCode != 401 {
		t.Errorf("without a password: status %d", anonymous.StatusCode)
	}
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.want(t, "STOPPING=1")
	if err := s.process.Wait(); err != nil {
		t.Errorf("%v: %s", err, &s.log)
	}
	log := s.log.String()
	if strings.Contains(log, "time=") {
		t.Errorf("the journal has the time by itself: %s", log)
	}
	for _, want := range []string{"msg=listening", `msg="serving pack"`,
		"path=/v2/library/app/manifests/1 ns=docker.io status=200"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q: %s", want, log)
		}
	}
}

func TestServeErrors(t *testing.T) {
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	s := &served{cert: filepath.Join(dir, "crt"), key: filepath.Join(dir, "key"), pool: x509.NewCertPool()}
	s.certify(t)
	file := filepath.Join(dir, "serve.json")
	run := func(change func(*serveConfig)) string {
		t.Helper()
		c := serveConfig{Address: "127.0.0.1:0", ImagesDir: dir, Certificate: s.cert, Key: s.key, Username: "u",
			PasswordSHA256: strings.Repeat("00", 32)}
		change(&c)
		content, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		write(t, file, content)
		var stderr bytes.Buffer
		args := []string{"serve", "-config", file}
		if code := run(t.Context(), args, strings.NewReader(""), io.Discard, &stderr); code != exitFailed {
			t.Errorf("exit code %d: %s", code, &stderr)
		}
		return stderr.String()
	}
	for want, change := range map[string]func(*serveConfig){
		"address already in use":                func(c *serveConfig) { c.Address = taken.Addr().String() },
		"no such file":                          func(c *serveConfig) { c.Certificate += "x" },
		"found a certificate rather than a key": func(c *serveConfig) { c.Key = c.Certificate },
		`username "": expected`:                 func(c *serveConfig) { c.Username = "" },
		"tell systemd READY=1: dial unixgram ":  func(*serveConfig) { t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "none")) },
	} {
		if got := run(change); !strings.Contains(got, want) {
			t.Errorf("%s, expected %q", got, want)
		}
		t.Setenv("NOTIFY_SOCKET", "")
	}
}

// TestServeMemoryIsBounded has as many clients at once as a large cluster has nodes. What
// they get has to be right, and a small node has to have its memory left.
func TestServeMemoryIsBounded(t *testing.T) {
	const (
		maxPeak = 40 << 20
		clients = 200
		size    = 16 << 20
	)
	s := startServe(t)
	layer := make([]byte, size)
	_, _ = mathrand.NewChaCha8([32]byte{1}).Read(layer) // it never fails
	s.place(t, "docker.io/library/app:1", layer)
	d := digest.FromBytes(layer)
	// All clients have their connection before any of them reads.
	var connected, done sync.WaitGroup
	connected.Add(clients)
	for range clients {
		done.Go(func() {
			r, err := s.get(t.Context(), s.client(), "/v2/library/app/blobs/"+d.String())
			connected.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Body.Close()
			connected.Wait()
			h := sha256.New()
			if _, err := io.Copy(h, r.Body); err != nil {
				t.Error(err)
			}
			if got := digest.NewDigest(digest.SHA256, h); got != d {
				t.Errorf("got %s", got)
			}
		})
	}
	done.Wait()
	// What wait4 says would count the test's own memory, too: the process began as its copy.
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	var kilobytes int64
	if _, err := fmt.Sscan(peak, &kilobytes); err != nil {
		t.Fatalf("%v: %s", err, status)
	}
	t.Logf("peak: %d KiB", kilobytes)
	if kilobytes<<10 > maxPeak {
		t.Errorf("at its peak it took %d KiB, more than %d", kilobytes, maxPeak>>10)
	}
}
