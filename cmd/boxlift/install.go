package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// clusterOptions are the flags of the commands that work on a cluster.
type clusterOptions struct {
	verifyOptions
	bundle string
	config configuration
	format string
}

func (o *clusterOptions) addFlags(c *cobra.Command) {
	o.addSourceFlags(c)
	c.Flags().StringVarP(&o.format, "output", "o", "table", "format: table or json")
}

// addSourceFlags adds those that say what to read.
func (o *clusterOptions) addSourceFlags(c *cobra.Command) {
	o.verifyOptions.addFlags(c)
	c.Flags().StringVar(&o.bundle, "bundle", "", "the bundle (required)")
	o.config.addFlags(c)
	o.format = "table"
}

// load reads the configuration and opens the bundle, whose signatures it checks. Options are what both say.
func (o *clusterOptions) load(ctx context.Context, warn func(string)) (install.Options, error) {
	var none install.Options
	if err := checkFormat(o.format); err != nil {
		return none, err
	}
	if o.bundle == "" {
		return none, fault.Usage.Errorf("--bundle is needed: the bundle to install from")
	}
	if err := o.config.check(); err != nil {
		return none, err
	}
	c, warnings, configErr := o.config.load()
	if configErr == nil {
		if err := o.demand(c.Trust); err != nil {
			return none, err
		}
	}
	if _, err := o.demanded(ctx); err != nil {
		return none, err
	}
	if configErr != nil {
		return none, fault.Input.Wrap(configErr)
	}
	for _, w := range warnings {
		warn("warning: " + w.String())
	}
	demand, err := o.withCarried(o.bundle)
	if err != nil {
		return none, err
	}
	if demand.IsNone() {
		warn("warning: THE SIGNATURE OF THE BUNDLE IS NOT CHECKED (--insecure-skip-signature): whoever made this " +
			"file gets root on every host")
	}
	r, a, err := o.openDemanded(ctx, o.bundle, demand)
	if err != nil {
		return none, err
	}
	if a != nil {
		for _, text := range a.Warnings {
			warn("warning: " + text)
		}
	}
	if err := errors.Join(o.checkBases(r), o.checkDigest(r)); err != nil {
		_ = r.Close()
		return none, err
	}
	if text := endText(r.Validity(), time.Now()); text != "" {
		warn("warning: " + text)
	}
	by := witness{key: demand.Key}
	if a != nil {
		by.policy = a.Policy
	}
	for _, text := range by.rehearsals(r) {
		warn(text)
	}
	return install.Options{Config: c, Bundle: r, Demand: demand, Approval: a, Version: version}, nil
}

type installOptions struct {
	clusterOptions
	state  string
	dryRun bool
	resume bool
	// fromCluster tells that the run that is gone on with is one that the cluster tells of, of
	// which there is no state.
	fromCluster     bool
	kubeconfig      string
	mergeKubeconfig bool
	command         string
	hosts           []string
	scope           run.Scope
	noRollback      bool
	acceptOlder     bool
	forceAfter      time.Duration
	// giveUpDataOn are hosts that may leave with data that is on no other.
	giveUpDataOn []string
	// restore is the backup to bring the cluster back from; nil for none.
	restore *recovery.Restore
	// flags are those of keptFlags that were given, as the state has them.
	flags []string
}

func (o *installOptions) addFlags(c *cobra.Command) {
	o.clusterOptions.addFlags(c)
	c.Flags().StringVar(&o.state, "state", "", "where to keep state.json (default: beside the configuration)")
	c.Flags().AddFlagSet(o.keptFlags())
}

// keptFlags are those that a run that goes on keeps to. None of them may be given a secret:
// they are noted in the state.
func (o *installOptions) keptFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("install", pflag.ContinueOnError)
	f.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "write access to the cluster to this file")
	f.BoolVar(&o.mergeKubeconfig, "merge-kubeconfig", o.mergeKubeconfig,
		"add it to what the file holds, under the cluster's name")
	f.BoolVar(&o.noRollback, "no-rollback", o.noRollback, "leave a LiteBoxd that could not be rolled out as it is, "+
		"instead of going back to the last good one")
	addForceAfter(f, &o.forceAfter)
	f.BoolVar(&o.requireRehearsal, "require-rehearsal", o.requireRehearsal, "refuse a bundle without a rehearsal that "+
		"passed, by a tester of the trust file or with the key that is named")
	return f
}

