package config

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config/naming"
)

// Names are the section names.
type Names = naming.Section

// Name is one name and its address.
type Name = naming.Name

// Given are the names that the file gives, and those of LiteBoxd's ingress, each once, without those of nodes. The
// names of the ingress answer at the address that the file has for them, or else at the front's, which outlives any
// server. ingress is where they answer when there is neither; the zero Addr leaves a name out.
func (c *Config) Given(ingress func(name string) netip.Addr) []Name {
	if c.Names == nil {
		return nil
	}
	list := slices.Clone(c.Names.Hosts)
	if c.LiteBoxd == nil {
		return list
	}
	for _, name := range []string{c.LiteBoxd.IngressHost, c.LiteBoxd.GatewayIngressHost} {
		address := c.Names.Ingress
		if !address.IsValid() && c.Cluster.Front != nil {
			address = c.Cluster.Front.VIP
		}
		if !address.IsValid() {
			address = ingress(name)
		}
		isThere := slices.ContainsFunc(list, func(n Name) bool { return n.Name == name })
		if !isThere && address.IsValid() {
			list = append(list, Name{Name: name, Address: address})
		}
	}
	return list
}

// checkNames checks the section names against the rest of the file.
func checkNames(n naming.Node, cfg *Config, hosts []hostNode) {
	c := naming.Cluster{Domain: clusterDomain(cfg)}
	for _, h := range hosts {
		c.Hosts = append(c.Hosts, naming.Host{Path: h.Path, Address: h.Address(), Host: h.Host.Host, Name: h.Name,
			NodeIP: h.NodeIP})
	}
	if box := cfg.LiteBoxd; box != nil {
		c.Ingress = []string{box.IngressHost, box.GatewayIngressHost}
	}
	n.Check(c)
}

// clusterDomain is the domain of the cluster's Services.
func clusterDomain(cfg *Config) string {
	for _, s := range cfg.Cluster.Servers {
		if domain, ok := s.K3s.Config["cluster-domain"].(string); ok && domain != "" {
			return strings.ToLower(domain)
		}
		for _, setting := range s.K3s.Settings {
			if setting.Key == "cluster-domain" && len(setting.Values) > 0 {
				return strings.ToLower(setting.Values[0])
			}
		}
	}
	return "cluster.local"
}
