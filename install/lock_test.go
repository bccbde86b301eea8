package install

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/upstream"
	"github.com/liteboxd/boxlift/bundle/workload"
	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
	standin "github.com/liteboxd/boxlift/test/upstream"
)

// TestLockedImages: what a lock is made of is what an installation asks for, without
// digests, on a known k3s or none.
func TestLockedImages(t *testing.T) {
	chart, err := standin.Chart("1.20.0")
	if err != nil {
		t.Fatal(err)
	}
	for _, k3s := range []string{"v1.36.4+k3s1", ""} {
		got, err := ChartImages(t.Context(), chart, "1.20.0", k3s)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{
			"quay.io/cilium/cilium-envoy:v1.37.5-1782911245-7cffc778c923f68a77954a53b1a98d6b5353f004",
			"quay.io/cilium/cilium:v1.20.0", "quay.io/cilium/operator-generic:v1.20.0",
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("chart on %q (-want +got):\n%s", k3s, diff)
		}
	}
	if _, err := ChartImages(t.Context(), []byte("no chart"), "1.20.0", ""); err == nil {
		t.Error("something that is no chart was rendered")
	}

	of := upstream.LiteBoxdImages{API: "example.com/api:1", Gateway: "example.com/gateway:1", Web: "example.com/web:1", Helper: "example.com/helper:1"}
	got, err := ManifestImages(of)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if diff := gocmp.Diff([]string{of.API, of.Gateway, of.Helper, of.Web}, slices.Compact(got)); diff != "" {
		t.Errorf("manifests (-want +got):\n%s", diff)
	}
	of.Web = "latest"
	if _, err := ManifestImages(of); err == nil || !strings.Contains(err.Error(), "render LiteBoxd's manifests: ") {
		t.Errorf("an image that is none: %v", err)
	}
}