// addOlderFlag adds the consent to an older bundle. It is not kept: whoever goes on with a run that
// the cluster has on record does not need it, and nobody's record gives it.
func (o *installOptions) addOlderFlag(c *cobra.Command) {
	c.Flags().BoolVar(&o.acceptOlder, "accept-older-bundle", false,
		"take a bundle with a lower serial than the cluster has had, with all the faults that were mended since")
}

// keptInstallFlags are those that an installation that goes on keeps to.
func (o *installOptions) keptInstallFlags() *pflag.FlagSet {
	f := o.keptFlags()
	f.AddFlagSet(givingUpFlags(&o.giveUpDataOn))
	return f
}

// note keeps those flags of a set that were given. Whoever goes on may be in another folder.
func (o *installOptions) note(given, set *pflag.FlagSet) (err error) {
	if o.kubeconfig != "" {
		if o.kubeconfig, err = filepath.Abs(o.kubeconfig); err != nil {
			return fmt.Errorf("find the folder of --kubeconfig: %w", err)
		}
	}
	o.flags = givenFlags(given, set)
	return nil
}

// givenFlags are those of a set that were given, as they are written.
func givenFlags(given, set *pflag.FlagSet) []string {
	var texts []string
	given.Visit(func(f *pflag.Flag) {
		if set.Lookup(f.Name) == nil {
			return
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			texts = append(texts, "--"+f.Name+"="+value)
		}
	})
	return texts
}

func newInstallCommand(global *globalOptions) *cobra.Command {
	var o installOptions
	var onlyPart, skipPart string
	from := backupFile{prefix: backupPrefix}
	c := &cobra.Command{
		Use:   "install",
		Short: "Install a cluster from a bundle over SSH",
		Long: `Install the cluster that install.yaml describes from a bundle, over SSH and
without any internet. The bundle is verified first, as a whole; then all hosts are
looked at; only then is anything changed. A dry run puts nothing on the hosts, not even
the helper that looks at disks and ports.

LiteBoxd is deployed when install.yaml has the section liteboxd. When it runs already and
is changed, its database and key are backed up beside the state first, sandboxes go on
running, and a version that cannot be rolled out is taken back by itself.

A second run changes nothing. Hosts that were added to install.yaml join; hosts that
were taken out stay in the cluster with a warning, unless runtime.removeAbsentAgents
says otherwise; one that holds data which is on no other host is not removed then, unless
--give-up-the-data-on names it. A run that failed or was interrupted goes on with boxlift resume, or
when the same command is run again.

With --restore, a cluster whose hosts were all lost comes back on hosts that have none,
as it was when the backup was made. For hosts that have a cluster there is boxlift
backup restore.`,
		Example: `  boxlift install --bundle bundle.tar --key boxlift.pub -f install.yaml --dry-run
  boxlift install --bundle bundle.tar --key boxlift.pub -f install.yaml --kubeconfig kubeconfig
  boxlift install --bundle bundle.tar --key boxlift.pub -f install.yaml --restore lan-1-20260304T050607Z.tar`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.scope, err = scopeOf(onlyPart, skipPart); err != nil {
				return err
			}
			if err := o.note(cmd.Flags(), o.keptInstallFlags()); err != nil {
				return err
			}
			if from.path != "" {
				r, err := from.open(cmd.Context())
				if err != nil {
					return err
				}
				defer r.Close() //nolint:errcheck // it was only read
				o.restore, o.command = &recovery.Restore{Backup: r}, "install --restore"
			}
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runInstall(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addFlags(c)
	c.Flags().AddFlagSet(givingUpFlags(&o.giveUpDataOn))
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and change nothing")
	c.Flags().StringVar(&onlyPart, "only", "", "work on this part alone, on a cluster that runs: liteboxd")
	c.Flags().StringVar(&skipPart, "skip", "", "leave this part out: liteboxd")
	c.Flags().StringVar(&from.path, "restore", "", "bring the cluster back from this backup, on hosts that have none")
	from.addFlags(c)
	o.addOlderFlag(c)
	return c
}

func newResumeCommand(global *globalOptions) *cobra.Command {
	o := upgradeOptions{installOptions: installOptions{resume: true}}
	c := &cobra.Command{
		Use:   "resume",
		Short: "Go on with an installation or upgrade that failed or was interrupted",
		Long: `Go on with the installation, node add, upgrade, rollback or liteboxd move that state.json
tells of, from the step that it broke off at. Without --bundle the bundle is the one that it began with. The run
keeps to the flags that it began with, such as --kubeconfig, but for those that are given
here, which take their place. When the bundle or what install.yaml asks for is another one
than then, nothing is done: the command itself begins anew.

Where state.json tells of none, on another machine for example, the cluster is asked what
has begun and not ended, and with which flags. That takes --bundle. Flags that consent to
something, or say who can read the backup, are not taken from there: those that the run began
with are named, and have to be given here.`,
		Example: `  boxlift resume --key boxlift.pub -f install.yaml
  boxlift resume --bundle next.tar --key boxlift.pub -f install.yaml`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			kept := o.keptFlags()
			kept.AddFlagSet(givingUpFlags(&o.giveUpDataOn))
			if err := o.note(cmd.Flags(), kept); err != nil {
				return err
			}
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runResume(cmd.Context(), out, global, o.installOptions, r)
			})
		},
	}
	o.addFlags(c)
	o.addOlderFlag(c)
	c.Flags().AddFlagSet(givingUpFlags(&o.giveUpDataOn))
	c.Flags().AddFlagSet(o.consentFlags())
	return c
}

