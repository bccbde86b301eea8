package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/upgrade"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

func newRollbackCommand(global *globalOptions) *cobra.Command {
	var o upgradeOptions
	from := backupFile{prefix: backupPrefix}
	var to int
	var confirmed string
	c := &cobra.Command{
		Use:   "rollback",
		Short: "Take a cluster back to an earlier release",
		Long: `Take a cluster back to a release that it ran, with the bundle of that release. boxlift
history lists the releases.

Where Kubernetes stays within its minor version, it is an upgrade to the older versions:
gates, a backup first, hosts one after the other, pods go on running. LiteBoxd's database
stays as it is.

Once a server has run a newer minor version of Kubernetes, only the backup from before that
upgrade leads back: k3s and all that runs in it end on every host, and EVERYTHING THAT WAS
DONE SINCE THE BACKUP IS LOST. What that is, is shown first, and nothing is done unless the
cluster's name is typed, or given with --` + confirmFlag + `.

boxlift rollback liteboxd takes LiteBoxd alone back, without a bundle.`,
		Example: `  boxlift rollback --to 3 --bundle bundle.tar --key boxlift.pub -f install.yaml
  boxlift rollback liteboxd -f install.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 || to == 0 && cmd.Flags().NFlag() == 0 {
				return showHelp(cmd, args)
			}
			if to < 1 {
				return fault.Usage.Errorf("--to is needed: the number of the release to go back to, as boxlift " +
					"history lists it")
			}
			if err := o.note(cmd.Flags(), o.keptFlags()); err != nil {
				return err
			}
			return runRollbackTo(cmd.Context(), cmd.OutOrStdout(), global, o, to, from, confirmed)
		},
	}
	o.addFlags(c)
	c.Flags().AddFlagSet(o.policyFlags())
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and change nothing")
	c.Flags().IntVar(&to, "to", 0, "number of the release to go back to (required)")
	c.Flags().StringVar(&from.path, "backup", "", "the backup from before, if it has to be restored (default: the "+
		"one on record, beside the state)")
	from.addFlags(c)
	c.Flags().StringVar(&confirmed, confirmFlag, "", "the cluster's name, which is asked for otherwise")
	c.AddCommand(newRollbackLiteBoxdCommand(global))
	return c
}

// runRollbackTo goes back in place, or by restoring a backup.
func runRollbackTo(ctx context.Context, stdout io.Writer, global *globalOptions, o upgradeOptions, to int,
	from backupFile, confirmed string) error {
	var path string
	if err := global.withReporter(stdout, func(r progress.Reporter, _ io.Writer) error {
		options, err := o.openOptions(ctx, global, r)
		if err != nil {
			return err
		}
		defer options.Bundle.Close() //nolint:errcheck // it was only read
		wanted := o.upgrade(options)
		wanted.RollbackTo = to
		path, err = install.WayBack(ctx, wanted)
		if errors.Is(err, upgrade.ErrNoBackup) && from.path != "" {
			path, err = from.path, nil
		}
		return err
	}); err != nil {
		return err
	}
	if path == "" {
		return global.withReporter(stdout, func(r progress.Reporter, out io.Writer) error {
			return runUpgrade(ctx, out, global, o, to, r)
		})
	}
	from.path = cmp.Or(from.path, path)
	return runRestore(ctx, stdout, global, o.installOptions, from, confirmed)
}

type rollbackOptions struct {
	config     configuration
	state      string
	format     string
	revision   int
	list       bool
	forceAfter time.Duration
}

func newRollbackLiteBoxdCommand(global *globalOptions) *cobra.Command {
	var o rollbackOptions
	c := &cobra.Command{
		Use:   "liteboxd",
		Short: "Take LiteBoxd back to an earlier revision",
		Long: `Take LiteBoxd's manifests back to the last revision that was deployed with success
before the one that runs, or to --revision. The bundle is not needed: the cluster keeps
the last ten good revisions, and the nodes the images of the current release and of the
one before it. The database stays as it is, with all that was written since; it is backed
up beside the state first. Sandboxes go on running.

boxlift install brings LiteBoxd to what bundle and install.yaml say again.`,
		Example: `  boxlift rollback liteboxd -f install.yaml --list
  boxlift rollback liteboxd -f install.yaml`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runRollback(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.config.addFlags(c)
	c.Flags().StringVar(&o.state, "state", "", "where to keep state.json (default: beside the configuration)")
	c.Flags().StringVarP(&o.format, "output", "o", "table", "format: table or json")
	c.Flags().IntVar(&o.revision, "revision", 0, "the revision to go back to (default: the last good one before)")
	c.Flags().BoolVar(&o.list, "list", false, "show the revisions and change nothing")
	addForceAfter(c.Flags(), &o.forceAfter)
	return c
}

// addForceAfter adds the flag that ends the connections of users.
func addForceAfter(f *pflag.FlagSet, to *time.Duration) {
	f.DurationVar(to, "force-after", *to, "cut off users' connections that hold up a change of LiteBoxd for longer, "+
		"such as 2m (default: let them have their time)")
}

func runRollback(ctx context.Context, out io.Writer, global *globalOptions, o rollbackOptions,
	reporter progress.Reporter) error {
	if err := checkFormat(o.format); err != nil {
		return err
	}
	options, err := loadConfiguration(o.config, global.warner(reporter))
	if err != nil {
		return err
	}
	options.StatePath, options.ForceAfter = o.config.statePath(o.state), o.forceAfter
	options.Reporter, options.Log = reporter, global.logger(reporter)
	if o.list {
		return printRevisions(ctx, out, options, o.format)
	}
	summary, err := install.RollbackLiteBoxd(ctx, options, o.revision)
	if summary == nil {
		return err
	}
	return errors.Join(err, printChanges(out, summary, o.format))
}

func printRevisions(ctx context.Context, out io.Writer, options install.Options, format string) error {
	history, err := install.LiteBoxdHistory(ctx, options)
	if err != nil {
		return err
	}
	if format == "json" {
		return printJSON(out, history)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("REVISION\tLITEBOXD\tSTATE\tSINCE\tWHAT\n")
	for _, r := range history {
		w.printf("%d\t%s\t%s\t%s\t%s\n", r.Revision, r.ChartVersion, r.Status, r.Since.UTC().Format(time.RFC3339),
			r.Description)
	}
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}

// printChanges shows what a command that works on a part has done.
func printChanges(out io.Writer, s *run.Summary, format string) error {
	if format == "json" {
		return printJSON(out, s)
	}
	w := &errorWriter{w: out}
	done := ""
	if s.DryRun {
		done = "would "
	}
	for _, c := range s.Changes {
		w.printf("%s%s (%s)\n", done, c.Title, c.Reason)
	}
	printLiteBoxd(w, s)
	for _, text := range s.Warnings {
		w.printf("warning: %s\n", text)
	}
	return w.err
}

// printLiteBoxd shows what a run has to say about LiteBoxd.
func printLiteBoxd(w *errorWriter, s *run.Summary) {
	if s.Backup != "" {
		w.printf("backup of LiteBoxd from before: %s\n", s.Backup)
	}
	if s.Login != nil {
		w.printf("LiteBoxd's first login, shown this once: user %s, password %s\n", s.Login.Username, s.Login.Password)
	}
}

// scopeOf reads --only and --skip.
func scopeOf(only, skip string) (run.Scope, error) {
	const part = "liteboxd"
	switch {
	case only != "" && skip != "":
		return 0, fault.Usage.Errorf("--only and --skip exclude each other")
	case only == part:
		return run.OnlyLiteBoxd, nil
	case skip == part:
		return run.WithoutLiteBoxd, nil
	case only+skip != "":
		return 0, fault.Usage.Errorf("found %q, expected %s: it is the part that --only and --skip know", only+skip,
			part)
	}
	return run.Everything, nil
}

// scopeOfRun is the scope of a run in the state.
func scopeOfRun(last journal.State) (run.Scope, error) {
	if scope, ok := run.ScopeOf(last.Verb); ok {
		return scope, nil
	}
	again := "run that command again"
	if last.BackupFile != "" {
		again = "go on with " + run.RestoreCommand(last)
	}
	return 0, fmt.Errorf("%w: the last run was boxlift %s: %s", site.ErrNothingToResume, last.Command, again)
}
