package bulktls_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	random "math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/liteboxd/boxlift/internal/bulktls"
)

// counted counts the writes that reach the kernel.
type counted struct {
	net.Listener
	writes atomic.Int64
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &countedConn{Conn: c, writes: &l.writes}, nil
}

type countedConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

type site struct {
	inner  *counted
	server net.Listener
	client *tls.Config // nil without TLS
}

// listen serves each connection with do, after it has read one byte.
func listen(t *testing.T, secured bool, o bulktls.Options, do func(net.Conn)) *site {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{inner: &counted{Listener: l}}
	if secured {
		o.TLS, s.client = configs(t)
	}
	s.server = bulktls.NewListener(s.inner, o)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := s.server.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				if _, err := c.Read(make([]byte, 1)); err == nil {
					do(c)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = s.server.Close()
		serving.Wait()
	})
	return s
}

func configs(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"bulk"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(certificate)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, DynamicRecordSizingDisabled: true},
		&tls.Config{RootCAs: pool, ServerName: "bulk"}
}

// dial makes a connection and asks for what it serves.
func (s *site) dial(t *testing.T) (net.Conn, error) {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.server.Addr().String())
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	if s.client != nil {
		c = tls.Client(c, s.client)
	}
	_, err = c.Write([]byte("x"))
	return c, err
}

func content(size int) []byte {
	b := make([]byte, size)
	_, _ = random.NewChaCha8([32]byte{byte(size)}).Read(b) // it never fails
	return b
}

// TestAllBytesArrive sends contents around the sizes of records and buffers, to more peers
// at a time than there are large buffers, from readers of all manners.
func TestAllBytesArrive(t *testing.T) {
	const peers = 24
	sizes := []int{0, 1, 16<<10 - 1, 16 << 10, 16<<10 + 1, 128 << 10, 128<<10 + 1, 700_000}
	for _, secured := range []bool{true, false} {
		for name, send := range map[string]func(net.Conn, []byte) error{
			"ReadFrom": func(c net.Conn, b []byte) error {
				_, err := c.(io.ReaderFrom).ReadFrom(bytes.NewReader(b))
				return err
			},
			"ReadFrom, with the end": func(c net.Conn, b []byte) error {
				_, err := c.(io.ReaderFrom).ReadFrom(iotest.DataErrReader(bytes.NewReader(b)))
				return err
			},
			"ReadFrom, half of what is asked": func(c net.Conn, b []byte) error {
				_, err := c.(io.ReaderFrom).ReadFrom(iotest.HalfReader(bytes.NewReader(b)))
				return err
			},
			"Write": func(c net.Conn, b []byte) error {
				_, err := c.Write(b)
				return err
			},
		} {
			t.Run(fmt.Sprintf("%s, TLS %v", name, secured), func(t *testing.T) {
				var next atomic.Int64
				s := listen(t, secured, bulktls.Options{MaxConnections: peers, ChunkTimeout: time.Minute}, func(c net.Conn) {
					for range sizes {
						if err := send(c, content(sizes[int(next.Add(1))%len(sizes)])); err != nil {
							t.Error(err)
						}
					}
				})
				total := 0
				for _, n := range sizes {
					total += n
				}
				var got atomic.Int64
				var reading sync.WaitGroup
				for range peers {
					c, err := s.dial(t)
					if err != nil {
						t.Fatal(err)
					}
					reading.Go(func() {
						// The connection ends without a word, which is how this side wants it.
						n, err := io.Copy(io.Discard, c)
						if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
							t.Error(err)
						}
						got.Add(n)
					})
				}
				reading.Wait()
				if want := int64(peers * total); got.Load() != want {
					t.Errorf("%d bytes of %d", got.Load(), want)
				}
			})
		}
	}
}

// TestBytesAreRight compares what one peer gets, which TLS does by itself; without it, the
// order of bytes is this package's.
func TestBytesAreRight(t *testing.T) {
	want := content(5<<20 + 3)
	for _, secured := range []bool{true, false} {
		s := listen(t, secured, bulktls.Options{MaxConnections: 1}, func(c net.Conn) {
			if _, err := c.(io.ReaderFrom).ReadFrom(bytes.NewReader(want)); err != nil {
				t.Error(err)
			}
		})
		c, err := s.dial(t)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("TLS %v: wrong bytes, %v", secured, err)
		}
	}
}