func runInstall(ctx context.Context, out io.Writer, global *globalOptions, o installOptions,
	reporter progress.Reporter) error {
	start := time.Now()
	options, err := o.openOptions(ctx, global, reporter)
	if err != nil {
		return err
	}
	defer options.Bundle.Close() //nolint:errcheck // it was only read
	options.Only, options.Command, options.Scope, options.Restore = o.hosts, o.command, o.scope, o.restore
	summary, err := install.Install(ctx, options)
	if summary == nil {
		return err
	}
	return errors.Join(err, printSummary(out, summary, o.format, err == nil, time.Since(start)))
}

// openOptions opens the bundle and puts together what the flags say of a run.
func (o *installOptions) openOptions(ctx context.Context, global *globalOptions,
	reporter progress.Reporter) (install.Options, error) {
	if o.mergeKubeconfig && o.kubeconfig == "" {
		return install.Options{}, fault.Usage.Errorf("--merge-kubeconfig needs --kubeconfig: the file to merge into")
	}
	options, err := o.open(ctx, global.warner(reporter), reporter)
	if err != nil {
		return install.Options{}, err
	}
	if o.resume && options.Config.Runtime.DryRun {
		_ = options.Bundle.Close() // it was only read
		return install.Options{}, fault.WithHint(fault.Usage.Errorf("runtime.dryRun is set in %s, and there is "+
			"nothing to go on with in a dry run", o.config),
			"boxlift install makes the dry run; take runtime.dryRun out to go on")
	}
	options.StatePath, options.Resume, options.Log = o.config.statePath(o.state), o.resume &&
		!o.fromCluster, global.logger(reporter)
	options.DryRun = !o.resume && (o.dryRun || options.Config.Runtime.DryRun)
	options.Kubeconfig, options.MergeKubeconfig = o.kubeconfig, o.mergeKubeconfig
	options.AcceptOlderBundle = o.acceptOlder
	options.NoRollback, options.ForceAfter, options.Flags = o.noRollback, o.forceAfter, o.flags
	options.GiveUpDataOn = o.giveUpDataOn
	return options, nil
}

