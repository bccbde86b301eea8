package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/internal/progress"
)

func newTokenCommand(global *globalOptions) *cobra.Command {
	return group("token", "Change the tokens that hosts join a cluster with", newTokenRotateCommand(global))
}

type tokenOptions struct {
	certsOptions
	servers, agents bool
}

func newTokenRotateCommand(global *globalOptions) *cobra.Command {
	var o tokenOptions
	c := &cobra.Command{
		Use:   "rotate",
		Short: "Give servers, agents or both another token",
		Long: `Give servers and agents other tokens to join the cluster with: those of servers, of agents,
or, without either flag, of both. k3s is started again on one host after the other, servers
first, never two at once. Pods go on running.

Backups and k3s' own snapshots from before need the servers' token of that time. boxlift's
backups have it in them; for k3s' snapshots, keep it, or make a new one afterwards.

A change of the servers' token that was broken off is gone on with when the same command is
run again. Until then, status and preflight tell of it.`,
		Example: `  boxlift token rotate -f install.yaml --dry-run
  boxlift token rotate -f install.yaml --agents`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runTokenRotate(cmd.Context(), out, global, o, r)
			})
		},
	}
	addConfiguration(c, &o.config, &o.state, &o.format)
	c.Flags().BoolVar(&o.servers, "servers", false, "change the servers' token")
	c.Flags().BoolVar(&o.agents, "agents", false, "change the agents' token")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and change nothing")
	return c
}

func runTokenRotate(
	ctx context.Context, out io.Writer, global *globalOptions, o tokenOptions, reporter progress.Reporter,
) error {
	if err := checkFormat(o.format); err != nil {
		return err
	}
	options, err := o.options(global, reporter)
	if err != nil {
		return err
	}
	both := o.servers == o.agents
	summary, err := install.RotateTokens(ctx, install.RotateOptions{
		Options: options, Servers: o.servers || both, Agents: o.agents || both,
	})
	if summary == nil {
		return err
	}
	return errors.Join(err, printRotation(out, summary, o.format))
}
