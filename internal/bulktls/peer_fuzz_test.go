package bulktls_test

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/internal/bulktls"
	"github.com/liteboxd/boxlift/test/certificate"
)

// pipes is a listener for connections within this process.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) { return <-p, nil }
func (pipes) Addr() net.Addr              { return &net.TCPAddr{} }
func (pipes) Close() error                { return nil }

// FuzzPeer lets anybody speak to a listener. It reads to the end of that, answers what it can, and goes.
func FuzzPeer(f *testing.F) {
	cert, key, err := certificate.New()
	if err != nil {
		f.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), true)
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), false)
	f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"), true)
	f.Add([]byte("\x15\x03\x03\x00\x02\x02\x28"), true)
	f.Add(hello(f), true)
	f.Fuzz(func(t *testing.T, says []byte, secured bool) {
		failures := 0
		o := bulktls.Options{MaxConnections: 1, MaxUnauthenticated: 1, ChunkTimeout: time.Minute, HandshakeFailed: func(net.Addr, error) { failures++ }}
		if secured {
			o.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, DynamicRecordSizingDisabled: true}
		}
		inner := make(pipes)
		listener := bulktls.NewListener(inner, o)
		// The second finds room: what the first was counted for is gone with it.
		for range 2 {
			here, there := net.Pipe()
			go func() {
				inner <- there
				go func() { _, _ = io.Copy(io.Discard, here) }() // what it answers
				_, _ = here.Write(says)                          // it may have hung up before
				_ = here.Close()
			}()
			c, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			failures = 0
			heard, readErr := io.ReadAll(c)
			if !secured && (readErr != nil || string(heard) != string(says)) {
				t.Errorf("%q was said, %q was heard, %v", says, heard, readErr)
			}
			if secured && (len(heard) > 0 || failures != 1) {
				t.Errorf("without a key, %q was heard, and %d handshakes failed", heard, failures)
			}
			if secured {
				if _, err := c.Write([]byte("x")); err == nil {
					t.Error("it wrote to a peer that has no keys")
				}
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// hello is how a client begins.
func hello(f *testing.F) []byte {
	f.Helper()
	here, there := net.Pipe()
	go func() {
		_ = tls.Client(there, &tls.Config{ServerName: "a", MinVersion: tls.VersionTLS13}).Handshake() // nobody answers
	}()
	said := make([]byte, 16<<10)
	n, err := here.Read(said)
	if err != nil {
		f.Fatal(err)
	}
	_ = here.Close()
	return said[:n]
}
