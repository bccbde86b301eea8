package kube_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/test/kubetest"
)

// Services send to pods of a node that is worked on whether they are ready or not, and to
// nobody else who is not.
func TestKeepEndpoints(t *testing.T) {
	c := cluster(t)
	ctx := kubetest.Within(t)
	r := c.demo(t, nil)
	if err := c.makeNamespace(ctx, r.Namespace); err != nil {
		t.Fatal(err)
	}
	type endpoint struct {
		node        string
		ready       bool
		terminating bool
	}
	services := map[string]struct {
		endpoints   []endpoint
		published   bool
		unselective bool
	}{
		"one":         {endpoints: []endpoint{{agent, true, false}}},
		"both":        {endpoints: []endpoint{{agent, true, false}, {server, true, false}}},
		"elsewhere":   {endpoints: []endpoint{{server, true, false}}},
		"unready":     {endpoints: []endpoint{{agent, true, false}, {server, false, false}}},
		"ending":      {endpoints: []endpoint{{agent, true, false}, {agent, true, true}}},
		"own":         {endpoints: []endpoint{{agent, true, false}}, published: true},
		"unselective": {endpoints: []endpoint{{agent, true, false}}, unselective: true},
	}
	client := c.Client.CoreV1().Services(r.Namespace)
	for name, s := range services {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "nobody"}, Ports: []corev1.ServicePort{{Port: 80}}, PublishNotReadyAddresses: s.published,
		}}
		if s.unselective {
			service.Spec.Selector = nil
		}
		// The controller of endpoints leaves alone what it has not made.
		slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{
			Name: name + "-of-test", Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "test"},
		}}
		for i, e := range s.endpoints {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{"10.42.0." + string(rune('1'+i))}, NodeName: &e.node,
				Conditions: discoveryv1.EndpointConditions{Ready: &e.ready, Terminating: &e.terminating},
			})
		}
		if _, err := client.Create(ctx, service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Client.DiscoveryV1().EndpointSlices(r.Namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// keeping are the Services that send to unready pods, with whose.
	keeping := func() map[string]string {
		list, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		kept := map[string]string{}
		for _, s := range list.Items {
			if s.Spec.PublishNotReadyAddresses || s.Annotations["boxlift.dev/keeps-endpoints-on"] != "" {
				kept[s.Name] = s.Annotations["boxlift.dev/keeps-endpoints-on"]
			}
		}
		return kept
	}
	for _, step := range []struct {
		name string
		do   func() error
		want map[string]string
	}{
		{"keep the agent's", func() error { return c.KeepEndpoints(ctx, agent) }, map[string]string{"own": "", "one": agent, "both": agent}},
		{"keep the server's, too", func() error { return c.KeepEndpoints(ctx, server) }, map[string]string{"own": "", "one": agent, "both": agent + "," + server, "elsewhere": server}},
		{"once more", func() error { return c.KeepEndpoints(ctx, server) }, map[string]string{"own": "", "one": agent, "both": agent + "," + server, "elsewhere": server}},
		{"let the agent's", func() error { return c.LetEndpoints(ctx, agent) }, map[string]string{"own": "", "both": server, "elsewhere": server}},
		{"let all", func() error { return c.LetEndpoints(ctx, "") }, map[string]string{"own": ""}},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if diff := cmp.Diff(step.want, keeping()); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
	}
}
