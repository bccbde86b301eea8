// Package charts makes of the Helm charts that a bundle carries the OCI artifacts that Helm pulls ("Use OCI-based
// registries" in Helm's documentation, and its pkg/registry).
//
// A bundle carries a chart as the very archive that upstream has published, as a file of its own kind. [Of] puts
// beside it what Helm asks a registry for: the config, which is Chart.yaml as JSON, and a manifest that names both, and
// the chart's provenance file where the bundle carries one, as a file of the same component with the chart's name and
// ".prov". The same archive gives the same bytes: nothing of the time or the place is in them.
//
// Archives are hostile. Each is proven by its digest in the read that is decoded; sizes are bounded, unpacked and not;
// and a name or a version that no repository or tag can have is an error, never another name.
package charts

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/internal/outsideyaml"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/registry"
)

// Media types of Helm's (pkg/registry/constants.go).
const (
	ConfigMediaType     = "application/vnd.cncf.helm.config.v1+json"
	ProvenanceMediaType = "application/vnd.cncf.helm.chart.provenance.v1.prov"
)

// Bounds of what is taken for a chart.
const (
	maxCharts   = 256
	maxArchive  = 8 << 20   // bytes, which is also what building a bundle takes
	maxUnpacked = 100 << 20 // bytes, which is what Helm takes (MaxDecompressedChartSize)
	maxFiles    = 10_000
	maxMetadata = 1 << 20 // bytes of Chart.yaml
)

// provenanceSuffix is what Helm adds to the name of an archive for that of its provenance file.
const provenanceSuffix = ".prov"

// Chart is a chart as Helm pulls it.
type Chart struct {
	// File is the archive in the bundle.
	File bundle.File
	// Name and Version are those that Chart.yaml states.
	Name, Version string
	// Manifest names all else; both it and Config are in no bundle.
	Manifest, Config Made
	// Layers are the archive and, where there is one, the provenance file. The bundle has their bytes.
	Layers []ocispec.Descriptor
}

// Made is content that was made here.
type Made struct {
	ocispec.Descriptor
	Content []byte
}

func newMade(mediaType string, v any) (Made, error) {
	content, err := json.Marshal(v)
	if err != nil {
		return Made{}, err
	}
	return Made{Content: content, Descriptor: ocispec.Descriptor{MediaType: mediaType,
		Digest: digest.FromBytes(content), Size: int64(len(content))}}, nil
}

// Of returns the charts of a bundle in its order, and an error that tells of all those that are none that Helm could
// pull. The others are there all the same.
func Of(r *bundle.Reader) ([]Chart, error) {
	files, err := r.Files()
	if err != nil {
		return nil, err
	}
	var list []Chart
	var problems []error
	seen := make(map[string]Chart)
	for _, f := range files {
		if f.MediaType != format.ChartMediaType {
			continue
		}
		if len(list) == maxCharts {
			return nil, fmt.Errorf("the bundle has more than the %d charts that are allowed", maxCharts)
		}
		c, err := chartOf(r, f, files)
		if err == nil {
			reference := c.Name + " " + strings.ReplaceAll(c.Version, "+", "_")
			other, isTaken := seen[reference]
			switch {
			case isTaken && other.Manifest.Digest == c.Manifest.Digest:
				continue // two components have one chart
			case isTaken:
				err = fmt.Errorf("%s of the component %s is the chart %s %s too, and another one", other.File.Name,
					other.File.Component, c.Name, c.Version)
			default:
				seen[reference] = c
				list = append(list, c)
			}
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("chart %s of the component %s: %w", f.Name, f.Component, err))
		}
	}
	return list, errors.Join(problems...)
}

