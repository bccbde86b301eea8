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

// IsWorkload reports whether objects of a kind are rolled out.
func IsWorkload(k schema.GroupKind) bool {
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

// Rollouts returns all DaemonSets, Deployments and StatefulSets of a namespace, or of all
// when it is "", by namespace, kind and name.
func (c *Cluster) Rollouts(ctx context.Context, namespace string) ([]Rollout, error) {
	judge, err := c.Judge(ctx)
	if err != nil {
		return nil, err
	}
	daemonSets, err := c.Client.AppsV1().DaemonSets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: list DaemonSets: %w", c.Name, err)
	}
	deployments, err := c.Client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: list Deployments: %w", c.Name, err)
	}
	statefulSets, err := c.Client.AppsV1().StatefulSets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: list StatefulSets: %w", c.Name, err)
	}
	var all []Rollout
	var errs []error
	add := func(r Rollout, err error) { all, errs = append(all, r), append(errs, err) }
	for i := range daemonSets.Items {
		add(judge.daemonSet(ctx, &daemonSets.Items[i]))
	}
	for i := range deployments.Items {
		add(judge.deployment(ctx, &deployments.Items[i]))
	}
	for i := range statefulSets.Items {
		add(judge.statefulSet(ctx, &statefulSets.Items[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
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
	r.Wanted, r.Updated, r.Ready = Replicas(d.Spec.Replicas), int(s.UpdatedReplicas), int(s.ReadyReplicas)
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
	r.Wanted, r.Updated, r.Ready = Replicas(d.Spec.Replicas), int(s.UpdatedReplicas), int(s.ReadyReplicas)
	rolling, onDelete := d.Spec.UpdateStrategy.RollingUpdate, appsv1.OnDeleteStatefulSetStrategyType
	partitioned := rolling != nil && rolling.Partition != nil && *rolling.Partition > 0
	if d.Spec.UpdateStrategy.Type == onDelete || partitioned {
		r.Updated = r.Wanted // old pods stay as they are meant to
	}
	if s.ObservedGeneration < d.Generation {
		r.State = unseen
	} else {
		r.finish(int(s.AvailableReplicas))
	}
	return r
}

// oneForNode reports whether no two pods of a Deployment may be on the same node.
func oneForNode(d *appsv1.Deployment) bool {
	affinity := d.Spec.Template.Spec.Affinity
	if affinity == nil || affinity.PodAntiAffinity == nil {
		return false
	}
	required := affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	return slices.ContainsFunc(required, func(t corev1.PodAffinityTerm) bool {
		if t.TopologyKey != corev1.LabelHostname || len(t.Namespaces) > 0 || t.NamespaceSelector != nil {
			return false
		}
		selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
		return err == nil && selector.Matches(labels.Set(d.Spec.Template.Labels))
	})
}

const unseen = "its controller has not seen it yet"

// Replicas is the number of pods that a workload asks for: 1 when it names none.
func Replicas(n *int32) int {
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

// isFor reports whether a DaemonSet with this template puts a pod on the node: it looks at
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
