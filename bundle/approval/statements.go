package approval

import (
	"fmt"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/bundle/volume"
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
