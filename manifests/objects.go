package manifests

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/kyaml/resid"
	"sigs.k8s.io/yaml"
)

// Objects returns the objects of both parts in the order of application: namespaces first, and
// everything that a kind needs before it.
func (r *Rendered) Objects() []*unstructured.Unstructured {
	all := slices.Concat(r.System, r.Sandbox)
	sortObjects(all)
	return all
}

// YAML returns Objects as YAML documents. The same objects give the same bytes.
func (r *Rendered) YAML() []byte { return YAML(r.Objects()) }

// YAML returns objects as YAML documents, in their order. The same objects give the same bytes.
func YAML(objects []*unstructured.Unstructured) []byte {
	var out bytes.Buffer
	for i, object := range objects {
		data, err := yaml.Marshal(object.Object)
		if err != nil {
			panic(err) // they were made from JSON
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(data)
	}
	return out.Bytes()
}

// ImageUse is one place where an image is named.
type ImageUse struct {
	Image     string // as it is written there
	Object    string // "Deployment liteboxd-system/liteboxd-api"
	Container string // "api": a container, an image volume, or the variable that holds the image
}

// Images returns every image that the objects name, in the order of Objects.
func (r *Rendered) Images() []ImageUse { return ImagesOf(r.Objects()) }

// ImagesOf returns every image that objects name, in their order: containers of pods and of
// whatever has pods' templates, image volumes, and variables that are called …_IMAGE, in
// containers' environments and in ConfigMaps, but for those that hold a switch, a number or no name. The objects may
// be of any content, numbers of any type among it.
func ImagesOf(objects []*unstructured.Unstructured) []ImageUse {
	var all []ImageUse
	for _, object := range objects {
		all = append(all, imagesOf(object)...)
	}
	return all
}

func imagesOf(object *unstructured.Unstructured) []ImageUse {
	var all []ImageUse
	use := func(image, where string) {
		if image != "" {
			all = append(all, ImageUse{image, Name(object), where})
		}
	}
	if object.GetKind() == "ConfigMap" {
		data, _ := object.Object["data"].(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(data)) {
			if image, _ := data[key].(string); isImageVariable(key) && isImage(image) {
				use(image, key)
			}
		}
		return all
	}
	err := walkContainers(object.Object, func(container map[string]any) error {
		name, _ := container["name"].(string)
		image, _ := container["image"].(string)
		use(image, name)
		env, _ := container["env"].([]any)
		for _, one := range env {
			variable, _ := one.(map[string]any)
			key, _ := variable["name"].(string)
			if value, _ := variable["value"].(string); isImageVariable(key) && isImage(value) {
				use(value, key)
			}
		}
		return nil
	})
	if err != nil {
		panic(err) // it comes from the function above
	}
	walkLists(object.Object, []string{"volumes"}, func(volume map[string]any) {
		name, _ := volume["name"].(string)
		image, _ := volume["image"].(map[string]any)
		reference, _ := image["reference"].(string)
		use(reference, name)
	})
	return all
}

func isImageVariable(name string) bool { return strings.HasSuffix(name, "_IMAGE") }

// walkContainers gives every container to use, wherever it is: custom resources have pods'
// templates too.
func walkContainers(value any, use func(container map[string]any) error) error {
	var first error
	walkLists(value, []string{"containers", "initContainers", "ephemeralContainers"}, func(container map[string]any) {
		if err := use(container); first == nil {
			first = err
		}
	})
	return first
}

// walkLists gives the objects in all lists of certain names to use, in a stable order.
func walkLists(value any, names []string, use func(map[string]any)) {
	switch value := value.(type) {
	case []any:
		for _, v := range value {
			walkLists(v, names, use)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if list, ok := value[key].([]any); ok && slices.Contains(names, key) {
				for _, one := range list {
					if m, ok := one.(map[string]any); ok {
						use(m)
					}
				}
			}
			walkLists(value[key], names, use)
		}
	}
}

// Name is how an object is called in messages: "Deployment liteboxd-system/liteboxd-api", or
// "Namespace liteboxd-system" outside namespaces.
func Name(object *unstructured.Unstructured) string {
	if object.GetNamespace() == "" {
		return object.GetKind() + " " + object.GetName()
	}
	return object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
}

func identity(object *unstructured.Unstructured) string {
	return object.GroupVersionKind().Group + " " + Name(object)
}

func find(objects []*unstructured.Unstructured, kind, namespace, name string) *unstructured.Unstructured {
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == kind && o.GetNamespace() == namespace && o.GetName() == name
	})
	if i < 0 {
		return nil
	}
	return objects[i]
}

