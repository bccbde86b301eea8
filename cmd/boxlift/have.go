package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

type haveOptions struct {
	config string
	output string
	nodes  bool
}

func newHaveCommand(global *globalOptions) *cobra.Command {
	var o haveOptions
	c := &cobra.Command{
		Use:   "have",
		Short: "Write down what hosts hold, so that the next bundle can leave it out",
		Long: `Write down which blobs the hosts of install.yaml hold, in packs and files of earlier
bundles: for each platform, those that every one of its hosts holds. Carry the file to
where bundles are built: "boxlift bundle build --since HAVE.json" leaves out what is in
it, and hosts that still hold it then need no older bundle. It names hosts and digests, and
nothing secret.

The hosts are only looked at, over SSH. All of them have to answer.`,
		Example: `  boxlift have --nodes -f install.yaml -o HAVE.json
  boxlift bundle build --since HAVE.json -f versions.lock --key boxlift.key -o delta.tar`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !o.nodes {
				return fault.WithHint(fault.Usage.Errorf("--nodes is needed: whose blobs to write down"),
					"--nodes stands for the hosts of install.yaml")
			}
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runHave(cmd.Context(), out, global, o, r)
			})
		},
	}
	c.Flags().StringVarP(&o.config, "file", "f", "install.yaml", "the configuration")
	c.Flags().BoolVar(&o.nodes, "nodes", false, "write down what the hosts of the configuration hold (required)")
	c.Flags().StringVarP(&o.output, "output", "o", "HAVE.json", "the file to write")
	return c
}

func runHave(ctx context.Context, out io.Writer, global *globalOptions, o haveOptions,
	reporter progress.Reporter) error {
	options, err := loadConfiguration(o.config, global.warner(reporter))
	if err != nil {
		return err
	}
	options.Reporter, options.Log = reporter, global.logger(reporter)
	held, hosts, err := install.Have(ctx, options)
	w := &errorWriter{w: out}
	if len(hosts) > 0 {
		columns(w, "HOST\tPLATFORM\tBLOBS\tSIZE", hosts, func(h seed.Holding) string {
			if h.Error != "" {
				return fmt.Sprintf("%s\t%s\t-\t-", h.Host, orDash(h.Platform))
			}
			return fmt.Sprintf("%s\t%s\t%d\t%s", h.Host, h.Platform, h.Blobs, progress.Bytes(h.Bytes))
		})
	}
	if err != nil {
		return errors.Join(w.err, err)
	}
	content, err := held.Encode()
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(o.output, content, 0o644, renameio.WithTempDir(filepath.Dir(o.output))); err != nil {
		return fmt.Errorf("write %s: %w", o.output, err)
	}
	for _, p := range held.Platforms {
		var size int64
		for _, blob := range p.Blobs {
			size += blob.Size
		}
		w.printf("%s: all hosts hold %d blobs (%s)\n", p.Platform, len(p.Blobs), progress.Bytes(size))
	}
	w.printf("%s written; %s\n", o.output, bundle.SinceText(held.Bundles))
	return w.err
}
