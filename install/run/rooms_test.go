package run

import (
	"testing"

	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// installation has the rooms that tests are about, and those below them.
type installation struct {
	site   *site.Site
	engine *Engine
	record *Record
}

// roomsOf are the rooms for a site.
func roomsOf(s *site.Site) *installation {
	in := &installation{site: s}
	in.engine = &Engine{Site: in.site, Holds: NewHolds()}
	in.record = &Record{Site: in.site, Engine: in.engine}
	in.engine.Record = in.record
	return in
}

func example(t *testing.T, text string, components ...string) *installation {
	t.Helper()
	return roomsOf(sitetest.Example(t, text, components...))
}

func fresh(t *testing.T, serial int64) *installation {
	t.Helper()
	return roomsOf(sitetest.Fresh(t, serial))
}