func chartOf(r *bundle.Reader, f bundle.File, files []bundle.File) (Chart, error) {
	if f.Size > maxArchive {
		return Chart{}, fmt.Errorf("it has %d bytes, %d is the most that a chart may have", f.Size, maxArchive)
	}
	reader, err := r.Content(f.Digest, f.Size)
	if err != nil {
		return Chart{}, err
	}
	archive, err := io.ReadAll(reader)
	if err != nil {
		return Chart{}, err
	}
	m, err := readMetadata(archive)
	if err != nil {
		return Chart{}, err
	}
	if _, _, err := registry.ChartReference(registry.ChartsPrefix, m.Name, m.Version); err != nil {
		return Chart{}, err
	}
	c := Chart{File: f, Name: m.Name, Version: m.Version,
		Layers: []ocispec.Descriptor{{MediaType: format.ChartMediaType, Digest: f.Digest, Size: f.Size}}}
	i := slices.IndexFunc(files, func(other bundle.File) bool {
		return other.Component == f.Component && other.Name == f.Name+provenanceSuffix
	})
	if i >= 0 {
		c.Layers = append(c.Layers, ocispec.Descriptor{MediaType: ProvenanceMediaType, Digest: files[i].Digest,
			Size: files[i].Size})
	}
	if c.Config, err = newMade(ConfigMediaType, m); err != nil {
		return Chart{}, fmt.Errorf("write Chart.yaml as JSON: %w", err)
	}
	c.Manifest, err = newMade(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: c.Config.Descriptor, Layers: c.Layers,
		Annotations: map[string]string{ocispec.AnnotationTitle: m.Name, ocispec.AnnotationVersion: m.Version},
	})
	return c, err
}

// metadata is what Helm knows of Chart.yaml, in the order in which it writes it (chart.Metadata): what it pushes as the
// config has the same bytes.
type metadata struct {
	Name         string            `json:"name,omitempty" yaml:"name"`
	Home         string            `json:"home,omitempty" yaml:"home"`
	Sources      []string          `json:"sources,omitempty" yaml:"sources"`
	Version      string            `json:"version,omitempty" yaml:"version"`
	Description  string            `json:"description,omitempty" yaml:"description"`
	Keywords     []string          `json:"keywords,omitempty" yaml:"keywords"`
	Maintainers  []*maintainer     `json:"maintainers,omitempty" yaml:"maintainers"`
	Icon         string            `json:"icon,omitempty" yaml:"icon"`
	APIVersion   string            `json:"apiVersion,omitempty" yaml:"apiVersion"`
	Condition    string            `json:"condition,omitempty" yaml:"condition"`
	Tags         string            `json:"tags,omitempty" yaml:"tags"`
	AppVersion   string            `json:"appVersion,omitempty" yaml:"appVersion"`
	Deprecated   bool              `json:"deprecated,omitempty" yaml:"deprecated"`
	Annotations  map[string]string `json:"annotations,omitempty" yaml:"annotations"`
	KubeVersion  string            `json:"kubeVersion,omitempty" yaml:"kubeVersion"`
	Dependencies []*dependency     `json:"dependencies,omitempty" yaml:"dependencies"`
	Type         string            `json:"type,omitempty" yaml:"type"`
}

type maintainer struct {
	Name  string `json:"name,omitempty" yaml:"name"`
	Email string `json:"email,omitempty" yaml:"email"`
	URL   string `json:"url,omitempty" yaml:"url"`
}

type dependency struct {
	Name         string   `json:"name" yaml:"name"`
	Version      string   `json:"version,omitempty" yaml:"version"`
	Repository   string   `json:"repository" yaml:"repository"`
	Condition    string   `json:"condition,omitempty" yaml:"condition"`
	Tags         []string `json:"tags,omitempty" yaml:"tags"`
	Enabled      bool     `json:"enabled,omitempty" yaml:"enabled"`
	ImportValues []any    `json:"import-values,omitempty" yaml:"import-values"`
	Alias        string   `json:"alias,omitempty" yaml:"alias"`
}

