// Package timeservers reads the section time of install.yaml: which hosts serve time to the others, and what those
// follow. It finds every fault, with its place, and connects to nothing.
package timeservers

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/liteboxd/boxlift/install/config/parse"
	"github.com/liteboxd/boxlift/install/config/schema"
)

// Time says where the hosts have their time from.
type Time struct {
	// Servers are the hosts that serve it, by their host in the file, in the order of the file. All others follow them.
	Servers []string
	// Upstream are IP addresses in their canonical form, or DNS names in lower case, that those who serve follow.
	Upstream []string
}

const (
	// defaultServers is how many servers of the cluster serve time where the file does not say who does.
	defaultServers = 2
	// maxServers bounds those that the file names: each follows all the others.
	maxServers = 3
	// maxSources bounds what they follow.
	maxSources = 8
)

// Section is the section as it was read; nil for none.
type Section struct {
	Time
	named            []string
	places, upstream []schema.Node // where each of named and of Upstream is
}

// Read reads the section.
func Read(n schema.Node) *Section {
	s := &Section{}
	n.Mapping(
		schema.Optional("servers", "Hosts of this file that serve time to the others, by host or name, three at most. "+
			"Default: the first two servers.", func(n schema.Node) {
			n.List(func(_ int, item schema.Node) {
				s.named, s.places = append(s.named, schema.Text(item, parse.Host)), append(s.places, item)
			})
			if len(s.named) > maxServers {
				n.Fail("found %d servers of time, expected at most %d", len(s.named), maxServers)
			}
		}),
		schema.Optional("upstream", "Time servers in the LAN that those follow: IP addresses or DNS names. Default: "+
			"none, and the clock of the first of them counts.", func(n schema.Node) {
			n.List(func(_ int, item schema.Node) {
				source := schema.Text(item, parseSource)
				if source != "" && slices.Contains(s.Upstream, source) {
					item.Fail("found %s a second time, expected each once", source)
				}
				s.Upstream, s.upstream = append(s.Upstream, source), append(s.upstream, item)
			})
			if len(s.Upstream) > maxSources {
				n.Fail("found %d time servers, expected at most %d", len(s.Upstream), maxSources)
			}
		}),
	)
	return s
}

// parseSource accepts what another host serves time at.
func parseSource(s string) (string, error) {
	host, err := parse.Host(s)
	if err != nil {
		return "", err
	}
	if a, err := netip.ParseAddr(host); err == nil && (a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() ||
		a.IsLinkLocalUnicast()) {
		return "", errors.New("expected the IP address or the DNS name of a time server in the LAN")
	}
	return host, nil
}

// Host is a host of the file.
type Host struct {
	Host, Path string
	Names      []string // its host, name and nodeIP
	Server     bool     // of the cluster
	Serves     *bool    // is set for one that serves time
}

func (h Host) isCalled(name string) bool { return name != "" && slices.Contains(h.Names, name) }

// Resolve marks the hosts that serve time, and tells of what is none of the file.
func (s *Section) Resolve(hosts []Host) {
	for i, source := range s.Upstream {
		if slices.ContainsFunc(hosts, func(h Host) bool { return h.isCalled(source) }) {
			s.upstream[i].Fail("found %s, which is a host of this file: expected a time server beside them", source)
		}
	}
	if len(s.named) == 0 {
		for i, h := range hosts {
			*h.Serves = h.Server && i < defaultServers
		}
	}
	for i, name := range s.named {
		at := s.places[i]
		called := slices.DeleteFunc(slices.Clone(hosts), func(h Host) bool { return !h.isCalled(name) })
		switch {
		case name == "": // whatever is wrong has been said
		case len(called) == 0:
			at.Fail("found %s, expected the host or the name of a host of this file", name)
		case len(called) > 1:
			at.Fail("found %s, which both %s and %s are called: expected a name that one has", name, called[0].Path,
				called[1].Path)
		case *called[0].Serves:
			at.Fail("found %s a second time, expected each host once", name)
		default:
			*called[0].Serves = true
		}
	}
	for _, h := range hosts {
		if *h.Serves {
			s.Servers = append(s.Servers, h.Host)
		}
	}
}
