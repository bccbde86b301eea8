package config

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// config reads the whole file. What it returns counts only if no problem was found.
func (d *decoder) config(root node) *Config {
	cfg := &Config{
		Network: Network{Cilium: defaultCilium()},
		Seeding: defaultSeeding(),
		Runtime: Runtime{Parallelism: 5, SSHTimeout: 15 * time.Second, CommandTimeout: 20 * time.Minute, DrainTimeout: 10 * time.Minute},
	}
	if home, ok := d.lookupEnv("HOME"); ok && home != "" {
		cfg.SSH.KnownHostsFile = filepath.Join(home, ".ssh", "known_hosts")
	}
	var cluster clusterNode
	var through *bastionRef
	var podCIDR node
	var seeding seedingNode
	present := root.mapping(
		field{"cluster", true, "Which hosts become the cluster.", func(n node) { cluster = d.cluster(n) }},
		field{"ssh", false, "How hosts are reached and how their keys are checked.", func(n node) { through = d.ssh(n, &cfg.SSH) }},
		field{"network", false, "The pod network.", func(n node) { podCIDR = d.network(n, &cfg.Network) }},
		field{"seeding", false, "How images come to the hosts.", func(n node) { seeding = d.seeding(n, &cfg.Seeding) }},
		field{"registries", false, "Where hosts pull images from that the bundle does not carry: k3s' registries.yaml, the same on every host.",
			func(n node) { cfg.Registries = d.registries(n) }},
		field{"liteboxd", false, "What to deploy on the cluster.", func(n node) { cfg.LiteBoxd = d.liteboxd(n) }},
		field{"runtime", false, "How the installer goes about its work.", func(n node) { d.runtime(n, &cfg.Runtime) }},
	)
	network := root
	if n, ok := present["network"]; ok {
		network = n
	}
	mergeK3sConfig(&cluster)
	cfg.Cluster = cluster.result()
	hosts := cluster.hosts()
	resolveBastions(&cfg.Cluster, hosts, through)
	checkServers(cluster.servers)
	checkKubeProxy(cluster.servers, cfg.Network.Cilium.KubeProxyReplacement)
	if podCIDR.yaml == nil {
		podCIDR = network
	}
	checkNetworks(network, cfg, cluster)
	checkRoom(podCIDR, cfg.Network.Cilium, len(hosts))
	checkSeeding(seeding, present["registries"], cfg, cluster)
	warnOfTaints(hosts, cfg.Network.Cilium.Values)
	return cfg
}

// clusterNode is the cluster section as it was read.
type clusterNode struct {
	Cluster
	at                        node
	servers, agents           []hostNode
	serverConfig, agentConfig []k3sSetting
	apiEndpoint               node
}

// hosts returns all hosts, servers first.
func (c *clusterNode) hosts() []hostNode { return slices.Concat(c.servers, c.agents) }

func (c *clusterNode) result() Cluster {
	for _, h := range c.servers {
		c.Servers = append(c.Servers, h.Host)
	}
	for _, h := range c.agents {
		c.Agents = append(c.Agents, h.Host)
	}
	return c.Cluster
}

// hostNode is a host with its place in the file.
type hostNode struct {
	Host
	at      node
	fields  map[string]node
	through *bastionRef
	config  []k3sSetting
}

// field returns the place of a key, or the host's own when it was not written.
func (h hostNode) field(key string) node {
	if n, ok := h.fields[key]; ok {
		return n
	}
	return h.at
}

