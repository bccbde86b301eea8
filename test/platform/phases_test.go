//go:build linux

package platform

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
)

// phase runs one phase alone.
func (p *Platform) phase(t *testing.T, b *bundle.Reader, name string, dryRun bool) (changes int, err error) {
	t.Helper()
	o, _ := p.options(t, b)
	o.DryRun = dryRun
	summary, err := install.RunPhase(t.Context(), o, name)
	if summary != nil {
		changes = summary.ChangeCount()
	}
	return changes, err
}

// All phases of an installation, each run alone in their order, come to what an installation comes to: it finds nothing
// to do after them. Before what a phase needs is there, it is refused with the phase that brings it, and nothing is
// changed, also when it is only looked at. A phase that was run has nothing to do when it is run again.
func TestPhaseByPhase(t *testing.T) {
	p, b := fresh(t), Bundle(t, older)
	if _, err := p.phase(t, b, "preflight", false); err != nil {
		t.Fatal(err)
	}
	refused := func(name, hint string) {
		t.Helper()
		before := withoutLocks(p.Snapshot(t))
		for _, dryRun := range []bool{true, false} {
			n, err := p.phase(t, b, name, dryRun)
			if n != 0 || !errors.Is(err, site.ErrRefused) || !strings.Contains(strings.Join(fault.Hints(err), "\n"), hint) {
				t.Errorf("%s, dry run %t: %d changes, %v, %q", name, dryRun, n, err, fault.Hints(err))
			}
		}
		if diff := cmp.Diff(before, withoutLocks(p.Snapshot(t))); diff != "" {
			t.Errorf("%s was refused, and has changed something: %s", name, diff)
		}
	}
	refused("servers", "boxlift phase run ship")
	for _, name := range []string{"network", "liteboxd"} {
		refused(name, "boxlift phase run servers")
	}
	changed := make(map[string]bool)
	for _, phase := range install.Phases()[1:] {
		switch phase.Name {
		case "leaving", "front": // install.yaml removes nobody, and has no front
			if _, err := p.phase(t, b, phase.Name, false); !errors.Is(err, site.ErrRefused) {
				t.Errorf("%s: %v", phase.Name, err)
			}
			continue
		case "servers":
			refused("agents", "boxlift phase run servers")
		case "network":
			refused("verify", "boxlift phase run network")
		}
		n, err := p.phase(t, b, phase.Name, false)
		if err != nil {
			t.Fatalf("%s: %v, %v", phase.Name, err, p.Told())
		}
		changed[phase.Name] = n > 0
		if n, err = p.phase(t, b, phase.Name, false); n != 0 || err != nil {
			t.Errorf("%s, run again: %d changes, %v", phase.Name, n, err)
		}
	}
	for _, name := range []string{"ship", "place", "servers", "agents", "network", "converge"} {
		if !changed[name] {
			t.Errorf("%s has changed nothing", name)
		}
	}

	o, told := p.options(t, b)
	summary, err := install.Install(t.Context(), o)
	if err != nil || summary.ChangeCount() != 0 || len(told.warnings()) > 0 {
		t.Errorf("an installation after all phases: %+v, %v, %q", summary, err, told.warnings())
	}
	record, err := install.History(t.Context(), o)
	if err != nil || len(record.Releases) != 1 || record.Releases[0].Bundle != b.Digest() {
		t.Errorf("the record of it: %+v, %v", record, err)
	}
	p.nothingDiffers(t, b)
	for _, h := range p.Hosts {
		if h.Starts() != 1 {
			t.Errorf("k3s was started %d times on %s", h.Starts(), h.Name())
		}
	}
}

// A phase works with the bundle that the cluster was made from.
func TestPhaseOfAnotherBundle(t *testing.T) {
	p := installed(t, Bundle(t, older))
	before := withoutLocks(p.Snapshot(t))
	n, err := p.phase(t, Bundle(t, patched), "ship", false)
	if n != 0 || !errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), "boxlift upgrade takes the cluster") {
		t.Errorf("%d changes, %v", n, err)
	}
	if diff := cmp.Diff(before, withoutLocks(p.Snapshot(t))); diff != "" {
		t.Errorf("it has changed something: %s", diff)
	}
}
