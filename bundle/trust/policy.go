package trust

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
)

// Policy is the newest version of a file, proven. It is made by [File.Verify], for a file that somebody
// has handed over as one names a public key, and by [Policy.Accept], for one that has to follow on another.
type Policy struct {
	file     *File
	warnings []string
}

// Version is what holds. It must not be changed.
func (p *Policy) Version() *Version { return p.file.Newest() }

// File is the file that the policy was taken from.
func (p *Policy) File() *File { return p.file }

// Digest is the sha256 of the content of the version: what to compare on both sides, as a key's id.
func (p *Policy) Digest() digest.Digest { return p.file.newest().digest() }

// Warnings are about the clock: keys that signed the version outside their validity.
func (p *Policy) Warnings() []string { return p.warnings }

// Verify proves that every version in the file is signed by enough of its own owners, and by enough
// owners of the version before it. It does not prove whose file it is. The errors wrap [ErrTooFew],
// [ErrForked] or [ErrSignature].
func (f *File) Verify(now time.Time) (*Policy, error) {
	c := newChecker(now)
	for i := range f.versions {
		var before *signed
		if i > 0 {
			before = &f.versions[i-1]
		}
		if err := c.step(before, &f.versions[i], false, i == len(f.versions)-1); err != nil {
			return nil, err
		}
	}
	return &Policy{file: f, warnings: c.warnings}, nil
}

// Kept is the policy of a file that was proven when it was accepted, such as by a site that keeps it since. The newest
// version is proven again, but for the clock. The errors wrap [ErrTooFew] or [ErrSignature].
func (f *File) Kept() (*Policy, error) {
	c := newChecker(time.Time{})
	if err := c.step(nil, f.newest(), false, false); err != nil {
		return nil, err
	}
	return &Policy{file: f}, nil
}

// Accept proves that a file follows on the policy, and returns what holds from then on: the policy
// itself when the file has nothing newer. The errors are those of [File.Verify], and wrap [ErrOlder]
// for what was replaced, and [ErrForked] when the two have different versions of one number.
//
// The clock is judged for what leaves the version that is held and for the newest one. Versions in
// between were signed long ago, rightly.
func (p *Policy) Accept(f *File, now time.Time) (*Policy, error) {
	held, newest := p.file.newest(), f.newest()
	for i := range f.versions {
		theirs := &f.versions[i]
		for j := range p.file.versions {
			ours := &p.file.versions[j]
			if ours.Number == theirs.Number && ours.digest() != theirs.digest() {
				return nil, forked(fmt.Errorf("%w: version %d is %s, and the version %d that is held is %s", ErrForked,
					theirs.Number, theirs.digest(), ours.Number, ours.digest()))
			}
		}
	}
	if newest.Number < held.Number {
		return nil, fault.WithHint(fmt.Errorf("%w: it has version %d, and version %d is held", ErrOlder, newest.Number,
			held.Number), "take the newest file: what was revoked since is good again in an older one")
	}
	if newest.Number == held.Number {
		return p, nil
	}
	c := newChecker(now)
	before := held
	for i := range f.versions {
		next := &f.versions[i]
		if next.Number <= held.Number {
			continue
		}
		if err := c.step(before, next, before == held, next == newest); err != nil {
			return nil, err
		}
		before = next
	}
	return &Policy{file: f, warnings: c.warnings}, nil
}

// Next makes the file with the next version, which lacks signatures, of what change makes of this one.
func (p *Policy) Next(change func(*Version) error) (*File, error) {
	before := p.file.newest()
	v := before.clone()
	if err := change(v); err != nil {
		return nil, err
	}
	v.Number, v.Previous = before.Number+1, before.digest()
	return p.file.with(v)
}

// checker proves steps from version to version.
type checker struct {
	now      time.Time
	warnings []string
	// proven are signatures that verify with the key that they name: most count in two versions.
	proven map[*signature.Signature]bool
}

func newChecker(now time.Time) *checker {
	return &checker{now: now, proven: make(map[*signature.Signature]bool)}
}

// isSigned reports whether signature i of a version verifies with the key, which is the one that it names.
func (c *checker) isSigned(k *Key, s *signed, i int) bool {
	one := &s.signatures[i]
	if !c.proven[one] {
		c.proven[one] = signature.Verify(k.public, s.content, one.Bundle, nil) == nil
	}
	return c.proven[one]
}

// step proves that next is signed by enough of its own owners and, unless before is nil, by enough of
// that version's. The clock is judged for the keys of the first, of the second, or for none.
func (c *checker) step(before, next *signed, clockBefore, clockNext bool) error {
	if before != nil {
		if next.Number == before.Number+1 && next.Previous != before.digest() {
			return forked(fmt.Errorf("%w: version %d follows on another version %d than %s", ErrForked, next.Number,
				before.Number, before.digest()))
		}
		if err := c.owners(before, next, clockBefore); err != nil {
			return err
		}
	}
	return c.owners(next, next, clockNext)
}

func forked(err error) error {
	return fault.WithHint(err, "ask the owners which of the two is theirs: either both were signed by mistake, or "+
		"somebody else has keys of theirs")
}

// owners proves that enough owners in one version have signed another.
func (c *checker) owners(by, s *signed, clock bool) error {
	var signers, ignored []string
	for i, id := range s.ids {
		k := by.Key(id)
		if k == nil || !k.Has(Owner) {
			continue
		}
		if r := by.Revoked(id); r != nil {
			ignored = append(ignored, fmt.Sprintf("the key %s of %s does not count: revoked on %s (%s)", id, k.Name,
				r.Date.Format(time.DateOnly), r.Reason))
			continue
		}
		if !c.isSigned(k, s, i) {
			return fault.WithHint(fmt.Errorf("%w: version %d, key %s of %s", ErrSignature, s.Number, id, k.Name),
				"the file was changed after it was signed: get it from its owners again")
		}
		if text := k.clockText(c.now); clock && text != "" {
			if by.Clock == Refuse {
				ignored = append(ignored, text)
				continue
			}
			if text = fmt.Sprintf("version %d of the trust file: %s", s.Number, text); !slices.Contains(c.warnings, text) {
				c.warnings = append(c.warnings, text)
			}
		}
		if !slices.Contains(signers, k.Name) {
			signers = append(signers, k.Name)
		}
	}
	if len(signers) >= by.Thresholds.Owner {
		return nil
	}
	missing := slices.DeleteFunc(by.names(Owner), func(name string) bool { return slices.Contains(signers, name) })
	err := fmt.Errorf("%w: version %d of the trust file needs signatures of %d of the owners in version %d, and has those "+
		"of %s", ErrTooFew, s.Number, by.Thresholds.Owner, by.Number, nameList(signers))
	if len(ignored) > 0 {
		err = fmt.Errorf("%w; %s", err, strings.Join(ignored, "; "))
	}
	hint := fmt.Sprintf("have it signed by %s: boxlift trust sign", strings.Join(missing, " or "))
	if s.Number > by.Number+1 {
		hint = fmt.Sprintf("get a file that has the versions between %d and %d; or %s", by.Number, s.Number, hint)
	}
	return fault.WithHint(err, hint)
}
