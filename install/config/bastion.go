package config

import (
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config/parse"
	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/internal/spelling"
)

// noBastion is what a host writes to be reached directly in spite of ssh.bastion.
const noBastion = "none"

// maxBastions bounds the hosts on the way to another. More are a mistake, and each is an
// SSH connection within the last one.
const maxBastions = 8

// bastionRef is a bastion as the file has it: none, the host or name of a host of the
// cluster, or a login of its own.
type bastionRef struct {
	at    schema.Node
	host  string    // "" for a login
	login *hostNode // nil for a host
}

func (d *decoder) bastion(n schema.Node) *bastionRef {
	ref := &bastionRef{at: n}
	n.Either(
		func(n schema.Node) { ref.host = schema.Text(n, func(s string) (string, error) { return s, nil }) },
		func(n schema.Node) { n.Defined("bastion", func(n schema.Node) { ref.login = d.login(n) }) },
	)
	if ref.host == "" && ref.login == nil {
		return nil // what is wrong has been said
	}
	return ref
}

// login reads a bastion that is no host of the cluster.
func (d *decoder) login(n schema.Node) *hostNode {
	h := &hostNode{Host: Host{Path: n.Path(), Line: n.Line(), Port: 22, User: "root"}, at: n}
	n.Needs(false, loginMeans...)
	h.fields = n.Mapping(append([]schema.Field{schema.Required("host",
		"IP address or DNS name of the jump host, without user and port.",
		func(n schema.Node) { h.Host.Host = schema.Text(n, parse.Host) })}, d.loginFields(h)...)...)
	if len(h.fields) > 0 {
		h.checkLogin()
	}
	return h
}

// bastions finds the hosts that references mean.
type bastions struct {
	nodes    []hostNode
	hosts    []*Host        // the same hosts, where the configuration keeps them
	reported map[*Host]bool // on a circle that has been reported
}

// resolveBastions sets Bastion of every host. c holds the same hosts as nodes, servers
// first.
func resolveBastions(c *Cluster, nodes []hostNode, fallback *bastionRef) {
	b := bastions{nodes: nodes, reported: map[*Host]bool{}}
	for i := range c.Servers {
		b.hosts = append(b.hosts, &c.Servers[i])
	}
	for i := range c.Agents {
		b.hosts = append(b.hosts, &c.Agents[i])
	}
	for i, n := range nodes {
		if n.through != nil {
			b.hosts[i].Bastion = b.find(n.through)
		}
	}
	for i, n := range nodes {
		if n.through != nil {
			b.checkWay(b.hosts[i], n.through)
		}
	}
	if fallback == nil {
		return
	}
	if c.AbsentAgentLogin == nil && !slices.ContainsFunc(nodes, func(n hostNode) bool { return !n.Local }) {
		fallback.at.Fail("found a bastion, expected none: no host is logged in to")
		return
	}
	first := b.find(fallback)
	start := &Host{Bastion: first}
	b.checkWay(start, fallback)
	if c.AbsentAgentLogin != nil {
		c.AbsentAgentLogin.Bastion = first
	}
	// Whatever stands on the way to the common bastion cannot be reached through it.
	way, _ := wayTo(start)
	for i, n := range nodes {
		if n.through == nil && !n.Local && !slices.ContainsFunc(way, func(w *Host) bool { return same(w, b.hosts[i]) }) {
			b.hosts[i].Bastion = first
		}
	}
}

// find returns the host that a reference means. The reference of a login's own bastion
// is followed too.
func (b bastions) find(ref *bastionRef) *Host {
	if ref.login != nil {
		h := &ref.login.Host
		if ref.login.through != nil {
			h.Bastion = b.find(ref.login.through)
		}
		return h
	}
	if ref.host == noBastion {
		return nil
	}
	address, err := parse.Host(ref.host)
	var found []int
	for i, n := range b.nodes {
		if n.Name == ref.host || err == nil && n.Host.Host == address {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		ref.at.Fail("found %s, expected the host or the name of another host in this file, a mapping with a login of "+
			"its own, or none%s", ref.at.Found(), b.guess(ref.host))
		return nil
	case 1:
		if b.hosts[found[0]].Local {
			ref.at.Fail("found %s, which is the machine that boxlift runs on, expected no bastion: it is on the way anyhow",
				ref.at.Found())
			return nil
		}
		return b.hosts[found[0]]
	}
	ref.at.Fail("found %s, which is %s and %s, expected a name that only one host has",
		ref.at.Found(), b.nodes[found[0]].Path, b.nodes[found[1]].Path)
	return nil
}

// guess names the host that was probably meant.
func (b bastions) guess(host string) string {
	var known []string
	for _, n := range b.nodes[:min(len(b.nodes), 50)] {
		known = append(known, n.Name, n.Host.Host)
	}
	if c := spelling.Closest(host, known, min(2, len(host)/4)); c != "" {
		return ": did you mean " + c + "?"
	}
	return ""
}

// checkWay reports a way to a host that comes by the same place twice.
func (b bastions) checkWay(h *Host, ref *bastionRef) {
	if h.Bastion == nil {
		return
	}
	if h.Host != "" && same(h, h.Bastion) {
		ref.at.Fail("found the host itself, expected another host")
		b.reported[h] = true
		return
	}
	way, round := wayTo(h)
	switch {
	case len(way) > maxBastions:
		ref.at.Fail("found more than %d bastions, one behind the other", maxBastions)
	case round == nil || b.reported[h] || slices.ContainsFunc(way, func(w *Host) bool { return b.reported[w] }):
	case round == h || round.Role == "":
		// Every other host of the cluster that the way comes round to says so itself.
		b.reported[h] = true
		names := []string{h.place()}
		for _, w := range way {
			b.reported[w] = true
			names = append(names, w.place())
		}
		ref.at.Fail("found bastions that lead in a circle: %s", strings.Join(append(names, round.place()), " through "))
	}
}

// wayTo returns the bastions of a host, the nearest first, and the host at which the way
// comes round to where it has been, if it does. It ends after one bastion too many.
func wayTo(h *Host) (way []*Host, round *Host) {
	been := []*Host{h}
	for next := h.Bastion; next != nil && len(way) <= maxBastions; next = next.Bastion {
		if i := slices.IndexFunc(been, func(b *Host) bool { return same(b, next) }); i >= 0 {
			return way, been[i]
		}
		been, way = append(been, next), append(way, next)
	}
	return way, nil
}

// same reports whether two logins lead to one machine.
func same(a, b *Host) bool {
	return a == b || a.Host != "" && a.Address() == b.Address()
}

// place is what messages call a host.
func (h *Host) place() string {
	switch {
	case h.Name != "":
		return h.Name
	case h.Host == "":
		return "ssh.bastion"
	}
	return h.Address()
}
