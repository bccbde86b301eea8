//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/wire"
)

// pruneFlags are those of prune and disk: where k3s and boxlift have their files.
type pruneFlags struct{ k3s, files string }

func (p *pruneFlags) define(flags *flag.FlagSet) {
	flags.StringVar(&p.k3s, "k3s", images.DefaultK3s, "")
	flags.StringVar(&p.files, "files", wire.FilesDir, "")
}

func (p *pruneFlags) run(ctx context.Context, stdin io.Reader, stdout io.Writer, dir string) error {
	document, err := io.ReadAll(io.LimitReader(stdin, images.MaxPruneRequest+1))
	if err != nil {
		return fmt.Errorf("read what is to be pruned: %w", err)
	}
	request, err := images.ParsePruneRequest(document)
	if err != nil {
		return err
	}
	options := images.PruneOptions{ImagesDir: dir, FilesDir: p.files, Ctr: []string{p.k3s, "ctr"}}
	report, err := images.Prune(ctx, options, request)
	if err != nil {
		return err
	}
	return printJSON(stdout, report)
}

func (p *pruneFlags) disk(ctx context.Context, stdout io.Writer, dir string) error {
	options := images.DiskOptions{ImagesDir: dir, FilesDir: p.files, Ctr: []string{p.k3s, "ctr"}}
	return printJSON(stdout, images.MeasureDisk(ctx, options))
}
