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

	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install/config/backups"
	"github.com/liteboxd/boxlift/install/config/ciliumvalues"
	"github.com/liteboxd/boxlift/install/config/front"
	"github.com/liteboxd/boxlift/install/config/naming"
	"github.com/liteboxd/boxlift/install/config/parse"
	"github.com/liteboxd/boxlift/install/config/registries"
	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/install/config/timeservers"
	"github.com/liteboxd/boxlift/install/config/workloads"
	"github.com/liteboxd/boxlift/install/hardening"
)

// config reads the whole file. What it returns counts only if no problem was found.
func (d *decoder) config(root schema.Node) *Config {
	cfg := &Config{
		Network: Network{Cilium: defaultCilium()},
		Seeding: defaultSeeding(),
		Runtime: Runtime{Parallelism: 5, SSHTimeout: 15 * time.Second, CommandTimeout: 20 * time.Minute,
			DrainTimeout: 10 * time.Minute},
	}
	if home, ok := d.lookupEnv("HOME"); ok && home != "" {
		cfg.SSH.KnownHostsFile = filepath.Join(home, ".ssh", "known_hosts")
	}
	var cluster clusterNode
	var through *bastionRef
	var podCIDR schema.Node
	var seeding seedingNode
	var named naming.Node
	var times *timeservers.Section
	present := root.Mapping(
		schema.Required("cluster", "Which hosts become the cluster.", func(n schema.Node) { cluster = d.cluster(n) }),
		schema.Optional("ssh", "How hosts are reached and how their keys are checked.",
			func(n schema.Node) { through = d.ssh(n, &cfg.SSH) }),
		schema.Optional("hosts", "What is done to the hosts themselves.", func(n schema.Node) {
			n.Mapping(schema.Optional("prepare", "Apply on the hosts what preflight would only tell of: kernel "+
				"modules, sysctls, swap, firewall, NetworkManager. Default: false.",
				func(n schema.Node) { cfg.Prepare = n.Boolean() }),
				schema.Optional("packages", "Packages of the hosts' distribution that the bundle brings, for hosts of "+
					"Debian's family. What they depend on comes with them.",
					func(n schema.Node) { cfg.Packages = readPackages(n) }))
		}),
		schema.Optional("names", "Names that hosts and pods resolve without a DNS server.",
			func(n schema.Node) { named = naming.Read(n) }),
		schema.Optional("time", "The hosts' time: some serve it by chrony, and the others follow them. Default: it is "+
			"left to the hosts.", func(n schema.Node) { times = timeservers.Read(n) }),
		schema.Optional("network", "The pod network.", func(n schema.Node) { podCIDR = d.network(n, &cfg.Network) }),
		schema.Optional("seeding", "How images come to the hosts.",
			func(n schema.Node) { seeding = d.seeding(n, &cfg.Seeding) }),
		schema.Optional("registries", "Where hosts pull images from that the bundle does not carry: k3s' "+
			"registries.yaml, the same on every host.",
			func(n schema.Node) { cfg.Registries = registries.Read(n) }),
		schema.Optional("liteboxd", "What to deploy on the cluster.",
			func(n schema.Node) { cfg.LiteBoxd = d.liteboxd(n) }),
		schema.Optional("workloads", "What runs on the cluster besides, from charts and manifests in the bundle. Default: "+
			"nothing.", func(n schema.Node) { cfg.Workloads = workloads.Read(n, d.parsePath) }),
		schema.Optional("backups", "Backups that the servers make by themselves. Default: none.",
			func(n schema.Node) { cfg.Backups = backups.Read(n, d.parsePath) }),
		schema.Optional("authority", "The site's own certificate authority: trusted by all hosts, above the cluster's own, "+
			"the registry's and the ingress' certificates. Default: none.",
			func(n schema.Node) { d.authority(n, &cfg.Authority) }),
		schema.Optional("trust", "Whose bundles the cluster is made from.",
			func(n schema.Node) { d.trust(n, &cfg.Trust) }),
		schema.Optional("runtime", "How the installer goes about its work.",
			func(n schema.Node) { d.runtime(n, &cfg.Runtime) }),
	)
	network := root
	if n, ok := present["network"]; ok {
		network = n
	}
	resolveFront(&cluster)
	mergeK3sConfig(&cluster)
	hardenK3s(&cluster)
	if times != nil {
		times.Resolve(cluster.timeHosts())
		cfg.Time = &times.Time
	}
	cfg.Cluster = cluster.result()
	hosts := cluster.hosts()
	resolveBastions(&cfg.Cluster, hosts, through)
	checkServers(cluster.servers)
	checkKubeProxy(cluster.servers, cfg.Network.Cilium.KubeProxyReplacement)
	if podCIDR.IsZero() {
		podCIDR = network
	}
	checkNetworks(network, cfg, cluster)
	checkRoom(podCIDR, cfg.Network.Cilium, len(hosts))
	checkSeeding(seeding, present["registries"], cfg, cluster)
	cfg.Names = named.Section
	checkNames(named, cfg, hosts)
	warnOfTaints(hosts, cfg.Network.Cilium.Values)
	return cfg
}

