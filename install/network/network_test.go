package network

import (
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/upstream"
)

// Cilium's own digests stay on where the nodes know them: the version of k3s gives images
// such names, and the bundle's images are those that the chart means.
func TestKnowsDigests(t *testing.T) {
	chart, err := upstream.Chart("1.18.12")
	if err != nil {
		need.LeaveOut(t, err.Error())
	}
	in := example(t, sitetest.ExampleConfig, "k3s=v1.34.4+k3s1", "cilium=1.18.12")
	in.site.K3s = "v1.34.4+k3s1"
	release := cilium.Release(chart, in.network.CiliumValues("1.18", true), 0)
	images, err := in.network.ImagesOf(t.Context(), release)
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range images {
		name, asked, ok := strings.Cut(image, "@")
		if !ok {
			t.Errorf("the chart asks for %s without a digest", image)
		}
		in.site.Contents.Images = append(in.site.Contents.Images, bundle.Image{Name: name, Digest: digest.Digest(asked)})
	}
	check := func(what string, want bool) {
		t.Helper()
		if got, err := in.network.knowsDigests(t.Context(), release); err != nil || got != want {
			t.Errorf("%s: got %v, %v", what, got, err)
		}
	}
	check("the chart's own images", true)
	in.site.K3s = "v1.34.2+k3s1"
	check("a k3s without such names", false)
	in.site.K3s = "v1.34.4+k3s1"
	in.site.Contents.Images[1].Digest = digest.FromString("another build")
	check("another image of the same name", false)
}

// An installation takes Cilium no further at once than an upgrade does.
func TestCheckCiliumStep(t *testing.T) {
	for _, test := range []struct {
		from, to string
		want     string // "" lets it pass
	}{
		{"1.18.12", "1.18.12", ""},
		{"1.18.4", "1.18.12", ""},
		{"1.18.12", "1.18.4", ""},
		{"1.17.9", "1.18.12", ""},
		{"1.16.3", "1.18.12", "from Cilium 1.16 to 1.18: Cilium is tested with steps of one minor version only: go by a bundle with Cilium 1.17 first"},
		{"1.18.12", "1.16.3", "go by a bundle with Cilium 1.17 first"},
	} {
		err := checkCiliumStep(test.from, test.to)
		if test.want == "" && err != nil || test.want != "" && (!errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("from %s to %s: %v, want %q", test.from, test.to, err, test.want)
		}
	}
}
