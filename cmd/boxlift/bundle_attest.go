package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/internal/fault"
)

type bundleAttestOptions struct {
	readOptions
	digestOption
	kind         string
	isRehearsal  bool // the kind of test result
	predicate    string
	lock         string
	result       string
	comment      string
	signed       string
	key          string
	passwordFile string
}

func newBundleAttestCommand() *cobra.Command {
	var o bundleAttestOptions
	c := &cobra.Command{
		Use:   "attest FILE",
		Short: "State something about a finished bundle, signed",
		Long: `State something about a bundle that is built: that its lock was reviewed, or what came
of a test. What is written is an in-toto statement about the bundle's index.json, signed with
--key. The bundle stays as it is, in volumes and encrypted too: the statement goes into the
file NAME` + attestation.Suffix + ` beside it, which travels with it. Whose statements a site wants is what
requireAttestations in install.yaml says.

A review (--type review) is about the lock: --lock names the file that was reviewed, which has
to be the one that the bundle was built from. A second one by the same key takes the place
of the first. For all other types --predicate names a file with what is stated. --type is one
of ` + strings.Join(attestation.TypeNames(), ", ") + `,
or the URI of a predicate type.

--signed takes what is signed already, and puts it to the others: a statement by cosign or by
"boxlift bundle provenance", or the file beside somebody else's copy of the bundle.

Prove first that the bundle is the one you mean, with "boxlift bundle verify", and name its
digest with --expect-digest.`,
		Example: `  boxlift bundle attest bundle.tar --type review --lock versions.lock --result approved --key dia.key
  boxlift bundle attest bundle.tar --type test-result --predicate result.json --key tests.key`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runBundleAttest(cmd.Context(), cmd.OutOrStdout(), args[0], o)
		},
	}
	o.addReadFlags(c)
	o.addDigestFlag(c)
	c.Flags().StringVar(&o.kind, "type", "", "what is stated: a short name or a URI")
	c.Flags().StringVar(&o.predicate, "predicate", "", "file with what is stated, in JSON")
	c.Flags().StringVar(&o.lock, "lock", "", "of a review: the versions.lock that was reviewed")
	c.Flags().StringVar(&o.result, "result", "", "of a review: approved or rejected")
	c.Flags().StringVar(&o.comment, "comment", "", "of a review: what there is to say")
	c.Flags().StringVar(&o.signed, "signed", "", "file with statements that are signed already")
	c.Flags().StringVar(&o.key, "key", "", "private key to sign with: a file, or "+keyURIs)
	c.Flags().StringVar(&o.passwordFile, "key-password-file", "", passwordFileHelp)
	return c
}

// check takes the type apart and refuses flags that do not belong together.
func (o *bundleAttestOptions) check() (err error) {
	isReview := o.lock != "" || o.result != "" || o.comment != ""
	if o.signed != "" {
		if o.kind != "" || o.predicate != "" || o.key != "" || isReview {
			return fault.Usage.Errorf("--signed has everything: --type, --predicate, --key and those of a review are for " +
				"a new statement")
		}
		return nil
	}
	if o.kind == "" {
		return fault.Usage.Errorf("--type is needed: what is stated")
	}
	if o.kind, err = attestation.ParseType(o.kind); err != nil {
		return fault.Usage.Errorf("--type: %w", err)
	}
	if o.kind == attestation.Rehearsed {
		o.kind, o.isRehearsal = attestation.TestResult, true
	}
	switch {
	case o.key == "":
		return fault.Usage.Errorf("--key is needed: the private key to sign with")
	case o.kind != attestation.Review && isReview:
		return fault.Usage.Errorf("--lock, --result and --comment are for --type review")
	case o.kind != attestation.Review && o.predicate == "":
		return fault.Usage.Errorf("--predicate is needed: the file with what is stated")
	case o.kind == attestation.Review && o.predicate != "":
		return fault.Usage.Errorf("--predicate is for other types: a review is made of --lock, --result and --comment")
	case o.kind == attestation.Review && o.lock == "":
		return fault.Usage.Errorf("--lock is needed: the versions.lock that was reviewed")
	}
	return nil
}

func runBundleAttest(ctx context.Context, out io.Writer, path string, o bundleAttestOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	r, err := o.openBundle(ctx, path)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if err := o.checkDigest(r); err != nil {
		return err
	}
	s, err := approval.SubjectOf(r)
	if err != nil {
		return damagedHint(err)
	}
	list, err := approval.StatementsOf(r)
	if err != nil {
		return err
	}
	more, err := o.attestations(ctx, r, s)
	if err != nil {
		return err
	}
	added, err := list.Add(r.Digest(), more...)
	if err != nil {
		return err
	}
	w := &errorWriter{w: out}
	if added {
		w.printf("%s written: it goes where the bundle goes\n", list.Path)
	} else {
		w.printf("all of it is there already; nothing was written\n")
	}
	w.printf("digest: %s\n", r.Digest())
	for _, a := range list.About(r.Digest()) {
		v := newAttestationView(a, s)
		w.printf("stated: %s\n", v)
		if v.Against != "" {
			w.printf("warning: it speaks against the bundle, and does not count where such a statement is required: %s\n",
				v.Against)
		}
	}
	return w.err
}

// attestations are what there is to add, signed.
func (o *bundleAttestOptions) attestations(
	ctx context.Context, r *bundle.Reader, s trust.Subject,
) ([]attestation.Attestation, error) {
	if o.signed != "" {
		return attestation.ReadSigned(o.signed)
	}
	predicate, err := o.stated(s)
	if err != nil {
		return nil, err
	}
	statement, err := attestation.Make(r.Digest(), o.kind, predicate)
	if err != nil {
		return nil, err
	}
	// What it says is looked at before a key is asked for its password.
	parsed, err := attestation.Parse(statement)
	if err == nil {
		_, err = parsed.Outcome(s.Lock)
	}
	if err == nil && o.isRehearsal && !parsed.Is(attestation.Rehearsed) {
		err = fmt.Errorf("%s tells of no rehearsal: boxlift bundle rehearse --predicate writes what does", o.predicate)
	}
	if err != nil {
		return nil, fault.Input.Wrap(errors.New(err.Error())) // not a bundle's fault
	}
	signer, err := loadSigner(ctx, o.key, o.passwordFile)
	if err != nil {
		return nil, err
	}
	signed, err := signer.Attest(statement)
	if err != nil {
		return nil, err
	}
	a, err := attestation.Read(signed)
	return []attestation.Attestation{a}, err
}

// stated is the predicate.
func (o *bundleAttestOptions) stated(s trust.Subject) (any, error) {
	if o.kind != attestation.Review {
		return attestation.ReadPredicate(o.predicate)
	}
	content, _, err := readLock(o.lock)
	if err != nil {
		return nil, err
	}
	if got := digest.FromBytes(content); got != s.Lock {
		return nil, fault.WithHint(fault.Input.Errorf("%s is not the lock that the bundle was built from: it is %s, and that "+
			"is %s", o.lock, got, s.Lock), "review the one that is in the bundle: boxlift bundle extract --file "+bundle.LockFile)
	}
	review, err := attestation.NewReview(content, strings.ToUpper(o.result), o.comment, time.Now())
	if err != nil {
		return nil, fault.Usage.Wrap(err)
	}
	return review, nil
}
