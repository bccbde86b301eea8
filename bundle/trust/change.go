package trust

import (
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/fault"
)

// Add adds a key. Its error says that the version has it already.
func (v *Version) Add(k Key) error {
	if other := v.Key(k.ID); other != nil {
		return fault.WithHint(fault.Input.Errorf("add the key of %s: version %d has %s already, as the key of %s", k.Name,
			v.Number, k.ID, other.Name), "one key has one name; whoever gets another key has it added, or succeeded by it")
	}
	if v.Revoked(k.ID) != nil {
		return fault.Input.Errorf("add the key of %s: %s is revoked", k.Name, k.ID)
	}
	v.Keys = append(v.Keys, k)
	return nil
}

// Succeed puts another key in the place of one: it gets the name, the roles and the bounds. The old
// key signs no further version of the file; what it has signed stays good, with a warning once the
// clock is past until.
func (v *Version) Succeed(old string, by Key, until time.Time) error {
	k := v.Key(old)
	if k == nil {
		return fault.Input.Errorf("succeed the key %s: version %d does not have it", old, v.Number)
	}
	by.Name, by.Roles, by.Components, by.Audience = k.Name, slices.Clone(k.Roles), k.Components, k.Audience
	k.Roles = slices.DeleteFunc(k.Roles, func(r Role) bool { return r == Owner })
	if until = until.UTC().Truncate(time.Second); k.NotAfter.IsZero() || until.Before(k.NotAfter) {
		k.NotAfter = until
	}
	if !k.NotBefore.IsZero() && !k.NotBefore.Before(k.NotAfter) {
		return fault.Input.Errorf("succeed the key %s: it is to end on %s, before it begins", old,
			k.NotAfter.Format(time.RFC3339))
	}
	if len(k.Roles) == 0 {
		v.Keys = slices.DeleteFunc(v.Keys, func(k Key) bool { return k.ID == old })
	}
	return v.Add(by)
}

// RevokeKey revokes a key, which may be one that the version does not have any more.
func (v *Version) RevokeKey(id, reason string, at time.Time) error {
	if v.Revoked(id) != nil {
		return fault.Input.Errorf("revoke the key %s: it is revoked already", id)
	}
	v.RevokedKeys = append(v.RevokedKeys, RevokedKey{id, reason, at.UTC().Truncate(time.Second)})
	return nil
}

// RevokeBundle revokes a bundle.
func (v *Version) RevokeBundle(d digest.Digest, reason string, at time.Time) error {
	if v.RevokedBundle(d) != nil {
		return fault.Input.Errorf("revoke the bundle %s: it is revoked already", d)
	}
	v.RevokedBundles = append(v.RevokedBundles, RevokedBundle{d, reason, at.UTC().Truncate(time.Second)})
	return nil
}

// TakeBack takes the revocation of a key or a bundle back, by the key's id or the bundle digest.
func (v *Version) TakeBack(what string) error {
	keys, bundles := len(v.RevokedKeys), len(v.RevokedBundles)
	v.RevokedKeys = slices.DeleteFunc(v.RevokedKeys, func(r RevokedKey) bool { return r.ID == what })
	v.RevokedBundles = slices.DeleteFunc(v.RevokedBundles, func(r RevokedBundle) bool { return string(r.Digest) == what })
	if len(v.RevokedKeys) == keys && len(v.RevokedBundles) == bundles {
		return fmt.Errorf("take a revocation back: %w", fault.Input.Errorf("%.80s is not revoked", what))
	}
	if len(v.RevokedKeys) == 0 {
		v.RevokedKeys = nil
	}
	if len(v.RevokedBundles) == 0 {
		v.RevokedBundles = nil
	}
	return nil
}
