package inspect

import (
	"testing"

	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/front"
	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/names"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/workload"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// installation has the rooms that tests are about, and those below them.
type installation struct {
	site      *site.Site
	engine    *run.Engine
	seeder    *seed.Seeder
	record    *run.Record
	cluster   *k3s.Cluster
	importer  *images.Importer
	deployer  *liteboxd.Deployer
	renewer   *certificates.Renewer
	inspector *Inspector
}

// roomsOf are the rooms for a site.
func roomsOf(s *site.Site) *installation {
	in := &installation{site: s}
	in.engine = &run.Engine{Site: in.site, Holds: run.NewHolds()}
	in.seeder = &seed.Seeder{Site: in.site, Engine: in.engine}
	in.record = &run.Record{Site: in.site, Engine: in.engine}
	in.engine.Record = in.record
	in.cluster = &k3s.Cluster{Site: in.site, Engine: in.engine, Record: in.record, Seeder: in.seeder}
	in.importer = &images.Importer{Site: in.site, Engine: in.engine, Seeder: in.seeder}
	in.deployer = &liteboxd.Deployer{Site: in.site, Engine: in.engine, Cluster: in.cluster}
	in.renewer = &certificates.Renewer{Site: in.site, Engine: in.engine, Cluster: in.cluster, Seeder: in.seeder}
	in.inspector = &Inspector{Site: in.site, Engine: in.engine, Seeder: in.seeder, Cluster: in.cluster, Importer: in.importer, Deployer: in.deployer, Workloads: &workload.Room{Site: in.site, Engine: in.engine, Cluster: in.cluster}, Renewer: in.renewer,
		Namer: &names.Namer{Site: in.site, Engine: in.engine, Cluster: in.cluster}, Front: &front.Keeper{Site: in.site, Engine: in.engine}}
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
