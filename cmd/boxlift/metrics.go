package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/metrics"
	"github.com/liteboxd/boxlift/internal/ownfile"
	"github.com/liteboxd/boxlift/internal/progress"
)

type metricsOptions struct {
	config   configuration
	output   string
	only     []string
	listen   string
	interval time.Duration
}

// Between two looks at a site are at least leastInterval and, unless somebody says otherwise, usualInterval: each has
// pods come and go.
const (
	leastInterval = time.Minute
	usualInterval = 15 * time.Minute
)

func newMetricsCommand(global *globalOptions) *cobra.Command {
	var o metricsOptions
	c := &cobra.Command{
		Use:   "metrics",
		Short: "Print all figures of a site for Prometheus",
		Long: `Look at the hosts of install.yaml and at the cluster, and print one page with all figures of
the site in Prometheus' text form: what "boxlift health" checks, when certificates end,
nodes, hosts with their memory, load and filesystems, releases, and how old the backups are
that servers make by themselves. docs/metrics.md lists them. The bundle is not needed.
Nothing is changed; a few pods that the checks take are gone at the end.

-o FILE writes the page to a file, whole or not at all, for the node exporter's textfile
collector. --listen serves it at /metrics instead, until it is ended, and looks again each
--interval; a port alone, such as :9809, is one of 127.0.0.1. It needs no login and serves
nothing else, so let others than this machine reach it only where they may see the figures.

What is not well is told by the figures, not by the exit code; 6 means that a host or the
cluster could not be reached, and the page has the rest.`,
		Example: `  boxlift metrics -f install.yaml
  boxlift metrics -f install.yaml -o /var/lib/node_exporter/boxlift.prom
  boxlift metrics -f install.yaml --listen :9809 --interval 30m`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runMetrics(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.config.addFlags(c)
	c.Flags().StringVarP(&o.output, "output", "o", "", "file to write (default: standard output)")
	c.Flags().StringSliceVar(&o.only, "only", nil, "make these checks of health alone, with commas between them")
	c.Flags().StringVar(&o.listen, "listen", "", "address to serve /metrics at, such as :9809 or 10.0.0.5:9809")
	c.Flags().DurationVar(&o.interval, "interval", usualInterval, "with --listen: the time from one look to the next")
	return c
}

// checkOnly refuses checks of health that there are not.
func checkOnly(only []string) error {
	for _, c := range only {
		if !slices.Contains(inspect.HealthChecks(), c) {
			return fault.Usage.Errorf("--only: there is no check %q: expected %s", c,
				strings.Join(inspect.HealthChecks(), ", "))
		}
	}
	return nil
}

func runMetrics(ctx context.Context, out io.Writer, global *globalOptions, o metricsOptions,
	reporter progress.Reporter) error {
	if err := checkOnly(o.only); err != nil {
		return err
	}
	if o.output != "" && o.listen != "" {
		return fault.Usage.Errorf("--output and --listen: expected one of them")
	}
	if o.interval < leastInterval {
		return fault.Usage.Errorf("--interval %v: expected at least %v", o.interval, leastInterval)
	}
	options, err := loadTrusting(o.config, global.warner(reporter))
	if err != nil {
		return err
	}
	options.Version, options.Reporter, options.Log = version, reporter, global.logger(reporter)
	if o.listen != "" {
		return serveMetrics(ctx, options, o, reporter)
	}
	page, err := metricsPage(ctx, options, o.only)
	if page == nil {
		return err
	}
	return errors.Join(err, writeMetrics(out, page, o.output))
}

// metricsPage looks at a site. The page is nil where there is nothing to tell, and complete beside an error otherwise.
func metricsPage(ctx context.Context, options install.Options, only []string) ([]byte, error) {
	found, err := install.Measure(ctx, options, only)
	if found == nil {
		return nil, err
	}
	var page bytes.Buffer
	if failed := metrics.Write(&page, found.Gauges()...); failed != nil {
		return nil, failed
	}
	return page.Bytes(), err
}

func writeMetrics(out io.Writer, page []byte, output string) error {
	if output == "" {
		_, err := out.Write(page)
		return err
	}
	// Whoever collects it is another user.
	if err := ownfile.Replace(output, page, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	return nil
}
