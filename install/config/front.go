package config

import "github.com/liteboxd/boxlift/install/config/front"

// resolveFront gives the cluster what follows from its front: its endpoint, and the names in the servers' certificates.
func resolveFront(c *clusterNode) {
	if c.front == nil {
		return
	}
	var hosts []front.Host
	for _, h := range c.hosts() {
		hosts = append(hosts, front.Host{Path: h.Path, Host: h.Host.Host, Name: h.Name, NodeIP: h.NodeIP,
			Server: h.Role == Server})
	}
	if c.Front = c.front.Resolve(hosts); c.Front == nil {
		return
	}
	if c.APIEndpoint == "" {
		c.APIEndpoint = c.Front.Endpoint()
	}
	for i := range c.servers {
		for _, name := range c.front.Names(hosts) {
			c.servers[i].K3s.TLSSAN = appendNew(c.servers[i].K3s.TLSSAN, name)
		}
	}
}
