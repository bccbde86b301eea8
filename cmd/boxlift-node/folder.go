//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"path"

	"github.com/liteboxd/boxlift/node/backups"
)

// folderFlags are those of save-folder and restore-folder.
type folderFlags struct{ dir, digest string }

func (f *folderFlags) define(flags *flag.FlagSet) {
	flags.StringVar(&f.dir, "dir", "", "")
	flags.StringVar(&f.digest, "sha256", "", "")
}

func (f *folderFlags) check() error {
	if !path.IsAbs(f.dir) || path.Clean(f.dir) == "/" {
		return errors.New("expected -dir with the folder of a volume")
	}
	return nil
}

// save prints the files of a folder as a tar.
func (f *folderFlags) save(ctx context.Context, stdout io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	return backups.SaveFolder(ctx, f.dir, stdout)
}

// restore makes the files of a folder those of a tar.
func (f *folderFlags) restore(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	report, err := backups.RestoreFolder(ctx, stdin, f.digest, f.dir)
	if err != nil {
		return err
	}
	return printJSON(stdout, report)
}
