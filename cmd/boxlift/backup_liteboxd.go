package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/relocation"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// restoreLiteBoxdOptions say how LiteBoxd's database alone is put back.
type restoreLiteBoxdOptions struct {
	config                             configuration
	only, state, format, to, confirmed string
	dryRun                             bool
	forceAfter                         time.Duration
	from                               backupFile
}

// flagsOfBundle are those of a restore of the whole cluster.
var flagsOfBundle = []string{"bundle", "kubeconfig", "merge-kubeconfig", "no-rollback"}

// runRestoreLiteBoxd puts LiteBoxd's database back, after it was said what is lost.
func runRestoreLiteBoxd(cmd *cobra.Command, global *globalOptions, o restoreLiteBoxdOptions) error {
	if o.only != "liteboxd" {
		return fault.Usage.Errorf("--only %s: liteboxd is the part that can be put back alone", o.only)
	}
	for _, name := range flagsOfBundle {
		if cmd.Flags().Changed(name) {
			return fault.Usage.Errorf("--%s is not for --only liteboxd, which puts back a database and no more", name)
		}
	}
	if err := checkFormat(o.format); err != nil {
		return err
	}
	ctx := cmd.Context()
	options, err := loadConfiguration(o.config, global.warner(progress.Discard))
	if err != nil {
		return err
	}
	name := options.Config.Cluster.Name
	options.StatePath, options.Version = o.config.statePath(o.state), version
	if !o.dryRun {
		if err := checkConfirmed(os.Stdin, name, o.confirmed); err != nil {
			return err
		}
	}
	source, closing, err := o.open(ctx, options)
	if err != nil {
		return err
	}
	defer closing() //nolint:errcheck // it was only read
	losses, err := install.LossesOfLiteBoxd(ctx, options, source, o.to)
	if err != nil {
		return err
	}
	printLiteBoxdLosses(os.Stderr, losses)
	if !o.dryRun {
		if err := askName(ctx, os.Stdin, name, o.confirmed); err != nil {
			return err
		}
	}
	return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
		options.Reporter, options.Log, options.ForceAfter = r, global.logger(r), o.forceAfter
		options.DryRun = o.dryRun
		if o.to != "" {
			options.Flags = []string{"--to=" + o.to}
		}
		// Where nobody has named a node, it is the one that was shown.
		summary, err := install.RestoreLiteBoxd(ctx, options, source, losses.To)
		if summary == nil {
			return err
		}
		return errors.Join(err, printChanges(out, summary, o.format))
	})
}

// open opens the backup that is named, or finds the newest.
func (o *restoreLiteBoxdOptions) open(ctx context.Context, options install.Options) (*relocation.Source, func() error,
	error) {
	cluster, nothing := options.Config.Cluster.Name, func() error { return nil }
	if o.from.path == "" {
		var identities []age.Identity
		if len(o.from.identities) > 0 || o.from.passphraseFile != "" {
			var err error
			if identities, err = o.from.readKeys(ctx); err != nil {
				return nil, nil, err
			}
		}
		return install.NewestBackupOfLiteBoxd(ctx, options, identities,
			func(text string) { fmt.Fprintln(os.Stderr, "boxlift: warning: "+text) })
	}
	absolute, err := filepath.Abs(o.from.path)
	if err != nil {
		return nil, nil, fmt.Errorf("find the folder of the backup: %w", err)
	}
	if info, err := os.Stat(absolute); err == nil && info.IsDir() {
		s, err := relocation.OfFolder(ctx, absolute, cluster)
		return s, nothing, err
	}
	o.from.path = absolute
	r, err := o.from.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	s, err := relocation.OfCluster(r, cluster)
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	return s, r.Close, nil
}

func printLiteBoxdLosses(out io.Writer, l *relocation.Losses) {
	w := &errorWriter{w: out}
	w.printf("This puts LiteBoxd's database back to what it was at %s, %s ago, on the node %s.\n",
		l.Since.UTC().Format(time.RFC3339), progress.Duration(time.Since(l.Since)), l.To)
	w.printf("The backup is %s.\n", l.Backup)
	where := ""
	if l.Lost != "" {
		where = " on other nodes"
	}
	w.printf("Lost is everything that users have told LiteBoxd since; sandboxes%s go on running.\n", where)
	names := func(of []string) string {
		if len(of) == 0 {
			return "none"
		}
		return indented(strings.Join(of, ", "))
	}
	switch {
	case l.Lost != "":
		w.printf("The node %s, which has the database, is gone, and what came since cannot be told. Its volume is\n"+
			"kept in the cluster, for the case that it comes back.\n", l.Lost)
		w.printf("  sandboxes that ran on %s: %s\n", l.Lost, names(l.Pods))
		w.printf("  persistent sandboxes with their volumes on %s: %s\n", l.Lost, names(l.Sandboxes))
	case l.Unknown != "":
		w.printf("What that is cannot be found out: %s\n", indented(l.Unknown))
	default:
		w.printf("  rows of LiteBoxd's database: %s\n", names(l.Rows))
	}
}
