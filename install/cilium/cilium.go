// Package cilium says how Cilium is set up on boxlift's clusters: the values for its Helm
// chart, and what has to run afterwards. It only computes; package kube does the work.
//
// The values are right for k3s without flannel, and with images that came with a bundle.
// They suit the charts of Cilium 1.18 to 1.20.
package cilium

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/internal/printable"
)

// The release's name and namespace, the same as with Cilium's own command line tool.
const (
	ReleaseName = "cilium"
	Namespace   = "kube-system"
)

// k3s has the API on this address of every node, server or agent: on a server it is the API
// server, on an agent k3s' load balancer.
const (
	apiHost = "127.0.0.1"
	apiPort = 6444
)

// Input is what the values depend on.
type Input struct {
	PodCIDR              netip.Prefix // the same as k3s' cluster-cidr
	KubeProxyReplacement bool         // k3s runs without kube-proxy then
	EnableEgressGateway  bool         // needs KubeProxyReplacement
	Nodes                int          // that the cluster has when it is complete
	APIHost              string       // "" is 127.0.0.1
	APIPort              int          // 0 is 6444, k3s' lb-server-port
	// UpgradeCompatibility is the minor version that was installed first, such as "1.18":
	// see FirstMinor.
	UpgradeCompatibility string
	// KeepDigests leaves the digests that the chart gives its images: for clusters whose
	// containerd knows the images by digest too.
	KeepDigests bool
	// Extra are the user's own values. They win.
	Extra map[string]any
}

// Values returns the chart's values. The result shares nothing with Extra.
func Values(in Input) map[string]any {
	if in.APIHost == "" {
		in.APIHost = apiHost
	}
	if in.APIPort == 0 {
		in.APIPort = apiPort
	}
	replicas := 2
	if in.Nodes <= 1 {
		replicas = 1 // they must not share a node
	}
	values := map[string]any{
		// The chart's own pool, 10.0.0.0/8, overlaps many LANs.
		"ipam": map[string]any{"operator": map[string]any{"clusterPoolIPv4PodCIDRList": []any{in.PodCIDR.String()}}},

		"kubeProxyReplacement": in.KubeProxyReplacement,
		// Without kube-proxy the API's service address leads nowhere until Cilium runs.
		"k8sServiceHost": in.APIHost,
		"k8sServicePort": in.APIPort,

		// A change in the configuration takes effect when the pods are made anew.
		"rollOutCiliumPods": true,
		"operator": map[string]any{
			"replicas": replicas, "rollOutPods": true,
			// The operators claim ports of their nodes. With the chart's 50 %, two of them are
			// never replaced while the cluster still has one node: the old one is not ended
			// before a new one runs, which has no place until then.
			"updateStrategy": map[string]any{"rollingUpdate": map[string]any{"maxUnavailable": "100%"}},
		},
		"envoy": map[string]any{"rollOutPods": true},
	}
	if in.EnableEgressGateway {
		values["egressGateway"] = map[string]any{"enabled": true}
		values["bpf"] = map[string]any{"masquerade": true} // it relies on this
	}
	if in.UpgradeCompatibility != "" {
		values["upgradeCompatibility"] = in.UpgradeCompatibility
	}
	if !in.KeepDigests {
		for _, path := range imageBlocks {
			set(values, strings.Split(path, "."), map[string]any{"useDigest": false})
		}
	}
	merge(values, in.Extra)
	return values
}

// fixed are the values that a cluster keeps from when Cilium was installed, with the chart's defaults (Cilium 1.18 to
// 1.20): with others, pods lose their addresses, or each other.
var fixed = []struct{ path, fallback string }{
	{"ipam.mode", "cluster-pool"},
	{"ipam.operator.clusterPoolIPv4PodCIDRList", "10.0.0.0/8"},
	{"ipam.operator.clusterPoolIPv4MaskSize", "24"},
	{"kubeProxyReplacement", "false"},
	{"routingMode", ""},
	{"tunnelProtocol", ""},
}

// Unchangeable says which values of a release that is installed others would change that must not change.
func Unchangeable(installed, wanted map[string]any) []string {
	var texts []string
	for _, f := range fixed {
		has, want := valueAt(installed, f.path, f.fallback), valueAt(wanted, f.path, f.fallback)
		if has != want {
			texts = append(texts, printable.Line(fmt.Sprintf("%s is %s, and install.yaml makes it %s: write the "+
				"first into network.cilium",
				f.path, orDefault(has), orDefault(want))))
		}
	}
	return texts
}

