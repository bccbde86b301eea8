package edge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Server serves HTTP until it is told to end, and then drains: from then on every path but
// /health and /readyz answers 503; after Settle, what runs may finish within Timeout, and
// after that the tracked WebSockets once more within Timeout.
type Server struct {
	Handler      http.Handler
	WriteTimeout time.Duration // bounds every answer that is no WebSocket; 0 for none
	Timeout      time.Duration
	Settle       time.Duration // 2 s in the real programs
	// NotReady is a reason for /readyz to answer 503 that does not pass; empty for none.
	NotReady string
	Log      *slog.Logger

	draining atomic.Bool
	sessions sessions
}

// Settle is how long a draining server waits before it stops to listen.
const Settle = 2 * time.Second

// Run serves until ctx ends, and returns when all is drained or the time for it is over.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: 10 * time.Second,
		WriteTimeout:      s.WriteTimeout,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	s.Log.Info("listening", "address", listener.Addr().String())
	select {
	case err := <-ended:
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	s.draining.Store(true)
	s.Log.Info("draining")
	time.Sleep(s.Settle)
	if err := within(s.Timeout, server.Shutdown); err != nil {
		s.Log.Warn("requests were cut", "after", s.Timeout.String(), "error", err.Error())
	}
	if err := within(s.Timeout, s.sessions.wait); err != nil {
		s.Log.Warn("websockets were cut", "after", s.Timeout.String(), "open", s.sessions.count())
	}
	s.Log.Info("drained")
	return server.Close()
}

func within(limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return f(ctx)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	draining := s.draining.Load()
	switch {
	case r.URL.Path == "/health":
		Answer(w, http.StatusOK, map[string]string{"status": "ok"})
	case r.URL.Path == "/readyz" && s.NotReady != "":
		Answer(w, http.StatusServiceUnavailable, map[string]string{"status": "not ready", "reason": s.NotReady})
	case r.URL.Path == "/readyz" && !draining:
		Answer(w, http.StatusOK, map[string]string{"status": "ready"})
	case draining:
		Answer(w, http.StatusServiceUnavailable, map[string]string{"status": "draining"})
	default:
		s.Handler.ServeHTTP(w, r)
	}
}

// Track notes a WebSocket. The caller calls done when it has ended.
func (s *Server) Track() (done func()) { return s.sessions.add() }

// IsWebSocket reports whether a request asks to become one.
func IsWebSocket(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// Listen opens the port that $PORT names.
func (s *Settings) Listen(ctx context.Context, otherwise string) (net.Listener, error) {
	address := ":" + s.String("PORT", otherwise)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return listener, nil
}

// Answer writes v as JSON.
func Answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client's loss
}

// Refuse answers with an error.
func Refuse(w http.ResponseWriter, status int, err error) {
	Answer(w, status, map[string]string{"error": err.Error()})
}

// sessions counts what is open.
type sessions struct {
	mu   sync.Mutex
	open int
	idle []chan struct{} // closed when open is 0 again
}

func (s *sessions) add() (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open--; s.open > 0 {
			return
		}
		for _, c := range s.idle {
			close(c)
		}
		s.idle = nil
	})
}

func (s *sessions) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// wait returns when none is open, or with an error when ctx ends before.
func (s *sessions) wait(ctx context.Context) error {
	s.mu.Lock()
	if s.open == 0 {
		s.mu.Unlock()
		return nil
	}
	idle := make(chan struct{})
	s.idle = append(s.idle, idle)
	s.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return errors.New("websockets are still open")
	}
}
