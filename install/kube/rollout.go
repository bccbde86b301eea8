package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// The kinds of workloads.
const (
	DaemonSet   = "DaemonSet"
	Deployment  = "Deployment"
	StatefulSet = "StatefulSet"
)

func isWorkload(k schema.GroupKind) bool {
	return k.Group == appsv1.GroupName && (k.Kind == DaemonSet || k.Kind == Deployment || k.Kind == StatefulSet)
}

// Workload names a DaemonSet, Deployment or StatefulSet.
type Workload struct {
	Kind string
	Name string
}

// Rollout is how far a workload is.
type Rollout struct {
	Kind      string
	Namespace string
	Name      string
	// Wanted is the number of pods that there should be: of a DaemonSet as many as there
	// are nodes that it is for, and of a Deployment no more than can be placed when no two
	// of its pods may share a node. Updated have the newest template, Ready answer their
	// probes; both may be pods of either template while a rollout goes on.
	Wanted  int
	Updated int
	Ready   int
	// Done says that all wanted pods are there, new and available, and no old ones.
	Done bool
	// State says how far it is, in one line.
	State string
	// Images are those of all containers, init containers first.
	Images []string
}

// String returns "DaemonSet kube-system/cilium: 1 of 2 pods ready".
func (r Rollout) String() string {
	return fmt.Sprintf("%s %s/%s: %s", r.Kind, r.Namespace, r.Name, r.State)
}

// WaitRollouts waits until the workloads of one namespace exist and are rolled out, a
// DaemonSet on all registered nodes that it is for, but for those that are left out: see
// [Options].Absent. Report is told of every change in what it waits for; nil is nobody. When ctx
// ends first, a Deployment exceeds its progress deadline, or a volume or an image cannot be had for
// so long that it will not come any more, the error says how far each one is, and explains.
//
// Nodes that register later are not waited for.
func (c *Cluster) WaitRollouts(ctx context.Context, namespace string, workloads []Workload, report func(string)) error {
	var objects []awaited
	for _, w := range workloads {
		objects = append(objects, awaited{Object: Object{Kind: w.Kind, Namespace: namespace, Name: w.Name}})
	}
	if err := c.waitFor(ctx, objects, report); err != nil {
		err.err = fmt.Errorf("%s: %w", c.name, err.err)
		return err
	}
	return nil
}

// rollout is a Rollout with what is to be known of its workload.
type rollout struct {
	Rollout
	selector   *metav1.LabelSelector
	deployment *appsv1.Deployment // nil for other kinds
}

func (c *Cluster) rollout(ctx context.Context, o Object, nodes counted) (rollout, error) {
	apps := c.client.AppsV1()
	switch o.Kind {
	case DaemonSet:
		d, err := apps.DaemonSets(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
		if err != nil {
			return rollout{}, err
		}
		r, err := c.daemonSetOn(ctx, d, nodes)
		return rollout{r, d.Spec.Selector, nil}, err
	case Deployment:
		d, err := apps.Deployments(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
		if err != nil {
			return rollout{}, err
		}
		r, err := c.deploymentOn(ctx, d, nodes)
		return rollout{r, d.Spec.Selector, d}, err
	case StatefulSet:
		s, err := apps.StatefulSets(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
		if err != nil {
			return rollout{}, err
		}
		r, err := c.statefulSetOn(ctx, s, nodes)
		return rollout{r, s.Spec.Selector, nil}, err
	}
	return rollout{}, fmt.Errorf("a %s is not rolled out", o.Kind)
}

// Rollouts returns all DaemonSets, Deployments and StatefulSets of a namespace, or of all
// when it is "", by namespace, kind and name.
func (c *Cluster) Rollouts(ctx context.Context, namespace string) ([]Rollout, error) {
	nodes, err := c.countedNodes(ctx)
	if err != nil {
		return nil, err
	}
	daemonSets, err := c.client.AppsV1().DaemonSets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: list DaemonSets: %w", c.name, err)
	}
	deployments, err := c.client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: list Deployments: %w", c.name, err)
	}
	statefulSets, err := c.client.AppsV1().StatefulSets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: list StatefulSets: %w", c.name, err)
	}
	var all []Rollout
	var errs []error
	add := func(r Rollout, err error) { all, errs = append(all, r), append(errs, err) }
	for i := range daemonSets.Items {
		add(c.daemonSetOn(ctx, &daemonSets.Items[i], nodes))
	}
	for i := range deployments.Items {
		add(c.deploymentOn(ctx, &deployments.Items[i], nodes))
	}
	for i := range statefulSets.Items {
		add(c.statefulSetOn(ctx, &statefulSets.Items[i], nodes))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	slices.SortFunc(all, func(a, b Rollout) int {
		return strings.Compare(a.Namespace+"/"+a.Kind+"/"+a.Name, b.Namespace+"/"+b.Kind+"/"+b.Name)
	})
	return all, nil
}

// daemonSetRollout counts the nodes itself: the status is the controller's view, which is
// behind when a node has just joined, and Helm's own wait takes maxUnavailable off it.
func daemonSetRollout(d *appsv1.DaemonSet, nodes []corev1.Node) Rollout {
	r := newRollout(DaemonSet, &d.ObjectMeta, &d.Spec.Template)
	for i := range nodes {
		if isFor(&d.Spec.Template, &nodes[i]) {
			r.Wanted++
		}
	}
	s := d.Status
	scheduled := int(s.DesiredNumberScheduled)
	r.Updated, r.Ready = int(s.UpdatedNumberScheduled), int(s.NumberReady)
	if d.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		r.Updated = scheduled // old pods stay until somebody deletes them
	}
	switch {
	case s.ObservedGeneration < d.Generation:
		r.State = unseen
	case len(nodes) == 0:
		r.State = "no node is registered"
	case scheduled < r.Wanted:
		r.State = fmt.Sprintf("covers %d of %d nodes", scheduled, r.Wanted)
	default:
		r.Wanted = scheduled
		r.finish(int(s.NumberAvailable))
	}
	return r
}

