package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Host is one SSH connection to a node. Its methods may be used from several goroutines
// at once; sshd allows ten commands at a time unless told otherwise (MaxSessions), and SFTP,
// once it was used, counts as one.
type Host struct {
	target      Target
	client      *ssh.Client
	conn        *watchedConn
	fingerprint string
	firstUse    bool
	done        chan struct{} // closed when the connection has ended

	elevate   elevation
	subsystem subsystem
}

// Dial connects, checks the host's key and logs in. ctx and ConnectTimeout bound Dial
// only; Close ends the connection. Errors match ErrUnreachable, ErrHandshake,
// ErrAuthentication, ErrHostKeyUnknown, ErrHostKeyChanged, ErrHostKeyRevoked,
// ErrKnownHosts, ErrIdentity or ErrAgent and have a hint, except for a target that makes
// no sense and for the end of ctx.
func Dial(ctx context.Context, t Target) (*Host, error) {
	keys, err := newHostKeyCheck(t)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(t.connectTimeout())
	var refused error // the key that the host showed last
	for {
		h, err := dialOnce(ctx, t, keys, deadline)
		var noMoreKeys *ssh.AlgorithmNegotiationError
		switch {
		case errors.Is(err, ErrHostKeyChanged) && keys.again():
			refused = err
			continue
		case refused != nil && errors.As(err, &noMoreKeys):
			err = refused
		}
		return h, err
	}
}

func dialOnce(ctx context.Context, t Target, keys hostKeyCheck, deadline time.Time) (*Host, error) {
	dialing, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	who, err := newLogin(dialing, t)
	if err != nil {
		return nil, err
	}
	defer who.close()
	dial := t.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	raw, err := dial(dialing, "tcp", t.address())
	if err != nil {
		return nil, dialError(ctx, t, err)
	}
	conn := &watchedConn{Conn: raw}
	// Closing serves where a deadline would not: a tunnelled connection knows none.
	stop := context.AfterFunc(dialing, func() { _ = raw.Close() })
	defer stop()

	h := &Host{target: t, conn: conn, done: make(chan struct{})}
	var keyErr error
	config := &ssh.ClientConfig{
		User:              t.User,
		AuthCallback:      who.next,
		HostKeyAlgorithms: keys.algorithms(),
		HostKeyCallback: func(address string, remote net.Addr, key ssh.PublicKey) error {
			h.fingerprint = ssh.FingerprintSHA256(key)
			keyErr = keys.check(address, remote, key)
			return keyErr
		},
	}
	c, channels, requests, err := ssh.NewClientConn(conn, t.address(), config)
	if err != nil {
		switch {
		case ctx.Err() != nil:
			return nil, fault.OnHost(fmt.Errorf("connect to %s: %w", t.address(), context.Cause(ctx)), t.name())
		case keyErr != nil:
			return nil, keyErr
		case dialing.Err() != nil:
			return nil, hostError(t.name(), ErrUnreachable,
				fmt.Errorf("%s accepted the connection, but login was not done within %s", t.address(),
					t.connectTimeout()),
				fmt.Sprintf("the host may be overloaded or hanging; try: ssh -v -p %d %s", t.port(), t.Host))
		case who.started && !broken(err):
			return nil, who.failure(err)
		}
		return nil, handshakeError(t, err)
	}
	if !stop() {
		return nil, errors.Join(dialError(ctx, t, context.Cause(dialing)), c.Close())
	}
	if known, ok := keys.(*knownKeys); ok {
		h.firstUse = known.accepted
	}
	h.client = ssh.NewClient(c, channels, requests)
	go func() {
		_ = h.client.Wait() // the reason is in conn.failure
		close(h.done)
	}()
	go h.keepAlive(t.keepAlive())
	return h, nil
}

func dialError(ctx context.Context, t Target, err error) error {
	if ctx.Err() != nil {
		return fault.OnHost(fmt.Errorf("connect to %s: %w", t.address(), context.Cause(ctx)), t.name())
	}
	var dns *net.DNSError
	var timeout net.Error
	hint := "check the address, the network and the host's firewall"
	switch {
	case errors.As(err, &dns):
		hint = "check the host's name, or give its address"
	case errors.Is(err, syscall.ECONNREFUSED):
		hint = fmt.Sprintf("the host is up, but nothing listens on port %d: is sshd running, and on this port?",
			t.port())
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		hint = "no route to the host: is it powered on, and is the address right?"
	case errors.As(err, &timeout) && timeout.Timeout():
		hint = "no answer: is the host powered on, is the address right, does a firewall drop the packets?"
	}
	return hostError(t.name(), ErrUnreachable, err, hint)
}

