package liteboxd

import (
	"testing"

	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// installation has the rooms that tests are about, and those below them.
type installation struct {
	site     *site.Site
	engine   *run.Engine
	record   *run.Record
	seeder   *seed.Seeder
	cluster  *k3s.Cluster
	deployer *Deployer
}

// roomsOf are the rooms for a site.
func roomsOf(s *site.Site) *installation {
	in := &installation{site: s}
	in.engine = &run.Engine{Site: in.site, Holds: run.NewHolds()}
	in.record = &run.Record{Site: in.site, Engine: in.engine}
	in.engine.Record = in.record
	in.seeder = &seed.Seeder{Site: in.site, Engine: in.engine}
	in.cluster = &k3s.Cluster{Site: in.site, Engine: in.engine, Record: in.record, Seeder: in.seeder}
	in.deployer = &Deployer{Site: in.site, Engine: in.engine, Cluster: in.cluster}
	return in
}

func example(t *testing.T, text string, components ...string) *installation {
	t.Helper()
	return roomsOf(sitetest.Example(t, text, components...))
}

func carrying(t *testing.T, disabled, k3s string, images ...string) *installation {
	t.Helper()
	return roomsOf(sitetest.Carrying(t, disabled, k3s, images...))
}