// TestRecordsGoTogether counts system calls.
func TestRecordsGoTogether(t *testing.T) {
	const size, chunk = 4 << 20, 128 << 10
	for name, send := range map[string]func(net.Conn) error{
		"ReadFrom": func(c net.Conn) error {
			_, err := c.(io.ReaderFrom).ReadFrom(bytes.NewReader(content(size)))
			return err
		},
		"Write": func(c net.Conn) error {
			var err error
			for b := content(size); len(b) > 0 && err == nil; b = b[chunk:] {
				_, err = c.Write(b[:chunk])
			}
			return err
		},
	} {
		var s *site
		var before int64
		s = listen(t, true, bulktls.Options{MaxConnections: 1}, func(c net.Conn) {
			before = s.inner.writes.Load()
			if err := send(c); err != nil {
				t.Error(err)
			}
		})
		c, err := s.dial(t)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.CopyN(io.Discard, c, size); err != nil {
			t.Fatalf("%s: %d bytes: %v", name, n, err)
		}
		if got := s.inner.writes.Load() - before; got != size/chunk {
			t.Errorf("%s: %d writes, expected %d", name, got, size/chunk)
		}
	}
}

// TestSlowPeersAreGivenUp has one that reads nothing.
func TestSlowPeersAreGivenUp(t *testing.T) {
	for _, secured := range []bool{true, false} {
		result := make(chan error, 1)
		s := listen(t, secured, bulktls.Options{MaxConnections: 1, ChunkTimeout: 50 * time.Millisecond}, func(c net.Conn) {
			_, err := c.(io.ReaderFrom).ReadFrom(endless{})
			result <- err
		})
		c, err := s.dial(t)
		if err != nil {
			t.Fatal(err)
		}
		if secured {
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // it does its part of the handshake
				t.Fatal(err)
			}
		}
		if err := <-result; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("TLS %v: %v", secured, err)
		}
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// TestErrorsOfTheSource end what is sent, and are told.
func TestErrorsOfTheSource(t *testing.T) {
	broken := errors.New("broken")
	result := make(chan error, 1)
	s := listen(t, true, bulktls.Options{MaxConnections: 1}, func(c net.Conn) {
		n, err := c.(io.ReaderFrom).ReadFrom(io.MultiReader(bytes.NewReader(content(300_000)), iotest.ErrReader(broken)))
		if n != 300_000 {
			t.Errorf("%d bytes", n)
		}
		result <- err
	})
	c, err := s.dial(t)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := io.Copy(io.Discard, c); n != 300_000 {
		t.Errorf("%d bytes came", n)
	}
	if err := <-result; !errors.Is(err, broken) {
		t.Error(err)
	}
}

// TestConnectionsAreLimited has authenticated connections, of which one more than may be is
// refused until another is closed, and others, the oldest of which makes room.
func TestConnectionsAreLimited(t *testing.T) {
	for _, secured := range []bool{true, false} {
		release, known := make(chan struct{}), make(chan bool, 1)
		s := listen(t, secured, bulktls.Options{MaxConnections: 2}, func(c net.Conn) {
			if <-known {
				bulktls.Authenticated(bulktls.ConnContext(context.Background(), c))
			}
			if _, err := c.Write([]byte("y")); err != nil {
				t.Error(err)
			}
			<-release
		})
		dial := func(authenticated bool) (net.Conn, bool) {
			known <- authenticated
			c, err := s.dial(t)
			if err == nil {
				_, err = io.ReadFull(c, make([]byte, 1))
			}
			if err != nil {
				<-known // nobody served it
			}
			return c, err == nil
		}
		first, ok := dial(false)
		if _, also := dial(false); !ok || !also {
			t.Fatal("two are not served")
		}
		if _, ok := dial(true); !ok {
			t.Error("the third is not served")
		}
		if _, err := io.ReadFull(first, make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the oldest is still there: %v", err)
		}
		if _, ok := dial(true); !ok {
			t.Error("the fourth is not served")
		}
		for range 2 {
			if _, ok := dial(true); ok {
				t.Error("one more is served than may be")
			}
		}
		close(release)
		for ok := false; !ok; _, ok = dial(true) {
			time.Sleep(time.Millisecond) // its end is not ours to see
		}
	}
}

// TestHandshakeFailed tells of a client that does not trust the certificate, and of one
// that speaks something else.
func TestHandshakeFailed(t *testing.T) {
	failed := make(chan error, 2)
	s := listen(t, true, bulktls.Options{MaxConnections: 9, HandshakeFailed: func(peer net.Addr, err error) {
		if peer.Network() != "tcp" {
			t.Errorf("peer %v", peer)
		}
		failed <- err
	}}, func(net.Conn) { t.Error("it was served") })
	right := s.client
	s.client = &tls.Config{ServerName: "other", RootCAs: right.RootCAs}
	if _, err := s.dial(t); err == nil {
		t.Error("a client trusts a certificate for another name")
	}
	if err := <-failed; err == nil {
		t.Error("no error")
	}
	s.client = nil
	c, err := s.dial(t)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.As(err, new(tls.RecordHeaderError)) {
		t.Error(err)
	}
}
