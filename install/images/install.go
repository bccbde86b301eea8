package images

import (
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
)

// Importer makes the images on hosts complete, and removes old ones.
type Importer struct {
	Site   *site.Site
	Engine *run.Engine
	Seeder *seed.Seeder
}
