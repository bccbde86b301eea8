package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// Bounds of what serves the page.
const (
	// metricsConnections is how many connections are open at a time: a few who collect, and no more.
	metricsConnections = 16
	// metricsRequest is the longest that a request or its answer may take.
	metricsRequest = 10 * time.Second
	// metricsHeader is the largest head of a request, in bytes.
	metricsHeader = 16 << 10
)

// metricsHandler serves the last page at /metrics, to be read and nothing else.
type metricsHandler struct{ page atomic.Pointer[[]byte] }

func (h *metricsHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case r.URL.Path != "/metrics":
		http.Error(w, "the figures are at /metrics", http.StatusNotFound)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the figures can be read, and nothing else", http.StatusMethodNotAllowed)
		return
	}
	page := h.page.Load()
	if page == nil {
		http.Error(w, "the site is being looked at for the first time", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(*page)))
	_, _ = w.Write(*page) // whoever went away does not need it
}

// metricsAddress is an address to listen at: a port alone is one of this machine's own.
func metricsAddress(text string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return "", fault.Usage.Errorf("--listen %q: expected an address and a port, such as 127.0.0.1:9809", text)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 && port != "0" {
		return "", fault.Usage.Errorf("--listen %q: expected a port from 1 to 65535, or 0 for any", text)
	}
	return net.JoinHostPort(host, port), nil
}

// serveMetrics looks at the site again and again, and serves what it has seen, until ctx ends, which is no error.
func serveMetrics(ctx context.Context, options install.Options, o metricsOptions, reporter progress.Reporter) error {
	address, err := metricsAddress(o.listen)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fault.Input.Errorf("listen at %s: %w", address, err)
	}
	reporter.Message(fmt.Sprintf("figures at http://%s/metrics", listener.Addr()))
	look := func(ctx context.Context) ([]byte, error) { return metricsPage(ctx, options, o.only) }
	return serveLooks(ctx, listener, look, o.interval, reporter)
}

// serveLooks serves at a listener, which it closes, what look has told last.
func serveLooks(ctx context.Context, listener net.Listener, look func(context.Context) ([]byte, error),
	interval time.Duration, reporter progress.Reporter) error {
	handler := &metricsHandler{}
	server := &http.Server{Handler: handler, ReadTimeout: metricsRequest, WriteTimeout: metricsRequest,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: metricsHeader}
	served := make(chan error, 1)
	looking, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		served <- server.Serve(netutil.LimitListener(listener, metricsConnections))
		stop() // without a listener, nobody sees anything
	}()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for looking.Err() == nil {
		page, err := look(looking)
		if page != nil {
			handler.page.Store(&page)
		}
		if err != nil && looking.Err() == nil {
			reporter.Message("warning: not all of the site was seen: " + err.Error())
		}
		select {
		case <-looking.Done():
		case <-ticker.C:
		}
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), metricsRequest)
	defer cancel()
	err := server.Shutdown(ending)
	if failed := <-served; !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(fmt.Errorf("serve the figures at %s: %w", listener.Addr(), failed), err)
	}
	return err
}
