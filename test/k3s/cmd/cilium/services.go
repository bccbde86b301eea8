package main

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Protocols, as in the IPv4 header.
const (
	tcp = 6
	udp = 17
)

// frontend is an address of a Service and where its traffic goes. Without backends its
// traffic is refused.
type frontend struct {
	// Addr is a cluster address, or one of a load balancer; the zero value is every
	// address of this node, for a node port.
	Addr     netip.Addr
	Protocol uint8
	Port     uint16
	// External marks what may be reached from outside the cluster: there the answer must
	// come back through this node.
	External bool
	// Sticky sends a client to the same backend each time.
	Sticky   bool
	Backends []netip.AddrPort
}

// table is all that this node forwards.
type table struct {
	Frontends  []frontend
	ClusterIPs []netip.Addr // sorted
	Filters    []filter     // what NetworkPolicies say
}

// newTable gives the table of node from the cluster's Services and their endpoints. What
// is not IPv4, TCP or UDP is left out.
func newTable(services []*corev1.Service, endpointSlices []*discoveryv1.EndpointSlice, node string) table {
	of := map[types.NamespacedName][]*discoveryv1.EndpointSlice{}
	for _, slice := range endpointSlices {
		if name := slice.Labels[discoveryv1.LabelServiceName]; name != "" && slice.AddressType == discoveryv1.AddressTypeIPv4 {
			key := types.NamespacedName{Namespace: slice.Namespace, Name: name}
			of[key] = append(of[key], slice)
		}
	}
	var t table
	for _, service := range services {
		clusterIPs := addresses(append([]string{service.Spec.ClusterIP}, service.Spec.ClusterIPs...))
		if service.Spec.Type == corev1.ServiceTypeExternalName || len(clusterIPs) == 0 {
			continue
		}
		t.ClusterIPs = append(t.ClusterIPs, clusterIPs...)
		outside := slices.Clone(service.Spec.ExternalIPs)
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			outside = append(outside, ingress.IP)
		}
		localOnly := service.Spec.InternalTrafficPolicy != nil && *service.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
		localOutside := service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
		for _, port := range service.Spec.Ports {
			f := frontend{Port: uint16(port.Port), Sticky: service.Spec.SessionAffinity == corev1.ServiceAffinityClientIP}
			switch port.Protocol {
			case corev1.ProtocolTCP, "":
				f.Protocol = tcp
			case corev1.ProtocolUDP:
				f.Protocol = udp
			default:
				continue
			}
			endpoints := of[types.NamespacedName{Namespace: service.Namespace, Name: service.Name}]
			f.Backends = backends(endpoints, port, node, localOnly)
			for _, address := range clusterIPs {
				f.Addr = address
				t.Frontends = append(t.Frontends, f)
			}
			f.Backends = backends(endpoints, port, node, localOutside)
			// Behind a local policy the client's address is kept: backends are on this node.
			f.External = !localOutside
			for _, address := range addresses(outside) {
				f.Addr = address
				t.Frontends = append(t.Frontends, f)
			}
			if port.NodePort != 0 {
				f.Addr, f.Port = netip.Addr{}, uint16(port.NodePort)
				t.Frontends = append(t.Frontends, f)
			}
		}
	}
	slices.SortFunc(t.Frontends, func(a, b frontend) int {
		// Node ports last: their address is the least exact.
		return cmp.Or(boolean(!a.Addr.IsValid())-boolean(!b.Addr.IsValid()), a.Addr.Compare(b.Addr),
			cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	slices.SortFunc(t.ClusterIPs, netip.Addr.Compare)
	t.ClusterIPs = slices.Compact(t.ClusterIPs)
	return t
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// addresses gives the IPv4 ones, sorted, each once.
func addresses(texts []string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil && address.Is4() {
			list = append(list, address)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// backends lists the ready endpoints of a port, sorted; where none is ready, those that
// still serve while they end.
func backends(endpointSlices []*discoveryv1.EndpointSlice, port corev1.ServicePort, node string, localOnly bool) []netip.AddrPort {
	var ready, ending []netip.AddrPort
	for _, slice := range endpointSlices {
		for _, p := range slice.Ports {
			if p.Port == nil || (p.Name == nil && port.Name != "") || (p.Name != nil && *p.Name != port.Name) {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				if localOnly && (endpoint.NodeName == nil || *endpoint.NodeName != node) {
					continue
				}
				c := endpoint.Conditions
				for _, address := range addresses(endpoint.Addresses[:min(len(endpoint.Addresses), 1)]) {
					backend := netip.AddrPortFrom(address, uint16(*p.Port))
					switch {
					case c.Ready == nil || *c.Ready:
						ready = append(ready, backend)
					case c.Serving != nil && *c.Serving:
						ending = append(ending, backend)
					}
				}
			}
		}
	}
	if len(ready) == 0 {
		ready = ending
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return slices.Compact(ready)
}
