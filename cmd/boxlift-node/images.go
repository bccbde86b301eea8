//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/clean"
	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/pack"
)

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

// imageTargets is a flag that may be given several times, with NAME@DIGEST.
type imageTargets map[string]digest.Digest

func (i *imageTargets) String() string { return fmt.Sprint(map[string]digest.Digest(*i)) }

func (i *imageTargets) Set(value string) error {
	name, target, _ := strings.Cut(value, "@")
	if name == "" || digest.Digest(target).Validate() != nil {
		return errors.New("expected NAME@DIGEST")
	}
	if *i == nil {
		*i = make(imageTargets)
	}
	(*i)[name] = digest.Digest(target)
	return nil
}

// checkFlags are those of check.
type checkFlags struct {
	containerd bool
	after      int
	k3s        string
	packs      list
	current    list
	images     imageTargets
	options    images.Options
}

func (c *checkFlags) define(flags *flag.FlagSet) {
	flags.BoolVar(&c.containerd, "containerd", false, "")
	flags.IntVar(&c.after, "after", 0, "")
	flags.StringVar(&c.k3s, "k3s", images.DefaultK3s, "")
	flags.Var(&c.packs, "pack", "")
	flags.Var(&c.current, "current", "")
	flags.Var(&c.images, "image", "")
	flags.BoolVar(&c.options.Digests, "digests", false, "")
	flags.BoolVar(&c.options.Full, "full", false, "")
	flags.BoolVar(&c.options.Pin, "pin", false, "")
	flags.BoolVar(&c.options.Repair, "repair", false, "")
}

// run makes the check that was asked for. For containerd, what was found is in the
// document alone: whoever asks wants to read it.
func (c *checkFlags) run(ctx context.Context, stdout io.Writer, dir string) (ok bool, err error) {
	if c.containerd {
		o := c.options
		o.ImagesDir, o.Packs, o.Current, o.Images = dir, c.packs, c.current, c.images
		o.Ctr = []string{c.k3s, "ctr"}
		report, err := images.Check(ctx, o)
		if err != nil {
			return false, err
		}
		return true, printJSON(stdout, report)
	}
	if c.after != 0 {
		report, err := images.Arrived(images.Options{ImagesDir: dir}, c.after)
		if err != nil {
			return false, err
		}
		return true, printJSON(stdout, report)
	}
	report, err := pack.Check(ctx, dir)
	if err != nil {
		return false, err
	}
	return report.OK, printJSON(stdout, report)
}

// cleanFlags are those of clean.
type cleanFlags struct {
	dirs    list
	options clean.Options
}

func (c *cleanFlags) define(flags *flag.FlagSet) {
	flags.Var(&c.dirs, "dir", "")
	flags.BoolVar(&c.options.Unfinished, "unfinished", false, "")
	flags.DurationVar(&c.options.Age, "age", 0, "")
}

func (c *cleanFlags) run(ctx context.Context, stdout io.Writer, dir string) error {
	c.options.ImagesDir, c.options.Dirs = dir, c.dirs
	report, err := clean.Run(ctx, c.options)
	if err != nil {
		return err
	}
	return printJSON(stdout, report)
}
