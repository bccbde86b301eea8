package survey

import (
	"testing"

	"github.com/liteboxd/boxlift/install/front"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/network"
	"github.com/liteboxd/boxlift/install/packages"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/workload"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// installation has the rooms that tests are about, and those below them.
type installation struct {
	site     *site.Site
	engine   *run.Engine
	record   *run.Record
	seeder   *seed.Seeder
	cluster  *k3s.Cluster
	network  *network.Network
	deployer *liteboxd.Deployer
	recovery *recovery.Recovery
	surveyor *Surveyor
}

// roomsOf are the rooms for a site.
func roomsOf(s *site.Site) *installation {
	in := &installation{site: s}
	in.engine = &run.Engine{Site: in.site, Holds: run.NewHolds()}
	in.record = &run.Record{Site: in.site, Engine: in.engine}
	in.engine.Record = in.record
	in.seeder = &seed.Seeder{Site: in.site, Engine: in.engine}
	in.cluster = &k3s.Cluster{Site: in.site, Engine: in.engine, Record: in.record, Seeder: in.seeder}
	in.network = &network.Network{Site: in.site, Engine: in.engine, Seeder: in.seeder}
	in.deployer = &liteboxd.Deployer{Site: in.site, Engine: in.engine, Cluster: in.cluster}
	in.recovery = &recovery.Recovery{Site: in.site, Engine: in.engine, Cluster: in.cluster, Deployer: in.deployer}
	in.surveyor = &Surveyor{Site: in.site, Engine: in.engine, Record: in.record, Seeder: in.seeder, Cluster: in.cluster, Network: in.network, Deployer: in.deployer, Workloads: &workload.Room{Site: in.site, Engine: in.engine, Cluster: in.cluster}, Recovery: in.recovery, Packages: &packages.Room{Site: in.site, Engine: in.engine}, Front: &front.Keeper{Site: in.site, Engine: in.engine}}
	return in
}

func example(t *testing.T, text string, components ...string) *installation {
	t.Helper()
	return roomsOf(sitetest.Example(t, text, components...))
}

func adoptedExample(t *testing.T, text string) *installation {
	t.Helper()
	return roomsOf(sitetest.Adopted(t, text))
}
