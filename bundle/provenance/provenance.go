// Package provenance says of bundles what they were made from, in the words of in-toto and
// SLSA, for signing with [signature.Signer.Attest].
//
// A statement is about a bundle's index.json, whose sha256 is the bundle digest and which
// names everything else: that is the file that `cosign verify-blob-attestation` wants to see.
// Statements have no times in them: the same bundle gives the same bytes.
package provenance

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/signature"
)

const (
	statementType = "https://in-toto.io/Statement/v1"

	// PredicateType is SLSA's (https://slsa.dev/spec/v1.1/provenance); cosign calls it
	// slsaprovenance1.
	PredicateType = "https://slsa.dev/provenance/v1"
	// CycloneDX is the type of predicates that are CycloneDX documents; cosign calls it
	// cyclonedx.
	CycloneDX = "https://cyclonedx.org/bom"

	// buildType says how externalParameters are to be read: docs/inventory.md does.
	buildType = "https://github.com/liteboxd/boxlift/bundle/v1"
	builderID = "https://github.com/liteboxd/boxlift"
)

// statement is an in-toto statement
// (https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md).
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     any        `json:"predicate"`
}

// resource is a ResourceDescriptor
// (https://github.com/in-toto/attestation/blob/main/spec/v1/resource_descriptor.md).
type resource struct {
	Name        string            `json:"name,omitempty"`
	URI         string            `json:"uri,omitempty"`
	Digest      map[string]string `json:"digest,omitempty"`
	MediaType   string            `json:"mediaType,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// predicate is SLSA's provenance (https://slsa.dev/spec/v1.1/provenance#schema).
type predicate struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string     `json:"buildType"`
	ExternalParameters   parameters `json:"externalParameters"`
	ResolvedDependencies []resource `json:"resolvedDependencies"`
}

// parameters are all that a user decides of a bundle: the lock.
type parameters struct {
	Lock      resource        `json:"lock"`
	Platforms []lock.Platform `json:"platforms"`
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
	return marshal(r.Digest(), PredicateType, predicate{
		BuildDefinition: buildDefinition{
			BuildType: buildType,
			ExternalParameters: parameters{
				Lock: resource{Name: "versions.lock",
					Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}},
				Platforms: l.Platforms,
			},
			ResolvedDependencies: append(brought(contents), pinned(l)...),
		},
		RunDetails: runDetails{Builder: builder{ID: builderID, Version: map[string]string{"boxlift": r.Version()}}},
	})
}

// About makes a statement of another kind about a bundle, such as its bill of materials.
func About(bundleDigest digest.Digest, predicateType string, predicate json.RawMessage) ([]byte, error) {
	return marshal(bundleDigest, predicateType, predicate)
}

func marshal(bundleDigest digest.Digest, predicateType string, predicate any) ([]byte, error) {
	text, err := json.Marshal(statement{
		Type:          statementType,
		Subject:       []resource{{Name: "index.json", Digest: digestSet(bundleDigest)}},
		PredicateType: predicateType,
		Predicate:     predicate,
	})
	if err != nil {
		return nil, fmt.Errorf("make the statement about bundle %s: %w", bundleDigest, err)
	}
	return text, nil
}

// Check makes sure that a statement is about a bundle, and returns the type of its
// predicate. Who made it is what [signature.VerifyAttestation] finds out.
func Check(text []byte, bundleDigest digest.Digest) (predicateType string, err error) {
	var s struct {
		Type          string     `json:"_type"`
		Subject       []resource `json:"subject"`
		PredicateType string     `json:"predicateType"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return "", fmt.Errorf("read statement: %w", err)
	}
	if s.Type != statementType {
		return "", fmt.Errorf("%w: the statement has the type %q, expected %q", signature.ErrInvalid, s.Type,
			statementType)
	}
	for _, subject := range s.Subject {
		if subject.Digest[bundleDigest.Algorithm().String()] == bundleDigest.Encoded() {
			return s.PredicateType, nil
		}
	}
	return "", fmt.Errorf("%w: the statement is about something else than bundle %s", signature.ErrInvalid,
		bundleDigest)
}

func digestSet(d digest.Digest) map[string]string {
	return map[string]string{d.Algorithm().String(): d.Encoded()}
}

// brought lists what boxlift itself brings along: its programs and manifests, which no lock
// has. A list of software says what is in a bundle, which is not built from it.
func brought(contents *bundle.Contents) []resource {
	var all []resource
	list, hasList := contents.SBOM()
	for _, f := range contents.Files {
		if hasList && f == list {
			continue
		}
		if f.Component == bundle.ProgramsComponent || f.Component == bundle.ManifestsComponent &&
			f.Name == bundle.ManifestsFile {
			all = append(all, resource{Name: f.Name, Digest: digestSet(f.Digest),
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
func pinned(l *lock.Lock) []resource {
	var all []resource
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
		add := func(r resource, platform lock.Platform) {
			if isWanted(platform) {
				r.Annotations = annotations(c.Name, c.Version, platform)
				all = append(all, r)
			}
		}
		for _, f := range c.Files {
			add(resource{Name: f.Name, URI: f.URL, Digest: map[string]string{"sha256": f.SHA256}}, f.Platform)
		}
		for _, chart := range c.Charts {
			add(resource{Name: chart.Name, URI: chart.URL, Digest: map[string]string{"sha256": chart.SHA256}}, "")
		}
		for _, image := range c.Images {
			if image.Ref != "" {
				add(resource{Name: image.Ref, URI: "docker://" + image.Ref, Digest: digestSet(image.Digest)}, "")
				continue
			}
			add(resource{URI: image.Archive, Digest: map[string]string{"sha256": image.SHA256}}, image.Platform)
		}
	}
	return all
}
