package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Service is a Service of the cluster.
type Service struct {
	Namespace string
	Name      string
	Type      string // ClusterIP, NodePort, LoadBalancer or ExternalName
	// Addresses are cluster addresses, then those of load balancers; none of a headless one.
	Addresses []string
	// Ports are like "443/TCP", or with a node port "443:30443/TCP".
	Ports []string
}

// Namespaces returns the names of all namespaces, sorted.
func (c *Cluster) Namespaces(ctx context.Context) ([]string, error) {
	list, err := c.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: list namespaces: %w", c.Name, err)
	}
	var names []string
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names, nil
}

// Services returns the services of a namespace, or of all when it is "", by namespace and
// name.
func (c *Cluster) Services(ctx context.Context, namespace string) ([]Service, error) {
	list, err := c.Client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: list services: %w", c.Name, err)
	}
	var all []Service
	for i := range list.Items {
		all = append(all, newService(&list.Items[i]))
	}
	slices.SortFunc(all, func(a, b Service) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return all, nil
}

func newService(s *corev1.Service) Service {
	out := Service{Namespace: s.Namespace, Name: s.Name, Type: string(s.Spec.Type)}
	for _, ip := range s.Spec.ClusterIPs {
		if ip != corev1.ClusterIPNone {
			out.Addresses = append(out.Addresses, ip)
		}
	}
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		out.Addresses = append(out.Addresses, printable.Line(ingress.IP+ingress.Hostname)) // one of the two is set
	}
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			out.Ports = append(out.Ports, fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol))
		} else {
			out.Ports = append(out.Ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
	}
	return out
}
