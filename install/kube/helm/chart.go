package helm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v4/pkg/action"
	helmchart "helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// objectsFile is in the charts of ChartOf what their one template prints.
const objectsFile = "objects.yaml"

// noValue is a text that Helm takes out of whatever it renders.
const noValue = "<no value>"

// ChartOf makes a chart's archive, a .tgz, whose one template prints objects as they are:
// YAML documents, in which nothing is a template. The same arguments give the same bytes.
// The name is one of lower case letters, digits and dashes, the version one that Helm
// accepts, such as "1.2.3" or "v0.6.10".
func ChartOf(name, version string, objects []byte) ([]byte, error) {
	metadata := &chart.Metadata{APIVersion: chart.APIVersionV2, Name: name, Version: version}
	if err := metadata.Validate(); err != nil {
		return nil, fmt.Errorf("chart %q of version %q: %w", name, version, err)
	}
	if bytes.Contains(objects, []byte(noValue)) {
		return nil, fmt.Errorf("chart %s: the objects have the text %q, which Helm would take out: "+
			"write it in another way",
			name, noValue)
	}
	if !bytes.Equal(bytes.ToValidUTF8(objects, nil), objects) {
		return nil, fmt.Errorf("chart %s: the objects are not UTF-8", name)
	}
	description, err := yaml.Marshal(map[string]string{
		"apiVersion": metadata.APIVersion, "name": name, "version": version,
	})
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", name, err)
	}
	var out bytes.Buffer
	// Not compressed: other versions of Go may compress in another way, and Differs
	// takes other bytes for another chart. Helm's record of the release is compressed anyway.
	zip, err := gzip.NewWriterLevel(&out, gzip.NoCompression)
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", name, err)
	}
	archive := tar.NewWriter(zip)
	var problems error
	for _, file := range []struct {
		name string
		data []byte
	}{
		{"Chart.yaml", description},
		{objectsFile, objects},
		{"templates/" + objectsFile, []byte(`{{ .Files.Get "` + objectsFile + `" }}`)},
	} {
		header := &tar.Header{
			Name: name + "/" + file.name, Mode: 0o644, Size: int64(len(file.data)), Format: tar.FormatPAX,
		}
		begun := archive.WriteHeader(header)
		_, written := archive.Write(file.data)
		problems = errors.Join(problems, begun, written)
	}
	if err := errors.Join(problems, archive.Close(), zip.Close()); err != nil {
		return nil, fmt.Errorf("chart %s: %w", name, err)
	}
	return out.Bytes(), nil
}

// loadChart reads a chart's archive. What Helm decodes of it is looked at first: nothing bounds what that takes of this
// process.
func loadChart(data []byte) (*chart.Chart, error) {
	const nested = 3 // archives in each other
	files, err := archive.LoadArchiveFiles(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if err := checkCharts(files, nested); err != nil {
		return nil, err
	}
	loaded, err := loader.LoadFiles(files)
	if err != nil {
		return nil, err
	}
	// Helm's library renders a chart without those that it depends on, and without a word.
	if err := action.CheckDependencies(loaded, asDependencies(loaded.Metadata.Dependencies)); err != nil {
		return nil, fault.WithHint(fmt.Errorf("its archive lacks charts that it depends on: %w", err),
			"`helm package --dependency-update FOLDER` makes an archive with them")
	}
	return loaded, nil
}

func asDependencies(list []*chart.Dependency) []helmchart.Dependency {
	all := make([]helmchart.Dependency, 0, len(list))
	for _, one := range list {
		if one != nil {
			all = append(all, one)
		}
	}
	return all
}

// ChartVersion is the version that a chart's archive says it has.
func ChartVersion(data []byte) (string, error) {
	loaded, err := loadChart(data)
	if err != nil {
		return "", fmt.Errorf("read chart: %w", err)
	}
	return printable.Line(loaded.Metadata.Version), nil
}

// decoded are the files of a chart that Helm decodes when it loads it.
var decoded = []string{"Chart.yaml", "Chart.lock", "values.yaml", "requirements.yaml", "requirements.lock"}

// checkCharts looks at the files of a chart, and of the charts in it.
func checkCharts(files []*archive.BufferedFile, nested int) error {
	for _, file := range files {
		name := file.Name
		for rest, inner := strings.CutPrefix(name, "charts/"); inner; rest, inner = strings.CutPrefix(name, "charts/") {
			_, name, _ = strings.Cut(rest, "/")
		}
		var err error
		switch {
		case slices.Contains(decoded, name):
			err = lenient.Check(file.Data)
		case !strings.HasPrefix(file.Name, "charts/") || path.Ext(file.Name) != ".tgz":
		case nested == 0:
			err = errors.New("too many archives lie in each other")
		default:
			var inner []*archive.BufferedFile
			if inner, err = archive.LoadArchiveFiles(bytes.NewReader(file.Data)); err == nil {
				err = checkCharts(inner, nested-1)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", printable.Short(file.Name, 200), err)
		}
	}
	return nil
}

// ManifestObjects lists the objects of a manifest of YAML documents, in their order.
func ManifestObjects(manifest []byte) ([]kube.Object, error) {
	objects, err := decodeManifest(string(manifest))
	if err != nil {
		return nil, err
	}
	list := make([]kube.Object, 0, len(objects))
	for _, o := range objects {
		list = append(list, kube.Object{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()})
	}
	return list, nil
}

// DecodeManifest reads the objects of a manifest of YAML documents, in their order.
func DecodeManifest(manifest []byte) ([]*unstructured.Unstructured, error) {
	return decodeManifest(string(manifest))
}
