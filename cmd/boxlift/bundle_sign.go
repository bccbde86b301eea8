package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/internal/fault"
)

type bundleSignOptions struct {
	readOptions
	digestOption
	carryOptions
	key          string
	passwordFile string
}

func newBundleSignCommand() *cobra.Command {
	var o bundleSignOptions
	c := &cobra.Command{
		Use:   "sign FILE",
		Short: "Add a signature to a finished bundle",
		Long: `Sign a bundle that is built, with one more key. The bundle stays as it is, in volumes and
encrypted too: the signature goes into the file NAME` + bundle.SignaturesSuffix + ` beside it, which travels
with it. A key signs once; nothing is written the second time. Of a delta, both it and the
bundle that it is of are signed. With --trust, the trust file travels with the bundle
too, as NAME` + approval.TrustSuffix + `, so that what was revoked since the build is known where it goes; one
that lies there already is replaced by a newer one.

The signature covers all of the bundle through index.json. Prove first that the bundle is
the one you mean, with "boxlift bundle verify", and name its digest with --expect-digest.`,
		Example: `  boxlift bundle sign bundle.tar --key dia.key --expect-digest sha256:...`,
		Args:    arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runBundleSign(cmd.Context(), cmd.OutOrStdout(), args[0], o)
		},
	}
	o.addReadFlags(c)
	o.addDigestFlag(c)
	o.addCarryFlag(c)
	c.Flags().StringVar(&o.key, "key", "", "private key to sign with: a file, or "+keyURIs)
	c.Flags().StringVar(&o.passwordFile, "key-password-file", "", passwordFileHelp)
	return c
}

func runBundleSign(ctx context.Context, out io.Writer, path string, o bundleSignOptions) error {
	if o.key == "" {
		return fault.Usage.Errorf("--key is needed: the private key to sign with")
	}
	r, err := o.openBundle(ctx, path)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if err := o.checkDigest(r); err != nil {
		return err
	}
	signer, err := loadSigner(ctx, o.key, o.passwordFile)
	if err != nil {
		return err
	}
	policy, err := o.policy(signature.KeyID(signer.PublicKey()), trust.Builder, trust.Reviewer)
	if err != nil {
		return err
	}
	if err := checkBeside(policy, r.TrustFile()); err != nil {
		return err
	}
	signatures := r.Signatures()
	added, err := signatures.Add(signer)
	if err != nil {
		return err
	}
	w := &errorWriter{w: out}
	if !added {
		w.printf("the key %s has signed it already; nothing was written\n", signature.KeyID(signer.PublicKey()))
	} else {
		w.printf("%s written: it goes where the bundle goes\n", signatures.Path)
	}
	w.printf("digest: %s\n", r.Digest())
	printSigners(w, signatures, nil)
	if policy == nil {
		return w.err
	}
	at, err := approval.Carry(path, policy.File())
	if err != nil {
		return err
	}
	w.printf("trust:  version %d of the trust file: %s goes where the bundle goes\n", policy.Version().Number, at)
	return w.err
}

// checkBeside refuses a trust file, nil for none, to lie beside a bundle with another one in it, nil for none, where
// readers would refuse or pass over it.
func checkBeside(policy *trust.Policy, in *trust.File) error {
	if policy == nil || in == nil {
		return nil
	}
	newest, err := policy.Accept(in, time.Now())
	switch {
	case errors.Is(err, trust.ErrOlder):
		return nil
	case err != nil:
		return fmt.Errorf("the trust file in the bundle: %w", err)
	case newest != policy:
		return fault.WithHint(fault.Input.Errorf("the trust file in the bundle has version %d, and the one that is named "+
			"version %d", newest.Version().Number, policy.Version().Number), "name the newer one")
	}
	return nil
}

// printSigners lists the keys that say that they have signed, but for those of an approval, nil for none.
func printSigners(w *errorWriter, signatures *bundle.Signatures, a *approval.Approval) {
	for _, id := range signatures.Keys() {
		if a == nil || !slices.ContainsFunc(a.Signers, func(s approval.Signer) bool { return s.Key == id }) {
			w.printf("signer: the key %s (not checked)\n", id)
		}
	}
	if n := signatures.Strays(); n > 0 {
		w.printf("warning: %d signatures in %s are over something else\n", n, signatures.Path)
	}
}
