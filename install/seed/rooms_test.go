package seed

import (
	"testing"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// installation has the rooms that tests are about, and those below them.
type installation struct {
	site   *site.Site
	engine *run.Engine
	seeder *Seeder
	record *run.Record
}

// roomsOf are the rooms for a site.
func roomsOf(s *site.Site) *installation {
	in := &installation{site: s}
	in.engine = &run.Engine{Site: in.site, Holds: run.NewHolds()}
	in.seeder = &Seeder{Site: in.site, Engine: in.engine}
	in.record = &run.Record{Site: in.site, Engine: in.engine}
	in.engine.Record = in.record
	return in
}

func example(t *testing.T, text string, components ...string) *installation {
	t.Helper()
	return roomsOf(sitetest.Example(t, text, components...))
}

func seeded(t *testing.T, text string) *installation {
	t.Helper()
	return roomsOf(sitetest.Seeded(t, text))
}
