package run

import (
	"errors"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// having gives a run's site hosts that have these in the place of their trust files, "" for nothing.
func (in *installation) having(t *testing.T, files ...string) []*hosttest.Fake {
	t.Helper()
	in.site.Config.Runtime.Parallelism = 2
	in.site.Hosts = nil
	in.site.Config.Cluster.Servers = nil
	var fakes []*hosttest.Fake
	for i, content := range files {
		name := string(rune('a' + i))
		f := hosttest.New(t, name)
		f.WriteFile(t, "/var/lib/boxlift/of-others", "", 0o600)
		if content != "" {
			f.WriteFile(t, wire.TrustFile, content, 0o644)
		}
		h := &site.Host{Conn: f, Member: true}
		h.Name = name
		in.site.Hosts, fakes = append(in.site.Hosts, h), append(fakes, f)
		in.site.Config.Cluster.Servers = append(in.site.Config.Cluster.Servers, config.Host{Host: "10.0.0.1" + name})
	}
	return fakes
}

// onHost is what a host has of a policy.
func onHost(t *testing.T, p *trust.Policy) string {
	t.Helper()
	content, err := p.File().Since(p.Version().Number).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestFloor: without the cluster's record, the newest trust file of the site's hosts counts where it follows on what
// the operator names, and no host stops another or brings something into the site.
func TestFloor(t *testing.T) {
	one := trusttest.First(t)
	two := trusttest.Next(t, one, trusttest.Revoke(t, "ann", "laptop lost"))
	three := trusttest.Next(t, two, func(*trust.Version) {})
	fork := trusttest.Next(t, one, func(v *trust.Version) { v.Keys = v.Keys[:3] })
	was, is, next, other := onHost(t, one), onHost(t, two), onHost(t, three), onHost(t, fork)
	for _, test := range []struct {
		name   string
		hosts  []string
		kept   *trust.Policy // by the copy of the record
		demand approval.Demand
		signed string
		// want is in the error, and warns in a warning; counts is the version that the bundle is judged by.
		want, warns string
		counts      int64
	}{
		{"no host has one", []string{"", ""}, nil, approval.Demand{Policy: one}, "ann", "", "", 1},
		{"the same", []string{was, was}, nil, approval.Demand{Policy: one}, "ann", "", "", 1},
		{"an older one is named", []string{is, "", is}, nil, approval.Demand{Policy: one}, "bob", "",
			"the trust file that is named has version 1, and the hosts a, c keep version 2, which counts", 2},
		{"of one host alone", []string{"", is}, nil, approval.Demand{Policy: one}, "bob", "",
			"the host b keeps version 2", 2},
		{"a key revoked since", []string{was, is}, nil, approval.Demand{Policy: one}, "ann",
			"the trust file that is named has version 1, and the host b keeps version 2, which counts: bundle ", "", 2},
		{"a newer one is named", []string{was, is}, nil, approval.Demand{Policy: three}, "bob", "", "", 3},
		{"each the next", []string{next, is}, nil, approval.Demand{Policy: one}, "bob", "",
			"the host a keeps version 3", 3},
		{"older than the copy", []string{was}, two, approval.Demand{Policy: one}, "ann", "version 2", "", 2},
		{"newer than the copy", []string{is}, one, approval.Demand{Policy: one}, "ann", "version 2", "", 2},
		{"newer than the copy, by a key", []string{is}, one,
			approval.Demand{Key: trusttest.Signer(t, "ann").PublicKey()}, "ann", "revoked on", "", 2},
		{"a key alone", []string{is}, nil, approval.Demand{Key: trusttest.Signer(t, "ann").PublicKey()}, "ann", "",
			"a has version 2 of a trust file", 0},
		{"a fork", []string{other, was}, nil, approval.Demand{Policy: two}, "bob", "",
			"a: the trust file there, of version 2", 2},
		{"a fork beside the newest", []string{other, next}, nil, approval.Demand{Policy: two}, "bob", "",
			"the host b keeps version 3", 3},
		{"garbage", []string{"garbage", is}, nil, approval.Demand{Policy: one}, "ann", "version 2", "", 2},
		{"too large", []string{strings.Repeat("x", 1<<20), ""}, nil, approval.Demand{Policy: one}, "ann", "",
			"a: the trust file there counts for nothing", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := fresh(t, 0)
			in.engine.Command, in.engine.Verb = "install", journal.Install
			in.begin(t)
			in.having(t, test.hosts...)
			in.site.Bundle = trusttest.SignBundle(t, in.site.Bundle, test.signed)
			in.record.Demand = test.demand
			a, err := test.demand.Approve(in.site.Bundle)
			if err != nil {
				t.Fatal(err)
			}
			in.record.Approval = a
			if test.kept != nil {
				if err := in.record.CopyRecord(keeping(t, test.kept)); err != nil {
					t.Fatal(err)
				}
			}
			wantError(t, "before hosts are changed", in.record.CheckBundle(t.Context()), site.ErrRefused, test.want)
			// A record that has begun anew keeps what counts.
			r := keeping(t, nil)
			err = in.record.beginRelease(r, release.Running)
			if test.want != "" && test.kept == nil {
				wantError(t, "in the record", err, site.ErrRefused, test.want)
			}
			if text := strings.Join(in.site.Warnings, "\n"); !strings.Contains(text, test.warns) {
				t.Errorf("warnings: %q", text)
			}
			if test.want != "" {
				return
			}
			kept, err := r.KeptTrust()
			if err != nil || (kept == nil) != (test.counts == 0) || kept != nil && kept.Version().Number != test.counts {
				t.Errorf("version %d is not what is kept: %v, %v", test.counts, kept, err)
			}
			if newest, err := in.record.siteTrust(t.Context()); err != nil || newest != nil &&
				newest.Version().Number != test.counts {
				t.Errorf("hosts get %v, %v", newest, err)
			}
		})
	}
}

// TestKeepNewestOfHosts: a restore brings an old record back, and the hosts that survived raise it.
func TestKeepNewestOfHosts(t *testing.T) {
	one := trusttest.First(t)
	two := trusttest.Next(t, one, func(*trust.Version) {})
	in := fresh(t, 0)
	in.having(t, onHost(t, one), onHost(t, two))
	in.engine.Restores = true
	in.record.askHosts(t.Context())
	r := keeping(t, one)
	in.record.keepNewest(r)
	if p, err := r.KeptTrust(); err != nil || p.Version().Number != 2 || len(in.site.Warnings) > 0 {
		t.Errorf("version %v is kept: %v, warnings %q", p, err, in.site.Warnings)
	}
	stranger := fresh(t, 0)
	stranger.having(t, onHost(t, two))
	stranger.engine.Restores = true
	stranger.record.askHosts(t.Context())
	none := keeping(t, nil)
	if stranger.record.keepNewest(none); none.Trust != nil {
		t.Error("a record that keeps none has got one from a host")
	}
}

// TestKeepTrustOnHosts: "trust keep" brings the file to all hosts that can be reached, and refuses one that is older
// than what hosts have although the cluster does not know.
func TestKeepTrustOnHosts(t *testing.T) {
	one := trusttest.First(t)
	two := trusttest.Next(t, one, func(*trust.Version) {})
	in := fresh(t, 0)
	in.engine.acts = true
	in.begin(t)
	in.connect(t, kubetest.NewMemory(t))
	fakes := in.having(t, "", onHost(t, one), "garbage")
	in.record.NoRelease = true
	in.record.Demand.Policy = two
	if err := errors.Join(in.record.KeepTrust(t.Context()), in.record.BringTrust(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, f := range fakes {
		if f.ReadFile(t, wire.TrustFile) != onHost(t, two) {
			t.Errorf("%s has %.100q", f.Name(), f.ReadFile(t, wire.TrustFile))
		}
	}
	if p, err := in.recordIn(t).KeptTrust(); err != nil || p.Version().Number != 2 {
		t.Errorf("the cluster keeps %v, %v", p, err)
	}

	lost := fresh(t, 0)
	lost.engine.acts = true
	lost.begin(t)
	lost.connect(t, kubetest.NewMemory(t))
	fakes = lost.having(t, onHost(t, two))
	lost.record.Demand.Policy = one
	wantError(t, "an older one", lost.record.KeepTrust(t.Context()), site.ErrRefused,
		"the host a keeps version 2 of the trust file: older trust file: it has version 1, and version 2 is held")
	if fakes[0].ReadFile(t, wire.TrustFile) != onHost(t, two) {
		t.Error("the host has the older one")
	}
}
