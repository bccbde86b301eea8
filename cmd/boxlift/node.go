package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

func newNodeCommand(global *globalOptions) *cobra.Command {
	return group("node", "Add and remove hosts of a cluster", newNodeAddCommand(global), newNodeRemoveCommand(global))
}

func newNodeAddCommand(global *globalOptions) *cobra.Command {
	o := installOptions{command: nodeAdd}
	c := &cobra.Command{
		Use:   "add",
		Short: "Join hosts that were added to install.yaml",
		Long: `Join the hosts that --hosts names, which install.yaml already has, to the running
cluster. It is boxlift install for these hosts and the servers: other agents are not
looked at. What failed or was interrupted goes on with boxlift resume, or when the same
command is run again.`,
		Example: `  boxlift node add --hosts 10.0.0.14 --bundle bundle.tar --key boxlift.pub -f install.yaml`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(o.hosts) == 0 {
				return fault.Usage.Errorf("--hosts is needed: the addresses or names of the hosts to add")
			}
			if err := o.note(cmd.Flags(), o.keptNodeFlags()); err != nil {
				return err
			}
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runInstall(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addFlags(c)
	c.Flags().AddFlagSet(o.keptNodeFlags())
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and change nothing")
	return c
}

// nodeAdd is what the state calls the command that adds hosts.
const nodeAdd = "node add"

// keptNodeFlags are the flags of node add that a run that goes on keeps to.
func (o *installOptions) keptNodeFlags() *pflag.FlagSet {
	f := o.keptFlags()
	f.StringSliceVar(&o.hosts, "hosts", o.hosts, "addresses or names of the hosts, as in install.yaml (required)")
	return f
}

type nodeRemoveOptions struct {
	config            configuration
	state             string
	format            string
	hosts             []string
	dryRun            bool
	deleteUnmanaged   bool
	forgetUnreachable bool
	giveUpDataOn      []string
	// flags are those that the state is to have.
	flags []string
}

func newNodeRemoveCommand(global *globalOptions) *cobra.Command {
	var o nodeRemoveOptions
	c := &cobra.Command{
		Use:   "remove",
		Short: "Remove hosts from a cluster",
		Long: `Remove hosts from the running cluster, one after the other: cordon and drain the
node, delete it, uninstall k3s from the host. Draining respects PodDisruptionBudgets, and
stops before pods that no controller brings back elsewhere, which sandboxes are, unless
--delete-unmanaged-pods says to end them. The first failure ends it; running the command
again goes on. The last server is never removed.

A host that holds data which is on no other host is refused before any host is touched:
LiteBoxd's database, persistent sandboxes, any volume of that host alone, folders of
volumes that were forgotten. --give-up-the-data-on says which host's data may be lost.
Where LiteBoxd's database is among it, a backup of LiteBoxd is made and proven first.`,
		Example: `  boxlift node remove --hosts 10.0.0.13 -f install.yaml`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.flags = givenFlags(cmd.Flags(), givingUpFlags(&o.giveUpDataOn))
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runNodeRemove(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.config.addFlags(c)
	c.Flags().StringVar(&o.state, "state", "", "where to keep state.json (default: beside the configuration)")
	c.Flags().StringVarP(&o.format, "output", "o", "table", "format: table or json")
	c.Flags().StringSliceVar(&o.hosts, "hosts", nil, "addresses or names of the hosts, as install.yaml or the "+
		"cluster has them (required)")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and change nothing")
	c.Flags().BoolVar(&o.deleteUnmanaged, "delete-unmanaged-pods", false,
		"end pods that nothing brings back elsewhere, such as sandboxes, with all their data")
	c.Flags().AddFlagSet(givingUpFlags(&o.giveUpDataOn))
	c.Flags().BoolVar(&o.forgetUnreachable, "forget-unreachable-host", false,
		"remove the node of a host that cannot be reached, which then keeps k3s and all its data")
	return c
}

// givingUpFlags are the flags that let data be lost. They are noted in the state.
func givingUpFlags(hosts *[]string) *pflag.FlagSet {
	f := pflag.NewFlagSet("give up", pflag.ContinueOnError)
	f.StringSliceVar(hosts, "give-up-the-data-on", *hosts,
		"remove this host although it holds data that is on no other host: ALL OF IT IS LOST (repeatable)")
	return f
}

func runNodeRemove(ctx context.Context, out io.Writer, global *globalOptions, o nodeRemoveOptions,
	reporter progress.Reporter) error {
	if err := checkFormat(o.format); err != nil {
		return err
	}
	if len(o.hosts) == 0 {
		return fault.Usage.Errorf("--hosts is needed: the addresses or names of the hosts to remove")
	}
	options, err := loadConfiguration(o.config, global.warner(reporter))
	if err != nil {
		return err
	}
	options.StatePath, options.DryRun = o.config.statePath(o.state), o.dryRun
	options.Reporter, options.Log = reporter, global.logger(reporter)
	options.GiveUpDataOn, options.Flags = o.giveUpDataOn, o.flags
	summary, err := install.RemoveNodes(ctx, install.RemoveOptions{
		Options: options,
		Settings: members.Settings{
			Hosts: o.hosts, DeleteUnmanagedPods: o.deleteUnmanaged, ForgetUnreachable: o.forgetUnreachable,
		},
	})
	if summary == nil {
		return err
	}
	return errors.Join(err, printChanges(out, summary, o.format))
}
