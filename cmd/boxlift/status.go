package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/images"
)

func newStatusCommand(global *globalOptions) *cobra.Command {
	var o clusterOptions
	var state string
	c := &cobra.Command{
		Use:   "status",
		Short: "Compare a cluster with install.yaml and a bundle",
		Long: `Look at all hosts of install.yaml and at the cluster, change nothing, and list every
difference from what install.yaml and the bundle ask for: versions, files, units,
images, what is deployed, nodes.

Exit code 7 means that something differs, 6 that a host cannot be looked at.`,
		Example: `  boxlift status --bundle bundle.tar --key boxlift.pub -f install.yaml`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runStatus(cmd.Context(), out, global, o, state, r)
			})
		},
	}
	o.addFlags(c)
	c.Flags().StringVar(&state, "state", "", "where state.json is, beside which the registry's authority lies "+
		"(default: beside the configuration)")
	return c
}

func runStatus(ctx context.Context, out io.Writer, global *globalOptions, o clusterOptions, state string,
	reporter progress.Reporter) error {
	options, err := o.load(ctx, global.warner(reporter))
	if err != nil {
		return err
	}
	defer options.Bundle.Close() //nolint:errcheck // it was only read
	options.StatePath, options.Reporter, options.Log = o.config.statePath(state), reporter, global.logger(reporter)
	status, err := install.Inspect(ctx, options)
	if status == nil {
		return err
	}
	return errors.Join(err, printStatus(out, status, o.format))
}

// diskColumns are what containerd takes, and what is free where it does.
func diskColumns(d *images.DiskUse) string {
	if d == nil {
		return "-\t-\t-"
	}
	snapshots := "unknown"
	if d.Snapshots != nil {
		snapshots = progress.Bytes(*d.Snapshots)
	}
	return progress.Bytes(d.Content) + "\t" + snapshots + "\t" + progress.Bytes(d.Free)
}

func printStatus(out io.Writer, s *inspect.Status, format string) error {
	if format == "json" {
		return printJSON(out, s)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("HOST\tROLE\tSERVICE\tK3S\tNODE\tPACKS\tIMAGES\tPACK DISK\tCONTENT\tSNAPSHOTS\tFREE\n")
	for _, h := range s.Hosts {
		if h.Error != "" {
			w.printf("%s\t%s\tunknown\t-\t-\t-\t-\t-\t-\t-\t-\n", h.Host, h.Role)
			continue
		}
		w.printf("%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", h.Host, h.Role, h.Service, orDash(h.K3s), orDash(h.Node),
			h.Packs, h.Images,
			progress.Bytes(h.PackBytes), diskColumns(h.Disk))
	}
	if w.err == nil {
		w.err = t.Flush()
	}
	w.w = out
	for _, h := range s.Hosts {
		for _, d := range h.Differences {
			w.printf("%s: %s\n", h.Host, d)
		}
	}
	for _, d := range s.Differences {
		w.printf("cluster: %s\n", d)
	}
	if w.err != nil {
		return fmt.Errorf("print the status: %w", w.err)
	}
	return nil
}
