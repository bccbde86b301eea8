package main

import (
	"context"
	"errors"
	"sync"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// passphraseVariable holds the passphrase of an encrypted bundle.
const passphraseVariable = "BOXLIFT_BUNDLE_PASSPHRASE"

// readOptions are the flags of all commands that read a bundle.
type readOptions struct {
	identities     []string
	passphraseFile string
	bases          []string
	// signed is what the bundle has to be signed with; the zero value takes any.
	signed approval.Demand
}

func (o *readOptions) addReadFlags(c *cobra.Command) {
	c.Flags().StringArrayVar(&o.identities, "identity", nil,
		"file with age identities that open an encrypted bundle (repeatable)")
	c.Flags().StringVar(&o.passphraseFile, "passphrase-file", "",
		"file that holds the passphrase of an encrypted bundle (default: "+passphraseVariable+", or the terminal)")
}

// addBaseFlag is for commands that read more of a bundle than its manifests.
func (o *readOptions) addBaseFlag(c *cobra.Command) {
	c.Flags().StringArrayVar(&o.bases, "base", nil,
		"if the bundle is a delta: a bundle that holds what it leaves out (repeatable)")
}

// openBundle opens a bundle, which has to be closed; a delta, with the bases that were
// named. What is wrong with a set of volumes is found out here.
func (o *readOptions) openBundle(ctx context.Context, path string) (*bundle.Reader, error) {
	r, _, err := o.openApproved(ctx, path)
	return r, err
}

// openApproved opens a bundle and tells by whom it is signed, nil where any is taken.
func (o *readOptions) openApproved(ctx context.Context, path string) (*bundle.Reader, *approval.Approval, error) {
	demand, err := o.withCarried(path)
	if err != nil {
		return nil, nil, err
	}
	return o.openDemanded(ctx, path, demand)
}

// openDemanded is openApproved for who asks for something by himself.
func (o *readOptions) openDemanded(ctx context.Context, path string, demand approval.Demand) (
	*bundle.Reader, *approval.Approval, error,
) {
	identities, err := o.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	judge := demand.Judge()
	r, err := openOne(ctx, path, judge, identities)
	if err != nil {
		return nil, nil, err
	}
	if err := o.useBases(ctx, r, identities); err != nil {
		_ = r.Close()
		return nil, nil, err
	}
	if judge == nil {
		return r, nil, nil
	}
	a, err := judge.Approve(r)
	if err != nil {
		_ = r.Close()
		return nil, nil, damagedHint(err)
	}
	return r, a, nil
}

// useBases opens the bases that were named for a delta.
func (o *readOptions) useBases(ctx context.Context, r *bundle.Reader, identities []age.Identity) error {
	if r.Delta() == nil {
		return nil
	}
	for _, name := range o.bases {
		base, err := openOne(ctx, name, nil, identities)
		if err != nil {
			return err
		}
		r.Use(base)
	}
	return nil
}

// checkBases refuses bases that are of no use: what was meant is something else.
func (o *readOptions) checkBases(r *bundle.Reader) error {
	if len(o.bases) > 0 && r.Delta() == nil {
		return fault.Usage.Errorf("--base is for deltas, and %s is a whole bundle", r.Path())
	}
	return nil
}

// openWhole opens a bundle all of which is wanted: a delta only with what it leaves out.
func (o *readOptions) openWhole(ctx context.Context, path string) (*bundle.Reader, error) {
	r, err := o.openBundle(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(o.checkBases(r), r.RequireAll()); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

func openOne(
	ctx context.Context, path string, judge *approval.Judge, identities []age.Identity,
) (*bundle.Reader, error) {
	var by bundle.Verifier
	if judge != nil {
		by = judge
	}
	r, err := bundle.OpenVerified(path, by, identities...)
	if err == nil {
		return r, nil
	}
	if errors.As(err, new(*bundle.SignatureError)) {
		return nil, signatureHint(err)
	}
	var damaged *volume.Fault
	if (isDamage(err) || errors.Is(err, trust.ErrInvalid)) && !errors.As(err, &damaged) {
		err = errors.Join(err, volume.Check(ctx, path, progress.Discard))
	}
	return nil, damagedHint(identityHint(err))
}

// open reads the identities. The passphrase is asked for when a bundle needs it.
func (o *readOptions) open(ctx context.Context) ([]age.Identity, error) {
	identities, err := readIdentities(o.identities)
	if err != nil {
		return nil, err
	}
	ask := sync.OnceValues(func() ([]byte, error) { return bundlePassphrase.read(ctx, o.passphraseFile, false) })
	return append(identities, passphraseIdentity(ask)), nil
}

// passphraseIdentity opens what is encrypted with a passphrase.
type passphraseIdentity func() ([]byte, error)

// Unwrap is that of [age.Identity].
func (ask passphraseIdentity) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	if len(stanzas) != 1 || stanzas[0].Type != "scrypt" {
		return nil, age.ErrIncorrectIdentity
	}
	passphrase, err := ask()
	if err != nil {
		return nil, &volume.SecretError{Err: err}
	}
	if len(passphrase) == 0 {
		return nil, age.ErrIncorrectIdentity
	}
	identity, err := scryptIdentity(passphrase)
	if err != nil {
		return nil, err
	}
	return identity.Unwrap(stanzas)
}

func isDamage(err error) bool {
	return errors.Is(err, ocitar.ErrMalformed) || errors.Is(err, bundle.ErrInvalid) || errors.Is(err, volume.ErrDamaged)
}

// damagedHint adds what to do about a damaged bundle. Volumes that are known to be the
// damaged ones say so themselves.
func damagedHint(err error) error {
	var damaged *volume.Fault
	if !isDamage(err) || errors.As(err, &damaged) {
		return err
	}
	return fault.WithHint(err, "copy the file again from where it was built, and compare the bundle digests on both "+
		"sides")
}

func identityHint(err error) error {
	if !errors.Is(err, volume.ErrNoIdentity) {
		return err
	}
	return fault.WithHint(err, "name the file with the identity of one of its recipients with --identity, or give "+
		"its passphrase")
}
