package main

import (
	"context"
	"io"
	"net"
	"testing"
)

// Bytes go both ways, and each way ends by itself.
func TestForward(t *testing.T) {
	target, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Close() }() // nothing is lost
	go func() {
		c, err := target.Accept()
		if err != nil {
			return // the test is over
		}
		defer func() { _ = c.Close() }()               // all was sent
		asked, _ := io.ReadAll(c)                      // ends although the answer is still to come
		_, _ = io.WriteString(c, "got "+string(asked)) // the test sees it
	}()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- accept(ctx, listener, target.Addr().String()) }()
	c, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }() // only read from here on
	if _, err := io.WriteString(c, "this"); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(c); err != nil || string(answer) != "got this" {
		t.Errorf("%q, %v", answer, err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("it goes on without a listener")
	}
}

func TestUsage(t *testing.T) {
	if err := run(t.Context(), []string{"127.0.0.1"}); err == nil {
		t.Error("no port was fine")
	}
}
