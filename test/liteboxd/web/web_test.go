package web

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
)

// Every path is the page.
func TestServe(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener) }()
	for _, path := range []string{"/", "/sandboxes/1"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if closed := response.Body.Close(); err != nil || closed != nil {
			t.Fatal(err, closed)
		}
		if response.StatusCode != http.StatusOK || string(body) != page {
			t.Errorf("%s: %s, %q", path, response.Status, body)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestArguments(t *testing.T) {
	if err := Run(t.Context(), []string{worker}, io.Discard); err != nil {
		t.Errorf("as a worker: %v", err)
	}
	if err := Run(t.Context(), []string{"-g", "daemon off;"}, io.Discard); err == nil {
		t.Error("unknown arguments were taken")
	}
}
