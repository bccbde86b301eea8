package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// routeProtocol marks the agent's routes, so that it removes no one else's. The number
	// is assigned to nobody.
	routeProtocol = 98
	// tunnelName, tunnelPort and tunnelID are those of Cilium's VXLAN tunnel: its link has
	// this name, and the port must be open between nodes.
	tunnelName     = "cilium_vxlan"
	tunnelPort     = 8472
	tunnelID       = 1
	tunnelOverhead = 50 // bytes that a packet gets longer by
)

// syncRoutes sends each range in ranges through the tunnel to its node, and refuses what of
// the pool belongs to none. own and address are this node's.
//
// Nodes need not tell each other anything: the far end of the tunnel has the first address
// of its range, which no pod gets, and a hardware address made of its node's address.
func syncRoutes(pool, own netip.Prefix, address netip.Addr, ranges map[netip.Prefix]netip.Addr) error {
	tunnel, err := ensureTunnel(own, address)
	if err != nil {
		return fmt.Errorf("set up the tunnel: %w", err)
	}
	refuse := route(pool)
	refuse.Type = unix.RTN_UNREACHABLE
	if err := netlink.RouteReplace(&refuse); err != nil {
		return fmt.Errorf("refuse the rest of %s: %w", pool, err)
	}
	for destination, node := range ranges {
		for _, neighbour := range neighbours(tunnel.Index, destination, node) {
			if err := netlink.NeighSet(&neighbour); err != nil {
				return fmt.Errorf("tell the tunnel where %s is: %w", node, err)
			}
		}
		r := route(destination)
		r.LinkIndex, r.Gw, r.Flags = tunnel.Index, destination.Addr().AsSlice(), int(netlink.FLAG_ONLINK)
		if err := netlink.RouteReplace(&r); err != nil {
			return fmt.Errorf("add a route to %s on %s: %w", destination, node, err)
		}
	}
	return errors.Join(removeRoutes(pool, ranges), removeNeighbours(tunnel.Index, ranges))
}

// ensureTunnel makes the tunnel's link unless it is there.
func ensureTunnel(own netip.Prefix, address netip.Addr) (*netlink.LinkAttrs, error) {
	mtu, err := mtuOf(address)
	if err != nil {
		return nil, err
	}
	wanted := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: tunnelName, MTU: mtu - tunnelOverhead, HardwareAddr: hardwareAddress(address)},
		VxlanId:   tunnelID, Port: tunnelPort, SrcAddr: address.AsSlice(), Learning: false,
	}
	present, err := netlink.LinkByName(tunnelName)
	if err == nil {
		vxlan, ok := present.(*netlink.Vxlan)
		if !ok || vxlan.VxlanId != wanted.VxlanId || vxlan.Port != wanted.Port || !vxlan.SrcAddr.Equal(wanted.SrcAddr) ||
			vxlan.MTU != wanted.MTU || !bytes.Equal(vxlan.HardwareAddr, wanted.HardwareAddr) {
			if err := netlink.LinkDel(present); err != nil {
				return nil, err
			}
			err = errors.New("removed")
		}
	}
	if err != nil {
		if err := netlink.LinkAdd(wanted); err != nil {
			return nil, err
		}
		if present, err = netlink.LinkByName(tunnelName); err != nil {
			return nil, err
		}
	}
	end := &netlink.Addr{IPNet: network(netip.PrefixFrom(own.Addr(), 32))}
	ends, err := netlink.AddrList(present, netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	for _, a := range ends {
		if !a.IP.Equal(end.IP) {
			if err := netlink.AddrDel(present, &a); err != nil {
				return nil, err
			}
		}
	}
	if err := netlink.AddrReplace(present, end); err != nil {
		return nil, err
	}
	return present.Attrs(), netlink.LinkSetUp(present)
}

// mtuOf is that of the link which has the node's address.
func mtuOf(address netip.Addr) (int, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return 0, err
	}
	for _, link := range links {
		addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil {
			return 0, err
		}
		for _, a := range addresses {
			if a.IP.Equal(address.AsSlice()) {
				return link.Attrs().MTU, nil
			}
		}
	}
	return 0, fmt.Errorf("no link has the node's address %s", address)
}

// neighbours are the two entries with which the tunnel finds a node: the hardware address of
// its end, and the node that has this address.
func neighbours(link int, destination netip.Prefix, node netip.Addr) []netlink.Neigh {
	hardware := hardwareAddress(node)
	return []netlink.Neigh{
		{LinkIndex: link, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: destination.Addr().AsSlice(), HardwareAddr: hardware},
		{LinkIndex: link, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, IP: node.AsSlice(), HardwareAddr: hardware},
	}
}

func hardwareAddress(node netip.Addr) net.HardwareAddr {
	return append(net.HardwareAddr{0x0e, 0xc1}, node.AsSlice()...)
}

// removeRoutes removes the agent's routes to what is not in ranges.
func removeRoutes(pool netip.Prefix, ranges map[netip.Prefix]netip.Addr) error {
	present, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range present {
		if destination, ok := prefixOf(r.Dst); ok && (destination == pool || ranges[destination].IsValid()) {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil {
			return fmt.Errorf("remove the route to %s: %w", r.Dst, err)
		}
	}
	return nil
}

// removeNeighbours removes the tunnel's entries for nodes that are not in ranges.
func removeNeighbours(link int, ranges map[netip.Prefix]netip.Addr) error {
	wanted := map[string]bool{}
	for _, node := range ranges {
		wanted[hardwareAddress(node).String()] = true
	}
	for _, family := range []int{unix.AF_INET, unix.AF_BRIDGE} {
		present, err := netlink.NeighList(link, family)
		if err != nil {
			return fmt.Errorf("list the tunnel's neighbours: %w", err)
		}
		for _, n := range present {
			if wanted[n.HardwareAddr.String()] || n.State&netlink.NUD_PERMANENT == 0 {
				continue
			}
			if err := netlink.NeighDel(&n); err != nil {
				return fmt.Errorf("remove the tunnel's neighbour %s: %w", n.IP, err)
			}
		}
	}
	return nil
}

func route(destination netip.Prefix) netlink.Route {
	return netlink.Route{Protocol: routeProtocol, Dst: network(destination)}
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	address, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits != 32 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(address.Unmap(), ones), true
}
