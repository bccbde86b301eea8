//go:build linux

package main

import (
	"context"
	"flag"
	"io"
	"strings"

	"github.com/liteboxd/boxlift/node"
)

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

// checkFlags are those of check.
type checkFlags struct {
	containerd bool
	k3s        string
	packs      list
	current    list
	options    node.ImagesOptions
}

func (c *checkFlags) define(flags *flag.FlagSet) {
	flags.BoolVar(&c.containerd, "containerd", false, "")
	flags.StringVar(&c.k3s, "k3s", node.DefaultK3s, "")
	flags.Var(&c.packs, "pack", "")
	flags.Var(&c.current, "current", "")
	flags.BoolVar(&c.options.Digests, "digests", false, "")
	flags.BoolVar(&c.options.Full, "full", false, "")
	flags.BoolVar(&c.options.Pin, "pin", false, "")
	flags.BoolVar(&c.options.Repair, "repair", false, "")
}

// run makes the check that was asked for. For containerd, what was found is in the
// document alone: whoever asks wants to read it.
func (c *checkFlags) run(ctx context.Context, stdout io.Writer, images string) (ok bool, err error) {
	if c.containerd {
		o := c.options
		o.ImagesDir, o.Packs, o.Current, o.Ctr = images, c.packs, c.current, []string{c.k3s, "ctr"}
		report, err := node.CheckImages(ctx, o)
		if err != nil {
			return false, err
		}
		return true, printJSON(stdout, report)
	}
	report, err := node.Check(ctx, images)
	if err != nil {
		return false, err
	}
	return report.OK, printJSON(stdout, report)
}

// cleanFlags are those of clean.
type cleanFlags struct {
	dirs    list
	options node.CleanOptions
}

func (c *cleanFlags) define(flags *flag.FlagSet) {
	flags.Var(&c.dirs, "dir", "")
	flags.BoolVar(&c.options.Unfinished, "unfinished", false, "")
	flags.DurationVar(&c.options.Age, "age", 0, "")
}

func (c *cleanFlags) run(ctx context.Context, stdout io.Writer, images string) error {
	c.options.ImagesDir, c.options.Dirs = images, c.dirs
	report, err := node.Clean(ctx, c.options)
	if err != nil {
		return err
	}
	return printJSON(stdout, report)
}
