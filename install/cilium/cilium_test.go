package cilium

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v4/pkg/chart/v2/loader"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/upstream"
)

var update = flag.Bool("update", false, "rewrite testdata")

const kubernetes = "v1.36.4+k3s1"

var versions = []string{"1.18.12", "1.19.6", "1.20.0"}

// chart returns Cilium's own chart.
func chart(t *testing.T, version string) []byte {
	t.Helper()
	data, err := upstream.Chart(version)
	if err != nil {
		need.LeaveOut(t, err.Error())
	}
	return data
}

func input() Input {
	return Input{
		PodCIDR: netip.MustParsePrefix("10.42.0.0/16"), KubeProxyReplacement: true, EnableEgressGateway: true,
		Nodes: 3, UpgradeCompatibility: "1.18",
	}
}

func TestValuesGolden(t *testing.T) {
	got, err := yaml.Marshal(Values(input()))
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "values.yaml")
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("values (-want +got), go test -update rewrites them:\n%s", diff)
	}
}

// Every image that a chart can render is asked for by tag, whatever is turned on.
func TestNoDigests(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			data := chart(t, version)
			loaded, err := loader.LoadArchive(strings.NewReader(string(data)))
			if err != nil {
				t.Fatal(err)
			}
			var missing []string
			for _, path := range blocksWithDigest(loaded.Values, "") {
				if !slices.Contains(imageBlocks, path) {
					missing = append(missing, path)
				}
			}
			if len(missing) > 0 {
				t.Errorf("imageBlocks lacks %q", missing)
			}

			in := input()
			in.Extra = map[string]any{
				"hubble":      map[string]any{"relay": map[string]any{"enabled": true}, "ui": map[string]any{"enabled": true}, "tls": map[string]any{"auto": map[string]any{"method": "cronJob"}}},
				"nodeinit":    map[string]any{"enabled": true},
				"preflight":   map[string]any{"enabled": true},
				"clustermesh": map[string]any{"useAPIServer": true},
			}
			images := images(t, data, Values(in))
			for _, image := range images {
				if strings.Contains(image, "@") {
					t.Errorf("image %s has a digest", image)
				}
			}
			for _, part := range []string{"/cilium:", "/operator-generic:", "/cilium-envoy:", "/hubble-relay:", "/hubble-ui:", "/hubble-ui-backend:", "/certgen:", "/startup-script:", "/clustermesh-apiserver:"} {
				if !slices.ContainsFunc(images, func(image string) bool { return strings.Contains(image, part) }) {
					t.Errorf("no image %s among %q: the test does not turn on what it should", part, images)
				}
			}
		})
	}
}

// Without the keys, a chart asks for the same images; and one that lets an image make its keys
// is left as it is.
func TestWithoutKeys(t *testing.T) {
	in := Input{PodCIDR: netip.MustParsePrefix("10.42.0.0/16"), Nodes: 1}
	for _, version := range versions {
		data := chart(t, version)
		plain := Release(data, Values(in), 0)
		without := WithoutKeys(plain)
		manifest, err := helm.Render(t.Context(), without, kubernetes)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(manifest), "tls.key: ") {
			t.Errorf("%s: keys were made", version)
		}
		if diff := cmp.Diff(images(t, data, plain.Values), images(t, data, without.Values)); diff != "" {
			t.Errorf("%s: images (-with keys +without):\n%s", version, diff)
		}
		if diff := cmp.Diff(Values(in), plain.Values); diff != "" {
			t.Errorf("%s: the given values were changed (-want +got):\n%s", version, diff)
		}
	}
	for name, data := range map[string][]byte{"no chart": []byte("no chart"), "another method": cronJobChart(t)} {
		if diff := cmp.Diff(Values(in), WithoutKeys(Release(data, Values(in), 0)).Values); diff != "" {
			t.Errorf("%s: values (-want +got):\n%s", name, diff)
		}
	}
}