// clusterNode is the cluster section as it was read.
type clusterNode struct {
	Cluster
	at                        schema.Node
	servers, agents           []hostNode
	serverConfig, agentConfig []k3sSetting
	apiEndpoint               schema.Node
	front                     *front.Node // nil for none
}

// hosts returns all hosts, servers first.
func (c *clusterNode) hosts() []hostNode { return slices.Concat(c.servers, c.agents) }

// timeHosts are all hosts, servers first, for the section time.
func (c *clusterNode) timeHosts() []timeservers.Host {
	var list []timeservers.Host
	for _, hosts := range [][]hostNode{c.servers, c.agents} {
		for i := range hosts {
			h := &hosts[i].Host
			list = append(list, timeservers.Host{Host: h.Host, Path: h.Path, Server: h.Role == Server,
				Names: []string{h.Host, h.Name, h.NodeIP.String()}, Serves: &h.ServesTime})
		}
	}
	return list
}

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
	at      schema.Node
	fields  map[string]schema.Node
	through *bastionRef
	config  []k3sSetting
}

// field returns the place of a key, or the host's own when it was not written.
func (h hostNode) field(key string) schema.Node {
	if n, ok := h.fields[key]; ok {
		return n
	}
	return h.at
}

func (d *decoder) cluster(n schema.Node) clusterNode {
	c := clusterNode{Cluster: Cluster{Name: "default", RenewCertificates: true}, at: n}
	n.Needs(true, "servers", "master")
	present := n.Mapping(
		schema.Optional("name", "The cluster's name in messages and in the state. Default: default.",
			func(n schema.Node) { c.Name = schema.Text(n, parse.Label) }),
		schema.Optional("master", "Short form of servers with one entry.",
			func(n schema.Node) { c.servers = append(c.servers, d.host(n, Server)) }),
		schema.Optional("servers",
			"The hosts that run k3s' control plane, an odd number. The first starts the cluster.", func(n schema.Node) {
				n.List(func(_ int, item schema.Node) { c.servers = append(c.servers, d.host(item, Server)) })
				if count := n.Len(); len(c.servers) == count && count%2 == 0 {
					n.Fail("found %d servers, expected an odd number: etcd needs a majority", count)
				}
			}),
		schema.Optional("agents", "The other hosts.", func(n schema.Node) {
			n.List(func(_ int, item schema.Node) { c.agents = append(c.agents, d.host(item, Agent)) })
		}),
		schema.Optional("apiEndpoint", "Host or host:port at which nodes and users reach the API, for a load "+
			"balancer or a floating address in front of the servers. Default: the first server, port 6443.",
			func(n schema.Node) { c.APIEndpoint = schema.Text(n, parseEndpoint) }),
		schema.Optional("front", "An address at which one of several servers answers: when its host or its API is lost, "+
			"another server has it. Default: none.", func(n schema.Node) { c.front = front.Read(n) }),
		schema.Optional("absentAgentLogin", "How to log in to agents that are in the cluster and not in this file, "+
			"to uninstall k3s from them: see runtime.removeAbsentAgents.",
			func(n schema.Node) { c.AbsentAgentLogin = d.absentLogin(n) }),
		schema.Optional("hardening", "What the hosts' k3s is hardened by: cis, for k3s' guide to the CIS Kubernetes "+
			"Benchmark. Default: nothing beyond what k3s does by itself.",
			func(n schema.Node) {
				c.Hardening = schema.Text(n, parseHardening)
				n.Among(string(hardening.CIS))
			}),
		schema.Optional("renewCertificates", "A timer on every host renews k3s' certificates ahead of their end, by "+
			"starting k3s again. Default: true.", func(n schema.Node) { c.RenewCertificates = n.Boolean() }),
		schema.Optional("serverConfig", "Keys of k3s' config.yaml for all servers.",
			func(n schema.Node) { c.serverConfig = d.k3sConfig(n, Server, false) }),
		schema.Optional("agentConfig", "Keys of k3s' config.yaml for all agents.",
			func(n schema.Node) { c.agentConfig = d.k3sConfig(n, Agent, false) }),
	)
	c.apiEndpoint = present["apiEndpoint"]
	master, hasMaster := present["master"]
	_, hasServers := present["servers"]
	switch {
	case hasMaster && hasServers:
		master.Fail("found master and servers, expected one of them: " +
			"master is the short form of servers with one entry")
	case !hasMaster && !hasServers && n.IsMapping():
		n.Fail("servers is missing (or master, its short form for one)")
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
	checkLocals(all)
	checkVersions(c.servers)
	return c
}

func parseHardening(s string) (hardening.Profile, error) {
	if s != string(hardening.CIS) {
		return "", fmt.Errorf("expected %s, or the key left out", hardening.CIS)
	}
	return hardening.CIS, nil
}

func (d *decoder) host(n schema.Node, role Role) (result hostNode) {
	n.Defined(string(role), func(n schema.Node) { result = d.readHost(n, role) })
	return result
}

func (d *decoder) readHost(n schema.Node, role Role) hostNode {
	h := hostNode{Host: Host{Role: role, Path: n.Path(), Line: n.Line(), Port: 22, User: "root"}, at: n}
	fields := slices.Concat(
		[]schema.Field{
			schema.Optional("host", "IP address or DNS name, without user and port. Required unless local is true.",
				func(n schema.Node) { h.Host.Host = schema.Text(n, parse.Host) }),
			schema.Optional("local", "The host is the machine that boxlift runs on, as root: nobody logs in to it. "+
				"Default: false.", func(n schema.Node) { h.Local = n.Boolean() }),
		},
		d.loginFields(&h),
		sudoFields(&h),
		[]schema.Field{
			schema.Optional("name", "Name of the Kubernetes node. Default: the host's own name.",
				func(n schema.Node) { h.Name = schema.Text(n, parse.NodeName) }),
			schema.Optional("nodeIP",
				"Address that the node registers with, for hosts with several networks. Default: k3s chooses.",
				func(n schema.Node) { h.NodeIP = schema.Text(n, parse.Addr) }),
			schema.Optional("labels", "Labels of the Kubernetes node.", func(n schema.Node) { h.Labels = d.labels(n) }),
			schema.Optional("taints", "Taints of the Kubernetes node.", func(n schema.Node) { h.Taints = d.taints(n) }),
			schema.Optional("k3s", "Settings of k3s on this host.",
				func(n schema.Node) { h.K3s, h.config = d.k3s(n, role) }),
		},
	)
	ways := []string{"local"}
	for _, means := range loginMeans {
		ways = append(ways, "host "+means)
	}
	n.Needs(false, ways...)
	h.fields = n.Mapping(fields...)
	switch {
	case n.IsMapping() && n.Len() == 0:
		n.Fail("host is missing")
		return h
	case len(h.fields) == 0:
		return h // whatever is wrong has been said
	}
	if h.Local {
		h.checkLocal()
		return h
	}
	if _, given := h.fields["host"]; !given {
		h.at.Fail("host is missing")
	}
	h.checkLogin()
	h.checkSudo()
	if user, given := h.fields["user"]; given && h.User != "root" && !h.Sudo {
		user.Warn("%s logs in without sudo: true, and the installation needs root", h.User)
	}
	return h
}

// loginFields are the keys that say how to log in, and by which way.
func (d *decoder) loginFields(h *hostNode) []schema.Field {
	return slices.Concat(
		d.meansFields(h),
		[]schema.Field{schema.Optional("bastion", "Jump host to go through: the host or the name of another host in "+
			"this file, a login of its own, or none. Default: ssh.bastion.",
			func(n schema.Node) { h.through = d.bastion(n) })},
	)
}

// meansFields are the keys that say how to log in.
func (d *decoder) meansFields(h *hostNode) []schema.Field {
	return []schema.Field{
		schema.Optional("port", "Port of sshd. Default: 22.", func(n schema.Node) { h.Port = n.Number(1, 65535) }),
		schema.Optional("user", "User to log in as. Default: root.",
			func(n schema.Node) { h.User = schema.Text(n, parse.Login) }),
		schema.Optional("password", "Password to log in with. Better a ${NAME} than the password itself.",
			func(n schema.Node) { h.Password = n.Secret() }),
		schema.Optional("identityFile", "Private key to log in with; relative to the folder of this file.",
			func(n schema.Node) { h.IdentityFile = schema.Text(n, d.parsePath) }),
		schema.Optional("identityPassphrase", "Opens identityFile.",
			func(n schema.Node) { h.IdentityPassphrase = n.Secret() }),
		schema.Optional("agent", "Use the keys of the SSH agent at SSH_AUTH_SOCK. Default: false.",
			func(n schema.Node) { h.SSHAgent = n.Boolean() }),
		schema.Optional("hostKey",
			"Fingerprint of the host's key, SHA256: and 43 characters. Default: known_hosts decides.",
			func(n schema.Node) { h.HostKey = schema.Text(n, parse.Fingerprint) }),
	}
}

// sudoFields are the keys that say how to become root.
func sudoFields(h *hostNode) []schema.Field {
	return []schema.Field{
		schema.Optional("sudo", "Run commands through sudo; needed when user is not root. Default: false.",
			func(n schema.Node) { h.Sudo = n.Boolean() }),
		schema.Optional("sudoPassword", "For sudo, when it is another one than password.",
			func(n schema.Node) { h.SudoPassword = n.Secret() }),
	}
}

// checkSudo fills in the password for sudo, and reports one that is of no use.
func (h *hostNode) checkSudo() {
	switch _, given := h.fields["sudoPassword"]; {
	case !given:
		h.SudoPassword = h.Password
	case !h.Sudo:
		h.fields["sudoPassword"].Fail("found a password for sudo without sudo: true")
	}
}

// absentLogin reads how to log in to hosts that the file does not have any more.
func (d *decoder) absentLogin(n schema.Node) *Host {
	h := &hostNode{Host: Host{Role: Agent, Path: n.Path(), Line: n.Line(), Port: 22, User: "root"}, at: n}
	n.Needs(false, loginMeans...)
	h.fields = n.Mapping(slices.Concat(d.meansFields(h), sudoFields(h))...)
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
		h.at.Fail("no way to log in, expected password, identityFile or agent: true")
	}
	if has("identityPassphrase") && !has("identityFile") {
		h.fields["identityPassphrase"].Fail("found a passphrase without identityFile")
	}
}

