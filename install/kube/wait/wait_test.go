package wait

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/explain"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// answering is a cluster whose API server has a few answers.
func answering(t *testing.T, handler http.HandlerFunc) *kube.Cluster {
	t.Helper()
	api := kubetest.NewAPI(t, handler)
	c, err := kube.Connect(kube.Options{Name: "pure", Kubeconfig: api.Kubeconfig, Dial: api.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestPatience(t *testing.T) {
	o := kube.Object{Kind: kube.Deployment, Namespace: "boxes", Name: "api"}
	helper := func(mark string) *explain.Setback { return &explain.Setback{Patience: 30 * time.Second, Mark: mark} }
	type look struct {
		after time.Duration // since the first look
		s     *explain.Setback
		over  bool
	}
	for name, looks := range map[string][]look{
		"fails and stays so": {{0, nil, false}, {time.Second, helper("1"), false},
			{30 * time.Second, helper("1"), false}, {31 * time.Second, helper("1"), true}},
		"fails again and again": {{0, nil, false}, {time.Second, helper("1"), false}, {31 * time.Second, helper("2"), true}},
		"a break": {{0, nil, false}, {time.Second, helper("1"), false}, {20 * time.Second, nil, false},
			{21 * time.Second, helper("2"), false}, {40 * time.Second, helper("2"), false}},
		"failed before": {{0, helper("1"), false}, {time.Hour, helper("1"), false}},
		"failed before, and after that": {{0, helper("1"), false}, {time.Minute, helper("2"), false},
			{2 * time.Minute, helper("2"), true}},
		"takes as long as it takes": {{0, nil, false}, {time.Second, &explain.Setback{}, false}, {time.Hour, &explain.Setback{}, false}},
	} {
		t.Run(name, func(t *testing.T) {
			p, start := newPatience(), time.Now()
			for _, l := range looks {
				if got := p.over(o, l.s, start.Add(l.after)); got != l.over {
					t.Errorf("after %v: over %t, want %t", l.after, got, l.over)
				}
			}
		})
	}
}

// A Deployment whose pod waits for a volume that k3s cannot make: said at once, with the events of the
// claim and the log of the pod that failed to make it, and given up.
func TestClaimThatFails(t *testing.T) {
	var failed atomic.Bool
	const claimPath, podPath = "/api/v1/namespaces/boxes/persistentvolumeclaims/data", "/api/v1/namespaces/boxes/pods"
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		labels := map[string]string{"app": "api"}
		switch {
		case r.URL.Path == "/apis/apps/v1/namespaces/boxes/deployments/api":
			kubetest.Answer(t, w, "Deployment", appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "api", Namespace: "boxes"},
				Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}}})
		case r.URL.Path == podPath:
			kubetest.Answer(t, w, "PodList", corev1.PodList{Items: []corev1.Pod{{
				ObjectMeta: metav1.ObjectMeta{Name: "api-1", Namespace: "boxes", Labels: labels},
				Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}},
				Status: corev1.PodStatus{Phase: corev1.PodPending},
			}}})
		case r.URL.Path == claimPath:
			class := "local-path"
			kubetest.Answer(t, w, "PersistentVolumeClaim", corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "boxes", UID: "c1a1"},
				Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &class},
				Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}})
		case r.URL.Path == "/api/v1/namespaces/kube-system/pods":
			var list corev1.PodList
			if failed.Load() {
				list.Items = append(list.Items, corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: "helper-pod-create-pvc-c1a1", Namespace: "kube-system", UID: "h1"},
					Spec:       corev1.PodSpec{NodeName: "first"},
					Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{Name: "helper-pod",
						State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 127}}}}}})
			}
			kubetest.Answer(t, w, "PodList", list)
		case strings.HasSuffix(r.URL.Path, "/helper-pod-create-pvc-c1a1/log"):
			fmt.Fprintln(w, "/bin/sh: chmod: not found")
		case strings.HasSuffix(r.URL.Path, "/events"):
			var list corev1.EventList
			if strings.Contains(r.URL.Query().Get("fieldSelector"), "PersistentVolumeClaim") {
				list.Items = append(list.Items, corev1.Event{Type: "Normal", Reason: "ExternalProvisioning", Message: "waiting"})
			}
			kubetest.Answer(t, w, "EventList", list)
		case r.URL.Path == "/api/v1/nodes":
			kubetest.Answer(t, w, "NodeList", corev1.NodeList{})
		default:
			http.Error(w, "no "+r.URL.Path, http.StatusNotFound)
		}
	})
	objects := []Awaited{{Object: kube.Object{Kind: kube.Deployment, Namespace: "boxes", Name: "api"}}}
	w := newWait(c)
	look := func() waitingFor {
		t.Helper()
		waiting, err := w.unfinished(kubetest.Within(t), objects)
		if err != nil || len(waiting) != 1 {
			t.Fatalf("%+v, %v", waiting, err)
		}
		return waiting[0]
	}
	const why = "PersistentVolumeClaim boxes/data has no volume: pod helper-pod-create-pvc-c1a1 on first: " +
		"container helper-pod (image ) has ended: exit code 127"
	if first := look(); first.failed || strings.Contains(first.state, "has no volume") {
		t.Errorf("before anything has failed: %+v", first)
	}
	failed.Store(true)
	if held := look(); held.failed || !strings.Contains(held.state, why) {
		t.Errorf("when it has failed: %+v", held)
	}
	w.patience.since[objects[0].Object] = time.Now().Add(-30 * time.Second)
	if over := look(); !over.failed || !strings.Contains(over.state, why+", for 30s now") {
		t.Errorf("when it has failed for long enough: %+v", over)
	}
	kubetest.Contains(t, explain.Object(kubetest.Within(t), c, objects[0].Object), "PersistentVolumeClaim boxes/data: Pending, storage class local-path",
		"event Normal ExternalProvisioning", "pod helper-pod-create-pvc-c1a1 on first: Failed", "log: /bin/sh: chmod: not found")
}

func TestDeadlines(t *testing.T) {
	seconds := int32(10)
	at := func(generation int64, reason string) *appsv1.Deployment {
		d := kubetest.Deployment("web", 1, "tool:1")
		d.Generation, d.Spec.ProgressDeadlineSeconds = 2, &seconds
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: generation, Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: "False", Reason: reason}}}
		return d
	}
	const over, updated = "ProgressDeadlineExceeded", "ReplicaSetUpdated"
	type look struct {
		deployment *appsv1.Deployment
		waited     time.Duration
		want       bool
	}
	for name, looks := range map[string][]look{
		"it becomes over":              {{at(2, updated), 0, false}, {at(2, over), 3 * time.Second, true}},
		"it was over before":           {{at(2, over), 0, false}, {at(2, over), 9 * time.Second, false}, {at(2, over), 10 * time.Second, true}},
		"it was over, and has gone on": {{at(2, over), 0, false}, {at(2, updated), time.Second, false}, {at(2, over), 2 * time.Second, true}},
		"of an older template":         {{at(1, over), 0, false}, {at(1, over), time.Minute, false}},
		"it goes on":                   {{at(2, updated), 0, false}, {at(2, updated), time.Minute, false}},
	} {
		d := deadlines{}
		for i, l := range looks {
			if got := d.exceeded(l.deployment, l.waited); got != l.want {
				t.Errorf("%s: look %d: %v", name, i, got)
			}
		}
	}
}
