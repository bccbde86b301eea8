package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
	nodeimages "github.com/liteboxd/boxlift/node/images"
)

type pruneOptions struct {
	clusterOptions
	state        string
	dryRun       bool
	yes          bool
	keepPrevious bool
}

func newPruneCommand(global *globalOptions) *cobra.Command {
	var o pruneOptions
	c := &cobra.Command{
		Use:   "prune",
		Short: "Remove packs that no release needs any more",
		Long: `Remove from all hosts of install.yaml the packs and files that neither the current
release nor the previous one needs, and the images in containerd that only these packs
brought. What a container uses always stays. boxlift install does the same at its end.

For each host it is said what goes and what stays, how big it is and why, before
anything is removed: then the terminal is asked, unless --yes says it already.

Each host knows what its releases need. With --bundle all that this bundle brings stays
as well; hosts that an older boxlift installed, and installations that are not finished,
need it.`,
		Example: `  boxlift prune -f install.yaml --dry-run
  boxlift prune -f install.yaml --yes`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runPrune(cmd.Context(), cmd.OutOrStdout(), os.Stdin, global, o)
		},
	}
	o.addFlags(c)
	c.Flags().Lookup("bundle").Usage = "a bundle that stays as well, besides the recorded releases"
	c.Flags().StringVar(&o.state, "state", "", "where state.json is kept (default: beside the configuration)")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be removed and remove nothing")
	c.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	c.Flags().BoolVar(&o.keepPrevious, "keep-previous", true,
		"keep what the previous release needs; without it there is nothing to go back to")
	return c
}

func runPrune(ctx context.Context, out io.Writer, in *os.File, global *globalOptions, o pruneOptions) error {
	asks := !o.dryRun && !o.yes
	switch {
	case o.dryRun && o.yes:
		return fault.Usage.Errorf("--dry-run and --yes exclude each other")
	case asks && !term.IsTerminal(int(in.Fd())):
		return fault.WithHint(fault.Usage.Errorf("there is no terminal to ask on"),
			"--dry-run shows what would be removed, --yes removes it")
	case asks && o.format == "json":
		return fault.WithHint(fault.Usage.Errorf("--output json answers programs, which cannot be asked"),
			"--dry-run shows what would be removed, --yes removes it")
	}
	if !asks {
		_, err := o.pruneOnce(ctx, out, global, o.dryRun)
		return err
	}
	found, err := o.pruneOnce(ctx, out, global, true)
	if err != nil || found.Empty() {
		return err
	}
	agreed, err := ask(ctx, in, os.Stderr, fmt.Sprintf("Remove this (%s)? [y/N] ", progress.Bytes(found.Bytes())))
	if err != nil || !agreed {
		return err
	}
	_, err = o.pruneOnce(ctx, out, global, false)
	return err
}

// pruneOnce goes to all hosts, and prints what they say.
func (o *pruneOptions) pruneOnce(ctx context.Context, out io.Writer, global *globalOptions,
	dryRun bool) (*images.Pruning, error) {
	var found *images.Pruning
	err := global.withReporter(out, func(r progress.Reporter, out io.Writer) error {
		options, err := o.options(ctx, global.warner(r))
		if err != nil {
			return err
		}
		if options.Bundle != nil {
			defer options.Bundle.Close() //nolint:errcheck // it was only read
		}
		options.StatePath, options.DryRun = o.config.statePath(o.state), dryRun || options.Config.Runtime.DryRun
		options.Reporter, options.Log = r, global.logger(r)
		found, err = install.Prune(ctx, install.PruneOptions{Options: options, DropPrevious: !o.keepPrevious})
		if found == nil {
			return err
		}
		return errors.Join(err, printPruning(out, found, o.format))
	})
	return found, err
}

// options reads the configuration, and the bundle if there is one.
func (o *pruneOptions) options(ctx context.Context, warn func(string)) (install.Options, error) {
	if err := checkFormat(o.format); err != nil {
		return install.Options{}, err
	}
	if o.bundle == "" {
		if o.expected != "" {
			return install.Options{}, fault.Usage.Errorf("--expect-digest is for --bundle")
		}
		return loadConfiguration(o.config, warn)
	}
	return o.load(ctx, warn)
}

// ask asks a question on a terminal. Whatever is not a yes is a no.
func ask(ctx context.Context, in io.Reader, out io.Writer, question string) (bool, error) {
	answer, err := askText(ctx, in, out, question)
	answer = strings.ToLower(answer)
	return err == nil && (answer == "y" || answer == "yes"), err
}

// askText asks for a line on a terminal, and returns it without the space around it.
func askText(ctx context.Context, in io.Reader, out io.Writer, question string) (string, error) {
	if _, err := io.WriteString(out, question); err != nil {
		return "", err
	}
	type answer struct {
		text string
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		text, err := bufio.NewReader(in).ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
		answered <- answer{text, err}
	}()
	select {
	case a := <-answered:
		if a.err != nil {
			return "", fmt.Errorf("read the answer from the terminal: %w", a.err)
		}
		return strings.TrimSpace(a.text), nil
	case <-ctx.Done(): // what still waits for the answer ends with the program
		return "", context.Cause(ctx)
	}
}

func printPruning(out io.Writer, p *images.Pruning, format string) error {
	if format == "json" {
		return printJSON(out, p)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("HOST\tWHAT\tNAME\tSIZE\t\tWHY\n")
	for _, h := range p.Hosts {
		for _, i := range h.Items {
			w.printf("%s\t%s\t%s\t%s\t%s\t%s\n", h.Host, i.Kind, i.Name, progress.Bytes(i.Size),
				pruneVerdict(i, p.DryRun), i.Reason)
		}
	}
	if w.err == nil {
		w.err = t.Flush()
	}
	w.w = out
	failed := false
	for _, h := range p.Hosts {
		failed = failed || h.Error != ""
		if h.Note != "" {
			w.printf("%s: %s\n", h.Host, h.Note)
		}
	}
	switch {
	case p.Empty() && failed:
	case p.Empty():
		w.printf("cluster %s: nothing to remove\n", p.Cluster)
	case p.DryRun:
		w.printf("cluster %s: %s would be removed; nothing was removed\n", p.Cluster, progress.Bytes(p.Bytes()))
	default:
		w.printf("cluster %s: %s removed\n", p.Cluster, progress.Bytes(p.Bytes()))
	}
	return w.err
}

func pruneVerdict(i nodeimages.PruneItem, dryRun bool) string {
	switch {
	case !i.Remove:
		return "stays"
	case dryRun:
		return "goes"
	}
	return "removed"
}
