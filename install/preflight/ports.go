package preflight

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/reach"
)

// port is a port that k3s, Cilium or boxlift opens on a host.
type port struct {
	reach.Endpoint
	use      string
	severity string // when it is taken
	local    bool   // on the loopback address only
	lan      bool   // on the host's address in the LAN only
	peers    bool   // other hosts must reach it
	from     config.Role
}

// timeUse is what the time of hosts that serve it is called (RFC 5905).
const timeUse = "time for the other hosts (NTP)"

// registryUse is what the registry of seeding mode registry is called.
const registryUse = "boxlift's registry"

// dnsUnit is the service of boxlift's DNS server.
const dnsUnit = "boxlift-dns.service"

// ports are those of a host, by its role and the features that are chosen
// (documentation and source of k3s and Cilium).
func (j *judgement) ports(s *Subject) []port {
	servers := 0
	for _, h := range j.Need.Config.Hosts() {
		if h.Role == config.Server {
			servers++
		}
	}
	list := portsOf(s.Config.Role, servers > 1 || settingOn(j.serverConfig(), "cluster-init"), s.K3sConfig,
		j.serverConfig(), j.CiliumValues)
	if seeding := j.Need.Config.Seeding; seeding.Mode == config.SeedRegistry && s.Config.Role == config.Server {
		list = append(list, port{
			Endpoint: reach.Endpoint{Protocol: "tcp", Port: seeding.Registry.Port}, use: registryUse, severity: Error,
			peers: true,
		})
	}
	if j.Need.Config.Names.ServedOn(s.Config.Address()) {
		for _, protocol := range []string{"tcp", "udp"} {
			list = append(list, port{Endpoint: reach.Endpoint{Protocol: protocol, Port: 53},
				use: "boxlift's DNS server", severity: Error, lan: true, peers: true})
		}
	}
	if j.Need.Config.Time != nil && s.Config.ServesTime {
		list = append(list, port{Endpoint: reach.Endpoint{Protocol: "udp", Port: 123}, use: timeUse, severity: Error,
			peers: true})
	}
	return list
}

func portsOf(role config.Role, etcd bool, own, server, cilium map[string]any) []port {
	tcp := func(number int) reach.Endpoint { return reach.Endpoint{Protocol: "tcp", Port: number} }
	udp := func(number int) reach.Endpoint { return reach.Endpoint{Protocol: "udp", Port: number} }
	everybody := func(p reach.Endpoint, use string) port {
		return port{Endpoint: p, use: use, severity: Error, peers: true}
	}
	local := func(number int, use string) port {
		return port{Endpoint: tcp(number), use: use, severity: Error, local: true}
	}
	var list []port
	if role == config.Server {
		list = append(list, everybody(tcp(settingPort(own, "https-listen-port", 6443)), "the API server"))
		if etcd {
			for _, n := range []int{2379, 2380} {
				p := everybody(tcp(n), "etcd")
				p.from = config.Server
				list = append(list, p)
			}
			list = append(list, local(2381, "etcd's metrics"), local(2382, "etcd"))
		}
		list = append(list, local(10257, "the controller manager"), local(10259, "the scheduler"))
		if !settingOn(own, "disable-cloud-controller") {
			list = append(list, local(10258, "k3s' cloud controller"))
		}
	}
	list = append(list,
		everybody(tcp(10250), "the kubelet"),
		local(settingPort(own, "lb-server-port", 6444), "k3s' load balancer"),
		local(10248, "the kubelet's health"),
		local(10010, "containerd's streams"),
		port{Endpoint: tcp(10256), use: "the health of services", severity: Error},
	)
	if !settingOn(server, "disable-kube-proxy") {
		list = append(list, local(10249, "kube-proxy's metrics"))
	}
	if settingOn(server, "embedded-registry") {
		list = append(list, everybody(tcp(5001), "the embedded registry"))
		if role == config.Agent {
			list = append(list, everybody(tcp(settingPort(server, "https-listen-port", 6443)), "the embedded registry"))
		}
	}
	list = append(list,
		everybody(tcp(4240), "Cilium's health checks"),
		local(9878, "the health of Cilium's proxy"),
		local(9879, "the health of Cilium's agent"),
		local(9234, "Cilium's operator"),
		port{Endpoint: tcp(9964), use: "the metrics of Cilium's proxy", severity: Error},
		port{Endpoint: tcp(9963), use: "the metrics of Cilium's operator", severity: Warning},
		port{Endpoint: tcp(9890), use: "the diagnosis of Cilium's agent", severity: Warning, local: true},
		port{Endpoint: tcp(9891), use: "the diagnosis of Cilium's operator", severity: Warning, local: true},
	)
	if chartValue(cilium, "hubble", "enabled") != false {
		// The relay, a pod on any of the hosts, asks all of them.
		relay := chartValue(cilium, "hubble", "relay", "enabled") == true
		list = append(list, port{Endpoint: tcp(4244), use: "Hubble", severity: Warning, peers: relay})
	}
	if mutual, on := authentication(cilium); on {
		list = append(list, everybody(tcp(settingPort(mutual, "port", 4250)), "Cilium's mutual authentication"))
	}
	switch tunnel(cilium) {
	case "vxlan":
		list = append(list, everybody(udp(8472), "traffic between pods (VXLAN)"))
	case "geneve":
		list = append(list, everybody(udp(6081), "traffic between pods (Geneve)"))
	}
	if wireguard(cilium) {
		list = append(list, everybody(udp(51871), "traffic between pods (WireGuard)"))
	}
	return list
}