func sortObjects(objects []*unstructured.Unstructured) {
	kind := func(o *unstructured.Unstructured) resid.Gvk {
		k := o.GroupVersionKind()
		return resid.NewGvk(k.Group, k.Version, k.Kind)
	}
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
		switch x, y := kind(a), kind(b); {
		case x.IsLessThan(y):
			return -1
		case y.IsLessThan(x):
			return 1
		}
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}

// mergeHosts makes one rule of an Ingress' rules for the same host, in their order. Several
// are allowed, but controllers disagree on what they mean.
func mergeHosts(objects []*unstructured.Unstructured) {
	for _, object := range objects {
		rules, _, _ := unstructured.NestedSlice(object.Object, "spec", "rules")
		if object.GetKind() != "Ingress" || len(rules) < 2 {
			continue
		}
		var merged []any
		first := map[string]map[string]any{}
		for _, rule := range rules {
			m, _ := rule.(map[string]any)
			host, _ := m["host"].(string)
			earlier := first[host]
			if earlier == nil {
				first[host] = m
				merged = append(merged, rule)
				continue
			}
			paths, _, _ := unstructured.NestedSlice(earlier, "http", "paths")
			more, _, _ := unstructured.NestedSlice(m, "http", "paths")
			if err := unstructured.SetNestedSlice(earlier, append(paths, more...), "http", "paths"); err != nil {
				return // not what an Ingress looks like: the cluster will say so
			}
		}
		_ = unstructured.SetNestedSlice(object.Object, merged, "spec", "rules")
	}
}

// Traefik's annotation for the entry points of an Ingress, and what k3s' Traefik calls them.
const (
	entryPoints       = "traefik.ingress.kubernetes.io/router.entrypoints"
	plainEntryPoint   = "web"
	encryptedAlsoOpen = "web,websecure"
)

// serveTLS has Traefik serve the Ingresses that are for these names alone with TLS, too. One for which the site's
// folder says that already stays as it is.
func serveTLS(objects []*unstructured.Unstructured, names []string) {
	for _, object := range objects {
		class, _, _ := unstructured.NestedString(object.Object, "spec", "ingressClassName")
		_, said, _ := unstructured.NestedSlice(object.Object, "spec", "tls")
		rules, _, _ := unstructured.NestedSlice(object.Object, "spec", "rules")
		if object.GetKind() != "Ingress" || class != "traefik" || said || len(rules) == 0 {
			continue
		}
		var hosts []any
		for _, rule := range rules {
			m, _ := rule.(map[string]any)
			if host, _ := m["host"].(string); slices.Contains(names, host) {
				hosts = append(hosts, host)
			}
		}
		if len(hosts) < len(rules) {
			continue
		}
		tls := []any{map[string]any{"hosts": hosts, "secretName": IngressSecret}}
		_ = unstructured.SetNestedSlice(object.Object, tls, "spec", "tls") // it is an object
		annotations := object.GetAnnotations()
		if annotations[entryPoints] == plainEntryPoint {
			// The second one of k3s' Traefik has TLS by itself.
			annotations[entryPoints] = encryptedAlsoOpen
			object.SetAnnotations(annotations)
		}
	}
}

// annotateDigest marks the pods that take their environment from config with what they take.
func annotateDigest(objects []*unstructured.Unstructured, config *unstructured.Unstructured, username string) {
	data, _, _ := unstructured.NestedStringMap(config.Object, "data")
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(data)) {
		fmt.Fprintf(h, "%q=%q\n", key, data[key])
	}
	fmt.Fprintf(h, "administrator %q\n", username)
	digest := hex.EncodeToString(h.Sum(nil))
	for _, object := range objects {
		if slices.Contains(rolling, object.GetKind()) && takes(object, config.GetName()) {
			// A template that takes a ConfigMap is an object, so this cannot fail.
			_ = unstructured.SetNestedField(object.Object, digest, "spec", "template", "metadata", "annotations",
				DigestAnnotation)
		}
	}
}

// takes reports whether an object's containers have a ConfigMap, or one of its keys, as environment.
func takes(object *unstructured.Unstructured, config string) bool {
	found := false
	template, _, _ := unstructured.NestedMap(object.Object, "spec", "template")
	walkLists(template, []string{"env", "envFrom"}, func(source map[string]any) {
		whole, _, _ := unstructured.NestedString(source, "configMapRef", "name")
		one, _, _ := unstructured.NestedString(source, "valueFrom", "configMapKeyRef", "name")
		found = found || whole == config || one == config
	})
	return found
}
