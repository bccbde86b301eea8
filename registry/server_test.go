package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/test/certificate"
)

// running is a server on loopback.
type running struct {
	address, url string
	stop         func()
}

// startServer serves until stop is called, or the test ends.
func startServer(t testing.TB, h http.Handler, config *tls.Config, change ...func(*ServeOptions)) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := ServeOptions{TLS: config, Grace: 10 * time.Second, Log: discard}
	for _, f := range change {
		f(&o)
	}
	s := &running{address: l.Addr().String(), url: "http://" + l.Addr().String()}
	if config != nil {
		s.url = "https://" + s.address
	}
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, h, o) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

type answer struct {
	status  int
	content []byte
}

func get(t testing.TB, c *http.Client, url string, fields ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	response, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, content}
}

// pair is a certificate in two files.
type pair struct {
	cert, key string
	pool      *x509.CertPool
}

// write writes a certificate for 127.0.0.1 and returns its DER form.
func (p *pair) write(t testing.TB) string {
	t.Helper()
	cert, key, err := certificate.New()
	if err != nil {
		t.Fatal(err)
	}
	p.pool.AppendCertsFromPEM(cert)
	replace(t, p.cert, cert)
	replace(t, p.key, key)
	block, _ := pem.Decode(cert)
	return string(block.Bytes)
}

func replace(t testing.TB, path string, content []byte) {
	t.Helper()
	mustWrite(t, path+".new", content)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func newPair(t testing.TB) *pair {
	dir := t.TempDir()
	p := &pair{cert: filepath.Join(dir, "server.crt"), key: filepath.Join(dir, "server.key"), pool: x509.NewCertPool()}
	p.write(t)
	return p
}

func (p *pair) config(t testing.TB) *tls.Config {
	t.Helper()
	c, err := OpenCertificate(p.cert, p.key, discard)
	if err != nil {
		t.Fatal(err)
	}
	return c.Config()
}

func (p *pair) client() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.pool}, MaxIdleConnsPerHost: 16}}
}

// TestManyClients has 200 clients pull at once over TLS. All bytes have to be right, and
// what the server holds for each of them has to be small. Both ends are in this process, so
// only what is live counts.
func TestManyClients(t *testing.T) {
	const clients = 200
	b := newBuilder(t)
	var blobs []digest.Digest
	for i := range 8 {
		content := random(uint64(i), 3<<20+i)
		b.image(fmt.Sprintf("r.example/app%d:1", i), b.manifest(ocispec.MediaTypeImageManifest, content))
		blobs = append(blobs, digest.FromBytes(content))
	}
	file := b.open()
	b.content = nil
	p := newPair(t)
	h := New(file, Options{Log: discard, Secured: true, Auth: Basic("u", sha256.Sum256([]byte("p")))})
	// How long 200 handshakes take says nothing about what is tested.
	server := startServer(t, h, p.config(t), func(o *ServeOptions) { o.Patience = time.Hour })
	live := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	// All of them stop in the middle of a blob, which the server cannot know: its buffers
	// are those of 200 slow clients.
	var middle, done sync.WaitGroup
	goOn := make(chan struct{})
	middle.Add(clients)
	before := live()
	for i := range clients {
		done.Go(func() {
			c := p.client()
			defer c.CloseIdleConnections()
			arrive := sync.OnceFunc(middle.Done)
			defer arrive()
			d := blobs[i%len(blobs)]
			r, err := http.NewRequestWithContext(t.Context(), "GET",
				server.url+fmt.Sprintf("/v2/app%d/blobs/%s", i%len(blobs), d), nil)
			if err != nil {
				t.Error(err)
				return
			}
			r.SetBasicAuth("u", "p")
			response, err := c.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			h := sha256.New()
			if _, err := io.CopyN(h, response.Body, 1000); err != nil {
				t.Error(err)
				return
			}
			arrive()
			<-goOn
			if _, err := io.Copy(h, response.Body); err != nil {
				t.Error(err)
			}
			if got := digest.NewDigest(digest.SHA256, h); got != d || response.StatusCode != 200 {
				t.Errorf("status %d, %s instead of %s", response.StatusCode, got, d)
			}
		})
	}
	middle.Wait()
	during := live()
	close(goOn)
	done.Wait()
	each := (int64(during) - int64(before)) / clients
	t.Logf("%d KiB for each client, both ends", each>>10)
	// A whole blob has 3 MiB; the clients' part is about half of this.
	if each > 400<<10 {
		t.Errorf("%d KiB are held for each client", each>>10)
	}
}

