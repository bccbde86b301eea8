package main

import (
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func ptr[T any](v T) *T { return &v }

// path leads to a Service of the same name, which has port 80; kinds are E, P and I.
func path(kind byte, path, service string) networkingv1.HTTPIngressPath {
	types := map[byte]networkingv1.PathType{'E': networkingv1.PathTypeExact, 'P': networkingv1.PathTypePrefix, 'I': networkingv1.PathTypeImplementationSpecific}
	return networkingv1.HTTPIngressPath{Path: path, PathType: ptr(types[kind]), Backend: networkingv1.IngressBackend{
		Service: &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Number: 80}}}}
}

func ingress(class *string, annotations map[string]string, host string, paths ...networkingv1.HTTPIngressPath) *networkingv1.Ingress {
	return &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Annotations: annotations}, Spec: networkingv1.IngressSpec{
		IngressClassName: class,
		Rules: []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
			HTTP: &networkingv1.HTTPIngressRuleValue{Paths: paths}}}},
	}}
}

// service has port 80 and endpoints that are ready or not.
func service(name string, ready map[string]bool) (*corev1.Service, *discoveryv1.EndpointSlice) {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		Ports: []discoveryv1.EndpointPort{{Name: ptr(""), Port: ptr[int32](8080)}}}
	for address, is := range ready {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &is}})
	}
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, slice
}

func middleware(spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"namespace": "app", "name": "again"}, "spec": spec}}
}

func TestFind(t *testing.T) {
	var services []*corev1.Service
	var slices []*discoveryv1.EndpointSlice
	for _, name := range []string{"web", "api", "gateway", "wild", "any", "plain"} {
		s, slice := service(name, map[string]bool{"10.42.0.1": true})
		services, slices = append(services, s), append(slices, slice)
		slice.Ports[0].Port = ptr(int32(8000 + len(services)))
	}
	table := newTable([]*networkingv1.Ingress{
		ingress(nil, nil, "", path('P', "/", "any")),
		ingress(ptr("traefik"), nil, "*.box.test", path('P', "/", "wild")),
		ingress(ptr("traefik"), nil, "box.test", path('P', "/", "web"), path('P', "/api/v1", "api"),
			path('P', "/api/v1/sandbox/", "gateway"), path('E', "/api/v1/sandbox", "gateway"), path('P', "/gone", "none")),
		ingress(ptr("nginx"), nil, "box.test", path('E', "/", "any")),
		ingress(nil, map[string]string{annotationClass: "nginx"}, "box.test", path('E', "/", "any")),
		ingress(nil, map[string]string{annotationPoints: "web"}, "plain.box.test", path('I', "/", "plain")),
	}, services, slices, nil)
	for _, tc := range []struct{ point, host, path, want string }{
		{"web", "box.test", "/", "web"},
		{"web", "BOX.test:80", "/", "web"},
		{"websecure", "box.test", "/api", "web"},
		{"web", "box.test", "/api/v1", "api"},
		{"web", "box.test", "/api/v1/", "api"},
		{"web", "box.test", "/api/v10", "web"},
		{"web", "box.test", "/api/v1/sandbox", "gateway"},
		{"web", "box.test", "/api/v1/sandbox/1/port/80", "gateway"},
		{"web", "box.test", "/api/v1/sandboxes", "api"},
		{"web", "box.test", "/gone/1", "broken"},
		{"web", "a.box.test", "/", "wild"},
		{"web", "a.b.box.test", "/", "any"},
		{"web", "10.0.0.1", "/", "any"},
		{"web", "plain.box.test", "/", "plain"},
		{"websecure", "plain.box.test", "/", "wild"},
	} {
		got := "nothing"
		if r := table.find(tc.point, tc.host, tc.path); r != nil && r.Broken {
			got = "broken"
		} else if r != nil {
			got = services[r.Endpoints[0].Port()-8001].Name
		}
		if got != tc.want {
			t.Errorf("%s %s%s leads to %s, want %s", tc.point, tc.host, tc.path, got, tc.want)
		}
	}
	if r := newTable(nil, nil, nil, nil).find("web", "box.test", "/"); r != nil {
		t.Errorf("an empty table has %v", r)
	}
}