// runResume goes on with the last run, whatever command it was of.
func runResume(ctx context.Context, out io.Writer, global *globalOptions, o installOptions,
	reporter progress.Reporter) error {
	state := o.config.statePath(o.state)
	last, err := journal.Read(state)
	if err != nil {
		return err
	}
	if !last.Unfinished() && o.bundle != "" {
		return resumeFromCluster(ctx, out, global, o, reporter)
	}
	if last.Verb.IsUpgrade() {
		u := upgradeOptions{installOptions: o}
		if err := u.takeUp(last, u.keptFlags()); err != nil {
			return err
		}
		return runUpgrade(ctx, out, global, u, last.RollbackTo, reporter)
	}
	if last.Verb == journal.MoveLiteBoxd {
		return resumeMove(ctx, out, global, o, last, reporter)
	}
	kept := o.keptInstallFlags()
	switch {
	case last.Verb == journal.AddNodes:
		o.command, kept = nodeAdd, o.keptNodeFlags()
	case last.Command != "":
		if o.scope, err = scopeOfRun(last); err != nil {
			return err
		}
	case o.bundle == "" && last.BundleFile == "":
		return fmt.Errorf("%w: %s holds no run with a bundle: with --bundle, the cluster is asked for one",
			site.ErrNothingToResume, state)
	}
	if err := o.takeUp(last, kept); err != nil {
		return err
	}
	if o.command == nodeAdd && len(o.hosts) == 0 { // it would be an installation of all hosts
		return fmt.Errorf("%w: %s does not say which hosts the last run was to add: run boxlift node add again",
			site.ErrNothingToResume, state)
	}
	return runInstall(ctx, out, global, o, reporter)
}

// takeUp makes the flags of the last run, and its bundle, those of this one. set are the flags
// that its command keeps; what is given for this run takes the place of what was then.
func (o *installOptions) takeUp(last journal.State, set *pflag.FlagSet) error {
	if o.bundle == "" {
		o.bundle = last.BundleFile
	}
	isGiven := make(map[string]bool)
	for _, text := range o.flags {
		isGiven[flagName(text)] = true
	}
	var flags []string
	for _, text := range last.Flags {
		switch name := flagName(text); {
		case name == "" || set.Lookup(name) == nil:
			return fault.WithHint(fault.Input.Errorf("%w: the last run (%s) began with %.100q, which this boxlift "+
				"does not know for it", site.ErrNothingToResume, last.Command, text),
				"go on with the boxlift that began the run, or run the command again")
		case !isGiven[name]:
			flags = append(flags, text)
		}
	}
	for _, text := range o.flags {
		if name := flagName(text); set.Lookup(name) == nil {
			return fault.Usage.Errorf("--%s is not for boxlift %s, which is what is gone on with", name, last.Command)
		}
	}
	flags = append(flags, o.flags...)
	if err := set.Parse(flags); err != nil {
		return fault.WithHint(fault.Input.Errorf("%w: the flags of the last run (%s) cannot be read: %w",
			site.ErrNothingToResume, last.Command, err), "run the command again")
	}
	o.flags = flags
	return nil
}

// flagName is the name in what givenFlags returns, or "" when it is something else.
func flagName(text string) string {
	name, _, hasValue := strings.Cut(text, "=")
	name, isFlag := strings.CutPrefix(name, "--")
	if !hasValue || !isFlag {
		return ""
	}
	return name
}

// open loads the configuration and the bundle, and verifies the bundle as a whole.
func (o *clusterOptions) open(ctx context.Context, warn func(string),
	reporter progress.Reporter) (install.Options, error) {
	options, err := o.load(ctx, warn)
	if err != nil {
		return options, err
	}
	if err := options.Bundle.Verify(ctx, reporter); err != nil {
		return options, errors.Join(damagedHint(err), options.Bundle.Close())
	}
	if options.ConfigPath, err = o.config.absolute(); err != nil {
		return options, errors.Join(err, options.Bundle.Close())
	}
	options.Reporter = reporter
	return options, nil
}

