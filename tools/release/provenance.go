package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/liteboxd/boxlift/bundle/attestation"
)

const (
	repository = "https://github.com/liteboxd/boxlift"
	// builderID leads to what the statement is worth, and says how externalParameters are to be read.
	builderID = repository + "/blob/main/docs/standards.md#slsa"
)

// predicate is SLSA's provenance (https://slsa.dev/spec/v1.2/build-provenance). It has no times: the same release gives
// the same bytes.
type predicate struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string                 `json:"buildType"`
	ExternalParameters   parameters             `json:"externalParameters"`
	ResolvedDependencies []attestation.Resource `json:"resolvedDependencies"`
}

// parameters are what make release was told.
type parameters struct {
	Version   string   `json:"version"`
	Platforms []string `json:"platforms"`
	// GOFIPS140 is which Go Cryptographic Module the programs have, or off.
	GOFIPS140 string `json:"GOFIPS140"`
}

type runDetails struct {
	Builder builder `json:"builder"`
}

type builder struct {
	ID      string            `json:"id"`
	Version map[string]string `json:"version"`
}

// writeProvenance says of released files which commit they were made from, and with which Go. Nobody signs it by
// itself, since the signed checksums cover it.
func (r *release) writeProvenance(w io.Writer, names []string) error {
	version, module, err := r.toolchain()
	if err != nil {
		return err
	}
	var subject []attestation.Resource
	for _, name := range slices.Sorted(slices.Values(names)) {
		sum, err := sumOf(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		subject = append(subject, attestation.Resource{Name: name, Digest: map[string]string{"sha256": sum}})
	}
	text, err := attestation.MakeAbout(subject, attestation.Provenance, predicate{
		BuildDefinition: buildDefinition{
			BuildType:          repository + "/release/v1",
			ExternalParameters: parameters{Version: r.version, Platforms: r.operators, GOFIPS140: module},
			ResolvedDependencies: []attestation.Resource{
				{URI: "git+" + repository, Digest: map[string]string{"gitCommit": r.commit}},
			},
		},
		RunDetails: runDetails{Builder: builder{ID: builderID, Version: map[string]string{"go": version}}},
	})
	if err != nil {
		return err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, append(text, '\n'), "", "  "); err != nil {
		return err
	}
	_, err = indented.WriteTo(w)
	return err
}

// toolchain is the Go that made the programs, and the module of FIPS 140-3 in them, as they say
// themselves. All have to say the same.
func (r *release) toolchain() (version, module string, err error) {
	for _, platform := range nodePlatforms {
		for _, program := range []string{"boxlift", "boxlift-node"} {
			info, err := buildinfo.ReadFile(filepath.Join(r.programs, platform, program))
			if err != nil {
				return "", "", fmt.Errorf("read what made %s for %s: %w", program, platform, err)
			}
			one := "off"
			if i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "GOFIPS140" }); i >= 0 {
				one = info.Settings[i].Value
			}
			if version != "" && (info.GoVersion != version || one != module) {
				return "", "", fmt.Errorf("%s for %s was made by %s with GOFIPS140=%s, others by %s with %s", program, platform,
					info.GoVersion, one, version, module)
			}
			version, module = info.GoVersion, one
		}
	}
	return version, module, nil
}
