package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/history"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
	"github.com/liteboxd/boxlift/internal/progress"
)

func newSiteCommand(global *globalOptions) *cobra.Command {
	return group("site", "Know what a site signs of itself, and who signed",
		newSiteKeyCommand(global),
		newSiteVerifyCommand(),
	)
}

func newSiteKeyCommand(global *globalOptions) *cobra.Command {
	var config configuration
	var output string
	c := &cobra.Command{
		Use:   "key",
		Short: "Print the public key of the site",
		Long: `Print the public key of the site, in PEM. The cluster has the private one, since its first
installation or the first one by a boxlift that knows of it: "boxlift have --sign" and
"boxlift history --export --sign" sign with it.

Where bundles are built, an owner of the trust file adds it, in the role site. It is for no
bundles: it proves that a document comes from this site, and nothing else. The cluster is
only looked at.`,
		Example: `  boxlift site key -f install.yaml -o site.pub
  boxlift trust add trust.json --site plant-7=site.pub --audience plant-7 --key owner.key`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				options, err := loadConfiguration(config, global.warner(r))
				if err != nil {
					return err
				}
				options.Reporter, options.Log = r, global.logger(r)
				return writeSiteKey(cmd.Context(), out, options, output)
			})
		},
	}
	config.addFlags(c)
	c.Flags().StringVarP(&output, "output", "o", "", "file to write (default: standard output)")
	return c
}

func writeSiteKey(ctx context.Context, out io.Writer, options install.Options, output string) error {
	identity, err := install.ReadIdentity(ctx, options)
	if err != nil {
		return err
	}
	public := identity.Signer.PublicKey()
	text, err := public.PEM()
	if err != nil {
		return err
	}
	if output == "" {
		_, err := out.Write(text)
		return err
	}
	if err := ownfile.Replace(output, text, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	w := &errorWriter{w: out}
	w.printf("public key: %s (carry it to the owners of the trust file)\n", output)
	w.printf("key id:     %s (compare it on both sides)\n", signature.KeyID(public))
	return w.err
}

func newSiteVerifyCommand() *cobra.Command {
	var trustFile string
	c := &cobra.Command{
		Use:   "verify FILE",
		Short: "Prove that a document comes from a site",
		Long: `Prove that what "boxlift have --sign" or "boxlift history --export --sign" has written is
signed with a key that the trust file has in the role site, which is not revoked and speaks
for the cluster that the document is about. The signature lies beside the file, in
FILE` + siteSignatureSuffix + `. What the document says is printed then: of two of a cluster, the one
after the higher release is newer.

"boxlift bundle build --since HAVE.json --trust FILE" does the same.`,
		Example: `  boxlift site verify HAVE.json --trust trust.json`,
		Args:    arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSiteVerify(cmd.OutOrStdout(), args[0], trustFile)
		},
	}
	c.Flags().StringVar(&trustFile, "trust", "", "trust file that has the keys of sites (required)")
	return c
}

func runSiteVerify(out io.Writer, path, trustFile string) error {
	if trustFile == "" {
		return fault.Usage.Errorf("--trust is needed: the file that says which keys are those of sites")
	}
	policy, err := readPolicy(trustFile)
	if err != nil {
		return err
	}
	d, err := readSiteDocument(path, max(have.MaxSize, history.MaxSize), policy)
	if err != nil {
		return err
	}
	w := &errorWriter{w: out}
	kind, err := d.kind()
	if err != nil {
		return err
	}
	switch kind {
	case have.Kind:
		h, err := d.have()
		if err != nil {
			return err
		}
		d.printHave(w, h)
	case history.Kind:
		h, err := d.history()
		if err != nil {
			return err
		}
		if err := d.printHistory(out, h); err != nil {
			return err
		}
	default:
		return fault.Input.Errorf("%s is a %.40q: expected what boxlift have or boxlift history has written", path,
			kind)
	}
	printPolicy(w, policy)
	for _, text := range policy.Warnings() {
		w.printf("warning: %s\n", text)
	}
	return w.err
}

// printHistory shows releases, the newest first.
func (d *siteDocument) printHistory(out io.Writer, h *history.History) error {
	w := &errorWriter{w: out}
	w.printf("%s is what %s has had until %s; the highest serial is %d\n", d.path, h.Cluster,
		h.Written.Format(time.RFC3339), h.Serial)
	if h.Trust != 0 {
		w.printf("it keeps version %d of the trust file\n", h.Trust)
	}
	d.printSigner(w)
	if w.err != nil {
		return w.err
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w = &errorWriter{w: t}
	w.printf("RELEASE\tSTATE\tSTARTED\tBUNDLE\tSERIAL\tVERSIONS\n")
	for i := range h.Releases {
		r := &h.Releases[len(h.Releases)-1-i]
		serial := "-"
		if r.Serial != 0 {
			serial = fmt.Sprint(r.Serial)
		}
		versions := make([]string, 0, len(r.Components))
		for _, c := range r.Components {
			versions = append(versions, c.Name+" "+c.Version)
		}
		w.printf("%d\t%s\t%s\t%s\t%s\t%s\n", r.Number, r.State, r.Started.Format(time.RFC3339), r.Bundle, serial,
			strings.Join(versions, ", "))
	}
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}
