package main

import (
	"context"
	"errors"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/internal/progress"
)

func newPreflightCommand(global *globalOptions) *cobra.Command {
	var o clusterOptions
	c := &cobra.Command{
		Use:   "preflight",
		Short: "Find out whether hosts can be installed",
		Long: `Look at all hosts of install.yaml and list what stands in the way of an installation:
what was found, what is needed, and how to mend it. Findings that are errors stop boxlift
install; warnings do not, and neither does what is to be prepared, where install.yaml has
hosts.prepare. Nothing is changed on the hosts but that boxlift's own helper
is put into /var/lib/boxlift.

Exit code 6 means that there is an error, or that a host cannot be looked at.`,
		Example: `  boxlift preflight --bundle bundle.tar --key boxlift.pub -f install.yaml`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runPreflight(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addFlags(c)
	return c
}

func runPreflight(ctx context.Context, out io.Writer, global *globalOptions, o clusterOptions,
	reporter progress.Reporter) error {
	options, err := o.open(ctx, global.warner(reporter), reporter)
	if err != nil {
		return err
	}
	defer options.Bundle.Close() //nolint:errcheck // it was only read
	options.Log = global.logger(reporter)
	findings, err := install.Preflight(ctx, options)
	return errors.Join(printFindings(out, findings, o.format), err)
}

func printFindings(out io.Writer, findings []preflight.Finding, format string) error {
	if format == "json" {
		return printJSON(out, append([]preflight.Finding{}, findings...))
	}
	if len(findings) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("HOST\tSEVERITY\tCHECK\tFOUND\n")
	for _, f := range findings {
		w.printf("%s\t%s\t%s\t%s\n", f.Host, f.Severity, f.Check, f.Found)
		w.printf("\t\t\tneeded: %s\n", f.Needed)
		w.printf("\t\t\t%s\n", f.Hint)
	}
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}
