package kubetest

import (
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The server in memory refuses and keeps what a server does.
func TestMemory(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a",
		Labels: map[string]string{"app": "x"}}}
	pod.Spec.NodeName = "one"
	secret := func(name string, kind corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Type: kind}
	}
	m := NewMemory(t, Labelled("one", nil), pod, secret("tls", corev1.SecretTypeTLS), secret("o", corev1.SecretTypeOpaque))
	client := kubernetes.NewForConfigOrDie(m.config(t, m.Kubeconfig))
	ctx, core := t.Context(), client.CoreV1()
	before := m.Snapshot(t)
	for selector, want := range map[string]int{"app=x": 1, "app=y": 0, "": 1} {
		list, err := core.Pods("").List(ctx, metav1.ListOptions{LabelSelector: selector,
			FieldSelector: "spec.nodeName=one"})
		if err != nil || len(list.Items) != want {
			t.Errorf("%q: %v, %v", selector, list, err)
		}
	}
	for _, kind := range []corev1.SecretType{corev1.SecretTypeTLS, corev1.SecretTypeOpaque} {
		list, err := core.Secrets("").List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(kind)})
		if err != nil || len(list.Items) != 1 || list.Items[0].Type != kind {
			t.Errorf("Secrets of type %s: %v, %v", kind, list, err)
		}
	}
	if _, err := core.Secrets("shop").Get(ctx, "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Secret that is not there: %v", err)
	}
	if m.Snapshot(t) != before || m.Changes() != nil {
		t.Errorf("looking has changed something: %q", m.Changes())
	}
	// Of two who update the same version, one is refused.
	n, err := core.Nodes().Get(ctx, "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Spec.Unschedulable = true
	if _, err := core.Nodes().Update(ctx, n, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := core.Nodes().Update(ctx, n, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update of an older version: %v", err)
	}
	// Keys that a manager does not apply any more go, those of others stay.
	one := []byte("1")
	for _, of := range []struct {
		manager string
		data    map[string][]byte
	}{{"a", map[string][]byte{"x": one, "y": one}}, {"b", map[string][]byte{"z": one}},
		{"a", map[string][]byte{"x": one}}} {
		secret := corev1ac.Secret("s", "shop").WithData(of.data)
		if _, err := core.Secrets("shop").Apply(ctx, secret,
			metav1.ApplyOptions{FieldManager: of.manager, Force: true}); err != nil {
			t.Error(err)
		}
	}
	s, err := core.Secrets("shop").Get(ctx, "s", metav1.GetOptions{})
	if err != nil || s.UID == "" {
		t.Fatal(s, err)
	}
	if diff := cmp.Diff(map[string][]byte{"x": one, "z": one}, s.Data); diff != "" {
		t.Error(diff)
	}
	anew := corev1ac.Secret("s", "shop").WithUID("another")
	if _, err := core.Secrets("shop").Apply(ctx, anew,
		metav1.ApplyOptions{FieldManager: "a"}); !apierrors.IsConflict(err) {
		t.Errorf("applied to another one of the name: %v", err)
	}
	other, grace := types.UID("other"), int64(1)
	if err := core.Pods("shop").Delete(ctx, "a", metav1.DeleteOptions{
		GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &other}}); !apierrors.IsConflict(err) {
		t.Errorf("another pod of the name: %v", err)
	}
	m.BreakAfter(0)
	if err := core.Pods("shop").Delete(ctx, "a", metav1.DeleteOptions{}); !m.Lost(err) {
		t.Errorf("of a server that has gone: %v", err)
	}
	m.BreakAfter(-1)
	if err := core.Pods("shop").Delete(ctx, "a", metav1.DeleteOptions{}); err != nil ||
		m.Object(t, "/api/v1/namespaces/shop/pods/a") != nil {
		t.Errorf("deleted: %v", err)
	}
	want := []string{
		"PUT /api/v1/nodes/one", "PUT /api/v1/nodes/one", "PATCH /api/v1/namespaces/shop/secrets/s",
		"PATCH /api/v1/namespaces/shop/secrets/s", "PATCH /api/v1/namespaces/shop/secrets/s",
		"PATCH /api/v1/namespaces/shop/secrets/s", "DELETE /api/v1/namespaces/shop/pods/a grace 1",
		"DELETE /api/v1/namespaces/shop/pods/a",
	}
	if diff := cmp.Diff(want, m.Changes()); diff != "" {
		t.Error(diff)
	}
}

