package kube_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/drain"
	"github.com/liteboxd/boxlift/install/kube/explain"
	"github.com/liteboxd/boxlift/install/kube/wait"
	"github.com/liteboxd/boxlift/test/k3sbuild"
	"github.com/liteboxd/boxlift/test/kubetest"
)

func TestNodes(t *testing.T) {
	c := cluster(t)
	ctx := kubetest.Within(t)
	version, err := c.Version(ctx)
	if err != nil || version != k3sbuild.V136 {
		t.Errorf("version %q: %v", version, err)
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) != 2 {
		t.Fatalf("nodes %+v", nodes)
	}
	a, s := nodes[0], nodes[1]
	if a.Name != agent || s.Name != server || a.Server || !s.Server || !a.Ready || a.Reason != "" {
		t.Errorf("nodes %+v", nodes)
	}
	id, err := c.server.Exec(ctx, "cat", "/etc/machine-id")
	if err != nil || s.MachineID != strings.TrimSpace(string(id)) {
		t.Errorf("machine ID %q, want %q: %v", s.MachineID, id, err)
	}
	if s.Kubelet != k3sbuild.V136 || !strings.HasPrefix(s.ContainerRuntime, "containerd://") || s.Architecture != "amd64" || s.Created.IsZero() {
		t.Errorf("server %+v", s)
	}
	if !slices.Contains(s.Addresses, c.server.Address.String()) {
		t.Errorf("addresses %q", s.Addresses)
	}
	namespaces, err := c.Namespaces(ctx)
	if err != nil || !slices.Contains(namespaces, "kube-system") {
		t.Errorf("namespaces %q: %v", namespaces, err)
	}
	services, err := c.Services(ctx, "default")
	if err != nil || len(services) != 1 {
		t.Fatalf("services %+v: %v", services, err)
	}
	if diff := cmp.Diff(kube.Service{Namespace: "default", Name: "kubernetes", Type: "ClusterIP", Addresses: []string{"10.43.0.1"}, Ports: []string{"443/TCP"}}, services[0]); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
}

func TestSetNode(t *testing.T) {
	c := cluster(t)
	ctx := kubetest.Within(t)
	set := func(labels map[string]string, taints []kube.Taint, want ...string) kube.Node {
		t.Helper()
		reason, err := c.NodeDiffers(ctx, agent, labels, taints)
		if err != nil {
			t.Fatal(err)
		}
		changed, err := c.SetNode(ctx, agent, labels, taints)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, changed); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
		if reason != strings.Join(changed, ", ") {
			t.Errorf("NodeDiffers said %q, changed was %q", reason, changed)
		}
		nodes, err := c.Nodes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return nodes[0]
	}
	// Others' label and taint, which stay.
	patch := []byte(`{"metadata":{"labels":{"other":"theirs","both":"theirs"}},"spec":{"taints":[{"key":"other","effect":"PreferNoSchedule"}]}}`)
	if _, err := c.Client.CoreV1().Nodes().Patch(ctx, agent, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	other := kube.Taint{Key: "other", Value: "", Effect: "PreferNoSchedule"}
	disk, gpu := kube.Taint{Key: "disk", Value: "ssd", Effect: "PreferNoSchedule"}, kube.Taint{Key: "gpu", Value: "", Effect: "PreferNoSchedule"}

	n := set(map[string]string{"rack": "r1", "both": "ours"}, []kube.Taint{disk, gpu}, "label both=ours (was theirs)",
		"label rack=r1", "taint disk=ssd:PreferNoSchedule", "taint gpu:PreferNoSchedule")
	if n.Labels["rack"] != "r1" || n.Labels["both"] != "ours" || n.Labels["other"] != "theirs" {
		t.Errorf("labels %v", n.Labels)
	}
	if diff := cmp.Diff([]kube.Taint{other, disk, gpu}, n.Taints); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
	set(map[string]string{"rack": "r1", "both": "ours"}, []kube.Taint{gpu, disk})
	disk.Value = "nvme"
	n = set(map[string]string{"rack": "r2"}, []kube.Taint{disk}, "label rack=r2 (was r1)", "label both goes",
		"taint gpu:PreferNoSchedule goes", "taint disk=nvme:PreferNoSchedule")
	if diff := cmp.Diff([]kube.Taint{other, disk}, n.Taints); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
	n = set(nil, nil, "label rack goes", "taint disk=nvme:PreferNoSchedule goes")
	if diff := cmp.Diff([]kube.Taint{other}, n.Taints); diff != "" || n.Labels["other"] != "theirs" {
		t.Errorf("labels %v, taints (-want +got):\n%s", n.Labels, diff)
	}
	set(nil, nil)

	if _, err := c.SetNode(ctx, "ghost", map[string]string{"a": "b"}, nil); !errors.Is(err, kube.ErrNoNode) {
		t.Errorf("a node that does not exist: %v", err)
	}
}

