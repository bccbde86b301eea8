package upgrade

import (
	"testing"

	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/names"
	"github.com/liteboxd/boxlift/install/network"
	"github.com/liteboxd/boxlift/install/packages"
	"github.com/liteboxd/boxlift/install/prepare"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/renewal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/survey"
	"github.com/liteboxd/boxlift/install/timekeeping"
	"github.com/liteboxd/boxlift/install/workload"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// installation has the rooms that tests are about, and those below them.
type installation struct {
	site      *site.Site
	engine    *run.Engine
	record    *run.Record
	seeder    *seed.Seeder
	cluster   *k3s.Cluster
	importer  *images.Importer
	deployer  *liteboxd.Deployer
	workloads *workload.Room
	renewer   *certificates.Renewer
	members   *members.Members
	recovery  *recovery.Recovery
	network   *network.Network
	surveyor  *survey.Surveyor
	inspector *inspect.Inspector
	upgrader  *Upgrader
}

// roomsOf are the rooms for a site.
func roomsOf(s *site.Site) *installation {
	in := &installation{site: s}
	in.engine = &run.Engine{Site: in.site, Holds: run.NewHolds()}
	in.record = &run.Record{Site: in.site, Engine: in.engine}
	in.engine.Record = in.record
	in.seeder = &seed.Seeder{Site: in.site, Engine: in.engine}
	in.cluster = &k3s.Cluster{Site: in.site, Engine: in.engine, Record: in.record, Seeder: in.seeder}
	in.importer = &images.Importer{Site: in.site, Engine: in.engine, Seeder: in.seeder}
	in.deployer = &liteboxd.Deployer{Site: in.site, Engine: in.engine, Cluster: in.cluster}
	in.renewer = &certificates.Renewer{Site: in.site, Engine: in.engine, Cluster: in.cluster, Seeder: in.seeder}
	namer := &names.Namer{Site: in.site, Engine: in.engine, Cluster: in.cluster}
	installer := &packages.Room{Site: in.site, Engine: in.engine}
	in.members = &members.Members{Site: in.site, Engine: in.engine, Cluster: in.cluster, Deployer: in.deployer,
		Preparer: &prepare.Preparer{Site: in.site, Engine: in.engine}, Namer: namer, Packages: installer,
		Renewal: &renewal.Keeper{Site: in.site, Engine: in.engine}, Timekeeper: &timekeeping.Keeper{Site: in.site, Engine: in.engine}}
	in.recovery = &recovery.Recovery{Site: in.site, Engine: in.engine, Cluster: in.cluster, Deployer: in.deployer}
	in.network = &network.Network{Site: in.site, Engine: in.engine, Seeder: in.seeder}
	in.workloads = &workload.Room{Site: in.site, Engine: in.engine, Cluster: in.cluster}
	in.surveyor = &survey.Surveyor{Site: in.site, Engine: in.engine, Record: in.record, Seeder: in.seeder, Cluster: in.cluster, Network: in.network, Deployer: in.deployer, Workloads: in.workloads, Recovery: in.recovery, Packages: installer}
	in.inspector = &inspect.Inspector{Site: in.site, Engine: in.engine, Seeder: in.seeder, Cluster: in.cluster, Importer: in.importer, Deployer: in.deployer, Workloads: in.workloads, Renewer: in.renewer, Namer: namer}
	in.upgrader = &Upgrader{Site: in.site, Engine: in.engine, Record: in.record, Seeder: in.seeder, Cluster: in.cluster, Importer: in.importer, Deployer: in.deployer, Workloads: in.workloads, Renewer: in.renewer, Members: in.members, Recovery: in.recovery, Surveyor: in.surveyor, Inspector: in.inspector}
	return in
}

func example(t *testing.T, text string, components ...string) *installation {
	t.Helper()
	return roomsOf(sitetest.Example(t, text, components...))
}
