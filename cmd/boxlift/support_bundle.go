package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/supportbundle"
	"github.com/liteboxd/boxlift/install/supportbundle/archive"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
)

type supportOptions struct {
	clusterOptions
	state    string
	output   string
	since    time.Duration
	logMiB   int
	item     time.Duration
	host     time.Duration
	noHealth bool
}

// maxLogMiB is how much of each log an archive can have.
const maxLogMiB = 30

func newSupportBundleCommand(global *globalOptions) *cobra.Command {
	var o supportOptions
	c := &cobra.Command{
		Use:   "support-bundle",
		Short: "Collect what somebody elsewhere needs to see of a cluster, without secrets",
		Long: `Collect logs, states, configuration and objects of the hosts of install.yaml and of the
cluster into one archive, which can be handed to somebody else: a tar within gzip with
README.txt and index.json. Secrets are masked, and those of Kubernetes are not read; look
through it all the same before it leaves the site. docs/support-bundle.md has what is in it.

What "boxlift doctor" sees is part of it, and doctor --from judges it elsewhere. Nothing is
changed, but that the checks of health make a few pods that are gone at the end; --no-health
leaves all of it out. No bundle is needed: with one, what "boxlift status" says is part of
it, too.

Exit code 6 means that a host or the cluster could not be reached. The archive is written all
the same: it has all else, and says what it lacks.`,
		Example: `  boxlift support-bundle -f install.yaml
  boxlift support-bundle --local --output support.tar.gz --since 24h
  boxlift support-bundle inspect support.tar.gz
  boxlift doctor --from support.tar.gz`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runSupportBundle(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addSourceFlags(c)
	c.Flags().Lookup("bundle").Usage = "the bundle that the cluster is to run, for what boxlift status says"
	c.Flags().StringVar(&o.state, "state", "", "where state.json is (default: beside the configuration)")
	c.Flags().StringVarP(&o.output, "output", "o", "", "the file to write "+
		"(default: boxlift-support-CLUSTER-TIME.tar.gz)")
	c.Flags().DurationVar(&o.since, "since", 72*time.Hour, "how far back logs go")
	c.Flags().IntVar(&o.logMiB, "log-mib", 8, fmt.Sprintf(
		"how much of the end of each log is taken, in MiB, 1 to %d", maxLogMiB))
	c.Flags().DurationVar(&o.item, "item-timeout", time.Minute, "how long one item may take")
	c.Flags().DurationVar(&o.host, "host-timeout", 10*time.Minute, "how long all of one host may take")
	c.Flags().BoolVar(&o.noHealth, "no-health", false, "leave out what boxlift doctor sees: no pods are made")
	c.AddCommand(newSupportBundleInspectCommand())
	return c
}

func (o *supportOptions) check() error {
	switch {
	case o.since <= 0, o.item <= 0, o.host <= 0:
		return fault.Usage.Errorf("--since, --item-timeout and --host-timeout: expected more than 0")
	case o.logMiB < 1 || o.logMiB > maxLogMiB:
		return fault.Usage.Errorf("--log-mib %d: expected 1 to %d", o.logMiB, maxLogMiB)
	}
	return nil
}

func runSupportBundle(ctx context.Context, out io.Writer, global *globalOptions, o supportOptions,
	reporter progress.Reporter) error {
	if err := o.check(); err != nil {
		return err
	}
	var options install.Options
	var err error
	if o.bundle == "" {
		if options, err = loadConfiguration(o.config, global.warner(reporter)); err != nil {
			return err
		}
		if file := options.Config.Trust.File; file != "" {
			var policyErr error // nothing is installed by it, so one that cannot be read does not matter
			if options.Demand.Policy, policyErr = readPolicy(file); policyErr != nil {
				global.warner(reporter)("warning: " + policyErr.Error())
			}
		}
	} else {
		if options, err = o.load(ctx, global.warner(reporter)); err == nil {
			defer options.Bundle.Close() //nolint:errcheck // it was only read
			options.ConfigPath, err = o.config.absolute()
		}
	}
	if err != nil {
		return err
	}
	options.StatePath, options.Version = o.config.statePath(o.state), version
	options.Reporter, options.Log = reporter, global.logger(reporter)
	now := time.Now()
	path := o.output
	if path == "" {
		path = archive.Folder(options.Config.Cluster.Name, now) + ".tar.gz"
	}
	index, err := install.CollectSupport(ctx, install.SupportOptions{
		Options: options, Path: path, Created: now, NoHealth: o.noHealth, About: thisVersion(),
		Settings: supportbundle.Settings{Since: now.Add(-o.since), LogBytes: int64(o.logMiB) << 20, ItemTimeout: o.item,
			HostTimeout: o.host},
	})
	if index == nil {
		return err
	}
	w := &errorWriter{w: out}
	printSupportSummary(w, index)
	w.printf("%s written: look through it before it leaves the site; boxlift support-bundle inspect lists it\n", path)
	return errors.Join(w.err, err)
}

// printSupportSummary says how much was collected, and what was not.
func printSupportSummary(w *errorWriter, index *archive.Index) {
	var size int64
	files, masked := 0, 0
	for _, item := range index.Items {
		size += item.Size
		masked += item.Masked
		if item.Size > 0 {
			files++
		}
		if item.Error != "" {
			w.printf("not collected, or not to its end: %s: %s\n", item.Path, printable.Line(shortened(item.Error)))
		}
	}
	w.printf("cluster %s: %d files, %s, with %d places masked\n", printable.Line(index.Cluster), files,
		progress.Bytes(size), masked)
}

func newSupportBundleInspectCommand() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "inspect FILE",
		Short: "List what is in a support bundle, and prove that it is whole",
		Long: `Read a support bundle to its end and list its items: where each comes from, how large it
is, and what is missing and why. Every file is compared with its sha256 in the index. That
proves that it is whole, not who made it.`,
		Example: `  boxlift support-bundle inspect support.tar.gz
  boxlift support-bundle inspect support.tar.gz -o json`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			return inspectSupportBundle(cmd.OutOrStdout(), args[0], format)
		},
	}
	c.Flags().StringVarP(&format, "output", "o", "table", "format: table or json")
	return c
}

func inspectSupportBundle(out io.Writer, path, format string) error {
	f, err := os.Open(path)
	if err != nil {
		return fault.Input.Wrap(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	index, err := archive.Read(f, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if format == "json" {
		return printJSON(out, index)
	}
	w := &errorWriter{w: out}
	columns(w, "PATH\tSIZE\tHOST\tFROM\tNOTE", index.Items, func(item archive.Item) string {
		note := ""
		switch {
		case item.Error != "":
			note = printable.Line(shortened(item.Error))
		case item.Absent:
			note = "is not there"
		case item.Cut != archive.Whole:
			note = "its " + string(item.Cut) + " is missing"
		}
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", item.Path, progress.Bytes(item.Size),
			orDash(printable.Line(item.Host)),
			printable.Short(item.Source, maxShownResult), orDash(note))
	})
	printSupportSummary(w, index)
	w.printf("collected by boxlift %s at %s\n", printable.Line(index.Boxlift), index.Created.Format(time.RFC3339))
	return w.err
}
