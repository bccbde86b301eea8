package kube

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/test/kubetest"
)

func node(name string, change ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	for _, f := range change {
		f(&n)
	}
	return n
}

func tainted(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: "v", Effect: effect})
	}
}

func TestDaemonSetRollout(t *testing.T) {
	one, two := node("n1"), node("n2")
	nodes := []corev1.Node{one, two}
	status := func(desired, updated, ready, available int32) appsv1.DaemonSetStatus {
		return appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: desired, UpdatedNumberScheduled: updated, NumberReady: ready, NumberAvailable: available}
	}
	for name, c := range map[string]struct {
		nodes  []corev1.Node
		status appsv1.DaemonSetStatus
		change func(*appsv1.DaemonSet)
		want   string
		done   bool
	}{
		"done":                  {nodes, status(2, 2, 2, 2), nil, "2 of 2 pods ready", true},
		"none is ready":         {nodes, status(2, 2, 0, 0), nil, "0 of 2 pods ready", false},
		"old ones":              {nodes, status(2, 1, 2, 2), nil, "1 of 2 pods updated", false},
		"only just ready":       {nodes, status(2, 2, 2, 1), nil, "1 of 2 pods available", false},
		"a node that came late": {append(nodes, node("n3")), status(2, 2, 2, 2), nil, "covers 2 of 3 nodes", false},
		"no nodes":              {nil, status(0, 0, 0, 0), nil, "no node is registered", false},
		"not observed":          {nodes, status(2, 2, 2, 2), func(d *appsv1.DaemonSet) { d.Generation = 3 }, unseen, false},
		"for one node":          {nodes, status(1, 1, 1, 1), func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.NodeSelector = one.Labels }, "1 of 1 pods ready", true},
		"a taint":               {append(nodes, node("n3", tainted("gpu", corev1.TaintEffectNoSchedule))), status(2, 2, 2, 2), nil, "2 of 2 pods ready", true},
		"a taint that is tolerated": {append(nodes, node("n3", tainted("gpu", corev1.TaintEffectNoSchedule))), status(2, 2, 2, 2), func(d *appsv1.DaemonSet) {
			d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "gpu", Value: "v"}}
		}, "covers 2 of 3 nodes", false},
		"all taints are tolerated": {append(nodes, node("n3", tainted("gpu", corev1.TaintEffectNoExecute))), status(2, 2, 2, 2), func(d *appsv1.DaemonSet) {
			d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: "Exists"}}
		}, "covers 2 of 3 nodes", false},
		"a node that is not ready":      {append(nodes, node("n3", tainted(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute))), status(2, 2, 2, 2), nil, "covers 2 of 3 nodes", false},
		"no network, host network":      {append(nodes, node("n3", tainted(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule))), status(2, 2, 2, 2), func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.HostNetwork = true }, "covers 2 of 3 nodes", false},
		"no network":                    {append(nodes, node("n3", tainted(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule))), status(2, 2, 2, 2), nil, "2 of 2 pods ready", true},
		"a taint that is only a wish":   {append(nodes, node("n3", tainted("gpu", corev1.TaintEffectPreferNoSchedule))), status(2, 2, 2, 2), nil, "covers 2 of 3 nodes", false},
		"old ones that are meant to be": {nodes, status(2, 0, 2, 2), func(d *appsv1.DaemonSet) { d.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType }, "2 of 2 pods ready", true},
	} {
		d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Status: c.status}
		if c.change != nil {
			c.change(d)
		}
		if r := daemonSetRollout(d, c.nodes); r.State != c.want || r.Done != c.done {
			t.Errorf("%s: %q, done %v; want %q, %v", name, r.State, r.Done, c.want, c.done)
		}
	}
}

func TestDeploymentRollout(t *testing.T) {
	apart := func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: d.Spec.Selector},
		}}}
	}
	status := func(all, updated, ready, available int32) appsv1.DeploymentStatus {
		return appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: all, UpdatedReplicas: updated, ReadyReplicas: ready, AvailableReplicas: available}
	}
	one := []corev1.Node{node("n1")}
	two := []corev1.Node{node("n1"), node("n2", tainted(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule))}
	for name, c := range map[string]struct {
		nodes  []corev1.Node
		status appsv1.DeploymentStatus
		change func(*appsv1.Deployment)
		want   string
		done   bool
	}{
		"done":                                {one, status(2, 2, 2, 2), nil, "2 of 2 pods ready", true},
		"one of two":                          {one, status(2, 2, 1, 1), nil, "1 of 2 pods ready", false},
		"one of two, and there is one node":   {one, status(2, 2, 1, 1), apart, "1 of 1 pods ready", true},
		"one of two, and there are two nodes": {two, status(2, 2, 1, 1), apart, "1 of 2 pods ready", false},
		"none of two":                         {one, status(2, 2, 0, 0), apart, "0 of 1 pods ready", false},
		"old ones":                            {one, status(3, 2, 3, 3), nil, "1 old pods are still there", false},
		"not observed":                        {one, status(2, 2, 2, 2), func(d *appsv1.Deployment) { d.Generation = 2 }, unseen, false},
	} {
		d := kubetest.Deployment("d", 2, "tool:1")
		d.Generation, d.Status = 1, c.status
		if c.change != nil {
			c.change(d)
		}
		if r := deploymentRollout(d, c.nodes); r.State != c.want || r.Done != c.done {
			t.Errorf("%s: %q, done %v; want %q, %v", name, r.State, r.Done, c.want, c.done)
		}
	}
}

func TestStatefulSetRollout(t *testing.T) {
	partition := int32(1)
	for name, c := range map[string]struct {
		strategy appsv1.StatefulSetUpdateStrategy
		updated  int32
		want     string
	}{
		"done":      {appsv1.StatefulSetUpdateStrategy{}, 1, "1 of 1 pods ready"},
		"old":       {appsv1.StatefulSetUpdateStrategy{}, 0, "0 of 1 pods updated"},
		"partition": {appsv1.StatefulSetUpdateStrategy{RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition}}, 0, "1 of 1 pods ready"},
	} {
		s := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{UpdateStrategy: c.strategy}, Status: appsv1.StatefulSetStatus{UpdatedReplicas: c.updated, ReadyReplicas: 1, AvailableReplicas: 1}}
		if r := statefulSetRollout(s); r.State != c.want || r.Done != strings.HasSuffix(c.want, "ready") {
			t.Errorf("%s: %q, done %v; want %q", name, r.State, r.Done, c.want)
		}
	}
}
