package members

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// onCluster is the site of an install.yaml with a cluster that has objects.
func onCluster(t *testing.T, text string, objects ...runtime.Object) (*installation, *kubetest.Memory) {
	t.Helper()
	in, m := example(t, text), kubetest.NewMemory(t, objects...)
	in.reach(t, m)
	return in, m
}

// reach connects the site with a cluster.
func (in *installation) reach(t *testing.T, m *kubetest.Memory) {
	t.Helper()
	api, err := kube.Connect(kube.Options{Name: "server", Kubeconfig: m.Kubeconfig, Dial: m.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	in.site.API = api
}

// down is a node that does not report, one of a server if it has the role.
func down(name string, own map[string]string) *corev1.Node {
	n := kubetest.Labelled(name, own)
	n.Status.Conditions[0].Status = corev1.ConditionUnknown
	return n
}

// owned is a pod on the node worker that runs, of a controller of that kind, none for "".
func owned(name, kind string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
		Labels: map[string]string{"app": name}}}
	p.Spec.NodeName, p.Status.Phase = "worker", corev1.PodRunning
	if controller := true; kind != "" {
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: kind, Name: "of-" + name, UID: "uid", Controller: &controller},
		}
	}
	return p
}

// working is a cluster with a server, and an agent with pods of a Deployment and of a DaemonSet, a static one, and the
// password that k3s keeps for its name.
func working() []runtime.Object {
	static := owned("static", "")
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	daemons := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "of-agent"}}
	password := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system",
		Name: "worker.node-password.k3s"}}
	return []runtime.Object{
		kubetest.Labelled("server", map[string]string{"node-role.kubernetes.io/control-plane": "true"}),
		kubetest.Labelled("worker", nil), owned("web", "ReplicaSet"), owned("agent", "DaemonSet"), static, daemons,
		password,
	}
}