func (d *decoder) cluster(n node) clusterNode {
	c := clusterNode{Cluster: Cluster{Name: "default"}, at: n}
	n.needs(true, "servers", "master")
	present := n.mapping(
		field{"name", false, "The cluster's name in messages and in the state. Default: default.", func(n node) { c.Name = text(n, parseLabel) }},
		field{"master", false, "Short form of servers with one entry.", func(n node) { c.servers = append(c.servers, d.host(n, Server)) }},
		field{"servers", false, "The hosts that run k3s' control plane, an odd number. The first starts the cluster.", func(n node) {
			n.list(func(_ int, item node) { c.servers = append(c.servers, d.host(item, Server)) })
			if count := len(n.yaml.Content); len(c.servers) == count && count%2 == 0 {
				n.fail("found %d servers, expected an odd number: etcd needs a majority", count)
			}
		}},
		field{"agents", false, "The other hosts.", func(n node) {
			n.list(func(_ int, item node) { c.agents = append(c.agents, d.host(item, Agent)) })
		}},
		field{"apiEndpoint", false, "Host or host:port at which nodes and users reach the API, for a load balancer or a floating address in front of the servers. Default: the first server, port 6443.",
			func(n node) { c.APIEndpoint = text(n, parseEndpoint) }},
		field{"absentAgentLogin", false, "How to log in to agents that are in the cluster and not in this file, to uninstall k3s from them: see runtime.removeAbsentAgents.",
			func(n node) { c.AbsentAgentLogin = d.absentLogin(n) }},
		field{"serverConfig", false, "Keys of k3s' config.yaml for all servers.", func(n node) { c.serverConfig = d.k3sConfig(n, Server, false) }},
		field{"agentConfig", false, "Keys of k3s' config.yaml for all agents.", func(n node) { c.agentConfig = d.k3sConfig(n, Agent, false) }},
	)
	c.apiEndpoint = present["apiEndpoint"]
	master, hasMaster := present["master"]
	_, hasServers := present["servers"]
	switch {
	case hasMaster && hasServers:
		master.fail("found master and servers, expected one of them: master is the short form of servers with one entry")
	case !hasMaster && !hasServers && n.yaml.Kind == yaml.MappingNode:
		n.fail("servers is missing (or master, its short form for one)")
	}
	all := c.hosts()
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
	checkVersions(c.servers)
	return c
}

func (d *decoder) host(n node, role Role) (result hostNode) {
	n.defined(string(role), func(n node) { result = d.readHost(n, role) })
	return result
}

func (d *decoder) readHost(n node, role Role) hostNode {
	h := hostNode{Host: Host{Role: role, Path: n.path, Line: n.yaml.Line, Port: 22, User: "root"}, at: n}
	fields := slices.Concat(
		d.loginFields(&h, "IP address or DNS name, without user and port."),
		sudoFields(&h),
		[]field{
			{"name", false, "Name of the Kubernetes node. Default: the host's own name.", func(n node) { h.Name = text(n, parseNodeName) }},
			{"nodeIP", false, "Address that the node registers with, for hosts with several networks. Default: k3s chooses.",
				func(n node) { h.NodeIP = text(n, parseAddr) }},
			{"labels", false, "Labels of the Kubernetes node.", func(n node) { h.Labels = d.labels(n) }},
			{"taints", false, "Taints of the Kubernetes node.", func(n node) { h.Taints = d.taints(n) }},
			{"k3s", false, "Settings of k3s on this host.", func(n node) { h.K3s, h.config = d.k3s(n, role) }},
		},
	)
	n.needs(false, loginMeans...)
	h.fields = n.mapping(fields...)
	if len(h.fields) == 0 {
		return h // whatever is wrong has been said
	}
	h.checkLogin()
	h.checkSudo()
	if user, given := h.fields["user"]; given && h.User != "root" && !h.Sudo {
		user.warn("%s logs in without sudo: true, and the installation needs root", h.User)
	}
	return h
}

// loginFields are the keys that say where and how to log in.
func (d *decoder) loginFields(h *hostNode, host string) []field {
	return slices.Concat(
		[]field{{"host", true, host, func(n node) { h.Host.Host = text(n, parseHost) }}},
		d.meansFields(h),
		[]field{{"bastion", false, "Jump host to go through: the host or the name of another host in this file, a login of its own, or none. Default: ssh.bastion.",
			func(n node) { h.through = d.bastion(n) }}},
	)
}

