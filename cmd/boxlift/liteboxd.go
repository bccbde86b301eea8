package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

func newLiteBoxdCommand(global *globalOptions) *cobra.Command {
	return group("liteboxd", "Work on LiteBoxd's data", newLiteBoxdMoveCommand(global))
}

type moveOptions struct {
	config            configuration
	state             string
	format            string
	to                string
	confirm           bool
	forgetUnreachable bool
	dryRun            bool
	resume            bool
	forceAfter        time.Duration
	// flags are those that the state is to have.
	flags []string
}

func newLiteBoxdMoveCommand(global *globalOptions) *cobra.Command {
	var o moveOptions
	c := &cobra.Command{
		Use:   "move",
		Short: "Bring LiteBoxd's database to another node",
		Long: `Bring LiteBoxd's database to a volume on another node. A backup of LiteBoxd is made and
proven first; LiteBoxd is stopped, and sandboxes go on running; a copy that SQLite itself
makes is opened and proven on the other node; LiteBoxd is started there, and compared with
that backup. What fails goes back to the volume from before.

That volume is kept until boxlift liteboxd move --confirm removes it, which proves the
one that is there first. A run that was interrupted goes on with boxlift resume, or when
the same command is run again.

When the node that has the database is gone, there is nothing to be moved: boxlift
backup restore --only liteboxd brings LiteBoxd back from a backup.`,
		Example: `  boxlift liteboxd move --to 10.0.0.12 -f install.yaml --dry-run
  boxlift liteboxd move --confirm -f install.yaml`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			o.flags = givenFlags(cmd.Flags(), o.keptFlags())
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runMove(cmd.Context(), out, global, o, r)
			})
		},
	}
	addConfiguration(c, &o.config, &o.state, &o.format)
	c.Flags().AddFlagSet(o.keptFlags())
	c.Flags().BoolVar(&o.confirm, "confirm", false, "remove the volumes that the database was on before")
	c.Flags().BoolVar(&o.forgetUnreachable, "forget-unreachable-host", false, "with --confirm: forget volumes whose "+
		"host cannot be reached, and leave their folders there")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and change nothing")
	return c
}

// keptFlags are those that a move that goes on keeps to.
func (o *moveOptions) keptFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("move", pflag.ContinueOnError)
	f.StringVar(&o.to, "to", o.to, "the node, by its name, or by what install.yaml calls its host")
	addForceAfter(f, &o.forceAfter)
	return f
}

func (o *moveOptions) check() error {
	switch {
	case o.to == "" && !o.confirm:
		return fault.Usage.Errorf("--to is needed, the node to move to, or --confirm, when a move is done")
	case o.to != "" && o.confirm:
		return fault.Usage.Errorf("--to and --confirm exclude each other: a move is confirmed when LiteBoxd was seen to " +
			"work on the other node")
	case o.forgetUnreachable && !o.confirm:
		return fault.Usage.Errorf("--forget-unreachable-host is for --confirm: a host that is not reached has nothing " +
			"that could be moved")
	}
	return checkFormat(o.format)
}

func runMove(ctx context.Context, out io.Writer, global *globalOptions, o moveOptions,
	reporter progress.Reporter) error {
	options, err := loadConfiguration(o.config, global.warner(reporter))
	if err != nil {
		return err
	}
	options.Version = version
	options.StatePath, options.ForceAfter = o.config.statePath(o.state), o.forceAfter
	options.DryRun, options.Resume, options.Flags = o.dryRun, o.resume, o.flags
	options.Reporter, options.Log = reporter, global.logger(reporter)
	var done *run.Summary
	if o.confirm {
		done, err = install.ConfirmMove(ctx, options, o.forgetUnreachable)
	} else {
		done, err = install.MoveLiteBoxd(ctx, options, o.to)
	}
	if done == nil {
		return err
	}
	return errors.Join(err, printChanges(out, done, o.format))
}

// resumeMove goes on with a move that state.json tells of.
func resumeMove(ctx context.Context, out io.Writer, global *globalOptions, o installOptions, last journal.State,
	reporter progress.Reporter) error {
	m := moveOptions{config: o.config, state: o.state, format: o.format, resume: true}
	if err := o.takeUp(last, m.keptFlags()); err != nil {
		return err
	}
	m.flags = o.flags
	if err := m.check(); err != nil {
		return err
	}
	return runMove(ctx, out, global, m, reporter)
}
