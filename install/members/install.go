package members

import (
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
)

// Members are the nodes of the cluster: which of them stay, and which leave.
type Members struct {
	Site     *site.Site
	Engine   *run.Engine
	Cluster  *k3s.Cluster
	Deployer *liteboxd.Deployer

	GiveUpDataOn []string
}