// thisMachine is what a local host goes by that is not said to have an address.
const thisMachine = "localhost"

// checkLocal reports what a host without a login cannot have, and gives it a name.
func (h *hostNode) checkLocal() {
	for _, key := range []string{"port", "user", "password", "identityFile", "identityPassphrase", "agent", "hostKey",
		"bastion", "sudo", "sudoPassword"} {
		if n, given := h.fields[key]; given {
			n.Fail("found beside local: true, expected neither login nor sudo: boxlift runs on the machine itself, as root")
		}
	}
	at, given := h.fields["host"]
	if !given {
		h.Host.Host = thisMachine
		return
	}
	if addr, err := netip.ParseAddr(h.Host.Host); h.Host.Host == thisMachine || err == nil && addr.IsLoopback() {
		at.Fail("found %s beside local: true, expected where others reach this machine: leave the key out where nobody "+
			"has to", at.Found())
	}
}

// checkLocals reports more than one local host, and one that other hosts could not reach.
func checkLocals(hosts []hostNode) {
	var first *hostNode
	for i, h := range hosts {
		switch {
		case !h.Local:
			continue
		case first != nil:
			h.field("local").Fail("found a second host that is this machine, expected one: %s is it already",
				first.Path)
			continue
		case len(hosts) > 1 && !h.HasAddress():
			h.at.Fail("nodeIP is missing: the other hosts need this machine's address in the LAN")
		}
		first = &hosts[i]
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
			h.field(key).Fail("found %s again, expected it once: %s has it already (line %d)", v, other.Path,
				other.field(key).Line())
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
			h.field("k3s").Fail("found version %s, expected %s as for %s: all servers run the same", h.K3s.Version,
				first.K3s.Version, first.Path)
		}
	}
}

