//go:build linux

package main

import (
	"flag"
	"io"

	"github.com/liteboxd/boxlift/node"
)

// certificatesFlags are those of certificates.
type certificatesFlags struct{ paths list }

func (c *certificatesFlags) define(flags *flag.FlagSet) {
	flags.Var(&c.paths, "path", "")
}

func (c *certificatesFlags) run(stdout io.Writer) error {
	paths := c.paths
	if paths == nil {
		paths = node.CertificatePaths
	}
	return printJSON(stdout, node.Certificates(paths...))
}
