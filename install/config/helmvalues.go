package config

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Helm values are bounded as everything else is: they travel in every release that the
// cluster keeps.
const (
	maxValuesDepth = 20
	maxValuesSize  = 64 << 10 // bytes of all keys and texts, after ${NAME} is replaced
)

var valuesKey = regexp.MustCompile(`^[^\x00-\x1f\x7f]{1,253}$`)

// helmValues reads a mapping of anything: mappings become map[string]any, lists []any,
// scalars string, bool, int64, float64 or nil.
func (d *decoder) helmValues(n node) map[string]any {
	if n.schema != nil {
		n.schema.Type = "object"
		return nil
	}
	if n.yaml.Kind != yaml.MappingNode {
		if n.usable("a mapping") {
			n.fail("found %s, expected a mapping", n.kind())
		}
		return nil
	}
	size := 0
	values, _ := n.value("", 0, &size).(map[string]any)
	if size > maxValuesSize {
		n.fail("found more than %d KiB of values, expected less", maxValuesSize>>10)
	}
	if len(values) == 0 {
		return nil
	}
	return values
}

// value reads one value; key is the way to it from the top of the values.
func (n node) value(key string, depth int, size *int) any {
	if *size > maxValuesSize {
		return nil
	}
	if depth > maxValuesDepth {
		n.fail("found more than %d mappings and lists inside each other, expected fewer", maxValuesDepth)
		return nil
	}
	if key != "" {
		n.warnOfOverride(key)
	}
	switch {
	case n.yaml.Kind == yaml.MappingNode:
		result := map[string]any{}
		n.entries("a key of Cilium's values", valuesKey, func(k string, _, v node) {
			*size += len(k)
			result[k] = v.value(join(key, k), depth+1, size)
		})
		return result
	case n.yaml.Kind == yaml.SequenceNode:
		result := []any{}
		n.list(func(_ int, item node) { result = append(result, item.value(key+"[]", depth+1, size)) })
		return result
	case n.yaml.Kind == yaml.ScalarNode && n.yaml.Tag == "!!null" && n.yaml.Anchor == "" && n.yaml.Style&yaml.TaggedStyle == 0:
		return nil // for Helm: without the chart's default
	case n.yaml.Kind == yaml.ScalarNode && n.yaml.Tag == "!!float" && n.yaml.Anchor == "":
		// 1.10 would become 1.1: only what stays as it is written may be a number.
		f, err := strconv.ParseFloat(n.yaml.Value, 64)
		if err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) && strconv.FormatFloat(f, 'f', -1, 64) == n.yaml.Value {
			return f
		}
	}
	v, _ := n.plain(anyText, "text, a number, true or false, a list or a mapping")
	if s, ok := v.(string); ok {
		*size += len(s)
	}
	return v
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
func (n node) warnOfOverride(key string) {
	parts := strings.Split(key, ".")
	last := parts[len(parts)-1]
	switch {
	case overrides[key] != "":
		n.warn("takes the place of boxlift's own value: %s", overrides[key])
	case last == "useDigest":
		n.warn("takes the place of boxlift's own value: boxlift sets it to false, because not every k3s finds the bundle's images by digest")
	case len(parts) > 1 && parts[len(parts)-2] == "image" && slices.Contains(imageKeys, last):
		n.warn("chooses another image: hosts have only the images of the bundle, and get others only from a registry that they reach")
	}
}
