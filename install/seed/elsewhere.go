package seed

import (
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/config/registries"
	"github.com/liteboxd/boxlift/install/site"
)

// Elsewhere is where nodes may get an image that the bundle does not carry.
type Elsewhere struct {
	registries.Source
	// IsExternal says that it is the registry of seeding.external, whose authority boxlift brings to the hosts.
	IsExternal bool
	// Reference is the tag or the digest to ask for.
	Reference string
}

// Where returns where install.yaml says that nodes can pull an image from, besides what
// boxlift itself puts there, in the order in which nodes ask. Nothing where it does not say so: then an image that is
// not carried can be had nowhere. The image's name is complete or not, as in manifests.
func Where(s *site.Site, image string) ([]Elsewhere, error) {
	parsed, err := name.ParseReference(image)
	if err != nil {
		return nil, err
	}
	registry, repository := parsed.Context().RegistryStr(), parsed.Context().RepositoryStr()
	if registry == name.DefaultRegistry {
		registry = registries.DockerHub
	}
	var list []Elsewhere
	if e := s.Config.Seeding.External; s.Config.Seeding.Mode == config.SeedExternal && e != nil {
		rules, err := rewriteRules(e)
		if err != nil {
			return nil, err
		}
		there, err := rules.Repository(registry, repository)
		if err != nil {
			return nil, fmt.Errorf("%w: seeding.external.rewrites: %w", site.ErrConfig, err)
		}
		c := registries.Config{TLS: &registries.TLS{InsecureSkipVerify: e.InsecureSkipTLSVerify}}
		if s.Config.Registries != nil { // what seeding says of the host and what stands there were told apart
			if own, ok := s.Config.Registries.Configs[e.Address]; ok {
				c.Auth = own.Auth
				if own.TLS != nil {
					tls := *own.TLS
					tls.InsecureSkipVerify = tls.InsecureSkipVerify || e.InsecureSkipTLSVerify
					c.TLS = &tls
				}
			}
		}
		if e.Pull != nil {
			c.Auth = &registries.Auth{Username: e.Pull.Username, Password: e.Pull.Password}
		}
		list = append(list, Elsewhere{IsExternal: true,
			Source: registries.Source{URL: e.URL() + "/v2", Repository: there, Config: c}})
	}
	// k3s asks registries themselves where nothing turns that off.
	askItself := s.Config.Seeding.Mode == config.SeedImages
	for _, source := range s.Config.Registries.Sources(registry, repository, askItself) {
		if len(list) == 0 || source.URL != list[0].URL {
			list = append(list, Elsewhere{Source: source})
		}
	}
	for i := range list {
		list[i].Reference = parsed.Identifier()
	}
	return list, nil
}
