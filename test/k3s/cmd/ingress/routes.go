package main

import (
	"cmp"
	"crypto/tls"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const (
	class            = "traefik"
	annotationClass  = "kubernetes.io/ingress.class"
	annotationPoints = "traefik.ingress.kubernetes.io/router.entrypoints"
	annotationChain  = "traefik.ingress.kubernetes.io/router.middlewares"
)

// route is one path of one rule. Broken ones stay in the table: they hide what is less
// exact, and nothing else is to answer in their place.
type route struct {
	Host   string // lower case; empty for every host; "*." stands for one label
	Path   string
	Exact  bool
	Points []string // entry points; none means all

	Broken    bool // names what does not exist
	Endpoints []netip.AddrPort
	Attempts  int // for one request; at least 1
	Interval  time.Duration
}

// table is all routes, in the order in which they are asked, and the certificates of host names.
type table struct {
	routes       []route
	certificates map[string]*tls.Certificate // by host name, in lower case
}

// certify takes the certificates that Ingresses name for their hosts. One that cannot be read is as good as none.
func (t *table) certify(ingresses []*networkingv1.Ingress, secrets []*corev1.Secret) *table {
	t.certificates = map[string]*tls.Certificate{}
	for _, ingress := range ingresses {
		if !wanted(ingress) {
			continue
		}
		for _, named := range ingress.Spec.TLS {
			i := slices.IndexFunc(secrets, func(s *corev1.Secret) bool {
				return s.Namespace == ingress.Namespace && s.Name == named.SecretName
			})
			if i < 0 {
				continue
			}
			pair, err := tls.X509KeyPair(secrets[i].Data[corev1.TLSCertKey], secrets[i].Data[corev1.TLSPrivateKeyKey])
			if err != nil {
				continue
			}
			for _, name := range pair.Leaf.DNSNames {
				t.certificates[strings.ToLower(name)] = &pair
			}
		}
	}
	return t
}

// newTable gives the routes: those with a host first, wildcards after all others; of a
// host exact ones first, then the longer path.
func newTable(ingresses []*networkingv1.Ingress, services []*corev1.Service, endpointSlices []*discoveryv1.EndpointSlice, middlewares []*unstructured.Unstructured) *table {
	b := builder{services: map[types.NamespacedName]*corev1.Service{}, slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{},
		middlewares: map[string]*unstructured.Unstructured{}}
	for _, s := range services {
		b.services[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = s
	}
	for _, s := range endpointSlices {
		key := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		b.slices[key] = append(b.slices[key], s)
	}
	for _, m := range middlewares {
		b.middlewares[m.GetNamespace()+"-"+m.GetName()+"@kubernetescrd"] = m
	}
	// The older Ingress wins where two say the same.
	slices.SortFunc(ingresses, func(a, b *networkingv1.Ingress) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
	})
	t := &table{}
	for _, ingress := range ingresses {
		if wanted(ingress) {
			t.routes = append(t.routes, b.routes(ingress)...)
		}
	}
	slices.SortStableFunc(t.routes, func(a, b route) int {
		return cmp.Or(rank(a.Host)-rank(b.Host), cmp.Compare(len(b.Host), len(a.Host)),
			boolean(b.Exact)-boolean(a.Exact), cmp.Compare(len(b.Path), len(a.Path)))
	})
	return t
}

func wanted(ingress *networkingv1.Ingress) bool {
	name := ingress.Annotations[annotationClass]
	if ingress.Spec.IngressClassName != nil {
		name = *ingress.Spec.IngressClassName
	}
	return name == class || name == ""
}

func rank(host string) int {
	switch {
	case host == "":
		return 2
	case strings.HasPrefix(host, "*."):
		return 1
	}
	return 0
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// builder has the cluster's objects by name.
type builder struct {
	services    map[types.NamespacedName]*corev1.Service
	slices      map[types.NamespacedName][]*discoveryv1.EndpointSlice
	middlewares map[string]*unstructured.Unstructured
}

func (b builder) routes(ingress *networkingv1.Ingress) []route {
	common := route{Points: commas(ingress.Annotations[annotationPoints]), Attempts: 1}
	for _, name := range commas(ingress.Annotations[annotationChain]) {
		m, ok := b.middlewares[name]
		if !ok || !common.retry(m) {
			common.Broken = true
		}
	}
	var routes []route
	if backend := ingress.Spec.DefaultBackend; backend != nil {
		r := common
		r.Path = "/"
		b.target(&r, ingress.Namespace, *backend)
		routes = append(routes, r)
	}
	for _, rule := range ingress.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for _, path := range rule.HTTP.Paths {
			r := common
			r.Host, r.Path = strings.ToLower(rule.Host), path.Path
			r.Exact = path.PathType != nil && *path.PathType == networkingv1.PathTypeExact
			b.target(&r, ingress.Namespace, path.Backend)
			routes = append(routes, r)
		}
	}
	return routes
}

func commas(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// retry takes over what a Middleware says; false when it says something else.
func (r *route) retry(m *unstructured.Unstructured) bool {
	attempts, found, err := unstructured.NestedInt64(m.Object, "spec", "retry", "attempts")
	if err != nil || !found || attempts < 1 {
		return false
	}
	r.Attempts = int(min(attempts, 100))
	switch interval, _, _ := unstructured.NestedFieldNoCopy(m.Object, "spec", "retry", "initialInterval"); value := interval.(type) {
	case nil:
	case int64: // seconds
		r.Interval = time.Duration(value) * time.Second
	case string:
		if r.Interval, err = time.ParseDuration(value); err != nil {
			return false
		}
	default:
		return false
	}
	return true
}

func (b builder) target(r *route, namespace string, backend networkingv1.IngressBackend) {
	if backend.Service == nil {
		r.Broken = true
		return
	}
	name := types.NamespacedName{Namespace: namespace, Name: backend.Service.Name}
	service, ok := b.services[name]
	if !ok {
		r.Broken = true
		return
	}
	for _, port := range service.Spec.Ports {
		if port.Port == backend.Service.Port.Number || port.Name != "" && port.Name == backend.Service.Port.Name {
			r.Endpoints = endpoints(b.slices[name], port)
			return
		}
	}
	r.Broken = true
}

// endpoints lists those of a Service's port that are ready, sorted.
func endpoints(endpointSlices []*discoveryv1.EndpointSlice, port corev1.ServicePort) []netip.AddrPort {
	var ready []netip.AddrPort
	for _, slice := range endpointSlices {
		for _, p := range slice.Ports {
			if p.Port == nil || p.Name == nil || *p.Name != port.Name {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				if endpoint.Conditions.Ready != nil && !*endpoint.Conditions.Ready || len(endpoint.Addresses) == 0 {
					continue
				}
				if address, err := netip.ParseAddr(endpoint.Addresses[0]); err == nil && address.Is4() {
					ready = append(ready, netip.AddrPortFrom(address, uint16(*p.Port)))
				}
			}
		}
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return slices.Compact(ready)
}

// find gives the route of a request, nil when there is none.
func (t *table) find(point, host, path string) *route {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(host)
	for i := range t.routes {
		r := &t.routes[i]
		if (len(r.Points) == 0 || slices.Contains(r.Points, point)) && r.hasHost(host) && r.hasPath(path) {
			return r
		}
	}
	return nil
}

func (r *route) hasHost(host string) bool {
	suffix, wildcard := strings.CutPrefix(r.Host, "*")
	if !wildcard {
		return r.Host == "" || r.Host == host
	}
	label, ok := strings.CutSuffix(host, suffix)
	return ok && label != "" && !strings.Contains(label, ".")
}

func (r *route) hasPath(path string) bool {
	if r.Exact {
		return path == r.Path
	}
	prefix := strings.TrimSuffix(r.Path, "/")
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '/')
}
