package kube

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/podutils"
)

// counted are the nodes of a cluster that rollouts are judged by, and those that they are
// judged without.
type counted struct {
	nodes   []corev1.Node
	leftOut []corev1.Node
}

// countedNodes leaves out the nodes that nobody counts on and that are not Ready: pods there
// neither start nor end, and the controllers wait for them for ever.
func (c *Cluster) countedNodes(ctx context.Context) (counted, error) {
	list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return counted{}, fmt.Errorf("%s: list nodes: %w", c.name, err)
	}
	return leaveOut(list.Items, c.absent), nil
}

func leaveOut(nodes []corev1.Node, absent func([]Node) []Node) counted {
	if absent == nil || !slices.ContainsFunc(nodes, isUnready) {
		return counted{nodes: nodes}
	}
	all := make([]Node, 0, len(nodes))
	for i := range nodes {
		all = append(all, newNode(&nodes[i]))
	}
	unwanted := absent(all)
	var out counted
	for _, n := range nodes {
		if isUnready(n) && slices.ContainsFunc(unwanted, func(u Node) bool { return u.Name == n.Name }) {
			out.leftOut = append(out.leftOut, n)
		} else {
			out.nodes = append(out.nodes, n)
		}
	}
	return out
}

func isUnready(n corev1.Node) bool {
	ready, _ := readiness(&n)
	return !ready
}

// holds says whether a pod is on a node that is left out.
func (n counted) holds(p *corev1.Pod) bool {
	return slices.ContainsFunc(n.leftOut, func(node corev1.Node) bool { return node.Name == p.Spec.NodeName })
}

// daemonSetOn judges a DaemonSet. Its status has all nodes: where one is left out, the pods
// on the others are counted one by one. So they are where the status covers too few nodes: when a node was deleted
// and is back before its pods were cleared away, the controller does not look at the DaemonSet again (syncNodeUpdate
// in Kubernetes' pkg/controller/daemon passes over it, as the node has its pod), and its status stays as it was.
func (c *Cluster) daemonSetOn(ctx context.Context, d *appsv1.DaemonSet, nodes counted) (Rollout, error) {
	isForIt := func(n corev1.Node) bool { return isFor(&d.Spec.Template, &n) }
	covers := int(d.Status.DesiredNumberScheduled)
	if !slices.ContainsFunc(nodes.leftOut, isForIt) && covers >= countFunc(nodes.nodes, isForIt) {
		return daemonSetRollout(d, nodes.nodes), nil
	}
	pods, err := c.pods(ctx, d.Namespace, d.Spec.Selector)
	if err != nil {
		return Rollout{}, err
	}
	list, err := c.client.AppsV1().ControllerRevisions(d.Namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)})
	if err != nil {
		return Rollout{}, fmt.Errorf("list ControllerRevisions: %w", err)
	}
	d = d.DeepCopy()
	d.Status = daemonSetStatus(d, nodes.nodes, pods, list.Items, time.Now())
	return daemonSetRollout(d, nodes.nodes), nil
}

func countFunc(nodes []corev1.Node, f func(corev1.Node) bool) int {
	n := 0
	for i := range nodes {
		if f(nodes[i]) {
			n++
		}
	}
	return n
}

// daemonSetStatus is what the controller would say of a DaemonSet if there were only these
// nodes. A pod has the newest template when it bears the mark of the newest revision, as the
// controller sees it; it goes by the oldest pod of a node.
func daemonSetStatus(d *appsv1.DaemonSet, nodes []corev1.Node, pods []corev1.Pod, revisions []appsv1.ControllerRevision, now time.Time) appsv1.DaemonSetStatus {
	newest := ""
	last := int64(-1)
	for i := range revisions {
		if r := &revisions[i]; metav1.IsControlledBy(r, d) && r.Revision > last {
			newest, last = r.Labels[appsv1.ControllerRevisionHashLabelKey], r.Revision
		}
	}
	s := appsv1.DaemonSetStatus{ObservedGeneration: d.Status.ObservedGeneration}
	for i := range nodes {
		if !isFor(&d.Spec.Template, &nodes[i]) {
			continue
		}
		var pod *corev1.Pod
		for j := range pods {
			p := &pods[j]
			if p.Spec.NodeName == nodes[i].Name && p.DeletionTimestamp == nil && metav1.IsControlledBy(p, d) &&
				(pod == nil || p.CreationTimestamp.Before(&pod.CreationTimestamp)) {
				pod = p
			}
		}
		if pod == nil {
			continue
		}
		s.DesiredNumberScheduled++
		if newest != "" && pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == newest {
			s.UpdatedNumberScheduled++
		}
		if podReady(pod) {
			s.NumberReady++
		}
		if podutils.IsPodAvailable(pod, d.Spec.MinReadySeconds, metav1.NewTime(now)) {
			s.NumberAvailable++
		}
	}
	return s
}

// deploymentOn judges a Deployment without the pods that wait on nodes that are left out.
func (c *Cluster) deploymentOn(ctx context.Context, d *appsv1.Deployment, nodes counted) (Rollout, error) {
	wanted, err := c.reachable(ctx, d.Namespace, d.Spec.Selector, d.Spec.Replicas, nodes)
	if err != nil {
		return Rollout{}, err
	}
	d = d.DeepCopy()
	d.Spec.Replicas = wanted
	return deploymentRollout(d, nodes.nodes), nil
}

// statefulSetOn judges a StatefulSet in the same way.
func (c *Cluster) statefulSetOn(ctx context.Context, s *appsv1.StatefulSet, nodes counted) (Rollout, error) {
	wanted, err := c.reachable(ctx, s.Namespace, s.Spec.Selector, s.Spec.Replicas, nodes)
	if err != nil {
		return Rollout{}, err
	}
	s = s.DeepCopy()
	s.Spec.Replicas = wanted
	return statefulSetRollout(s), nil
}

// reachable is how many of a workload's pods can be waited for.
func (c *Cluster) reachable(ctx context.Context, namespace string, selector *metav1.LabelSelector, wanted *int32, nodes counted) (*int32, error) {
	if len(nodes.leftOut) == 0 {
		return wanted, nil
	}
	pods, err := c.pods(ctx, namespace, selector)
	if err != nil {
		return nil, err
	}
	n := replicas(wanted)
	left := int32(max(min(n, 1), n-nodes.stranded(pods)))
	return &left, nil
}

// stranded counts the pods that are not ready on nodes that are left out. One that is being
// ended has its successor elsewhere.
func (n counted) stranded(pods []corev1.Pod) int {
	stranded := 0
	for i := range pods {
		if p := &pods[i]; n.holds(p) && !podReady(p) && p.DeletionTimestamp == nil {
			stranded++
		}
	}
	return stranded
}
