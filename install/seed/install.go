package seed

import (
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/registry/push"
)

// Seeder brings a bundle's contents to where nodes take them from.
type Seeder struct {
	Site   *site.Site
	Engine *run.Engine

	// registryCA is the authority of boxlift's registry, and pushed what the site's own
	// registry has of the bundle, once that is known.
	registryCA openedAuthority
	pushed     *push.Result
}
