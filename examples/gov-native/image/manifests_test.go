package main

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"

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

// render makes the objects as boxlift does, and sees to it that plain kustomize makes the same of them. site is the
// folder of a site, or "".
func render(t *testing.T, site string) []*unstructured.Unstructured {
	t.Helper()
	asked := manifests.Workload{Base: os.DirFS("../manifests"), Namespace: namespace}
	tree := filesys.MakeFsInMemory()
	write := func(name, content string) {
		if err := tree.WriteFile(name, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files(t, "../manifests") {
		write(path.Join("/manifests", name), content)
	}
	more := "namespace: " + namespace + "\nresources: [../manifests]\n"
	if site == "" {
		write("/site/kustomization.yaml", more)
	} else {
		asked.Site = os.DirFS(site)
		for name, content := range files(t, site) {
			if name == "kustomization.yaml" {
				content += more
			}
			write(path.Join("/site", name), content)
		}
	}
	objects, err := manifests.RenderWorkload(asked)
	if err != nil {
		t.Fatal(err)
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(tree, "/site")
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]string{}, map[string]string{}
	for _, resource := range made.Resources() {
		want[resource.GetKind()+" "+resource.GetName()] = resource.MustYaml()
	}
	for _, object := range objects {
		content, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		got[object.GetKind()+" "+object.GetName()] = string(content)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("site %q: boxlift makes of it (-plain kustomize +boxlift):\n%s", site, diff)
	}
	return objects
}

// decode finds an object, whose name may end with a digest, as its own type.
func decode[T any](t *testing.T, objects []*unstructured.Unstructured, kind, name string) *T {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() == kind && (object.GetName() == name || strings.HasPrefix(object.GetName(), name+"-")) {
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
	configs := map[string]bool{}
	for site, text := range map[string]string{"": "", "../site/gov-native": "Town hall"} {
		objects := render(t, site)
		for _, finding := range lint.Check(objects, lint.Options{Known: []string{"Namespace " + namespace}}) {
			t.Errorf("site %q: %s: %s", site, finding.Severity, finding)
		}
		var kinds []string
		for _, object := range objects {
			kinds = append(kinds, object.GetKind())
		}
		slices.Sort(kinds)
		if diff := cmp.Diff([]string{
			"ConfigMap", "Deployment", "Ingress", "NetworkPolicy", "PersistentVolumeClaim", "PodDisruptionBudget", "Service",
		}, kinds); diff != "" {
			t.Errorf("site %q: the objects (-want +are):\n%s", site, diff)
		}
		deployment := decode[appsv1.Deployment](t, objects, "Deployment", "gov-native")
		container := deployment.Spec.Template.Spec.Containers[0]
		if want := reference(parsed.Components[0].Version); container.Image != want {
			t.Errorf("site %q: the image is %s; that of the lock's version is %s", site, container.Image, want)
		}
		if *deployment.Spec.Replicas != 2 || container.ReadinessProbe.HTTPGet.Path != "/healthz" {
			t.Errorf("site %q: %d replicas, ready by %s", site, *deployment.Spec.Replicas, container.ReadinessProbe.HTTPGet.Path)
		}
		restricted(t, deployment.Spec.Template.Spec)
		claim := decode[corev1.PersistentVolumeClaim](t, objects, "PersistentVolumeClaim", "data")
		if claim.Annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("site %q: the records go with the release", site)
		}
		config := decode[corev1.ConfigMap](t, objects, "ConfigMap", "gov-native")
		if config.Data["SITE"] != text || config.Data["DATA_LIMIT"] == "" ||
			container.EnvFrom[0].ConfigMapRef.Name != config.Name {
			t.Errorf("site %q: the settings are %v, and the pods take %v", site, config.Data, container.EnvFrom)
		}
		configs[config.Name] = true
	}
	if len(configs) != 2 {
		t.Errorf("a changed setting is not rolled out: ConfigMaps are called %v", configs)
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
