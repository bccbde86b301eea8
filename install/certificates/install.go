package certificates

import (
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
)

// Renewer reads the cluster's certificates and renews them.
type Renewer struct {
	Site    *site.Site
	Engine  *run.Engine
	Cluster *k3s.Cluster
	Seeder  *seed.Seeder
}
