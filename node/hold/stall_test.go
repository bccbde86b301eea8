package hold_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/node/hold"
	"github.com/liteboxd/boxlift/test/certificate"
	"github.com/liteboxd/boxlift/test/nodelab"
)

// Connections from other hosts wait as long as the API server is started again, and succeed
// then. Those from the host itself go on.
func TestStall(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l := nodelab.NewNetwork(ctx, t, "stall", 1)
	h := l.Hosts[0]
	run := func(args ...string) (stdin io.WriteCloser, stdout *bufio.Reader, wait func() error) {
		t.Helper()
		c := l.OperatorCommand(ctx, "ssh",
			append([]string{"-F", "none", "-i", l.KeyFile(), "-l", "root", "-o", "BatchMode=yes",
				"-o", "UserKnownHostsFile=" + l.Known, h.Address.String()}, args...)...)
		stdin, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		c.Stderr = &stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return stdin, bufio.NewReader(out), func() error {
			if err := c.Wait(); err != nil {
				return errors.Join(err, errors.New(stderr.String()))
			}
			return nil
		}
	}
	api := net.JoinHostPort(h.Address.String(), "6443")
	connect := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		conn, err := l.Dial(ctx, "tcp", api)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	// Something that accepts connections.
	server, answers, served := run("systemd-socket-activate", "-l", "0.0.0.0:6443", "-a", "/bin/true", "2>&1")
	if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, "isten") {
		t.Fatalf("%q, %v", line, err)
	}
	defer func() {
		_, _ = h.Exec(ctx, "pkill", "-f", "systemd-socket-activate") // may have ended
		_ = server.Close()
		_ = served()
	}()
	if err := connect(10 * time.Second); err != nil {
		t.Fatal(err)
	}

	stdin, stdout, wait := run("/"+nodelab.Helper, "stall")
	if err := hold.AskStall(stdout); err != nil {
		t.Fatalf("%v, %v", err, wait())
	}
	if err := connect(1500 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) &&
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a connection while connections wait: %v", err)
	}
	if out, err := h.Exec(ctx, "/"+nodelab.Helper, "probe", "-tcp", "127.0.0.1:6443"); err != nil ||
		!bytes.Contains(out, []byte(`"state":"ok"`)) {
		t.Errorf("from the host itself: %s, %v", out, err)
	}
	late := make(chan error, 1)
	go func() { late <- connect(time.Minute) }()
	if err := connect(500 * time.Millisecond); err == nil {
		t.Error("a connection did not wait")
	}
	if err := errors.Join(stdin.Close(), wait()); err != nil {
		t.Error(err)
	}
	if err := <-late; err != nil {
		t.Errorf("the connection that waited: %v", err)
	}
	if err := connect(10 * time.Second); err != nil {
		t.Error(err)
	}
}

// It is over when the server was away and is ready again.
func TestAwaitRestart(t *testing.T) {
	certPEM, keyPEM, err := certificate.New()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"server-ca.crt": certPEM, "client-admin.crt": certPEM,
		"client-admin.key": keyPEM} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	var asked, status atomic.Int64
	status.Store(http.StatusOK)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || len(r.TLS.PeerCertificates) == 0 {
			t.Errorf("asked for %s with %d certificates", r.URL, len(r.TLS.PeerCertificates))
		}
		w.WriteHeader(int(status.Load()))
		asked.Add(1)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert,
		MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		hold.AwaitRestart(ctx, hold.StallOptions{Port: uint16(server.Listener.Addr().(*net.TCPAddr).Port), TLSDir: dir})
		close(ended)
	}()
	often := func() { // asked twice more, so that one request came after the status was set
		for before := asked.Load(); asked.Load() < before+2; time.Sleep(10 * time.Millisecond) {
			select {
			case <-ended:
				t.Fatal("it is over already")
			default:
			}
		}
	}
	often()
	status.Store(http.StatusServiceUnavailable)
	often()
	status.Store(http.StatusOK)
	<-ended
	if ctx.Err() != nil {
		t.Error("it went on until it was told to end")
	}
}
