package k3s

import (
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
)

// Cluster is k3s on all hosts.
type Cluster struct {
	Site   *site.Site
	Engine *run.Engine
	Record *run.Record
	Seeder *seed.Seeder

	Crossing crossing
	// Restoration is what a restore gives to k3s, nil for none.
	Restoration *Restoration
	// agentsPassword is what agents join with, once that is known.
	agentsPassword agentsPassword
	// SharesToken tells that agents have the servers' token, splitsToken that they are to get one of their own.
	SharesToken, SplitsToken bool
}
