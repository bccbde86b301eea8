// Package naming reads the section names of install.yaml: names and their addresses, and which hosts serve them.
//
// Contract: as for package config, which it is a part of.
package naming

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config/parse"
	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/spelling"
)

// Section is what hosts and pods resolve without a DNS server, and what boxlift's own servers answer where there are
// any.
type Section struct {
	// Hosts are further names, in the order of the file, each once and in lower case.
	Hosts []Name
	// Ingress is where LiteBoxd's names answer; the zero Addr means the first server's own address.
	Ingress netip.Addr
	Pods    bool // pods resolve them as well, all but the nodes' own; true unless given
	// Serve says which hosts answer the names for the LAN, as DNS servers; nil for none. Fingerprints of files without
	// it are as before there was one.
	Serve *Serve `json:",omitempty"`
}

// Serve are DNS servers for the LAN.
type Serve struct {
	On []string // the Addresses of the hosts that serve, in the order of the file, at least one and each once
	// Upstream are the DNS servers that are asked for all other names, each once; none: other names are refused.
	Upstream []netip.Addr
}

// ServedOn reports whether the host with an Address is to serve the names.
func (s *Section) ServedOn(address string) bool {
	return s != nil && s.Serve != nil && slices.Contains(s.Serve.On, address)
}

// Host is a host of the file.
type Host struct {
	Path    string // where it is in the file
	Address string // host:port at which it is logged in to
	Host    string // IP address or DNS name
	Name    string // the node's, "" where the file does not say it
	NodeIP  netip.Addr
}

// lanAddress is where others reach a host; the zero Addr where the file says that by a name only.
func (h Host) lanAddress() netip.Addr {
	if h.NodeIP.IsValid() {
		return h.NodeIP
	}
	address, _ := netip.ParseAddr(h.Host) // of a host that is called by a name, it is not known
	return address
}

// Name is one name and its address.
type Name struct {
	Name    string
	Address netip.Addr
}

// Node is the section as it was read.
type Node struct {
	*Section
	at, ingress schema.Node
	hosts       []schema.Node // where each of Section.Hosts is
	serve       serveNode
}

// serveNode is names.serve as it was read.
type serveNode struct {
	on       []string
	ons      []schema.Node // where each of on is
	upstream []schema.Node // where each of Serve.Upstream is
}

// anyName are the keys of names.hosts. What is no DNS name is told with the name.
var anyName = lazyregexp.New(`^\S+$`)

// Read reads the section.
func Read(n schema.Node) Node {
	names := Node{Section: &Section{Pods: true}, at: n}
	present := n.Mapping(
		schema.Optional("hosts", "Names and their IP addresses.", func(n schema.Node) {
			n.Entries("a DNS name", anyName, func(key string, at, value schema.Node) {
				address := schema.Text(value, parseNamed)
				if n.Describes() {
					return
				}
				name, err := parseName(key)
				switch {
				case err != nil:
					at.Fail("found the name %s, %v", at.Found(), err)
				case address.IsValid():
					names.Hosts = append(names.Hosts, Name{name, address})
					names.hosts = append(names.hosts, at)
				}
			})
		}),
		schema.Optional("ingress", "Address at which the names of LiteBoxd's ingress answer. Default: that of "+
			"cluster.front, or else of the first server.", func(n schema.Node) { names.Ingress = schema.Text(n, parseNamed) }),
		schema.Optional("pods", "Pods resolve these names, too, through CoreDNS. Default: true.",
			func(n schema.Node) { names.Pods = n.Boolean() }),
		schema.Optional("serve", "Hosts that answer these names and those of the nodes for the LAN, as DNS servers. "+
			"Default: none.", names.readServe),
	)
	names.ingress = present["ingress"]
	return names
}

const (
	// maxServing is how many hosts may serve names: resolvers ask three (resolv.conf(5)).
	maxServing = 3
	// maxUpstream is how many servers may be asked for other names.
	maxUpstream = 8
)

func (n *Node) readServe(at schema.Node) {
	n.Serve = &Serve{}
	at.Mapping(
		schema.Required("on", "Hosts or names of hosts in this file, one to three.", func(at schema.Node) {
			at.List(func(_ int, item schema.Node) {
				if text := schema.Text(item, func(s string) (string, error) { return s, nil }); text != "" {
					n.serve.on, n.serve.ons = append(n.serve.on, text), append(n.serve.ons, item)
				}
			})
			if !at.Describes() && (len(n.serve.on) == 0 || len(n.serve.on) > maxServing) {
				at.Fail("found %d hosts, expected 1 to %d", len(n.serve.on), maxServing)
			}
		}),
		schema.Optional("upstream", "IP addresses of DNS servers that are asked for all other names. Default: none, "+
			"and other names are refused.", func(at schema.Node) {
			at.List(func(_ int, item schema.Node) {
				address := schema.Text(item, parseUpstream)
				switch {
				case !address.IsValid():
				case slices.Contains(n.Serve.Upstream, address):
					item.Fail("found %s a second time, expected it once", address)
				default:
					n.Serve.Upstream = append(n.Serve.Upstream, address)
					n.serve.upstream = append(n.serve.upstream, item)
				}
			})
			if len(n.Serve.Upstream) > maxUpstream {
				at.Fail("found %d servers, expected at most %d", len(n.Serve.Upstream), maxUpstream)
			}
		}),
	)
}