// TestStrangersKeepNobodyOut fills the server with connections over which nothing is said.
// Who has the password is served all the same, and is not cut off when more of them come.
func TestStrangersKeepNobodyOut(t *testing.T) {
	content := random(4, 24<<20)
	p := newPair(t)
	auth := Basic("u", sha256.Sum256([]byte("p")))
	server := startServer(t, New(small(t, "r.example/app:1", content).open(), Options{Log: discard, Auth: auth}),
		p.config(t))
	fill := func() {
		for range maxConnections + 1 {
			c, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	fill()
	r, err := http.NewRequestWithContext(t.Context(), "GET",
		server.url+"/v2/app/blobs/"+digest.FromBytes(content).String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.SetBasicAuth("u", "p")
	client := p.client()
	defer client.CloseIdleConnections()
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	fill()
	got, err := io.ReadAll(response.Body)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("status %d, %d bytes of %d: %v", response.StatusCode, len(got), len(content), err)
	}
}

// TestCertificateIsReadAgain renews a certificate under a running server.
func TestCertificateIsReadAgain(t *testing.T) {
	p := newPair(t)
	var log buffer
	c, err := OpenCertificate(p.cert, p.key, lines(&log))
	if err != nil {
		t.Fatal(err)
	}
	server := startServer(t, New(newSample(t).open(), Options{Log: discard}), c.Config())
	shown := func() string {
		t.Helper()
		d := &tls.Dialer{Config: &tls.Config{RootCAs: p.pool}}
		c, err := d.DialContext(t.Context(), "tcp", server.address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		state := c.(*tls.Conn).ConnectionState()
		if state.CurveID != tls.X25519MLKEM768 {
			t.Errorf("the key exchange is %s, which is not post-quantum", state.CurveID)
		}
		return string(state.PeerCertificates[0].Raw)
	}
	first := shown()
	for range 3 {
		if now := p.write(t); shown() != now {
			t.Error("the renewed certificate is not in use")
		}
	}
	last := shown()
	if last == first {
		t.Fatal("nothing was renewed")
	}
	// Half a renewal, a broken one and none at all leave the one before.
	key, err := os.ReadFile(p.key)
	if err != nil {
		t.Fatal(err)
	}
	replace(t, p.key, []byte("no key"))
	for range 3 {
		if shown() != last {
			t.Error("a broken key changed the certificate")
		}
	}
	if err := os.Remove(p.key); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if shown() != last {
			t.Error("a key that is gone changed the certificate")
		}
	}
	if n := strings.Count(log.String(), "cannot read the certificate again"); n != 2 {
		t.Errorf("%d lines in the log, expected 2: %s", n, &log)
	}
	replace(t, p.key, key)
	if shown() != last {
		t.Error("the certificate did not come back")
	}
}

func TestCertificateErrors(t *testing.T) {
	a, b := newPair(t), newPair(t)
	for _, test := range []struct{ name, cert, key, want string }{
		{"no file", a.cert + "x", a.key, "no such file"},
		{"not a pair", a.cert, b.key, "does not match"},
		{"wrong order", a.key, a.cert, "failed to find"},
	} {
		_, err := OpenCertificate(test.cert, test.key, discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, expected %q", test.name, err, test.want)
		}
	}
}

// TestGracefulStop ends the server while a pull is under way: it is finished.
func TestGracefulStop(t *testing.T) {
	content := random(3, 24<<20)
	p := newPair(t)
	server := startServer(t, New(small(t, "r.example/app:1", content).open(), Options{Log: discard}), p.config(t))
	response, err := p.client().Get(server.url + "/v2/app/blobs/" + digest.FromBytes(content).String())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.stop()
	}()
	// Nobody new gets in.
	for {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.address)
		if err != nil {
			break
		}
		_ = c.Close()
		time.Sleep(time.Millisecond)
	}
	got, err := io.ReadAll(response.Body)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes of %d: %v", len(got), len(content), err)
	}
	<-stopped
}

