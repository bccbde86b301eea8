// Package recovery makes backups of a cluster while it runs, proves them, and brings a cluster back from one.
package recovery

import (
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
)

// Recovery makes backups and restores them.
type Recovery struct {
	Site     *site.Site
	Engine   *run.Engine
	Cluster  *k3s.Cluster
	Deployer *liteboxd.Deployer

	Restore   *Restore
	Restoring *restoring // nil unless a backup is restored
}