// meansFields are the keys that say how to log in.
func (d *decoder) meansFields(h *hostNode) []field {
	return []field{
		{"port", false, "Port of sshd. Default: 22.", func(n node) { h.Port = n.number(1, 65535) }},
		{"user", false, "User to log in as. Default: root.", func(n node) { h.User = text(n, parseLogin) }},
		{"password", false, "Password to log in with. Better a ${NAME} than the password itself.", func(n node) { h.Password = n.secret() }},
		{"identityFile", false, "Private key to log in with; relative to the folder of this file.", func(n node) { h.IdentityFile = text(n, d.parsePath) }},
		{"identityPassphrase", false, "Opens identityFile.", func(n node) { h.IdentityPassphrase = n.secret() }},
		{"agent", false, "Use the keys of the SSH agent at SSH_AUTH_SOCK. Default: false.", func(n node) { h.SSHAgent = n.boolean() }},
		{"hostKey", false, "Fingerprint of the host's key, SHA256: and 43 characters. Default: known_hosts decides.",
			func(n node) { h.HostKey = text(n, parseFingerprint) }},
	}
}

// sudoFields are the keys that say how to become root.
func sudoFields(h *hostNode) []field {
	return []field{
		{"sudo", false, "Run commands through sudo; needed when user is not root. Default: false.", func(n node) { h.Sudo = n.boolean() }},
		{"sudoPassword", false, "For sudo, when it is another one than password.", func(n node) { h.SudoPassword = n.secret() }},
	}
}

// checkSudo fills in the password for sudo, and reports one that is of no use.
func (h *hostNode) checkSudo() {
	switch _, given := h.fields["sudoPassword"]; {
	case !given:
		h.SudoPassword = h.Password
	case !h.Sudo:
		h.fields["sudoPassword"].fail("found a password for sudo without sudo: true")
	}
}

// absentLogin reads how to log in to hosts that the file does not have any more.
func (d *decoder) absentLogin(n node) *Host {
	h := &hostNode{Host: Host{Role: Agent, Path: n.path, Line: n.yaml.Line, Port: 22, User: "root"}, at: n}
	n.needs(false, loginMeans...)
	h.fields = n.mapping(slices.Concat(d.meansFields(h), sudoFields(h))...)
	if len(h.fields) > 0 {
		h.checkLogin()
		h.checkSudo()
	}
	return &h.Host
}

// loginMeans are the keys of which a login has at least one.
var loginMeans = []string{"password", "identityFile", "agent"}

