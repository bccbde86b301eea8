//go:build linux

package platform

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/confinement"
)

// rehearse rehearses a bundle on a platform, from another one where that is not nil, with these checks, nil for all
// that a platform in memory has something for.
func (p *Platform) rehearse(t *testing.T, b, from *bundle.Reader, checks []string) (*attestation.Rehearsal, error) {
	t.Helper()
	for _, h := range p.Hosts {
		h.Program("printenv", hosttest.Prints("10.0.0.1 50000 "+h.Address+" 22\n"))
	}
	if checks == nil { // there are no pods that ask for names, and no ports with certificates
		checks = slices.DeleteFunc(inspect.HealthChecks(), func(name string) bool {
			return name == "dns" || name == "certificate" || name == "sandbox-to-internet"
		})
	}
	o, _ := p.options(t, b)
	return install.Rehearse(t.Context(), install.RehearseOptions{Options: o, From: from, Checks: checks})
}

// stagesOf are the names of what was done, with a mark at what failed.
func stagesOf(r *attestation.Rehearsal) (list []string) {
	for _, s := range r.Stages {
		if s.Error != "" {
			s.Name += " FAILED"
		}
		list = append(list, s.Name)
	}
	return list
}

// A rehearsal installs, and upgrades, as the verbs do. What is wrong with a bundle, and what tries to leave, it tells.
func TestRehearse(t *testing.T) {
	for name, test := range map[string]struct {
		bundle, from func() *bundle.Reader
		change       func(*Platform)
		checks       []string
		stages       []string
		failed       []string
		says         string // of the first stage that failed
		flow         string
	}{
		"an installation": {bundle: func() *bundle.Reader { return Bundle(t, older) }, stages: []string{"install", "health"}},
		"an upgrade": {bundle: func() *bundle.Reader { return Bundle(t, patched) },
			from:   func() *bundle.Reader { return Bundle(t, older) },
			stages: []string{"install", "health", "upgrade", "health after the upgrade"}},
		"a k3s that does not start": {bundle: func() *bundle.Reader { return Bundle(t, older, "server-1") },
			stages: []string{"install FAILED"}, failed: []string{"install"}, says: "10.0.0.11"},
		"an upgrade to one": {bundle: func() *bundle.Reader { return Bundle(t, patched, "agent-1") },
			from:   func() *bundle.Reader { return Bundle(t, older) },
			stages: []string{"install", "health", "upgrade FAILED"}, failed: []string{"upgrade"}, says: "10.0.0.12"},
		"a check that fails": {bundle: func() *bundle.Reader { return Bundle(t, older) }, checks: []string{"certificate"},
			stages: []string{"install", "health FAILED"}, failed: []string{"health"}, says: "not well: certificate"},
		"packets": {bundle: func() *bundle.Reader { return Bundle(t, older) },
			change: func(p *Platform) {
				p.Hosts[1].Left = confinement.Counts{Packets: 2, Flows: []confinement.Flow{{From: netip.MustParseAddr("10.0.0.12"),
					To: netip.MustParseAddr("1.1.1.1"), Protocol: 6, Port: 443, Packets: 2}}}
			}, stages: []string{"install", "health"}, failed: []string{"nothing tried to leave"},
			flow: "the host itself, or a pod in its network on agent-1 (10.0.0.12) (10.0.0.12) to 1.1.1.1 tcp port 443: 2 packets"},
	} {
		t.Run(name, func(t *testing.T) {
			p := fresh(t)
			var from *bundle.Reader
			if test.from != nil {
				from = test.from()
			}
			if test.change != nil {
				test.change(p)
			}
			b := test.bundle()
			r, err := p.rehearse(t, b, from, test.checks)
			if r == nil {
				t.Fatal(err)
			}
			if (err == nil) != (test.failed == nil) || err != nil && !errors.Is(err, install.ErrRehearsalFailed) {
				t.Errorf("%v, %+v", err, r)
			}
			if diff := cmp.Diff(test.stages, stagesOf(r)); diff != "" {
				t.Errorf("%s\n%+v", diff, r)
			}
			if diff := cmp.Diff(test.failed, r.Failed()); diff != "" {
				t.Error(diff)
			}
			if last := r.Stages[len(r.Stages)-1].Error; !strings.Contains(last, test.says) {
				t.Errorf("%q does not say %q", last, test.says)
			}
			if !r.Confined || len(r.Hosts) != 2 || (r.UpgradedFrom != "") != (from != nil) || r.Finished.Before(r.Started) ||
				!slices.Contains(r.Versions, attestation.Part{Name: "cilium", Version: "1.20.0"}) {
				t.Errorf("%+v", r)
			}
			if test.flow != "" && (len(r.Flows) != 1 || r.Flows[0].String() != test.flow) {
				t.Errorf("%v, expected %s", r.Flows, test.flow)
			}
			// A second one is refused: the hosts are not new any more.
			if again, err := p.rehearse(t, b, nil, nil); again != nil || !errors.Is(err, site.ErrRefused) {
				t.Errorf("on the same hosts: %+v, %v", again, err)
			}
		})
	}
}
