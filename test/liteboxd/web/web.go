// Package web stands in for the image of LiteBoxd's web pages: nginx with a single page,
// which is the answer to every path.
package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const page = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>LiteBoxd</title></head>
<body><div id="app">LiteBoxd stand-in</div></body></html>
`

// nginx gives up root for this user in its worker processes.
const workerUser = 101

// worker is the argument of the process that shows whether a worker can be started.
const worker = "worker"

// Run serves the page on port 80 until ctx ends.
func Run(ctx context.Context, operands []string, stdout io.Writer) error {
	switch {
	case len(operands) == 1 && operands[0] == worker:
		return nil
	case len(operands) > 0:
		return fmt.Errorf("web takes no arguments, not %s", strings.Join(operands, " "))
	}
	if err := prepare(ctx, "/"); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":80")
	if err != nil {
		return fmt.Errorf("listen on port 80: %w", err)
	}
	fmt.Fprintln(stdout, "listening on", listener.Addr())
	return serve(ctx, listener)
}

// prepare does what nginx does as root before it serves, and what it cannot do without: in
// a container with a read-only file system or without capabilities it fails in the same way.
func prepare(ctx context.Context, root string) error {
	for _, name := range []string{"client_temp", "proxy_temp"} {
		dir := filepath.Join(root, "var/cache/nginx", name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make a folder for temporary files: %w", err)
		}
		if err := os.Chown(dir, workerUser, -1); err != nil {
			return fmt.Errorf("give a folder to the workers: %w", err)
		}
	}
	run := filepath.Join(root, "run")
	if err := os.MkdirAll(run, 0o755); err != nil {
		return fmt.Errorf("make the folder of the pid file: %w", err)
	}
	if err := os.WriteFile(filepath.Join(run, "nginx.pid"), fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
		return fmt.Errorf("write the pid file: %w", err)
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", worker)
	cmd.Args[0] = "web"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: workerUser, Gid: workerUser}}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("start a worker as user %d: %w%s", workerUser, err, output)
	}
	return nil
}

func serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = io.WriteString(w, page) // the client's loss
		}),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return errors.Join(server.Close())
	}
}
