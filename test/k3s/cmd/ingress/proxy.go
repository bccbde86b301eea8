package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"sync/atomic"
	"time"
)

// routeKey is the key of a request's *route in its context.
type routeKey struct{}

// newProxy serves one entry point.
func newProxy(point string, current *atomic.Pointer[table], transport http.RoundTripper) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.Host = "http", r.In.Host
			r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
			r.SetXForwarded()
		},
		Transport:     transport,
		FlushInterval: -1, // streams
		ErrorHandler:  failed,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var found *route
		if t := current.Load(); t != nil {
			found = t.find(point, r.Host, r.URL.Path)
		}
		switch {
		case found == nil || found.Broken:
			http.Error(w, "404 page not found", http.StatusNotFound)
		case len(found.Endpoints) == 0:
			http.Error(w, "no available server", http.StatusServiceUnavailable)
		default:
			proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), routeKey{}, found)))
		}
	})
}

func failed(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusBadGateway
	if errors.Is(err, context.Canceled) {
		status = 499 // the client has gone
	}
	log.Printf("%d %s %s%s: %v", status, r.Method, r.Host, r.URL.Path, err)
	w.WriteHeader(status)
}

// transport sends a request to the endpoints of its route in turn.
type transport struct {
	http.Transport
	turn atomic.Uint64
}

func newTransport() *transport {
	return &transport{Transport: http.Transport{
		DialContext:         (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
		DisableCompression:  true, // bodies pass as they are
		MaxIdleConnsPerHost: 20,
		IdleConnTimeout:     90 * time.Second,
	}}
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	target := r.Context().Value(routeKey{}).(*route)
	attempt := r.Clone(r.Context())
	if r.Body != nil {
		attempt.Body = io.NopCloser(r.Body) // a failed attempt must not close it: ReverseProxy does
	}
	wait := target.Interval
	for n := 1; ; n++ {
		endpoint := target.Endpoints[t.turn.Add(1)%uint64(len(target.Endpoints))]
		attempt.URL.Host = endpoint.String()
		response, err := t.Transport.RoundTrip(attempt)
		if err == nil || n >= target.Attempts || !unseen(err) {
			return response, err
		}
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(wait):
			wait *= 2
		}
	}
}

// unseen says that no endpoint can have got anything of the request.
func unseen(err error) bool {
	var operation *net.OpError
	return errors.As(err, &operation) && operation.Op == "dial"
}
