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

// Judge says how far workloads are, by the nodes that the cluster had when the judge was made. It leaves out the nodes
// that nobody counts on and that are not Ready: pods there neither start nor end, and the controllers wait for them for
// ever.
type Judge struct {
	cluster *Cluster
	nodes   []corev1.Node
	leftOut []corev1.Node
}

// Judge makes a judge of rollouts.
func (c *Cluster) Judge(ctx context.Context) (Judge, error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return Judge{}, fmt.Errorf("%s: list nodes: %w", c.Name, err)
	}
	nodes, leftOut := leaveOut(list.Items, c.absent)
	return Judge{c, nodes, leftOut}, nil
}

// Judged is a workload with the judgement of it.
type Judged struct {
	Rollout    Rollout
	Selector   *metav1.LabelSelector
	Deployment *appsv1.Deployment // nil for other kinds
}

// Workload judges a DaemonSet, a Deployment or a StatefulSet. The error says IsNotFound when there is none of the name.
func (j Judge) Workload(ctx context.Context, o Object) (Judged, error) {
	apps := j.cluster.Client.AppsV1()
	switch o.Kind {
	case DaemonSet:
		d, err := apps.DaemonSets(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
		if err != nil {
			return Judged{}, err
		}
		r, err := j.daemonSet(ctx, d)
		return Judged{r, d.Spec.Selector, nil}, err
	case Deployment:
		d, err := apps.Deployments(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
		if err != nil {
			return Judged{}, err
		}
		r, err := j.deployment(ctx, d)
		return Judged{r, d.Spec.Selector, d}, err
	case StatefulSet:
		s, err := apps.StatefulSets(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
		if err != nil {
			return Judged{}, err
		}
		r, err := j.statefulSet(ctx, s)
		return Judged{r, s.Spec.Selector, nil}, err
	}
	return Judged{}, fmt.Errorf("a %s is not rolled out", o.Kind)
}

func leaveOut(nodes []corev1.Node, absent func([]Node) []Node) (counted, leftOut []corev1.Node) {
	if absent == nil || !slices.ContainsFunc(nodes, isUnready) {
		return nodes, nil
	}
	all := make([]Node, 0, len(nodes))
	for i := range nodes {
		all = append(all, NodeOf(&nodes[i]))
	}
	unwanted := absent(all)
	for _, n := range nodes {
		if isUnready(n) && slices.ContainsFunc(unwanted, func(u Node) bool { return u.Name == n.Name }) {
			leftOut = append(leftOut, n)
		} else {
			counted = append(counted, n)
		}
	}
	return counted, leftOut
}

func isUnready(n corev1.Node) bool {
	ready, _ := readiness(&n)
	return !ready
}

// holds reports whether a pod is on a node that is left out.
func (j Judge) holds(p *corev1.Pod) bool {
	return slices.ContainsFunc(j.leftOut, func(node corev1.Node) bool { return node.Name == p.Spec.NodeName })
}

// daemonSet judges a DaemonSet. Its status has all nodes: where one is left out, the pods
// on the others are counted one by one. So they are where the status covers too few nodes: when a node was deleted
// and is back before its pods were cleared away, the controller does not look at the DaemonSet again (syncNodeUpdate
// in Kubernetes' pkg/controller/daemon passes over it, as the node has its pod), and its status stays as it was.
func (j Judge) daemonSet(ctx context.Context, d *appsv1.DaemonSet) (Rollout, error) {
	isForIt := func(n corev1.Node) bool { return isFor(&d.Spec.Template, &n) }
	covers := int(d.Status.DesiredNumberScheduled)
	if !slices.ContainsFunc(j.leftOut, isForIt) && covers >= countFunc(j.nodes, isForIt) {
		return daemonSetRollout(d, j.nodes), nil
	}
	pods, err := j.cluster.Selected(ctx, d.Namespace, d.Spec.Selector)
	if err != nil {
		return Rollout{}, err
	}
	list, err := j.cluster.Client.AppsV1().ControllerRevisions(d.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector),
	})
	if err != nil {
		return Rollout{}, fmt.Errorf("list ControllerRevisions: %w", err)
	}
	d = d.DeepCopy()
	d.Status = daemonSetStatus(d, j.nodes, pods, list.Items, time.Now())
	return daemonSetRollout(d, j.nodes), nil
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
func daemonSetStatus(
	d *appsv1.DaemonSet, nodes []corev1.Node, pods []corev1.Pod, revisions []appsv1.ControllerRevision, now time.Time,
) appsv1.DaemonSetStatus {
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
		for k := range pods {
			p := &pods[k]
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
		if PodReady(pod) {
			s.NumberReady++
		}
		if podutils.IsPodAvailable(pod, d.Spec.MinReadySeconds, metav1.NewTime(now)) {
			s.NumberAvailable++
		}
	}
	return s
}

// deployment judges a Deployment without the pods that wait on nodes that are left out.
func (j Judge) deployment(ctx context.Context, d *appsv1.Deployment) (Rollout, error) {
	wanted, err := j.reachable(ctx, d.Namespace, d.Spec.Selector, d.Spec.Replicas)
	if err != nil {
		return Rollout{}, err
	}
	d = d.DeepCopy()
	d.Spec.Replicas = wanted
	return deploymentRollout(d, j.nodes), nil
}

// statefulSet judges a StatefulSet in the same way.
func (j Judge) statefulSet(ctx context.Context, s *appsv1.StatefulSet) (Rollout, error) {
	wanted, err := j.reachable(ctx, s.Namespace, s.Spec.Selector, s.Spec.Replicas)
	if err != nil {
		return Rollout{}, err
	}
	s = s.DeepCopy()
	s.Spec.Replicas = wanted
	return statefulSetRollout(s), nil
}

// reachable is how many of a workload's pods can be waited for.
func (j Judge) reachable(
	ctx context.Context, namespace string, selector *metav1.LabelSelector, wanted *int32,
) (*int32, error) {
	if len(j.leftOut) == 0 {
		return wanted, nil
	}
	pods, err := j.cluster.Selected(ctx, namespace, selector)
	if err != nil {
		return nil, err
	}
	n := Replicas(wanted)
	left := int32(max(min(n, 1), n-j.stranded(pods)))
	return &left, nil
}

// stranded counts the pods that are not ready on nodes that are left out. One that is being
// ended has its successor elsewhere.
func (j Judge) stranded(pods []corev1.Pod) int {
	stranded := 0
	for i := range pods {
		if p := &pods[i]; j.holds(p) && !PodReady(p) && p.DeletionTimestamp == nil {
			stranded++
		}
	}
	return stranded
}
