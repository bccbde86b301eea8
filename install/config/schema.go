package config

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// config reads the whole file. What it returns counts only if no problem was found.
func (d *decoder) config(root node) *Config {
	cfg := &Config{
		Network: Network{Cilium: defaultCilium()},
		Runtime: Runtime{Parallelism: 5, SSHTimeout: 15 * time.Second, CommandTimeout: 20 * time.Minute},
	}
	if home, ok := d.lookupEnv("HOME"); ok && home != "" {
		cfg.SSH.KnownHostsFile = filepath.Join(home, ".ssh", "known_hosts")
	}
	var hosts []hostNode
	present := root.mapping(
		field{"cluster", true, func(n node) { cfg.Cluster, hosts = d.cluster(n) }},
		field{"ssh", false, func(n node) { d.ssh(n, &cfg.SSH) }},
		field{"network", false, func(n node) { d.network(n, &cfg.Network) }},
		field{"liteboxd", false, func(n node) { cfg.LiteBoxd = d.liteboxd(n) }},
		field{"runtime", false, func(n node) { d.runtime(n, &cfg.Runtime) }},
	)
	podCIDR := root
	if n, ok := present["network"]; ok {
		podCIDR = n
	}
	checkNetworks(podCIDR, cfg.Network.Cilium.PodCIDR, hosts)
	return cfg
}

// hostNode is a host with its place in the file.
type hostNode struct {
	Host
	at     node
	fields map[string]node
}

// field returns the place of a key, or the host's own when it was not written.
func (h hostNode) field(key string) node {
	if n, ok := h.fields[key]; ok {
		return n
	}
	return h.at
}

func (d *decoder) cluster(n node) (Cluster, []hostNode) {
	c := Cluster{Name: "default"}
	var servers, agents []hostNode
	present := n.mapping(
		field{"name", false, func(n node) { c.Name = text(n, parseLabel) }},
		field{"master", false, func(n node) { servers = append(servers, d.host(n, Server)) }},
		field{"servers", false, func(n node) {
			n.list(func(_ int, item node) { servers = append(servers, d.host(item, Server)) })
			if count := len(n.yaml.Content); len(servers) == count && count%2 == 0 {
				n.fail("found %d servers, expected an odd number: etcd needs a majority", count)
			}
		}},
		field{"agents", false, func(n node) {
			n.list(func(_ int, item node) { agents = append(agents, d.host(item, Agent)) })
		}},
	)
	master, hasMaster := present["master"]
	_, hasServers := present["servers"]
	switch {
	case hasMaster && hasServers:
		master.fail("found master and servers, expected one of them: master is the short form of servers with one entry")
	case !hasMaster && !hasServers && n.yaml.Kind == yaml.MappingNode:
		n.fail("servers is missing (or master, its short form for one)")
	}
	all := slices.Concat(servers, agents)
	checkUnique(all, "host", func(h Host) string {
		if h.Host == "" || h.Port == 0 {
			return ""
		}
		return h.Address()
	})
	checkUnique(all, "name", func(h Host) string { return h.Name })
	checkUnique(all, "nodeIP", func(h Host) string {
		if !h.NodeIP.IsValid() {
			return ""
		}
		return h.NodeIP.String()
	})
	checkVersions(servers)
	for _, h := range servers {
		c.Servers = append(c.Servers, h.Host)
	}
	for _, h := range agents {
		c.Agents = append(c.Agents, h.Host)
	}
	return c, all
}

