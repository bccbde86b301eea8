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
	"github.com/spf13/pflag"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/upgrade"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

type upgradeOptions struct {
	installOptions
	via             []string
	batches         upgrade.Batches
	accept          gate.Accept
	encryptBackupTo []string
}

func newUpgradeCommand(global *globalOptions) *cobra.Command {
	var o upgradeOptions
	c := &cobra.Command{
		Use:   "upgrade",
		Short: "Take a running cluster to another bundle",
		Long: `Take a running cluster from the bundle that it was installed from to another one, over SSH
and without any internet. boxlift upgrade plan shows beforehand what would be done.

First the gates are asked: what they refuse, nothing is done about, and nothing is changed.
Then the cluster is backed up, and the backup is opened and proven. Then everything is
shipped and imported everywhere, while the old versions serve. Only then is k3s started
anew: on one server after the other, and, after Cilium, on agents in batches. Pods go on
running meanwhile, sandboxes too. Each host has to be Ready with the new version, its images
complete and its pods back, before the next one is touched. LiteBoxd comes last.

A host that does not come up goes back by itself to what it ran, and no further one is
touched; only servers stay once an API server runs a newer minor version of Kubernetes.
Cilium and LiteBoxd go back by themselves when they are not rolled out.

An upgrade that failed or was interrupted goes on with boxlift resume, or when the same
command is run again, also from another machine: the cluster knows. boxlift rollback --to
goes back to the release before.`,
		Example: `  boxlift upgrade plan --bundle next.tar --key boxlift.pub -f install.yaml
  boxlift upgrade --bundle next.tar --key boxlift.pub -f install.yaml --canary 1 --batch-size 5
  boxlift upgrade confirm -f install.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return showHelp(cmd, args)
			}
			if err := o.note(cmd.Flags(), o.keptFlags()); err != nil {
				return err
			}
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runUpgrade(cmd.Context(), out, global, o, 0, r)
			})
		},
	}
	o.addFlags(c)
	c.Flags().AddFlagSet(o.policyFlags())
	o.addOlderFlag(c)
	c.AddCommand(newUpgradePlanCommand(global), newUpgradeConfirmCommand(global))
	return c
}

// keptFlags are those that a run that goes on keeps to.
func (o *upgradeOptions) keptFlags() *pflag.FlagSet {
	f := o.installOptions.keptFlags()
	f.AddFlagSet(o.policyFlags())
	return f
}

// policyFlags are the flags that say how an upgrade goes about its work.
func (o *upgradeOptions) policyFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("upgrade", pflag.ContinueOnError)
	f.IntVar(&o.batches.Canary, "canary", o.batches.Canary, "agents that come first, by themselves")
	f.IntVar(&o.batches.Size, "batch-size", o.batches.Size, "agents that are upgraded at the same time (default: "+
		"runtime.parallelism)")
	f.IntVar(&o.batches.MaxFailures, "max-failures", o.batches.MaxFailures,
		"agents that may fail before no further one is touched")
	f.DurationVar(&o.batches.Pause, "pause-between", o.batches.Pause,
		"time to wait between two batches of agents, such as 10m")
	f.AddFlagSet(o.consentFlags())
	return f
}

// consentFlags are those by which an operator agrees to something, or says who can read the
// backup.
func (o *upgradeOptions) consentFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("upgrade", pflag.ContinueOnError)
	f.BoolVar(&o.accept.Drain, "drain-nodes-and-end-their-sandboxes", o.accept.Drain,
		"drain each node before it gets another minor version of Kubernetes; ALL SANDBOXES ON IT END")
	f.StringSliceVar(&o.accept.Interrupt, strings.TrimPrefix(gate.InterruptFlag, "--"), o.accept.Interrupt,
		"drain this host although LiteBoxd's database or other data is on it alone: "+
			"WHAT USES IT IS DOWN until the host is back (repeatable)")
	f.BoolVar(&o.accept.Drift, "accept-drift", o.accept.Drift,
		"let the upgrade overwrite what was changed since the last release")
	f.BoolVar(&o.accept.UntestedCilium, "accept-untested-cilium", o.accept.UntestedCilium,
		"let Cilium run with a Kubernetes that it is not tested with")
	f.StringArrayVar(&o.encryptBackupTo, "encrypt-backup-to", o.encryptBackupTo,
		"encrypt the backup for this age recipient, age1... or age1pq1... (repeatable)")
	return f
}

func (o *upgradeOptions) check() error {
	switch {
	case o.batches.Size < 0:
		return fault.Usage.Errorf("--batch-size %d: expected 1 or more", o.batches.Size)
	case o.batches.Canary < 0:
		return fault.Usage.Errorf("--canary %d: expected 1 or more", o.batches.Canary)
	case o.batches.MaxFailures < 0:
		return fault.Usage.Errorf("--max-failures %d: expected 0 or more", o.batches.MaxFailures)
	case o.batches.Pause < 0:
		return fault.Usage.Errorf("--pause-between %v: expected a time such as 10m", o.batches.Pause)
	}
	return nil
}

// upgradeOptions are those of package install.
func (o *upgradeOptions) upgrade(options install.Options) install.UpgradeOptions {
	return install.UpgradeOptions{Options: options, Settings: upgrade.Settings{Accept: o.accept, Batches: o.batches}}
}

// runUpgrade upgrades, or, when rollbackTo is not 0, goes back to the release of that number.
func runUpgrade(ctx context.Context, out io.Writer, global *globalOptions, o upgradeOptions, rollbackTo int,
	reporter progress.Reporter) error {
	start := time.Now()
	if err := o.check(); err != nil {
		return err
	}
	recipients, err := parseRecipients("--encrypt-backup-to", o.encryptBackupTo)
	if err != nil {
		return err
	}
	options, err := o.openOptions(ctx, global, reporter)
	if err != nil {
		return err
	}
	defer options.Bundle.Close() //nolint:errcheck // it was only read
	upgrade := o.upgrade(options)
	upgrade.BackupRecipients, upgrade.RollbackTo = recipients, rollbackTo
	if options.DryRun {
		plan, err := install.PlanUpgrade(ctx, upgrade)
		if plan == nil {
			return err
		}
		return errors.Join(printUpgradePlan(out, plan, o.format), err)
	}
	summary, err := install.Upgrade(ctx, upgrade)
	if summary == nil {
		return err
	}
	return errors.Join(err, printSummary(out, summary, o.format, err == nil, time.Since(start)))
}

func newUpgradePlanCommand(global *globalOptions) *cobra.Command {
	var o upgradeOptions
	c := &cobra.Command{
		Use:   "plan",
		Short: "Show whether a cluster may go to a bundle, and how",
		Long: `Look at a running cluster and a newer bundle, and show from which versions to which it
would go, what every gate says, in which order an upgrade would work, and how many bytes it
would ship. Nothing is touched: no file on a host, no object, no state.

When the step is too far, a way over several bundles is shown: by those that --via names,
or else which versions such bundles have to have.

Exit code 3 means that a gate refuses, 6 that a host cannot be looked at.`,
		Example: `  boxlift upgrade plan --bundle next.tar --key boxlift.pub -f install.yaml
  boxlift upgrade plan --bundle far.tar --via next.tar --key boxlift.pub -f install.yaml`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runUpgradePlan(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.clusterOptions.addFlags(c)
	c.Flags().StringVar(&o.state, "state", "", "where state.json is (default: beside the configuration)")
	c.Flags().AddFlagSet(o.policyFlags())
	o.addOlderFlag(c)
	c.Flags().StringSliceVar(&o.via, "via", nil,
		"further bundles, signed with the same key, that the way may lead over")
	return c
}

func runUpgradePlan(ctx context.Context, out io.Writer, global *globalOptions, o upgradeOptions,
	reporter progress.Reporter) error {
	if err := o.check(); err != nil {
		return err
	}
	options, err := o.openOptions(ctx, global, reporter)
	if err != nil {
		return err
	}
	defer options.Bundle.Close() //nolint:errcheck // it was only read
	upgrade := o.upgrade(options)
	via, err := o.openVia(ctx)
	defer closeAll(via)
	if err != nil {
		return err
	}
	upgrade.Via = via
	plan, err := install.PlanUpgrade(ctx, upgrade)
	if plan == nil {
		return err
	}
	return errors.Join(printUpgradePlan(out, plan, o.format), err)
}

func newUpgradeConfirmCommand(global *globalOptions) *cobra.Command {
	var config configuration
	var state, format string
	c := &cobra.Command{
		Use:   "confirm",
		Short: "Take an upgrade as done, and forget how the hosts were before",
		Long: `Remove from all hosts what an upgrade keeps there to go back to: the program k3s from
before, its unit and its configuration. Images of the release before stay until the next
one, or until boxlift prune --drop-previous. No bundle is needed. It is refused while the
newest release has not succeeded.`,
		Example: `  boxlift upgrade confirm -f install.yaml`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				if err := checkFormat(format); err != nil {
					return err
				}
				options, err := loadConfiguration(config, global.warner(r))
				if err != nil {
					return err
				}
				options.StatePath, options.Reporter, options.Log = config.statePath(state), r, global.logger(r)
				summary, err := install.Confirm(cmd.Context(), options)
				if summary == nil {
					return err
				}
				return errors.Join(err, printConfirmed(out, summary, format))
			})
		},
	}
	addConfiguration(c, &config, &state, &format)
	return c
}

func printConfirmed(out io.Writer, s *run.Summary, format string) error {
	if format == "json" {
		return printJSON(out, s)
	}
	w := &errorWriter{w: out}
	for _, h := range s.Hosts {
		for _, c := range h.Changes {
			w.printf("%s: %s (%s)\n", h.Host, c.Title, c.Reason)
		}
	}
	if s.ChangeCount() == 0 {
		w.printf("nothing to do: no host keeps anything from before an upgrade\n")
	}
	return w.err
}

// openVia opens the further bundles. Only their locks are read.
func (o *upgradeOptions) openVia(ctx context.Context) ([]*bundle.Reader, error) {
	if _, err := o.demanded(ctx); err != nil {
		return nil, err
	}
	var readers []*bundle.Reader
	for _, path := range o.via {
		r, err := o.openBundle(ctx, path)
		if err != nil {
			return readers, err
		}
		readers = append(readers, r)
	}
	return readers, nil
}

func closeAll(readers []*bundle.Reader) {
	for _, r := range readers {
		_ = r.Close() // it was only read
	}
}

func printUpgradePlan(out io.Writer, p *upgrade.Plan, format string) error {
	if format == "json" {
		return printJSON(out, p)
	}
	from := "an unknown bundle"
	if p.Release != 0 {
		from = fmt.Sprintf("release %d, bundle %s", p.Release, shortDigest(p.From))
	}
	w := &errorWriter{w: out}
	w.printf("cluster %s: from %s to bundle %s\n", p.Cluster, from, shortDigest(p.To))
	for _, s := range p.Signers {
		w.printf("signed by %s\n", s)
	}
	if p.Trust != 0 {
		w.printf("judged by version %d of the trust file\n", p.Trust)
	}
	w.printf("\n")
	columns(w, "COMPONENT\tFROM\tTO", p.Components, func(c upgrade.ComponentChange) string {
		return fmt.Sprintf("%s\t%s\t%s", c.Name, orDash(strings.Join(c.From, ", ")), c.To)
	})
	columns(w, "GATE\tOUTCOME\tWHERE\tWHY", p.Gates, gateLines)
	columns(w, "HOST\tROLE\tNODE\tK3S\tTO SHIP\tHELD", p.Hosts, func(h upgrade.Host) string {
		if h.Error != "" {
			return fmt.Sprintf("%s\t%s\t-\t-\t-\t-", h.Host, h.Role)
		}
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", h.Host, h.Role, orDash(h.Node), orDash(h.K3s),
			progress.Bytes(h.Ship), progress.Bytes(h.Held))
	})
	w.printf("%s would leave this machine; hosts hand on to each other what several of them lack\n",
		progress.Bytes(p.Upload))
	printOrder(w, p)
	for _, text := range p.Warnings {
		w.printf("warning: %s\n", text)
	}
	return w.err
}

// columns prints a table and an empty line.
func columns[T any](w *errorWriter, heading string, rows []T, line func(T) string) {
	if w.err != nil {
		return
	}
	t := tabwriter.NewWriter(w.w, 0, 8, 2, ' ', 0)
	inner := &errorWriter{w: t}
	inner.printf("%s\n", heading)
	for _, row := range rows {
		inner.printf("%s\n", line(row))
	}
	if w.err = inner.err; w.err == nil {
		w.err = t.Flush()
	}
	w.printf("\n")
}

// gateLines are a finding and the way forward below it.
func gateLines(f gate.Finding) string {
	line := fmt.Sprintf("%s\t%s\t%s\t%s", f.Gate, f.Outcome, orDash(f.Subject),
		strings.ReplaceAll(f.Reason, "\n", "; "))
	if f.Way != "" {
		line += "\n\t\t\t" + f.Way
	}
	return line
}

// printOrder shows what an upgrade would do, or the way over other bundles.
func printOrder(w *errorWriter, p *upgrade.Plan) {
	if p.Path != nil {
		w.printf("\nthe way there, one upgrade after the other:\n")
		for i, s := range p.Path {
			name := ""
			if s.Bundle != "" {
				name = s.Bundle + ": "
			}
			w.printf("  %d. %sk3s %s, Cilium %s\n", i+1, name, s.K3s, s.Cilium)
		}
		return
	}
	if len(p.Order) == 0 {
		w.printf("\nnothing would change: the cluster runs these versions and holds all of the bundle\n")
		return
	}
	w.printf("\nan upgrade would, in this order:\n")
	for i, s := range p.Order {
		on := ""
		if len(s.Hosts) > 0 {
			on = " on " + strings.Join(s.Hosts, ", ")
		}
		w.printf("  %d. %s%s\n", i+1, s.What, on)
	}
}