func TestRoute(t *testing.T) {
	s, slice := service("web", map[string]bool{"10.42.0.3": true, "10.42.0.1": true, "10.42.0.2": false})
	for _, tc := range []struct {
		name       string
		middleware *unstructured.Unstructured
		chain      string
		attempts   int
		interval   time.Duration
		broken     bool
	}{
		{name: "none", attempts: 1},
		{name: "retry", chain: "app-again@kubernetescrd", middleware: middleware(map[string]any{"retry": map[string]any{"attempts": int64(3), "initialInterval": "100ms"}}),
			attempts: 3, interval: 100 * time.Millisecond},
		{name: "seconds", chain: "app-again@kubernetescrd", middleware: middleware(map[string]any{"retry": map[string]any{"attempts": int64(2), "initialInterval": int64(1)}}),
			attempts: 2, interval: time.Second},
		{name: "absent", chain: "app-again@kubernetescrd", broken: true, attempts: 1},
		{name: "of another namespace", chain: "other-again@kubernetescrd", middleware: middleware(map[string]any{"retry": map[string]any{"attempts": int64(3)}}),
			broken: true, attempts: 1},
		{name: "of another kind", chain: "app-again@kubernetescrd", middleware: middleware(map[string]any{"headers": map[string]any{}}), broken: true, attempts: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var middlewares []*unstructured.Unstructured
			if tc.middleware != nil {
				middlewares = append(middlewares, tc.middleware)
			}
			i := ingress(nil, map[string]string{annotationChain: tc.chain}, "", path('P', "/", "web"))
			table := newTable([]*networkingv1.Ingress{i}, []*corev1.Service{s}, []*discoveryv1.EndpointSlice{slice}, middlewares)
			r := table.routes[0]
			if r.Attempts != tc.attempts || r.Interval != tc.interval || r.Broken != tc.broken {
				t.Errorf("%d attempts after %v, broken %t; want %d, %v, %t", r.Attempts, r.Interval, r.Broken, tc.attempts, tc.interval, tc.broken)
			}
			var got []string
			for _, e := range r.Endpoints {
				got = append(got, e.String())
			}
			if diff := cmp.Diff([]string{"10.42.0.1:8080", "10.42.0.3:8080"}, got); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
		})
	}
}

// Hosts have the certificates of the Secrets that their Ingresses name.
func TestCertify(t *testing.T) {
	pair, err := selfSigned()
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	secret := func(namespace, name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{
			"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
			"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})}}
	}
	broken := secret("app", "certificate")
	broken.Data["tls.key"] = []byte("x")
	for name, test := range map[string]struct {
		class, named string
		secrets      []*corev1.Secret
		want         int
	}{
		"named":                    {class, "certificate", []*corev1.Secret{secret("app", "other"), secret("app", "certificate")}, 1},
		"of another namespace":     {class, "certificate", []*corev1.Secret{secret("other", "certificate")}, 0},
		"missing":                  {class, "certificate", nil, 0},
		"broken":                   {class, "certificate", []*corev1.Secret{broken}, 0},
		"of somebody else's class": {"nginx", "certificate", []*corev1.Secret{secret("app", "certificate")}, 0},
	} {
		i := ingress(&test.class, nil, "traefik.default", path('P', "/", "web"))
		i.Spec.TLS = []networkingv1.IngressTLS{{SecretName: test.named}}
		if got := newTable(nil, nil, nil, nil).certify([]*networkingv1.Ingress{i}, test.secrets).certificates; len(got) != test.want ||
			test.want == 1 && got["traefik.default"] == nil {
			t.Errorf("%s: %d certificates", name, len(got))
		}
	}
}
