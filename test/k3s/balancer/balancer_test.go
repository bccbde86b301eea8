package balancer

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// named listens, and tells every client its name.
func named(t *testing.T, name string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, name)
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestBalancer(t *testing.T) {
	a, b := named(t, "a"), named(t, "b")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	changes := 0
	lb := New([]string{a.Addr().String()}, func([]string) { changes++ })
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- lb.Serve(ctx, l) }()
	ask := func() (net.Conn, string) {
		t.Helper()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		name := make([]byte, 1)
		if _, err := io.ReadFull(conn, name); err != nil {
			t.Fatal(err)
		}
		return conn, string(name)
	}
	both := []string{b.Addr().String(), a.Addr().String()}
	lb.Set(both)
	lb.Set(both)
	if changes != 1 {
		t.Errorf("%d changes reported, want 1", changes)
	}
	old, name := ask()
	if name != "a" {
		t.Errorf("%s answers: the server in use is not the first to be tried", name)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, name := ask(); name != "b" {
		t.Errorf("%s answers after a has gone", name)
	}
	// a accepts no more; connections to it are closed, though a itself keeps them open.
	if _, err := old.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection to a server that is gone ends with %v", err)
	}
	if got := lb.Servers(); got[0] != b.Addr().String() || !slices.Contains(got, a.Addr().String()) {
		t.Errorf("servers are %v", got)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
