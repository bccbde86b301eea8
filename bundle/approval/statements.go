package approval

import (
	"fmt"
	"strings"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/fault"
)

// SubjectOf is what keys have to be for that sign a bundle or state something about it. That it has a
// lock is no matter of who may: every bundle has one.
func SubjectOf(r *bundle.Reader) (trust.Subject, error) {
	contents, err := r.Contents()
	if err != nil {
		return trust.Subject{}, err
	}
	s := trust.Subject{Bundle: r.Digest(), Audience: r.Validity().Audience}
	for _, c := range contents.Describe() {
		if c.Name != bundle.LockComponent {
			s.Components = append(s.Components, c.Name)
		}
	}
	if lock, ok := contents.File(bundle.LockComponent, bundle.LockFile, ""); ok {
		s.Lock = lock.Digest
	}
	return s, nil
}

// StatementsOf reads the statements beside a bundle. Nothing of them is proven.
func StatementsOf(r *bundle.Reader) (*attestation.List, error) {
	return attestation.ReadList(volume.Name(r.Path()))
}

// require judges the statements beside the bundle, where any are asked for.
func (j *Judge) require(r *bundle.Reader, s trust.Subject) error {
	if len(j.demand.Statements) == 0 {
		return nil
	}
	list, err := StatementsOf(r)
	if err != nil {
		return err
	}
	// Of a delta, the last verdict is that on its bundle.
	verdict := j.verdicts[len(j.verdicts)-1]
	if err := verdict.Require(list.About(s.Bundle), j.demand.Statements, s, j.now); err != nil {
		if n := list.Strays(s.Bundle); n > 0 {
			err = fmt.Errorf("%w (%d in %s are about something else)", err, n, list.Path)
		}
		return fmt.Errorf("bundle %s: %w", r.Path(), err)
	}
	return nil
}

// requireByKey is require where no trust file says who may state what: the key alone counts.
func (j *Judge) requireByKey(r *bundle.Reader) error {
	if len(j.demand.Statements) == 0 {
		return nil
	}
	s, err := SubjectOf(r)
	if err != nil {
		return err
	}
	list, err := StatementsOf(r)
	if err != nil {
		return err
	}
	for _, required := range j.demand.Statements {
		if err := j.requireOne(list.About(s.Bundle), required.Type, s); err != nil {
			return fmt.Errorf("bundle %s: %w", r.Path(), err)
		}
	}
	return nil
}

func (j *Judge) requireOne(list []attestation.Attestation, kind string, s trust.Subject) error {
	var reasons []string
	for _, a := range list {
		if !a.Statement.Is(kind) {
			continue
		}
		if err := a.Verify(j.demand.Key); err != nil {
			reasons = append(reasons, err.Error())
			continue
		}
		outcome, err := a.Statement.Outcome(s.Lock)
		switch {
		case err != nil:
			reasons = append(reasons, err.Error())
		case outcome.Against != "":
			reasons = append(reasons, "it speaks against the bundle: "+outcome.Against)
		default:
			return nil
		}
	}
	err := fmt.Errorf("%w: a statement of the type %s with the key %s is required, and there is none",
		trust.ErrUnapproved, attestation.TypeName(kind), signature.KeyID(j.demand.Key))
	if len(reasons) > 0 {
		err = fmt.Errorf("%w that counts: %s", err, strings.Join(reasons, "; "))
	}
	return fault.WithHint(err, "the file with the ending "+attestation.Suffix+" goes where the bundle goes; with a "+
		"trust file (--trust) somebody else's key may have made it")
}
