package main

import (
	"fmt"
	"time"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/internal/printable"
)

// attestationView is what is told of a statement beside a bundle.
type attestationView struct {
	Type    string `json:"type"` // of the predicate
	Key     string `json:"key"`  // its maker's, by its own account
	Result  string `json:"result,omitempty"`
	When    string `json:"when,omitempty"` // RFC 3339
	Comment string `json:"comment,omitempty"`
	// Against says why it does not speak for the bundle.
	Against string `json:"against,omitempty"`
	// Rehearsal is what a rehearsal tells.
	Rehearsal *attestation.Rehearsal `json:"rehearsal,omitempty"`

	kind     string // as [attestation.Statement.Kind] has it
	maker    string // "" for one that is not proven
	doubt    string // why it is not
	warnings []string
}

// newAttestationView describes a statement, of which nothing is proven.
func newAttestationView(a attestation.Attestation, s trust.Subject) attestationView {
	v := attestationView{Type: a.Statement.Type, kind: a.Statement.Kind(), Key: printable.Short(a.KeyID, 80),
		doubt: "not checked"}
	o, err := a.Statement.Outcome(s.Lock)
	if err != nil {
		v.Against = err.Error()
		return v
	}
	v.Result, v.Comment, v.Against = o.Result, o.Comment, o.Against
	if o.Warning != "" {
		v.warnings = []string{o.Warning}
	}
	if !o.When.IsZero() {
		v.When = o.When.UTC().Format(time.RFC3339)
	}
	v.Rehearsal, _ = a.Statement.Rehearsal() // its outcome could be read, so it can
	return v
}

// String is one line.
func (v attestationView) String() string {
	text := attestation.TypeName(v.kind)
	if v.maker != "" {
		text += " by " + v.maker
	}
	if v.Result != "" {
		text += ", " + v.Result
	}
	if v.When != "" {
		text += " on " + v.When
	}
	if v.Rehearsal != nil {
		text += ", " + printable.Line(v.Rehearsal.String())
	}
	text += ", with the key " + v.Key
	if v.maker == "" {
		text += " (" + v.doubt + ")"
	}
	return text
}

// witness is whose statements can be proven.
type witness struct {
	key    *signature.PublicKey // nil for none
	policy *trust.Policy        // nil for none
}

// views describes the statements beside a bundle, and proves those that it can. It also returns the list that
// they are in.
func (by witness) views(r *bundle.Reader) ([]attestationView, *attestation.List, error) {
	s, err := approval.SubjectOf(r)
	if err != nil {
		return nil, nil, damagedHint(err)
	}
	list, err := approval.StatementsOf(r)
	if err != nil {
		return nil, nil, err
	}
	var views []attestationView
	for _, a := range list.About(r.Digest()) {
		v := newAttestationView(a, s)
		switch {
		case by.policy != nil:
			if proven, err := by.policy.Attested(a, s, time.Now()); err != nil {
				v.doubt = "does not count: " + err.Error()
			} else {
				v.maker, v.warnings = proven.Maker.Name, proven.Warnings
			}
		case by.key != nil && signature.KeyID(by.key) == a.KeyID:
			if err := a.Verify(by.key); err != nil {
				v.doubt = "does not count: " + err.Error()
			} else {
				v.maker = "the same key"
			}
		}
		views = append(views, v)
	}
	return views, list, nil
}

// print lists the statements beside a bundle.
func (by witness) print(w *errorWriter, r *bundle.Reader) error {
	views, list, err := by.views(r)
	if err != nil {
		return err
	}
	for _, v := range views {
		w.printf("stated: %s\n", v)
		for _, text := range v.warnings {
			w.printf("warning: %s\n", text)
		}
		if v.Against != "" {
			w.printf("warning: the %s with the key %s speaks against the bundle: %s\n",
				attestation.TypeName(v.kind), v.Key, v.Against)
		}
	}
	if n := list.Strays(r.Digest()); n > 0 {
		w.printf("warning: %d statements in %s are about something else\n", n, list.Path)
	}
	return nil
}

// rehearsals are lines about those of a bundle, for who is about to install it.
func (by witness) rehearsals(r *bundle.Reader) []string {
	views, _, err := by.views(r)
	if err != nil {
		// Where statements are asked for, the bundle was refused for that.
		return []string{"warning: what others state about the bundle cannot be read: " + err.Error()}
	}
	var lines []string
	for _, v := range views {
		switch {
		case v.kind != attestation.Rehearsed:
		case v.Against != "":
			lines = append(lines, fmt.Sprintf("warning: %s: %s", v, v.Against))
		default:
			lines = append(lines, v.String())
		}
	}
	return lines
}

// verifyAll checks statements about a bundle that lie in files of their own.
func (by witness) verifyAll(w *errorWriter, names []string, r *bundle.Reader) error {
	for _, name := range names {
		if err := by.verify(w, name, r); err != nil {
			return fmt.Errorf("attestation %s: %w", name, err)
		}
	}
	return w.err
}

// verify checks a statement in a file of its own.
func (by witness) verify(w *errorWriter, name string, r *bundle.Reader) error {
	a, err := attestation.ReadFile(name)
	if err != nil {
		return err
	}
	s, err := approval.SubjectOf(r)
	if err != nil {
		return damagedHint(err)
	}
	v := newAttestationView(a, s)
	whose := ""
	if by.policy != nil {
		proven, err := by.policy.Attested(a, s, time.Now())
		if err != nil {
			return err
		}
		whose, v.warnings = ", by "+proven.Maker.Name, proven.Warnings
	} else {
		err := a.Verify(by.key)
		if err == nil && !a.Statement.IsAbout(r.Digest()) {
			err = fmt.Errorf("%w: the statement is about something else than bundle %s", signature.ErrInvalid,
				r.Digest())
		}
		if err != nil {
			return signatureHint(err)
		}
	}
	w.printf("%s is about this bundle: %s%s\n", name, v.Type, whose)
	for _, text := range v.warnings {
		w.printf("warning: %s\n", text)
	}
	if v.Against != "" {
		w.printf("warning: %s speaks against the bundle: %s\n", name, v.Against)
	}
	return w.err
}
