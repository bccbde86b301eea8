//go:build linux

package platform

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/upgrade"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// trusting are the options of a run that asks for signatures, as the command line has judged them.
func (p *Platform) trusting(t *testing.T, b *bundle.Reader, d approval.Demand) install.Options {
	t.Helper()
	o, _ := p.options(t, b)
	var err error
	if o.Demand = d; b != nil {
		if o.Approval, err = d.Approve(b); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// record is what the cluster has on record.
func (p *Platform) record(t *testing.T) *release.Record {
	t.Helper()
	o, _ := p.options(t, nil)
	r, err := install.History(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// keeps wants a version of the trust file in the record.
func (p *Platform) keeps(t *testing.T, version int64) {
	t.Helper()
	kept, err := p.record(t).KeptTrust()
	if err != nil || kept == nil || kept.Version().Number != version {
		t.Errorf("the cluster keeps %v, %v; want version %d", kept, err, version)
	}
}

// hostsKeep wants a version of the trust file on all hosts.
func (p *Platform) hostsKeep(t *testing.T, version int64) {
	t.Helper()
	for _, h := range p.Hosts {
		f, err := trust.Parse([]byte(h.ReadFile(t, wire.TrustFile)))
		if err != nil || f.Newest().Number != version {
			t.Errorf("%s has %v, %v; want version %d", h.Name(), f, err, version)
		}
	}
}

// TestTrust: a cluster keeps the newest trust file that it was shown. A bundle that a lost key has signed is refused
// from then on, whatever the operator names, and still taken by a cluster that was not shown the newer file; both say
// why.
func TestTrust(t *testing.T) {
	three := trusttest.Next(t, trusttest.Next(t, trusttest.First(t), func(*trust.Version) {}), func(*trust.Version) {})
	four := trusttest.Next(t, three, func(*trust.Version) {})
	five := trusttest.Next(t, four, trusttest.Revoke(t, "ann", "laptop lost"))
	p := fresh(t)
	first, lost := trusttest.SignBundle(t, Bundle(t, older), "ann"), trusttest.SignBundle(t, Bundle(t, patched), "ann")
	named := approval.Demand{Policy: three}
	if _, err := install.Install(t.Context(), p.trusting(t, first, named)); err != nil {
		t.Fatal(err, p.Told())
	}
	p.keeps(t, 3)
	p.hostsKeep(t, 3)
	if one := p.record(t).Newest(); one.Trust != 3 || len(one.Signers) != 1 || one.Signers[0].Name != "ann" {
		t.Errorf("the release says that it is signed by %v, by version %d", one.Signers, one.Trust)
	}

	// A cluster that nobody has shown the newer file takes it.
	other := p.Copy(t)
	plan, err := install.PlanUpgrade(t.Context(), install.UpgradeOptions{Options: other.trusting(t, lost, named)})
	if err != nil || plan.Trust != 3 || len(plan.Signers) != 1 {
		t.Errorf("the plan where the key is not known to be lost: %+v, %v", plan, err)
	}

	// The newer file comes to a cluster without a bundle, as a step like any other.
	o, _ := p.options(t, nil)
	o.Demand.Policy = five
	o.DryRun = true
	before := p.exact(t)
	if s, err := install.KeepTrust(t.Context(), o); err != nil || len(s.Changes) != 1 ||
		s.Changes[0].Reason != "version 5 follows on version 3" {
		t.Errorf("a dry run: %+v, %v", s, err)
	}
	if diff := cmp.Diff(before, p.exact(t)); diff != "" {
		t.Errorf("a dry run has changed something: %s", diff)
	}
	o.DryRun = false
	for _, changes := range []int{1 + len(p.Hosts), 0} {
		if s, err := install.KeepTrust(t.Context(), o); err != nil || s.ChangeCount() != changes {
			t.Errorf("the trust file by itself: %+v, %v", s, err)
		}
	}
	p.keeps(t, 5)
	p.hostsKeep(t, 5)
	o.Demand.Policy = four
	if _, err := install.KeepTrust(t.Context(), o); !errors.Is(err, site.ErrRefused) || !errors.Is(err, trust.ErrOlder) {
		t.Errorf("an older file: %v", err)
	}

	// What runs was signed by ann alone: status and health tell it, until somebody else has signed.
	good := trusttest.SignBundle(t, first, "bob")
	health := func() (*inspect.Health, error) {
		return install.CheckHealth(t.Context(), p.trusting(t, nil, approval.Demand{}), []string{"trust"})
	}
	status, err := install.Inspect(t.Context(), p.trusting(t, good, named))
	if !errors.Is(err, site.ErrDifferent) || !slices.ContainsFunc(status.Differences, func(text string) bool {
		return strings.Contains(text, "release 1: the key "+trusttest.ID(t, "ann")+" of ann, which signed it, was revoked")
	}) {
		t.Errorf("status: %+v, %v", status.Differences, err)
	}
	if h, err := health(); !errors.Is(err, inspect.ErrUnhealthy) || h.Checks[0].State != inspect.HealthFailed ||
		!strings.Contains(h.Checks[0].Detail, "laptop lost") {
		t.Errorf("health: %+v, %v", h, err)
	}
	six := trusttest.Next(t, five, func(*trust.Version) {})
	for _, file := range []*trust.Policy{five, six} {
		if _, err := install.Install(t.Context(), p.trusting(t, good, approval.Demand{Policy: file})); err != nil {
			t.Fatal(err)
		}
	}
	p.keeps(t, 6)
	if status, err := install.Inspect(t.Context(), p.trusting(t, good, named)); err != nil {
		t.Errorf("status once bob has signed: %+v, %v", status.Differences, err)
	}
	if h, err := health(); err != nil || h.Checks[0].State != inspect.HealthOK {
		t.Errorf("health once bob has signed: %+v, %v", h, err)
	}
	var told []string
	for _, e := range p.record(t).Events {
		told = append(told, e.Command+": "+e.Result)
	}
	if diff := cmp.Diff([]string{
		fmt.Sprintf("trust keep: %d changes", 1+len(p.Hosts)), "install: the bundle that runs is good by others than before", "install: version 6 of the trust file",
	}, told); diff != "" || len(p.record(t).Releases) != 1 {
		t.Errorf("%d releases, events: %s", len(p.record(t).Releases), diff)
	}

	// Where the record was lost, the hosts know what was revoked since.
	forgotten := p.Copy(t)
	forgotten.API.Remove(t, recordPath)
	if _, err := install.Install(t.Context(), forgotten.trusting(t, lost, named)); !errors.Is(err, trust.ErrRevoked) ||
		!strings.Contains(err.Error(), "the trust file that is named has version 3, and the hosts agent-1") ||
		!strings.Contains(err.Error(), " keep version 6, which counts: ") {
		t.Errorf("an installation where the record is lost: %v", err)
	}

	// Where the record was lost, adopting shows the file again.
	lostRecord := p.Copy(t)
	lostRecord.API.Remove(t, recordPath)
	if _, err := install.Adopt(t.Context(), lostRecord.trusting(t, good, approval.Demand{Policy: six})); err != nil {
		t.Error(err)
	}
	lostRecord.keeps(t, 6)
	if one := lostRecord.record(t).Newest(); one.Trust != 6 || len(one.Signers) != 1 || one.Signers[0].Name != "bob" {
		t.Errorf("what was adopted is signed by %v, by version %d", one.Signers, one.Trust)
	}

	// An older file that the operator names, and a key by itself, are no way around it.
	for name, d := range map[string]approval.Demand{
		"an older file": named, "a key": {Key: trusttest.Signer(t, "ann").PublicKey()},
	} {
		before, around := p.exact(t), p.Snapshot(t)
		o := install.UpgradeOptions{Options: p.trusting(t, lost, d)}
		plan, err := install.PlanUpgrade(t.Context(), o)
		if got, reason := outcome(plan, gate.Trust); !errors.Is(err, site.ErrRefused) || got != gate.Refused ||
			!strings.Contains(reason, "of ann was revoked on 2027-03-01: laptop lost") {
			t.Errorf("%s: the gate is %s: %s, %v", name, got, reason, err)
		}
		if _, err := install.Upgrade(t.Context(), o); !errors.Is(err, site.ErrRefused) {
			t.Errorf("%s: the upgrade: %v", name, err)
		}
		if diff := cmp.Diff(before, p.exact(t)); diff != "" {
			t.Errorf("%s: a refused upgrade has changed something: %s", name, diff)
		}
		if _, err := install.Install(t.Context(), p.trusting(t, lost, d)); !errors.Is(err, trust.ErrRevoked) {
			t.Errorf("%s: install: %v", name, err)
		}
		if diff := cmp.Diff(withoutLocks(around), withoutLocks(p.Snapshot(t))); diff != "" {
			t.Errorf("%s: a refused installation has changed something: %s", name, diff)
		}
	}

	// With another signature the same bundle is good, and the next version travels with it.
	seven := trusttest.Next(t, six, func(*trust.Version) {})
	both := trusttest.SignBundle(t, lost, "bob")
	last := install.UpgradeOptions{
		Options:  p.trusting(t, both, approval.Demand{Policy: three, Carried: seven.File()}),
		Settings: upgrade.Settings{Accept: gate.Accept{Drift: true}},
	}
	if _, err := install.Upgrade(t.Context(), last); err != nil {
		t.Fatal(err, p.Told())
	}
	p.keeps(t, 7)
	if one := p.record(t).Newest(); one.Trust != 7 || len(one.Signers) != 1 || one.Signers[0].Name != "bob" {
		t.Errorf("the release says that it is signed by %v, by version %d", one.Signers, one.Trust)
	}
}
