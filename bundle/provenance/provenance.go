// Package provenance says of bundles what they were made from, in the words of in-toto and
// SLSA. The statement is one of package attestation, and has no times in it: the same bundle
// gives the same bytes.
package provenance

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/lock"
)

const (
	// buildType says how externalParameters are to be read: docs/inventory.md does.
	buildType = "https://github.com/liteboxd/boxlift/bundle/v1"
	builderID = "https://github.com/liteboxd/boxlift"
)

// predicate is SLSA's provenance (https://slsa.dev/spec/v1.1/provenance#schema).
type predicate struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string                 `json:"buildType"`
	ExternalParameters   parameters             `json:"externalParameters"`
	ResolvedDependencies []attestation.Resource `json:"resolvedDependencies"`
}

// parameters are all that a user decides of a bundle: the lock.
type parameters struct {
	Lock      attestation.Resource `json:"lock"`
	Platforms []lock.Platform      `json:"platforms"`
}

type runDetails struct {
	Builder builder `json:"builder"`
}

type builder struct {
	ID      string            `json:"id"`
	Version map[string]string `json:"version"`
}

// Statement says of a bundle which lock and which boxlift it was built from and by, and what
// the lock pins, each with its digest.
func Statement(r *bundle.Reader) ([]byte, error) {
	l, content, err := r.Lock()
	if err != nil {
		return nil, err
	}
	contents, err := r.Contents()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	return attestation.Make(r.Digest(), attestation.Provenance, predicate{
		BuildDefinition: buildDefinition{
			BuildType: buildType,
			ExternalParameters: parameters{
				Lock: attestation.Resource{Name: "versions.lock",
					Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}},
				Platforms: l.Platforms,
			},
			ResolvedDependencies: append(brought(contents), pinned(l)...),
		},
		RunDetails: runDetails{Builder: builder{ID: builderID, Version: map[string]string{"boxlift": r.Version()}}},
	})
}

// brought lists what boxlift itself brings along: its programs and manifests, which no lock
// has. A list of software says what is in a bundle, which is not built from it.
func brought(contents *bundle.Contents) []attestation.Resource {
	var all []attestation.Resource
	list, hasList := contents.SBOM()
	for _, f := range contents.Files {
		if hasList && f == list {
			continue
		}
		if f.Component == bundle.ProgramsComponent || f.Component == bundle.ManifestsComponent &&
			f.Name == bundle.ManifestsFile {
			all = append(all, attestation.Resource{Name: f.Name, Digest: attestation.DigestSet(f.Digest),
				Annotations: annotations(f.Component, f.Version, f.Platform)})
		}
	}
	return all
}

func annotations(component, version string, platform lock.Platform) map[string]string {
	a := map[string]string{"component": component}
	if version != "" {
		a["version"] = version
	}
	if platform != "" {
		a["platform"] = string(platform)
	}
	return a
}

// pinned lists what a lock pins, in its order. What it pins for platforms that are not wanted
// is not in the bundle.
func pinned(l *lock.Lock) []attestation.Resource {
	var all []attestation.Resource
	for _, c := range l.Components {
		platforms := c.PlatformsIn(l)
		isWanted := func(p lock.Platform) bool {
			for _, wanted := range platforms {
				if wanted.Match(p) {
					return true
				}
			}
			return false
		}
		add := func(r attestation.Resource, platform lock.Platform) {
			if isWanted(platform) {
				r.Annotations = annotations(c.Name, c.Version, platform)
				all = append(all, r)
			}
		}
		for _, f := range c.Files {
			add(attestation.Resource{Name: f.Name, URI: f.URL, Digest: map[string]string{"sha256": f.SHA256}},
				f.Platform)
		}
		for _, chart := range c.Charts {
			add(attestation.Resource{Name: chart.Name, URI: chart.URL, Digest: map[string]string{"sha256": chart.SHA256}}, "")
		}
		for _, image := range c.Images {
			if image.Ref != "" {
				add(attestation.Resource{
					Name: image.Ref, URI: "docker://" + image.Ref, Digest: attestation.DigestSet(image.Digest),
				}, "")
				continue
			}
			add(attestation.Resource{URI: image.Archive, Digest: map[string]string{"sha256": image.SHA256}},
				image.Platform)
		}
		for _, s := range c.Packages {
			for _, p := range s.Contents {
				add(attestation.Resource{Name: p.FileName(), URI: p.URL, Digest: map[string]string{"sha256": p.SHA256}},
					s.Platform)
			}
		}
	}
	return all
}
