// Command k3sstandin takes k3s' place on test hosts: installed as k3s, it is
// configured, started, watched and asked like k3s, and imports the image
// folder into a real containerd. It runs no pods.
//
// What is as in k3s: the commands server, agent, ctr and --version; config.yaml
// with config.yaml.d, and flags and environment variables that go before it;
// the names and forms of token files, kubeconfig and paths; the order in which
// the image folder is imported, which file names count, that a file which
// cannot be imported is logged and does not stop the start, and the log lines
// about it; pins and digest names of imported images; READY=1 to systemd only
// when the images are there; an agent or a further server that checks the
// server's CA against its token and is refused for a wrong password.
//
// What differs from k3s:
//   - There is no Kubernetes: no API, no kubelet, no datastore. Port 6443
//     answers /ping, /cacerts and what joining needs, and 401 to the rest. kubectl and crictl say that they are not here.
//   - containerd and ctr are Debian's (/usr/bin), without the CRI plugin, and
//     not part of this program. runc, CNI plugins and pods do not come into it.
//   - Flags outside the list in settings.go are refused, also those of k3s that nothing here needs.
//   - The image folder is read at the start only, without .cache.json, and
//     .tar.lz4 and lists of images to pull are errors in the log.
//   - A further server gets the CA, and nothing else, from the first one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// version is set when linking: -X main.version=v1.36.4+k3s1.
var version = "v1.36.4+k3s1"

func main() {
	args := os.Args[1:]
	// Under a symbolic link's name, k3s is the tool of that name.
	switch name := filepath.Base(os.Args[0]); name {
	case "kubectl", "crictl", "ctr":
		args = append([]string{name}, args...)
	}
	if err := run(args, os.Stdout); err != nil {
		logLine("fatal", err.Error())
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return errors.New("no command: want server, agent, ctr or --version")
	}
	switch command := args[0]; command {
	case "--version", "-v":
		_, err := fmt.Fprintf(stdout, "k3s version %s (standin)\ngo version %s\n", version, runtime.Version())
		return err
	case "server", "agent":
		s, err := readSettings(command, args[1:], os.Environ())
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		return serve(ctx, s)
	case "ctr":
		return execCtr(args[1:])
	case "kubectl", "crictl":
		return fmt.Errorf("%s: this is a stand-in for k3s without Kubernetes", command)
	default:
		return fmt.Errorf("unknown command %q", command)
	}
}

// serve runs a node until the context is done or something that it needs fails.
func serve(ctx context.Context, s settings) (err error) {
	logLine("info", fmt.Sprintf("Starting k3s %s (standin)", version))
	failed := make(chan error, 2)
	if s.server {
		stop, err := startServer(ctx, s, failed)
		if err != nil {
			return err
		}
		defer stop()
	} else if err := joinAgent(ctx, s); err != nil {
		return err
	}
	c, err := startContainerd(s, failed)
	if err != nil {
		return err
	}
	// systemd stops only this process (KillMode=process).
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := c.wait(ctx); err != nil {
		return err
	}
	if err := c.importFolder(ctx, filepath.Join(s.dataDir, "agent", "images")); err != nil {
		return err
	}
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		return fmt.Errorf("tell systemd that the service is ready: %w", err)
	}
	logLine("info", "k3s is up and running")
	select {
	case <-ctx.Done():
		logLine("info", "Stopping")
		return nil
	case err := <-failed:
		return err
	}
}

// logLine writes one line in the form in which k3s logs.
func logLine(level, message string) {
	fmt.Fprintf(os.Stderr, "time=%q level=%s msg=%q\n", time.Now().UTC().Format(time.RFC3339), level, message)
}
