// Package bulktls listens for connections over which much is sent: contents of many GiB,
// to many peers at a time, from a process that has little memory. With TLS and without,
// its connections
//
//   - hand the records of one Write to the kernel together, since each of them alone, of
//     16 KiB, would cost a system call and, worse, a pass through TCP;
//   - copy from a reader (they are [io.ReaderFrom], which net/http makes use of) with
//     buffers that all connections of a listener share: large ones as long as there are
//     any, small ones beyond, so that memory grows slowly with the number of peers;
//   - give up a peer that takes too long for one buffer;
//   - go without a word when they are closed: what is sent over them has to say by itself
//     where it ends, and a peer that reads nothing does not hold anything up.
//
// It serves both the nodes that hand on packs to each other and the registry.
package bulktls

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// recordSize is the most that one TLS record carries, in bytes.
	recordSize = 16 << 10
	// largeChunk is the size of a large buffer, largeChunks how many there are.
	largeChunk  = 128 << 10
	largeChunks = 16
	// sealing is more than what TLS adds to a record, in bytes.
	sealing = 64
)

// Options say how to listen.
type Options struct {
	// TLS is how connections are secured; nil means that they are not. Records of full
	// size serve best: DynamicRecordSizingDisabled.
	TLS *tls.Config
	// MaxConnections is how many connections may be open at a time. For one more, the oldest
	// that is not [Authenticated] is closed; if there is none, the new one, which is seen by
	// who makes it and then goes elsewhere. When three quarters are open, those that are not
	// authenticated after 2 seconds are closed as well, as others come.
	MaxConnections int
	// MaxUnauthenticated is how many connections from one address may be open that are not
	// authenticated; for one more, the oldest of them is closed. 0 means any number.
	MaxUnauthenticated int
	// ChunkTimeout is how long a peer may take for one buffer of what ReadFrom sends; 0
	// means for ever.
	ChunkTimeout time.Duration
	// HandshakeFailed, unless nil, is called when a peer and this side could not agree on
	// how to talk. Anybody on the network can bring that about, as often as they like.
	HandshakeFailed func(peer net.Addr, err error)
}

// NewListener accepts from inner. Closing it closes inner and no connections.
func NewListener(inner net.Listener, o Options) net.Listener {
	return &listener{
		Listener: inner, options: o,
		admission: newAdmission(o.MaxConnections, o.MaxUnauthenticated),
		large:     make(chan *chunk, largeChunks),
		small:     sync.Pool{New: func() any { return &chunk{plain: make([]byte, recordSize)} }},
		left:      largeChunks,
	}
}

type listener struct {
	net.Listener
	options   Options
	admission *admission

	// large has the large chunks that were made and are not in use.
	large chan *chunk
	small sync.Pool

	mu sync.Mutex
	// left is how many large chunks may still be made.
	left int
}

// chunk is what one connection needs to send a part of a content.
type chunk struct {
	plain []byte
	// sealed is for the records that plain becomes; small chunks, of one record, need none.
	sealed []byte
}

func (l *listener) take() *chunk {
	select {
	case c := <-l.large:
		return c
	default:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left > 0 {
		l.left--
		return &chunk{plain: make([]byte, largeChunk)}
	}
	c, _ := l.small.Get().(*chunk)
	return c
}

func (l *listener) give(c *chunk) {
	if len(c.plain) == recordSize {
		l.small.Put(c)
		return
	}
	l.large <- c // there is room for all of them
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		g := l.admission.enter(sourceOf(c), time.Now(), func() { _ = c.Close() })
		if g != nil {
			return l.serve(c, g), nil
		}
		_ = c.Close()
	}
}

func (l *listener) serve(c net.Conn, g *guest) net.Conn {
	out := &gatheredConn{Conn: c, free: func() { l.admission.leave(g) }}
	if l.options.TLS == nil {
		return &conn{Conn: out, out: out, listener: l, guest: g}
	}
	secured := tls.Server(out, l.options.TLS)
	s := &conn{Conn: secured, out: out, listener: l, guest: g, secured: true}
	s.handshake = sync.OnceValue(func() error {
		err := secured.HandshakeContext(context.Background()) // deadlines end it
		if err != nil && l.options.HandshakeFailed != nil {
			l.options.HandshakeFailed(c.RemoteAddr(), err)
		}
		return err
	})
	return s
}

// conn is a connection of a listener.
type conn struct {
	net.Conn // what is said to the peer; it ends in out
	out      *gatheredConn
	listener *listener
	guest    *guest
	secured  bool
	// handshake begins TLS, once.
	handshake func() error
}

func (c *conn) Read(b []byte) (int, error) {
	if c.secured {
		if err := c.handshake(); err != nil {
			return 0, err
		}
	}
	return c.Conn.Read(b)
}

func (c *conn) Write(b []byte) (int, error) {
	if !c.secured || len(b) <= recordSize {
		return c.Conn.Write(b)
	}
	chunk := c.listener.take()
	defer c.listener.give(chunk)
	return c.send(b, chunk)
}

// send writes b, with the chunk's memory for what it becomes.
func (c *conn) send(b []byte, chunk *chunk) (int, error) {
	if !c.secured || len(b) <= recordSize || len(chunk.plain) <= recordSize {
		return c.Conn.Write(b)
	}
	if chunk.sealed == nil {
		chunk.sealed = make([]byte, 0, largeChunk+largeChunk/recordSize*sealing)
	}
	c.out.begin(chunk.sealed[:0])
	n, err := c.Conn.Write(b)
	return n, errors.Join(err, c.out.flush())
}

// ReadFrom sends all that src has. It returns src's error or the connection's.
func (c *conn) ReadFrom(src io.Reader) (int64, error) {
	var total int64
	for {
		n, err := c.sendChunk(src)
		total += int64(n)
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// sendChunk sends as much as fits into a buffer. io.EOF means that this was all.
func (c *conn) sendChunk(src io.Reader) (int, error) {
	chunk := c.listener.take()
	defer c.listener.give(chunk)
	n, readErr := src.Read(chunk.plain)
	if n == 0 {
		return 0, readErr
	}
	if timeout := c.listener.options.ChunkTimeout; timeout > 0 {
		if err := c.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
			return 0, err
		}
	}
	if n, err := c.send(chunk.plain[:n], chunk); err != nil {
		return n, err
	}
	return n, readErr
}

// CloseWrite tells the peer that nothing more comes, and leaves it the time to read what
// was sent.
func (c *conn) CloseWrite() error {
	if half, ok := c.out.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close goes without a word.
func (c *conn) Close() error { return c.out.Close() }

// gatheredConn keeps what is written between begin and flush.
type gatheredConn struct {
	net.Conn
	free func()

	mu     sync.Mutex // TLS answers some of what peers send while something is written
	gather bool
	buffer []byte
}

// begin has writes kept in buffer, whose memory is the caller's again after flush.
func (c *gatheredConn) begin(buffer []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gather, c.buffer = true, buffer
}

func (c *gatheredConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gather {
		return c.Conn.Write(b)
	}
	c.buffer = append(c.buffer, b...)
	return len(b), nil
}

func (c *gatheredConn) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.buffer
	c.gather, c.buffer = false, nil
	if len(kept) == 0 {
		return nil
	}
	_, err := c.Conn.Write(kept)
	return err
}

func (c *gatheredConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}
