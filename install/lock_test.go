package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/upstream"
	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/kube/helm"
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
		if diff := cmp.Diff(want, got); diff != "" {
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
	if diff := cmp.Diff([]string{of.API, of.Gateway, of.Helper, of.Web}, slices.Compact(got)); diff != "" {
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
		"build":   func() error { return CheckLock(t.Context(), l, chart) },
		"install": func() error { return in.network.CheckReleaseImages(t.Context(), cilium.Release(chart, nil, 0)) },
	} {
		err := check()
		const want = "render chart demo 1.0.0: it takes more than 512 MiB of memory"
		if !errors.As(err, new(*helm.BoundError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, expected %q", name, err, want)
		}
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