// TestStopDoesNotWaitForSlowClients has one that reads nothing.
func TestStopDoesNotWaitForSlowClients(t *testing.T) {
	content := random(3, 24<<20)
	p := newPair(t)
	server := startServer(t, New(small(t, "r.example/app:1", content).open(), Options{Log: discard}), p.config(t),
		func(o *ServeOptions) { o.Grace = 50 * time.Millisecond })
	response, err := p.client().Get(server.url + "/v2/app/blobs/" + digest.FromBytes(content).String())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	server.stop()
	if n, err := io.Copy(io.Discard, response.Body); err == nil {
		t.Errorf("%d bytes came although the server was stopped", n)
	}
}

// TestFileBecomesShorter cuts a file off under the server. The client has to notice that
// the answer is not whole, and nothing may be put in the place of what is missing.
func TestFileBecomesShorter(t *testing.T) {
	content := random(9, 3<<20)
	path := filepath.Join(t.TempDir(), "layout.tar")
	small(t, "r.example/app:1", content).write(path)
	file, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var log buffer
	p := newPair(t)
	server := startServer(t, New(file, Options{Log: lines(&log)}), p.config(t))
	if err := os.Truncate(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	d := digest.FromBytes(content)
	response, err := p.client().Get(server.url + "/v2/app/blobs/" + d.String())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.HasPrefix(content, got) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	server.stop()
	if !strings.Contains(log.String(), "level=ERROR") ||
		!strings.Contains(log.String(), "read blob "+d.String()+": unexpected EOF") {
		t.Errorf("the log does not say what happened: %s", &log)
	}
}

// TestBodiesAreNotRead sends more than anybody wants.
func TestBodiesAreNotRead(t *testing.T) {
	server := startServer(t, New(newSample(t).open(), Options{Log: discard}), nil)
	var sent atomic.Int64
	endless := readerFunc(func(b []byte) (int, error) {
		sent.Add(int64(len(b)))
		return len(b), nil
	})
	r, err := http.NewRequestWithContext(t.Context(), "PATCH", server.url+"/v2/library/ubuntu/blobs/uploads/1", endless)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Logf("the connection was cut: %v", err) // as good an answer
		return
	}
	defer response.Body.Close()
	if response.StatusCode != 405 || !response.Close {
		t.Errorf("status %d, close %v", response.StatusCode, response.Close)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// TestHandshakeLog has clients that do not trust the certificate: they are told of, but not
// as often as they like.
func TestHandshakeLog(t *testing.T) {
	p := newPair(t)
	var log buffer
	server := startServer(t, New(newSample(t).open(), Options{Log: discard}), p.config(t),
		func(o *ServeOptions) { o.Log = lines(&log) })
	for range 3 * maxHandshakeLines {
		d := &tls.Dialer{Config: &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}}
		if c, err := d.DialContext(t.Context(), "tcp", server.address); err == nil {
			_ = c.Close()
			t.Fatal("the client trusts what it cannot trust")
		}
	}
	// Who only looks whether there is anything is not worth a line.
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.address)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	server.stop()
	if n := strings.Count(log.String(), "TLS handshake failed"); n != maxHandshakeLines {
		t.Errorf("%d lines, expected %d: %s", n, maxHandshakeLines, &log)
	}
	if !strings.Contains(log.String(), "bad certificate") && !strings.Contains(log.String(), "unknown certificate") {
		t.Errorf("the log does not say why: %s", &log)
	}
}
