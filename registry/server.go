package registry

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/internal/bulktls"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Bounds of what clients may take.
const (
	maxConnections = 1024
	// maxStrangers is how many connections from one address may be open over which nobody
	// has shown credentials so far. Several nodes may be behind one address.
	maxStrangers = 256
	// maxHeader is the largest request in bytes; net/http adds 4 KiB.
	maxHeader = 12 << 10
	// requestTimeout is for TLS' handshake and for a request, answerTimeout for each buffer
	// of the answer.
	requestTimeout = 10 * time.Second
	answerTimeout  = 30 * time.Second
	// keepTimeout is how long a connection may wait for its next request.
	keepTimeout = 90 * time.Second
	// maxHandshakeLines is how many failed handshakes the log has in a minute: anybody on
	// the network can bring them about.
	maxHandshakeLines = 10
)

// ServeOptions say how to serve.
type ServeOptions struct {
	// TLS is how connections are secured; nil means that they are not.
	TLS *tls.Config
	// Grace is how long requests that are being answered may go on when ctx ends.
	Grace time.Duration
	Log   *slog.Logger
	// Patience is what clients may take for a request, and for each buffer of the answer, if
	// that is not 0: tests with many clients on a busy machine are slower than any client may be.
	Patience time.Duration
}

// Serve answers on the listener, which it closes, until ctx ends. Then it ends what can be
// ended in the time that is given for it, and cuts off the rest. The error is that of
// listening; one caused by ctx is none.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, o ServeOptions) error {
	s := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: cmp.Or(o.Patience, requestTimeout), WriteTimeout: cmp.Or(o.Patience, answerTimeout),
		IdleTimeout: keepTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(io.Discard, "", 0), // anybody on the network could fill it
	}
	fresh := freshConns{conns: make(map[net.Conn]bool)}
	s.ConnState, s.ConnContext = fresh.follow, bulktls.ConnContext
	shakes := handshakeLog{log: o.Log}
	bulk := bulktls.NewListener(listener, bulktls.Options{
		TLS: o.TLS, MaxConnections: maxConnections, MaxUnauthenticated: maxStrangers,
		ChunkTimeout: cmp.Or(o.Patience, answerTimeout), HandshakeFailed: shakes.failed,
	})
	served := make(chan error, 1)
	go func() { served <- s.Serve(bulk) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.Grace)
	defer cancel()
	fresh.close()
	err := s.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.Close()
	}
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// freshConns are connections that nothing was asked over so far. Clients keep some in
// reserve, and net/http would wait for them for seconds when it ends.
type freshConns struct {
	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
}

func (f *freshConns) follow(c net.Conn, state http.ConnState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(f.conns, c)
	case f.closed:
		_ = c.Close()
	default:
		f.conns[c] = true
	}
}

func (f *freshConns) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for c := range f.conns {
		_ = c.Close()
	}
}

// handshakeLog tells of clients that do not come as far as a request: they do not trust
// the certificate, or have the wrong time.
type handshakeLog struct {
	log *slog.Logger

	mu    sync.Mutex
	since time.Time
	lines int
}

func (h *handshakeLog) failed(peer net.Addr, err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		return // somebody only looked whether there is anything
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); now.Sub(h.since) > time.Minute {
		h.since, h.lines = now, 0
	}
	if h.lines++; h.lines > maxHandshakeLines {
		return
	}
	h.log.Warn("TLS handshake failed", "from", peer.String(), "error", printable.Short(err.Error(), 2*maxLoggedPath))
}
