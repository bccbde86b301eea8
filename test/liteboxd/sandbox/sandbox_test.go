package sandbox

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
)

// Both ports answer requests with the name and messages with themselves.
func TestServe(t *testing.T) {
	var listeners []net.Listener
	for range 2 {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, listener)
	}
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listeners) }()
	for _, listener := range listeners {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if closed := response.Body.Close(); err != nil || closed != nil || string(body) != name+"\n" {
			t.Errorf("%q, %v, %v", body, err, closed)
		}
		connection, response, err := websocket.DefaultDialer.DialContext(t.Context(), "ws://"+listener.Addr().String()+"/any", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := response.Body.Close(); err != nil {
			t.Fatal(err)
		}
		if err := connection.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, got, err := connection.ReadMessage(); err != nil || string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
		if err := connection.Close(); err != nil {
			t.Error(err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestPorts(t *testing.T) {
	for _, ports := range [][]string{{"x"}, {"70000"}} {
		if err := Serve(t.Context(), ports, io.Discard); err == nil {
			t.Errorf("%q were taken", ports)
		}
	}
}

func TestShell(t *testing.T) {
	for _, c := range []struct {
		args     []string
		in, want string
	}{
		{nil, "a\nb\n", "you typed: a\nyou typed: b\n"},
		{nil, "a\nexit\nb\n", "you typed: a\n"},
		{[]string{"-c", "true"}, "a\n", ""},
	} {
		var out bytes.Buffer
		if err := Shell(c.args, strings.NewReader(c.in), &out); err != nil || out.String() != c.want {
			t.Errorf("%q: %q, %v", c.in, out.String(), err)
		}
	}
}
