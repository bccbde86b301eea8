package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
)

// execution is a command in a sandbox's pod.
type execution struct {
	namespace, pod string
	command        []string
	stdin          io.Reader // nil for none
	stdout, stderr io.Writer // stderr is nil with a terminal
}

// execute runs it until the command or ctx ends.
type execute func(context.Context, execution) error

func (e execution) stream(ctx context.Context, config *rest.Config, client rest.Interface) error {
	request := client.Post().Namespace(e.namespace).Resource("pods").Name(e.pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: container, Command: e.command,
			Stdin: e.stdin != nil, Stdout: true, Stderr: e.stderr != nil, TTY: e.stderr == nil,
		}, scheme.ParameterCodec)
	executor, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, request.URL())
	if err != nil {
		return fmt.Errorf("run %q in pod %s: %w", e.command, e.pod, err)
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: e.stdin, Stdout: e.stdout, Stderr: e.stderr, Tty: e.stderr == nil})
}

// run runs a command to its end.
func (a *api) run(r *http.Request) (int, any, error) {
	var wanted struct{ Command []string }
	if err := read(r, &wanted); err != nil {
		return 0, nil, err
	}
	b, err := a.store.Sandbox(r.Context(), r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	var stdout, stderr bytes.Buffer
	err = a.exec(r.Context(), execution{a.SandboxNamespace, PodPrefix + b.ID, wanted.Command, nil, &stdout, &stderr})
	var exit utilexec.ExitError
	code := 0
	if errors.As(err, &exit) {
		code, err = exit.ExitStatus(), nil
	}
	return http.StatusOK, map[string]any{"exitCode": code, "stdout": stdout.String(), "stderr": stderr.String()}, err
}

// interact runs a command, /bin/sh unless the query names others, with a terminal at the
// other end of a WebSocket. Messages to it are what is typed, messages from it what is
// printed. It stays open while the server drains, for as long as that may take.
func (a *api) interact(w http.ResponseWriter, r *http.Request) {
	b, err := a.store.Sandbox(r.Context(), r.PathValue("id"))
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	command := r.URL.Query()["command"]
	if len(command) == 0 {
		command = []string{"/bin/sh"}
	}
	upgrader := websocket.Upgrader{}
	connection, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // it has answered
	}
	defer a.server.Track()()
	defer func() { _ = connection.Close() }() // over in any case
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	typed, keyboard := io.Pipe()
	go func() {
		defer cancel()
		for {
			_, message, err := connection.ReadMessage()
			if err == nil {
				_, err = keyboard.Write(message)
			}
			if err != nil {
				_ = keyboard.CloseWithError(io.EOF) // never fails
				return
			}
		}
	}()
	err = a.exec(ctx, execution{a.SandboxNamespace, PodPrefix + b.ID, command, typed, printer{connection}, nil})
	_ = typed.Close() // never fails
	text := ""
	if err != nil && ctx.Err() == nil {
		text = err.Error()
		a.Log.Error("interactive exec failed", "sandbox", b.ID, "error", text)
	}
	// A reason has 123 bytes at most.
	_ = connection.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, text[:min(len(text), 123)])) // the client's loss
}

// printer sends what is written as messages.
type printer struct{ *websocket.Conn }

func (p printer) Write(b []byte) (int, error) {
	if err := p.WriteMessage(websocket.BinaryMessage, b); err != nil {
		return 0, err
	}
	return len(b), nil
}