// TestChartWithoutEnd has a chart of some hundred bytes that would take all memory: in the check of
// a lock, of a bundle, and where a lock is made.
func TestChartWithoutEnd(t *testing.T) {
	if _, err := os.Stat("/proc/self/statm"); err != nil {
		t.Skip("the memory of a process is bounded on Linux alone")
	}
	chart := chartOfTemplate(t, `{{ range until 300000000 }}x{{ end }}`)
	l, err := lock.Parse("versions.lock", []byte("apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\n"+
		"components:\n  k3s:\n    version: v1.36.4+k3s1\n    images:\n      - {ref: \"docker.io/rancher/a:1\"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	in := example(t, sitetest.ExampleConfig, "k3s=v1.36.4+k3s1", "cilium=1.20.0")
	in.site.K3s = "v1.36.4+k3s1"
	for name, check := range map[string]func() error{
		"lock": func() error {
			_, err := ChartImages(t.Context(), chart, "1.20.0", "")
			return err
		},
		"build": func() error {
			return CheckLock(t.Context(), l, []workload.Source{{Workload: workload.Workload{Component: "cilium"}, Content: chart}})
		},
		"workload": func() error {
			_, _, err := WorkloadUses(t.Context(), workload.Source{
				Workload: workload.Workload{Component: "web", Version: "v1.0.0", IsChart: true}, Content: chart}, "")
			return err
		},
		"install": func() error { return in.network.CheckReleaseImages(t.Context(), cilium.Release(chart, nil, 0)) },
	} {
		err := check()
		const want = "render chart demo 1.0.0: it takes more than 512 MiB of memory"
		if !errors.As(err, new(*helm.BoundError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, expected %q", name, err, want)
		}
	}
}

// What a workload is installed from names images wherever it likes. A lock that lacks one is refused, with the place.
func TestCheckWorkloads(t *testing.T) {
	const lockText = `apiVersion: boxlift.dev/v1
kind: Lock
platforms: [linux/amd64]
components:
  k3s: {version: v1.36.4+k3s1}
  web:
    version: 1.0.0
    files:
      - {name: values.yaml, url: "file:values.yaml"}
    charts:
      - {name: web, url: "file:demo-1.0.0.tgz"}
    images:
      - {ref: "docker.io/library/nginx:1.27"}
  gov:
    version: v1
    files:
      - {name: manifests.tar, url: "file:gov"}
    images:
      - {ref: "docker.io/library/postgres:17"}
`
	chart := kubetest.Chart(t, "1.0.0", map[string]string{
		"Chart.yaml":                       "apiVersion: v2\nname: demo\nversion: 1.0.0\ndependencies: [{name: cache, version: 2.0.0}]\n",
		"values.yaml":                      "image: nginx\n",
		"templates/main.yaml":              kubetest.Workload("Deployment", "web", "", `{{ required "image.tag is needed" .Values.tag | printf "%s:%v" .Values.image }}`),
		"templates/hook.yaml":              "apiVersion: batch/v1\nkind: Job\nmetadata: {name: hook, annotations: {helm.sh/hook: pre-install}}\nspec: {template: {spec: {initContainers: [{name: wait, image: busybox}]}}}\n",
		"crds/own.yaml":                    "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: sets.demo}\n",
		"templates/own.yaml":               "apiVersion: demo/v1\nkind: Set\nmetadata: {name: own}\nspec: {template: {spec: {volumes: [{name: data, image: {reference: registry.test/data:1}}]}}}\n",
		"charts/cache/Chart.yaml":          "apiVersion: v2\nname: cache\nversion: 2.0.0\n",
		"charts/cache/templates/main.yaml": kubetest.Workload("DaemonSet", "cache", "", "redis:8"),
	})
	folder, err := manifests.Pack(fstest.MapFS{
		"kustomization.yaml": {Data: []byte("resources: [main.yaml]\nnamespace: gov\nimages: [{name: db, newName: postgres, newTag: '17'}]\n")},
		"main.yaml": {Data: []byte(kubetest.Workload("StatefulSet", "db", "", "db") +
			"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {RUNNER_IMAGE: 'registry.test/runner:1'}\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	source := func(component, values string) workload.Source {
		t.Helper()
		l, err := lock.Parse("versions.lock", []byte(lockText))
		if err != nil {
			t.Fatal(err)
		}
		list, err := workload.Find("versions.lock", l)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range list {
			if w.Component == component {
				content := map[bool][]byte{true: chart, false: folder}[w.IsChart]
				return workload.Source{Workload: w, Content: content, ValuesContent: []byte(values)}
			}
		}
		t.Fatalf("there is no workload %s", component)
		return workload.Source{}
	}
	const more = `
      - {ref: "docker.io/library/busybox:latest"}
      - {ref: "docker.io/library/redis:8"}
      - {ref: "registry.test/data:1"}
      - {ref: "registry.test/runner:1"}
`
	broken := source("gov", "")
	broken.Content = []byte("no tar")
	other, err := manifests.Pack(fstest.MapFS{"kustomization.yaml": {Data: []byte("resources: [../../etc]\n")}})
	if err != nil {
		t.Fatal(err)
	}
	another := source("web", "tag: '1.27'")
	another.Version = "v1.0.1"
	secret, err := manifests.Pack(fstest.MapFS{"kustomization.yaml": {Data: []byte("resources: [a.yaml]\n")},
		"a.yaml": {Data: []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: password}\n")}})
	if err != nil {
		t.Fatal(err)
	}
	withSecret := broken
	withSecret.Content = secret
	outside := broken
	outside.Content = other
	for _, test := range []struct {
		name, more string
		source     workload.Source
		want       []string // nothing: it passes
	}{
		{"a chart with all", more, source("web", "tag: '1.27'"), nil},
		{"manifests with all", more, source("gov", ""), nil},
		{"a chart that lacks some", "", source("web", "tag: '1.27'"), []string{
			"the lock is incomplete: the component web: DaemonSet cache (main) needs the image redis:8, and no component has docker.io/library/redis:8",
			"the component web: Job hook (wait) needs the image busybox, and no component has docker.io/library/busybox:latest",
			"the component web: Set own (data) needs the image registry.test/data:1, and no",
			"bundle lock",
		}},
		{"other values", more, source("web", "tag: '1.28'"), []string{"needs the image nginx:1.28, and no component has docker.io/library/nginx:1.28"}},
		{"manifests that lack one", "", source("gov", ""), []string{
			"the component gov: ConfigMap gov/settings (RUNNER_IMAGE) needs the image registry.test/runner:1, and no",
		}},
		{"values that are missing", more, source("web", ""), []string{
			"versions.lock:11: components.web.charts web: it cannot be rendered: release web/web: render chart demo 1.0.0: ",
			"image.tag is needed", "goes into a file values.yaml of the component",
		}},
		{"values that are none", more, source("web", "- a\n"), []string{
			"versions.lock:9: components.web.files values.yaml: read values: they are no mapping"}},
		{"another version", more, another, []string{
			"versions.lock:11: components.web.charts web: the chart's version is 1.0.0, and that of the component v1.0.1: "}},
		{"a secret", more, withSecret, []string{
			"versions.lock:17: components.gov.files manifests.tar: invalid kustomize folder: Secret gov/password: "}},
		{"no tar", more, broken, []string{"versions.lock:17: components.gov.files manifests.tar: unpack manifests: "}},
		{"a folder that leaves itself", more, outside, []string{"versions.lock:17: components.gov.files manifests.tar: invalid kustomize folder: "}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, err := lock.Parse("versions.lock", []byte(strings.TrimSuffix(lockText, "\n")+cmp.Or(test.more, "\n")))
			if err != nil {
				t.Fatal(err)
			}
			err = CheckLock(t.Context(), l, []workload.Source{test.source})
			if test.want == nil && err != nil || test.want != nil && (err == nil || fault.ClassOf(err) != fault.Input) {
				t.Fatalf("got %v", err)
			}
			for _, want := range test.want {
				if text := err.Error() + strings.Join(fault.Hints(err), "\n"); !strings.Contains(text, want) {
					t.Errorf("got %s\nwant %s", text, want)
				}
			}
		})
	}
}

// A chart of somebody's that names its images with tags and digests: each is added with that digest.
func TestWorkloadWithDigests(t *testing.T) {
	chart, err := standin.Chart("1.20.0")
	if err != nil {
		t.Fatal(err)
	}
	uses, _, err := WorkloadUses(t.Context(), workload.Source{
		Workload: workload.Workload{Component: "net", Version: "1.20.0", IsChart: true}, Content: chart}, "v1.36.4+k3s1")
	if err != nil {
		t.Fatal(err)
	}
	l, err := lock.Parse("versions.lock", []byte("apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\n"+
		"components:\n  net: {version: 1.20.0}\n"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := workload.Additions(l, "net", uses)
	if err != nil {
		t.Fatal(err)
	}
	var refs []string
	for _, e := range entries {
		if refs = append(refs, e.Ref); e.Digest == "" {
			t.Errorf("%s has no digest", e.Ref)
		}
	}
	slices.Sort(refs)
	want := []string{
		"quay.io/cilium/cilium-envoy:v1.37.5-1782911245-7cffc778c923f68a77954a53b1a98d6b5353f004",
		"quay.io/cilium/cilium:v1.20.0", "quay.io/cilium/operator-generic:v1.20.0",
	}
	if diff := gocmp.Diff(want, refs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	l.Component("net").Images = entries
	l.Component("net").Images[0].Digest = digest.Digest("sha256:" + strings.Repeat("a", 64))
	if _, err := workload.Additions(l, "net", uses); err == nil || !strings.Contains(err.Error(), "with the digest sha256:aaaa") {
		t.Errorf("with another digest: %v", err)
	}
}

// chartOfTemplate makes a chart with one template.
func chartOfTemplate(t *testing.T, template string) []byte {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	archive := tar.NewWriter(zip)
	for name, content := range map[string]string{
		"demo/Chart.yaml": "apiVersion: v2\nname: demo\nversion: 1.0.0\n", "demo/templates/main.yaml": template,
	} {
		header := &tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644}
		if err := archive.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(archive.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
