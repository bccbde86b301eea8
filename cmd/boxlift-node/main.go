//go:build linux

// Boxlift-node runs on a node, started by boxlift over SSH. It has no configuration and
// keeps no state; each subcommand is one function of package node.
//
// Exit codes: 0 when all is well, 1 when it failed or check found damage, 2 for a wrong
// command line.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/liteboxd/boxlift/node"
)

// version is set by the linker.
var version = "devel"

const usage = `usage: boxlift-node <command>

  facts [-images DIR]    print what this host is like, as JSON
  receive                take in packs and files; speaks a protocol on stdin and stdout
  check [-images DIR]    read all packs and compare their digests; prints JSON
  version                print the version

It is run by boxlift. Exit codes: 0 done, 1 failed or damage found, 2 wrong usage.
`

const (
	exitOK = iota
	exitFailed
	exitUsage
)

func main() {
	// Packs and files must be readable for k3s whatever the login's umask is.
	syscall.Umask(0o022)
	// Small nodes have other work: collect garbage early rather than grow.
	debug.SetMemoryLimit(24 << 20)
	// A broken pipe is an error to report, not a reason to die.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		_, _ = io.WriteString(stderr, usage)
		return exitUsage
	}
	flags := flag.NewFlagSet("boxlift-node "+args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var images string
	switch args[0] {
	case "facts", "check":
		flags.StringVar(&images, "images", node.DefaultImagesDir, "")
	case "receive", "version":
	case "help", "-h", "-help", "--help":
		_, _ = io.WriteString(stdout, usage)
		return exitOK
	default:
		return wrongUsage(stderr, fmt.Errorf("unknown command %q", args[0]))
	}
	if err := flags.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		_, _ = io.WriteString(stdout, usage)
		return exitOK
	} else if err != nil {
		return wrongUsage(stderr, err)
	}
	if flags.NArg() > 0 {
		return wrongUsage(stderr, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	ok, err := true, error(nil)
	switch args[0] {
	case "facts":
		err = printJSON(stdout, node.Gather(ctx, node.GatherOptions{ImagesDir: images}))
	case "receive":
		err = node.Receive(ctx, stdin, stdout, node.ReceiveOptions{})
	case "check":
		var report node.CheckReport
		if report, err = node.Check(ctx, images); err == nil {
			ok, err = report.OK, printJSON(stdout, report)
		}
	case "version":
		_, err = fmt.Fprintln(stdout, version)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "boxlift-node: %s: %v\n", args[0], err)
		return exitFailed
	}
	if !ok {
		return exitFailed
	}
	return exitOK
}

func wrongUsage(stderr io.Writer, err error) int {
	_, _ = fmt.Fprintf(stderr, "boxlift-node: %v\n\n%s", err, usage)
	return exitUsage
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
