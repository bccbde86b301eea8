// Package balancer passes TCP connections on to one of several servers, and
// closes them when their server stops answering, so that clients connect anew
// and reach another one.
package balancer

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	dialTimeout   = 3 * time.Second
	checkInterval = 2 * time.Second
)

// Balancer holds the servers' addresses. Make one with New.
type Balancer struct {
	mu      sync.Mutex
	servers []string // the first is tried first
	conns   map[net.Conn]string
	changed func(servers []string)
}

// New makes a balancer for servers, each host:port. changed, which may be nil,
// is called with the list whenever Set changes it.
func New(servers []string, changed func([]string)) *Balancer {
	return &Balancer{servers: slices.Clone(servers), conns: map[net.Conn]string{}, changed: changed}
}

// Servers lists the servers, the one to be tried first in front.
func (b *Balancer) Servers() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.servers)
}

// Set replaces the servers. The one in use stays in front, if it is among them.
func (b *Balancer) Set(servers []string) {
	b.mu.Lock()
	old := slices.Clone(b.servers)
	next := slices.Clone(servers)
	if len(b.servers) > 0 {
		if i := slices.Index(next, b.servers[0]); i > 0 {
			next = slices.Insert(slices.Delete(next, i, i+1), 0, b.servers[0])
		}
	}
	b.servers = next
	b.mu.Unlock()
	slices.Sort(old)
	sorted := slices.Sorted(slices.Values(next))
	if b.changed != nil && !slices.Equal(old, sorted) {
		b.changed(next)
	}
}

// Serve passes connections on until the context is done.
func (b *Balancer) Serve(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	go b.check(ctx)
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		go b.pass(ctx, conn)
	}
}

// dial tries the servers in turn, and moves one that does not answer to the end.
func (b *Balancer) dial(ctx context.Context) (net.Conn, string, error) {
	var errs []error
	for _, server := range b.Servers() {
		dialer := net.Dialer{Timeout: dialTimeout}
		conn, err := dialer.DialContext(ctx, "tcp", server)
		if err == nil {
			return conn, server, nil
		}
		errs = append(errs, err)
		b.demote(server)
	}
	return nil, "", errors.Join(errs...)
}

func (b *Balancer) demote(server string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.servers, server); i >= 0 {
		b.servers = append(slices.Delete(b.servers, i, i+1), server)
	}
}

func (b *Balancer) pass(ctx context.Context, client net.Conn) {
	defer func() { _ = client.Close() }()
	server, name, err := b.dial(ctx)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	b.mu.Lock()
	b.conns[client] = name
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.conns, client)
		b.mu.Unlock()
	}()
	done := make(chan struct{}, 2)
	copyTo := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // ends when either side does
		if tcp, ok := to.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
		done <- struct{}{}
	}
	go copyTo(server, client)
	go copyTo(client, server)
	<-done
	select {
	case <-done:
	case <-time.After(time.Minute): // half closed
	}
}

// check closes the connections of a server that has not answered twice running.
func (b *Balancer) check(ctx context.Context) {
	failures := map[string]int{}
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		b.mu.Lock()
		used := map[string]bool{}
		for _, name := range b.conns {
			used[name] = true
		}
		b.mu.Unlock()
		for name := range used {
			dialer := net.Dialer{Timeout: dialTimeout}
			conn, err := dialer.DialContext(ctx, "tcp", name)
			if err == nil {
				_ = conn.Close()
				failures[name] = 0
				continue
			}
			if failures[name]++; failures[name] >= 2 {
				b.demote(name)
				b.closeAll(name)
			}
		}
	}
}

func (b *Balancer) closeAll(server string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for conn, name := range b.conns {
		if name == server {
			_ = conn.Close()
		}
	}
}
