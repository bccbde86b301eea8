package trust

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
)

// ErrNotSite says that a document is not signed by a site that may say it.
var ErrNotSite = fault.NewKind(fault.Input, "not signed by a key of the site")

// JudgeSite proves that a document in which a site says something of itself is signed with a key of the role [Site], by
// the sigstore bundle given, and returns that key. For which cluster the document speaks is judged by [Key.SpeaksFor],
// which has to follow once it is read. The clock is treated as for bundles: with [Warn], the text of a warning is
// returned for a key outside its validity, else "". The error wraps [ErrNotSite].
func (p *Policy) JudgeSite(document, bundle []byte, now time.Time) (signer *Key, warning string, err error) {
	one := signature.Signature{Bundle: bundle}
	id, _, err := one.Claim()
	if err != nil {
		return nil, "", notSite("%v", err)
	}
	v := p.Version()
	k := v.Key(id)
	if r := v.Revoked(id); r != nil {
		return nil, "", notSite("the key %.80s was revoked on %s: %s", id, r.Date.Format(time.DateOnly), r.Reason)
	}
	if k == nil {
		return nil, "", fault.WithHint(notSite("version %d of the trust file does not have the key %.80s", v.Number, id),
			"an owner adds the key of a site, which boxlift site key prints, with: boxlift trust add --site NAME=FILE")
	}
	if !k.Has(Site) {
		return nil, "", notSite("the key of %s is for no site: it has the role %s", k.Name, roleList(k.Roles))
	}
	if signature.Verify(k.public, document, bundle, nil) != nil {
		return nil, "", fault.WithHint(notSite("the signature with the key of %s is not over this document", k.Name),
			"the document was changed after it was signed, or the signature is that of another one: carry both again")
	}
	if warning = k.clockText(now); warning != "" && v.Clock == Refuse {
		return nil, "", notSite("%s", warning)
	}
	return k, warning, nil
}

func notSite(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrNotSite, fmt.Sprintf(format, args...))
}

// SpeaksFor judges whether what the key signs may be about a cluster: the key's audience says so. The error wraps
// [ErrNotSite].
func (k *Key) SpeaksFor(cluster string) error {
	if k.Audience == nil || slices.ContainsFunc(k.Audience, func(pattern string) bool {
		matched, err := path.Match(pattern, cluster)
		return err == nil && matched
	}) {
		return nil
	}
	return notSite("it is about the cluster %.80q, and the key of %s speaks for %s", cluster, k.Name,
		strings.Join(k.Audience, ", "))
}
