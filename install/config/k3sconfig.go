package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/install/config/parse"
	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/spelling"
)

// k3sSetting is one entry of a k3s config in the file.
type k3sSetting struct {
	key    string // without the + of append
	append bool
	value  any // string, bool, int64 or []string
	at     schema.Node
}

// maxSettings bounds the keys of a config and the items of each list. k3s has some 150
// flags, and every host gets a copy of what all have in common.
const maxSettings = 200

var configKey = lazyregexp.New(`^[a-z0-9]+(-[a-z0-9]+)*\+?$`)

// k3sConfig reads keys of k3s' config.yaml. own says that they are one host's.
func (d *decoder) k3sConfig(n schema.Node, role Role, own bool) []k3sSetting {
	var settings []k3sSetting
	if !n.Describes() && n.IsMapping() && n.Len() > maxSettings {
		n.Fail("found %d keys, expected at most %d", n.Len(), maxSettings)
		return nil
	}
	n.Entries("a key of k3s' config.yaml such as tls-san", configKey, func(written string, at, value schema.Node) {
		key, appended := strings.CutSuffix(written, "+")
		v, ok := value.PlainOrList(maxSettings)
		if value.Describes() {
			return
		}
		reason, reserved := ownedKeys[key]
		if !reserved {
			reason, reserved = reservedFlags[key]
		}
		switch {
		case reserved:
			at.Fail("%s cannot be given here: %s", key, reason)
			return
		case role == Agent && isServerKey(key):
			at.Fail("%s is for servers only: agents learn it from them", key)
			return
		case !own && slices.Contains(hostKeys, key):
			at.Fail("%s is another one on each host: write it in k3s.config of the host", key)
			return
		case !slices.Contains(knownKeys, key) && !slices.Contains(serverKeys, key):
			warnOfMisspelling(at, key)
		}
		if ok && key == "tls-san" {
			v, ok = names(value, texts(v))
		}
		if ok {
			settings = append(settings, k3sSetting{key, appended, v, at})
		}
	})
	return settings
}

// names checks the names of a certificate and returns them as they are compared.
func names(n schema.Node, written []string) (any, bool) {
	canonical := make([]string, len(written))
	for i, name := range written {
		var err error
		if canonical[i], err = parse.Host(name); err != nil {
			n.Fail("found %q, %v", name, err)
			return nil, false
		}
	}
	return canonical, true
}

// warnOfMisspelling warns of a key that is nearly one of k3s: k3s ignores keys that it does
// not know, and nobody would notice.
func warnOfMisspelling(at schema.Node, key string) {
	all := slices.Concat(knownKeys, serverKeys)
	for _, own := range []map[string]string{ownedKeys, reservedFlags} {
		all = slices.AppendSeq(all, maps.Keys(own))
	}
	slices.Sort(all) // maps have no order, and the first of two that are equally near is taken
	if near := spelling.Closest(key, all, min(2, len(key)/4)); near != "" {
		at.Warn("%s is no key of k3s that boxlift knows of: did you mean %s?", key, near)
	}
}

// ownedKeys are the keys of config.yaml that boxlift writes itself, besides the
// reservedFlags.
var ownedKeys = map[string]string{
	"disable-kube-proxy":     "write network.cilium.kubeProxyReplacement",
	"disable-network-policy": "boxlift sets it, because Cilium is the cluster's network",
	"flannel-backend":        "boxlift sets it to none, because Cilium is the cluster's network",
	"node-label":             "write labels",
	"node-taint":             "write taints",
}

// hostKeys make sense for one host only.
var hostKeys = []string{"advertise-address", "node-external-ip"}

