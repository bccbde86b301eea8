package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// apiOf is a cluster whose API has these objects, by their paths, and no others.
func apiOf(t *testing.T, objects map[string]runtime.Object) *Cluster {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		object, ok := objects[r.URL.Path]
		if !ok {
			t.Errorf("the API is asked for %s", r.URL.Path)
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object) // the client will say that it is not whole
	}))
	t.Cleanup(api.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}})
	if err != nil {
		t.Fatal(err)
	}
	return &Cluster{Name: "test", Client: client}
}

// unready says what the API has of a node whose kubelet is gone.
func unready(n *corev1.Node) {
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown"}}
	tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)(n)
}

func ready(n *corev1.Node) {
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
}

// Pods of nodes that nobody counts on and that are not Ready are not waited for; those of all
// other nodes are.
func TestRolloutLeavesOut(t *testing.T) {
	const old, current = "old", "current"
	yes := true
	controlled := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: DaemonSet, Name: "web", UID: "uid-web", Controller: &yes}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	// A pod is written as its node, its template, and whether it is ready or ending.
	pod := func(text string) corev1.Pod {
		f := strings.Fields(text)
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "web-" + f[0] + f[1], Namespace: "ns", OwnerReferences: controlled,
			Labels: map[string]string{"app": "web", appsv1.DefaultDaemonSetUniqueLabelKey: f[1]},
		}}
		p.Spec.NodeName = f[0]
		status := corev1.ConditionFalse
		switch f[2] {
		case "ready":
			status = corev1.ConditionTrue
		case "ending":
			now := metav1.Now()
			p.DeletionTimestamp = &now
		}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour))}}
		return p
	}
	revision := func(number int64, hash string) appsv1.ControllerRevision {
		return appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Name: hash, OwnerReferences: controlled, Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: hash}},
			Revision:   number,
		}
	}
	daemonSet := func(desired, updated, ready int32) *appsv1.DaemonSet {
		return &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "uid-web"},
			Spec:       appsv1.DaemonSetSpec{Selector: selector},
			Status:     appsv1.DaemonSetStatus{DesiredNumberScheduled: desired, UpdatedNumberScheduled: updated, NumberReady: ready, NumberAvailable: ready},
		}
	}
	replicated := func(wanted, updated, ready int32) *appsv1.Deployment {
		return &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns"},
			Spec:       appsv1.DeploymentSpec{Selector: selector, Replicas: &wanted},
			Status:     appsv1.DeploymentStatus{Replicas: wanted, UpdatedReplicas: updated, ReadyReplicas: ready, AvailableReplicas: ready},
		}
	}
	stateful := func(wanted, ready int32) *appsv1.StatefulSet {
		return &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns"},
			Spec:       appsv1.StatefulSetSpec{Selector: selector, Replicas: &wanted},
			Status:     appsv1.StatefulSetStatus{Replicas: wanted, UpdatedReplicas: wanted, ReadyReplicas: ready, AvailableReplicas: ready},
		}
	}
	const gone = "gone" // the node that may be down
	for _, c := range []struct {
		name     string
		workload runtime.Object
		pods     []string
		listed   bool // gone is in install.yaml
		ready    bool // gone is Ready
		want     string
		done     bool
	}{
		{"as it was", daemonSet(2, 2, 1), []string{"n1 current ready", "gone current unready"}, false, false, "1 of 1 pods ready", true},
		{"a rollout that the dead node will not see", daemonSet(2, 1, 1), []string{"n1 current ready", "gone old ending"}, false, false, "1 of 1 pods ready", true},
		{"an old pod that still runs", daemonSet(2, 1, 1), []string{"n1 old ready", "gone current unready"}, false, false, "0 of 1 pods updated", false},
		{"a new pod that is not ready", daemonSet(2, 2, 1), []string{"n1 current unready", "gone current ready"}, false, false, "0 of 1 pods ready", false},
		{"a pod that is still to come", daemonSet(2, 1, 1), []string{"n1 old ending", "gone current ready"}, false, false, "covers 0 of 1 nodes", false},
		{"a node that is back and whose pod was there", daemonSet(1, 1, 1), []string{"n1 current ready", "gone current ready"}, false, true, "2 of 2 pods ready", true},
		{"a node that is back and whose pod is not ready", daemonSet(1, 1, 1), []string{"n1 current ready", "gone current unready"}, false, true, "1 of 2 pods ready", false},
		{"a node that is new", daemonSet(1, 1, 1), []string{"n1 current ready"}, false, true, "covers 1 of 2 nodes", false},
		{"a node of install.yaml", daemonSet(2, 2, 1), []string{"n1 current ready", "gone current unready"}, true, false, "1 of 2 pods ready", false},
		{"a node that is Ready", daemonSet(2, 2, 1), []string{"n1 current ready", "gone current unready"}, false, true, "1 of 2 pods ready", false},
		{"a Deployment's pod that stays there", replicated(2, 2, 1), []string{"n1 current ready", "gone current unready"}, false, false, "1 of 1 pods ready", true},
		{"one whose successor is to come", replicated(2, 2, 1), []string{"n1 current ready", "gone current ending"}, false, false, "1 of 2 pods ready", false},
		{"a Deployment's only pod", replicated(1, 1, 0), []string{"gone current unready"}, false, false, "0 of 1 pods ready", false},
		{"a Deployment's pod on a node of install.yaml", replicated(2, 2, 1), []string{"n1 current ready", "gone current unready"}, true, false, "1 of 2 pods ready", false},
		{"a StatefulSet's pod", stateful(2, 1), []string{"n1 current ready", "gone current unready"}, false, false, "1 of 1 pods ready", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			last := node(gone, unready)
			if c.ready {
				last = node(gone, ready)
			}
			var pods corev1.PodList
			for _, text := range c.pods {
				pods.Items = append(pods.Items, pod(text))
			}
			// The API lists revisions by name: the newest is not the last.
			revisions := appsv1.ControllerRevisionList{Items: []appsv1.ControllerRevision{revision(2, current), revision(1, old)}}
			o, daemonSets, deployments, statefulSets := Object{Namespace: "ns", Name: "web"}, appsv1.DaemonSetList{}, appsv1.DeploymentList{}, appsv1.StatefulSetList{}
			switch w := c.workload.(type) {
			case *appsv1.DaemonSet:
				o.Kind, daemonSets.Items = DaemonSet, append(daemonSets.Items, *w)
			case *appsv1.Deployment:
				o.Kind, deployments.Items = Deployment, append(deployments.Items, *w)
			case *appsv1.StatefulSet:
				o.Kind, statefulSets.Items = StatefulSet, append(statefulSets.Items, *w)
			}
			apps := "/apis/apps/v1/namespaces/ns/"
			cluster := apiOf(t, map[string]runtime.Object{
				"/api/v1/nodes":              &corev1.NodeList{Items: []corev1.Node{node("n1", ready), last}},
				"/api/v1/namespaces/ns/pods": &pods,
				apps + "controllerrevisions": &revisions,
				apps + "daemonsets":          &daemonSets,
				apps + "deployments":         &deployments,
				apps + "statefulsets":        &statefulSets,
				fmt.Sprintf("%s%ss/web", apps, strings.ToLower(o.Kind)): c.workload,
			})
			cluster.absent = func(nodes []Node) []Node {
				if c.listed {
					return nil
				}
				return slices.DeleteFunc(nodes, func(n Node) bool { return n.Name != gone })
			}
			all, err := cluster.Rollouts(t.Context(), "ns")
			if err != nil || len(all) != 1 || all[0].State != c.want || all[0].Done != c.done {
				t.Errorf("Rollouts: %+v, %v; want %q, done %v", all, err, c.want, c.done)
			}
			// As it is waited for.
			judge, err := cluster.Judge(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			judged, err := judge.Workload(t.Context(), o)
			if err != nil || judged.Rollout.State != c.want || judged.Rollout.Done != c.done {
				t.Errorf("Workload: %+v, %v; want %q, done %v", judged.Rollout, err, c.want, c.done)
			}
		})
	}
}