func TestDrain(t *testing.T) {
	c := cluster(t)
	ctx := kubetest.Within(t)
	r := c.demo(t, nil)
	if err := c.makeNamespace(ctx, r.Namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		on := []byte(`{"spec":{"unschedulable":null}}`)
		if _, err := c.Client.CoreV1().Nodes().Patch(context.Background(), agent, types.MergePatchType, on, metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	})
	// Two pods, both on the agent, and a budget that lets none of them go.
	d := kubetest.Deployment("web", 2, toolImage)
	d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: agent}
	d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	if _, err := c.Client.AppsV1().Deployments(r.Namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all := intstr.FromInt32(2)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "two-of-web"}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &all, Selector: d.Spec.Selector}}
	if _, err := c.Client.PolicyV1().PodDisruptionBudgets(r.Namespace).Create(ctx, budget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := wait.Rollouts(ctx, c.Cluster, r.Namespace, []kube.Workload{{Kind: kube.Deployment, Name: "web"}}, nil); err != nil {
		t.Fatal(kubetest.Explained(err))
	}

	var told []string
	err := drain.Node(ctx, c.Cluster, agent, drain.Options{Timeout: 5 * time.Second, Report: func(text string) { told = append(told, text) }})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	t.Log(kubetest.Explained(err))
	kubetest.Contains(t, err.Error(), "test: drain node a1: not done after ", "pod "+r.Namespace+"/web-",
		"PodDisruptionBudget two-of-web does not let go: it allows 0 disruptions, with 2 pods healthy and 2 needed")
	kubetest.Contains(t, kubetest.Explained(err), "hint: the budget allows it when")
	kubetest.Contains(t, strings.Join(told, "\n"), "waiting for pod "+r.Namespace+"/web-", "two-of-web")
	nodes, err := c.Nodes(ctx)
	if err != nil || !nodes[0].Unschedulable {
		t.Errorf("after a drain that failed the node is schedulable: %v", err)
	}

	// Ctrl-C.
	interrupted, cancel := context.WithCancelCause(ctx)
	pressed := errors.New("somebody pressed Ctrl-C")
	err = drain.Node(interrupted, c.Cluster, agent, drain.Options{Report: func(string) { cancel(pressed) }})
	if !errors.Is(err, pressed) {
		t.Errorf("error %v, want %v", err, pressed)
	}

	// A pod that nobody would make anew.
	single := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "single"}, Spec: d.Spec.Template.Spec}
	single.Spec.NodeName, single.Spec.NodeSelector = agent, nil
	if _, err := c.Client.CoreV1().Pods(r.Namespace).Create(ctx, single, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.PolicyV1().PodDisruptionBudgets(r.Namespace).Delete(ctx, budget.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err = drain.Node(ctx, c.Cluster, agent, drain.Options{})
	if err == nil {
		t.Fatal("a pod without a controller was deleted")
	}
	kubetest.Contains(t, err.Error(), "nothing was evicted", r.Namespace+"/single")

	told = nil
	if err := drain.Node(ctx, c.Cluster, agent, drain.Options{Unmanaged: true, Report: func(text string) { told = append(told, text) }}); err != nil {
		t.Fatal(kubetest.Explained(err))
	}
	kubetest.Contains(t, strings.Join(told, "\n"), "pod "+r.Namespace+"/single has left", "pod "+r.Namespace+"/web-")
	pods, err := c.Client.CoreV1().Pods(r.Namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + agent})
	if err != nil || len(pods.Items) > 0 {
		t.Errorf("%d pods are left: %v", len(pods.Items), err)
	}
	if changed, err := c.Cordon(ctx, agent); err != nil || changed {
		t.Errorf("cordoned once more: %v, %v", changed, err)
	}
	if err := drain.Node(ctx, c.Cluster, "ghost", drain.Options{}); !errors.Is(err, kube.ErrNoNode) {
		t.Errorf("a node that does not exist: %v", err)
	}
}

// A node that was registered and never came up: what a removed host leaves.
func TestNodeThatIsGone(t *testing.T) {
	c := cluster(t)
	ctx := kubetest.Within(t)
	ghost := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ghost"}}
	t.Cleanup(func() {
		if err := c.DeleteNode(context.Background(), "ghost"); err != nil {
			t.Error(err)
		}
	})
	if _, err := c.Client.CoreV1().Nodes().Create(ctx, ghost, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "ghost.node-password.k3s"}}
	if _, err := c.Client.CoreV1().Secrets("kube-system").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// A pod that its kubelet will never end.
	r := c.demo(t, nil)
	if err := c.makeNamespace(ctx, r.Namespace); err != nil {
		t.Fatal(err)
	}
	d := kubetest.Deployment("lost", 1, toolImage)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "lost"}, Spec: d.Spec.Template.Spec}
	pod.Spec.NodeName = "ghost"
	if _, err := c.Client.CoreV1().Pods(r.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	kubetest.Contains(t, explain.Object(ctx, c.Cluster, kube.Object{Kind: "Node", Name: "ghost"}),
		"node ghost: not ready")
	if err := drain.Node(ctx, c.Cluster, "ghost", drain.Options{Unmanaged: true, Gone: true}); err != nil {
		t.Error(kubetest.Explained(err))
	}
	for range 2 {
		if err := c.DeleteNode(ctx, "ghost"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Node(ctx, "ghost"); !errors.Is(err, kube.ErrNoNode) {
		t.Errorf("the node is still there: %v", err)
	}
	if _, err := c.Client.CoreV1().Secrets("kube-system").Get(ctx, secret.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node's password is still there: %v", err)
	}
}
