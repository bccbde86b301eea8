//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/liteboxd/boxlift/node/backups"
	"github.com/liteboxd/boxlift/node/database"
	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/wire"
)

// backupFlags are those of backup.
type backupFlags struct{ config string }

func (b *backupFlags) define(flags *flag.FlagSet) {
	flags.StringVar(&b.config, "config", backups.ConfigFile, "")
}

// run makes one round of backups, and prints what came of it.
func (b *backupFlags) run(ctx context.Context, stdout io.Writer) error {
	f, err := os.Open(b.config)
	if err != nil {
		return err
	}
	document, err := io.ReadAll(io.LimitReader(f, backups.MaxConfig+1))
	_ = f.Close() // it was only read
	if err != nil {
		return fmt.Errorf("read the config of backups: %w", err)
	}
	config, err := backups.ParseConfig(document)
	if err != nil {
		return err
	}
	status, err := backups.Run(ctx, backups.Options{
		Config: config, Version: version,
		CopyDatabase: func(ctx context.Context, source, target string) error {
			_, err := database.Copy(ctx, database.Options{Source: source, Target: target})
			return err
		},
		Bundle: func(ctx context.Context) string {
			report, err := images.Prune(ctx, images.PruneOptions{ImagesDir: wire.ImagesDir, FilesDir: wire.FilesDir,
				Ctr: []string{images.DefaultK3s, "ctr"}}, images.PruneRequest{Version: images.PruneVersion})
			if err != nil { // a backup without it can be restored all the same
				return ""
			}
			return report.Current.String()
		},
	})
	if err != nil {
		return err
	}
	return printJSON(stdout, status)
}
