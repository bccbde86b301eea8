package network

import (
	"crypto/sha256"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
)

// Network brings Cilium to what is asked for.
type Network struct {
	Site   *site.Site
	Engine *run.Engine
	Seeder *seed.Seeder

	// releaseImages are the images that charts ask for, by the digest of chart and values.
	releaseImages map[[sha256.Size]byte][]string
}
