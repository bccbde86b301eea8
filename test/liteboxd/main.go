// Command liteboxd stands in for LiteBoxd's programs in tests: server, gateway and web, and
// beside them sandbox, which is what runs in the sandboxes of tests. Which one it is follows
// from the name under which it is started, so that all images share one layer. README.md says what it
// does as the real ones do, and what not.
//
// The file release.json beside the program says which release it is ([edge.Release]).
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/liteboxd/boxlift/test/liteboxd/api"
	"github.com/liteboxd/boxlift/test/liteboxd/controller"
	"github.com/liteboxd/boxlift/test/liteboxd/edge"
	"github.com/liteboxd/boxlift/test/liteboxd/gateway"
	"github.com/liteboxd/boxlift/test/liteboxd/sandbox"
	"github.com/liteboxd/boxlift/test/liteboxd/web"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args, os.Getenv, os.Stdin, os.Stdout)
	stop()
	if err != nil {
		// The last line of a container that restarts is what an operator gets to see.
		fmt.Fprintf(os.Stderr, "%s: fatal: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout io.Writer) error {
	operands := args[1:]
	switch filepath.Base(args[0]) {
	case "web":
		return web.Run(ctx, operands, stdout)
	case "sandbox":
		return sandbox.Serve(ctx, operands, stdout)
	case "sh":
		return sandbox.Shell(operands, stdin, stdout)
	}
	release, err := edge.ReadRelease()
	if err != nil {
		return err
	}
	return control(ctx, release, args, getenv, stdout)
}

// control runs a program of the control plane.
func control(ctx context.Context, release edge.Release, args []string, getenv func(string) string, stdout io.Writer) error {
	settings, err := edge.ReadSettings(getenv, stdout)
	if err != nil {
		return err
	}
	switch command := strings.Join(append([]string{filepath.Base(args[0])}, args[1:]...), " "); command {
	case "server", "server server":
		return api.Run(ctx, release, settings)
	case "server network-controller":
		return controller.Run(ctx, release, settings)
	case "gateway":
		return gateway.Run(ctx, release, settings)
	default:
		return fmt.Errorf("no program for %q: there are server, server network-controller, gateway, web and sandbox", command)
	}
}
