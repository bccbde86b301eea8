//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"io"

	"github.com/liteboxd/boxlift/node/medium"
)

// verifyFlags are those of verify.
type verifyFlags struct{ medium.Options }

func (v *verifyFlags) define(flags *flag.FlagSet) {
	flags.StringVar(&v.TrustFile, "trust", "", "")
	flags.StringVar(&v.Identity, "identity", "", "")
}

func (v *verifyFlags) run(ctx context.Context, stdout io.Writer, files []string) error {
	if len(files) != 1 {
		return errors.New("expected one bundle: its file, the first of its volumes, or its entry in a store")
	}
	v.Path = files[0]
	report, err := medium.Check(ctx, v.Options)
	if err != nil {
		return err
	}
	return printJSON(stdout, report)
}
