package kube_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/kube/probe"
	"github.com/liteboxd/boxlift/test/k3sbuild"
	"github.com/liteboxd/boxlift/test/kubetest"
)

func TestRunPod(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	ctx := kubetest.Within(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "probes", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}}}
	if _, err := c.Client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	gone := func(namespace string) {
		t.Helper()
		pods, err := c.Pods(ctx, namespace, probe.Label)
		if err != nil || len(pods) > 0 {
			t.Errorf("pods are left: %v: %v", pods, err)
		}
	}

	// A pod serves while another one, with a program of the node, asks.
	version := probe.Pod{Namespace: "default", Node: agent, Image: toolImage, Program: "/usr/local/bin/k3s", Args: []string{"--version"}, Before: [][]string{{"--version"}}}
	serve := probe.Pod{Namespace: "probes", Node: agent, Image: toolImage, Args: []string{"serve", ":8080"}}
	err := probe.With(ctx, c.Cluster, serve, func(ctx context.Context, address string) error {
		log, err := probe.Run(ctx, c.Cluster, probe.Pod{Namespace: "probes", Node: agent, Image: toolImage, Args: []string{"get", "http://" + address + ":8080"}})
		if err == nil && !strings.Contains(string(log), "boxlift-probe-") {
			t.Errorf("the pod at %s answers %q, and not with its name", address, log)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	log, err := probe.Run(ctx, c.Cluster, version)
	if err != nil || !strings.HasPrefix(string(log), "k3s version "+k3sbuild.V136) {
		t.Errorf("the node's k3s says %q: %v", log, err)
	}

	// What does not work says why.
	for _, test := range []struct {
		pod  probe.Pod
		want string
	}{
		{probe.Pod{Namespace: "probes", Node: agent, Image: noImage}, "ErrImageNeverPull"},
		{probe.Pod{Namespace: "probes", Node: agent, Image: toolImage, Args: []string{"get"}}, "it printed: usage: netcheck"},
	} {
		if log, err := probe.Run(ctx, c.Cluster, test.pod); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q, expected an error about %s: %v", log, test.want, err)
		}
	}
	version.Namespace = "probes"
	if _, err := probe.Run(ctx, c.Cluster, version); !apierrors.IsForbidden(err) {
		t.Errorf("a program of the host in a namespace without volumes of the host's: %v", err)
	}
	gone("default")
	gone("probes")

	// Who is interrupted leaves nothing either.
	interrupted, interrupt := context.WithCancelCause(ctx)
	why := errors.New("interrupted")
	err = probe.With(interrupted, c.Cluster, serve, func(ctx context.Context, _ string) error {
		interrupt(why)
		return context.Cause(ctx)
	})
	if !errors.Is(err, why) {
		t.Errorf("interrupted: %v", err)
	}
	gone("probes")
}
