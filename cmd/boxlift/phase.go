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
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
)

func newPhaseCommand(global *globalOptions) *cobra.Command {
	return group("phase", "Install step by step", newPhaseListCommand(), newPhaseRunCommand(global))
}

func newPhaseListCommand() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "list",
		Short: "Show the phases of an installation",
		Long: `Show the phases that boxlift install goes through, in their order, and what each does.
boxlift phase run goes through one of them.`,
		Example: `  boxlift phase list`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			return printPhaseList(cmd.OutOrStdout(), install.Phases(), format)
		},
	}
	c.Flags().StringVarP(&format, "output", "o", "table", "format: table or json")
	return c
}

func printPhaseList(out io.Writer, phases []install.Phase, format string) error {
	if format == "json" {
		return printJSON(out, phases)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("PHASE\tWHAT IT DOES\n")
	for _, p := range phases {
		w.printf("%s\t%s\n", p.Name, p.Does)
	}
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}

// finishPhase is the one that writes a kubeconfig.
const finishPhase = "finish"

func newPhaseRunCommand(global *globalOptions) *cobra.Command {
	var o installOptions
	c := &cobra.Command{
		Use:   "run PHASE",
		Short: "Run one phase of an installation",
		Long: `Run one phase of an installation and no other, on hosts that are looked at and judged
first, as in preflight. It is refused where something is missing that phases before it
bring. Like install, it changes only what is not yet as it is to be.

The bundle has to be the one that the cluster was made from. The run is noted in state.json
and in the cluster's record, and makes no release there: boxlift install does, which finds
nothing to change when all phases were run.

With --dry-run it shows what the phase would do. Of place, majority and finish there is
nothing to show: the phases after them do.`,
		Example: `  boxlift phase list
  boxlift phase run servers --bundle bundle.tar --key boxlift.pub -f install.yaml --dry-run
  boxlift phase run servers --bundle bundle.tar --key boxlift.pub -f install.yaml`,
		Args: arguments("PHASE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.kubeconfig != "" && args[0] != finishPhase {
				return fault.Usage.Errorf("--kubeconfig is for the phase %s, which writes it", finishPhase)
			}
			if err := install.CheckPhase(args[0], o.dryRun); err != nil { // before the bundle is read
				return err
			}
			if err := o.note(cmd.Flags(), o.keptInstallFlags()); err != nil {
				return err
			}
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runPhase(cmd.Context(), out, global, o, args[0], r)
			})
		},
	}
	o.addFlags(c)
	c.Flags().AddFlagSet(givingUpFlags(&o.giveUpDataOn))
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and change nothing")
	return c
}

func runPhase(ctx context.Context, out io.Writer, global *globalOptions, o installOptions, name string,
	reporter progress.Reporter) error {
	start := time.Now()
	options, err := o.openOptions(ctx, global, reporter)
	if err != nil {
		return err
	}
	defer options.Bundle.Close() //nolint:errcheck // it was only read
	summary, err := install.RunPhase(ctx, options, name)
	if summary == nil {
		return err
	}
	return errors.Join(err, printPhaseSummary(out, name, summary, o.format, err == nil, time.Since(start)))
}

// printPhaseSummary shows what one phase has done, or would do.
func printPhaseSummary(out io.Writer, name string, s *run.Summary, format string, succeeded bool,
	took time.Duration) error {
	if format == "json" {
		return printJSON(out, s)
	}
	w := &errorWriter{w: out}
	if s.DryRun {
		printPlan(w, s)
	} else {
		for _, h := range s.Hosts {
			for _, c := range h.Changes {
				w.printf("%s: %s (%s)\n", h.Host, c.Title, c.Reason)
			}
		}
		for _, c := range s.Changes {
			w.printf("cluster: %s (%s)\n", c.Title, c.Reason)
		}
	}
	if s.Overview != nil && w.err == nil {
		w.err = printOverview(out, s.Overview)
	}
	printLiteBoxd(w, s)
	for _, text := range s.Warnings {
		w.printf("warning: %s\n", text)
	}
	switch changes := s.ChangeCount(); {
	case !succeeded:
	case s.DryRun:
		w.printf("dry run: phase %s would make %s; nothing was changed\n", name, printable.Counted(changes, "change"))
	case changes == 0:
		w.printf("phase %s: nothing to do (%s)\n", name, progress.Duration(took))
	default:
		w.printf("phase %s: %s in %s\n", name, printable.Counted(changes, "change"), progress.Duration(took))
	}
	return w.err
}
