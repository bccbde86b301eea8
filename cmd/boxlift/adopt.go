package main

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/progress"
)

type adoptOptions struct {
	clusterOptions
	state string
}

func newAdoptCommand(global *globalOptions) *cobra.Command {
	var o adoptOptions
	c := &cobra.Command{
		Use:   "adopt",
		Short: "Record what runs on a cluster that has no record",
		Long: `Record a bundle as the one that the cluster runs. That is for clusters that an older
boxlift or somebody else has installed, and for records that were lost. What runs is found
out first: k3s on every node, Cilium's Helm release, LiteBoxd's image. All of it has to be
of the bundle's versions, and the nodes have to be the hosts of install.yaml; otherwise
everything that does not match is listed. Nothing but the record is written.

A k3s that boxlift did not set up stays that: what runs is on record then, and backup create
works with it; install, upgrade, rollback --to, node add and backup restore refuse its hosts.`,
		Example: `  boxlift adopt --bundle bundle.tar --key boxlift.pub -f install.yaml`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runAdopt(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addFlags(c)
	c.Flags().StringVar(&o.state, "state", "", "where state.json is, beside which a copy of the record is kept (default: beside the configuration)")
	return c
}

func runAdopt(ctx context.Context, out io.Writer, global *globalOptions, o adoptOptions, reporter progress.Reporter) error {
	options, err := o.open(ctx, global.warner(reporter), reporter)
	if err != nil {
		return err
	}
	defer options.Bundle.Close() //nolint:errcheck // it was only read
	options.StatePath, options.Log = statePath(o.state, o.config), global.logger(reporter)
	adoption, err := install.Adopt(ctx, options)
	if adoption == nil {
		return err
	}
	return errors.Join(printAdoption(out, adoption, o.format), err)
}

func printAdoption(out io.Writer, a *install.Adoption, format string) error {
	if format == "json" {
		return printJSON(out, a)
	}
	w := &errorWriter{w: out}
	for _, name := range slices.Sorted(maps.Keys(a.Nodes)) {
		w.printf("node %s: k3s %s\n", name, a.Nodes[name])
	}
	w.printf("Cilium %s\n", a.Cilium)
	if a.LiteBoxd != "" {
		w.printf("LiteBoxd %s\n", a.LiteBoxd)
	}
	switch {
	case a.New:
		w.printf("cluster %s is recorded as release %d, of bundle %s\n", a.Cluster, a.Release.Number, shortDigest(a.Release.Bundle.String()))
	case a.Release.Number != 0:
		w.printf("nothing to do: cluster %s is on record as release %d, of bundle %s\n", a.Cluster, a.Release.Number, shortDigest(a.Release.Bundle.String()))
	}
	if len(a.Foreign) > 0 {
		w.printf("warning: boxlift did not set up k3s on %s: what runs there is on record, and can be backed up; install, upgrade, rollback --to, node add and backup restore refuse these hosts\n", strings.Join(a.Foreign, ", "))
	}
	return w.err
}
