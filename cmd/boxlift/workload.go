package main

import (
	"context"
	"errors"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/internal/progress"
)

func newWorkloadCommand(global *globalOptions) *cobra.Command {
	return group("workload", "Look at workloads beside LiteBoxd, take one back, or away",
		newWorkloadListCommand(global), newWorkloadRollbackCommand(global), newWorkloadRemoveCommand(global))
}

type workloadOptions struct {
	config        configuration
	state, format string
	revision      int
	withData      bool
	dryRun        bool
}

func newWorkloadListCommand(global *globalOptions) *cobra.Command {
	var o workloadOptions
	c := &cobra.Command{
		Use:   "list",
		Short: "Show which workloads there are, and in which versions",
		Long: `Show the workloads that install.yaml lists and those that boxlift has put on the
cluster besides, with the version and the state that each is in. Nothing is changed.`,
		Example: `  boxlift workload list -f install.yaml`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return listWorkloads(cmd.Context(), out, global, o, r)
			})
		},
	}
	addConfiguration(c, &o.config, &o.state, &o.format)
	return c
}

func newWorkloadRollbackCommand(global *globalOptions) *cobra.Command {
	var o workloadOptions
	c := &cobra.Command{
		Use:   "rollback NAME",
		Short: "Take a workload back to an earlier revision",
		Long: `Take a workload back to the last revision that was deployed with success before the one
that runs, or to --revision. The bundle is not needed: the cluster keeps the last ten good
revisions, and the nodes the images of the current release and of the one before it. What
the workload has stored stays as it is.

boxlift install brings it to what bundle and install.yaml say again.`,
		Example: `  boxlift workload rollback gov-native -f install.yaml --dry-run
  boxlift workload rollback gov-native -f install.yaml`,
		Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return o.run(out, global, r, func(options install.Options) (*run.Summary, error) {
					return install.RollbackWorkload(cmd.Context(), options, args[0], o.revision)
				})
			})
		},
	}
	addConfiguration(c, &o.config, &o.state, &o.format)
	c.Flags().IntVar(&o.revision, "revision", 0, "the revision to go back to (default: the last good one before)")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and change nothing")
	return c
}

func newWorkloadRemoveCommand(global *globalOptions) *cobra.Command {
	var o workloadOptions
	c := &cobra.Command{
		Use:   "remove NAME",
		Short: "Take a workload off the cluster",
		Long: `Take a workload off the cluster that install.yaml does not list any more. Its volume
claims stay, and so do namespaces and definitions of custom resources, with all that is in
them: a workload of the same name and namespace takes them over again. With
--delete-claims-and-their-data they go too, and what is in them is lost.`,
		Example: `  boxlift workload remove gov-native -f install.yaml --dry-run
  boxlift workload remove gov-native -f install.yaml`,
		Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return o.run(out, global, r, func(options install.Options) (*run.Summary, error) {
					return install.RemoveWorkload(cmd.Context(), options, args[0], o.withData)
				})
			})
		},
	}
	addConfiguration(c, &o.config, &o.state, &o.format)
	c.Flags().BoolVar(&o.withData, "delete-claims-and-their-data", false,
		"delete claims, namespaces and definitions of custom resources too, and LOSE what is in them")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and change nothing")
	return c
}

func (o *workloadOptions) load(global *globalOptions, reporter progress.Reporter) (install.Options, error) {
	if err := checkFormat(o.format); err != nil {
		return install.Options{}, err
	}
	options, err := loadConfiguration(o.config, global.warner(reporter))
	if err != nil {
		return install.Options{}, err
	}
	options.Version, options.StatePath = version, o.config.statePath(o.state)
	options.Reporter, options.Log, options.DryRun = reporter, global.logger(reporter), o.dryRun
	return options, nil
}

// run does what changes a workload, and shows what it has done.
func (o *workloadOptions) run(out io.Writer, global *globalOptions, reporter progress.Reporter,
	do func(install.Options) (*run.Summary, error)) error {
	options, err := o.load(global, reporter)
	if err != nil {
		return err
	}
	summary, err := do(options)
	if summary == nil {
		return err
	}
	return errors.Join(err, printChanges(out, summary, o.format))
}

func listWorkloads(ctx context.Context, out io.Writer, global *globalOptions, o workloadOptions,
	reporter progress.Reporter) error {
	options, err := o.load(global, reporter)
	if err != nil {
		return err
	}
	list, err := install.Workloads(ctx, options)
	if err != nil {
		return err
	}
	if o.format == "json" {
		return printJSON(out, list)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("WORKLOAD\tNAMESPACE\tVERSION\tREVISION\tSTATE\tSINCE\tINSTALL.YAML\n")
	for _, one := range list {
		state, since, listed := "not installed", "", "yes"
		if one.State != "" {
			state, since = one.State, one.Since.Format(time.RFC3339)
		}
		if !one.Listed {
			listed = "no"
		}
		w.printf("%s\t%s\t%s\t%d\t%s\t%s\t%s\n", one.Name, one.Namespace, one.Version, one.Revision, state, since, listed)
	}
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}