// serverKeys are refused by k3s agent; every key that begins with etcd- is one too.
var serverKeys = []string{
	"advertise-address", "advertise-port", "cluster-dns", "cluster-domain", "default-local-storage-path", "disable",
	"disable-cloud-controller", "disable-helm-controller", "disable-scheduler", "egress-selector-mode",
	"embedded-registry",
	"helm-job-image", "kube-apiserver-arg", "kube-cloud-controller-manager-arg", "kube-controller-manager-arg",
	"kube-scheduler-arg", "secrets-encryption", "secrets-encryption-provider", "service-cidr",
	"service-node-port-range",
	"servicelb-namespace", "supervisor-metrics", "system-default-registry", "tls-san", "tls-san-security",
	"write-kubeconfig-group", "write-kubeconfig-mode",
	"etcd-arg", "etcd-disable-snapshots", "etcd-expose-metrics", "etcd-s3", "etcd-s3-bucket", "etcd-s3-config-secret",
	"etcd-s3-endpoint", "etcd-s3-endpoint-ca", "etcd-s3-folder", "etcd-s3-insecure", "etcd-s3-region",
	"etcd-s3-skip-ssl-verify",
	"etcd-s3-timeout", "etcd-snapshot-compress", "etcd-snapshot-dir", "etcd-snapshot-name", "etcd-snapshot-retention",
	"etcd-snapshot-schedule-cron",
}

func isServerKey(key string) bool {
	return slices.Contains(serverKeys, key) || strings.HasPrefix(key, "etcd-")
}

// knownKeys are the other keys of k3s v1.30 to v1.36 that may be given.
var knownKeys = []string{
	"airgap-extra-registry", "alsologtostderr", "debug", "default-runtime", "disable-apiserver-lb",
	"disable-default-registry-endpoint", "enable-pprof", "image-credential-provider-bin-dir",
	"image-credential-provider-config",
	"kube-proxy-arg", "kubelet-arg", "log", "node-external-dns", "node-external-ip", "node-internal-dns",
	"nonroot-devices",
	"pause-image", "prefer-bundled-bin", "protect-kernel-defaults", "resolv-conf", "selinux", "snapshotter", "v",
	"vmodule",
}

// mergeK3sConfig sets Config of every host: the cluster's settings, and over them the
// host's own. What installArgs give counts as the host's own. tls-san goes to TLSSAN, to
// which the API's endpoint is added.
func mergeK3sConfig(c *clusterNode) {
	for _, group := range []struct {
		hosts  []hostNode
		common []k3sSetting
	}{{c.servers, c.serverConfig}, {c.agents, c.agentConfig}} {
		common := map[string]any{}
		applySettings(common, group.common)
		for i := range group.hosts {
			h := &group.hosts[i]
			for _, s := range slices.Concat(h.config, group.common) {
				if s.key == "tls-san" {
					for _, name := range texts(s.value) {
						h.K3s.TLSSAN = appendNew(h.K3s.TLSSAN, name)
					}
				}
			}
			if c.APIEndpoint != "" && h.Role == Server {
				h.K3s.TLSSAN = appendNew(h.K3s.TLSSAN, endpointHost(c.APIEndpoint))
			}
			merged := maps.Clone(common)
			for _, s := range h.K3s.Settings {
				delete(merged, s.Key)
			}
			for _, s := range h.config {
				if s.key != "tls-san" && hasFlag(h.K3s.Settings, s.key) {
					s.at.Fail("found %s, which installArgs give too, expected it once", s.key)
				}
			}
			applySettings(merged, h.config)
			if len(merged) > 0 {
				h.K3s.Config = merged
			}
		}
	}
}

func hasFlag(settings []Setting, key string) bool {
	return slices.ContainsFunc(settings, func(s Setting) bool { return s.Key == key })
}

// applySettings puts settings over others. Like k3s it looks first at what is set, then at
// what is appended to that.
func applySettings(config map[string]any, settings []k3sSetting) {
	for _, appended := range []bool{false, true} {
		for _, s := range settings {
			switch {
			case s.append != appended || s.key == "tls-san":
			case appended:
				config[s.key] = slices.Concat(texts(config[s.key]), texts(s.value))
			default:
				config[s.key] = s.value
			}
		}
	}
}

// texts returns a value of Config as k3s takes it from a flag that was given once for
// each text.
func texts(value any) []string {
	switch v := value.(type) {
	case nil:
		return nil
	case []string:
		return v
	}
	return []string{fmt.Sprint(value)}
}

