package main

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func pod(namespace, name, address string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec:   corev1.PodSpec{NodeName: "one", Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}},
		Status: corev1.PodStatus{PodIP: address}}
	for _, c := range change {
		c(p)
	}
	return p
}

func policy(t *testing.T, text string) *networkingv1.NetworkPolicy {
	t.Helper()
	p := &networkingv1.NetworkPolicy{}
	if err := yaml.UnmarshalStrict([]byte(text), p); err != nil {
		t.Fatal(err)
	}
	p.Namespace = "boxes"
	return p
}

func TestFilters(t *testing.T) {
	address, prefix := netip.MustParseAddr, netip.MustParsePrefix
	box, other, gateway, remote := address("10.42.0.5"), address("10.42.0.6"), address("10.42.0.7"), address("10.42.1.8")
	cluster := []netip.Prefix{prefix("10.42.0.0/16"), prefix("10.77.0.11/32")}
	namespace := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/metadata.name": name}}}
	}
	pods := []*corev1.Pod{
		pod("boxes", "box", "10.42.0.5"),
		pod("boxes", "other", "10.42.0.6"),
		pod("system", "gateway", "10.42.0.7"),
		pod("system", "gateway", "10.42.1.8", func(p *corev1.Pod) { p.Spec.NodeName = "two" }),
		pod("system", "gateway", "10.42.0.8", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		pod("system", "gateway", "10.77.0.11", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		pod("system", "gateway", ""),
		pod("elsewhere", "gateway", "10.42.0.9"),
	}
	for _, tc := range []struct {
		name, text string
		want       []filter
	}{
		{"nothing at all", `{spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}`, []filter{
			{Pod: box}, {Pod: box, Egress: true}, {Pod: other}, {Pod: other, Egress: true}}},
		{"no pod", `{spec: {podSelector: {matchLabels: {app: none}}, policyTypes: [Ingress]}}`, nil},
		{"anything", `{spec: {podSelector: {matchLabels: {app: box}}, policyTypes: [Egress], egress: [{}]}}`, []filter{
			{Pod: box, Egress: true, Allow: []allow{{Any: true}}}}},
		{"own namespace", `{spec: {podSelector: {matchLabels: {app: box}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {}}]}]}}`, []filter{
			{Pod: box, Allow: []allow{{Pods: []netip.Addr{box, other}}}}}},
		{"namespace and pod", `{spec: {podSelector: {matchLabels: {app: box}}, policyTypes: [Ingress], ingress: [{
			from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: system}}, podSelector: {matchLabels: {app: gateway}}}],
			ports: [{port: 80}, {port: 3000, endPort: 65535}, {port: http, protocol: TCP}, {port: none}, {protocol: UDP}, {protocol: SCTP}]}]}}`, []filter{
			{Pod: box, Allow: []allow{
				{Pods: []netip.Addr{gateway, remote}, Protocol: tcp, First: 80, Last: 80},
				{Pods: []netip.Addr{gateway, remote}, Protocol: tcp, First: 3000, Last: 65535},
				{Pods: []netip.Addr{gateway, remote}, Protocol: tcp, First: 8080, Last: 8080},
				{Pods: []netip.Addr{gateway, remote}, Protocol: udp}}}}},
		{"nobody is selected", `{spec: {podSelector: {matchLabels: {app: box}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {a: b}}}]}]}}`,
			[]filter{{Pod: box, Egress: true}}},
		{"blocks", `{spec: {podSelector: {matchLabels: {app: box}}, policyTypes: [Egress], egress: [{
			to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}, {ipBlock: {cidr: "fd00::/8"}}], ports: [{port: 443}, {port: https}]}]}}`, []filter{
			{Pod: box, Egress: true, Allow: []allow{{Block: prefix("0.0.0.0/0"), Except: append(cluster[:2:2], prefix("10.0.0.0/8")), Protocol: tcp, First: 443, Last: 443}}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := policies{Policies: []*networkingv1.NetworkPolicy{policy(t, tc.text)}, Namespaces: []*corev1.Namespace{namespace("boxes"), namespace("system")},
				Pods: pods, Cluster: cluster}.filters("one")
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("add up", func(t *testing.T) {
		deny := policy(t, `{metadata: {name: b}, spec: {podSelector: {}, policyTypes: [Ingress]}}`)
		permit := policy(t, `{metadata: {name: a}, spec: {podSelector: {matchLabels: {app: box}}, policyTypes: [Ingress], ingress: [{ports: [{port: 80}]}]}}`)
		got := policies{Policies: []*networkingv1.NetworkPolicy{deny, permit}, Pods: pods[:2]}.filters("one")
		want := []filter{{Pod: box, Allow: []allow{{Any: true, Protocol: tcp, First: 80, Last: 80}}}, {Pod: other}}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
