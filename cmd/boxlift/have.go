package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

type haveOptions struct {
	config configuration
	output string
	nodes  bool
	sign   bool
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

With --sign the file also says when it was written and how far the cluster's record of
releases is, and the cluster's key signs it: the signature goes into HAVE.json` + siteSignatureSuffix + `,
which travels with it. "boxlift site key" prints the public half.

The hosts are only looked at, over SSH. All of them have to answer.`,
		Example: `  boxlift have --nodes --sign -f install.yaml -o HAVE.json
  boxlift bundle build --since HAVE.json --trust trust.json -f versions.lock --key boxlift.key -o delta.tar`,
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
	o.config.addFlags(c)
	c.Flags().BoolVar(&o.nodes, "nodes", false, "write down what the hosts of the configuration hold (required)")
	c.Flags().StringVarP(&o.output, "output", "o", "HAVE.json", "the file to write")
	c.Flags().BoolVar(&o.sign, "sign", false, "sign the file with the key of the site, and say in it when it was written")
	return c
}

func runHave(ctx context.Context, out io.Writer, global *globalOptions, o haveOptions,
	reporter progress.Reporter) error {
	options, err := loadConfiguration(o.config, global.warner(reporter))
	if err != nil {
		return err
	}
	options.Reporter, options.Log = reporter, global.logger(reporter)
	return writeHave(ctx, out, options, o)
}

func writeHave(ctx context.Context, out io.Writer, options install.Options, o haveOptions) error {
	// What signs comes first: what is not there is told before all hosts are asked. The record is then never newer than
	// what the hosts hold.
	var identity install.Identity
	if o.sign {
		found, err := install.ReadIdentity(ctx, options)
		if err != nil {
			return err
		}
		if identity = *found; identity.Record.Newest() == nil {
			return errNoRecord(options)
		}
	}
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
	if o.sign {
		held.Date(time.Now(), identity.Record.Reached())
	}
	content, err := held.Encode()
	if err != nil {
		return err
	}
	if err := writeSiteDocument(o.output, content, identity.Signer); err != nil {
		return err
	}
	for _, p := range held.Platforms {
		var size int64
		for _, blob := range p.Blobs {
			size += blob.Size
		}
		w.printf("%s: all hosts hold %d blobs (%s)\n", p.Platform, len(p.Blobs), progress.Bytes(size))
	}
	w.printf("%s written; %s\n", o.output, bundle.SinceText(held.Bundles))
	printSiteSignature(w, o.output, identity.Signer)
	return w.err
}

// errNoRecord says that documents of a cluster could not be told from older ones.
func errNoRecord(options install.Options) error {
	return fault.WithHint(fault.Input.Errorf("the cluster %s has no record of releases, which tells an old document of it "+
		"from a new one", options.Config.Cluster.Name), "boxlift adopt makes one")
}

// printSiteSignature says where the signature over a document is, if there is a signer.
func printSiteSignature(w *errorWriter, path string, signer *signature.Signer) {
	if signer == nil {
		return
	}
	w.printf("signed: by the key of the site, %s; carry %s%s with it\n", signature.KeyID(signer.PublicKey()), path,
		siteSignatureSuffix)
}