func (d *decoder) host(n node, role Role) hostNode {
	h := Host{Role: role, Path: n.path, Line: n.yaml.Line, Port: 22, User: "root"}
	fields := []field{
		{"host", true, func(n node) { h.Host = text(n, parseHost) }},
		{"port", false, func(n node) { h.Port = n.number(1, 65535) }},
		{"user", false, func(n node) { h.User = text(n, parseUser) }},
		{"password", false, func(n node) { h.Password = n.secret() }},
		{"sudo", false, func(n node) { h.Sudo = n.boolean() }},
		{"sudoPassword", false, func(n node) { h.SudoPassword = n.secret() }},
		{"identityFile", false, func(n node) { h.IdentityFile = text(n, d.parsePath) }},
		{"identityPassphrase", false, func(n node) { h.IdentityPassphrase = n.secret() }},
		{"agent", false, func(n node) { h.SSHAgent = n.boolean() }},
		{"hostKey", false, func(n node) { h.HostKey = text(n, parseFingerprint) }},
		{"name", false, func(n node) { h.Name = text(n, parseNodeName) }},
		{"nodeIP", false, func(n node) { h.NodeIP = text(n, parseAddr) }},
	}
	if role == Server {
		fields = append(fields, field{"k3s", false, func(n node) { h.K3s = d.k3s(n) }})
	}
	present := n.mapping(fields...)
	if len(present) == 0 {
		return hostNode{h, n, present} // whatever is wrong has been said
	}
	has := func(key string) bool { _, ok := present[key]; return ok }
	if !has("password") && !has("identityFile") && !h.SSHAgent {
		n.fail("no way to log in, expected password, identityFile or agent: true")
	}
	if has("identityPassphrase") && !has("identityFile") {
		present["identityPassphrase"].fail("found a passphrase without identityFile")
	}
	switch {
	case !has("sudoPassword"):
		h.SudoPassword = h.Password
	case !h.Sudo:
		present["sudoPassword"].fail("found a password for sudo without sudo: true")
	}
	if has("user") && h.User != "root" && !h.Sudo {
		present["user"].warn("%s logs in without sudo: true, and the installation needs root", h.User)
	}
	return hostNode{h, n, present}
}

// checkUnique reports hosts that share a value of key; "" is no value.
func checkUnique(hosts []hostNode, key string, value func(Host) string) {
	first := map[string]hostNode{}
	for _, h := range hosts {
		v := value(h.Host)
		if v == "" {
			continue
		}
		if other, taken := first[v]; taken {
			h.field(key).fail("found %s again, expected it once: %s has it already (line %d)", v, other.Path, other.field(key).yaml.Line)
			continue
		}
		first[v] = h
	}
}

// checkVersions reports servers that want another k3s than the first that names one.
func checkVersions(servers []hostNode) {
	var first *hostNode
	for i, h := range servers {
		switch {
		case h.K3s.Version == "":
		case first == nil:
			first = &servers[i]
		case h.K3s.Version != first.K3s.Version:
			h.field("k3s").fail("found version %s, expected %s as for %s: all servers run the same", h.K3s.Version, first.K3s.Version, first.Path)
		}
	}
}

// defaultServiceCIDR is what k3s takes when no --service-cidr is given.
var defaultServiceCIDR = netip.MustParsePrefix("10.43.0.0/16")

// checkNetworks reports addresses that would be both in the pod network and elsewhere.
func checkNetworks(network node, pods netip.Prefix, hosts []hostNode) {
	if !pods.IsValid() {
		return
	}
	services := defaultServiceCIDR
	for _, h := range hosts {
		for _, s := range h.K3s.Settings {
			if s.Key == "service-cidr" && len(s.Values) == 1 {
				if p, err := netip.ParsePrefix(s.Values[0]); err == nil {
					services = p
				}
			}
		}
	}
	if services.Overlaps(pods) {
		network.fail("the pods' network %s and the services' network %s overlap", pods, services)
	}
	for _, h := range hosts {
		addr, err := netip.ParseAddr(h.Host.Host)
		if err == nil && pods.Contains(addr) {
			h.field("host").fail("found %s, expected an address outside the pods' network %s", addr, pods)
		}
		if h.NodeIP.IsValid() && pods.Contains(h.NodeIP) && h.NodeIP != addr {
			h.field("nodeIP").fail("found %s, expected an address outside the pods' network %s", h.NodeIP, pods)
		}
	}
}

func (d *decoder) k3s(n node) K3s {
	var k K3s
	var args []string
	var items []node
	present := n.mapping(
		field{"version", false, func(n node) { k.Version = text(n, parseK3sVersion) }},
		field{"tlsSAN", false, func(n node) {
			n.list(func(_ int, item node) { k.TLSSAN = appendNew(k.TLSSAN, text(item, parseHost)) })
		}},
		field{"installArgs", false, func(n node) {
			n.list(func(_ int, item node) {
				args = append(args, text(item, func(s string) (string, error) { return s, nil }))
				items = append(items, item)
			})
		}},
	)
	if slices.Contains(args, "") {
		return k // what could not be read has been reported
	}
	settings, problems := parseInstallArgs(args)
	for _, p := range problems {
		items[p.index].fail("%s", p.text)
	}
	for _, s := range settings {
		if s.Key != "tls-san" {
			k.Settings = append(k.Settings, s)
			continue
		}
		for _, name := range s.Values {
			san, err := parseHost(name)
			if err != nil {
				present["installArgs"].fail("found --tls-san %q, %v", name, err)
			}
			k.TLSSAN = appendNew(k.TLSSAN, san)
		}
	}
	return k
}

