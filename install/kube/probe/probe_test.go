package probe

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestProbePod(t *testing.T) {
	p := Pod{
		Namespace: "boxes", Labels: map[string]string{"app": "liteboxd"}, Node: "a1", Image: "web:1",
		Program: "/var/lib/boxlift/bin/boxlift-node", Args: []string{"probe"}, Before: [][]string{{"probe"}, {"probe"}},
	}
	pod := p.pod("x")
	if diff := cmp.Diff(map[string]string{"app": "liteboxd", Label: "true"}, pod.Labels); diff != "" {
		t.Errorf("labels: -want +got:\n%s", diff)
	}
	// All runs are of the program of the node, as nobody.
	var names []string
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		names = append(names, c.Name)
		if s := c.SecurityContext; s == nil || *s.RunAsUser == 0 || *s.AllowPrivilegeEscalation || c.ImagePullPolicy != corev1.PullNever {
			t.Errorf("container %s: %+v", c.Name, c)
		}
		if diff := cmp.Diff([]string{programPath, "probe"}, append(c.Command, c.Args...)); diff != "" {
			t.Errorf("container %s: -want +got:\n%s", c.Name, diff)
		}
	}
	if diff := cmp.Diff([]string{"before-0", "before-1", "probe"}, names); diff != "" {
		t.Errorf("containers: -want +got:\n%s", diff)
	}
	// The image's own program is run as the image has it.
	p = Pod{Namespace: "boxes", Node: "a1", Image: "web:1"}
	pod = p.pod("x")
	if c := pod.Spec.Containers[0]; c.Command != nil || c.SecurityContext != nil || len(pod.Spec.Volumes) > 0 {
		t.Errorf("container: %+v", c)
	}
}

func TestHopeless(t *testing.T) {
	waiting := func(reason string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "probe", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "why"}}},
		}}
	}
	ended := func(phase corev1.PodPhase, code int32) corev1.PodStatus {
		return corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "probe", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}},
		}}
	}
	for _, c := range []struct {
		status corev1.PodStatus
		want   string
	}{
		{corev1.PodStatus{Phase: corev1.PodPending}, ""},
		{corev1.PodStatus{Phase: corev1.PodRunning}, ""},
		{waiting("ContainerCreating"), ""},
		{waiting("ErrImageNeverPull"), "container probe (image web:1) waits: ErrImageNeverPull: why"},
		{ended(corev1.PodFailed, 2), "container probe (image web:1) has ended: exit code 2"},
		{ended(corev1.PodSucceeded, 0), "its program has ended"},
		{corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "no room"}, "failed: Evicted: no room"},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "probe", Image: "web:1"}}}, Status: c.status}
		if got := hopeless(p); got != c.want {
			t.Errorf("%+v: %q, expected %q", c.status, got, c.want)
		}
	}
}