func printSummary(out io.Writer, s *run.Summary, format string, succeeded bool, took time.Duration) error {
	if format == "json" {
		return printJSON(out, s)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("HOST\tROLE\tK3S\tIMAGES\tSENT\tFROM HOSTS\tREUSED\tCHANGES\n")
	for _, h := range s.Hosts {
		changes := fmt.Sprint(len(h.Changes))
		if h.Error != "" {
			changes += ", then failed"
		}
		w.printf("%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", h.Host, h.Role, orDash(h.K3s), h.Images,
			progress.Bytes(h.Sent), progress.Bytes(h.Pulled), progress.Bytes(h.Copied), changes)
	}
	if w.err == nil {
		w.err = t.Flush()
	}
	w.w = out
	if s.DryRun {
		printPlan(w, s)
	}
	if s.Overview != nil && w.err == nil {
		w.err = printOverview(out, s.Overview)
	}
	printPhases(w, s.Phases)
	if s.ClusterBackup != "" {
		w.printf("backup of the cluster from before: %s\n", s.ClusterBackup)
	}
	printLiteBoxd(w, s)
	for _, text := range s.Warnings {
		w.printf("warning: %s\n", text)
	}
	switch changes := s.ChangeCount(); {
	case !succeeded:
	case s.DryRun:
		w.printf("dry run: %d changes would be made; nothing was changed\n", changes)
	case changes == 0:
		w.printf("nothing to do: cluster %s is as bundle %s has it (%s)\n", s.Cluster, shortDigest(s.Bundle),
			progress.Duration(took))
	default:
		w.printf("cluster %s runs with bundle %s: %d changes in %s\n", s.Cluster, shortDigest(s.Bundle), changes,
			progress.Duration(took))
	}
	return w.err
}

// printPlan lists what a dry run found, host by host.
func printPlan(w *errorWriter, s *run.Summary) {
	for _, h := range s.Hosts {
		for _, c := range h.Changes {
			w.printf("%s: would %s (%s)\n", h.Host, c.Title, c.Reason)
		}
	}
	for _, c := range s.Changes {
		w.printf("cluster: would %s (%s)\n", c.Title, c.Reason)
	}
}

// printPhases says how long each phase took, and how much of the whole boxlift itself
// was at work.
func printPhases(w *errorWriter, phases []run.PhaseTime) {
	seconds := func(s float64) string { return progress.Duration(time.Duration(s * float64(time.Second))) }
	texts := make([]string, 0, len(phases))
	var all, worked float64
	for _, p := range phases {
		texts = append(texts, p.Phase+" "+seconds(p.Seconds))
		all, worked = all+p.Seconds, worked+p.Worked
	}
	w.printf("phases: %s; boxlift's own work: %s of %s\n", strings.Join(texts, ", "), seconds(worked), seconds(all))
}

// printOverview shows the cluster.
func printOverview(out io.Writer, o *site.Overview) error {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("\nNODE\tSTATE\tROLE\tVERSION\tADDRESSES\n")
	for _, n := range o.Nodes {
		w.printf("%s\t%s\t%s\t%s\t%s\n", n.Name, n.State, n.Role, n.Version, strings.Join(n.Addresses, ", "))
	}
	w.printf("\nWORKLOAD\tREADY\tIMAGES\n")
	for _, l := range o.Workloads {
		w.printf("%s/%s\t%d/%d\t%s\n", l.Namespace, l.Name, l.Ready, l.Wanted, strings.Join(l.Images, ", "))
	}
	w.printf("\nSERVICE\tTYPE\tADDRESS\tPORTS\n")
	for _, s := range o.Services {
		w.printf("%s/%s\t%s\t%s\t%s\n", s.Namespace, s.Name, s.Type, strings.Join(s.Addresses, ", "),
			strings.Join(s.Ports, ", "))
	}
	w.printf("\nnamespaces: %s\n", strings.Join(o.Namespaces, ", "))
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}

func shortDigest(d string) string { return d[:min(len(d), len("sha256:")+12)] }
