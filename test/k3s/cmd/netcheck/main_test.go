package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{}, {"get"}, {"lookup"}, {"sleep", "1"}, {"dance"}, {"get", "a", "b"}, {"-no", "get", "a"}, {"serve", ":1", ":2"},
	} {
		if err := run(t.Context(), args, nil); !errors.Is(err, errUsage) {
			t.Errorf("%q: %v, expected the usage", args, err)
		}
	}
}

func TestGet(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = w.Write([]byte("body")) // the client's loss
	}))
	defer server.Close()
	for path, ok := range map[string]bool{"/": true, "/bad": false} {
		var out bytes.Buffer
		err := run(t.Context(), []string{"get", server.URL + path}, &out)
		if (err == nil) != ok || out.String() != "body" {
			t.Errorf("%s: %v, %q", path, err, out.String())
		}
	}
	server.Close()
	if err := run(t.Context(), []string{"get", server.URL}, &bytes.Buffer{}); err == nil {
		t.Error("a closed server was reached")
	}
}

func TestLookup(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"lookup", "localhost"}, &out); err != nil || !bytes.Contains(out.Bytes(), []byte("127.0.0.1\n")) {
		t.Errorf("localhost: %v, %q", err, out.String())
	}
	if err := run(t.Context(), []string{"lookup", "no-such-name.invalid."}, &out); err == nil {
		t.Error("a name that cannot be was found")
	}
}

// What serve listens on answers with the host's name, and ends when it is told to.
func TestServe(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serveOn(ctx, listener) }()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := get(t.Context(), "http://"+listener.Addr().String(), &out); err != nil {
		t.Error(err)
	}
	if out.String() != name+"\n" {
		t.Errorf("got %q", out.String())
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
