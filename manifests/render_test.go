package manifests_test

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/manifests"
)

var update = flag.Bool("update", false, "write the golden files")

// parameters are a site's that has said nothing: only the bundle's images are set.
func parameters() manifests.Parameters {
	return manifests.Parameters{
		Images: manifests.Images{
			API:     "registry.lan/liteboxd/server:v1.2.3",
			Gateway: "registry.lan/liteboxd/gateway:v1.2.3",
			Web:     "registry.lan/liteboxd/web:v1.2.3",
			Helper:  "docker.io/library/ubuntu:24.04",
		},
		SandboxResources: true,
	}
}

func render(t *testing.T, site fs.FS, change func(*manifests.Parameters)) *manifests.Rendered {
	t.Helper()
	r, err := try(site, change)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func try(site fs.FS, change func(*manifests.Parameters)) (*manifests.Rendered, error) {
	p := parameters()
	if change != nil {
		change(&p)
	}
	return manifests.Render(manifests.Overlay{Bases: manifests.Embedded(), Site: site, Parameters: p})
}

func rename(p *manifests.Parameters) {
	p.SystemNamespace, p.SandboxNamespace = "prod-control", "prod-boxes"
	p.Host, p.GatewayHost = "boxes.example.lan", "sandbox.example.lan"
}

var renderings = []struct {
	name   string
	site   string
	change func(*manifests.Parameters)
}{
	{name: "default"},
	{name: "one-host", change: func(p *manifests.Parameters) { p.GatewayHost, p.Host = "boxes.lan", "boxes.lan" }},
	{name: "renamed", change: rename},
	{name: "no-sandbox", change: func(p *manifests.Parameters) { p.SandboxResources = false }},
	{name: "parameters", change: func(p *manifests.Parameters) {
		p.StorageClass, p.GatewayReplicas, p.MetadataRetentionDays = "longhorn", 4, 30
		p.ShutdownTimeout, p.TerminationGrace = 10*time.Minute, 30*time.Minute
		p.EncryptionKeyID, p.GatewayURL = "true", "https://gateway.liteboxd.local:8443/"
		p.Images.API = "registry.lan/liteboxd/server@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	}},
	{name: "patches", site: "patches"},
	{name: "kustomization", site: "kustomization"},
}

func site(name string) fs.FS {
	if name == "" {
		return nil
	}
	return os.DirFS(filepath.Join("testdata", "sites", name))
}

func TestRender(t *testing.T) {
	for _, c := range renderings {
		t.Run(c.name, func(t *testing.T) {
			got := render(t, site(c.site), c.change).YAML()
			golden := filepath.Join("testdata", c.name+".golden")
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
				t.Errorf("go test -update rewrites it (-want +got):\n%s", diff)
			}
		})
	}
}

// The same overlay gives the same bytes, from the embedded bases and from a bundle's copy.
func TestRenderRepeats(t *testing.T) {
	packed, err := manifests.Pack(manifests.Embedded())
	if err != nil {
		t.Fatal(err)
	}
	bases, err := manifests.Unpack(packed)
	if err != nil {
		t.Fatal(err)
	}
	first := render(t, site("patches"), nil).YAML()
	again, err := manifests.Render(manifests.Overlay{Bases: bases, Site: site("patches"), Parameters: parameters()})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(first), string(again.YAML())); diff != "" {
		t.Errorf("(-embedded +packed):\n%s", diff)
	}
}

// Concurrent runs do not disturb each other: kustomize keeps its schema in a variable.
func TestRenderConcurrently(t *testing.T) {
	want := render(t, site("kustomization"), nil).YAML()
	results := make(chan []byte)
	for range 4 {
		go func() {
			r, err := try(site("kustomization"), nil)
			if err != nil {
				results <- []byte(err.Error())
				return
			}
			results <- r.YAML()
		}()
	}
	for range 4 {
		if got := <-results; !bytes.Equal(got, want) {
			t.Errorf("differs:\n%s", cmp.Diff(string(want), string(got)))
		}
	}
}

func names(objects []*unstructured.Unstructured) []string {
	var all []string
	for _, object := range objects {
		all = append(all, manifests.Name(object))
	}
	return all
}

func TestInventory(t *testing.T) {
	r := render(t, nil, nil)
	system := []string{
		"Namespace liteboxd-system",
		"ServiceAccount liteboxd-system/liteboxd-api",
		"ServiceAccount liteboxd-system/liteboxd-gateway",
		"ServiceAccount liteboxd-system/liteboxd-network-controller",
		"ClusterRole liteboxd-api",
		"ClusterRoleBinding liteboxd-api",
		"ConfigMap liteboxd-system/liteboxd-config",
		"Service liteboxd-system/liteboxd-api",
		"Service liteboxd-system/liteboxd-gateway",
		"Service liteboxd-system/liteboxd-web",
		"PersistentVolumeClaim liteboxd-system/liteboxd-api-data",
		"Deployment liteboxd-system/liteboxd-api",
		"Deployment liteboxd-system/liteboxd-gateway",
		"Deployment liteboxd-system/liteboxd-network-controller",
		"Deployment liteboxd-system/liteboxd-web",
		"PodDisruptionBudget liteboxd-system/liteboxd-api",
		"PodDisruptionBudget liteboxd-system/liteboxd-gateway",
		"Ingress liteboxd-system/liteboxd",
		"Middleware liteboxd-system/liteboxd-retry",
	}
	sandbox := []string{
		"Namespace liteboxd-sandbox",
		"Role liteboxd-sandbox/liteboxd-api",
		"Role liteboxd-sandbox/liteboxd-gateway",
		"Role liteboxd-sandbox/liteboxd-network-controller",
		"RoleBinding liteboxd-sandbox/liteboxd-api",
		"RoleBinding liteboxd-sandbox/liteboxd-gateway",
		"RoleBinding liteboxd-sandbox/liteboxd-network-controller",
		"NetworkPolicy liteboxd-sandbox/allow-dns",
		"NetworkPolicy liteboxd-sandbox/allow-gateway-ingress",
		"NetworkPolicy liteboxd-sandbox/allow-gateway-ingress-web",
		"NetworkPolicy liteboxd-sandbox/allow-internet-egress",
		"NetworkPolicy liteboxd-sandbox/default-deny-all",
		"NetworkPolicy liteboxd-sandbox/deny-k8s-api",
	}
	if diff := cmp.Diff(system, names(r.System)); diff != "" {
		t.Errorf("system (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(sandbox, names(r.Sandbox)); diff != "" {
		t.Errorf("sandbox (-want +got):\n%s", diff)
	}
	all := names(r.Objects())
	for _, pair := range [][2]string{
		{"Namespace liteboxd-sandbox", "Role liteboxd-sandbox/liteboxd-api"},
		{"RoleBinding liteboxd-sandbox/liteboxd-network-controller", "Deployment liteboxd-system/liteboxd-network-controller"},
		{"PersistentVolumeClaim liteboxd-system/liteboxd-api-data", "Deployment liteboxd-system/liteboxd-api"},
	} {
		if slices.Index(all, pair[0]) < 0 || slices.Index(all, pair[0]) > slices.Index(all, pair[1]) {
			t.Errorf("%s does not come before %s in %q", pair[0], pair[1], all)
		}
	}
}

// A namespace, host or image that is replaced is replaced everywhere.
func TestNothingLeft(t *testing.T) {
	for name, rest := range map[string]fs.FS{"bases": nil, "with patches": fstest.MapFS{
		"system/patches/a.yaml": {Data: []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mine}\n")},
	}} {
		t.Run(name, func(t *testing.T) {
			rendered := string(render(t, rest, rename).YAML())
			for _, old := range []string{"liteboxd-system", "liteboxd-sandbox", "liteboxd.local", "boxlift.invalid", "placeholder", "parameters"} {
				for _, line := range strings.Split(rendered, "\n") {
					if strings.Contains(line, old) {
						t.Errorf("%q is left: %s", old, line)
					}
				}
			}
			for _, reference := range []string{
				"kubernetes.io/metadata.name: prod-control", "prod-control-liteboxd-retry@kubernetescrd",
				"CONTROL_NAMESPACE: prod-control", "SANDBOX_NAMESPACE: prod-boxes", "GATEWAY_URL: http://sandbox.example.lan",
			} {
				if !strings.Contains(rendered, reference) {
					t.Errorf("%q is missing", reference)
				}
			}
		})
	}
}

// Subjects are the one kind of reference that nobody misses until a program is refused.
func TestSubjects(t *testing.T) {
	count := 0
	for _, object := range render(t, nil, rename).Objects() {
		subjects, _, err := unstructured.NestedSlice(object.Object, "subjects")
		if err != nil {
			t.Fatal(err)
		}
		for _, subject := range subjects {
			count++
			if got := subject.(map[string]any)["namespace"]; got != "prod-control" {
				t.Errorf("%s: a subject in %v", manifests.Name(object), got)
			}
		}
	}
	if count != 4 {
		t.Errorf("%d subjects, want 4", count)
	}
}

func TestImages(t *testing.T) {
	got := render(t, site("patches"), func(p *manifests.Parameters) { p.SandboxResources = false }).Images()
	want := []manifests.ImageUse{
		{Image: "docker.io/library/ubuntu:24.04", Object: "ConfigMap liteboxd-system/liteboxd-config", Container: "PERSISTENT_ROOTFS_HELPER_IMAGE"},
		{Image: "registry.lan/tools/backup:3", Object: "ConfigMap liteboxd-system/site-notes", Container: "BACKUP_IMAGE"},
		{Image: "registry.lan/liteboxd/server:v1.2.3", Object: "Deployment liteboxd-system/liteboxd-api", Container: "api"},
		{Image: "registry.lan/liteboxd/gateway:v1.2.3", Object: "Deployment liteboxd-system/liteboxd-gateway", Container: "gateway"},
		{Image: "registry.lan/liteboxd/server:v1.2.3", Object: "Deployment liteboxd-system/liteboxd-network-controller", Container: "network-controller"},
		{Image: "registry.lan/liteboxd/web:site", Object: "Deployment liteboxd-system/liteboxd-web", Container: "web"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Images are found wherever Kubernetes would pull one.
func TestImagesEverywhere(t *testing.T) {
	got := render(t, fstest.MapFS{"system/patches/a.yaml": {Data: []byte(`
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  jobTemplate:
    spec:
      template:
        spec:
          initContainers: [{name: first, image: "r.lan/first:1"}]
          containers: [{name: second, image: "r.lan/second:1", env: [{name: TOOL_IMAGE, value: "r.lan/third:1"}, {name: OTHER, value: "r.lan/not:1"}]}]
          volumes: [{name: model, image: {reference: "r.lan/fourth:1"}}]
---
apiVersion: example.lan/v1
kind: Database
metadata: {name: custom}
spec: {pods: {containers: [{name: db, image: "r.lan/fifth:1"}]}}
`)}}, nil).Images()
	var found []string
	for _, use := range got {
		if strings.HasPrefix(use.Image, "r.lan/") {
			found = append(found, use.Object+" "+use.Container+" "+use.Image)
		}
	}
	want := []string{
		"Database liteboxd-system/custom db r.lan/fifth:1",
		"CronJob liteboxd-system/nightly first r.lan/first:1",
		"CronJob liteboxd-system/nightly second r.lan/second:1",
		"CronJob liteboxd-system/nightly TOOL_IMAGE r.lan/third:1",
		"CronJob liteboxd-system/nightly model r.lan/fourth:1",
	}
	slices.Sort(want)
	slices.Sort(found)
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func one[T any](t *testing.T, r *manifests.Rendered, name string) *T {
	t.Helper()
	for _, object := range r.Objects() {
		if manifests.Name(object) != name {
			continue
		}
		typed := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
			t.Fatal(err)
		}
		return typed
	}
	t.Fatalf("there is no %s", name)
	return nil
}

// Requests go where they belong by each of the ways in which controllers choose among paths:
// the longest rule (Traefik, comparing letters), the longest path by segments (Kubernetes'
// own words), and the first that matches.
func TestRoutes(t *testing.T) {
	hosts := map[string]func(*manifests.Parameters){
		"two hosts": func(p *manifests.Parameters) { p.Host, p.GatewayHost = "box.lan", "gateway.box.lan" },
		"one host":  func(p *manifests.Parameters) { p.Host, p.GatewayHost = "box.lan", "box.lan" },
	}
	for name, change := range hosts {
		t.Run(name, func(t *testing.T) {
			ingress := one[networkingv1.Ingress](t, render(t, nil, change), "Ingress liteboxd-system/liteboxd")
			gateway := ingress.Spec.Rules[0].Host
			for _, c := range []struct{ host, path, want string }{
				{gateway, "/api/v1/sandbox", "liteboxd-gateway"},
				{gateway, "/api/v1/sandbox/", "liteboxd-gateway"},
				{gateway, "/api/v1/sandbox/abc/port/3000/x", "liteboxd-gateway"},
				{"box.lan", "/api/v1/sandboxes", "liteboxd-api"},
				{"box.lan", "/api/v1/sandboxes/abc/exec", "liteboxd-api"},
				{"box.lan", "/api/v1/auth/login", "liteboxd-api"},
				{"box.lan", "/api/v1", "liteboxd-api"},
				{"box.lan", "/", "liteboxd-web"},
				{"box.lan", "/assets/index.js", "liteboxd-web"},
				{"elsewhere.lan", "/", ""},
			} {
				for way, choose := range map[string]func(host, path string, rules []networkingv1.IngressRule) string{"letters": longestRule, "segments": longestPath, "first": firstMatch} {
					if got := choose(c.host, c.path, ingress.Spec.Rules); got != c.want {
						t.Errorf("%s%s goes to %q by %s, want %q", c.host, c.path, got, way, c.want)
					}
				}
			}
		})
	}
}

func choose(host, path string, rules []networkingv1.IngressRule, matches func(path string, p networkingv1.HTTPIngressPath) bool, better func(a, b networkingv1.HTTPIngressPath) bool) string {
	var best *networkingv1.HTTPIngressPath
	for _, rule := range rules {
		for _, p := range rule.HTTP.Paths {
			if rule.Host == host && matches(path, p) && (best == nil || better(p, *best)) {
				best = &p
			}
		}
	}
	if best == nil {
		return ""
	}
	return best.Backend.Service.Name
}

func byLetters(path string, p networkingv1.HTTPIngressPath) bool {
	return path == p.Path || *p.PathType == networkingv1.PathTypePrefix && strings.HasPrefix(path, p.Path)
}

func bySegments(path string, p networkingv1.HTTPIngressPath) bool {
	if *p.PathType == networkingv1.PathTypeExact {
		return path == p.Path
	}
	prefix := strings.TrimSuffix(p.Path, "/")
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

func longestRule(host, path string, rules []networkingv1.IngressRule) string {
	length := func(p networkingv1.HTTPIngressPath) int {
		if *p.PathType == networkingv1.PathTypeExact {
			return len("Path(``)") + len(p.Path)
		}
		return len("PathPrefix(``)") + len(p.Path)
	}
	return choose(host, path, rules, byLetters, func(a, b networkingv1.HTTPIngressPath) bool { return length(a) > length(b) })
}

func longestPath(host, path string, rules []networkingv1.IngressRule) string {
	return choose(host, path, rules, bySegments, func(a, b networkingv1.HTTPIngressPath) bool { return len(a.Path) > len(b.Path) })
}

func firstMatch(host, path string, rules []networkingv1.IngressRule) string {
	return choose(host, path, rules, byLetters, func(_, _ networkingv1.HTTPIngressPath) bool { return false })
}

// Pods are replaced when what they take from the ConfigMap changes, and only then.
func TestConfigDigest(t *testing.T) {
	digests := func(site fs.FS, change func(*manifests.Parameters)) map[string]string {
		found := map[string]string{}
		for _, object := range render(t, site, change).System {
			if object.GetKind() != "Deployment" {
				continue
			}
			digest, _, err := unstructured.NestedString(object.Object, "spec", "template", "metadata", "annotations", manifests.DigestAnnotation)
			if err != nil {
				t.Fatal(err)
			}
			found[object.GetName()] = digest
		}
		return found
	}
	plain := digests(nil, nil)
	if plain["liteboxd-web"] != "" {
		t.Error("web takes nothing from the ConfigMap and has a digest")
	}
	for _, name := range []string{"liteboxd-api", "liteboxd-gateway", "liteboxd-network-controller"} {
		if len(plain[name]) != 64 {
			t.Errorf("%s has digest %q", name, plain[name])
		}
	}
	image := func(p *manifests.Parameters) { p.Images.Web = "registry.lan/liteboxd/web:v9" }
	if diff := cmp.Diff(plain, digests(nil, image)); diff != "" {
		t.Errorf("another image changes the digest (-before +after):\n%s", diff)
	}
	for name, got := range map[string]map[string]string{
		"values.env": digests(fstest.MapFS{"values.env": {Data: []byte("LOG_LEVEL=debug\n")}}, nil),
		"parameter":  digests(nil, func(p *manifests.Parameters) { p.MetadataRetentionDays = 8 }),
		"username":   digests(nil, func(p *manifests.Parameters) { p.AdminUsername = "root" }),
	} {
		if got["liteboxd-api"] == plain["liteboxd-api"] {
			t.Errorf("%s: the digest is the same", name)
		}
	}
}

func TestParameters(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*manifests.Parameters)
		want   string
	}{
		{"namespace", func(p *manifests.Parameters) { p.SystemNamespace = "Not_A_Name" }, "parameter SystemNamespace"},
		{"cluster's namespace", func(p *manifests.Parameters) { p.SandboxNamespace = "kube-system" }, "parameter SandboxNamespace"},
		{"one namespace", func(p *manifests.Parameters) { p.SystemNamespace, p.SandboxNamespace = "same", "same" }, "another one than SystemNamespace"},
		{"host", func(p *manifests.Parameters) { p.Host = "http://box.lan" }, "parameter Host"},
		{"gateway host", func(p *manifests.Parameters) { p.GatewayHost = "box.lan:80" }, "parameter GatewayHost"},
		{"gateway URL", func(p *manifests.Parameters) { p.GatewayURL = "box.lan" }, "parameter GatewayURL"},
		{"gateway URL query", func(p *manifests.Parameters) { p.GatewayURL = "http://box.lan/?x" }, "parameter GatewayURL"},
		{"no image", func(p *manifests.Parameters) { p.Images.Helper = "" }, "parameter Images.Helper"},
		{"incomplete image", func(p *manifests.Parameters) { p.Images.Web = "web:1" }, "parameter Images.Web"},
		{"latest", func(p *manifests.Parameters) { p.Images.API = "registry.lan/liteboxd/server:latest" }, "parameter Images.API"},
		{"storage class", func(p *manifests.Parameters) { p.StorageClass = "a b" }, "parameter StorageClass"},
		{"replicas", func(p *manifests.Parameters) { p.GatewayReplicas = -1 }, "parameter GatewayReplicas"},
		{"timeout", func(p *manifests.Parameters) { p.ShutdownTimeout = 1500 * time.Millisecond }, "parameter ShutdownTimeout"},
		{"grace", func(p *manifests.Parameters) { p.TerminationGrace = 246 * time.Second }, "from 4m7s (5s of preStop, 2s, and twice ShutdownTimeout"},
		{"retention", func(p *manifests.Parameters) { p.MetadataRetentionDays = -1 }, "parameter MetadataRetentionDays"},
		{"key", func(p *manifests.Parameters) { p.EncryptionKeyID = "a b" }, "parameter EncryptionKeyID"},
		{"user", func(p *manifests.Parameters) { p.AdminUsername = "a\nb" }, "parameter AdminUsername"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := try(nil, c.change)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if errors.Is(err, manifests.ErrSite) || errors.Is(err, manifests.ErrInvalid) {
				t.Errorf("%v blames somebody else", err)
			}
		})
	}
	t.Run("shortest grace", func(t *testing.T) {
		render(t, nil, func(p *manifests.Parameters) { p.TerminationGrace = 247 * time.Second })
	})
	t.Run("grace follows", func(t *testing.T) {
		api := one[appsv1.Deployment](t, render(t, nil, func(p *manifests.Parameters) { p.ShutdownTimeout = 1000 * time.Second }), "Deployment liteboxd-system/liteboxd-api")
		if got := *api.Spec.Template.Spec.TerminationGracePeriodSeconds; got != 2007 {
			t.Errorf("grace is %d s, want 2007", got)
		}
	})
}