// DefaultServiceCIDR is what k3s takes when no service-cidr is given.
var DefaultServiceCIDR = netip.MustParsePrefix("10.43.0.0/16")

// checkNetworks reports addresses that would be both in a network of the cluster and
// elsewhere.
func checkNetworks(network schema.Node, cfg *Config, cluster clusterNode) {
	pods := cfg.Network.Cilium.PodCIDR
	if !pods.IsValid() {
		return
	}
	services := serviceNetworks(cluster.servers)
	for _, s := range services {
		if s.Overlaps(pods) {
			network.Fail("the pods' network %s and the services' network %s overlap", pods, s)
		}
	}
	check := func(n schema.Node, addr netip.Addr) {
		if !addr.IsValid() {
			return
		}
		if pods.Contains(addr) {
			n.Fail("found %s, expected an address outside the pods' network %s", addr, pods)
		}
		for _, s := range services {
			if s.Contains(addr) {
				n.Fail("found %s, expected an address outside the services' network %s", addr, s)
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
	if cluster.Front != nil {
		check(cluster.front.VIPAt, cluster.Front.VIP)
	}
	if cfg.Cluster.APIEndpoint != "" && !cluster.apiEndpoint.IsZero() {
		if addr, err := netip.ParseAddr(endpointHost(cfg.Cluster.APIEndpoint)); err == nil {
			check(cluster.apiEndpoint, addr)
		}
	}
}

// checkRoom reports a network of the pods that does not have one network for each host: the
// last ones would wait for their pods' addresses for ever, and nothing would say why.
func checkRoom(at schema.Node, c Cilium, hosts int) {
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
	at.Fail("found %s for the pods, which has %d %s of /%d, expected one for each of the %d hosts: %s", c.PodCIDR, room,
		networks, bits, hosts, way)
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

func (d *decoder) k3s(n schema.Node, role Role) (K3s, []k3sSetting) {
	var k K3s
	var settings []k3sSetting
	own := schema.Optional("config",
		"Keys of k3s' config.yaml for this host. They count more than serverConfig and agentConfig.",
		func(n schema.Node) { settings = d.k3sConfig(n, role, true) })
	if role == Agent {
		n.Mapping(own)
		return k, settings
	}
	var args []string
	var items []schema.Node
	present := n.Mapping(
		schema.Optional("version", "Version of k3s; must be the bundle's, which is the default.",
			func(n schema.Node) { k.Version = schema.Text(n, parse.K3sVersion) }),
		schema.Optional("tlsSAN", "Further names and addresses for the API's certificate.", func(n schema.Node) {
			n.List(func(_ int, item schema.Node) { k.TLSSAN = appendNew(k.TLSSAN, schema.Text(item, parse.Host)) })
		}),
		schema.Optional("installArgs", "Further arguments of k3s server. config is the newer way.",
			func(n schema.Node) {
				n.List(func(_ int, item schema.Node) {
					args = append(args, schema.Text(item, func(s string) (string, error) { return s, nil }))
					items = append(items, item)
				})
			}),
		own,
	)
	if slices.Contains(args, "") {
		return k, settings // what could not be read has been reported
	}
	flags, problems := parseInstallArgs(args)
	for _, p := range problems {
		items[p.index].Fail("%s", p.text)
	}
	for _, s := range flags {
		if s.Key != "tls-san" {
			k.Settings = append(k.Settings, s)
			continue
		}
		for _, name := range s.Values {
			san, err := parse.Host(name)
			if err != nil {
				present["installArgs"].Fail("found --tls-san %q, %v", name, err)
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

func (d *decoder) ssh(n schema.Node, s *SSH) (through *bastionRef) {
	n.Mapping(
		schema.Optional("knownHostsFile", "File with the keys of hosts. Default: ~/.ssh/known_hosts.",
			func(n schema.Node) { s.KnownHostsFile = schema.Text(n, d.parsePath) }),
		schema.Optional("trustOnFirstUse",
			"Accept the key of a host that is not known yet, and remember it. Default: false.",
			func(n schema.Node) { s.TrustOnFirstUse = n.Boolean() }),
		schema.Optional("bastion", "Jump host for all hosts that name none of their own: the host or the name of a "+
			"host in this file, or a login of its own.",
			func(n schema.Node) { through = d.bastion(n) }),
	)
	return through
}

// network returns where podCIDR is given.
func (d *decoder) network(n schema.Node, network *Network) (podCIDR schema.Node) {
	n.Mapping(
		schema.Optional("cni", "The pod network. Only cilium is possible.", func(n schema.Node) {
			schema.Text(n, func(s string) (string, error) {
				if s != "cilium" {
					return "", errors.New("expected cilium, the only network that boxlift supports")
				}
				return s, nil
			})
			n.Among("cilium")
		}),
		schema.Optional("cilium", "Settings of Cilium.", func(n schema.Node) { network.Cilium, podCIDR = d.cilium(n) }),
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

func (d *decoder) cilium(n schema.Node) (c Cilium, podCIDR schema.Node) {
	c = defaultCilium()
	present := n.Mapping(
		schema.Optional("version", "Version of Cilium; must be the bundle's, which is the default.",
			func(n schema.Node) { c.Version = schema.Text(n, parse.CiliumVersion) }),
		schema.Optional("podCIDR", "Network of the pods. Default: 10.42.0.0/16.",
			func(n schema.Node) { c.PodCIDR = schema.Text(n, parse.PodCIDR) }),
		schema.Optional("kubeProxyReplacement", "Cilium takes kube-proxy's place. Default: true.",
			func(n schema.Node) { c.KubeProxyReplacement = n.Boolean() }),
		schema.Optional("enableEgressGateway", "Needs kubeProxyReplacement. Default: as kubeProxyReplacement.",
			func(n schema.Node) { c.EnableEgressGateway = n.Boolean() }),
		schema.Optional("values", "Further values for Cilium's Helm chart. Not for secrets.",
			func(n schema.Node) { c.Values = ciliumvalues.Read(n) }),
	)
	if egress, given := present["enableEgressGateway"]; !given {
		c.EnableEgressGateway = c.KubeProxyReplacement
	} else if c.EnableEgressGateway && !c.KubeProxyReplacement {
		egress.Fail("found true, expected false because kubeProxyReplacement is false: the egress gateway needs it")
	}
	return c, present["podCIDR"]
}

// maxRequirements is how many statements about a bundle may be asked for.
const maxRequirements = 16

func (d *decoder) trust(n schema.Node, t *Trust) {
	present := n.Mapping(
		schema.Optional("file", "Trust file, for when neither --trust nor --key is given.",
			func(n schema.Node) { t.File = schema.Text(n, d.parsePath) }),
		schema.Optional("requireSignatures", "How many keys of different names have to have signed a bundle. Default: as "+
			"many as the trust file says.",
			func(n schema.Node) { t.RequireSignatures = n.Number(1, 32) }),
		schema.Optional("forbidSkipSignature", "Refuse --insecure-skip-signature. Default: false.",
			func(n schema.Node) { t.ForbidSkipSignature = n.Boolean() }),
		schema.Optional("requireAttestations", "Statements about a bundle that have to be there, each by somebody with a "+
			"role of the trust file.", func(n schema.Node) { t.RequireAttestations = readRequirements(n) }),
	)
	_, named := present["file"]
	if at, ok := present["requireAttestations"]; ok && !named {
		at.Fail("found without file, expected the trust file beside it, which says whose keys have which role")
	}
}

func readRequirements(n schema.Node) []trust.Requirement {
	var list []trust.Requirement
	n.List(func(_ int, item schema.Node) {
		var r trust.Requirement
		if !item.Sound(func() {
			item.Mapping(
				schema.Required("type", "Type of the predicate: a URI, or one of "+
					strings.Join(attestation.TypeNames(), ", ")+".",
					func(n schema.Node) { r.Type = schema.Text(n, attestation.ParseType) }),
				schema.Required("role", "Role that its maker's key has in the trust file.",
					func(n schema.Node) { r.Role = schema.OneOf(n, trust.Makers()...) }),
			)
		}) || item.Describes() {
			return
		}
		if slices.Contains(list, r) {
			item.Fail("found %s by a %s a second time, expected each once", attestation.TypeName(r.Type), r.Role)
		}
		list = append(list, r)
	})
	if len(list) > maxRequirements {
		n.Fail("found %d statements, expected at most %d", len(list), maxRequirements)
	}
	return list
}

func (d *decoder) runtime(n schema.Node, r *Runtime) {
	seconds := func(to *time.Duration) func(schema.Node) {
		return func(n schema.Node) { *to = time.Duration(n.Number(1, 86400)) * time.Second }
	}
	n.Mapping(
		schema.Optional("parallelism", "Hosts that are worked on at once. Default: 5.",
			func(n schema.Node) { r.Parallelism = n.Number(1, schema.MaxItems) }),
		schema.Optional("sshTimeoutSeconds", "For connecting to a host, login included. Default: 15.",
			seconds(&r.SSHTimeout)),
		schema.Optional("commandTimeoutSeconds", "For one command on a host. Default: 1200.",
			seconds(&r.CommandTimeout)),
		schema.Optional("drainTimeoutSeconds",
			"For moving the pods away from one node before it is removed. Default: 600.", seconds(&r.DrainTimeout)),
		schema.Optional("removeAbsentAgents", "Remove nodes that are not in this file. Default: false.",
			func(n schema.Node) { r.RemoveAbsentAgents = n.Boolean() }),
		schema.Optional("dryRun", "Show the plan and change nothing, as --dry-run does. Default: false.",
			func(n schema.Node) { r.DryRun = n.Boolean() }),
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
	d.relative = append(d.relative, s)
	return filepath.Join(filepath.Dir(d.file), s), nil
}
