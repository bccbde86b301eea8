package trust

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
)

// TestJudgeSite has keys of all roles sign what a site says of itself.
func TestJudgeSite(t *testing.T) {
	t.Parallel()
	document := []byte(`{"cluster":"plant-7"}`)
	year := 365 * 24 * time.Hour
	plant := func(change func(*Version, *Key)) *Policy {
		v := first(t)
		v.Keys = append(v.Keys, key(t, "eve", Site))
		if change != nil {
			change(v, &v.Keys[len(v.Keys)-1])
		}
		return verified(t, newFile(t, v, "ann", "bob"))
	}
	audience := func(names ...string) func(*Version, *Key) {
		return func(_ *Version, k *Key) { k.Audience = names }
	}
	ended := func(clock string) func(*Version, *Key) {
		return func(v *Version, k *Key) { v.Clock, k.NotAfter = clock, today.Add(time.Hour) }
	}
	bundleOf := func(name string, content []byte) []byte {
		s, err := signer(name).Sign(content)
		if err != nil {
			t.Fatal(err)
		}
		return s.Bundle
	}
	for name, test := range map[string]struct {
		policy      *Policy
		bundle      []byte
		clock       time.Duration
		says, warns string
	}{
		"a site":           {bundle: bundleOf("eve", document)},
		"white space":      {bundle: append(bundleOf("eve", document), '\n')},
		"an owner":         {bundle: bundleOf("cem", document), says: "the key of cem is for no site: it has the role owner"},
		"a builder":        {bundle: bundleOf("ann", document), says: "it has the role owner, builder"},
		"a reviewer":       {bundle: bundleOf("dia", document), says: "it has the role reviewer"},
		"a stranger":       {bundle: bundleOf("ann.2", document), says: "version 1 of the trust file does not have the key"},
		"another document": {bundle: bundleOf("eve", []byte("{}")), says: "the signature with the key of eve is not over this document"},
		"no signature":     {bundle: []byte("{}"), says: "media type"},
		"nothing":          {says: "sigstore bundle"},
		"too much":         {bundle: make([]byte, signature.ReadLimit+1), says: "too many"},
		"revoked":          {policy: plant(func(v *Version, k *Key) { revoke(k.ID)(v) }), bundle: bundleOf("eve", document), says: "was revoked on 2027-03-01: lost"},
		"its cluster":      {policy: plant(audience("plant-*")), bundle: bundleOf("eve", document)},
		"another cluster":  {policy: plant(audience("plant-1", "plant-8")), bundle: bundleOf("eve", document), says: `about the cluster "plant-7", and the key of eve speaks for plant-1, plant-8`},
		"its time is over": {policy: plant(ended(Warn)), bundle: bundleOf("eve", document), clock: year, warns: "was meant to sign until"},
		"its time is, strictly": {policy: plant(ended(Refuse)), bundle: bundleOf("eve", document), clock: year,
			says: "was meant to sign until"},
	} {
		t.Run(name, func(t *testing.T) {
			p := test.policy
			if p == nil {
				p = plant(nil)
			}
			k, warning, err := p.JudgeSite(document, test.bundle, today.Add(test.clock))
			if err == nil {
				err = k.SpeaksFor("plant-7")
			}
			if test.says != "" {
				if !errors.Is(err, ErrNotSite) || !strings.Contains(err.Error(), test.says) || fault.ClassOf(err) != fault.Input {
					t.Fatalf("got %v, expected %q", err, test.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if k.Name != "eve" || !strings.Contains(warning, test.warns) || test.warns == "" && warning != "" {
				t.Errorf("signed by %s, with the warning %q", k.Name, warning)
			}
		})
	}
}

// TestSiteSignsNoBundle has a site sign a bundle, alone and where others have.
func TestSiteSignsNoBundle(t *testing.T) {
	t.Parallel()
	index := []byte(`{"schemaVersion":2}`)
	v := first(t)
	v.Keys = append(v.Keys, key(t, "eve", Site))
	p := verified(t, newFile(t, v, "ann", "bob"))
	var all []signature.Signature
	for _, name := range []string{"eve", "ann"} {
		s, err := signer(name).Sign(index)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if _, err := p.Judge(index, all[:1], 0, today); !errors.Is(err, ErrUntrusted) ||
		!strings.Contains(err.Error(), "the key of eve is for no bundles: it has the role site") {
		t.Errorf("signed by the site alone: %v", err)
	}
	if _, err := p.Judge(index, all, 2, today); !errors.Is(err, ErrUntrusted) {
		t.Errorf("the site is taken for the second of two: %v", err)
	}
	// And none becomes one that does.
	for _, other := range []Role{Owner, Builder, Reviewer, Tester} {
		v := first(t)
		v.Keys = append(v.Keys, key(t, "eve", other, Site))
		if _, err := New(v); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "has no other role") {
			t.Errorf("a site that is %s: %v", other, err)
		}
	}
}
