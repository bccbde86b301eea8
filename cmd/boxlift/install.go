package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/progress"
)

// clusterOptions are the flags of the commands that work on a cluster.
type clusterOptions struct {
	verifyOptions
	bundle string
	config string
	format string
}

func (o *clusterOptions) addFlags(c *cobra.Command) {
	o.verifyOptions.addFlags(c)
	c.Flags().StringVar(&o.bundle, "bundle", "", "the bundle (required)")
	c.Flags().StringVarP(&o.config, "file", "f", "install.yaml", "the configuration")
	c.Flags().StringVarP(&o.format, "output", "o", "table", "format: table or json")
}

// load reads the configuration and opens the bundle, whose signature it checks.
func (o *clusterOptions) load(warn func(string)) (*config.Config, *bundle.Reader, error) {
	if err := checkFormat(o.format); err != nil {
		return nil, nil, err
	}
	if o.bundle == "" {
		return nil, nil, usagef("--bundle is needed: the bundle to install from")
	}
	key, err := o.publicKey()
	if err != nil {
		return nil, nil, err
	}
	c, warnings, err := config.Load(o.config, os.LookupEnv)
	if err != nil {
		return nil, nil, &inputError{err}
	}
	for _, w := range warnings {
		warn("warning: " + w.String())
	}
	r, err := bundle.Open(o.bundle)
	if err != nil {
		return nil, nil, damagedHint(err)
	}
	if key == nil {
		warn("warning: THE SIGNATURE OF THE BUNDLE IS NOT CHECKED (--insecure-skip-signature): whoever made this file gets root on every host")
		return c, r, nil
	}
	if err := r.VerifySignature(key); err != nil {
		_ = r.Close()
		return nil, nil, signatureHint(err)
	}
	return c, r, nil
}

type installOptions struct {
	clusterOptions
	state  string
	dryRun bool
}

func newInstallCommand(global *globalOptions) *cobra.Command {
	var o installOptions
	c := &cobra.Command{
		Use:   "install",
		Short: "Install a cluster from a bundle over SSH",
		Long: `Install the cluster that install.yaml describes from a bundle, over SSH and
without any internet. The bundle is verified first, as a whole; then all hosts are
looked at; only then is anything changed. A dry run logs in to the hosts but puts
nothing on them, not even the helper that looks at disks and mounts.

This version brings up k3s, on one server and its agents, with all images of the
bundle. It does not deploy Cilium and LiteBoxd yet.

A second run changes nothing. A run that failed or was interrupted goes on when the
same command is run again.`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runInstall(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addFlags(c)
	c.Flags().StringVar(&o.state, "state", "", "where to keep state.json (default: beside the configuration)")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and change nothing")
	return c
}

func runInstall(ctx context.Context, out io.Writer, global *globalOptions, o installOptions, reporter progress.Reporter) error {
	start := time.Now()
	c, r, err := o.load(global.warner(reporter))
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if err := r.Verify(ctx, reporter); err != nil {
		return damagedHint(err)
	}
	state := o.state
	if state == "" {
		state = filepath.Join(filepath.Dir(o.config), "state.json")
	}
	summary, err := install.Install(ctx, install.Options{
		Config: c, Bundle: r, StatePath: state, DryRun: o.dryRun || c.Runtime.DryRun, Reporter: reporter, Log: global.logger(reporter),
	})
	if summary == nil {
		return err
	}
	return errors.Join(err, printSummary(out, summary, o.format, err == nil, time.Since(start)))
}

func printSummary(out io.Writer, s *install.Summary, format string, succeeded bool, took time.Duration) error {
	if format == "json" {
		return printJSON(out, s)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("HOST\tROLE\tK3S\tIMAGES\tSENT\tREUSED\tCHANGES\n")
	for _, h := range s.Hosts {
		changes := fmt.Sprint(len(h.Changes))
		if h.Error != "" {
			changes += ", then failed"
		}
		w.printf("%s\t%s\t%s\t%d\t%s\t%s\t%s\n", h.Host, h.Role, orDash(h.K3s), h.Images, progress.Bytes(h.Sent), progress.Bytes(h.Copied), changes)
	}
	if w.err == nil {
		w.err = t.Flush()
	}
	w.w = out
	if s.DryRun {
		for _, h := range s.Hosts {
			for _, c := range h.Changes {
				w.printf("%s: would %s (%s)\n", h.Host, c.Title, c.Reason)
			}
		}
	}
	phases := make([]string, 0, len(s.Phases))
	for _, p := range s.Phases {
		phases = append(phases, p.Phase+" "+progress.Duration(time.Duration(p.Seconds*float64(time.Second))))
	}
	w.printf("phases: %s\n", strings.Join(phases, ", "))
	if succeeded {
		w.printf("this version of boxlift does not deploy Cilium and LiteBoxd yet: nodes stay NotReady until a pod network is there\n")
	}
	switch {
	case !succeeded:
	case s.DryRun:
		w.printf("dry run: %d changes would be made; nothing was changed\n", s.Changes())
	case s.Changes() == 0:
		w.printf("nothing to do: cluster %s is as bundle %s has it (%s)\n", s.Cluster, shortDigest(s.Bundle), progress.Duration(took))
	default:
		w.printf("cluster %s: k3s and all images from bundle %s are in place: %d changes in %s\n", s.Cluster, shortDigest(s.Bundle), s.Changes(), progress.Duration(took))
	}
	return w.err
}

func shortDigest(d string) string { return d[:min(len(d), len("sha256:")+12)] }

func newStatusCommand(global *globalOptions) *cobra.Command {
	var o clusterOptions
	c := &cobra.Command{
		Use:   "status",
		Short: "Compare a cluster with a bundle",
		Long: `Look at all hosts of install.yaml, change nothing, and say what differs from the
bundle. Exit code 7 means that something does.`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runStatus(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addFlags(c)
	return c
}

func runStatus(ctx context.Context, out io.Writer, global *globalOptions, o clusterOptions, reporter progress.Reporter) error {
	c, r, err := o.load(global.warner(reporter))
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	hosts, err := install.Status(ctx, install.Options{Config: c, Bundle: r, Reporter: reporter, Log: global.logger(reporter)})
	if hosts == nil {
		return err
	}
	return errors.Join(err, printStatus(out, hosts, o.format))
}

func printStatus(out io.Writer, hosts []install.HostStatus, format string) error {
	if format == "json" {
		return printJSON(out, hosts)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("HOST\tROLE\tSERVICE\tK3S\tPACKS\tIMAGES\tDISK\n")
	for _, h := range hosts {
		if h.Error != "" {
			w.printf("%s\t%s\tunknown\t-\t-\t-\t-\n", h.Host, h.Role)
			continue
		}
		w.printf("%s\t%s\t%s\t%s\t%d\t%d\t%s\n", h.Host, h.Role, h.Service, orDash(h.K3s), h.Packs, h.Images, progress.Bytes(h.PackBytes))
	}
	if w.err == nil {
		w.err = t.Flush()
	}
	w.w = out
	for _, h := range hosts {
		for _, d := range h.Differences {
			w.printf("%s: %s\n", h.Host, d)
		}
	}
	if w.err != nil {
		return fmt.Errorf("print the status: %w", w.err)
	}
	return nil
}