// tunnel is the protocol that carries pods' traffic between nodes, or "".
func tunnel(cilium map[string]any) string {
	if chartValue(cilium, "routingMode") == "native" {
		return ""
	}
	if protocol, _ := chartValue(cilium, "tunnelProtocol").(string); protocol != "" {
		return protocol
	}
	return "vxlan"
}

func wireguard(cilium map[string]any) bool {
	return chartValue(cilium, "encryption", "enabled") == true &&
		chartValue(cilium, "encryption", "type") == "wireguard"
}

// authentication are the values of Cilium's mutual authentication, and whether it is on.
func authentication(cilium map[string]any) (map[string]any, bool) {
	mutual, _ := chartValue(cilium, "authentication", "mutual").(map[string]any)
	return mutual, chartValue(mutual, "spire", "enabled") == true &&
		chartValue(cilium, "authentication", "enabled") != false
}

func serviceName(r config.Role) string {
	if r == config.Server {
		return "k3s.service"
	}
	return "k3s-agent.service"
}

// k3sService reports whether a unit is k3s'.
func k3sService(unit string) bool {
	return unit == "k3s.service" || strings.HasPrefix(unit, "k3s-") && strings.HasSuffix(unit, ".service")
}

// ofK3s reports whether a process is k3s, was started by it, or runs in a pod.
func ofK3s(p facts.Process) bool {
	return p.Unit == "k3s.service" || p.Unit == "k3s-agent.service" || p.Unit == "kubepods" ||
		p.Executable == "/usr/local/bin/k3s" || strings.HasPrefix(p.Executable, "/var/lib/rancher/k3s/")
}

func judgePorts(j *judgement) {
	for _, p := range j.ports(j.Subject) {
		var users []string
		for _, used := range j.facts.Ports {
			if used.Port != p.Port || strings.TrimSuffix(used.Protocol, "6") != p.Protocol ||
				p.local && !reachesLoopback(used.Address) ||
				p.lan && !listensOn(used.Address, NodeAddress(*j.Subject)) {
				continue
			}
			// A VXLAN interface's socket is the kernel's and has no owner.
			kernels := used.Owner.PID == 0 && p.Protocol == "udp" && !p.lan
			if j.facts.K3s.Managed && (ofK3s(used.Owner) || kernels) || used.Owner.Unit == "boxlift-registry.service" ||
				used.Owner.Unit == dnsUnit || p.use == timeUse && used.Owner.Unit == "chrony.service" {
				continue
			}
			if user := describeOwner(used.Owner, kernels); !slices.Contains(users, user) {
				users = append(users, user)
			}
		}
		if len(users) == 0 {
			continue
		}
		hint := fmt.Sprintf("find it with: ss -Hlnp%s 'sport = :%d', and stop it or give it another port",
			p.Protocol[:1], p.Port)
		if p.Protocol == "udp" && !p.lan {
			hint += "; an interface of the kernel's is found with: ip -details link show type vxlan"
		}
		j.add(p.severity, fmt.Sprintf("port %s is in use by %s", p, strings.Join(users, ", ")), "the port for "+p.use,
			hint)
	}
}

// reachesLoopback reports whether who listens on an address also has the port of the
// loopback address.
func reachesLoopback(address string) bool {
	a, err := netip.ParseAddr(address)
	return err != nil || a.IsUnspecified() || a.IsLoopback()
}

// listensOn reports whether who listens on an address also has the port of the host's own.
func listensOn(address, own string) bool {
	a, err := netip.ParseAddr(address)
	return err != nil || a.IsUnspecified() || a.Unmap().String() == own
}

func describeOwner(p facts.Process, kernels bool) string {
	switch {
	case p.PID == 0 && kernels:
		return "somebody unknown, perhaps an interface of the kernel's"
	case p.PID == 0:
		return "somebody unknown"
	}
	text := fmt.Sprintf("%s (process %d", cmpOr(p.Name, "a program"), p.PID)
	if p.Unit != "" {
		text += ", " + p.Unit
	}
	return text + ")"
}