// parseUpstream accepts the address of a DNS server.
func parseUpstream(s string) (netip.Addr, error) {
	addr, err := parse.Addr(s)
	if err != nil || addr.IsLinkLocalUnicast() {
		return netip.Addr{}, errors.New("expected the IP address of a DNS server in the LAN")
	}
	return addr, nil
}

// checkServe finds the hosts that serve names. None may be asked by another: a name that no one knows would go round.
func checkServe(n Node, hosts []Host) {
	for i, text := range n.serve.on {
		at := n.serve.ons[i]
		h, err := findHost(hosts, text)
		switch {
		case err != nil:
			at.Fail("found %s, %v", at.Found(), err)
		case slices.Contains(n.Serve.On, h.Address):
			at.Fail("found %s a second time, expected each host once", at.Found())
		default:
			n.Serve.On = append(n.Serve.On, h.Address)
			for j, upstream := range n.Serve.Upstream {
				if address := h.lanAddress(); address == upstream {
					n.serve.upstream[j].Fail("found %s, which is a host that serves names itself: expected another "+
						"server, or none", upstream)
				}
			}
		}
	}
}

// findHost finds the host that a text means: its host, its name or its nodeIP.
func findHost(hosts []Host, text string) (Host, error) {
	address, err := parse.Host(text)
	var found []Host
	for _, h := range hosts {
		if h.Name == text || err == nil && (h.Host == address || h.NodeIP.IsValid() && h.NodeIP.String() == address) {
			found = append(found, h)
		}
	}
	switch len(found) {
	case 0:
		return Host{}, fmt.Errorf("expected the host or the name of a host in this file%s",
			guess(hosts, text))
	case 1:
		return found[0], nil
	}
	return Host{}, fmt.Errorf("which is %s and %s, expected a name that only one host has", found[0].Path,
		found[1].Path)
}

// guess names the host that was probably meant.
func guess(hosts []Host, text string) string {
	var known []string
	for _, h := range hosts {
		known = append(known, h.Name, h.Host)
	}
	if c := spelling.Closest(text, known, min(2, len(text)/4)); c != "" {
		return ": did you mean " + c + "?"
	}
	return ""
}

// parseNamed accepts an address that a name may have.
func parseNamed(s string) (netip.Addr, error) {
	addr, err := parse.Addr(s)
	if err != nil || addr.IsLinkLocalUnicast() {
		return netip.Addr{}, errors.New("expected an IP address by which all hosts reach it")
	}
	return addr, nil
}

// parseName accepts a name that may be given an address, and returns it in lower case.
func parseName(s string) (string, error) {
	name := strings.ToLower(s)
	under := func(domain string) bool { return name == domain || strings.HasSuffix(name, "."+domain) }
	switch {
	case strings.HasSuffix(name, "."):
		return "", errors.New("expected it without the dot at its end")
	case strings.ContainsAny(name, "*"):
		return "", errors.New("expected one name: /etc/hosts has no patterns")
	case !parse.IsName(name):
		return "", errors.New("expected a DNS name of a-z, 0-9, - and dots, such as git.lan")
	case under("localhost"), under("localdomain"):
		return "", errors.New("expected another name: this one is every host itself")
	case under("in-addr.arpa"), under("ip6.arpa"), under("invalid"):
		return "", errors.New("expected a name that can have an address")
	}
	return name, nil
}

// Cluster is what else of the file names have to do with.
type Cluster struct {
	Hosts []Host
	// Ingress are LiteBoxd's names, nil for a file without LiteBoxd.
	Ingress []string
	Domain  string // of the cluster's Services
}

// Check tells of names that cannot have two meanings, and finds the hosts that serve them. A file without the section
// has nothing to check.
func (n Node) Check(c Cluster) {
	if n.Section == nil {
		return
	}
	if c.Ingress == nil && !n.ingress.IsZero() {
		n.ingress.Fail("found an address for LiteBoxd's names, but the file has no section liteboxd")
	}
	if n.Serve != nil {
		checkServe(n, c.Hosts)
	}
	seen := make(map[string]netip.Addr)
	var kept []Name
	for i, name := range n.Hosts {
		at := n.hosts[i]
		other, again := seen[name.Name]
		switch {
		case again && other != name.Address:
			at.Fail("found %s a second time with another address, %s and %s: expected one address", name.Name, other,
				name.Address)
		case again:
			at.Fail("found %s a second time, expected it once", name.Name)
		case name.Name == c.Domain || strings.HasSuffix(name.Name, "."+c.Domain):
			at.Fail("found %s, expected a name outside %s: Kubernetes answers for those of Services itself", name.Name,
				c.Domain)
		}
		checkNodeName(at, name, c.Hosts)
		if n.Ingress.IsValid() && n.Ingress != name.Address && slices.Contains(c.Ingress, name.Name) {
			at.Fail("found %s for %s, but names.ingress has %s for it: expected one of them", name.Address, name.Name,
				n.Ingress)
		}
		if !again {
			seen[name.Name] = name.Address
			kept = append(kept, name)
		}
	}
	n.Section.Hosts = slices.Clip(kept)
}

// checkNodeName tells of a name that is a node's, with another address than the node's.
func checkNodeName(at schema.Node, name Name, hosts []Host) {
	for _, h := range hosts {
		if h.Name != name.Name {
			continue
		}
		address := h.lanAddress()
		if address.IsValid() && address != name.Address {
			at.Fail("found %s for %s, which is the node of %s: expected a name that no node "+
				"has", name.Address, name.Name,
				address)
		}
	}
}
