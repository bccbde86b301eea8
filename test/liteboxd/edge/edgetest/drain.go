// Package edgetest tests what all servers of LiteBoxd do alike.
package edgetest

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// Drains tests that a WebSocket at path, which has to send back what it is sent, goes on while
// the server drains, and that serve waits for its end.
func Drains(t *testing.T, serve func(context.Context, net.Listener) error, path string, header http.Header) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener) }()
	connection, response, err := websocket.DefaultDialer.DialContext(t.Context(), "ws://"+listener.Addr().String()+path, header)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	echo := func(text string) {
		t.Helper()
		if err := connection.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := connection.ReadMessage(); err != nil || string(got) != text {
			t.Fatalf("sent %q, got %q, %v", text, got, err)
		}
	}
	echo("one")
	stop()
	echo("two")
	select {
	case err := <-ended:
		t.Fatalf("ended with an open websocket: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	echo("three")
	if err := connection.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
