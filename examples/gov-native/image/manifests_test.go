package main

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/manifests/lint"
)

const namespace = "gov"

// render makes the objects of a folder of the example as boxlift does, in a namespace, and sees to it that plain
// kustomize makes the same of it. A site's folder gets the manifests below it.
func render(t *testing.T, folder string) []*unstructured.Unstructured {
	t.Helper()
	const site = "site/gov-native/kustomization.yaml"
	tree, plain := fstest.MapFS{}, filesys.MakeFsInMemory()
	for _, from := range []string{"manifests", "site/gov-native"} {
		for name, data := range files(t, filepath.Join("..", from)) {
			name = path.Join(from, name)
			if name == site {
				data += "resources: [../../manifests]\n"
			}
			tree[name] = &fstest.MapFile{Data: []byte(data)}
			if err := plain.WriteFile("/"+name, []byte(data)); err != nil {
				t.Fatal(err)
			}
		}
	}
	objects, err := manifests.Build(tree, folder)
	if err != nil {
		t.Fatal(err)
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(plain, "/"+folder)
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]string{}, map[string]string{}
	for _, resource := range made.Resources() {
		want[resource.GetKind()+" "+resource.GetName()] = resource.MustYaml()
	}
	for _, object := range objects {
		if in := object.GetNamespace(); in != "" || object.GetKind() == "Namespace" {
			t.Errorf("%s %s is in namespace %q: which one, the site says", object.GetKind(), object.GetName(), in)
		}
		content, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		got[object.GetKind()+" "+object.GetName()] = string(content)
		object.SetNamespace(namespace)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: boxlift makes of it (-plain kustomize +boxlift):\n%s", folder, diff)
	}
	return objects
}

// decode finds an object, as its own type.
func decode[T any](t *testing.T, objects []*unstructured.Unstructured, kind, name string) *T {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() == kind && object.GetName() == name {
			typed := new(T)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
				t.Fatal(err)
			}
			return typed
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}

// The manifests have nothing that boxlift's own look at manifests finds, and are what README.md says: two replicas of
// the image that is made here, with a health check, and records that outlive the release.
func TestManifests(t *testing.T) {
	content, err := os.ReadFile("../versions.lock")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := lock.Parse("versions.lock", content)
	if err != nil {
		t.Fatal(err)
	}
	if len(parsed.Components) != 1 || parsed.Components[0].Name != "gov-native" {
		t.Fatalf("the components are %+v", parsed.Components)
	}
	for _, folder := range []string{"manifests", "site/gov-native"} {
		objects := render(t, folder)
		for _, finding := range lint.Check(objects, lint.Options{Known: []string{"Namespace " + namespace}}) {
			t.Errorf("%s: %s: %s", folder, finding.Severity, finding)
		}
		var kinds []string
		for _, object := range objects {
			kinds = append(kinds, object.GetKind()+" "+object.GetName())
		}
		slices.Sort(kinds)
		if diff := cmp.Diff([]string{
			"ConfigMap gov-native", "Deployment gov-native", "Ingress gov-native", "NetworkPolicy gov-native",
			"PersistentVolumeClaim data", "PodDisruptionBudget gov-native", "Service gov-native",
		}, kinds); diff != "" {
			t.Errorf("%s: the objects (-want +are):\n%s", folder, diff)
		}
		deployment := decode[appsv1.Deployment](t, objects, "Deployment", "gov-native")
		container := deployment.Spec.Template.Spec.Containers[0]
		if container.Image != reference(parsed.Components[0].Version) {
			t.Errorf("%s: the image is %s; that of the lock's version is %s", folder, container.Image,
				reference(parsed.Components[0].Version))
		}
		if *deployment.Spec.Replicas != 2 || container.ReadinessProbe.HTTPGet.Path != "/healthz" {
			t.Errorf("%s: %d replicas, ready by %s", folder, *deployment.Spec.Replicas, container.ReadinessProbe.HTTPGet.Path)
		}
		restricted(t, deployment.Spec.Template.Spec)
		claim := decode[corev1.PersistentVolumeClaim](t, objects, "PersistentVolumeClaim", "data")
		if claim.Annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s: the records go with the release", folder)
		}
		want := map[string]string{"manifests": "", "site/gov-native": "Town hall"}[folder]
		if data := decode[corev1.ConfigMap](t, objects, "ConfigMap", "gov-native").Data; data["SITE"] != want ||
			data["DATA_LIMIT"] == "" {
			t.Errorf("%s: the settings are %v", folder, data)
		}
	}
}

// restricted checks what Pod Security's level "restricted" asks for, and a root file system that cannot be written to.
func restricted(t *testing.T, spec corev1.PodSpec) {
	t.Helper()
	pod := spec.SecurityContext
	if !*pod.RunAsNonRoot || *pod.RunAsUser != user || pod.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod runs as %+v", pod)
	}
	for _, container := range spec.Containers {
		c := container.SecurityContext
		if *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || c.Privileged != nil ||
			!slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(c.Capabilities.Add) > 0 {
			t.Errorf("%s runs as %+v", container.Name, c)
		}
	}
	if spec.HostNetwork || spec.HostPID || spec.HostIPC || slices.ContainsFunc(spec.Volumes,
		func(v corev1.Volume) bool { return v.HostPath != nil }) {
		t.Error("the pod has a part of the host")
	}
}
