package kube

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/test/k3sbuild"
)

func TestProbePod(t *testing.T) {
	p := ProbePod{
		Namespace: "boxes", Labels: map[string]string{"app": "liteboxd"}, Node: "a1", Image: "web:1",
		Program: "/var/lib/boxlift/bin/boxlift-node", Args: []string{"probe"}, Before: [][]string{{"probe"}, {"probe"}},
	}
	pod := p.pod("x")
	if diff := cmp.Diff(map[string]string{"app": "liteboxd", ProbeLabel: "true"}, pod.Labels); diff != "" {
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
	p = ProbePod{Namespace: "boxes", Node: "a1", Image: "web:1"}
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

func TestRunPod(t *testing.T) {
	c := cluster(t)
	ctx := within(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "probes", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}}}
	if _, err := c.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	gone := func(namespace string) {
		t.Helper()
		pods, err := c.Pods(ctx, namespace, ProbeLabel)
		if err != nil || len(pods) > 0 {
			t.Errorf("pods are left: %v: %v", pods, err)
		}
	}

	// A pod serves while another one, with a program of the node, asks.
	version := ProbePod{Namespace: "default", Node: agent, Image: toolImage, Program: "/usr/local/bin/k3s", Args: []string{"--version"}, Before: [][]string{{"--version"}}}
	serve := ProbePod{Namespace: "probes", Node: agent, Image: toolImage, Args: []string{"serve", ":8080"}}
	err := c.WithPod(ctx, serve, func(ctx context.Context, address string) error {
		log, err := c.RunPod(ctx, ProbePod{Namespace: "probes", Node: agent, Image: toolImage, Args: []string{"get", "http://" + address + ":8080"}})
		if err == nil && !strings.Contains(string(log), "boxlift-probe-") {
			t.Errorf("the pod at %s answers %q, and not with its name", address, log)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	log, err := c.RunPod(ctx, version)
	if err != nil || !strings.HasPrefix(string(log), "k3s version "+k3sbuild.V136) {
		t.Errorf("the node's k3s says %q: %v", log, err)
	}

	// What does not work says why.
	for _, test := range []struct {
		pod  ProbePod
		want string
	}{
		{ProbePod{Namespace: "probes", Node: agent, Image: noImage}, "ErrImageNeverPull"},
		{ProbePod{Namespace: "probes", Node: agent, Image: toolImage, Args: []string{"get"}}, "it printed: usage: netcheck"},
	} {
		if log, err := c.RunPod(ctx, test.pod); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q, expected an error about %s: %v", log, test.want, err)
		}
	}
	version.Namespace = "probes"
	if _, err := c.RunPod(ctx, version); !apierrors.IsForbidden(err) {
		t.Errorf("a program of the host in a namespace without volumes of the host's: %v", err)
	}
	gone("default")
	gone("probes")

	// Who is interrupted leaves nothing either.
	interrupted, interrupt := context.WithCancelCause(ctx)
	why := errors.New("interrupted")
	err = c.WithPod(interrupted, serve, func(ctx context.Context, _ string) error {
		interrupt(why)
		return context.Cause(ctx)
	})
	if !errors.Is(err, why) {
		t.Errorf("interrupted: %v", err)
	}
	gone("probes")
}
