package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle/provenance"
	"github.com/liteboxd/boxlift/internal/fault"
)

func newBundleProvenanceCommand() *cobra.Command {
	var o attestationOptions
	c := &cobra.Command{
		Use:   "provenance FILE",
		Short: "State, signed, what a bundle was built from",
		Long: `State what a bundle was built from: an in-toto statement about the bundle's
index.json with a SLSA v1 provenance, which names the lock, the version of boxlift and
everything that the lock pins, each with its digest. All of that is in the bundle, so
the statement can be made at any time after "boxlift bundle build", and is always the
same.

The statement is signed with --key, which has to be the key that the bundle was signed
with. The output is a sigstore bundle.`,
		Example: `  boxlift bundle provenance bundle.tar --key boxlift.key -o bundle.provenance.sigstore.json
  tar -xf bundle.tar index.json
  cosign verify-blob-attestation --key boxlift.pub --insecure-ignore-tlog --type slsaprovenance1 \
      --bundle bundle.provenance.sigstore.json index.json`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runBundleProvenance(cmd.Context(), cmd.OutOrStdout(), args[0], o)
		},
	}
	o.addFlags(c, "private key to sign the statement with: a file, or "+keyURIs+" (required)")
	return c
}

func runBundleProvenance(ctx context.Context, out io.Writer, path string, o attestationOptions) error {
	if o.key == "" {
		return fault.Usage.Errorf("--key is needed: the private key that the bundle was signed with")
	}
	r, err := o.openBundle(ctx, path)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	signer, err := o.signer(ctx, r)
	if err != nil {
		return err
	}
	statement, err := provenance.Statement(r)
	if err != nil {
		return damagedHint(err)
	}
	return o.attest(out, signer, statement)
}