// checkLogin reports a login without means.
func (h hostNode) checkLogin() {
	has := func(key string) bool { _, ok := h.fields[key]; return ok }
	if !has("password") && !has("identityFile") && !h.SSHAgent {
		h.at.fail("no way to log in, expected password, identityFile or agent: true")
	}
	if has("identityPassphrase") && !has("identityFile") {
		h.fields["identityPassphrase"].fail("found a passphrase without identityFile")
	}
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

// defaultServiceCIDR is what k3s takes when no service-cidr is given.
var defaultServiceCIDR = netip.MustParsePrefix("10.43.0.0/16")

// checkNetworks reports addresses that would be both in a network of the cluster and
// elsewhere.
func checkNetworks(network node, cfg *Config, cluster clusterNode) {
	pods := cfg.Network.Cilium.PodCIDR
	if !pods.IsValid() {
		return
	}
	services := serviceNetworks(cluster.servers)
	for _, s := range services {
		if s.Overlaps(pods) {
			network.fail("the pods' network %s and the services' network %s overlap", pods, s)
		}
	}
	check := func(n node, addr netip.Addr) {
		if !addr.IsValid() {
			return
		}
		if pods.Contains(addr) {
			n.fail("found %s, expected an address outside the pods' network %s", addr, pods)
		}
		for _, s := range services {
			if s.Contains(addr) {
				n.fail("found %s, expected an address outside the services' network %s", addr, s)
			}
		}
	}
	for _, h := range cluster.hosts() {
		addr, err := netip.ParseAddr(h.Host.Host)
		if err == nil {
			check(h.field("host"), addr)
		}
		if h.NodeIP != addr {
			check(h.field("nodeIP"), h.NodeIP)
		}
	}
	if cfg.Cluster.APIEndpoint != "" {
		if addr, err := netip.ParseAddr(endpointHost(cfg.Cluster.APIEndpoint)); err == nil {
			check(cluster.apiEndpoint, addr)
		}
	}
}

// checkRoom reports a network of the pods that does not have one network for each host: the
// last ones would wait for their pods' addresses for ever, and nothing would say why.
func checkRoom(at node, c Cilium, hosts int) {
	bits, known := nodeNetwork(c.Values)
	if !c.PodCIDR.IsValid() || !known {
		return
	}
	room := 0
	if free := bits - c.PodCIDR.Bits(); free >= 0 {
		room = 1 << free
	}
	if room >= hosts {
		return
	}
	needed := bits
	for needed > 1 && 1<<(bits-needed) < hosts {
		needed--
	}
	networks := "networks"
	if room == 1 {
		networks = "network"
	}
	way := fmt.Sprintf("write network.cilium.podCIDR as a network of /%d or larger", needed)
	if c.Values["ipam"] != nil {
		way += ", or clusterPoolIPv4MaskSize as a larger number"
	}
	at.fail("found %s for the pods, which has %d %s of /%d, expected one for each of the %d hosts: %s", c.PodCIDR, room, networks, bits, hosts, way)
}

// nodeNetwork is the length of the prefix of the network that Cilium gives each node of podCIDR.
// It is not known when the values make it take the nodes' networks from elsewhere.
func nodeNetwork(values map[string]any) (bits int, known bool) {
	const usual = 24
	ipam, given := values["ipam"]
	if !given {
		return usual, true
	}
	of, ok := ipam.(map[string]any)
	if mode, given := of["mode"]; !ok || given && mode != "cluster-pool" {
		return 0, false
	}
	operator, given := of["operator"]
	if !given {
		return usual, true
	}
	pool, ok := operator.(map[string]any)
	if _, others := pool["clusterPoolIPv4PodCIDRList"]; !ok || others {
		return 0, false
	}
	size, given := pool["clusterPoolIPv4MaskSize"]
	if !given {
		return usual, true
	}
	bits, err := strconv.Atoi(fmt.Sprint(size))
	return bits, err == nil && bits > 0 && bits <= 32 // Cilium itself refuses others
}

func (d *decoder) k3s(n node, role Role) (K3s, []k3sSetting) {
	var k K3s
	var settings []k3sSetting
	own := field{"config", false, "Keys of k3s' config.yaml for this host. They count more than serverConfig and agentConfig.",
		func(n node) { settings = d.k3sConfig(n, role, true) }}
	if role == Agent {
		n.mapping(own)
		return k, settings
	}
	var args []string
	var items []node
	present := n.mapping(
		field{"version", false, "Version of k3s; must be the bundle's, which is the default.", func(n node) { k.Version = text(n, parseK3sVersion) }},
		field{"tlsSAN", false, "Further names and addresses for the API's certificate.", func(n node) {
			n.list(func(_ int, item node) { k.TLSSAN = appendNew(k.TLSSAN, text(item, parseHost)) })
		}},
		field{"installArgs", false, "Further arguments of k3s server. config is the newer way.", func(n node) {
			n.list(func(_ int, item node) {
				args = append(args, text(item, func(s string) (string, error) { return s, nil }))
				items = append(items, item)
			})
		}},
		own,
	)
	if slices.Contains(args, "") {
		return k, settings // what could not be read has been reported
	}
	flags, problems := parseInstallArgs(args)
	for _, p := range problems {
		items[p.index].fail("%s", p.text)
	}
	for _, s := range flags {
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
	return k, settings
}

func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

func (d *decoder) ssh(n node, s *SSH) (through *bastionRef) {
	n.mapping(
		field{"knownHostsFile", false, "File with the keys of hosts. Default: ~/.ssh/known_hosts.", func(n node) { s.KnownHostsFile = text(n, d.parsePath) }},
		field{"trustOnFirstUse", false, "Accept the key of a host that is not known yet, and remember it. Default: false.",
			func(n node) { s.TrustOnFirstUse = n.boolean() }},
		field{"bastion", false, "Jump host for all hosts that name none of their own: the host or the name of a host in this file, or a login of its own.",
			func(n node) { through = d.bastion(n) }},
	)
	return through
}

// network returns where podCIDR is given.
func (d *decoder) network(n node, network *Network) (podCIDR node) {
	n.mapping(
		field{"cni", false, "The pod network. Only cilium is possible.", func(n node) {
			text(n, func(s string) (string, error) {
				if s != "cilium" {
					return "", errors.New("expected cilium, the only network that boxlift supports")
				}
				return s, nil
			})
			n.among("cilium")
		}},
		field{"cilium", false, "Settings of Cilium.", func(n node) { network.Cilium, podCIDR = d.cilium(n) }},
	)
	return podCIDR
}

func defaultCilium() Cilium {
	return Cilium{
		PodCIDR:              netip.MustParsePrefix("10.42.0.0/16"),
		KubeProxyReplacement: true,
		EnableEgressGateway:  true,
	}
}

func (d *decoder) cilium(n node) (c Cilium, podCIDR node) {
	c = defaultCilium()
	present := n.mapping(
		field{"version", false, "Version of Cilium; must be the bundle's, which is the default.", func(n node) { c.Version = text(n, parseCiliumVersion) }},
		field{"podCIDR", false, "Network of the pods. Default: 10.42.0.0/16.", func(n node) { c.PodCIDR = text(n, parsePodCIDR) }},
		field{"kubeProxyReplacement", false, "Cilium takes kube-proxy's place. Default: true.", func(n node) { c.KubeProxyReplacement = n.boolean() }},
		field{"enableEgressGateway", false, "Needs kubeProxyReplacement. Default: as kubeProxyReplacement.", func(n node) { c.EnableEgressGateway = n.boolean() }},
		field{"values", false, "Further values for Cilium's Helm chart. Not for secrets.", func(n node) { c.Values = d.helmValues(n) }},
	)
	if egress, given := present["enableEgressGateway"]; !given {
		c.EnableEgressGateway = c.KubeProxyReplacement
	} else if c.EnableEgressGateway && !c.KubeProxyReplacement {
		egress.fail("found true, expected false because kubeProxyReplacement is false: the egress gateway needs it")
	}
	return c, present["podCIDR"]
}

func (d *decoder) runtime(n node, r *Runtime) {
	seconds := func(to *time.Duration) func(node) {
		return func(n node) { *to = time.Duration(n.number(1, 86400)) * time.Second }
	}
	n.mapping(
		field{"parallelism", false, "Hosts that are worked on at once. Default: 5.", func(n node) { r.Parallelism = n.number(1, maxItems) }},
		field{"sshTimeoutSeconds", false, "For connecting to a host, login included. Default: 15.", seconds(&r.SSHTimeout)},
		field{"commandTimeoutSeconds", false, "For one command on a host. Default: 1200.", seconds(&r.CommandTimeout)},
		field{"drainTimeoutSeconds", false, "For moving the pods away from one node before it is removed. Default: 600.", seconds(&r.DrainTimeout)},
		field{"removeAbsentAgents", false, "Remove nodes that are not in this file. Default: false.", func(n node) { r.RemoveAbsentAgents = n.boolean() }},
		field{"dryRun", false, "Show the plan and change nothing, as --dry-run does. Default: false.", func(n node) { r.DryRun = n.boolean() }},
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