func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

func (d *decoder) ssh(n node, s *SSH) {
	n.mapping(
		field{"knownHostsFile", false, func(n node) { s.KnownHostsFile = text(n, d.parsePath) }},
		field{"trustOnFirstUse", false, func(n node) { s.TrustOnFirstUse = n.boolean() }},
	)
}

func (d *decoder) network(n node, network *Network) {
	n.mapping(
		field{"cni", false, func(n node) {
			text(n, func(s string) (string, error) {
				if s != "cilium" {
					return "", errors.New("expected cilium, the only network that boxlift supports")
				}
				return s, nil
			})
		}},
		field{"cilium", false, func(n node) { network.Cilium = d.cilium(n) }},
	)
}

func defaultCilium() Cilium {
	return Cilium{
		PodCIDR:              netip.MustParsePrefix("10.42.0.0/16"),
		KubeProxyReplacement: true,
		EnableEgressGateway:  true,
	}
}

func (d *decoder) cilium(n node) Cilium {
	c := defaultCilium()
	present := n.mapping(
		field{"version", false, func(n node) { c.Version = text(n, parseCiliumVersion) }},
		field{"podCIDR", false, func(n node) { c.PodCIDR = text(n, parsePodCIDR) }},
		field{"kubeProxyReplacement", false, func(n node) { c.KubeProxyReplacement = n.boolean() }},
		field{"enableEgressGateway", false, func(n node) { c.EnableEgressGateway = n.boolean() }},
	)
	if egress, given := present["enableEgressGateway"]; !given {
		c.EnableEgressGateway = c.KubeProxyReplacement
	} else if c.EnableEgressGateway && !c.KubeProxyReplacement {
		egress.fail("found true, expected false because kubeProxyReplacement is false: the egress gateway needs it")
	}
	return c
}

func (d *decoder) liteboxd(n node) *LiteBoxd {
	box := &LiteBoxd{
		NamespaceSystem:        "liteboxd-system",
		NamespaceSandbox:       "liteboxd-sandbox",
		DeploySandboxResources: true,
	}
	n.mapping(
		field{"namespaceSystem", false, func(n node) { box.NamespaceSystem = text(n, parseNamespace) }},
		field{"namespaceSandbox", false, func(n node) { box.NamespaceSandbox = text(n, parseNamespace) }},
		field{"configDir", false, func(n node) { box.ConfigDir = text(n, d.parsePath) }},
		field{"images", false, func(n node) {
			n.mapping(
				field{"api", false, func(n node) { box.Images.API = text(n, parseImage) }},
				field{"gateway", false, func(n node) { box.Images.Gateway = text(n, parseImage) }},
				field{"web", false, func(n node) { box.Images.Web = text(n, parseImage) }},
			)
		}},
		field{"deploySandboxResources", false, func(n node) { box.DeploySandboxResources = n.boolean() }},
	)
	if box.NamespaceSystem != "" && box.NamespaceSystem == box.NamespaceSandbox {
		n.fail("namespaceSystem and namespaceSandbox are both %s, expected two namespaces", box.NamespaceSystem)
	}
	return box
}

func (d *decoder) runtime(n node, r *Runtime) {
	seconds := func(to *time.Duration) func(node) {
		return func(n node) { *to = time.Duration(n.number(1, 86400)) * time.Second }
	}
	n.mapping(
		field{"parallelism", false, func(n node) { r.Parallelism = n.number(1, maxItems) }},
		field{"sshTimeoutSeconds", false, seconds(&r.SSHTimeout)},
		field{"commandTimeoutSeconds", false, seconds(&r.CommandTimeout)},
		field{"removeAbsentAgents", false, func(n node) { r.RemoveAbsentAgents = n.boolean() }},
		field{"dryRun", false, func(n node) { r.DryRun = n.boolean() }},
	)
}

// parsePath makes a path relative to the file's folder or to HOME independent of
// both.
func (d *decoder) parsePath(s string) (string, error) {
	if rest, ok := strings.CutPrefix(s, "~"); ok {
		home, set := d.lookupEnv("HOME")
		switch {
		case rest != "" && rest[0] != '/':
			return "", errors.New("expected ~/ for the home folder: other users' home folders are not looked up")
		case !set || home == "":
			return "", errors.New("expected a path without ~ because HOME is not set")
		}
		return filepath.Join(home, rest), nil
	}
	if filepath.IsAbs(s) {
		return filepath.Clean(s), nil
	}
	return filepath.Join(filepath.Dir(d.file), s), nil
}
