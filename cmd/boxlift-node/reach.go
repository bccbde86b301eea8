//go:build linux

package main

import (
	"context"
	"flag"
	"io"
	"time"

	"github.com/liteboxd/boxlift/node/reach"
)

// runReach is the subcommands listen and reach, which find out whether hosts reach each
// other.
func runReach(ctx context.Context, command string, stdin io.Reader, stdout io.Writer) error {
	if command == "listen" {
		return reach.Listen(ctx, stdin, stdout)
	}
	return reach.Run(ctx, stdin, stdout)
}

// probeFlags are those of probe.
type probeFlags struct {
	targets []reach.ProbeTarget
	wait    time.Duration
}

func (p *probeFlags) define(flags *flag.FlagSet) {
	for _, kind := range reach.ProbeKinds() {
		flags.Func(string(kind), "", func(target string) error {
			p.targets = append(p.targets, reach.ProbeTarget{Kind: kind, Target: target})
			return nil
		})
	}
	flags.DurationVar(&p.wait, "wait", 5*time.Second, "")
}

func (p *probeFlags) run(ctx context.Context, stdout io.Writer) error {
	report, err := reach.Probe(ctx, p.targets, p.wait)
	if err != nil {
		return err
	}
	return printJSON(stdout, report)
}