// readMetadata finds Chart.yaml in an archive and reads it.
func readMetadata(archive []byte) (*metadata, error) {
	content, err := findMetadata(archive)
	if err != nil {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	var m metadata
	reader := outsideyaml.Reader{MaxSize: maxMetadata, OneDocument: true}
	if err := reader.Unmarshal(content, &m); err != nil {
		return nil, errors.New("Chart.yaml: " + printable.Short(err.Error(), 300))
	}
	if m.Name == "" || m.Version == "" || m.APIVersion == "" {
		return nil, errors.New("its Chart.yaml lacks one of name, version and apiVersion")
	}
	return &m, nil
}

// findMetadata reads a whole archive, which has one Chart.yaml of its own: that of a folder in it. Those of charts in
// the chart lie deeper.
func findMetadata(archive []byte) ([]byte, error) {
	unpacked, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	limited := &io.LimitedReader{R: unpacked, N: maxUnpacked + 1}
	var found []byte
	reader := tar.NewReader(limited)
	for n := 0; ; n++ {
		header, err := reader.Next()
		switch {
		case limited.N <= 0:
			return nil, fmt.Errorf("it has more than %d bytes, unpacked", maxUnpacked)
		case errors.Is(err, io.EOF) && found == nil:
			return nil, errors.New("it has no Chart.yaml")
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return nil, errors.New(printable.Short(err.Error(), 300)) // it may quote a name
		case n == maxFiles:
			return nil, fmt.Errorf("it has more than %d files", maxFiles)
		}
		if _, inFolder, _ := strings.Cut(header.Name, "/"); header.Typeflag != tar.TypeReg ||
			path.Clean(inFolder) != "Chart.yaml" {
			continue
		}
		switch {
		case found != nil:
			return nil, errors.New("it has more than one Chart.yaml")
		case header.Size > maxMetadata:
			return nil, fmt.Errorf("its Chart.yaml has %d bytes, %d is the most that it may have", header.Size,
				maxMetadata)
		}
		if found, err = io.ReadAll(reader); err != nil {
			return nil, err
		}
		found = append([]byte{}, found...) // an empty one was found, too
	}
}

// Layout is an OCI layout of charts in a tar, as a registry serves it beside the bundle that has their archives.
func Layout(list []Chart) (registry.Stored, error) {
	contents := make(map[string][]byte)
	var blobs []ocitar.Member
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{}}
	for _, c := range list {
		for _, m := range []Made{c.Manifest, c.Config} {
			blob := ocitar.Blob(m.Digest, m.Size)
			if contents[blob.Name] == nil {
				contents[blob.Name] = m.Content
				blobs = append(blobs, blob)
			}
		}
		entry := c.Manifest.Descriptor
		entry.ArtifactType = ConfigMediaType
		entry.Annotations = map[string]string{registry.AnnotationChart: c.Name, registry.AnnotationVersion: c.Version}
		index.Manifests = append(index.Manifests, entry)
	}
	slices.SortFunc(blobs, func(a, b ocitar.Member) int { return cmp.Compare(a.Name, b.Name) })
	indexContent, err := json.Marshal(index)
	if err != nil {
		return nil, fmt.Errorf("make the index of the charts: %w", err)
	}
	contents[ocitar.LayoutFile], contents[ocitar.IndexFile] = []byte(ocitar.LayoutContent), indexContent
	layout, err := ocitar.NewLayout(append([]ocitar.Member{
		{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(indexContent))},
	}, blobs...))
	if err != nil {
		return nil, fmt.Errorf("lay out the charts: %w", err)
	}
	return inMemory{ocitar.Assemble(layout, func(m ocitar.Member) (io.ReaderAt, error) {
		return bytes.NewReader(contents[m.Name]), nil
	})}, nil
}

// inMemory is a layout that lies in no file.
type inMemory struct{ *ocitar.Assembled }

// Close does nothing.
func (inMemory) Close() error { return nil }

// Modified is the zero time: what was made of a bundle is no newer than that.
func (inMemory) Modified() time.Time { return time.Time{} }
