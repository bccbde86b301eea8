package main

import (
	"debug/buildinfo"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/package-url/packageurl-go"
)

// writeModules writes a CycloneDX document of the Go modules that the programs are made of, as
// the programs themselves say, with Go's own version.
func (r *release) writeModules(w io.Writer) error {
	modules := map[string]cdx.Component{}
	var programs []string
	for _, platform := range nodePlatforms {
		programs = append(programs, filepath.Join(platform, "boxlift"), filepath.Join(platform, "boxlift-node"))
	}
	for _, platform := range r.operators {
		programs = append(programs, filepath.Join(platform, keysProgram))
	}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(filepath.Join(r.programs, program))
		if err != nil {
			return fmt.Errorf("read what %s is made of: %w", program, err)
		}
		add(modules, "stdlib", strings.TrimPrefix(info.GoVersion, "go"))
		for _, m := range info.Deps {
			m = replaced(m)
			add(modules, m.Path, m.Version)
		}
	}
	components := make([]cdx.Component, 0, len(modules))
	for _, key := range slices.Sorted(maps.Keys(modules)) {
		components = append(components, modules[key])
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: r.time.Format(time.RFC3339),
		Component: &cdx.Component{
			Type: cdx.ComponentTypeApplication, BOMRef: "boxlift", Name: "boxlift", Version: r.version,
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		},
	}
	bom.Components = &components
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

func replaced(m *debug.Module) *debug.Module {
	for m.Replace != nil {
		m = m.Replace
	}
	return m
}

func add(modules map[string]cdx.Component, name, version string) {
	namespace, base := "", name
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		namespace, base = name[:i], name[i+1:]
	}
	url := packageurl.NewPackageURL(packageurl.TypeGolang, namespace, base, version, nil, "").ToString()
	modules[url] = cdx.Component{
		Type: cdx.ComponentTypeLibrary, BOMRef: url, Name: name, Version: version, PackageURL: url,
	}
}
