package helm

import (
	"bytes"
	"strings"
	"testing"

	chartcommon "helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"

	"github.com/liteboxd/boxlift/test/kubetest"
)

// renderedBy is what Helm makes of the one template of a chart.
func renderedBy(t *testing.T, archive []byte) string {
	t.Helper()
	c, err := loader.LoadArchive(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	values, err := util.ToRenderValues(c, nil, chartcommon.ReleaseOptions{Name: "r", Namespace: "n"},
		chartcommon.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(c, values)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 1 {
		t.Fatalf("%d files were rendered", len(files))
	}
	return files[c.Name()+"/templates/"+objectsFile]
}

func TestChartOf(t *testing.T) {
	objects := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {text: \"{{ .Values.x }} {{ fail `no` }} {{/* }} 不 $(X) %\"}\n---\n# only a comment\n"
	first, err := ChartOf("liteboxd", "v0.6.10", []byte(objects))
	if err != nil {
		t.Fatal(err)
	}
	second, err := ChartOf("liteboxd", "v0.6.10", []byte(objects))
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("the same objects make two charts: %v", err)
	}
	if got := renderedBy(t, first); got != objects {
		t.Errorf("rendered is %q, want %q", got, objects)
	}
	for name, c := range map[string]struct{ name, version, objects, want string }{
		"a name that is a path": {"../x", "1.0.0", "", "chart \"../x\""},
		"no name":               {"", "1.0.0", "", "chart.metadata.name is required"},
		"no version":            {"x", "", "", "chart.metadata.version"},
		"a version of words":    {"x", "newest", "", "\"newest\""},
		"what Helm takes out":   {"x", "1.0.0", "text: <no value>", "Helm would take out"},
		"not UTF-8":             {"x", "1.0.0", "text: \xff", "not UTF-8"},
	} {
		if _, err := ChartOf(c.name, c.version, []byte(c.objects)); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			kubetest.Contains(t, err.Error(), c.want)
		}
	}
}

func FuzzChartOf(f *testing.F) {
	f.Add("text: {{ .Values.x }}\n---\n{}\n")
	f.Add("\xef\xbb\xbfa: b\r\n")
	f.Fuzz(func(t *testing.T, objects string) {
		archive, err := ChartOf("x", "1.0.0", []byte(objects))
		if err != nil {
			return
		}
		if got, want := renderedBy(t, archive), strings.TrimPrefix(objects, "\xef\xbb\xbf"); got != want {
			t.Errorf("rendered is %q, want %q", got, want)
		}
	})
}
