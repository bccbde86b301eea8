package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// globalOptions are the flags that all commands have.
type globalOptions struct {
	progress string
	verbose  bool
}

// withReporter runs do while a display shows its progress on standard error. What do
// prints appears after that, so that the two do not mix on a terminal.
func (o *globalOptions) withReporter(out io.Writer, do func(progress.Reporter, io.Writer) error) error {
	display, err := progress.New(o.progress, os.Stderr)
	if err != nil {
		return fault.Usage.Wrap(err)
	}
	var printed bytes.Buffer
	err = do(display, &printed)
	if closeErr := display.Close(); err == nil {
		err = closeErr
	}
	if _, printErr := out.Write(printed.Bytes()); err == nil {
		err = printErr
	}
	return err
}

// logger writes between the lines of a display, so that the two do not mix.
func (o *globalOptions) logger(reporter progress.Reporter) *slog.Logger {
	if !o.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(messageWriter(o.warner(reporter)),
		&slog.HandlerOptions{Level: slog.LevelDebug}))
}

// messageWriter passes on each write, which is a line, as a message.
type messageWriter func(string)

func (w messageWriter) Write(p []byte) (int, error) {
	w(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// warner returns how to warn the user: warnings are shown even where progress is not.
func (o *globalOptions) warner(reporter progress.Reporter) func(string) {
	if o.progress == "none" {
		return func(text string) { fmt.Fprintln(os.Stderr, "boxlift: "+text) }
	}
	return reporter.Message
}

func newRootCommand() *cobra.Command {
	var o globalOptions
	root := &cobra.Command{
		Use:   "boxlift",
		Short: "Carry a LiteBoxd platform across an air gap",
		Long: `boxlift builds one signed bundle on a connected host and, in an isolated
network, installs k3s, Cilium and LiteBoxd from it over SSH.

` + exitHelp,
		Example: `  boxlift bundle build -o bundle.tar --key boxlift.key
  boxlift install --bundle bundle.tar --key boxlift.pub -f install.yaml
  boxlift health -f install.yaml`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
		Args:          cobra.ArbitraryArgs,
		RunE:          showHelp,
	}
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().BoolVarP(&o.verbose, "verbose", "v", false, "log what is run on hosts and asked of servers")
	root.PersistentFlags().StringVar(&o.progress, "progress", "auto", "how to show progress: "+progress.Kinds)
	root.AddCommand(
		newBundleCommand(&o),
		newStoreCommand(&o),
		newKeyCommand(),
		newCACommand(&o),
		newTrustCommand(&o),
		newSiteCommand(&o),
		newConfigCommand(&o),
		newPreflightCommand(&o),
		newInstallCommand(&o),
		newResumeCommand(&o),
		newPhaseCommand(&o),
		newNodeCommand(&o),
		newStatusCommand(&o),
		newHistoryCommand(&o),
		newAdoptCommand(&o),
		newUpgradeCommand(&o),
		newHealthCommand(&o),
		newMetricsCommand(&o),
		newDoctorCommand(&o),
		newSupportBundleCommand(&o),
		newReportCommand(&o),
		newHaveCommand(&o),
		newManifestsCommand(&o),
		newRollbackCommand(&o),
		newLiteBoxdCommand(&o),
		newWorkloadCommand(&o),
		newBackupCommand(&o),
		newCertsCommand(&o),
		newTokenCommand(&o),
		newRegistryCommand(&o),
		newPruneCommand(&o),
		newVersionCommand(),
		newManCommand(),
	)
	refuseUnknownTopics(root)
	addCompletions(root)
	return root
}

// refuseUnknownTopics makes it an error to ask for help about what is no command.
func refuseUnknownTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() != "help" {
			continue
		}
		c.Example = "  boxlift help bundle build"
		c.Run, c.RunE = nil, func(_ *cobra.Command, topic []string) error {
			about, rest, err := root.Find(topic)
			switch {
			case err != nil:
				return fault.Usage.Wrap(err)
			case len(rest) > 0:
				return unknownCommand(about, rest[0])
			}
			about.InitDefaultHelpFlag() // as cobra does before it runs a command
			return about.Help()
		}
	}
}

// group makes a command that only holds others; without one of them it is a mistake. Its examples are the first one of
// each of them.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	var examples []string
	for _, c := range commands {
		examples = append(examples, firstExample(c.Example))
	}
	c := &cobra.Command{Use: use, Short: short, Example: strings.Join(examples, "\n"), Args: cobra.ArbitraryArgs,
		RunE: showHelp}
	c.AddCommand(commands...)
	return c
}

// firstExample is the first command line of several, with the lines that it goes on in.
func firstExample(examples string) string {
	var first []string
	for line := range strings.Lines(examples) {
		line = strings.TrimSuffix(line, "\n")
		if first = append(first, line); !strings.HasSuffix(line, `\`) {
			break
		}
	}
	return strings.Join(first, "\n")
}

// commandsBelow are all commands below one, in the order of the help.
func commandsBelow(root *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	for _, c := range root.Commands() {
		all = append(append(all, c), commandsBelow(c)...)
	}
	return all
}

// showHelp is what a command without a work of its own does.
func showHelp(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	return cmd.Help()
}

// arguments accepts as many arguments as there are names for them.
func arguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > len(names) && cmd.HasSubCommands():
			return unknownCommand(cmd, args[len(names)])
		case len(args) > len(names):
			return fault.Usage.Errorf("%s: unexpected argument %q", cmd.CommandPath(), args[len(names)])
		case len(args) < len(names):
			return fault.Usage.Errorf("%s: %s is missing", cmd.CommandPath(), names[len(args)])
		}
		return nil
	}
}

// checkFormat accepts the output formats that commands have.
func checkFormat(format string) error {
	if format != "table" && format != "json" {
		return fault.Usage.Errorf("--output %q: expected table or json", format)
	}
	return nil
}

// printJSON prints a result for programs.
func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// errorWriter keeps the first error of many small writes.
type errorWriter struct {
	w   io.Writer
	err error
}

func (w *errorWriter) printf(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.w, format, args...)
	}
}
