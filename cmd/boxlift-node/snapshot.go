//go:build linux

package main

import (
	"context"
	"flag"
	"io"

	"github.com/liteboxd/boxlift/node/database"
)

// snapshotFlags are those of snapshot-sqlite.
type snapshotFlags struct{ options database.Options }

func (s *snapshotFlags) define(flags *flag.FlagSet) {
	flags.StringVar(&s.options.Source, "source", "", "")
	flags.StringVar(&s.options.Target, "target", "", "")
	flags.DurationVar(&s.options.Wait, "wait", 0, "")
	flags.Int64Var(&s.options.MaxBytes, "max-bytes", 0, "")
}

func (s *snapshotFlags) run(ctx context.Context, stdout io.Writer) error {
	report, err := database.Copy(ctx, s.options)
	if err != nil {
		return err
	}
	return printJSON(stdout, report)
}
