package api

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// policies are the sandboxes' network policies in the form to which LiteBoxd's API brings
// them whenever it starts.
func policies(control string) map[string]networkingv1.NetworkPolicySpec {
	sandboxes := metav1.LabelSelector{MatchLabels: map[string]string{"app": "liteboxd"}}
	ingress, egress := networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	dns := networkingv1.NetworkPolicySpec{
		PodSelector: sandboxes, PolicyTypes: []networkingv1.PolicyType{egress},
		Egress: []networkingv1.NetworkPolicyEgressRule{{
			To: []networkingv1.NetworkPolicyPeer{{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "kube-system"}},
				PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}},
			}},
			Ports: []networkingv1.NetworkPolicyPort{port(corev1.ProtocolUDP, 53, 0), port(corev1.ProtocolTCP, 53, 0)},
		}},
	}
	return map[string]networkingv1.NetworkPolicySpec{
		"default-deny-all": {PodSelector: sandboxes, PolicyTypes: []networkingv1.PolicyType{ingress, egress}},
		"allow-dns":        dns,
		"deny-k8s-api":     dns, // that is all that it says in LiteBoxd, too
		"allow-gateway-ingress": {
			PodSelector: sandboxes, PolicyTypes: []networkingv1.PolicyType{ingress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{{
					NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": control}},
					PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "liteboxd-gateway"}},
				}},
				Ports: []networkingv1.NetworkPolicyPort{port(corev1.ProtocolTCP, 3000, 65535)},
			}},
		},
		"allow-internet-egress": {
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "liteboxd", internetLabel: "true"}},
			PolicyTypes: []networkingv1.PolicyType{egress},
			Egress: []networkingv1.NetworkPolicyEgressRule{{
				To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{
					CIDR:   "0.0.0.0/0",
					Except: []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "169.254.0.0/16"},
				}}},
				Ports: []networkingv1.NetworkPolicyPort{
					port(corev1.ProtocolTCP, 443, 0), port(corev1.ProtocolTCP, 80, 0),
				},
			}, dns.Egress[0]},
		},
	}
}

func port(protocol corev1.Protocol, first, last int32) networkingv1.NetworkPolicyPort {
	number := intstr.FromInt32(first)
	p := networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: &number}
	if last != 0 {
		p.EndPort = &last
	}
	return p
}

// writePolicies replaces the policies as a whole, as LiteBoxd does: it keeps of one that is there
// nothing but its resourceVersion, so that labels and annotations are gone.
func (a *api) writePolicies(ctx context.Context) error {
	client := a.client.NetworkingV1().NetworkPolicies(a.SandboxNamespace)
	for name, spec := range policies(a.ControlNamespace) {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		is, err := client.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, err = client.Create(ctx, p, metav1.CreateOptions{})
		case err == nil:
			p.ResourceVersion = is.ResourceVersion
			_, err = client.Update(ctx, p, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("write network policy %s: %w", name, err)
		}
	}
	return nil
}
