package liteboxd

import (
	"time"

	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
)

// Deployer brings LiteBoxd to what is asked for.
type Deployer struct {
	Site    *site.Site
	Engine  *run.Engine
	Cluster *k3s.Cluster

	// NoRollback leaves a LiteBoxd that could not be rolled out as it is.
	NoRollback bool
	// ForceAfter is how long connections of users may hold up a change, 0 for as long as LiteBoxd gives them.
	ForceAfter time.Duration
	Deployment *Deployment // LiteBoxd as it is to be; nil when it is not worked on
}
