package helm

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	chartcommon "helm.sh/helm/v4/pkg/chart/common"

	"github.com/liteboxd/boxlift/test/kubetest"
)

// Charts are rendered in processes of this program.
func TestMain(m *testing.M) {
	if RendersChart() {
		os.Exit(RenderChart())
	}
	os.Exit(m.Run())
}

func TestRender(t *testing.T) {
	r := Release{Name: "demo", Namespace: "demo", Values: map[string]any{"image": "registry.test/b:2@sha256:00"}, Chart: kubetest.Chart(t, "1.0.0", map[string]string{
		"templates/main.yaml": kubetest.Workload("Deployment", "demo", "", "{{ .Values.image }}"),
		"templates/hook.yaml": "apiVersion: batch/v1\nkind: Job\nmetadata: {name: hook, annotations: {helm.sh/hook: pre-install}}\nspec: {template: {spec: {initContainers: [{image: registry.test/a:1}]}}}\n",
		"crds/own.yaml":       "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: own}\n",
		"Chart.yaml":          "apiVersion: v2\nname: demo\nversion: 1.0.0\nkubeVersion: '>=1.30.0-0'\n",
	})}
	manifest, err := Render(t.Context(), r, "v1.34.4+k3s1")
	if err != nil {
		t.Fatal(err)
	}
	kubetest.Contains(t, string(manifest), "kind: CustomResourceDefinition", "kind: Job", "kind: Deployment")
	images, err := Images(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"registry.test/a:1", "registry.test/b:2@sha256:00"}, images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	if _, err := Render(t.Context(), r, "v1.29.0"); err == nil {
		t.Error("rendered for a Kubernetes that the chart does not want")
	}
	for name, bad := range map[string]Release{
		"not a chart": {Name: "demo", Namespace: "demo", Chart: []byte("not a chart")},
		"no name":     {Namespace: "demo", Chart: r.Chart},
		"no value":    {Name: "demo", Namespace: "demo", Chart: r.Chart, Values: map[string]any{"x": map[any]any{1: 2}}},
	} {
		if _, err := Render(t.Context(), bad, "v1.34.4"); err == nil {
			t.Errorf("%s: rendered", name)
		}
	}
}

func FuzzImages(f *testing.F) {
	f.Add([]byte("spec: {containers: [{image: a}], initContainers: [{image: b}]}\n---\n[{containers: 1}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		images, err := Images(data)
		if err != nil {
			return
		}
		for i := 1; i < len(images); i++ {
			if images[i-1] >= images[i] {
				t.Errorf("not sorted, or twice: %q", images)
			}
		}
	})
}

// TestRenderBounds has charts of a few hundred bytes that take all memory, or all time.
func TestRenderBounds(t *testing.T) {
	stop := errors.New("the user wants it to stop")
	for name, test := range map[string]struct {
		template string
		bounds   renderBounds
		want     string
		bound    bool
	}{
		"memory": {
			template: `{{ range until 300000000 }}x{{ end }}`, bounds: renderBounds{64 << 20, time.Minute},
			want: "render chart demo 1.0.0: it takes more than 64 MiB of memory", bound: true,
		},
		"memory for text": {
			template: `{{ range 300000000 }}some text, {{ end }}`, bounds: renderBounds{64 << 20, time.Minute},
			want: "render chart demo 1.0.0: it takes more than 64 MiB of memory", bound: true,
		},
		"time": {
			template: `{{ range 30000000000 }}{{ end }}`, bounds: renderBounds{1 << 30, 300 * time.Millisecond},
			want: "render chart demo 1.0.0: it takes more than 300ms", bound: true,
		},
		"size": {
			template: `{{ repeat 9000000 "a" }}`, bounds: renderBounds{1 << 30, time.Minute},
			want: "render chart demo 1.0.0: it makes 9000",
		},
		"failure": {
			template: `{{ fail "no such\nvalue" }}`, bounds: renderBounds{1 << 30, time.Minute}, want: "no such",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.bound && strings.Contains(test.want, "memory") {
				if _, err := os.Stat("/proc/self/statm"); err != nil {
					t.Skip("the memory of a process is bounded on Linux alone")
				}
			}
			r := Release{Name: "demo", Namespace: "demo", Chart: kubetest.Chart(t, "1.0.0", map[string]string{
				"templates/main.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {text: \"" + test.template + "\"}\n",
			})}
			_, err := r.renderBounded(t.Context(), kubernetes134(t), true, test.bounds)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, expected %q", err, test.want)
			}
			if got := errors.As(err, new(*BoundError)); got != test.bound {
				t.Errorf("a bound: %v, expected %v", got, test.bound)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		r := Release{Name: "demo", Namespace: "demo", Chart: kubetest.Chart(t, "1.0.0", map[string]string{
			"templates/main.yaml": `{{ range 30000000000 }}{{ end }}`,
		})}
		cancel(stop)
		if _, err := r.renderBounded(ctx, kubernetes134(t), true, renderBounds{1 << 30, time.Minute}); !errors.Is(err, stop) {
			t.Errorf("got %v", err)
		}
	})
}

// TestRenderValues has values arrive in the other process as what they are.
func TestRenderValues(t *testing.T) {
	r := Release{Name: "demo", Namespace: "demo", Values: map[string]any{
		"list": []any{1000000, 1.5, true, "1000000", nil, map[string]any{"a": "b: c\n"}},
	}, Chart: kubetest.Chart(t, "1.0.0", map[string]string{
		"templates/main.yaml": `{{ $text := "" }}
{{- range .Values.list }}{{ $text = printf "%s%s %v;" $text (kindOf .) . }}{{ end -}}
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
data: {text: {{ quote $text }}}
`,
	})}
	out, err := r.render(t.Context(), kubernetes134(t), true)
	if err != nil {
		t.Fatal(err)
	}
	kubetest.Contains(t, out.Manifest, `"int 1000000;float64 1.5;bool true;string 1000000;invalid <nil>;map map[a:b: c\n];"`)
}

func kubernetes134(t *testing.T) capabilities {
	t.Helper()
	version, err := chartcommon.ParseKubeVersion("v1.34.4")
	if err != nil {
		t.Fatal(err)
	}
	return capabilities{version: version}
}
