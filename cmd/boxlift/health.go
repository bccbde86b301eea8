package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/metrics"
	"github.com/liteboxd/boxlift/internal/progress"
)

type healthOptions struct {
	config configuration
	format string
	only   []string
	// hardening asks for the items of the benchmark, and for nothing else
	hardening bool
}

func newHealthCommand(global *globalOptions) *cobra.Command {
	var o healthOptions
	c := &cobra.Command{
		Use:   "health",
		Short: "Try out whether a platform does what it is for",
		Long: `Look at the hosts of install.yaml and at the cluster, and try out what they are for:
nodes, Cilium, DNS, LiteBoxd and its volume, the way from outside to LiteBoxd and from its
gateway to sandboxes, what sandboxes must not reach, revocations, certificates, clocks and disks. The
bundle is not needed. Nothing is changed; a few pods that it takes are gone at the end.

Exit code 7 means that something is not well, 6 that a host or the cluster cannot be
reached. Warnings and what was skipped do not count.

--only makes some checks alone: ` + strings.Join(inspect.HealthChecks(), ", ") + `.
sandbox-to-internet is made only when it is named there: it addresses a host outside.

-o prometheus prints metrics, for a textfile collector or whoever fetches files.

--hardening compares hosts and cluster with the CIS Kubernetes Benchmark instead, item by
item, whether install.yaml asks for cluster.hardening or not; exit code 7 means that an
item is not as it is to be. Nothing is made in the cluster for it.`,
		Example: `  boxlift health -f install.yaml
  boxlift health -f install.yaml --only registry,certificate
  boxlift health -f install.yaml -o json
  boxlift health -f install.yaml -o prometheus >/var/lib/node_exporter/boxlift-health.prom
  boxlift health -f install.yaml --hardening`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runHealth(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.config.addFlags(c)
	c.Flags().StringVarP(&o.format, "output", "o", "table", "format: table, json or prometheus")
	c.Flags().StringSliceVar(&o.only, "only", nil, "make these checks alone, with commas between them")
	c.Flags().BoolVar(&o.hardening, "hardening", false, "compare with the CIS Kubernetes Benchmark, and make no other check")
	return c
}

func runHealth(ctx context.Context, out io.Writer, global *globalOptions, o healthOptions,
	reporter progress.Reporter) error {
	if err := checkMetricsFormat(o.format); err != nil {
		return err
	}
	if o.hardening && o.only != nil {
		return fault.Usage.Errorf("--hardening and --only: expected one of them")
	}
	if o.hardening && o.format == prometheus {
		return fault.Usage.Errorf("--hardening and --output prometheus: expected one of them")
	}
	if err := checkOnly(o.only); err != nil {
		return err
	}
	options, err := loadTrusting(o.config, global.warner(reporter))
	if err != nil {
		return err
	}
	options.Reporter, options.Log = reporter, global.logger(reporter)
	if o.hardening {
		found, err := install.CheckHardening(ctx, options)
		if found == nil {
			return err
		}
		return errors.Join(err, printHardening(out, found, o.format))
	}
	health, err := install.CheckHealth(ctx, options, o.only)
	if health == nil {
		return err
	}
	return errors.Join(err, printHealth(out, health, o.format))
}

func printHealth(out io.Writer, h *inspect.Health, format string) error {
	switch format {
	case "json":
		return printJSON(out, h)
	case prometheus:
		return metrics.Write(out, h.Gauges(time.Now())...)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	counts := make(map[inspect.State]int)
	w.printf("CHECK\tSTATE\tWHERE\tFOUND\n")
	for _, c := range h.Checks {
		counts[c.State]++
		w.printf("%s\t%s\t%s\t%s\n", c.Check, c.State, orDash(c.Subject), c.Detail)
		if c.Hint != "" {
			w.printf("\t\t\t%s\n", c.Hint)
		}
	}
	if w.err == nil {
		w.err = t.Flush()
	}
	w.w = out
	w.printf("cluster %s: %d ok, %d warnings, %d failed, %d skipped\n", h.Cluster,
		counts[inspect.HealthOK], counts[inspect.HealthWarning], counts[inspect.HealthFailed],
		counts[inspect.HealthSkipped])
	if w.err != nil {
		return fmt.Errorf("print what was found: %w", w.err)
	}
	return nil
}

func printHardening(out io.Writer, h *inspect.Hardening, format string) error {
	if format == "json" {
		return printJSON(out, h)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	counts := make(map[inspect.State]int)
	w.printf("ITEM\tSTATE\tWHERE\tWHAT\tFOUND\n")
	for _, i := range h.Items {
		counts[i.State]++
		w.printf("%s\t%s\t%s\t%s\t%s\n", i.Item, i.State, orDash(i.Subject), i.What, i.Found)
		if i.State == inspect.HealthOK {
			continue
		}
		if i.Expected != "" {
			w.printf("\t\t\t\texpected: %s\n", i.Expected)
		}
		if i.Remedy != "" {
			w.printf("\t\t\t\t%s\n", i.Remedy)
		}
	}
	if w.err == nil {
		w.err = t.Flush()
	}
	w.w = out
	w.printf("cluster %s: %d ok, %d failed\n", h.Cluster, counts[inspect.HealthOK], counts[inspect.HealthFailed])
	if w.err != nil {
		return fmt.Errorf("print what was found: %w", w.err)
	}
	return nil
}
