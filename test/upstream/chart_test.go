package upstream

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

// chartValues are those that an installation on k3s needs, and those that make the chart
// the check that goes before an upgrade.
var chartValues = map[string]string{
	"installation": `
image: {useDigest: false}
operator: {image: {useDigest: false}}
envoy: {image: {useDigest: false}}
kubeProxyReplacement: true
k8sServiceHost: 127.0.0.1
k8sServicePort: 6444
ipam: {operator: {clusterPoolIPv4PodCIDRList: [10.42.0.0/16]}}
`,
	"pre-flight": `
agent: false
operator: {enabled: false}
preflight: {enabled: true, image: {useDigest: false}, envoy: {image: {useDigest: false}}}
k8sServiceHost: 127.0.0.1
k8sServicePort: 6444
`,
}

// pods gives the pod templates of a chart with its values.
func pods(t *testing.T, file, values string) []map[string]any {
	t.Helper()
	chart, err := loader.LoadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	given := map[string]any{}
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		t.Fatal(err)
	}
	all, err := util.ToRenderValues(chart, given, common.ReleaseOptions{Name: "cilium", Namespace: "kube-system", IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		t.Fatal(err)
	}
	var specs []map[string]any
	for name, content := range files {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for decoder := yaml.NewDecoder(bytes.NewReader([]byte(content))); ; {
			var object struct {
				Spec struct{ Template struct{ Spec map[string]any } }
			}
			err := decoder.Decode(&object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if spec := object.Spec.Template.Spec; spec != nil {
				specs = append(specs, spec)
			}
		}
	}
	return specs
}

// Every image that the charts name is in their release, and nothing else of Cilium; every
// program that the charts start in them is there.
func TestChartsHaveTheirImages(t *testing.T) {
	s := start(t)
	for _, r := range []Release{Quick, Oldest, Older, Newer} {
		for name, values := range chartValues {
			t.Run(r.K3s+" Cilium "+r.Cilium+" "+name, func(t *testing.T) {
				chart, ok := s.set.Charts[r.Cilium]
				if !ok {
					t.Fatal("the chart is not at hand")
				}
				var inChart, inRelease []string
				programs := map[string]string{} // by the files that an image has
				for _, image := range catalog(r) {
					if image.Component != cilium {
						continue
					}
					inRelease = append(inRelease, image.Ref)
					for _, l := range image.Layers {
						for _, p := range l.paths() {
							programs[image.Ref+" /"+p] = l.Program
						}
					}
				}
				for _, pod := range pods(t, chart.File, values) {
					for _, key := range []string{"initContainers", "containers"} {
						list, _ := pod[key].([]any)
						for _, entry := range list {
							container := entry.(map[string]any)
							ref := container["image"].(string)
							inChart = append(inChart, ref)
							if r.cluster {
								for _, command := range commands(container) {
									if programs[ref+" "+command] == "" && programs[ref+" /usr/bin/"+command] == "" {
										t.Errorf("container %v starts %s, which is not in %s", container["name"], command, ref)
									}
								}
							}
						}
					}
				}
				slices.Sort(inChart)
				slices.Sort(inRelease)
				inChart = slices.Compact(inChart)
				if name == "pre-flight" { // no operator
					inRelease = slices.DeleteFunc(inRelease, func(ref string) bool { return strings.Contains(ref, "/operator") })
				}
				if diff := cmp.Diff(inChart, inRelease); diff != "" {
					t.Errorf("images (-chart +release):\n%s", diff)
				}
			})
		}
	}
}

// commands are the programs that the container starts: its own, and those of its probes
// and hooks.
func commands(container map[string]any) []string {
	var found []string
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if list, ok := v["command"].([]any); ok && len(list) > 0 {
				found = append(found, list[0].(string))
			}
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(container)
	return found
}
