package release

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/trust"
)

// maxTrust bounds the trust file in a record, which has one version: its content in base64, and its signatures.
const maxTrust = 2 * (trust.MaxContent + trust.MaxSignatures<<13)

// KeptTrust is the trust file that the cluster keeps; nil when it keeps none. It was proven when it was kept.
func (r *Record) KeptTrust() (*trust.Policy, error) {
	if r == nil || r.Trust == nil {
		return nil, nil //nolint:nilnil // none is no error
	}
	content, err := unpack(r.Trust, maxTrust)
	if err != nil {
		return nil, fmt.Errorf("its trust file: %w", err)
	}
	f, err := trust.Parse(content)
	if err == nil && len(f.Numbers()) != 1 {
		err = errors.New("it has several versions")
	}
	if err != nil {
		return nil, fmt.Errorf("its trust file: %w", err)
	}
	p, err := f.Kept()
	if err != nil {
		return nil, fmt.Errorf("its trust file: %w", err)
	}
	return p, nil
}

// NewestTrust is the trust file that the cluster keeps, or one that somebody names, nil for none, where that follows on
// it; nil when there is neither. The errors are those of [trust.Policy.Accept], but for [trust.ErrOlder].
func (r *Record) NewestTrust(named *trust.Policy, now time.Time) (*trust.Policy, error) {
	held, err := r.KeptTrust()
	if err != nil || named == nil {
		return held, err
	}
	if held == nil {
		return named, nil
	}
	p, err := held.Accept(named.File(), now)
	if errors.Is(err, trust.ErrOlder) {
		return held, nil
	}
	return p, err
}

// KeepTrust has the cluster keep a trust file, if that follows on the one that it keeps and is newer, and reports
// whether it is. The first one is taken as it is. The errors are those of [trust.Policy.Accept].
func (r *Record) KeepTrust(p *trust.Policy, now time.Time) (isNewer bool, err error) {
	held, err := r.KeptTrust()
	if err != nil {
		return false, err
	}
	if held != nil {
		if p, err = held.Accept(p.File(), now); err != nil || p == held {
			return false, err
		}
	}
	content, err := p.File().Since(p.Version().Number).Encode()
	if err != nil {
		return false, err
	}
	if len(content) > maxTrust {
		return false, fmt.Errorf("keep version %d of the trust file: it has %d bytes, %d is the most", p.Version().Number,
			len(content), maxTrust)
	}
	r.Trust, err = pack(content)
	return err == nil, err
}

// Resign notes who counts now for the bundle that runs, by a version of the trust file, and reports whether others did
// before: a key was revoked since, or somebody has signed. A bundle that does not run by the record is left alone.
func (r *Record) Resign(bundle digest.Digest, signers []approval.Signer, version int64) bool {
	one := r.LastStanding()
	if one == nil || one.State != Succeeded || one.Bundle != bundle || slices.Equal(one.Signers, signers) {
		return false
	}
	one.Signers, one.Trust = slices.Clone(signers), version
	return true
}

// Revocations say what a version of the trust file has against a release: its bundle is revoked, or keys that signed it
// are.
func (r *Release) Revocations(v *trust.Version) []string {
	var texts []string
	if one := v.RevokedBundle(r.Bundle); one != nil {
		texts = append(texts, fmt.Sprintf("its bundle was revoked on %s: %s", one.Date.Format(time.DateOnly), one.Reason))
	}
	for _, s := range r.Signers {
		if one := v.Revoked(s.Key); one != nil {
			name := s.Name
			if k := v.Key(s.Key); name == "" && k != nil {
				name = k.Name
			}
			texts = append(texts, fmt.Sprintf("the key %s of %s, which signed it, was revoked on %s: %s", s.Key, name,
				one.Date.Format(time.DateOnly), one.Reason))
		}
	}
	return slices.Clip(texts)
}

// RevokedSince is what a version of the trust file has against the release that runs, and against one that was begun
// since.
func (r *Record) RevokedSince(v *trust.Version) []string {
	var texts []string
	releases := []*Release{r.Current()}
	if standing := r.LastStanding(); standing != releases[0] {
		releases = append(releases, standing)
	}
	for _, one := range releases {
		if one == nil {
			continue
		}
		for _, text := range one.Revocations(v) {
			texts = append(texts, fmt.Sprintf("release %d: %s", one.Number, text))
		}
	}
	return texts
}
