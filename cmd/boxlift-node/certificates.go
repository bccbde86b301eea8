//go:build linux

package main

import (
	"flag"
	"io"

	"github.com/liteboxd/boxlift/node/facts"
)

// certificatesFlags are those of certificates.
type certificatesFlags struct{ paths list }

func (c *certificatesFlags) define(flags *flag.FlagSet) {
	flags.Var(&c.paths, "path", "")
}

func (c *certificatesFlags) run(stdout io.Writer) error {
	paths := c.paths
	if paths == nil {
		paths = facts.CertificatePaths
	}
	return printJSON(stdout, facts.Certificates(paths...))
}
