package inspect

import (
	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
)

// Inspector proves that the platform runs, and tells how it is.
type Inspector struct {
	Site     *site.Site
	Engine   *run.Engine
	Seeder   *seed.Seeder
	Cluster  *k3s.Cluster
	Importer *images.Importer
	Deployer *liteboxd.Deployer
	Renewer  *certificates.Renewer

	Kubeconfig      string
	MergeKubeconfig bool
}
