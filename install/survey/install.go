package survey

import (
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/network"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
)

// Surveyor looks at all hosts before anything is changed, and judges them.
type Surveyor struct {
	Site     *site.Site
	Engine   *run.Engine
	Record   *run.Record
	Seeder   *seed.Seeder
	Cluster  *k3s.Cluster
	Network  *network.Network
	Deployer *liteboxd.Deployer
	Recovery *recovery.Recovery

	Findings []preflight.Finding
}
