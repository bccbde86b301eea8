package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
)

// resumeFromCluster goes on with the run that the cluster tells of, of which there is no state.
func resumeFromCluster(ctx context.Context, out io.Writer, global *globalOptions, o installOptions,
	reporter progress.Reporter) error {
	found, err := o.findUnfinished(ctx, global, reporter)
	if err != nil {
		return err
	}
	where := fmt.Sprintf("release %d of the cluster", found.Release)
	if found.Release == 0 {
		where = "what a server keeps to go back to"
		reporter.Message("warning: the cluster cannot be asked which flags the run began with, such as " +
			"--encrypt-backup-to, and whether it was a rollback: it goes on as an upgrade without flags; where that " +
			"is not right, end this and run the command itself")
	}
	if err := checkAnew(found.Anew, o.flags); err != nil {
		return err
	}
	reporter.Message(fmt.Sprintf("going on with boxlift %s, as of %s", found, where))
	o.fromCluster = true
	last := journal.State{Run: journal.Run{Command: found.Command, Verb: found.Verb, RollbackTo: found.RollbackTo,
		Flags: found.Flags}}
	if found.Verb.IsUpgrade() {
		u := upgradeOptions{installOptions: o}
		if err := u.takeUp(last, u.keptFlags()); err != nil {
			return err
		}
		return runUpgrade(ctx, out, global, u, found.RollbackTo, reporter)
	}
	// What else a command was given, such as hosts or a backup, is not on record.
	var ok bool
	if o.scope, ok = run.ScopeOf(found.Verb); !ok {
		return fmt.Errorf("%w: %s is boxlift %s: run that command again", site.ErrNothingToResume, where, found.Command)
	}
	if err := o.takeUp(last, o.keptInstallFlags()); err != nil {
		return err
	}
	return runInstall(ctx, out, global, o, reporter)
}

// checkAnew tells which flags of a run on record have to be given to resume, and are not.
func checkAnew(anew, given []string) error {
	isGiven := make(map[string]bool)
	for _, text := range given {
		isGiven[flagName(text)] = true
	}
	var missing []string
	for _, text := range anew {
		if !isGiven[flagName(text)] {
			missing = append(missing, printable.Short(text, 200))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fault.WithHint(fault.Usage.Errorf("the cluster's record says that the run began with %s: resume takes no "+
		"such flag from a cluster, "+
		"as whoever can write to it could have put it there", strings.Join(missing, " ")),
		"give each of these flags to boxlift resume: with this value where you know it to be right, with another "+
			"where it is not (=false for one that consents), or begin anew with the command itself")
}

// findUnfinished asks the cluster. The bundle is verified as a whole by the run that follows.
func (o *installOptions) findUnfinished(ctx context.Context, global *globalOptions,
	reporter progress.Reporter) (*run.Unfinished, error) {
	options, err := o.load(ctx, func(string) {}) // that run warns
	if err != nil {
		return nil, err
	}
	defer options.Bundle.Close() //nolint:errcheck // it was only read
	if options.ConfigPath, err = o.config.absolute(); err != nil {
		return nil, err
	}
	options.StatePath, options.Reporter, options.Log = o.config.statePath(o.state), reporter, global.logger(reporter)
	return install.FindUnfinished(ctx, options)
}
