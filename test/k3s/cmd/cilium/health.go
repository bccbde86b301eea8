package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// health answers a probe on /healthz: 200 once set(nil) was called, 503 with the reason
// before and after set(err), 500 for ever after fail.
type health struct {
	mu     sync.Mutex
	ready  bool
	failed bool
	err    error
}

func (h *health) set(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready, h.err = err == nil, err
}

func (h *health) fail() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed = true
}

func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case r.URL.Path != "/healthz":
		http.NotFound(w, r)
	case h.failed:
		http.Error(w, failKey+" tells this program to fail", http.StatusInternalServerError)
	case h.ready:
		_, _ = w.Write([]byte("ok\n")) // the client's loss
	case h.err != nil:
		http.Error(w, h.err.Error(), http.StatusServiceUnavailable)
	default:
		http.Error(w, "not started yet", http.StatusServiceUnavailable)
	}
}

// serve answers until ctx ends. The address may still be taken by the program that this
// one replaces.
func (h *health) serve(ctx context.Context, address string) error {
	var listener net.Listener
	err := retry(ctx, "listen on "+address, func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		return err
	})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // nothing is owed to a probe
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
