package main

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func ptr[T any](v T) *T { return &v }

// endpoint is one of node one unless told otherwise.
func endpoint(address string, change ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address}, NodeName: ptr("one")}
	for _, c := range change {
		c(&e)
	}
	return e
}

func on(node string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) { e.NodeName = &node }
}

func state(ready, serving bool) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving}
	}
}

// slice is of Service default/web with its port named http at 8080.
func slice(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr[int32](8080)}},
		Endpoints:   endpoints,
	}
}

func service(change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.43.0.7", ClusterIPs: []string{"10.43.0.7", "fd00::7"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func TestNewTable(t *testing.T) {
	address := netip.MustParseAddr
	both := []netip.AddrPort{netip.MustParseAddrPort("10.42.0.5:8080"), netip.MustParseAddrPort("10.42.1.5:8080")}
	slices := []*discoveryv1.EndpointSlice{slice(endpoint("10.42.1.5", on("two"))), slice(endpoint("10.42.0.5"), endpoint("10.42.0.6", state(false, true)))}
	clusterIP := []netip.Addr{address("10.43.0.7")}
	for name, c := range map[string]struct {
		service *corev1.Service
		slices  []*discoveryv1.EndpointSlice
		want    table
	}{
		"cluster address": {service(), slices,
			table{Frontends: []frontend{{Addr: address("10.43.0.7"), Protocol: tcp, Port: 80, Backends: both}}, ClusterIPs: clusterIP}},
		"no endpoints": {service(), nil,
			table{Frontends: []frontend{{Addr: address("10.43.0.7"), Protocol: tcp, Port: 80}}, ClusterIPs: clusterIP}},
		"only ending ones": {service(), []*discoveryv1.EndpointSlice{slice(endpoint("10.42.0.6", state(false, true)), endpoint("10.42.0.7", state(false, false)))},
			table{Frontends: []frontend{{Addr: address("10.43.0.7"), Protocol: tcp, Port: 80, Backends: []netip.AddrPort{netip.MustParseAddrPort("10.42.0.6:8080")}}}, ClusterIPs: clusterIP}},
		"other port name": {service(func(s *corev1.Service) { s.Spec.Ports[0].Name = "https" }), slices,
			table{Frontends: []frontend{{Addr: address("10.43.0.7"), Protocol: tcp, Port: 80}}, ClusterIPs: clusterIP}},
		"node port, sticky, load balancer": {service(func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.Ports[0].NodePort = 30080
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.77.0.11"}, {Hostname: "x"}}
		}), slices, table{Frontends: []frontend{
			{Addr: address("10.43.0.7"), Protocol: tcp, Port: 80, Sticky: true, Backends: both},
			{Addr: address("10.77.0.11"), Protocol: tcp, Port: 80, Sticky: true, External: true, Backends: both},
			{Protocol: tcp, Port: 30080, Sticky: true, External: true, Backends: both},
		}, ClusterIPs: clusterIP}},
		"local policies": {service(func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeNodePort
			s.Spec.Ports[0].NodePort = 30080
			s.Spec.Ports[0].Protocol = corev1.ProtocolUDP
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal)
		}), slices, table{Frontends: []frontend{
			{Addr: address("10.43.0.7"), Protocol: udp, Port: 80, Backends: both[:1]},
			{Protocol: udp, Port: 30080, Backends: both[:1]},
		}, ClusterIPs: clusterIP}},
		"headless":      {service(func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }), slices, table{}},
		"external name": {service(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }), slices, table{}},
		"SCTP":          {service(func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolSCTP }), slices, table{ClusterIPs: clusterIP}},
	} {
		t.Run(name, func(t *testing.T) {
			got := newTable([]*corev1.Service{c.service}, c.slices, "one")
			if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