// Value returns what a server is given for a key, by installArgs or by its config; nil
// when it is not given.
func (k K3s) Value(key string) []string {
	for _, s := range k.Settings {
		if s.Key == key && len(s.Values) == 0 {
			return []string{"true"}
		} else if s.Key == key {
			return s.Values
		}
	}
	return texts(k.Config[key])
}

// place is where a server's setting can be mended.
func (h hostNode) place(key string) schema.Node {
	for _, s := range h.config {
		if s.key == key {
			return s.at
		}
	}
	return h.field("k3s")
}

// critical are the settings in which a server that joins must agree with the first: k3s
// stops with "critical configuration value mismatch" otherwise. The values are k3s'
// defaults.
var critical = []struct{ key, fallback string }{
	{"service-cidr", DefaultServiceCIDR.String()},
	{"cluster-dns", ""},
	{"cluster-domain", "cluster.local"},
	{"disable", ""},
	{"disable-cloud-controller", "false"},
	{"disable-helm-controller", "false"},
	{"egress-selector-mode", "agent"},
	{"embedded-registry", "false"},
	{"secrets-encryption", "false"},
	{"service-node-port-range", "30000-32767"},
}

// CriticalSettings are the settings in which all servers of a cluster agree, with k3s' defaults.
func CriticalSettings() map[string]string {
	all := make(map[string]string, len(critical))
	for _, c := range critical {
		all[c.key] = c.fallback
	}
	return all
}

// checkServers reports servers that differ where they must not.
func checkServers(servers []hostNode) {
	for _, c := range critical {
		canonical := func(h hostNode) string {
			var all []string
			for _, v := range h.K3s.Value(c.key) {
				for part := range strings.SplitSeq(v, ",") {
					all = append(all, strings.TrimSpace(part))
				}
			}
			if len(all) == 0 {
				return c.fallback
			}
			slices.Sort(all)
			return strings.Join(slices.Compact(all), ",")
		}
		for _, h := range servers[min(1, len(servers)):] {
			want, got := canonical(servers[0]), canonical(h)
			if got != want {
				h.place(c.key).Fail("found %s, expected %s as for %s: all servers need the same %s (write it in "+
					"cluster.serverConfig)",
					orNothing(got), orNothing(want), servers[0].Path, c.key)
			}
		}
	}
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}

// checkKubeProxy reports a cluster without any kube-proxy, and one with two.
func checkKubeProxy(servers []hostNode, replaced bool) {
	for _, h := range servers {
		got := h.K3s.Value("disable-kube-proxy")
		if len(got) == 1 && got[0] != strconv.FormatBool(replaced) {
			h.field("k3s").Fail("found --disable-kube-proxy=%s, expected %t as network.cilium.kubeProxyReplacement",
				got[0], replaced)
		}
	}
}

// serviceNetworks returns the networks of services: the first server's, or k3s' default.
func serviceNetworks(servers []hostNode) []netip.Prefix {
	if len(servers) == 0 {
		return nil
	}
	given := strings.Join(servers[0].K3s.Value("service-cidr"), ",")
	if given == "" {
		return []netip.Prefix{DefaultServiceCIDR}
	}
	var networks []netip.Prefix
	for part := range strings.SplitSeq(given, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			servers[0].place("service-cidr").Fail("found service-cidr %q, expected a network such as %s", part,
				DefaultServiceCIDR)
			continue
		}
		networks = append(networks, p.Masked())
	}
	return networks
}

// parseEndpoint accepts host or host:port and returns host:port.
func parseEndpoint(s string) (string, error) {
	host, port := s, "6443"
	if h, p, err := net.SplitHostPort(s); err == nil {
		host, port = h, p
	}
	host, err := parse.Host(host)
	if number, badPort := strconv.ParseUint(port, 10, 16); err != nil || badPort != nil || number == 0 ||
		port[0] == '0' {
		return "", errors.New("expected an IP address or a DNS name, and a port where it is not 6443: k3s.lan, " +
			"10.0.0.100:6443 or [fd00::100]:6443")
	}
	return net.JoinHostPort(host, port), nil
}

// endpointHost is the host of what parseEndpoint returned.
func endpointHost(endpoint string) string {
	host, _, _ := net.SplitHostPort(endpoint)
	return host
}
