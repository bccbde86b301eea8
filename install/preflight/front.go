package preflight

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/liteboxd/boxlift/node/facts"
)

// FrontInterface is the interface of a host that the front's address belongs to: the one that has the host's own
// address, in a network that the front's is in. Where there is none, why says so.
func FrontInterface(f *facts.Facts, own, vip netip.Addr) (name, why string) {
	for _, one := range f.Network.Interfaces {
		for _, text := range one.Addresses {
			p, err := netip.ParsePrefix(text)
			if err != nil || p.Addr() != own {
				continue
			}
			if !p.Contains(vip) {
				return "", fmt.Sprintf("%s has %s, and %s is not in that network", one.Name, p, vip)
			}
			return one.Name, ""
		}
	}
	return "", fmt.Sprintf("no interface has the host's own address %s", own)
}

func judgeFront(j *judgement) {
	front := j.Need.Config.Cluster.Front
	if front == nil || !slices.Contains(front.On, j.Subject.Config.Path) {
		return
	}
	own := j.Subject.Config.NodeIP
	if !own.IsValid() {
		var err error
		if own, err = netip.ParseAddr(j.Subject.Config.Host); err != nil { // it is called by a name
			own, _ = netip.ParseAddr(NodeAddress(*j.Subject)) // what is not known is no finding
		}
	}
	if own.IsValid() {
		if _, why := FrontInterface(j.facts, own, front.VIP); why != "" {
			j.add(Error, why, "a network that the host and cluster.front.vip are in",
				"write an address of the servers' network as cluster.front.vip, or the host's address in the network "+
					"of the front as its nodeIP")
		}
	}
	if j.FrontOccupant != "" {
		j.add(Error, fmt.Sprintf("a machine with the hardware address %s answers at %s and is no host of this cluster",
			j.FrontOccupant, front.VIP), "an address that nobody has as cluster.front.vip",
			"take another one, or the address away from that machine; on the host: ip neigh show "+front.VIP.String())
	}
}