// deploymentRollout does not wait for pods that need a node more than there is. Cilium's
// operator has two, and is installed when the cluster still has one node.
func deploymentRollout(d *appsv1.Deployment, nodes []corev1.Node) Rollout {
	r := newRollout(Deployment, &d.ObjectMeta, &d.Spec.Template)
	s := d.Status
	r.Wanted, r.Updated, r.Ready = replicas(d.Spec.Replicas), int(s.UpdatedReplicas), int(s.ReadyReplicas)
	if oneForNode(d) {
		places := 0
		for i := range nodes {
			if isFor(&d.Spec.Template, &nodes[i]) {
				places++
			}
		}
		r.Wanted = min(r.Wanted, max(1, places))
	}
	switch old := int(s.Replicas - s.UpdatedReplicas); {
	case s.ObservedGeneration < d.Generation:
		r.State = unseen
	default:
		r.finish(int(s.AvailableReplicas))
		if r.Done && old > 0 {
			r.Done, r.State = false, fmt.Sprintf("%d old pods are still there", old)
		}
	}
	return r
}

func statefulSetRollout(d *appsv1.StatefulSet) Rollout {
	r := newRollout(StatefulSet, &d.ObjectMeta, &d.Spec.Template)
	s := d.Status
	r.Wanted, r.Updated, r.Ready = replicas(d.Spec.Replicas), int(s.UpdatedReplicas), int(s.ReadyReplicas)
	rolling := d.Spec.UpdateStrategy.RollingUpdate
	if d.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType || rolling != nil && rolling.Partition != nil && *rolling.Partition > 0 {
		r.Updated = r.Wanted // old pods stay as they are meant to
	}
	if s.ObservedGeneration < d.Generation {
		r.State = unseen
	} else {
		r.finish(int(s.AvailableReplicas))
	}
	return r
}

// oneForNode says whether no two pods of a Deployment may be on the same node.
func oneForNode(d *appsv1.Deployment) bool {
	affinity := d.Spec.Template.Spec.Affinity
	if affinity == nil || affinity.PodAntiAffinity == nil {
		return false
	}
	return slices.ContainsFunc(affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, func(t corev1.PodAffinityTerm) bool {
		if t.TopologyKey != corev1.LabelHostname || len(t.Namespaces) > 0 || t.NamespaceSelector != nil {
			return false
		}
		selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
		return err == nil && selector.Matches(labels.Set(d.Spec.Template.Labels))
	})
}

const unseen = "its controller has not seen it yet"

func replicas(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}

func newRollout(kind string, m *metav1.ObjectMeta, template *corev1.PodTemplateSpec) Rollout {
	r := Rollout{Kind: kind, Namespace: m.Namespace, Name: m.Name}
	for _, container := range slices.Concat(template.Spec.InitContainers, template.Spec.Containers) {
		if !slices.Contains(r.Images, container.Image) {
			r.Images = append(r.Images, container.Image)
		}
	}
	return r
}

// finish judges the numbers.
func (r *Rollout) finish(available int) {
	switch {
	case r.Updated < r.Wanted:
		r.State = fmt.Sprintf("%d of %d pods updated", r.Updated, r.Wanted)
	case r.Ready < r.Wanted:
		r.State = fmt.Sprintf("%d of %d pods ready", r.Ready, r.Wanted)
	case available < r.Wanted:
		r.State = fmt.Sprintf("%d of %d pods available", available, r.Wanted)
	default:
		r.Done, r.State = true, fmt.Sprintf("%d of %d pods ready", r.Ready, r.Wanted)
	}
}

// isFor says whether a DaemonSet with this template puts a pod on the node: it looks at
// node selector, node affinity and taints, as the DaemonSet controller does.
func isFor(template *corev1.PodTemplateSpec, node *corev1.Node) bool {
	pod := &corev1.Pod{Spec: template.Spec}
	if match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !match {
		return false
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || toleratedByAll[taint.Key] {
			continue
		}
		if taint.Key == corev1.TaintNodeNetworkUnavailable && pod.Spec.HostNetwork {
			continue
		}
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return tolerates(t, taint) }) {
			return false
		}
	}
	return true
}

// toleratedByAll are the taints that every pod of a DaemonSet tolerates, see
// https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations
var toleratedByAll = map[string]bool{
	corev1.TaintNodeNotReady:       true,
	corev1.TaintNodeUnreachable:    true,
	corev1.TaintNodeDiskPressure:   true,
	corev1.TaintNodeMemoryPressure: true,
	corev1.TaintNodePIDPressure:    true,
	corev1.TaintNodeUnschedulable:  true,
}

func tolerates(t corev1.Toleration, taint *corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case corev1.TolerationOpExists:
		return true
	case corev1.TolerationOpEqual, "":
		return t.Key != "" && t.Value == taint.Value
	}
	return false
}
