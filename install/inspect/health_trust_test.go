package inspect

import (
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// TestJudgeTrust: what runs is compared with the newest trust file that is known.
func TestJudgeTrust(t *testing.T) {
	one := trusttest.First(t)
	revoked := trusttest.Next(t, one, trusttest.Revoke(t, "ann", "laptop lost"))
	fork := trusttest.Next(t, one, func(*trust.Version) {})
	signedByAnn := func(p *trust.Policy) *release.Record {
		r := sitetest.RecordOf(t, 0)
		r.Releases[0].State = release.Succeeded
		r.Releases[0].Signers = []approval.Signer{{Name: "ann", Key: trusttest.ID(t, "ann")}}
		if p != nil {
			if _, err := r.KeepTrust(p, trusttest.Today); err != nil {
				t.Fatal(err)
			}
		}
		return r
	}
	for _, test := range []struct {
		name   string
		record *release.Record
		named  *trust.Policy
		state  State
		want   string
	}{
		{"no record", nil, one, HealthSkipped, "no record"},
		{"no trust file", signedByAnn(nil), nil, HealthSkipped, "keeps no trust file"},
		{"nothing revoked", signedByAnn(one), nil, HealthOK, "version 1 of the trust file revokes nothing"},
		{"revoked", signedByAnn(revoked), nil, HealthFailed, "release 1: the key " + trusttest.ID(t, "ann") + " of ann"},
		{"revoked by what is named", signedByAnn(one), revoked, HealthFailed, "laptop lost"},
		{"revoked by what alone is named", signedByAnn(nil), revoked, HealthFailed, "laptop lost"},
		{"an older one is named", signedByAnn(revoked), one, HealthFailed, "laptop lost"},
		{"another one is named", signedByAnn(revoked), fork, HealthFailed, "forked trust file"},
	} {
		e := &examination{inspector: &Inspector{Trust: test.named}}
		got := e.judgeTrust(test.record)
		if len(got) != 1 || got[0].State != test.state || !strings.Contains(got[0].Detail, test.want) ||
			got[0].State == HealthFailed && got[0].Hint == "" {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}
