// Package front reads the front of install.yaml: an address that servers have in turn.
//
// Contract: what is wrong in itself, or does not go together with the hosts of the file, is told at its place
// ([schema.Node]). How long the prefix of the servers' network is, only the hosts know: an address that is probably in
// another network is warned of.
package front

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/liteboxd/boxlift/install/config/parse"
	"github.com/liteboxd/boxlift/install/config/schema"
)

// Front is an address that several servers have in turn.
type Front struct {
	// VIP is the address, one of IPv4.
	VIP netip.Addr
	// On are the servers that may have it, by their place in the file, the one first that has it while all are well.
	On []string
}

// Host is a host of the file.
type Host struct {
	Path       string // its place in the file
	Host, Name string
	NodeIP     netip.Addr
	Server     bool // it is no agent
}

// address is the host's own, the zero Addr where the file does not say it.
func (h Host) address() netip.Addr {
	if h.NodeIP.IsValid() {
		return h.NodeIP
	}
	address, _ := netip.ParseAddr(h.Host) // it is called by a name
	return address
}

// Node is the front as it was read.
type Node struct {
	Front
	at, on schema.Node
	// VIPAt is where the address stands.
	VIPAt schema.Node
	named []name // nil for all servers
}

// name is a server as the front names it.
type name struct {
	at   schema.Node
	text string
}

// allServers is the value of on that is no list.
const allServers = "servers"

// Read reads a front.
func Read(n schema.Node) *Node {
	front := &Node{at: n}
	present := n.Mapping(
		schema.Required("vip", "IPv4 address that is no host's own, in the network that the servers are in.",
			func(n schema.Node) { front.VIP = schema.Text(n, parseVIP) }),
		schema.Optional("on", "Which servers may have it: servers for all, or a list of their hosts or names, the one "+
			"first that is to have it while all are well. Default: servers.",
			func(n schema.Node) { n.TextOrList(readAll, front.readNames) }),
	)
	front.VIPAt, front.on = n, n
	if at, given := present["vip"]; given {
		front.VIPAt = at
	}
	if at, given := present["on"]; given {
		front.on = at
	}
	return front
}

func readAll(n schema.Node) {
	schema.Text(n, func(s string) (string, error) {
		if s != allServers {
			return "", errors.New("expected servers, or a list of hosts")
		}
		return s, nil
	})
	n.Among(allServers)
}

func (f *Node) readNames(n schema.Node) {
	f.named = []name{}
	n.List(func(_ int, item schema.Node) {
		// What it means, the rest of the file says.
		if text := schema.Text(item, func(s string) (string, error) { return s, nil }); text != "" {
			f.named = append(f.named, name{item, text})
		}
	})
}

// parseVIP accepts an address that hosts can have in turn.
func parseVIP(s string) (netip.Addr, error) {
	addr, err := parse.Addr(s)
	if err != nil || !addr.Is4() || addr.IsLinkLocalUnicast() {
		return netip.Addr{}, errors.New("expected an IPv4 address of the servers' network, such as 10.0.0.10")
	}
	return addr, nil
}

// Resolve finds the servers that may have the address among the hosts of the file. It is nil where the address cannot
// be read.
func (f *Node) Resolve(hosts []Host) *Front {
	if !f.VIP.IsValid() {
		return nil
	}
	servers := slices.DeleteFunc(slices.Clone(hosts), func(h Host) bool { return !h.Server })
	if f.named == nil {
		for _, s := range servers {
			f.On = append(f.On, s.Path)
		}
	}
	for _, n := range f.named {
		if path := n.find(hosts); path != "" && slices.Contains(f.On, path) {
			n.at.Fail("found %s a second time, expected each server once", n.at.Found())
		} else if path != "" {
			f.On = append(f.On, path)
		}
	}
	switch {
	case len(f.On) == 1 && len(servers) == 1:
		f.at.Fail("found an address for servers to have in turn, and one server: expected three servers, or the key " +
			"left out")
	case len(f.On) == 1 && len(f.named) == 1:
		f.on.Fail("found one server, expected two at least: an address that cannot move is of no use")
	}
	for _, h := range hosts {
		if h.Host == f.VIP.String() || h.NodeIP == f.VIP {
			f.VIPAt.Fail("found %s, which is the address of %s, expected one that no host has", f.VIP, h.Path)
		}
	}
	f.warnOfOtherNetwork(servers)
	return &f.Front
}

// Endpoint is where the API answers at the address: host:port, with the port of k3s' servers.
func (f *Front) Endpoint() string {
	const port = 6443
	return netip.AddrPortFrom(f.VIP, port).String()
}

// Names are what the servers' certificates are to be for: the address, and those of all servers.
func (f *Node) Names(hosts []Host) []string {
	names := []string{f.VIP.String()}
	for _, h := range hosts {
		if h.Server && h.Host != "" && h.Host != "localhost" { // a local host may have no other
			names = append(names, h.Host)
		}
		if h.Server && h.NodeIP.IsValid() {
			names = append(names, h.NodeIP.String())
		}
	}
	return names
}

// find is the place of the server that is meant, "" for none.
func (n name) find(hosts []Host) string {
	address, err := parse.Host(n.text)
	var found []Host
	for _, h := range hosts {
		if h.Name == n.text || err == nil && h.Host == address {
			found = append(found, h)
		}
	}
	switch {
	case len(found) == 0:
		n.at.Fail("found %s, expected the host or the name of a server in this file", n.at.Found())
	case len(found) > 1:
		n.at.Fail("found %s, which is %s and %s, expected a name that only one host has", n.at.Found(), found[0].Path,
			found[1].Path)
	case !found[0].Server:
		n.at.Fail("found %s, which is an agent, expected a server: the address is where the API answers, and it answers "+
			"on servers alone", n.at.Found())
	default:
		return found[0].Path
	}
	return ""
}

// warnOfOtherNetwork tells of an address that is probably not in the servers' network.
func (f *Node) warnOfOtherNetwork(servers []Host) {
	const bits = 16
	network, err := f.VIP.Prefix(bits)
	if err != nil {
		return
	}
	for _, h := range servers {
		if slices.Contains(f.On, h.Path) && h.address().Is4() && !network.Contains(h.address()) {
			f.VIPAt.Warn("%s and %s, the address of %s, seem to be in different networks: the address has to be one of the "+
				"network that the servers are in", f.VIP, h.address(), h.Path)
			return
		}
	}
}
