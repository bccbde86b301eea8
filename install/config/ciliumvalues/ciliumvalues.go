// Package ciliumvalues reads the values of Cilium's chart that install.yaml has, and knows which of them boxlift sets
// itself.
package ciliumvalues

import (
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/install/config/values"
)

// Read reads the values, see [values.Read], and warns of those that take the place of boxlift's own.
func Read(n schema.Node) map[string]any {
	return values.Read(n, "a key of Cilium's values", warnOfOverride)
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
