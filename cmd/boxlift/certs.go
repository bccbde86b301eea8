package main

import (
	"context"
	"errors"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/internal/progress"
)

func newCertsCommand(global *globalOptions) *cobra.Command {
	return group("certs", "See when a cluster's certificates end, and renew them", newCertsCheckCommand(global),
		newCertsRotateCommand(global))
}

type certsOptions struct {
	config string
	state  string
	format string
	all    bool
	dryRun bool
}

func newCertsCheckCommand(global *globalOptions) *cobra.Command {
	var o certsOptions
	c := &cobra.Command{
		Use:   "check",
		Short: "Show when the certificates of a cluster end",
		Long: `Read the certificates of k3s on every host, of boxlift's registry, and the authority
beside the state, and show those that end within 120 days. k3s renews its own when it is
started within that time; a cluster that is never started again stops after a year.

Exit code 7 means that at least one ends within 120 days, or has ended.`,
		Example: `  boxlift certs check -f install.yaml
  boxlift certs check -f install.yaml --all`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runCertsCheck(cmd.Context(), out, global, o, r)
			})
		},
	}
	addConfiguration(c, &o.config, &o.state, &o.format)
	c.Flags().BoolVar(&o.all, "all", false, "show all certificates")
	return c
}

func newCertsRotateCommand(global *globalOptions) *cobra.Command {
	var o certsOptions
	c := &cobra.Command{
		Use:   "rotate",
		Short: "Renew the certificates of k3s, one host after the other",
		Long: `Stop k3s on one host, let it make its certificates anew (k3s certificate rotate), start
it, and wait until it serves and its node is Ready; then the next host, servers first,
never two at once. Pods go on running. Authorities stay: they last ten years.`,
		Example: `  boxlift certs rotate -f install.yaml`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runCertsRotate(cmd.Context(), out, global, o, r)
			})
		},
	}
	addConfiguration(c, &o.config, &o.state, &o.format)
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and change nothing")
	return c
}

func (o *certsOptions) options(global *globalOptions, reporter progress.Reporter) (install.Options, error) {
	if err := checkFormat(o.format); err != nil {
		return install.Options{}, err
	}
	options, err := loadConfiguration(o.config, global.warner(reporter))
	options.StatePath, options.DryRun = statePath(o.state, o.config), o.dryRun
	options.Reporter, options.Log = reporter, global.logger(reporter)
	return options, err
}

func runCertsCheck(ctx context.Context, out io.Writer, global *globalOptions, o certsOptions,
	reporter progress.Reporter) error {
	options, err := o.options(global, reporter)
	if err != nil {
		return err
	}
	found, err := install.CheckCertificates(ctx, options)
	if found == nil {
		return err
	}
	return errors.Join(err, printCertificates(out, found, o))
}

func printCertificates(out io.Writer, found *certificates.Certificates, o certsOptions) error {
	if o.format == "json" {
		return printJSON(out, found)
	}
	list := found.Soon()
	if o.all {
		list = found.Certificates
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	if len(list) > 0 {
		w.printf("HOST\tCERTIFICATE\tSUBJECT\tENDS\tDAYS LEFT\tRENEWAL\n")
	}
	for _, c := range list {
		w.printf("%s\t%s\t%s\t%s\t%d\t%s\n", orDash(c.Host), c.Path, c.Subject, c.NotAfter.Format(time.DateOnly),
			c.DaysLeft, orDash(c.Renewal))
	}
	if w.err == nil {
		w.err = t.Flush()
	}
	w.w = out
	for _, p := range found.Problems {
		w.printf("warning: %s\n", p)
	}
	w.printf("cluster %s: %d certificates, %d end within 120 days", found.Cluster, len(found.Certificates),
		len(found.Soon()))
	if len(found.Certificates) > 0 {
		w.printf("; the first in %d days", found.Certificates[0].DaysLeft)
	}
	w.printf("\n")
	return w.err
}

func runCertsRotate(ctx context.Context, out io.Writer, global *globalOptions, o certsOptions,
	reporter progress.Reporter) error {
	options, err := o.options(global, reporter)
	if err != nil {
		return err
	}
	summary, err := install.RotateCertificates(ctx, options)
	if summary == nil {
		return err
	}
	return errors.Join(err, printRotation(out, summary, o.format))
}

// printRotation shows what was done host by host.
func printRotation(out io.Writer, s *run.Summary, format string) error {
	if format == "json" {
		return printJSON(out, s)
	}
	w := &errorWriter{w: out}
	done := "done"
	if s.DryRun {
		done = "would be done"
	}
	for _, h := range s.Hosts {
		for _, c := range h.Changes {
			w.printf("%s: %s: %s\n", h.Host, c.Title, done)
		}
	}
	for _, text := range s.Warnings {
		w.printf("warning: %s\n", text)
	}
	return w.err
}
