package run

import (
	"errors"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// keeping is a record that keeps a trust file, nil for none.
func keeping(t *testing.T, p *trust.Policy) *release.Record {
	t.Helper()
	r := sitetest.RecordOf(t, 0)
	if p != nil {
		if _, err := r.KeepTrust(p, trusttest.Today); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// TestApproveByRecord: the trust file that the cluster keeps counts beside what the operator named, and refuses each
// time that the record is asked: before hosts are changed, and when the release comes into it.
func TestApproveByRecord(t *testing.T) {
	one := trusttest.First(t)
	two := trusttest.Next(t, one, trusttest.Revoke(t, "ann", "laptop lost"))
	for _, test := range []struct {
		name   string
		held   *trust.Policy
		demand approval.Demand
		signed string
		// want is in the error, warns in a warning, and kept the version that the record keeps after a release.
		want, warns string
		kept        int64
	}{
		{"nothing kept, nothing asked for", nil, approval.Demand{}, "ann", "", "", 0},
		{"nothing kept, a key", nil, approval.Demand{Key: trusttest.Signer(t, "ann").PublicKey()}, "ann", "", "", 0},
		{"nothing kept, a trust file", nil, approval.Demand{Policy: one}, "ann", "", "", 1},
		{"the same", one, approval.Demand{Policy: one}, "ann", "", "", 1},
		{"a newer one is named", one, approval.Demand{Policy: two}, "bob", "", "", 2},
		{"a newer one is kept", two, approval.Demand{Policy: one}, "bob", "", "the trust file that is named has version 1", 2},
		{"a lost key", two, approval.Demand{Policy: one}, "ann", "of ann was revoked on 2027-03-01: laptop lost", "", 2},
		{"a lost key, by itself", two, approval.Demand{Key: trusttest.Signer(t, "ann").PublicKey()}, "ann",
			"of ann was revoked on 2027-03-01: laptop lost", "", 2},
		{"a newer one travels", one, approval.Demand{Key: trusttest.Signer(t, "bob").PublicKey(), Carried: two.File()}, "bob", "", "", 2},
		{"no signature asked for", two, approval.Demand{}, "ann", "", "", 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := fresh(t, 0)
			in.engine.Command, in.engine.Verb = "install", journal.Install
			in.begin(t)
			in.site.Bundle = trusttest.SignBundle(t, in.site.Bundle, test.signed)
			in.record.Demand = test.demand
			if !test.demand.IsNone() { // as the command line has done
				a, err := test.demand.Approve(in.site.Bundle)
				if err != nil {
					t.Fatal(err)
				}
				in.record.Approval = a
			}
			r := keeping(t, test.held)
			if err := in.record.CopyRecord(r); err != nil {
				t.Fatal(err)
			}
			wantError(t, "before hosts are changed", in.record.CheckBundle(t.Context()), site.ErrRefused, test.want)
			err := in.record.beginRelease(r, release.Running)
			wantError(t, "in the record", err, site.ErrRefused, test.want)
			if test.want != "" && (len(fault.Hints(err)) == 0 || len(r.Releases) != 1) {
				t.Errorf("the error has hints %q, and the record %d releases", fault.Hints(err), len(r.Releases))
			}
			if text := strings.Join(in.site.Warnings, "\n"); !strings.Contains(text, test.warns) || test.warns == "" && text != "" {
				t.Errorf("warnings: %q", text)
			}
			kept, err := r.KeptTrust()
			if err != nil || (kept == nil) != (test.kept == 0) || kept != nil && kept.Version().Number != test.kept {
				t.Errorf("version %d is not what is kept: %v, %v", test.kept, kept, err)
			}
			if newest := r.Newest(); test.want == "" && !test.demand.IsNone() &&
				(len(newest.Signers) != 1 || newest.Signers[0].Key != trusttest.ID(t, test.signed) || newest.Trust != test.kept) {
				t.Errorf("the release says that it is signed by %v, by version %d", newest.Signers, newest.Trust)
			}
		})
	}
}

// TestRevokedBundleIsTold: whoever asks for no signature is told that the bundle is revoked.
func TestRevokedBundleIsTold(t *testing.T) {
	in := fresh(t, 0)
	in.site.Bundle = trusttest.SignBundle(t, in.site.Bundle, "ann")
	revoked := trusttest.Next(t, trusttest.First(t), func(v *trust.Version) {
		if err := v.RevokeBundle(in.site.Bundle.Digest(), "a hole", trusttest.Today); err != nil {
			t.Error(err)
		}
	})
	if err := in.record.Approve(keeping(t, revoked)); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(in.site.Warnings, "\n"); !strings.Contains(text, "THE BUNDLE IS REVOKED") ||
		!strings.Contains(text, "a hole") {
		t.Errorf("warnings: %q", text)
	}
	in.record.Demand.Policy = trusttest.First(t)
	if err := in.record.Approve(keeping(t, revoked)); !errors.Is(err, trust.ErrRevoked) {
		t.Errorf("whoever asks for signatures gets %v", err)
	}
}

// TestKeepNewestTrust: a restore brings an old record back, and not the old trust file.
func TestKeepNewestTrust(t *testing.T) {
	one := trusttest.First(t)
	two := trusttest.Next(t, one, func(*trust.Version) {})
	fork := trusttest.Next(t, one, func(v *trust.Version) { v.Keys = v.Keys[:3] })
	for _, test := range []struct {
		name         string
		copy, backup *trust.Policy
		want         int64
		warns        bool
	}{
		{"an older one in the backup", two, one, 2, false},
		{"none in the backup", two, nil, 2, false},
		{"none in the copy", nil, one, 1, false},
		{"a newer one in the backup", one, two, 2, false},
		{"another one", two, fork, 2, true},
	} {
		in := fresh(t, 0)
		in.engine.Restores = true
		if err := in.record.CopyRecord(keeping(t, test.copy)); err != nil {
			t.Fatal(err)
		}
		r := keeping(t, test.backup)
		in.record.keepNewest(r)
		p, err := r.KeptTrust()
		if err != nil || p == nil || p.Version().Number != test.want || test.warns != (len(in.site.Warnings) == 1) {
			t.Errorf("%s: %v, %v, warnings %q", test.name, p, err, in.site.Warnings)
		}
	}
}
