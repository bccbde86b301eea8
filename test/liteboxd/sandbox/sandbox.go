// Package sandbox is what runs in the sandboxes of tests: a server to be reached through
// the gateway, and a shell to be typed at.
package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/gorilla/websocket"

	"github.com/liteboxd/boxlift/test/liteboxd/edge"
)

// Serve answers on the given ports, or on 8080, until ctx ends: HTTP requests with the pod's
// name, WebSocket messages with themselves.
func Serve(ctx context.Context, ports []string, stdout io.Writer) error {
	if len(ports) == 0 {
		ports = []string{"8080"}
	}
	var listeners []net.Listener
	for _, port := range ports {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return fmt.Errorf("%q is no port", port)
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+port)
		if err != nil {
			return fmt.Errorf("listen on port %s: %w", port, err)
		}
		fmt.Fprintln(stdout, "listening on", listener.Addr())
		listeners = append(listeners, listener)
	}
	return serve(ctx, listeners)
}

func serve(ctx context.Context, listeners []net.Listener) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if edge.IsWebSocket(r) {
			echo(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, name+"\n") // the client's loss
	})}
	ended := make(chan error, len(listeners))
	for _, listener := range listeners {
		go func() { ended <- server.Serve(listener) }()
	}
	select {
	case err := <-ended:
		return errors.Join(err, server.Close())
	case <-ctx.Done():
		return server.Close()
	}
}

func echo(w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{}
	connection, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // it has answered
	}
	defer func() { _ = connection.Close() }() // over in any case
	for {
		kind, message, err := connection.ReadMessage()
		if err != nil || connection.WriteMessage(kind, message) != nil {
			return
		}
	}
}

// Shell repeats every line that is typed, until the input ends or a line is "exit". With -c
// it does nothing, successfully: that is what prepulls ask of an image's shell.
func Shell(operands []string, stdin io.Reader, stdout io.Writer) error {
	if len(operands) > 0 && operands[0] == "-c" {
		return nil
	}
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		if lines.Text() == "exit" {
			return nil
		}
		if _, err := fmt.Fprintf(stdout, "you typed: %s\n", lines.Text()); err != nil {
			return err
		}
	}
	return lines.Err()
}
