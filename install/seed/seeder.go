// Package seed brings a bundle's contents to where nodes take them from: packs and files to the hosts, which hand
// on to each other what several of them lack, images to boxlift's registry on the servers or to the registry that
// the site has. It knows what hosts hold, what a delta leaves out, and what nodes have in registries.yaml.
package seed

import (
	"strings"

	"github.com/liteboxd/boxlift/install/config"
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

// WithoutSecrets removes these secrets from what a host printed, those of install.yaml, and the password of boxlift's
// registry.
func (sd *Seeder) WithoutSecrets(s string, secrets ...string) string {
	for _, secret := range sd.Site.Config.Secrets() {
		secrets = append(secrets, secret.Reveal())
	}
	if sd.Site.Config.Seeding.Mode == config.SeedRegistry {
		if a, err := sd.authority(); err == nil {
			secrets = append(secrets, a.Password())
		}
	}
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[secret]")
		}
	}
	return s
}

const (
	// LiteBoxdComponent is the component of a lock that has LiteBoxd.
	LiteBoxdComponent = "liteboxd"
	// LiteBoxdRelease is the Helm release that all of LiteBoxd's objects belong to. Its
	// records lie apart from the objects: their namespaces have names that users choose.
	LiteBoxdRelease = "liteboxd"
	// ReleasesNamespace has the records of LiteBoxd's release.
	ReleasesNamespace = "kube-system"
	// MaxManifests bounds the bases in a bundle, in bytes; they have some 50 kB.
	MaxManifests = 4 << 20
)
