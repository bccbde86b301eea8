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
	"github.com/liteboxd/boxlift/internal/progress"
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

A k3s that boxlift did not set up is adopted with that, if its settings are those that
boxlift and Cilium need and that install.yaml makes: it stays as it is, with its own unit,
settings and tokens. install, upgrade, rollback --to and node add then work with its hosts:
they look whether it runs, and upgrade replaces its program. backup restore and token rotate
refuse them.`,
		Example: `  boxlift adopt --bundle bundle.tar --key boxlift.pub -f install.yaml`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runAdopt(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addFlags(c)
	c.Flags().StringVar(&o.state, "state", "", "where state.json is, beside which a copy of the record is kept "+
		"(default: beside the configuration)")
	return c
}

func runAdopt(ctx context.Context, out io.Writer, global *globalOptions, o adoptOptions,
	reporter progress.Reporter) error {
	options, err := o.open(ctx, global.warner(reporter), reporter)
	if err != nil {
		return err
	}
	defer options.Bundle.Close() //nolint:errcheck // it was only read
	options.StatePath, options.Log = o.config.statePath(o.state), global.logger(reporter)
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
		w.printf("cluster %s is recorded as release %d, of bundle %s\n", a.Cluster, a.Release.Number,
			shortDigest(a.Release.Bundle.String()))
	case a.Release.Number != 0:
		w.printf("nothing to do: cluster %s is on record as release %d, of bundle %s\n", a.Cluster, a.Release.Number,
			shortDigest(a.Release.Bundle.String()))
	}
	if len(a.Adopted) > 0 {
		w.printf("boxlift did not set up k3s on %s: it is adopted, and stays as it is; boxlift install --dry-run "+
			"shows what else would change\n", strings.Join(a.Adopted, ", "))
	}
	for _, host := range slices.Sorted(maps.Keys(a.Differences)) {
		for _, text := range a.Differences[host] {
			w.printf("warning: %s: %s\n", host, text)
		}
	}
	return w.err
}