// config is a client's way to the server.
func (m *Memory) config(t *testing.T, kubeconfig []byte) *rest.Config {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.ServerName, config.QPS = "127.0.0.1", -1
	if string(kubeconfig) == string(m.Kubeconfig) {
		config.Dial = m.Dial
	}
	return config
}

// What the server says of itself, what pods print, and the answers of somebody else in its place.
func TestMemoryAnswers(t *testing.T) {
	m := NewMemory(t, Labelled("one", map[string]string{"a": "b"}))
	m.Version = "v1.2.3+k3s1"
	client := kubernetes.NewForConfigOrDie(m.config(t, m.Local))
	ctx, pods := t.Context(), client.CoreV1().Pods("shop")
	if v, err := client.Discovery().ServerVersion(); err != nil || v.GitVersion != m.Version {
		t.Errorf("%v, %v", v, err)
	}
	if ok, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil ||
		string(ok) != "ok" {
		t.Errorf("%q, %v", ok, err)
	}
	nodes, err := metadata.NewForConfigOrDie(m.config(t, m.Local)).
		Resource(corev1.SchemeGroupVersion.WithResource("nodes")).List(ctx, metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 || nodes.Items[0].Labels["a"] != "b" {
		t.Errorf("%v, %v", nodes, err)
	}
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	}
	if _, err := pods.Create(ctx, pod("nobody-runs-it"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	m.Kubelet(func(p *corev1.Pod) string {
		p.Status.Phase = corev1.PodSucceeded
		return "printed by " + p.Name
	})
	made, err := pods.Create(ctx, pod("a"), metav1.CreateOptions{})
	if err != nil || made.Status.Phase != corev1.PodSucceeded {
		t.Errorf("%v, %v", made, err)
	}
	if text, err := pods.GetLogs("a", &corev1.PodLogOptions{}).DoRaw(ctx); err != nil ||
		string(text) != "printed by a" {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := pods.GetLogs("nobody-runs-it", &corev1.PodLogOptions{}).DoRaw(ctx); !apierrors.IsNotFound(err) {
		t.Errorf("%q, %v", text, err)
	}
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if text, err := pods.GetLogs("a", &corev1.PodLogOptions{}).DoRaw(ctx); !apierrors.IsNotFound(err) {
		t.Errorf("of a pod that has gone: %q, %v", text, err)
	}
	changes := m.Changes()
	m.Answer("/api/v1/namespaces/shop/pods", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusForbidden)
	})
	if _, err := pods.Create(ctx, pod("b"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("answered by somebody else: %v", err)
	}
	if list, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("by another path: %v, %v", list, err)
	}
	if diff := cmp.Diff(changes, m.Changes()); diff != "" {
		t.Errorf("what somebody else answered has changed something: %s", diff)
	}
	m.Answer("/api/v1/namespaces/shop/pods", nil)
	if list, err := pods.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("taken back: %v, %v", list, err)
	}
	// Nothing is of an application that is tried out only, of what is there or is not.
	before, changes := m.Snapshot(t), m.Changes()
	for _, name := range []string{"one", "two"} {
		made, err := client.CoreV1().Nodes().Apply(ctx, corev1ac.Node(name).WithLabels(map[string]string{"c": "d"}),
			metav1.ApplyOptions{FieldManager: "a", DryRun: []string{metav1.DryRunAll}})
		if err != nil || made.Labels["c"] != "d" {
			t.Errorf("%v, %v", made, err)
		}
	}
	if diff := cmp.Diff(before, m.Snapshot(t)) + cmp.Diff(changes, m.Changes()); diff != "" {
		t.Error(diff)
	}
	lists, err := client.Discovery().ServerPreferredNamespacedResources()
	if err != nil || !slices.ContainsFunc(lists, func(l *metav1.APIResourceList) bool {
		return l.GroupVersion == "apps/v1"
	}) {
		t.Errorf("%d lists of resources, %v", len(lists), err)
	}
	if _, err := pods.Watch(ctx, metav1.ListOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("watched: %v", err)
	}
}
