package network

import (
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

const (
	agent    = "quay.io/cilium/cilium:v1.20.0"
	operator = "quay.io/cilium/operator-generic:v1.20.0"
	relay    = "quay.io/cilium/hubble-relay:v1.20.0"
)

// digestOf is the digest of an image in these charts.
func digestOf(image string) string { return digest.FromString(image).String() }

// template is a chart like Cilium's: images by digest where that is asked for, and one image more where values say so.
const template = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: cilium}
spec:
  template:
    spec:
      containers:
      - {name: agent, image: "AGENT{{ if ne .Values.image.useDigest false }}@DIGEST{{ end }}"}
      - {name: operator, image: "OPERATOR"}
{{- if .Values.hubble.enabled }}
      - {name: relay, image: "RELAY"}
{{- end }}
{{- if .Values.broken }}
      - {name: {{ fail "these values do not go together" }}}
{{- end }}
`

// chart is the archive of such a chart.
func chart(t *testing.T) []byte {
	t.Helper()
	names := strings.NewReplacer("AGENT", agent, "DIGEST", digestOf(agent), "OPERATOR", operator, "RELAY", relay)
	return kubetest.Chart(t, "1.20.0", map[string]string{
		"templates/all.yaml": names.Replace(template),
		"values.yaml":        "image: {useDigest: true}\nhubble: {enabled: false}\nbroken: false\n",
	})
}

// carrying is a site whose bundle has a chart and these images, for values in install.yaml.
func carrying(t *testing.T, archive, values string, images ...string) *installation {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.tar")
	component := smallbundle.Component{Name: site.CiliumComponent, Version: "1.20.0"}
	if archive != "" {
		component.Charts = []smallbundle.File{{Name: "cilium", Content: archive}}
	} else {
		component.Files = []smallbundle.File{{Name: "README", Content: "no chart"}}
	}
	smallbundle.Write(t, path, smallbundle.Bundle{Components: []smallbundle.Component{component}})
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	in := example(t, strings.Replace(sitetest.ExampleConfig, "podCIDR: 10.52.0.0/16",
		"podCIDR: 10.52.0.0/16, values: {"+values+"}", 1))
	in.site.Bundle, in.site.K3s = r, "v1.36.4+k3s1"
	if in.site.Contents, err = r.Contents(); err != nil {
		t.Fatal(err)
	}
	for _, name := range images {
		image := bundle.Image{Name: name, Digest: digest.Digest(digestOf(name))}
		in.site.Contents.Images = append(in.site.Contents.Images, image)
	}
	return in
}

// Before any host is asked, it is clear whether the bundle carries what its chart names.
func TestCheckChart(t *testing.T) {
	good := string(chart(t))
	for _, test := range []struct {
		name, chart, values string
		images              []string
		want                string // "" lets it pass
	}{
		{"all is carried", good, "", []string{agent, operator}, ""},
		{"more is carried", good, "", []string{agent, operator, relay, "docker.io/rancher/mirrored-pause:3.6"}, ""},
		{"values ask for more", good, "hubble: {enabled: true}", []string{agent, operator, relay}, ""},
		{"values ask for what is not there", good, "hubble: {enabled: true}", []string{agent, operator},
			"needs images that are not carried: " + relay + ";"},
		{"nothing is carried", good, "", nil, "not carried: " + agent},
		{"another version is carried", good, "", []string{agent, strings.Replace(operator, "1.20.0", "1.20.1", 1)},
			"not carried: " + operator + ";"},
		{"no chart", "", "", []string{agent, operator}, "the bundle carries no chart of Cilium"},
		{"no archive", "a chart", "", nil, "chart"},
		{"an archive of something else", string(kubetest.Chart(t, "1.20.0", nil))[:100], "", nil, "chart"},
		{"values that its chart refuses", good, "broken: true", []string{agent, operator},
			"these values do not go together"},
		{"a chart without bound", strings.Repeat("x", site.MaxChart+1), "", nil, "is the most"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := carrying(t, test.chart, test.values, test.images...).network.CheckChart(t.Context())
			if test.want == "" && err != nil ||
				test.want != "" && (!errors.Is(err, site.ErrConfig) || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// Nodes are told digests only where they know the images by them.
func TestReleaseKeepsDigests(t *testing.T) {
	for _, test := range []struct {
		name, k3s string
		change    func(*installation)
		want      bool
	}{
		{"a k3s that knows them", "v1.36.4+k3s1", func(*installation) {}, true},
		{"one that does not", "v1.34.2+k3s1", func(*installation) {}, false},
		{"one that does not, with boxlift's registry", "v1.34.2+k3s1",
			func(in *installation) { in.site.Config.Seeding.Mode = config.SeedRegistry }, true},
		{"another image of that name", "v1.36.4+k3s1", func(in *installation) {
			in.site.Contents.Images[0].Digest = digest.FromString("rebuilt")
		}, false},
		{"an image that is not carried", "v1.36.4+k3s1", func(in *installation) { in.site.Contents.Images = nil },
			false},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := carrying(t, string(chart(t)), "", agent, operator)
			in.site.K3s = test.k3s
			test.change(in)
			release := cilium.Release(chart(t), in.network.CiliumValues("1.20", true), 0)
			if known, err := in.network.knowsDigests(t.Context(), release); known != test.want || err != nil {
				t.Errorf("%t, %v, want %t", known, err, test.want)
			}
		})
	}
}

// The images of a release are found once, and whoever asks may change what he gets.
func TestImagesOf(t *testing.T) {
	in := carrying(t, string(chart(t)), "")
	release := cilium.Release(chart(t), in.network.CiliumValues("1.20", false), 0)
	want := []string{agent, operator}
	for range 2 {
		got, err := in.network.ImagesOf(t.Context(), release)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Fatalf("%v: %s", err, diff)
		}
		got[0] = "changed"
	}
	keeping := release
	keeping.Values = in.network.CiliumValues("1.20", true)
	if got, err := in.network.ImagesOf(t.Context(), keeping); err != nil || got[0] != agent+"@"+digestOf(agent) {
		t.Errorf("with other values: %q, %v", got, err)
	}
	if len(in.network.releaseImages) != 2 {
		t.Errorf("%d releases are known", len(in.network.releaseImages))
	}
	broken := helm.Release{Chart: release.Chart, Values: map[string]any{"x": func() {}}}
	if _, err := in.network.ImagesOf(t.Context(), broken); !errors.Is(err, site.ErrConfig) {
		t.Errorf("values that are none: %v", err)
	}
}

// What install.yaml says of Cilium gets into the chart's values, and the user's own win.
func TestCiliumValues(t *testing.T) {
	in := carrying(t, string(chart(t)), "operator: {replicas: 3}, debug: {enabled: true}")
	c := &in.site.Config.Network.Cilium
	c.PodCIDR, c.EnableEgressGateway, c.KubeProxyReplacement = netip.MustParsePrefix("10.60.0.0/16"), true, true
	raw, err := json.Marshal(in.network.CiliumValues("1.18", false))
	if err != nil {
		t.Fatal(err)
	}
	kubetest.Contains(t, string(raw), `"clusterPoolIPv4PodCIDRList":["10.60.0.0/16"]`, `"kubeProxyReplacement":true`,
		`"egressGateway":{"enabled":true}`,
		`"upgradeCompatibility":"1.18"`, `"replicas":3`, `"debug":{"enabled":true}`, `"useDigest":false`)
	raw, err = json.Marshal(in.network.CiliumValues("", true))
	if text := string(raw); err != nil || strings.Contains(text, "upgradeCompatibility") ||
		strings.Contains(text, "useDigest") {
		t.Errorf("%s, %v", text, err)
	}
}