// cronJobChart is a chart that has another method to make keys.
func cronJobChart(t *testing.T) []byte {
	t.Helper()
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	members := tar.NewWriter(z)
	for name, content := range map[string]string{
		"Chart.yaml":  "apiVersion: v2\nname: cilium\nversion: 1.0.0\n",
		"values.yaml": "hubble: {tls: {auto: {method: cronJob}}}\n",
	} {
		if err := members.WriteHeader(&tar.Header{Name: "cilium/" + name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := members.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(members.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

func blocksWithDigest(values map[string]any, prefix string) []string {
	var paths []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if m, ok := values[key].(map[string]any); ok {
			if _, ok := m["useDigest"]; ok {
				paths = append(paths, prefix+key)
			}
			paths = append(paths, blocksWithDigest(m, prefix+key+".")...)
		}
	}
	return paths
}

func images(t *testing.T, chart []byte, values map[string]any) []string {
	t.Helper()
	objects, err := helm.DecodeManifest(render(t, chart, values))
	if err != nil {
		t.Fatal(err)
	}
	var images []string
	for _, use := range manifests.ImagesOf(objects) {
		images = append(images, use.Image)
	}
	slices.Sort(images)
	return slices.Compact(images)
}

func render(t *testing.T, chart []byte, values map[string]any) []byte {
	t.Helper()
	manifest, err := helm.Render(context.Background(), Release(chart, values, 0), kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	return manifest
}

// object is as much of a rendered object as the tests look at.
type object struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Data     map[string]string
	Spec     struct {
		Replicas int
		Strategy struct {
			RollingUpdate struct {
				MaxUnavailable string `yaml:"maxUnavailable"`
			} `yaml:"rollingUpdate"`
		}
		Template struct {
			Metadata struct{ Annotations map[string]string }
			Spec     struct {
				Containers []struct {
					Env []struct{ Name, Value string }
				}
			}
		}
	}
}

func objects(t *testing.T, manifest []byte) map[string]object {
	t.Helper()
	all := map[string]object{}
	for document := range strings.SplitSeq(string(manifest), "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil && o.Kind == "" {
			t.Fatal(err)
		}
		all[o.Kind+"/"+o.Metadata.Name] = o
	}
	return all
}

func TestRender(t *testing.T) {
	for _, version := range versions {
		data := chart(t, version)
		t.Run(version, func(t *testing.T) {
			values := Values(input())
			manifest := render(t, data, values)
			got := objects(t, manifest)

			config := got["ConfigMap/cilium-config"].Data
			want := map[string]string{
				"cluster-pool-ipv4-cidr":     "10.42.0.0/16",
				"kube-proxy-replacement":     "true",
				"enable-bpf-masquerade":      "true",
				"enable-ipv4-egress-gateway": "true",
			}
			if _, old := config["enable-ipv4-egress-gateway"]; !old {
				delete(want, "enable-ipv4-egress-gateway")
				want["enable-egress-gateway"] = "true"
			}
			for key, value := range want {
				if config[key] != value {
					t.Errorf("cilium-config: %s is %q, want %q", key, config[key], value)
				}
			}
			agent := got["DaemonSet/cilium"]
			env := map[string]string{}
			for _, e := range agent.Spec.Template.Spec.Containers[0].Env {
				env[e.Name] = e.Value
			}
			if env["KUBERNETES_SERVICE_HOST"] != "127.0.0.1" || env["KUBERNETES_SERVICE_PORT"] != "6444" {
				t.Errorf("the agent looks for the API at %q:%q", env["KUBERNETES_SERVICE_HOST"],
					env["KUBERNETES_SERVICE_PORT"])
			}
			for _, name := range []string{"DaemonSet/cilium", "Deployment/cilium-operator", "DaemonSet/cilium-envoy"} {
				if !slices.ContainsFunc(slices.Collect(maps.Keys(got[name].Spec.Template.Metadata.Annotations)), func(key string) bool { return strings.HasSuffix(key, "configmap-checksum") }) {
					t.Errorf("%s is not rolled out when its configuration changes", name)
				}
			}
			if n := got["Deployment/cilium-operator"].Spec.Replicas; n != 2 {
				t.Errorf("the operator has %d replicas on three nodes, want 2", n)
			}
			if n := got["Deployment/cilium-operator"].Spec.Strategy.RollingUpdate.MaxUnavailable; n != "100%" {
				t.Errorf("maxUnavailable of the operator is %q", n)
			}
			if diff := cmp.Diff(rendered(got), names(Workloads(values))); diff != "" {
				t.Errorf("workloads (-rendered +Workloads):\n%s", diff)
			}

			in := input()
			in.Nodes, in.KubeProxyReplacement, in.EnableEgressGateway = 1, false, false
			in.Extra = map[string]any{"envoy": map[string]any{"enabled": false}, "operator": map[string]any{"extraArgs": []any{"--x"}}}
			values = Values(in)
			got = objects(t, render(t, data, values))
			if n := got["Deployment/cilium-operator"].Spec.Replicas; n != 1 {
				t.Errorf("the operator has %d replicas on one node, want 1", n)
			}
			config = got["ConfigMap/cilium-config"].Data
			if config["kube-proxy-replacement"] != "false" || config["enable-bpf-masquerade"] == "true" {
				t.Errorf("cilium-config: kube-proxy-replacement %q, enable-bpf-masquerade %q",
					config["kube-proxy-replacement"], config["enable-bpf-masquerade"])
			}
			if diff := cmp.Diff(rendered(got), names(Workloads(values))); diff != "" {
				t.Errorf("workloads without envoy (-rendered +Workloads):\n%s", diff)
			}
		})
	}
}

func rendered(objects map[string]object) []string {
	var found []string
	for name, o := range objects {
		if o.Kind == kube.DaemonSet || o.Kind == kube.Deployment || o.Kind == kube.StatefulSet {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}

func names(workloads []kube.Workload) []string {
	var out []string
	for _, w := range workloads {
		out = append(out, w.Kind+"/"+w.Name)
	}
	slices.Sort(out)
	return out
}

func TestExtraWins(t *testing.T) {
	in := input()
	extra := map[string]any{
		"operator":       map[string]any{"replicas": 5},
		"ipam":           map[string]any{"mode": "kubernetes"},
		"k8sServicePort": 7444,
		"envoy":          nil,
		"image":          "not a block",
	}
	in.Extra = extra
	got := Values(in)
	operator := got["operator"].(map[string]any)
	if operator["replicas"] != 5 || operator["rollOutPods"] != true {
		t.Errorf("operator is %v", operator)
	}
	ipam := got["ipam"].(map[string]any)
	if ipam["mode"] != "kubernetes" || ipam["operator"] == nil {
		t.Errorf("ipam is %v", ipam)
	}
	if got["k8sServicePort"] != 7444 || got["envoy"] != nil || got["image"] != "not a block" {
		t.Errorf("k8sServicePort %v, envoy %v, image %v", got["k8sServicePort"], got["envoy"], got["image"])
	}
	ipam["mode"] = "changed"
	if extra["ipam"].(map[string]any)["mode"] != "kubernetes" {
		t.Error("the result shares maps with Extra")
	}
}

func TestFirstMinor(t *testing.T) {
	state := func(version string, values map[string]any) *helm.State {
		return &helm.State{ChartVersion: version, Values: values}
	}
	for name, c := range map[string]struct {
		installed *helm.State
		version   string
		want      string
	}{
		"first":           {nil, "1.18.6", "1.18"},
		"with a v":        {nil, "v1.20.0", "1.20"},
		"kept":            {state("1.20.0", map[string]any{"upgradeCompatibility": "1.18"}), "1.20.1", "1.18"},
		"by another tool": {state("1.18.6", nil), "1.20.0", "1.18"},
		"no version":      {nil, "main", ""},
	} {
		if got := FirstMinor(c.installed, c.version); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// What pods live by is not changed in a cluster that somebody else has set up.
func TestUnchangeable(t *testing.T) {
	wanted := Values(Input{PodCIDR: netip.MustParsePrefix("10.42.0.0/16"), KubeProxyReplacement: true})
	pool := func(cidrs ...any) map[string]any {
		return map[string]any{"kubeProxyReplacement": "true", "ipam": map[string]any{"operator": map[string]any{"clusterPoolIPv4PodCIDRList": cidrs}}}
	}
	same := pool("10.42.0.0/16")
	same["hubble"], same["operator"], same["ipam"].(map[string]any)["mode"] = map[string]any{"enabled": false}, map[string]any{"replicas": 1}, "cluster-pool"
	native := pool("10.42.0.0/16")
	native["routingMode"] = "native\x1b"
	for _, test := range []struct {
		name      string
		installed map[string]any
		want      []string
	}{
		{"as boxlift sets it up", wanted, nil},
		{"with other values that may change", same, nil},
		{"the pool as a text", map[string]any{"kubeProxyReplacement": true, "ipam": map[string]any{"operator": map[string]any{"clusterPoolIPv4PodCIDRList": "10.42.0.0/16"}}}, nil},
		{"the chart's own", nil, []string{
			"ipam.operator.clusterPoolIPv4PodCIDRList is 10.0.0.0/8, and install.yaml makes it 10.42.0.0/16: write the first into network.cilium",
			"kubeProxyReplacement is false, and install.yaml makes it true: write the first into network.cilium",
		}},
		{"more networks", pool("10.42.0.0/16", "10.52.0.0/16"), []string{
			"ipam.operator.clusterPoolIPv4PodCIDRList is 10.42.0.0/16,10.52.0.0/16, and install.yaml makes it 10.42.0.0/16: write the first into network.cilium",
		}},
		{"no tunnels", native, []string{
			"routingMode is native\ufffd, and install.yaml makes it the chart's default: write the first into network.cilium",
		}},
	} {
		if diff := cmp.Diff(test.want, Unchangeable(test.installed, wanted)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}
