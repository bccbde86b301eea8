package site_test

import (
	"testing"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// Agents get what they need to start where the seeding says so; servers get everything.
func TestBootIsForAgents(t *testing.T) {
	for text, want := range map[string][2]bool{"": {}, sitetest.OwnRegistry: {false, true}, "seeding: {mode: registry}\n": {}} {
		s := sitetest.Seeded(t, sitetest.ExampleConfig+text)
		if got := [2]bool{s.PackOptions(s.Hosts[0]).Boot, s.PackOptions(s.Hosts[1]).Boot}; got != want {
			t.Errorf("%q: server and agent %v, want %v", text, got, want)
		}
	}
	if c := sitetest.Seeded(t, sitetest.ExampleConfig+sitetest.OwnRegistry).Config; c.Seeding.Agents != config.AgentsBoot {
		t.Errorf("agents are %s", c.Seeding.Agents)
	}
}
