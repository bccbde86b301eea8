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
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/metrics"
	"github.com/liteboxd/boxlift/internal/progress"
)

func newCertsCommand(global *globalOptions) *cobra.Command {
	return group("certs", "See when a cluster's certificates end, and renew them", newCertsStatusCommand(global),
		newCertsRotateCommand(global))
}

type certsOptions struct {
	config configuration
	state  string
	format string
	dryRun bool
	// kubeconfigs are exported ones
	kubeconfigs []string
}

func newCertsStatusCommand(global *globalOptions) *cobra.Command {
	var o certsOptions
	c := &cobra.Command{
		Use:   "status",
		Short: "Show when the certificates of a cluster end",
		Long: `Read the certificates and authorities of k3s on every host, of boxlift's registry and the
authority beside the state, those in the cluster's Secrets of type kubernetes.io/tls, such
as an ingress has, and those in exported kubeconfigs that --kubeconfig names. All are shown,
with the days that are left, those that end first at the beginning. k3s renews its own when
it is started within 120 days of their end, and at no other time: a timer on each host
starts it again 80 days before, unless install.yaml has cluster.renewCertificates: false.
How that goes is told host by host.

-o prometheus prints metrics, for a textfile collector or whoever fetches files.

Exit code 7 means that at least one ends soon, or has ended: within 60 days where the timer
should have renewed it, within 120 days else; 6 that a host could not be asked.`,
		Example: `  boxlift certs status -f install.yaml
  boxlift certs status -f install.yaml --kubeconfig lan-1.yaml -o json
  boxlift certs status -f install.yaml -o prometheus >/var/lib/node_exporter/boxlift.prom`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runCertsStatus(cmd.Context(), out, global, o, r)
			})
		},
	}
	addConfiguration(c, &o.config, &o.state, &o.format)
	c.Flags().Lookup("output").Usage = "format: table, json or prometheus"
	c.Flags().StringArrayVar(&o.kubeconfigs, "kubeconfig", nil, "an exported kubeconfig to look at as well")
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
	options, err := loadConfiguration(o.config, global.warner(reporter))
	options.StatePath, options.DryRun = o.config.statePath(o.state), o.dryRun
	options.Reporter, options.Log = reporter, global.logger(reporter)
	return options, err
}

func runCertsStatus(ctx context.Context, out io.Writer, global *globalOptions, o certsOptions,
	reporter progress.Reporter) error {
	if err := checkMetricsFormat(o.format); err != nil {
		return err
	}
	options, err := o.options(global, reporter)
	if err != nil {
		return err
	}
	found, err := install.CheckCertificates(ctx, options, o.kubeconfigs)
	if found == nil {
		return err
	}
	return errors.Join(err, printCertificates(out, found, o))
}

// prometheus is the format of figures, beside table and JSON.
const prometheus = "prometheus"

// checkMetricsFormat accepts the formats of what can be figures as well.
func checkMetricsFormat(format string) error {
	if format != prometheus && checkFormat(format) != nil {
		return fault.Usage.Errorf("--output %q: expected table, json or prometheus", format)
	}
	return nil
}

func printCertificates(out io.Writer, found *certificates.Certificates, o certsOptions) error {
	switch o.format {
	case "json":
		return printJSON(out, found)
	case prometheus:
		return metrics.Write(out, found.Gauges()...)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	if len(found.Certificates) > 0 {
		w.printf("HOST\tKIND\tCERTIFICATE\tSUBJECT\tENDS\tDAYS LEFT\tRENEWAL\n")
	}
	for _, c := range found.Certificates {
		w.printf("%s\t%s\t%s\t%s\t%s\t%d\t%s\n", orDash(c.Host), c.Kind, c.Path, c.Subject,
			c.NotAfter.Format(time.DateOnly), c.DaysLeft, orDash(c.Renewal))
	}
	if w.err == nil {
		w.err = t.Flush()
	}
	w.w = out
	for _, p := range found.Problems {
		w.printf("warning: %s\n", p)
	}
	for _, r := range found.Renewals {
		w.printf("%s: %s\n", r.Host, renewalText(r))
	}
	w.printf("cluster %s: %d certificates, %d end soon", found.Cluster, len(found.Certificates),
		len(found.Soon()))
	if len(found.Certificates) > 0 {
		w.printf("; the first in %d days", found.Certificates[0].DaysLeft)
	}
	w.printf("\n")
	return w.err
}

// renewalText says how a host gets on with renewing its certificates by itself.
func renewalText(r certificates.Renewal) string {
	text := "a timer renews its certificates ahead of their end"
	switch {
	case r.Idle != "":
		text = "its certificates are not renewed by themselves: " + r.Idle
	case r.Looked.IsZero():
		text += ", and has not looked yet"
	default:
		text += ", looked on " + r.Looked.Format(time.DateOnly)
	}
	if !r.Renewed.IsZero() {
		text += ", renewed them on " + r.Renewed.Format(time.DateOnly)
	}
	if r.Waits != "" {
		text += "; it waits: " + r.Waits
	}
	if r.Failure != "" {
		text += "; " + r.Failure
	}
	return text
}

func runCertsRotate(ctx context.Context, out io.Writer, global *globalOptions, o certsOptions,
	reporter progress.Reporter) error {
	if err := checkFormat(o.format); err != nil {
		return err
	}
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
