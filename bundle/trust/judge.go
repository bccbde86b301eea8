package trust

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

var (
	// ErrUntrusted says that a bundle is not signed by those whom the trust file asks for.
	ErrUntrusted = fault.NewKind(fault.Bundle, "not signed by enough of those whom the trust file names")

	// ErrRevoked says that a bundle, or a key that it needs, was revoked.
	ErrRevoked = fault.NewKind(fault.Bundle, "revoked")
)

// Verdict is what a policy says of the signatures over a bundle.
type Verdict struct {
	policy *Policy
	need   int
	// Signers are the keys whose signatures are proven and count so far, in the order of the signatures.
	Signers []*Key
	// Warnings are about keys outside their validity, and about signatures that were not needed and do
	// not count.
	Warnings []string
	// ignored are why signatures do not count.
	ignored []string
	revoked bool // a revoked key is among these
}

// Judge proves the signatures over the index.json of a bundle, and that enough keys of different names
// have signed: as many builders and reviewers as the thresholds say, and need names in all, where that
// is more. What the bundle has in it is judged by [Verdict.Cover], which has to follow once it is read.
//
// The errors wrap [ErrUntrusted], [ErrRevoked] or [signature.ErrInvalid]; [signature.ErrNotSigned] too
// where there is no signature at all. More than [MaxSignatures] signatures are refused.
func (p *Policy) Judge(index []byte, signatures []signature.Signature, need int, now time.Time) (*Verdict, error) {
	v := p.Version()
	if r := v.RevokedBundle(digest.FromBytes(index)); r != nil {
		return nil, fault.WithHint(fmt.Errorf("%w: version %d of the trust file revokes the bundle %s, on %s: %s", ErrRevoked,
			v.Number, r.Digest, r.Date.Format(time.DateOnly), r.Reason), "take another bundle")
	}
	switch {
	case len(signatures) == 0:
		return nil, fmt.Errorf("%w: %w", ErrUntrusted, signature.ErrNotSigned)
	case len(signatures) > MaxSignatures:
		return nil, fmt.Errorf("%w: %d signatures, %d is the most", ErrUntrusted, len(signatures), MaxSignatures)
	}
	verdict := &Verdict{policy: p, need: need}
	for i := range signatures {
		if err := verdict.take(index, &signatures[i], now); err != nil {
			return nil, err
		}
	}
	if err := verdict.enough(); err != nil {
		return nil, err
	}
	return verdict, nil
}

// take proves one signature.
func (v *Verdict) take(index []byte, s *signature.Signature, now time.Time) error {
	id, _, err := s.Claim()
	if err != nil {
		return err
	}
	version := v.policy.Version()
	k := version.Key(id)
	if r := version.Revoked(id); r != nil {
		name := "nobody that it names"
		if k != nil {
			name = k.Name
		}
		v.ignore(fmt.Sprintf("the key %s of %s was revoked on %s: %s", id, name, r.Date.Format(time.DateOnly), r.Reason))
		v.revoked = true
		return nil
	}
	if k == nil {
		v.ignore(fmt.Sprintf("the key %.80s is not in the trust file", id))
		return nil
	}
	if !k.Has(Builder) && !k.Has(Reviewer) {
		v.ignore(fmt.Sprintf("the key of %s is for no bundles: it has the role %s", k.Name, roleList(k.Roles)))
		return nil
	}
	if slices.ContainsFunc(v.Signers, func(other *Key) bool { return other.ID == id }) {
		return nil
	}
	if err := signature.Verify(k.public, index, s.Bundle, s.Base64); err != nil {
		return fmt.Errorf("signature of %s: %w", k.Name, err)
	}
	if text := k.clockText(now); text != "" {
		if version.Clock == Refuse {
			v.ignore(text)
			return nil
		}
		v.Warnings = append(v.Warnings, text)
	}
	v.Signers = append(v.Signers, k)
	return nil
}

// ignore notes why a signature does not count.
func (v *Verdict) ignore(why string) {
	v.ignored = append(v.ignored, why)
	v.Warnings = append(v.Warnings, why)
}

// Cover judges what a bundle has in it: its components, and the audience of its lock (nil for all
// clusters). Signatures of keys that may not sign this do not count any more. The error wraps
// [ErrUntrusted].
func (v *Verdict) Cover(components, audience []string) error {
	v.Signers = slices.DeleteFunc(v.Signers, func(k *Key) bool {
		why := k.beyond(components, audience)
		if why != "" {
			v.ignore(fmt.Sprintf("the key of %s may not sign it: %s", k.Name, why))
		}
		return why != ""
	})
	return v.enough()
}

