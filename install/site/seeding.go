package site

import (
	"maps"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/config"
)

// PacksFor are the packs that a host has to hold.
func (s *Site) PacksFor(h *Host) ([]bundle.Pack, error) {
	return s.Bundle.Packs(h.Platform, s.PackOptions(h))
}

// PackOptions say which packs a host has to hold: agents may have only what they need to
// start.
func (s *Site) PackOptions(h *Host) bundle.PackOptions {
	return bundle.PackOptions{Boot: h.Config.Role == config.Agent && s.Config.Seeding.Agents == config.AgentsBoot}
}

// CarriedRegistries are the registries whose images the bundle has, sorted.
func (s *Site) CarriedRegistries() []string {
	names := make(map[string]bool)
	for _, image := range s.Contents.Images {
		registry, _, _ := strings.Cut(image.Name, "/")
		names[registry] = true
	}
	return slices.Sorted(maps.Keys(names))
}
