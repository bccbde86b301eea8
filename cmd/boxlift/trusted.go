package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/internal/fault"
)

// readPolicy reads a trust file that the operator names, as he would name a key.
func readPolicy(path string) (*trust.Policy, error) {
	f, err := trust.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p, err := f.Verify(time.Now())
	if err != nil {
		return nil, fmt.Errorf("trust file %s: %w", path, err)
	}
	return p, nil
}

// demand takes what install.yaml says of signatures. Flags go before the file that it names, and never
// below what it demands.
func (o *verifyOptions) demand(t config.Trust) error {
	switch {
	case o.insecure && (t.ForbidSkipSignature || t.RequireSignatures > 0 || len(t.RequireAttestations) > 0):
		return fault.WithHint(fault.Input.Errorf("install.yaml refuses --insecure-skip-signature"),
			"name the trust file with --trust, or in install.yaml")
	case o.key != "" && t.RequireSignatures > 1:
		return fault.WithHint(fault.Input.Errorf("install.yaml asks for %d signatures, and --key proves one",
			t.RequireSignatures), "name the trust file with --trust, or in install.yaml")
	case o.key != "" && len(t.RequireAttestations) > 0:
		return fault.WithHint(fault.Input.Errorf("install.yaml asks for statements by roles of the trust file, and --key "+
			"names one key"), "name the trust file with --trust, or in install.yaml")
	}
	if o.key == "" && o.trust == "" && !o.insecure {
		o.trust = t.File
	}
	o.need, o.required = t.RequireSignatures, t.RequireAttestations
	if o.rehearses { // what is about to be made cannot be there
		o.required = slices.DeleteFunc(slices.Clone(o.required), isRehearsal)
	}
	return nil
}

// demanded reads the key or the trust file to verify with; it is none when the user asked for none.
// Bundles that are opened from then on have to be signed as it says.
func (o *verifyOptions) demanded(ctx context.Context) (approval.Demand, error) {
	o.signed = approval.Demand{}
	if o.trust == "" {
		key, err := o.publicKey(ctx)
		if o.signed.Key = key; err == nil && key == nil && o.requireRehearsal {
			err = fault.Usage.Errorf("--require-rehearsal and --insecure-skip-signature exclude each other: a " +
				"rehearsal is worth what its signer is")
		}
		o.signed.Statements = o.statements()
		return o.signed, err
	}
	if o.key != "" || o.insecure {
		return o.signed, fault.Usage.Errorf("--trust, --key and --insecure-skip-signature exclude each other")
	}
	policy, err := readPolicy(o.trust)
	if err != nil {
		return o.signed, err
	}
	o.signed = approval.Demand{Policy: policy, Names: o.need, Statements: o.statements()}
	return o.signed, nil
}

// statements are those that are asked for of a bundle.
func (o *verifyOptions) statements() []trust.Requirement {
	if !o.requireRehearsal || slices.ContainsFunc(o.required, isRehearsal) {
		return o.required
	}
	return append(slices.Clone(o.required), trust.Requirement{Type: attestation.Rehearsed, Role: trust.Tester})
}

func isRehearsal(r trust.Requirement) bool { return r.Type == attestation.Rehearsed }

// withCarried is what is asked of one bundle, with the trust file that travels beside it.
func (o *readOptions) withCarried(path string) (approval.Demand, error) {
	d := o.signed
	if d.IsNone() {
		return d, nil
	}
	var err error
	d.Carried, err = approval.ReadCarried(path)
	return d, err
}

// printApproval lists who signed a bundle, as far as it was asked for.
func printApproval(w *errorWriter, a *approval.Approval) {
	for _, s := range a.Signers {
		w.printf("signed: by %s\n", s)
	}
	if a.Policy != nil {
		printPolicy(w, a.Policy)
	}
	for _, text := range a.Warnings {
		w.printf("warning: %s\n", text)
	}
}

// printPolicy says which trust file something was proven with.
func printPolicy(w *errorWriter, p *trust.Policy) {
	w.printf("trust:  version %d of the trust file, %s\n", p.Version().Number, p.Digest())
}

// carryOptions is the flag of commands that make or sign bundles, and have a trust file travel in them or beside them.
type carryOptions struct{ trust string }

func (o *carryOptions) addCarryFlag(c *cobra.Command) {
	c.Flags().StringVar(&o.trust, "trust", "", "trust file that is to travel with the bundle; the key has to be one of its")
}

// policy is the trust file that is to travel, nil for none. Of its keys, one in these roles has to sign; id is "" where
// none does.
func (o *carryOptions) policy(id string, roles ...trust.Role) (*trust.Policy, error) {
	if o.trust == "" {
		return nil, nil //nolint:nilnil // none is no error
	}
	p, err := readPolicy(o.trust)
	if err != nil || id == "" {
		return p, err
	}
	return p, p.CheckSigner(id, roles...)
}
