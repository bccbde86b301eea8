package preflight

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/node/facts"
)

// nodeName is the name under which a host registers.
func (s *Subject) nodeName() string {
	if s.Config.Name != "" || s.Facts == nil {
		return s.Config.Name
	}
	return s.Facts.Hostname
}

var rfc1123 = lazyregexp.New(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

func judgeHostname(j *judgement) {
	const needed = "a name of at most 63 of a-z, 0-9, - and ., with a letter or digit at both ends"
	const hint = "set name for this host in install.yaml, or rename it with: hostnamectl set-hostname NAME"
	name := j.nodeName()
	switch {
	case name == "":
		j.fail("the host has no name", needed, hint)
		return
	case name == "localhost" || strings.HasPrefix(name, "localhost."):
		j.fail("the host is called "+name, "a name of its own", hint)
		return
	case len(name) > 63 || !rfc1123.MatchString(name):
		j.fail(fmt.Sprintf("the host is called %.100q", name), needed, hint)
	}
	for i := range j.subjects[:j.index] {
		if other := &j.subjects[i]; strings.EqualFold(other.nodeName(), name) {
			j.fail(fmt.Sprintf("the node would be called %s, as %s is", name, other.Name),
				"a name of its own for every node", hint)
			return
		}
	}
	address, err := netip.ParseAddr(NodeAddress(*j.Subject))
	if err != nil {
		return
	}
	for _, given := range j.Need.Config.Given(j.firstServer) {
		if given.Name == strings.ToLower(name) && given.Address != address {
			j.fail(fmt.Sprintf("the node would be called %s, and install.yaml has that name for %s, not for %s", name,
				given.Address, address), "a name that install.yaml gives nothing else: whoever asks for one would get "+
				"the other", hint)
			return
		}
	}
}

// firstServer is the address of the first server, where LiteBoxd's names answer; the zero Addr where it is not known.
func (j *judgement) firstServer(string) netip.Addr {
	i := slices.IndexFunc(j.subjects, func(s Subject) bool { return s.Config.Role == config.Server })
	if i < 0 {
		return netip.Addr{}
	}
	address, _ := netip.ParseAddr(NodeAddress(j.subjects[i]))
	return address
}

var machineID = lazyregexp.New(`^[0-9a-f]{32}$`)

func judgeMachineID(j *judgement) {
	const needed = "an identity of its own for every host"
	const hint = "give it one with: rm -f /etc/machine-id /var/lib/dbus/machine-id && systemd-machine-id-setup, and " +
		"reboot"
	id := j.facts.MachineID
	switch {
	case id == "":
		j.fail("/etc/machine-id is missing or empty", needed, hint)
		return
	case !machineID.MatchString(id) || strings.Trim(id, "0") == "":
		j.fail(fmt.Sprintf("/etc/machine-id has %.50q", id), needed, hint)
		return
	}
	for i := range j.subjects[:j.index] {
		other := &j.subjects[i]
		if other.Facts == nil || other.Facts.MachineID != id {
			continue
		}
		if other.Facts.BootID != "" && other.Facts.BootID == j.facts.BootID {
			j.fail("it is the same host as "+other.Name, "each host once", "remove one of the two from install.yaml")
		} else {
			j.fail("it has the /etc/machine-id of "+other.Name+", as a copy of it has", needed, hint)
		}
		return
	}
}

const (
	// maxBehind is by how much a host may be behind the first server: k3s' certificates
	// are valid from the second on in which its certificate authority was made, and the
	// others join some seconds later.
	maxBehind = 2 * time.Second
	// etcd complains about more.
	maxSkew = time.Second
	// The operator's clock is compared with certificates as well, but later.
	maxOperatorSkew = 5 * time.Second
	// worthKnowing is how well a difference has to be known to be judged.
	worthKnowing = 5 * time.Second
)

func judgeClock(j *judgement) {
	const hint = "set the clock with: date -u --set=@SECONDS (on the other host: date -u +%s), or have chrony " +
		"follow the first server, with the section time in install.yaml"
	server := slices.IndexFunc(j.subjects, func(s Subject) bool { return s.Config.Role == config.Server })
	if server < 0 || server == j.index || j.subjects[server].Facts == nil {
		j.compareWithOperator(hint + "; until the operator's clock has passed the moment in which the cluster is " +
			"made, boxlift does not trust the cluster's certificates")
		return
	}
	first := &j.subjects[server]
	ahead, uncertain := j.Offset-first.Offset, j.OffsetError+first.OffsetError
	found := "its clock is " + span(ahead, uncertain) + " that of " + first.Name
	needed := "the time of " + first.Name + ", the first server"
	behind := -ahead - uncertain // at least
	switch {
	case behind > maxBehind && behind >= first.caAge()-maxBehind:
		j.setsClock(Error, found,
			needed+", within "+maxBehind.String()+": before it the cluster's certificates are not valid yet", hint)
	case ahead.Abs()-uncertain > maxSkew:
		j.setsClock(Warning, found, needed+", within "+maxSkew.String(), hint)
	case uncertain > worthKnowing:
		j.warn(fmt.Sprintf("its clock was compared with that of %s to within %s only", first.Name, round(uncertain)),
			needed+", within "+maxSkew.String(),
			"compare the two: date -u +%s.%N")
	case first.Offset.Abs()-first.OffsetError <= maxOperatorSkew: // or else it has been said of the server
		j.compareWithOperator(hint)
	}
}

// setsClock tells of a clock that chrony sets: it is an error or a warning where install.yaml has no section time.
func (j *judgement) setsClock(severity, found, needed, hint string) {
	if j.Need.Config.Time == nil {
		j.add(severity, found, needed, hint)
		return
	}
	*j.findings = append(*j.findings, Finding{Host: j.Name, Check: j.check, Severity: Prepared, Unprepared: severity,
		Found: found, Needed: needed,
		Hint: "boxlift has chrony set it before k3s starts, because install.yaml has the section time"})
}

func (j *judgement) compareWithOperator(hint string) {
	if j.Offset.Abs()-j.OffsetError > maxOperatorSkew {
		j.warn("its clock is "+span(j.Offset, j.OffsetError)+" the operator's", "the same time, within "+
			maxOperatorSkew.String(), hint)
	}
}

// caAge is how long ago the cluster's certificate authority was made on the first
// server; 0 when it has not been made.
func (s *Subject) caAge() time.Duration {
	now, err := time.Parse(time.RFC3339Nano, s.Facts.Clock.Now)
	made, err2 := time.Parse(time.RFC3339Nano, s.Facts.K3s.Created)
	if err != nil || err2 != nil || !s.Facts.K3s.Managed {
		return 0
	}
	return max(0, now.Sub(made))
}

// span says "3.2s (give or take 100ms) behind".
func span(ahead, uncertain time.Duration) string {
	side := "ahead of"
	if ahead < 0 {
		side = "behind"
	}
	return fmt.Sprintf("%s (give or take %s) %s", round(ahead.Abs()), round(uncertain), side)
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// addresses returns the addresses of an interface with their networks.
func addresses(i facts.Interface) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range i.Addresses {
		if p, err := netip.ParsePrefix(text); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// has returns the interface that has an address.
func (s *Subject) has(a netip.Addr) (name string, network netip.Prefix, ok bool) {
	for _, i := range s.Facts.Network.Interfaces {
		for _, p := range addresses(i) {
			if p.Addr().Unmap() == a.Unmap() {
				return i.Name, p, true
			}
		}
	}
	return "", netip.Prefix{}, false
}

// defaultRoute returns the default route that is taken, of IPv4 or IPv6.
func (s *Subject) defaultRoute(v6 bool) (facts.Route, bool) {
	var best facts.Route
	found := false
	for _, r := range s.Facts.Network.Routes {
		if r.Default() && (r.Destination == "::/0") == v6 && (!found || r.Metric < best.Metric) {
			best, found = r, true
		}
	}
	return best, found
}

// NodeAddress is the address under which other nodes are going to reach a host: its
// nodeIP, or else the address it was logged in to if that is its own, or else the first
// one of the interface with the default route, which k3s takes. It needs the facts.
func NodeAddress(s Subject) string {
	if s.Config.NodeIP.IsValid() {
		return s.Config.NodeIP.String()
	}
	if s.Facts == nil {
		return s.Config.Host
	}
	if a, err := netip.ParseAddr(s.Config.Host); err == nil {
		if _, _, ok := s.has(a); ok {
			return a.String()
		}
	}
	for _, v6 := range []bool{false, true} {
		r, ok := s.defaultRoute(v6)
		if !ok {
			continue
		}
		for _, i := range s.Facts.Network.Interfaces {
			if i.Name != r.Interface {
				continue
			}
			for _, p := range addresses(i) {
				if p.Addr().Is6() == v6 && p.Addr().IsGlobalUnicast() {
					return p.Addr().String()
				}
			}
		}
	}
	return s.Config.Host
}

func judgeNodeIP(j *judgement) {
	ip := j.Subject.Config.NodeIP
	if !ip.IsValid() {
		return
	}
	if _, _, ok := j.has(ip); ok {
		return
	}
	var own []string
	for _, i := range j.facts.Network.Interfaces {
		for _, p := range addresses(i) {
			if p.Addr().IsGlobalUnicast() && !j.ofCluster(i.Name) {
				own = append(own, p.Addr().String()+" ("+i.Name+")")
			}
		}
	}
	j.fail(fmt.Sprintf("no interface has the nodeIP %s; there are %s", ip, cmpOr(strings.Join(own, ", "), "none")),
		"nodeIP to be an address of the host", "correct nodeIP in install.yaml, or leave it out, or add the address: "+
			"ip address add "+ip.String()+"/LENGTH dev INTERFACE")
}

func judgeDefaultRoute(j *judgement) {
	v6 := j.Need.Config.Network.Cilium.PodCIDR.Addr().Is6()
	r, ok := j.defaultRoute(v6)
	several := len(j.Need.Config.Hosts()) > 1
	const needed = "a default route, even where it leads nowhere: k3s and Cilium choose addresses and devices by it"
	const lasting = "; make it last in the network's configuration (NetworkManager, netplan, systemd-networkd or " +
		"/etc/network/interfaces)"
	switch {
	case !ok && several:
		gateway, device := j.spareAddress(v6)
		j.fail("there is no default route", needed, fmt.Sprintf("point it at an address of the LAN that nobody has: "+
			"ip route add default via %s dev %s%s. Do not use a dummy interface: with several hosts the nodes would "+
			"take its address", gateway, device, lasting))
	case !ok && v6:
		gateway, device := j.spareAddress(v6)
		j.fail("there is no default route", needed, fmt.Sprintf("point it at an address of the LAN that nobody has: "+
			"ip -6 route add default via %s dev %s%s", gateway, device, lasting))
	case !ok:
		j.fail("there is no default route", needed, "for a single host make a dummy: ip link add dummy0 type dummy "+
			"&& ip address add 203.0.113.254/31 dev dummy0 && ip link set dummy0 up && ip route add default via "+
			"203.0.113.255 dev dummy0 metric 1000"+lasting+
			". If more hosts are to come, point it at an unused address of the LAN instead: ip route add default via "+
			"ADDRESS dev INTERFACE")
	case several && strings.HasPrefix(r.Interface, "dummy"):
		severity := Error
		if j.Subject.Config.NodeIP.IsValid() {
			severity = Warning
		}
		gateway, device := j.spareAddress(v6)
		j.add(severity, "the default route goes to "+r.Interface, "a default route over the LAN: with several hosts "+
			"the nodes take the dummy's address and do not reach each other",
			fmt.Sprintf("replace it with: ip route delete default dev %s && ip route add default via %s dev %s%s",
				r.Interface, gateway, device, lasting))
	}
}

// spareAddress suggests an address of the host's LAN that is no host's: the last that is
// free. Somebody else may have it, of course.
func (j *judgement) spareAddress(v6 bool) (address, device string) {
	own, err := netip.ParseAddr(NodeAddress(*j.Subject))
	if err != nil || own.Is6() != v6 {
		return "ADDRESS", "INTERFACE"
	}
	device, network, ok := j.has(own)
	if !ok || v6 || network.Bits() > 30 {
		return "ADDRESS", cmpOr(device, "INTERFACE")
	}
	taken := j.hostAddresses()
	bytes := network.Masked().Addr().As4()
	for i := range bytes {
		bits := min(max(network.Bits()-8*i, 0), 8)
		bytes[i] |= byte(0xff >> bits)
	}
	for a := netip.AddrFrom4(bytes).Prev(); network.Contains(a); a = a.Prev() {
		if !taken[a] {
			return a.String(), device
		}
	}
	return "ADDRESS", device
}

// hostAddresses are all that belong to hosts of the cluster.
func (j *judgement) hostAddresses() map[netip.Addr]bool {
	all := make(map[netip.Addr]bool)
	for i := range j.subjects {
		s := &j.subjects[i]
		if a, err := netip.ParseAddr(s.Config.Host); err == nil {
			all[a] = true
		}
		if s.Config.NodeIP.IsValid() {
			all[s.Config.NodeIP] = true
		}
		if s.Facts == nil {
			continue
		}
		for _, i := range s.Facts.Network.Interfaces {
			for _, p := range addresses(i) {
				all[p.Addr()] = true
			}
		}
	}
	return all
}

func judgeResolvers(j *judgement) {
	usable := func(servers []string) bool {
		for _, text := range servers {
			a, err := netip.ParseAddr(text)
			if err != nil || !a.IsGlobalUnicast() {
				return false
			}
		}
		return len(servers) > 0
	}
	n := j.facts.Network
	// k3s takes the first of the two files of which all name servers are fit for pods.
	if usable(n.Resolvers) || usable(n.Upstream) || setting(j.K3sConfig, "resolv-conf") != "" {
		return
	}
	found := "/etc/resolv.conf names no name server"
	if len(n.Resolvers) > 0 {
		found = "/etc/resolv.conf names " + strings.Join(n.Resolvers, ", ") + ", which pods cannot reach"
	}
	j.warn(found, "a name server that pods can reach, or else k3s gives them 8.8.8.8, and each question about a name "+
		"outside the cluster waits for an answer that never comes",
		"name the LAN's server in /etc/resolv.conf; without one, write a file with `nameserver ` and a host's "+
			"address that answers nothing on port 53, and set resolv-conf to that file in the host's k3s settings")
}

func judgeFirewall(j *judgement) {
	open := j.openPorts()
	var cidrs []string
	for _, n := range j.networks() {
		cidrs = append(cidrs, n.prefix.String())
	}
	const needed = "no firewall, or one that lets through the hosts' ports and all traffic of pods and services"
	if hasFirewalld(j.facts) {
		commands := []string{}
		for _, p := range open {
			commands = append(commands, "--add-port="+p.String())
		}
		var trust []string
		for _, c := range cidrs {
			trust = append(trust, "--add-source="+c)
		}
		j.mend(Warning, "firewalld is active", needed, fmt.Sprintf("switch it off with: systemctl disable --now "+
			"firewalld, or open it with: firewall-cmd --permanent %s && firewall-cmd --permanent --zone=trusted "+
			"%s && firewall-cmd --reload",
			strings.Join(commands, " "), strings.Join(trust, " ")))
	}
	if hasUFW(j.facts) {
		var commands []string
		for _, p := range open {
			commands = append(commands, "ufw allow "+p.String())
		}
		for _, c := range cidrs {
			commands = append(commands, "ufw allow from "+c, "ufw route allow from "+c, "ufw route allow to "+c)
		}
		j.mend(Warning, "ufw is active", needed, "switch it off with: ufw disable, or open it with: "+
			strings.Join(commands, " && "))
	}
}

func judgeCloudSetup(j *judgement) {
	if on := cloudSetup(j.facts); len(on) > 0 {
		j.mend(Error, strings.Join(on, " and ")+" enabled or active", "nm-cloud-setup switched off: it removes "+
			"the routes of pods", "switch it off with: systemctl disable --now nm-cloud-setup.service "+
			"nm-cloud-setup.timer, and reboot")
	}
}

// ofCluster reports whether an interface is one that Cilium or another pod network makes. On
// a host of the cluster, the ends of its pods' interfaces are among them.
func (j *judgement) ofCluster(name string) bool {
	for _, prefix := range []string{"cilium", "lxc", "cni", "flannel", "kube-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return j.facts.K3s.Managed && strings.HasPrefix(name, "veth")
}

func judgeNetworks(j *judgement) {
	networks := j.networks()
	const choose = "set network.cilium.podCIDR, or service-cidr (and cluster-dns, an address in it) in the servers' " +
		"k3s settings, to a network that nobody uses, such as 10.142.0.0/16 and 10.143.0.0/16"
	if j.index == 0 {
		for i, a := range networks {
			for _, b := range networks[:i] {
				if a.prefix.Overlaps(b.prefix) {
					j.fail(fmt.Sprintf("%s %s and %s %s overlap", b.name, b.prefix, a.name, a.prefix),
						"networks of their own for pods and services", choose)
				}
			}
		}
	}
	hosts := j.hostAddresses()
	type use struct {
		prefix netip.Prefix
		text   string
	}
	var uses []use
	for _, i := range j.facts.Network.Interfaces {
		for _, p := range addresses(i) {
			if !j.ofCluster(i.Name) && !p.Addr().IsLoopback() {
				uses = append(uses, use{p.Masked(), fmt.Sprintf("%s has the address %s", i.Name, p)})
			}
		}
	}
	for _, r := range j.facts.Network.Routes {
		p, err := netip.ParsePrefix(r.Destination)
		gateway, _ := netip.ParseAddr(r.Gateway)
		// A cluster that runs has routes to the other nodes' pods.
		own := j.ofCluster(r.Interface) || j.facts.K3s.Managed && hosts[gateway]
		if err == nil && !r.Default() && !own {
			uses = append(uses, use{p.Masked(), fmt.Sprintf("%s is routed to %s", p, cmp.Or(r.Gateway, r.Interface))})
		}
	}
	for _, server := range slices.Concat(j.facts.Network.Resolvers, j.facts.Network.Upstream) {
		if a, err := netip.ParseAddr(server); err == nil && !a.IsLoopback() {
			a = a.WithZone("")
			uses = append(uses, use{netip.PrefixFrom(a, a.BitLen()), fmt.Sprintf("the name server is %s", a)})
		}
	}
	for _, n := range networks {
		var found []string
		for _, u := range uses {
			if n.prefix.Overlaps(u.prefix) && !slices.Contains(found, u.text) {
				found = append(found, u.text)
			}
		}
		if len(found) > 0 {
			more := ""
			if len(found) > 5 {
				more = fmt.Sprintf(" and %d more", len(found)-5)
				found = found[:5]
			}
			j.fail(strings.Join(found, ", ")+more, n.name+" "+n.prefix.String()+" for the cluster alone", choose)
		}
	}
}