// valueAt is a value as a text, lists with commas, or the chart's default where it is not given.
func valueAt(values map[string]any, path, fallback string) string {
	var at any = values
	for name := range strings.SplitSeq(path, ".") {
		within, _ := at.(map[string]any)
		at = within[name]
	}
	switch v := at.(type) {
	case nil:
		return fallback
	case []any:
		texts := make([]string, 0, len(v))
		for _, item := range v {
			texts = append(texts, fmt.Sprint(item))
		}
		return strings.Join(texts, ",")
	}
	return fmt.Sprint(at)
}

func orDefault(s string) string {
	if s == "" {
		return "the chart's default"
	}
	return s
}

// imageBlocks are where the chart names an image. By default it asks for it by digest, and
// then the container runtime looks for a record of that digest, which images that were
// imported from archives need not have. That the bytes are the right ones is what the
// bundle's own digests are for.
var imageBlocks = []string{
	"image",
	"operator.image",
	"envoy.image",
	"hubble.relay.image",
	"hubble.ui.backend.image",
	"hubble.ui.frontend.image",
	"certgen.image",
	"preflight.image",
	"preflight.envoy.image",
	"nodeinit.image",
	"clustermesh.apiserver.image",
	"authentication.mutual.spire.install.initImage",
	"authentication.mutual.spire.install.agent.image",
	"authentication.mutual.spire.install.server.image",
	"encryption.ztunnel.image", // from 1.20 on
	"standaloneDnsProxy.image", // from 1.20 on
}

// set merges value into values at a path.
func set(values map[string]any, path []string, value map[string]any) {
	for i := len(path) - 1; i >= 0; i-- {
		value = map[string]any{path[i]: value}
	}
	merge(values, value)
}

// merge puts over into base: maps are merged, everything else is replaced.
func merge(base, over map[string]any) {
	for key, value := range over {
		add, ok := value.(map[string]any)
		if !ok {
			base[key] = value
			continue
		}
		into, ok := base[key].(map[string]any)
		if !ok {
			into = map[string]any{}
			base[key] = into
		}
		merge(into, add)
	}
}

// FirstMinor returns the minor version that was installed first, for UpgradeCompatibility:
// what the installed release says, or else its chart's; without one (nil) that of version,
// which is about to be installed. Cilium keeps the behaviour of that version over upgrades.
func FirstMinor(installed *helm.State, version string) string {
	if installed != nil {
		if kept, ok := installed.Values["upgradeCompatibility"].(string); ok && kept != "" {
			return kept
		}
		version = installed.ChartVersion
	}
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return ""
	}
	return parts[0] + "." + parts[1]
}

// Release is Cilium's release.
func Release(chart []byte, values map[string]any, timeout time.Duration) helm.Release {
	return helm.Release{Name: ReleaseName, Namespace: Namespace, Chart: chart, Values: values, Timeout: timeout}
}

// WithoutKeys returns the release, which has no settings of a user, in such a form that its
// chart makes no keys while it is rendered: for whoever looks for images alone. The RSA keys
// of Hubble's certificates take longer than all the rest. Where the chart does not make them
// itself, nothing is changed, since another method may have an image of its own; and neither
// where it cannot be read, which rendering it will tell.
func WithoutKeys(r helm.Release) helm.Release {
	method, err := helm.DefaultText(r, "hubble", "tls", "auto", "method")
	if err != nil || method != "helm" {
		return r
	}
	values := map[string]any{}
	merge(values, r.Values)
	set(values, []string{"hubble", "tls"}, map[string]any{
		"auto":   map[string]any{"enabled": false},
		"server": map[string]any{"existingSecret": "hubble-server-certs"},
	})
	r.Values = values
	return r
}

// Workloads are those without which there is no pod network, to be waited for in Namespace.
func Workloads(values map[string]any) []kube.Workload {
	list := []kube.Workload{{Kind: kube.DaemonSet, Name: "cilium"}, {Kind: kube.Deployment, Name: "cilium-operator"}}
	envoy, _ := values["envoy"].(map[string]any)
	// Unset is on, for both, on clusters that began with 1.16 or later.
	if envoy["enabled"] != false && values["l7Proxy"] != false {
		list = append(list, kube.Workload{Kind: kube.DaemonSet, Name: "cilium-envoy"})
	}
	return list
}
