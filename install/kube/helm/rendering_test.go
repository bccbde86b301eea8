package helm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	chartcommon "helm.sh/helm/v4/pkg/chart/common"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/manifests"
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
	objects, err := DecodeManifest(manifest)
	if err != nil {
		t.Fatal(err)
	}
	var images []string
	for _, use := range manifests.ImagesOf(objects) {
		images = append(images, use.Image)
	}
	if diff := cmp.Diff([]string{"registry.test/b:2@sha256:00", "registry.test/a:1"}, images); diff != "" {
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

// What a chart makes, or a release has made, costs no more than its size allows.
func TestHostileManifest(t *testing.T) {
	var keys strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&keys, "key%d: v\n", i)
	}
	long := "a: &a " + strings.Repeat("x", 1<<19) + "\nb: [" + strings.Repeat("*a, ", 1<<16) + "]\n"
	for name, test := range map[string]struct{ manifest, want string }{
		"one key again and again":     {strings.Repeat("a: b\n", 900), ""},
		"very many keys":              {keys.String(), ""},
		"a long text again and again": {long, "line 2: aliases make more than 8388608 bytes of it"},
		"behind a separator": {"--- |\n " + strings.ReplaceAll(long, "\nb", "\n b"),
			"invalid Yaml document separator: |"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		objects, err := decodeManifest(test.manifest)
		manifests.ImagesOf(objects)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 256<<20 {
			t.Errorf("%s: %d MiB for %d kB", name, got>>20, len(test.manifest)>>10)
		}
		if want := test.want; want == "" && err != nil ||
			want != "" && (err == nil || !strings.HasSuffix(err.Error(), ": "+want)) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
}

// A chart whose own files stand for more than any memory holds is refused, however deep it lies in another one.
func TestHostileChart(t *testing.T) {
	long := "a: &a " + strings.Repeat("x", 1<<18) + "\nb: [" + strings.Repeat("*a, ", 1<<16) + "]\n"
	inner := string(kubetest.Chart(t, "1.0.0", map[string]string{"values.yaml": long}))
	for file, content := range map[string]string{
		"values.yaml": long, "Chart.yaml": "apiVersion: v2\nname: demo\nversion: 1.0.0\n" + long,
		"charts/demo/values.yaml": long, "charts/demo.tgz": inner,
		"charts/a/charts/b.tgz": string(kubetest.Chart(t, "1.0.0", map[string]string{"charts/demo.tgz": inner})),
	} {
		r := Release{Name: "demo", Namespace: "demo", Chart: kubetest.Chart(t, "1.0.0", map[string]string{file: content})}
		_, err := Render(t.Context(), r, "v1.34.4")
		if err == nil || !strings.Contains(err.Error(), "read chart: "+file+": ") ||
			!strings.HasSuffix(err.Error(), "aliases make more than 8388608 bytes of it") {
			t.Errorf("%s: got %v", file, err)
		}
	}
	// What only looks like one of these is a template, or a file.
	r := Release{Name: "demo", Namespace: "demo", Chart: kubetest.Chart(t, "1.0.0", map[string]string{
		"templates/values.yaml": "{{/* a template */}}", "files/values.yaml": long, "files/a.tgz": "no archive",
	})}
	if _, err := Render(t.Context(), r, "v1.34.4"); err != nil {
		t.Error(err)
	}
}

// FuzzImages: whatever a manifest says, its images are found where they are named.
func FuzzImages(f *testing.F) {
	f.Add([]byte("spec: {containers: [{image: a}], initContainers: [{image: b}]}\n---\n[{containers: 1}]"))
	f.Add([]byte("kind: ConfigMap\ndata: {A_IMAGE: 1}\nmetadata: [1]\n---\nvolumes: [{image: {reference: a}}, {image: b}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, err := DecodeManifest(data)
		if err != nil {
			return
		}
		for _, use := range manifests.ImagesOf(objects) {
			if use.Image == "" || use.Object == "" {
				t.Errorf("%+v", use)
			}
		}
	})
}

// A chart without those that it depends on is refused: it would be rendered as if it had none.
func TestRenderDependencies(t *testing.T) {
	const description = "apiVersion: v2\nname: demo\nversion: 1.0.0\ndependencies: [{name: inner, version: 2.0.0, " +
		"repository: 'https://charts.test'}]\n"
	r := Release{Name: "demo", Namespace: "demo", Chart: kubetest.Chart(t, "1.0.0", map[string]string{"Chart.yaml": description})}
	_, err := Render(t.Context(), r, "v1.34.4")
	if err == nil || !strings.Contains(err.Error(), "its archive lacks charts that it depends on") ||
		!strings.Contains(err.Error(), "inner") || len(fault.Hints(err)) != 1 {
		t.Errorf("got %v", err)
	}
	r.Chart = kubetest.Chart(t, "1.0.0", map[string]string{
		"Chart.yaml": description, "charts/inner/Chart.yaml": "apiVersion: v2\nname: inner\nversion: 2.0.0\n",
		"charts/inner/templates/main.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: inner}\n",
	})
	manifest, err := Render(t.Context(), r, "v1.34.4")
	if err != nil {
		t.Fatal(err)
	}
	kubetest.Contains(t, string(manifest), "kind: Pod")
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

// TestRenderOnce renders what is asked for again once, and everything else by itself.
func TestRenderOnce(t *testing.T) {
	r := Release{Name: "demo", Namespace: "demo", Chart: kubetest.Chart(t, "1.0.0", map[string]string{
		"templates/main.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {text: {{ uuidv4 }}}\n",
	})}
	on := kubernetes134(t)
	render := func(r Release, on capabilities, definitions bool) string {
		t.Helper()
		out, err := r.render(t.Context(), on, definitions)
		if err != nil {
			t.Fatal(err)
		}
		return out.Manifest
	}
	first := render(r, on, true)
	if again := render(r, on, true); again != first {
		t.Errorf("the same is rendered again: %s, before %s", again, first)
	}
	named, valued, elsewhere := r, r, on
	named.Namespace = "other"
	valued.Values = map[string]any{"a": "b"}
	elsewhere.apis = []string{"v1", "apps/v1"}
	for what, other := range map[string]string{
		"namespaces": render(named, on, true), "values": render(valued, on, true), "kinds": render(r, elsewhere, true),
		"definitions": render(r, on, false),
	} {
		if other == first {
			t.Errorf("what was rendered with other %s is taken", what)
		}
	}
}

func kubernetes134(t *testing.T) capabilities {
	t.Helper()
	version, err := chartcommon.ParseKubeVersion("v1.34.4")
	if err != nil {
		t.Fatal(err)
	}
	return capabilities{version: version}
}
