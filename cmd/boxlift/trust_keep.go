package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
	"github.com/liteboxd/boxlift/internal/progress"
)

type trustKeepOptions struct {
	config        configuration
	state, format string
	dryRun        bool
}

func newTrustKeepCommand(global *globalOptions) *cobra.Command {
	var o trustKeepOptions
	c := &cobra.Command{
		Use:   "keep FILE",
		Short: "Have a cluster keep a newer trust file",
		Long: `Have the cluster of install.yaml keep a trust file, if that follows on the one that it
keeps, and its hosts with it. From then on, bundles are judged by it there, whatever is named
with --trust or --key, and "boxlift status" and "boxlift health" tell what runs and is revoked
by it. Installations and upgrades with a newer file do the same; this one needs no bundle.
Agents that cannot be reached are told of, and get it by the next run that reaches them.

The first file that a cluster is shown is taken as it is.`,
		Example: `  boxlift trust keep trust.json -f install.yaml`,
		Args:    arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runTrustKeep(cmd.Context(), out, global, args[0], o, r)
			})
		},
	}
	addConfiguration(c, &o.config, &o.state, &o.format)
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and change nothing")
	return c
}

func runTrustKeep(ctx context.Context, out io.Writer, global *globalOptions, path string, o trustKeepOptions,
	reporter progress.Reporter) error {
	if err := checkFormat(o.format); err != nil {
		return err
	}
	policy, err := readPolicy(path)
	if err != nil {
		return err
	}
	options, err := loadConfiguration(o.config, global.warner(reporter))
	if err != nil {
		return err
	}
	options.Demand.Policy, options.StatePath, options.DryRun = policy, o.config.statePath(o.state), o.dryRun
	options.Reporter, options.Log, options.Version = reporter, global.logger(reporter), version
	summary, err := install.KeepTrust(ctx, options)
	if summary == nil {
		return err
	}
	return errors.Join(err, printKept(out, summary, o.format, err == nil))
}

func printKept(out io.Writer, s *run.Summary, format string, succeeded bool) error {
	if format == "json" {
		return printJSON(out, s)
	}
	w := &errorWriter{w: out}
	would := ""
	if s.DryRun {
		would = "would "
	}
	for _, c := range s.Changes {
		w.printf("cluster %s: %s%s (%s)\n", s.Cluster, would, c.Title, c.Reason)
	}
	for _, h := range s.Hosts {
		for _, c := range h.Changes {
			w.printf("%s: %s%s (%s)\n", h.Host, would, c.Title, c.Reason)
		}
	}
	if s.ChangeCount() == 0 && succeeded {
		w.printf("nothing to do: cluster %s and its hosts keep this version already\n", s.Cluster)
	}
	for _, text := range s.Warnings {
		w.printf("warning: %s\n", text)
	}
	return w.err
}

func newTrustKeptCommand(global *globalOptions) *cobra.Command {
	var config configuration
	var output string
	c := &cobra.Command{
		Use:   "kept",
		Short: "Write the trust file that a cluster keeps",
		Long: `Write the trust file that the cluster of install.yaml keeps, of which that is the newest
version alone. It can be named with --trust, on another machine for example.`,
		Example: `  boxlift trust kept -f install.yaml -o trust.json`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				if output == "" {
					return fault.Usage.Errorf("--output is needed: the file to write")
				}
				options, err := loadConfiguration(config, global.warner(r))
				if err != nil {
					return err
				}
				options.StatePath, options.Reporter, options.Log = config.statePath(""), r, global.logger(r)
				return runTrustKept(cmd.Context(), out, output, options)
			})
		},
	}
	config.addFlags(c)
	c.Flags().StringVarP(&output, "output", "o", "", "the file to write (required)")
	return c
}

func runTrustKept(ctx context.Context, out io.Writer, output string, options install.Options) error {
	record, err := install.History(ctx, options)
	if err != nil {
		return err // the copy beside the state may be behind
	}
	p, err := record.KeptTrust()
	if err != nil {
		return fault.Input.Wrap(err)
	}
	if p == nil {
		return fault.WithHint(fault.Input.Errorf("cluster %s keeps no trust file", options.Config.Cluster.Name),
			"it keeps the first one that it is shown: boxlift trust keep, or --trust of install and upgrade")
	}
	content, err := p.File().Encode()
	if err != nil {
		return err
	}
	if err := ownfile.Replace(output, content, 0o644); err != nil {
		return fault.Input.Errorf("write %s: %w", output, err)
	}
	w := &errorWriter{w: out}
	w.printf("%s has version %d\ndigest: %s\n", output, p.Version().Number, p.Digest())
	return w.err
}