// broken says that the connection failed rather than what was said on it.
func broken(err error) bool {
	var netErr net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &netErr)
}

// handshakeError explains a connection that was made and then came to nothing.
func handshakeError(t Target, err error) error {
	var noCommon *ssh.AlgorithmNegotiationError
	switch {
	case errors.As(err, &noCommon):
		return hostError(t.name(), ErrHandshake, fmt.Errorf("%s: %w", t.address(), err),
			"the host's sshd is too old or too strict: "+
				"see HostKeyAlgorithms, KexAlgorithms, Ciphers and MACs in its sshd_config")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return hostError(t.name(), ErrHandshake, fmt.Errorf("%s closed the connection: %w", t.address(), err),
			"sshd turns connections away when it is short of slots (MaxStartups) or bars the address; "+
				"see the host's journal: journalctl -u ssh")
	}
	return hostError(t.name(), ErrHandshake, fmt.Errorf("%s: %s", t.address(), printable.Line(err.Error())),
		"does an SSH server listen on this port?")
}

// Name returns what messages call the host.
func (h *Host) Name() string { return h.target.name() }

// HostKey returns the fingerprint of the host's key, "SHA256:…", and whether this
// connection was the one that first trusted it.
func (h *Host) HostKey() (fingerprint string, firstUse bool) { return h.fingerprint, h.firstUse }

// Done is closed when the connection has ended, by Close or otherwise.
func (h *Host) Done() <-chan struct{} { return h.done }

// Close ends the connection and with it all that runs over it. Closing twice is fine.
func (h *Host) Close() error {
	h.conn.fail(net.ErrClosed)
	// The socket is closed, not the SSH connection: the latter would first say goodbye,
	// and that waits for ever when the host is gone and the send buffer full.
	if err := h.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fault.OnHost(fmt.Errorf("close connection: %w", err), h.Name())
	}
	return nil
}

// DialContext opens a connection to addr as seen from the host: network is "tcp",
// "tcp4", "tcp6" or "unix". ctx bounds the opening only.
func (h *Host) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := h.client.DialContext(ctx, network, addr)
	if err != nil {
		return nil, fault.OnHost(fmt.Errorf("connect from there to %s: %w", addr, h.orLost(err)), h.Name())
	}
	return conn, nil
}

// orLost turns an error that came up because the connection broke into that.
func (h *Host) orLost(err error) error {
	cause := h.conn.failure()
	if cause == nil {
		return err
	}
	hint := "the host may have gone down or been restarted; run the command again when it is back"
	if errors.Is(cause, net.ErrClosed) {
		hint = "the connection was closed on this side"
	}
	return hostError(h.Name(), ErrConnectionLost, cause, hint)
}

// keepAlive gives the connection up when nothing has come from the host for three
// intervals although it was asked. Any byte is a sign of life, not just the answer:
// on a slow link the question may wait behind megabytes of upload.
func (h *Host) keepAlive(interval time.Duration) {
	const patience = 3
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var asking atomic.Bool
	heard, missed := h.conn.received.Load(), 0
	for {
		select {
		case <-h.done:
			return
		case <-ticker.C:
		}
		if now := h.conn.received.Load(); now != heard {
			heard, missed = now, 0
			continue
		}
		if missed == patience {
			h.conn.fail(fmt.Errorf("no sign of life for %s", time.Duration(patience+1)*interval))
			_ = h.conn.Close() // the failure above is what counts
			return
		}
		missed++
		if asking.CompareAndSwap(false, true) {
			go func() {
				// An answer is counted by conn, an error is noticed by everybody else.
				_, _, _ = h.client.SendRequest("keepalive@openssh.com", true, nil)
				asking.Store(false)
			}()
		}
	}
}

// watchedConn counts what comes in and keeps the first failure, which says more than
// what the layers above make of it.
type watchedConn struct {
	net.Conn
	received atomic.Int64

	mu    sync.Mutex
	cause error
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	c.fail(err)
	return n, err
}

func (c *watchedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.fail(err)
	return n, err
}

func (c *watchedConn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.cause = err
	}
}

func (c *watchedConn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}
