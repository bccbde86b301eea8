package install

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/release"
	"github.com/liteboxd/boxlift/test/upstream"
)

// TestLockedImages: what a lock is made of is what an installation asks for, without
// digests, on a known k3s or none.
func TestLockedImages(t *testing.T) {
	chart, err := upstream.Chart("1.20.0")
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

	of := release.LiteBoxdImages{API: "example.com/api:1", Gateway: "example.com/gateway:1", Web: "example.com/web:1", Helper: "example.com/helper:1"}
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
