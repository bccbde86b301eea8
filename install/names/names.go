// Package names gives hosts and pods names that they resolve without a DNS server: those of the nodes, those that
// install.yaml has in its section names, and those of LiteBoxd's ingress.
//
// Contract: on hosts they stand in a block of /etc/hosts between two lines of boxlift's; everything outside is never
// changed, byte by byte, and the file is replaced at once, with its mode and owner. For pods, CoreDNS answers them by
// one key of the ConfigMap kube-system/coredns-custom, which k3s' Corefile imports; keys of others stay as they are.
// Both are written where they differ, and taken away where install.yaml has no such section any more, or the host
// leaves.
package names

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// hostsFile is hosts(5).
const hostsFile = "/etc/hosts"

// Namer gives names to hosts and pods.
type Namer struct {
	Site    *site.Site
	Engine  *run.Engine
	Cluster *k3s.Cluster
}

// given are the names that install.yaml gives and those of LiteBoxd's ingress ([config.Config.Given]). Where the
// ingress goes by the first server and nobody knows that one's address, its names keep the addresses that they have.
func given(s *site.Site, have []entry) []config.Name {
	return s.Config.Given(func(name string) netip.Addr {
		if first := addressOf(s, s.Config.Cluster.Servers[0]); first.IsValid() {
			return first
		}
		return addressIn(have, name)
	})
}

// hostOf is a host of install.yaml that the run works on, nil for none.
func hostOf(s *site.Site, c config.Host) *site.Host {
	i := slices.IndexFunc(s.Hosts, func(h *site.Host) bool { return h.Config.Path == c.Path && h.Config.Host == c.Host })
	if i < 0 {
		return nil
	}
	return s.Hosts[i]
}

// addressOf is the address of a host: what it has said, or else what install.yaml has. It is the zero Addr of one that
// is called by a name and has not been asked.
func addressOf(s *site.Site, c config.Host) netip.Addr {
	if h := hostOf(s, c); h != nil && h.IP.IsValid() {
		return h.IP
	}
	if c.NodeIP.IsValid() {
		return c.NodeIP
	}
	address, _ := netip.ParseAddr(c.Host)
	return address
}

// addressIn is the address of a name in a hosts file.
func addressIn(have []entry, name string) netip.Addr {
	for _, e := range have {
		if slices.Contains(e.names, name) {
			return e.address
		}
	}
	return netip.Addr{}
}

// Hosts brings the names to the hosts, or takes them away.
func (n *Namer) Hosts(ctx context.Context) error {
	return n.Engine.EachHost(ctx, n.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		return n.Engine.RunSteps(ctx, "prepare", &h.Subject, []run.Step{n.hostStep(h)})
	})
}

func (n *Namer) hostStep(h *site.Host) run.Step {
	return run.Step{
		ID: "write-names", Title: "write names into " + hostsFile,
		Needed: func(ctx context.Context) (string, error) {
			before, after, err := n.hostsFiles(ctx, h)
			switch {
			case err != nil || bytes.Equal(before, after):
				return "", err
			case n.Site.Config.Names == nil:
				return "install.yaml has no names any more, and " + hostsFile + " has", nil
			case !bytes.Contains(before, []byte(endLine)):
				return hostsFile + " does not have the names of install.yaml", nil
			}
			return "the names in " + hostsFile + " differ", nil
		},
		Run: func(ctx context.Context) error {
			before, after, err := n.hostsFiles(ctx, h)
			if err != nil || bytes.Equal(before, after) {
				return err
			}
			return replace(ctx, h.Conn, before, after)
		},
	}
}

// replace puts another hosts file in the place of the one that is there.
func replace(ctx context.Context, conn machine.Host, before, after []byte) error {
	if before == nil {
		return machine.Write(ctx, conn, hostsFile, 0o644, after)
	}
	return machine.Replace(ctx, conn, hostsFile, before, after)
}

// hostsFiles are the hosts file as it is, nil for none, and as it is to be.
func (n *Namer) hostsFiles(ctx context.Context, h *site.Host) (before, after []byte, err error) {
	if n.Site.Config.Names == nil {
		if there, err := hasBlock(ctx, h.Conn); err != nil || !there {
			return nil, nil, err
		}
	}
	p, before, err := readHosts(ctx, h.Conn)
	switch {
	case err != nil:
		return nil, nil, err
	case n.Site.Config.Names == nil:
		return before, p.without(), nil
	}
	wanted := n.wanted(entries(p.block))
	n.tellOthers(h, slices.Concat(entries(p.before), entries(p.after)), wanted)
	lines := make([]string, 0, len(wanted))
	for _, e := range wanted {
		lines = append(lines, e.address.String()+" "+strings.Join(e.names, " "))
	}
	return before, p.with(lines), nil
}