// CheckSigner refuses a key that signs no bundles in one of the roles, before it does: one that is unknown, revoked or
// for something else. Its validity is a matter of the clock where the bundle is judged. The error wraps [ErrUntrusted].
func (p *Policy) CheckSigner(id string, roles ...Role) error {
	v := p.Version()
	k := v.Key(id)
	why := ""
	switch r := v.Revoked(id); {
	case r != nil:
		why = fmt.Sprintf("was revoked on %s: %s", r.Date.Format(time.DateOnly), r.Reason)
	case k == nil:
		why = "is not in it"
	case !slices.ContainsFunc(roles, k.Has):
		why = fmt.Sprintf("of %s has the role %s, and this takes %s", k.Name, roleList(k.Roles), roleList(roles))
	default:
		return nil
	}
	return fault.WithHint(fmt.Errorf("%w: by version %d of the trust file, the key %s %s", ErrUntrusted, v.Number, id, why),
		"sign with the key of "+strings.Join(v.names(roles...), " or ")+", or have its owners add this one: boxlift trust add")
}

// beyond says what the key may not sign; "" when it may sign all.
func (k *Key) beyond(components, audience []string) string {
	if k.Components != nil {
		for _, name := range components {
			if !slices.Contains(k.Components, name) {
				return fmt.Sprintf("it has the component %s, and the key is for %s", name,
					strings.Join(k.Components, ", "))
			}
		}
	}
	if k.Audience == nil {
		return ""
	}
	if audience == nil {
		return fmt.Sprintf("it is for all clusters, and the key is for %s", strings.Join(k.Audience, ", "))
	}
	for _, name := range audience {
		// A * in name stands for itself here, so that only a * of the key's takes it: whatever name
		// stands for, the key's pattern does too.
		if !slices.ContainsFunc(k.Audience, func(pattern string) bool {
			matched, err := path.Match(pattern, name)
			return err == nil && matched
		}) {
			return fmt.Sprintf("it is for %s, and the key is for %s", name, strings.Join(k.Audience, ", "))
		}
	}
	return ""
}

// enough counts names. One that has both roles counts for one of them, whichever is missing: there are
// enough when each role has enough, and both together have enough for the sum.
func (v *Verdict) enough() error {
	version := v.policy.Version()
	t := version.Thresholds
	builders, reviewers, all := v.names(Builder), v.names(Reviewer), v.names(Builder, Reviewer)
	need := max(v.need, t.Bundle())
	if len(builders) >= t.Builder && len(reviewers) >= t.Reviewer && len(all) >= need {
		return nil
	}
	err := fmt.Errorf("%w: version %d asks for %s, and there are those of %s", ErrUntrusted, version.Number,
		needText(t, need), nameList(all))
	if len(v.ignored) > 0 {
		err = fmt.Errorf("%w; %s", err, strings.Join(v.ignored, "; "))
	}
	if v.revoked {
		err = fmt.Errorf("%w: %w", ErrRevoked, err)
	}
	missing := slices.DeleteFunc(version.names(Builder, Reviewer), func(name string) bool {
		return slices.Contains(all, name)
	})
	hint := "take a bundle that is signed by " + strings.Join(missing, " or ")
	if len(missing) == 0 {
		hint = "the trust file has no more keys that could sign: ask its owners"
	} else {
		hint += ", or have it signed: boxlift bundle sign"
	}
	return fault.WithHint(err, hint)
}

// names are the signers' that have one of the roles, each once.
func (v *Verdict) names(roles ...Role) []string {
	var names []string
	for _, k := range v.Signers {
		if slices.ContainsFunc(roles, k.Has) && !slices.Contains(names, k.Name) {
			names = append(names, k.Name)
		}
	}
	return names
}

// needText says how many signatures are asked for.
func needText(t Thresholds, need int) string {
	parts := []string{printable.Counted(t.Builder, "builder")}
	if t.Reviewer > 0 {
		parts = append(parts, printable.Counted(t.Reviewer, "reviewer"))
	}
	text := "signatures of " + strings.Join(parts, " and ")
	if need > t.Bundle() {
		text += fmt.Sprintf(", %d in all", need)
	}
	return text
}

func roleList(roles []Role) string {
	texts := make([]string, 0, len(roles))
	for _, role := range roles {
		texts = append(texts, string(role))
	}
	return strings.Join(texts, ", ")
}
