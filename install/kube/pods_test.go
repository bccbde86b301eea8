package kube

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What a kubelet or another part of the cluster has ended is told from what ends by itself.
func TestPodEndedBy(t *testing.T) {
	tests := []struct {
		name   string
		status corev1.PodStatus
		want   string
	}{
		{"it runs", corev1.PodStatus{Phase: corev1.PodRunning}, ""},
		{"it failed by itself", corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled"}}}}}, ""},
		{"the kubelet says why", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}, "Evicted"},
		{"a condition says why", corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Reason: "PodFailed"}, {Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager"}}}, "DeletionByTaintManager"},
		{"it is no longer to end", corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, Reason: "PreemptionByScheduler"}}}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := PodOf(&corev1.Pod{Status: test.status}).Reason; got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestNewPod(t *testing.T) {
	yes, grace, left := true, int64(120), int64(30)
	deleted := metav1.NewTime(time.Date(2026, 11, 21, 9, 0, 30, 0, time.UTC))
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "sys", UID: types.UID("1"), Labels: map[string]string{"a": "b"}, OwnerReferences: []metav1.OwnerReference{{Kind: "Node"}, {Kind: "ReplicaSet", Controller: &yes}}},
		Spec:       corev1.PodSpec{NodeName: "n1", TerminationGracePeriodSeconds: &grace},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			InitContainerStatuses: []corev1.ContainerStatus{{RestartCount: 1}}, ContainerStatuses: []corev1.ContainerStatus{{RestartCount: 2}, {RestartCount: 3}},
		},
	}
	want := Pod{Namespace: "sys", Name: "web", UID: "1", Node: "n1", Phase: "Running", Ready: true, Restarts: 6, OwnerKind: "ReplicaSet", Labels: map[string]string{"a": "b"}, Grace: 2 * time.Minute}
	if diff := cmp.Diff(want, PodOf(p)); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &deleted, &left
	want.Ready, want.Terminating, want.Grace = false, deleted.Add(-30*time.Second), 30*time.Second
	if diff := cmp.Diff(want, PodOf(p)); diff != "" {
		t.Errorf("pod that ends (-want +got):\n%s", diff)
	}
}
