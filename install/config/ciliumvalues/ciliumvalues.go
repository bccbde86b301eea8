// Package ciliumvalues reads the values of Cilium's chart that install.yaml has: a mapping of anything, in bounded
// room.
package ciliumvalues

import (
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// Helm values are bounded as everything else is: they travel in every release that the
// cluster keeps.
const (
	maxValuesDepth = 20
	maxValuesSize  = 64 << 10 // bytes of all keys and texts, after ${NAME} is replaced
)

var valuesKey = lazyregexp.New(`^[^\x00-\x1f\x7f]{1,253}$`)

// Read reads a mapping of anything: mappings become map[string]any, lists []any,
// scalars string, bool, int64, float64 or nil.
func Read(n schema.Node) map[string]any {
	if n.Describes() {
		n.DescribeAs("object")
		return nil
	}
	if !n.IsMapping() {
		if n.Usable("a mapping") {
			n.Fail("found %s, expected a mapping", n.Kind())
		}
		return nil
	}
	size := 0
	values, _ := value(n, "", 0, &size).(map[string]any)
	if size > maxValuesSize {
		n.Fail("found more than %d KiB of values, expected less", maxValuesSize>>10)
	}
	if len(values) == 0 {
		return nil
	}
	return values
}

// value reads one value; key is the way to it from the top of the values.
func value(n schema.Node, key string, depth int, size *int) any {
	if *size > maxValuesSize {
		return nil
	}
	if depth > maxValuesDepth {
		n.Fail("found more than %d mappings and lists inside each other, expected fewer", maxValuesDepth)
		return nil
	}
	if key != "" {
		warnOfOverride(n, key)
	}
	switch {
	case n.IsMapping():
		result := map[string]any{}
		n.Entries("a key of Cilium's values", valuesKey, func(k string, _, v schema.Node) {
			*size += len(k)
			result[k] = value(v, below(key, k), depth+1, size)
		})
		return result
	case n.IsList():
		result := []any{}
		n.List(func(_ int, item schema.Node) { result = append(result, value(item, key+"[]", depth+1, size)) })
		return result
	case n.IsNothing():
		return nil // for Helm: without the chart's default
	}
	if f, ok := n.Decimal(); ok {
		return f
	}
	v, _ := n.Plain(schema.AnyText, "text, a number, true or false, a list or a mapping")
	if s, ok := v.(string); ok {
		*size += len(s)
	}
	return v
}

// below is the key of a value inside another.
func below(key, inner string) string {
	if key == "" {
		return inner
	}
	return key + "." + inner
}

// overrides are the values that boxlift sets itself, with what to know about them.
var overrides = map[string]string{
	"bpf.masquerade":                           "boxlift sets it: the egress gateway needs it",
	"egressGateway.enabled":                    "boxlift sets it from network.cilium.enableEgressGateway",
	"ipam.mode":                                "boxlift sets it, and the pods' network with it",
	"k8sServiceHost":                           "boxlift sets it to 127.0.0.1, where every node has a way to the API",
	"k8sServicePort":                           "boxlift sets it to 6444, where every node has a way to the API",
	"kubeProxyReplacement":                     "boxlift sets it from network.cilium.kubeProxyReplacement",
	"operator.replicas":                        "boxlift sets it by the number of hosts",
	"upgradeCompatibility":                     "boxlift sets it from the version that was installed first",
	"ipam.operator.clusterPoolIPv4PodCIDRList": "boxlift sets it from network.cilium.podCIDR",
}

// imageKeys are the parts of an image block in Cilium's chart.
var imageKeys = []string{"repository", "tag", "digest", "genericDigest", "override", "suffix"}

// warnOfOverride warns of a value that takes the place of one of boxlift's.
func warnOfOverride(n schema.Node, key string) {
	parts := strings.Split(key, ".")
	last := parts[len(parts)-1]
	switch {
	case overrides[key] != "":
		n.Warn("takes the place of boxlift's own value: %s", overrides[key])
	case last == "useDigest":
		n.Warn("takes the place of boxlift's own value: boxlift sets it to false, because not every k3s finds the " +
			"bundle's images by digest")
	case len(parts) > 1 && parts[len(parts)-2] == "image" && slices.Contains(imageKeys, last):
		n.Warn("chooses another image: hosts have only the images of the bundle, and get others only from a registry " +
			"that they reach")
	}
}
