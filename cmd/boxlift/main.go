// Command boxlift carries a LiteBoxd platform across an air gap: on a connected host it
// builds one signed bundle from versions.lock, and in an isolated network it installs
// the cluster from that bundle over SSH.
//
// The commands hold flags, an options struct and one call; what they do is in the
// packages bundle and install.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/liteboxd/boxlift/install/kube/helm"
)

// version and commit are set when the program is linked.
var (
	version = "v0.0.0-dev"
	commit  = ""
)

func main() {
	if helm.RendersChart() {
		os.Exit(helm.RenderChart())
	}
	os.Exit(execute())
}

func execute() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Helm writes a warning to the process's own log, which goes to standard error.
	slog.SetDefault(slog.New(slog.DiscardHandler))
	// A second Ctrl-C ends the program at once.
	context.AfterFunc(ctx, stop)
	err := newRootCommand().ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "boxlift: interrupted; what was finished is kept, and the same command goes on from "+
			"there; after an install, so does `boxlift resume`")
		return exitInterrupted
	}
	printError(os.Stderr, err)
	return exitCode(err)
}