// hasBlock reports whether a host has a block, however large its file is: one that was never given names is not read.
func hasBlock(ctx context.Context, conn machine.Host) (bool, error) {
	const script = `grep -saxF "$1" "$2" | head -n 1`
	out, err := machine.Root(ctx, conn, "look for boxlift's block in "+hostsFile, "/bin/sh", "-c", script, "sh", endLine,
		hostsFile)
	return len(out) > 0, err
}

func readHosts(ctx context.Context, conn machine.Host) (p parts, content []byte, err error) {
	content, isThere, err := machine.Content(ctx, conn, hostsFile)
	if err != nil {
		return parts{}, nil, err
	}
	if !isThere {
		content = nil
	} else if content == nil {
		content = []byte{}
	}
	if p, err = split(content); err != nil {
		err = fault.OnHost(fault.WithHint(fault.Host.Wrap(fmt.Errorf("read %s: %w", hostsFile, err)),
			"remove the lines that begin with \"# begin boxlift\" and \"# end boxlift\", and what boxlift wrote "+
				"between them, from "+
				hostsFile+" on the host; then run the same command again"), conn.Name())
	}
	return p, content, err
}

// wanted are the lines of the block: hosts in the order of install.yaml, then other addresses in the order of their
// names. A host that this run does not work on keeps the name that the block has for its address: only the host knows
// it. No host has a name that install.yaml gives another address.
func (n *Namer) wanted(have []entry) []entry {
	var list []entry
	add := func(address netip.Addr, names ...string) {
		i := slices.IndexFunc(list, func(e entry) bool { return e.address == address })
		if i < 0 {
			i = len(list)
			list = append(list, entry{address: address})
		}
		for _, name := range names {
			if !slices.Contains(list[i].names, name) {
				list[i].names = append(list[i].names, name)
			}
		}
	}
	given := given(n.Site, have)
	isGiven := func(name string) bool {
		return slices.ContainsFunc(given, func(g config.Name) bool { return g.Name == name })
	}
	isElsewhere := func(name string, address netip.Addr) bool {
		return slices.ContainsFunc(given, func(g config.Name) bool { return g.Name == name && g.Address != address })
	}
	for _, c := range n.Site.Config.Hosts() {
		address, name := addressOf(n.Site, c), c.Name
		if h := hostOf(n.Site, c); h != nil {
			name = h.NodeName()
		}
		if !address.IsValid() {
			address = addressIn(have, name)
		}
		switch {
		case !address.IsValid(), isElsewhere(name, address): // what install.yaml gives counts, not what a host says
		case name != "":
			add(address, name)
		default:
			for _, e := range have {
				if e.address == address {
					add(address, slices.DeleteFunc(slices.Clone(e.names), isGiven)...)
				}
			}
		}
	}
	for _, g := range given {
		add(g.Address, g.Name)
	}
	return slices.DeleteFunc(list, func(e entry) bool { return len(e.names) == 0 })
}

// Wanted are all names that hosts have, those of nodes among them. Those of one address stand together.
func (n *Namer) Wanted() []config.Name { return named(n.wanted(nil)) }

// Of are the names that one host is to have. It keeps those that it has of nodes that this run does not work on.
func (n *Namer) Of(ctx context.Context, h *site.Host) ([]config.Name, error) {
	p, _, err := readHosts(ctx, h.Conn)
	if err != nil {
		return nil, err
	}
	return named(n.wanted(entries(p.block))), nil
}

func named(entries []entry) []config.Name {
	var list []config.Name
	for _, e := range entries {
		for _, name := range e.names {
			list = append(list, config.Name{Name: name, Address: e.address})
		}
	}
	return list
}

// tellOthers tells of names that the hosts file has elsewhere with another address: the first one counts.
func (n *Namer) tellOthers(h *site.Host, others, wanted []entry) {
	for _, e := range wanted {
		for _, name := range e.names {
			for _, other := range others {
				if other.address != e.address && name != h.NodeName() && slices.Contains(other.names, name) {
					n.Site.Warn("%s: %s has %s for %s outside boxlift's block, which has %s: remove that line, or "+
						"the name from "+
						"install.yaml", h.Name, hostsFile, other.address, printable.Short(name, 100), e.address)
				}
			}
		}
	}
}

// TakeAway takes the names out of a host that leaves.
func (n *Namer) TakeAway(conn machine.Host) run.Step {
	return run.Step{
		ID: "remove-names", Title: "take names out of " + hostsFile,
		Needed: func(ctx context.Context) (string, error) {
			if there, err := hasBlock(ctx, conn); err != nil || !there {
				return "", err
			}
			return hostsFile + " has names of install.yaml", nil
		},
		Run: func(ctx context.Context) error {
			p, before, err := readHosts(ctx, conn)
			if err != nil || !p.there {
				return err
			}
			return replace(ctx, conn, before, p.without())
		},
	}
}
