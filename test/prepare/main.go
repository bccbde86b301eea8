// Command prepare builds what tests need and takes long: the programs of others that they try boxlift's work with, and for
// tests on LAN hosts boxlift's programs for all platforms and the Kubernetes of the test clusters. With -all, for the long
// tests of clusters, also its older minor version, and it is tested itself. What is in the cache is neither built nor
// tested again. Where no hosts can be made, the tests that need them are left out, and nothing is built for them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/liteboxd/boxlift/test/k3sbuild"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/toolbin"
)

func main() {
	all := flag.Bool("all", false, "build the older minor version of Kubernetes, too, and test it itself")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := prepare(ctx, *all); err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to be undone
	}
}

func prepare(ctx context.Context, all bool) error {
	for _, name := range []string{"age", "cosign", "crane", "oras"} {
		if _, err := toolbin.Path(ctx, name); err != nil {
			return err
		}
	}
	if len(lab.Missing()) > 0 {
		return nil
	}
	if _, err := testbed.BuildPrograms(ctx); err != nil {
		return err
	}
	for _, version := range k3sbuild.Versions() {
		if version == k3sbuild.V135 && !all {
			continue
		}
		if _, err := k3sbuild.Build(ctx, version, logf); err != nil {
			return err
		}
	}
	if !all {
		return nil
	}
	return k3sbuild.Prove(ctx, os.Stderr, logf)
}

func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, "prepare: "+format+"\n", args...) }
