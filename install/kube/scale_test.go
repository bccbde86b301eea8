package kube

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/test/kubetest"
)

// connect reaches a server in memory.
func connect(t *testing.T, m *kubetest.Memory) *Cluster {
	t.Helper()
	c, err := Connect(Options{Name: "memory", Kubeconfig: m.Kubeconfig, Dial: m.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// A Deployment's pods come to a node unless something keeps them off.
func TestKeepsOff(t *testing.T) {
	for _, test := range []struct {
		name string
		node func(*corev1.Node)
		ask  func(*corev1.PodSpec)
		want string
	}{
		{name: "nothing does"},
		{name: "not Ready", node: func(n *corev1.Node) { n.Status.Conditions = nil }, want: "the node is not Ready"},
		{name: "cordoned", node: func(n *corev1.Node) { n.Spec.Unschedulable = true }, want: "the node is cordoned"},
		{name: "another node is asked for", ask: func(p *corev1.PodSpec) {
			p.NodeSelector = map[string]string{"disk": "fast"}
		}, want: "it asks for disk=fast"},
		{name: "this node is asked for", ask: func(p *corev1.PodSpec) {
			p.NodeSelector = map[string]string{corev1.LabelHostname: "one"}
		}},
		{name: "a taint", node: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "pool", Value: "x", Effect: corev1.TaintEffectNoSchedule}}
		}, want: "do not go with the node's labels and taints"},
		{name: "a taint that is tolerated", node: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "pool", Value: "x", Effect: corev1.TaintEffectNoSchedule}}
		}, ask: func(p *corev1.PodSpec) { p.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }},
	} {
		n, d := kubetest.Labelled("one", nil), kubetest.Deployment("api", 1, "image")
		if test.node != nil {
			test.node(n)
		}
		if test.ask != nil {
			test.ask(&d.Spec.Template.Spec)
		}
		if got := KeepsOff(d, n); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// What uses a claim is found by the claim, and what has ended does not use it.
func TestPodsWith(t *testing.T) {
	pod := func(name, claim string, phase corev1.PodPhase) *corev1.Pod {
		p := &corev1.Pod{}
		p.Namespace, p.Name, p.Status.Phase = "box", name, phase
		p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
		p.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}
		return p
	}
	other := pod("elsewhere", "data", corev1.PodRunning)
	other.Namespace = "shop"
	m := kubetest.NewMemory(t, pod("b", "data", corev1.PodRunning), pod("a", "data", corev1.PodPending),
		pod("ended", "data", corev1.PodSucceeded), pod("failed", "data", corev1.PodFailed),
		pod("another", "logs", corev1.PodRunning), other)
	c := connect(t, m)
	pods, err := c.PodsWith(t.Context(), "box", "data")
	if err != nil || len(pods) != 2 || pods[0].Name != "a" || pods[1].Name != "b" {
		t.Fatalf("%v, %v", pods, err)
	}
	if err := c.ForgetPods(t.Context(), append(pods, Pod{Namespace: "box", Name: "none", UID: "x"})); err != nil {
		t.Error(err)
	}
	if got := strings.Join(m.Changes(), ", "); !strings.HasPrefix(got, "DELETE /api/v1/namespaces/box/pods/a grace 0, DELETE "+
		"/api/v1/namespaces/box/pods/b grace 0") {
		t.Errorf("it has asked for %s", got)
	}
}

// A Deployment is scaled once, and what is not there is told.
func TestScale(t *testing.T) {
	d := kubetest.Deployment("api", 2, "image")
	d.Namespace, d.Status = "box", appsv1.DeploymentStatus{AvailableReplicas: 1}
	m := kubetest.NewMemory(t, d)
	c := connect(t, m)
	for range 2 {
		if err := c.Scale(t.Context(), "box", "api", 0); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := c.ScaleOf(t.Context(), "box", "api"); err != nil || got != (Scaled{Wanted: 0, Available: 1}) || len(m.Changes()) != 1 {
		t.Errorf("%+v, %v after %q", got, err, m.Changes())
	}
	if err := c.Scale(t.Context(), "box", "none", 1); err == nil || !strings.Contains(err.Error(), "scale Deployment box/none to 1") {
		t.Errorf("one that is not there: %v", err)
	}
}
