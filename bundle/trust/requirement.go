package trust

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// ErrUnapproved says that nobody whom the trust file names has made a statement that is required.
var ErrUnapproved = fault.NewKind(fault.Bundle, "not approved")

// Requirement is a statement about a bundle that has to be there.
type Requirement struct {
	// Type is that of the predicate, a URI, or [attestation.Rehearsed].
	Type string
	// Role is one that the maker's key has.
	Role Role
}

// Makers are the roles whose keys may make statements about bundles. Owners' keys sign versions of the file
// and nothing else, and a site speaks of itself.
func Makers() []Role { return []Role{Builder, Reviewer, Tester} }

// Subject is what statements have to be about, and what the keys of their makers have to be for.
type Subject struct {
	Bundle     digest.Digest
	Lock       digest.Digest // the sha256 of the lock in the bundle
	Components []string
	Audience   []string // nil for all clusters
}

// Attested is a proven statement about a bundle.
type Attested struct {
	Maker   *Key
	Outcome attestation.Outcome
	// Warnings are about the validity of the maker's key, and about what is stated.
	Warnings []string
}

// Attested proves that a statement is about the bundle, and made with a key of the file that may: not
// revoked, in a role of [Makers], for these components and clusters, and within its validity where the
// clock counts. What it says may speak against the bundle all the same. The errors wrap [ErrUnapproved],
// and [ErrRevoked] where the key was.
func (p *Policy) Attested(a attestation.Attestation, s Subject, now time.Time) (*Attested, error) {
	version := p.Version()
	k := version.Key(a.KeyID)
	if r := version.Revoked(a.KeyID); r != nil {
		name := "nobody that it names"
		if k != nil {
			name = k.Name
		}
		return nil, fmt.Errorf("%w: %w: the key %s of %s, on %s: %s", ErrUnapproved, ErrRevoked, r.ID, name,
			r.Date.Format(time.DateOnly), r.Reason)
	}
	refuse := func(format string, args ...any) (*Attested, error) {
		return nil, fmt.Errorf("%w: %w", ErrUnapproved, fmt.Errorf(format, args...))
	}
	switch {
	case !a.Statement.IsAbout(s.Bundle):
		return refuse("the statement is about something else than bundle %s", s.Bundle)
	case k == nil:
		return refuse("the key %s is not in the trust file", printable.Short(a.KeyID, 80))
	case !slices.ContainsFunc(Makers(), k.Has):
		return refuse("the key of %s is for no statements: it has the role %s", k.Name, roleList(k.Roles))
	}
	if err := a.Verify(k.public); err != nil {
		return refuse("statement of %s: %w", k.Name, err)
	}
	if why := k.beyond(s.Components, s.Audience); why != "" {
		return refuse("the key of %s is not for the bundle: %s", k.Name, why)
	}
	text := k.clockText(now)
	if text != "" && version.Clock == Refuse {
		return refuse("%s", text)
	}
	outcome, err := a.Statement.Outcome(s.Lock)
	if err != nil {
		return refuse("statement of %s: %w", k.Name, err)
	}
	return &Attested{Maker: k, Outcome: outcome, Warnings: slices.DeleteFunc([]string{text, outcome.Warning},
		func(text string) bool { return text == "" })}, nil
}

// Require judges the statements about a bundle: for each requirement there has to be one, of its type,
// that [Policy.Attested] takes, whose maker has the role, and that speaks for the bundle. Another role than
// that of builders is for somebody else than whoever built: without the maker, as many builders have to
// have signed as the threshold says. [Verdict.Cover] comes before. The error wraps [ErrUnapproved], and
// [ErrRevoked] where a revoked key made one.
func (v *Verdict) Require(list []attestation.Attestation, required []Requirement, s Subject, now time.Time) error {
	for _, r := range required {
		if err := v.require(list, r, s, now); err != nil {
			return err
		}
	}
	return nil
}

func (v *Verdict) require(list []attestation.Attestation, r Requirement, s Subject, now time.Time) error {
	var reasons, warnings []string
	var good bool
	var revoked bool
	for _, a := range list {
		if !a.Statement.Is(r.Type) {
			continue
		}
		one, err := v.policy.Attested(a, s, now)
		if err != nil {
			revoked = revoked || errors.Is(err, ErrRevoked)
			reasons = append(reasons, strings.TrimPrefix(err.Error(), ErrUnapproved.Error()+": "))
			continue
		}
		if why := v.short(one, r.Role); why != "" {
			reasons = append(reasons, why)
			continue
		}
		good = true
		for _, text := range one.Warnings {
			warnings = append(warnings, fmt.Sprintf("the %s by %s: %s", attestation.TypeName(r.Type), one.Maker.Name, text))
		}
	}
	if good {
		for _, why := range reasons {
			warnings = append(warnings, fmt.Sprintf("a statement (%s) does not count: %s", attestation.TypeName(r.Type), why))
		}
		v.Warnings = append(v.Warnings, warnings...)
		return nil
	}
	return v.missing(r, s, now, reasons, revoked)
}

// short says why a proven statement is not what is required; "" when it is.
func (v *Verdict) short(one *Attested, role Role) string {
	name := one.Maker.Name
	switch {
	case !one.Maker.Has(role):
		return fmt.Sprintf("%s has made one, and the key is no %s's: it has the role %s", name, role,
			roleList(one.Maker.Roles))
	case one.Outcome.Against != "":
		return fmt.Sprintf("that of %s speaks against the bundle: %s", name, one.Outcome.Against)
	case role != Builder && !v.builtWithout(name):
		return fmt.Sprintf("%s has signed the bundle as its builder, and somebody else has to make it", name)
	}
	return ""
}

// builtWithout reports whether enough builders have signed without one.
func (v *Verdict) builtWithout(name string) bool {
	others := slices.DeleteFunc(v.names(Builder), func(other string) bool { return other == name })
	return len(others) >= v.policy.Version().Thresholds.Builder
}

// missing says what is required, and who could make it.
func (v *Verdict) missing(r Requirement, s Subject, now time.Time, reasons []string, revoked bool) error {
	kind := attestation.TypeName(r.Type)
	err := fmt.Errorf("%w: a statement of the type %s by a %s is required, and there is none", ErrUnapproved, kind,
		r.Role)
	if len(reasons) > 0 {
		err = fmt.Errorf("%w that counts: %s", err, strings.Join(reasons, "; "))
	}
	if revoked {
		err = fmt.Errorf("%w: %w", ErrRevoked, err)
	}
	var could []string
	version := v.policy.Version()
	for i := range version.Keys {
		k := &version.Keys[i]
		if k.Has(r.Role) && version.Revoked(k.ID) == nil && k.beyond(s.Components, s.Audience) == "" &&
			(version.Clock == Warn || k.clockText(now) == "") && !slices.Contains(could, k.Name) &&
			(r.Role == Builder || v.builtWithout(k.Name)) {
			could = append(could, k.Name)
		}
	}
	if len(could) == 0 {
		return fault.WithHint(err, fmt.Sprintf("nobody in the trust file could make it: its owners add the key of a %s with "+
			"boxlift trust add", r.Role))
	}
	command := "boxlift bundle attest --type " + kind
	if r.Type == attestation.Rehearsed {
		command = "boxlift bundle rehearse"
	}
	return fault.WithHint(err, fmt.Sprintf("have it made by %s: %s; the file with the ending %s goes where the bundle "+
		"goes", strings.Join(could, " or "), command, attestation.Suffix))
}
