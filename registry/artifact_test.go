package registry

import (
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestArtifactNames has a name of its own for each file, and packages of several releases apart.
func TestArtifactNames(t *testing.T) {
	for _, c := range []struct {
		annotations map[string]string
		path, tag   string // "" for no artifact
	}{
		{map[string]string{ocispec.AnnotationTitle: "k3s", annotationComponent: "k3s", annotationVersion: "v1.36.4+k3s1"},
			"boxlift/k3s/k3s", "v1.36.4-k3s1"},
		{map[string]string{ocispec.AnnotationTitle: "ucf_3.0043+nmu1_all.deb", annotationComponent: "os-packages",
			annotationVersion: "1", annotationFamily: "debian", annotationSuite: "bookworm"},
			"boxlift/os-packages/debian/bookworm/ucf_3.0043-nmu1_all.deb", "1"},
		{map[string]string{ocispec.AnnotationTitle: "ucf_3.0043+nmu1_all.deb", annotationComponent: "os-packages",
			annotationVersion: "1", annotationFamily: "debian", annotationSuite: "trixie"},
			"boxlift/os-packages/debian/trixie/ucf_3.0043-nmu1_all.deb", "1"},
		{map[string]string{ocispec.AnnotationTitle: "a", annotationComponent: "b", annotationSuite: "trixie"}, "", ""},
		{map[string]string{annotationComponent: "b"}, "", ""},
	} {
		a, ok := artifactOf(ocispec.Descriptor{ArtifactType: "application/vnd.boxlift.file.v1", Annotations: c.annotations})
		if !ok {
			a.path, a.tag = "", ""
		}
		if a.path != c.path || a.tag != c.tag {
			t.Errorf("%v is %q:%q (%v), expected %q:%q", c.annotations, a.path, a.tag, ok, c.path, c.tag)
		}
	}
}

// TestChartReferences has a chart where Helm looks for it, or nowhere.
func TestChartReferences(t *testing.T) {
	for _, c := range []struct{ name, version, repository, tag string }{ // "" for an error
		{"cilium", "1.20.0", "charts/cilium", "1.20.0"},
		{"hello-world", "1.2.3-rc.1+build.5", "charts/hello-world", "1.2.3-rc.1_build.5"},
		{"Cilium", "1.20.0", "", ""},
		{"", "1.20.0", "", ""},
		{"..", "1.20.0", "", ""},
		{"a/b", "1.20.0", "", ""},
		{"../v2", "1.20.0", "", ""},
		{"a\n", "1.20.0", "", ""},
		{strings.Repeat("a", 249), "1.20.0", "", ""},
		{"cilium", "", "", ""},
		{"cilium", "..", "", ""},
		{"cilium", "1.0/../2", "", ""},
		{"cilium", "1.0 0", "", ""},
		{"cilium", strings.Repeat("1", 129), "", ""},
	} {
		repository, tag, err := ChartReference(ChartsPrefix, c.name, c.version)
		if repository != c.repository || tag != c.tag || (err != nil) != (c.tag == "") {
			t.Errorf("%q %q is %q:%q (%v), expected %q:%q", c.name, c.version, repository, tag, err, c.repository, c.tag)
		}
	}
}
