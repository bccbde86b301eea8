package survey

import (
	"testing"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// An installation has the hosts try each other when one is new, preflight alone always.
func TestTriesReach(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	for _, test := range []struct {
		name             string
		isNew, installed bool
		want             bool
	}{
		{name: "preflight alone", want: true},
		{name: "preflight before a host joins", isNew: true, want: true},
		{name: "an installation that is there", installed: true},
		{name: "an installation with a new host", isNew: true, installed: true, want: true},
	} {
		in.site.Hosts[0].Member, in.site.Hosts[1].Joined, in.engine.Journal = true, "https://10.0.0.11:6443", nil
		if test.isNew {
			in.site.Hosts[1].Joined = ""
		}
		if test.installed {
			in.engine.Journal = &journal.Journal{}
		}
		if got := in.surveyor.triesReach(); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
