package main

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// filter is what a pod of this node may still send or get because NetworkPolicies select
// it. A pod without one may all.
type filter struct {
	Pod    netip.Addr
	Egress bool    // what it sends; what it gets otherwise
	Allow  []allow // the rest is dropped
}

// allow matches traffic by its other end, and by protocol and port of its destination.
type allow struct {
	// The other end: one of Pods, or in Block and in none of Except, or anything where Any
	// is set.
	Any    bool
	Pods   []netip.Addr // sorted
	Block  netip.Prefix
	Except []netip.Prefix

	Protocol    uint8 // 0: all
	First, Last uint16
}

// policies is what the filters of a node follow from.
type policies struct {
	Policies   []*networkingv1.NetworkPolicy
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	// Cluster is what address blocks never mean, as in Cilium: pods and nodes, which only
	// selectors can name.
	Cluster []netip.Prefix
}

// filters gives those of a node's pods, sorted. Selectors are about pods with addresses of
// their own that still run. Named ports are those of the pod that gets the traffic where it
// is the policy's own; in egress rules they match nothing.
func (p policies) filters(node string) []filter {
	p.Policies = slices.SortedFunc(slices.Values(p.Policies), func(a, b *networkingv1.NetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	var list []filter
	for _, pod := range p.Pods {
		address, ok := podAddress(pod)
		if !ok || pod.Spec.NodeName != node {
			continue
		}
		for _, egress := range []bool{false, true} {
			f := filter{Pod: address, Egress: egress}
			selected := false
			for _, policy := range p.Policies {
				if policy.Namespace == pod.Namespace && selects(&policy.Spec.PodSelector, pod.Labels) && concerns(policy, egress) {
					selected = true
					f.Allow = append(f.Allow, p.allowed(policy, egress, pod)...)
				}
			}
			if selected {
				list = append(list, f)
			}
		}
	}
	slices.SortFunc(list, func(a, b filter) int { return cmp.Or(a.Pod.Compare(b.Pod), boolean(a.Egress)-boolean(b.Egress)) })
	return list
}

// podAddress is that of a pod which runs, or is about to, in a network of its own.
func podAddress(pod *corev1.Pod) (netip.Addr, bool) {
	if pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return netip.Addr{}, false
	}
	address, err := netip.ParseAddr(pod.Status.PodIP)
	return address, err == nil && address.Is4()
}

func selects(selector *metav1.LabelSelector, of map[string]string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(labels.Set(of))
}

func concerns(policy *networkingv1.NetworkPolicy, egress bool) bool {
	kind := networkingv1.PolicyTypeIngress
	if egress {
		kind = networkingv1.PolicyTypeEgress
	}
	return slices.Contains(policy.Spec.PolicyTypes, kind)
}

// allowed gives each pair of peer and port in a policy's rules.
func (p policies) allowed(policy *networkingv1.NetworkPolicy, egress bool, pod *corev1.Pod) []allow {
	var list []allow
	add := func(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
		for _, from := range p.peers(policy.Namespace, peers) {
			list = append(list, from.with(ports, egress, pod)...)
		}
	}
	if egress {
		for _, rule := range policy.Spec.Egress {
			add(rule.To, rule.Ports)
		}
	} else {
		for _, rule := range policy.Spec.Ingress {
			add(rule.From, rule.Ports)
		}
	}
	return list
}

func (p policies) peers(namespace string, peers []networkingv1.NetworkPolicyPeer) []allow {
	if len(peers) == 0 {
		return []allow{{Any: true}}
	}
	var list []allow
	for _, peer := range peers {
		if peer.IPBlock != nil {
			if a, ok := p.block(peer.IPBlock); ok {
				list = append(list, a)
			}
			continue
		}
		a := allow{}
		for _, pod := range p.Pods {
			if address, ok := podAddress(pod); ok && p.isPeer(namespace, peer, pod) {
				a.Pods = append(a.Pods, address)
			}
		}
		slices.SortFunc(a.Pods, netip.Addr.Compare)
		if a.Pods = slices.Compact(a.Pods); len(a.Pods) > 0 {
			list = append(list, a)
		}
	}
	return list
}

func (p policies) isPeer(namespace string, peer networkingv1.NetworkPolicyPeer, pod *corev1.Pod) bool {
	if peer.PodSelector != nil && !selects(peer.PodSelector, pod.Labels) {
		return false
	}
	if peer.NamespaceSelector == nil {
		return pod.Namespace == namespace
	}
	for _, n := range p.Namespaces {
		if n.Name == pod.Namespace {
			return selects(peer.NamespaceSelector, n.Labels)
		}
	}
	return false
}

func (p policies) block(block *networkingv1.IPBlock) (allow, bool) {
	a := allow{Except: slices.Clone(p.Cluster)}
	var err error
	if a.Block, err = netip.ParsePrefix(block.CIDR); err != nil || !a.Block.Addr().Is4() {
		return a, false
	}
	for _, text := range block.Except {
		except, err := netip.ParsePrefix(text)
		if err != nil {
			return a, false
		}
		a.Except = append(a.Except, except)
	}
	return a, true
}

// with gives the peer with each port; without ports, with all.
func (a allow) with(ports []networkingv1.NetworkPolicyPort, egress bool, pod *corev1.Pod) []allow {
	if len(ports) == 0 {
		return []allow{a}
	}
	var list []allow
	for _, port := range ports {
		b := a
		switch {
		case port.Protocol == nil || *port.Protocol == corev1.ProtocolTCP:
			b.Protocol = tcp
		case *port.Protocol == corev1.ProtocolUDP:
			b.Protocol = udp
		default:
			continue
		}
		switch {
		case port.Port == nil:
		case port.Port.Type == intstr.Int:
			b.First, b.Last = uint16(port.Port.IntVal), uint16(port.Port.IntVal)
			if port.EndPort != nil {
				b.Last = uint16(*port.EndPort)
			}
		case egress:
			continue
		default:
			if b.First = containerPort(pod, port.Port.StrVal, b.Protocol); b.First == 0 {
				continue
			}
			b.Last = b.First
		}
		list = append(list, b)
	}
	return list
}

// containerPort is a port by name, 0 when the pod has none of that name.
func containerPort(pod *corev1.Pod, name string, protocol uint8) uint16 {
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == name && (port.Protocol == corev1.ProtocolUDP) == (protocol == udp) {
				return uint16(port.ContainerPort)
			}
		}
	}
	return 0
}
