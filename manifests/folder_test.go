package manifests_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liteboxd/boxlift/manifests"
)

const deploymentFile = "-- deployment.yaml --\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n" +
	"  template:\n    spec:\n      containers: [{name: web, image: registry.lan/web:1}]\n"

func TestBuild(t *testing.T) {
	for _, c := range []struct {
		name, folder, files string
		want                []string
	}{
		{
			"a folder", ".", "-- kustomization.yaml --\nresources: [deployment.yaml, namespace.yaml]\nnamespace: gov\n" +
				"namePrefix: a-\nnameSuffix: -z\ncommonLabels: {app: web}\nimages: [{name: registry.lan/web, newTag: '2'}]\n" +
				deploymentFile + "-- namespace.yaml --\napiVersion: v1\nkind: Namespace\nmetadata: {name: gov}\n",
			[]string{"Namespace gov", "Deployment gov/a-web-z"},
		},
		{
			"an overlay", "overlays/lan", "-- overlays/lan/kustomization.yaml --\nresources: [../../base]\n" +
				"patches: [{path: web.yaml}]\n-- overlays/lan/web.yaml --\napiVersion: apps/v1\nkind: Deployment\n" +
				"metadata: {name: web, namespace: lan}\n-- base/kustomization.yaml --\nresources: [deployment.yaml]\n" +
				"namespace: lan\n" + strings.Replace(deploymentFile, "-- ", "-- base/", 1),
			[]string{"Deployment lan/web"},
		},
		{"an overlay at the top", ".",
			"-- kustomization.yaml --\nresources: [./base]\n-- base/kustomization.yaml --\n" +
				"resources: [deployment.yaml]\n" + strings.Replace(deploymentFile, "-- ", "-- base/", 1),
			[]string{"Deployment web"}},
		{"one folder twice", ".", "-- kustomization.yaml --\nresources: [a, b]\n-- a/kustomization.yaml --\n" +
			"resources: [../base]\nnamePrefix: a-\n-- b/kustomization.yaml --\nresources: [../base]\nnamePrefix: b-\n" +
			"-- base/kustomization.yaml --\nresources: [deployment.yaml]\n" +
			strings.Replace(deploymentFile, "-- ", "-- base/", 1), []string{"Deployment a-web", "Deployment b-web"}},
		{"a list", ".",
			"-- kustomization.yaml --\nresources: [list.yaml]\n-- list.yaml --\napiVersion: v1\nkind: List\n" +
				"items:\n- {apiVersion: v1, kind: ServiceAccount, metadata: {name: b}}\n" +
				"- {apiVersion: v1, kind: ServiceAccount, metadata: {name: a}}\n",
			[]string{"ServiceAccount a", "ServiceAccount b"}},
	} {
		objects, err := manifests.Build(folder(c.files), c.folder)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var names []string
		for _, o := range objects {
			names = append(names, manifests.Name(o))
		}
		if diff := cmp.Diff(c.want, names); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestBuildErrors(t *testing.T) {
	// 12 floors of two folders that refer to both below them: 4096 times the one at the end.
	var floors strings.Builder
	floors.WriteString("-- kustomization.yaml --\nresources: [f0a, f0b]\n")
	for i := range 12 {
		for _, side := range []string{"a", "b"} {
			fmt.Fprintf(&floors, "-- f%d%s/kustomization.yaml --\nnamePrefix: %s-\nresources: [", i, side, side)
			if i < 11 {
				fmt.Fprintf(&floors, "../f%da, ../f%db]\n", i+1, i+1)
			} else {
				floors.WriteString("../end]\n")
			}
		}
	}
	floors.WriteString("-- end/kustomization.yaml --\nresources: [deployment.yaml]\n" +
		strings.Replace(deploymentFile, "-- ", "-- end/", 1))
	for _, c := range []struct{ name, folder, files, want string }{
		{"nothing", ".", "", "there is no kustomization.yaml"},
		{"another name", ".", "-- kustomization.yml --\nresources: []\n", "there is no kustomization.yaml"},
		{"no such folder", "a/b", "-- kustomization.yaml --\nresources: []\n", "there is no a/b/kustomization.yaml"},
		{"outside", "../a", "-- kustomization.yaml --\nresources: []\n", `"../a" is not a clean relative path`},
		{"leaves it", ".", "-- kustomization.yaml --\nresources: [../base]\n", `"../base" leaves the folder`},
		{"leaves it by two", "a", "-- a/kustomization.yaml --\nresources: [../../base]\n",
			`"../../base" leaves the folder`},
		{"a URL", ".", "-- kustomization.yaml --\nresources: ['https://example.com/a.yaml']\n",
			"not a plain relative path"},
		{"a chart", ".", "-- kustomization.yaml --\nhelmCharts: [{name: a}]\n", `"helmCharts" is refused`},
		{"a plugin", ".", "-- kustomization.yaml --\ngenerators: [a.yaml]\n", `"generators" is refused`},
		{"another case", ".", "-- kustomization.yaml --\nnamePREFIX: a\n", `"namePREFIX" is refused`},
		{"itself", "a",
			"-- a/kustomization.yaml --\nresources: [../b]\n-- b/kustomization.yaml --\nresources: [../a]\n",
			"a/kustomization.yaml: the folder refers to itself"},
		{"very many", ".", floors.String(), "more than 1000 files are loaded for it"},
		{"no such patch", ".", "-- kustomization.yaml --\npatches: [{patch: '{apiVersion: v1, kind: Pod, metadata: " +
			"{name: a}}'}]\n", "no resource matches strategic merge patch"},
		{"twice", ".",
			"-- kustomization.yaml --\nresources: [a.yaml]\n-- a.yaml --\n{apiVersion: v1, kind: Pod, metadata: " +
				"{name: a}}\n---\n{apiVersion: v1, kind: Pod, metadata: {name: a}}\n", "already registered id"},
	} {
		_, err := manifests.Build(folder(c.files), c.folder)
		if !errors.Is(err, manifests.ErrFolder) || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestImagesOf(t *testing.T) {
	got := manifests.ImagesOf([]*unstructured.Unstructured{
		{Object: map[string]any{"kind": "ConfigMap", "metadata": map[string]any{"name": "a"}, "data": map[string]any{
			"SIDE_IMAGE": "side:1", "OTHER": "other:1", "NUMBER_IMAGE": 1, "PULL_IMAGE": "true", "POLICY_IMAGE": "Always",
			"NO_IMAGE": "", "ONE_IMAGE": "1", "PATH_IMAGE": "/usr/bin/pull", "WORD_IMAGE": "busybox",
		}}},
		{Object: map[string]any{"kind": "Set", "metadata": map[string]any{"name": "b", "namespace": "n"}, "count": 1,
			"spec": map[string]any{
				"initContainers": []any{map[string]any{"name": "first", "image": "first:1"}},
				"containers": []any{1, map[string]any{"name": "main", "image": "main:1", "env": []any{
					map[string]any{"name": "RUN_IMAGE", "value": "run:1"},
					map[string]any{"name": "PULL_IMAGE", "value": "true"}, map[string]any{"name": "FROM_IMAGE"},
				}}, map[string]any{"name": "none", "image": 7}},
				"volumes": []any{map[string]any{"name": "data", "image": map[string]any{"reference": "data:1"}},
					map[string]any{"name": "odd", "image": "text"}},
			}}},
	})
	want := []manifests.ImageUse{
		{"side:1", "ConfigMap a", "SIDE_IMAGE"}, {"busybox", "ConfigMap a", "WORD_IMAGE"},
		{"main:1", "Set n/b", "main"}, {"run:1", "Set n/b", "RUN_IMAGE"}, {"first:1", "Set n/b", "first"}, {"data:1", "Set n/b", "data"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPossibleImagesOf: what operators make pods of is named with object and field, and what is no image is not.
func TestPossibleImagesOf(t *testing.T) {
	object := func(kind string, rest map[string]any) *unstructured.Unstructured {
		rest["kind"], rest["metadata"] = kind, map[string]any{"name": "b", "namespace": "n"}
		return &unstructured.Unstructured{Object: rest}
	}
	got := manifests.PossibleImagesOf([]*unstructured.Unstructured{
		object("Alertmanager", map[string]any{"spec": map[string]any{
			"image": "quay.io/prometheus/alertmanager:v1", "baseImage": "quay.io/prometheus/base", "imagePullPolicy": "Always",
			"thanos":     map[string]any{"image": "thanos@sha256:" + strings.Repeat("a", 64)},
			"replicas":   []any{map[string]any{"image": "quay.io/a/b:1"}, map[string]any{"image": "disk"}, 7},
			"containers": []any{map[string]any{"name": "sure", "image": "quay.io/sure/sure:1"}},
			"picture":    map[string]any{"image": map[string]any{"repository": "quay.io/c"}},
		}}),
		object("Deployment", map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
			"name": "operator", "image": "quay.io/operator:1",
			"command": []any{"/operator", 7, "--image", "repo/sidecar:2"},
			"args": []any{"--foo-image=repo/x:3", "--prometheus-config-reloader=quay.io/reloader:v4", "--image-pull=true",
				"--listen=:8080", "--target=web.n.svc:80/path", "--config=/etc/a/b:1", "--url=https://quay.io/x:1", "repo/loose:5",
				"--pull-policy=Always"},
			"env": []any{map[string]any{"name": "BASE_IMAGE", "value": "nginx"}, map[string]any{"name": "PULL_IMAGE", "value": "true"},
				map[string]any{"name": "SURE_IMAGE", "value": "quay.io/sure:1"}},
		}}}}),
		object("ConfigMap", map[string]any{"data": map[string]any{"HELPER_IMAGE": "busybox", "N_IMAGE": "1", "image": "quay.io/x:1"}}),
		object("CustomResourceDefinition", map[string]any{"spec": map[string]any{"image": "quay.io/example:1"}}),
	})
	want := []manifests.ImageUse{
		{"quay.io/prometheus/base", "Alertmanager n/b", "spec.baseImage"},
		{"quay.io/prometheus/alertmanager:v1", "Alertmanager n/b", "spec.image"},
		{"quay.io/a/b:1", "Alertmanager n/b", "spec.replicas[0].image"},
		{"thanos@sha256:" + strings.Repeat("a", 64), "Alertmanager n/b", "spec.thanos.image"},
		{"repo/sidecar:2", "Deployment n/b", "argument --image of the container operator"},
		{"repo/x:3", "Deployment n/b", "argument --foo-image of the container operator"},
		{"quay.io/reloader:v4", "Deployment n/b", "argument --prometheus-config-reloader of the container operator"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
