package workload

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liteboxd/boxlift/install/site"
)

// Parts of k3s, as its setting "disable" calls them.
const (
	PartTraefik      = "traefik"
	partLocalStorage = "local-storage"
)

// NeedsPart reports whether any object is nothing without a part of k3s.
func NeedsPart(objects []*unstructured.Unstructured, part string) bool {
	return slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return neededPart(o) == part })
}

// CheckParts makes sure that install.yaml leaves those parts of k3s on that objects need. way is where an object can be
// changed otherwise.
func CheckParts(objects []*unstructured.Unstructured, disabled []string, way string) error {
	for _, o := range objects {
		if part := neededPart(o); part != "" && slices.Contains(disabled, part) {
			return fmt.Errorf("%w: the %s %s needs k3s' %s, which install.yaml turns off: leave it on, or change the "+
				"object with %s", site.ErrConfig, o.GetKind(), o.GetName(), part, way)
		}
	}
	return nil
}

// neededPart is the part of k3s that an object is nothing without, or "".
func neededPart(o *unstructured.Unstructured) string {
	ingressClass, _, _ := unstructured.NestedString(o.Object, "spec", "ingressClassName")
	storageClass, _, _ := unstructured.NestedString(o.Object, "spec", "storageClassName")
	switch {
	case ingressClass == "traefik", strings.HasPrefix(o.GetAPIVersion(), "traefik.io/"):
		return PartTraefik
	case storageClass == "local-path":
		return partLocalStorage
	}
	return ""
}
