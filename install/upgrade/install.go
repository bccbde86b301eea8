package upgrade

import (
	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/survey"
)

// Upgrader takes a running cluster to another bundle.
type Upgrader struct {
	Site      *site.Site
	Engine    *run.Engine
	Record    *run.Record
	Seeder    *seed.Seeder
	Cluster   *k3s.Cluster
	Importer  *images.Importer
	Deployer  *liteboxd.Deployer
	Renewer   *certificates.Renewer
	Members   *members.Members
	Recovery  *recovery.Recovery
	Surveyor  *survey.Surveyor
	Inspector *inspect.Inspector

	Upgrade *Upgrading // nil unless the cluster goes to another bundle
}
