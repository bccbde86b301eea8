package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/retry"
)

// Scaled is how many pods a Deployment has, and is to have.
type Scaled struct {
	Wanted int
	// Available are the pods that are there and answer.
	Available int
}

// ScaleOf says how many pods a Deployment has; the error says IsNotFound when there is none of the name.
func (c *Cluster) ScaleOf(ctx context.Context, namespace, name string) (Scaled, error) {
	d, err := c.Client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Scaled{}, fmt.Errorf("%s: get Deployment %s/%s: %w", c.Name, namespace, name, err)
	}
	return Scaled{Wanted: Replicas(d.Spec.Replicas), Available: int(d.Status.AvailableReplicas)}, nil
}

// Scale has a Deployment have so many pods. It does not wait for them.
func (c *Cluster) Scale(ctx context.Context, namespace, name string, replicas int) error {
	deployments := c.Client.AppsV1().Deployments(namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		d, err := deployments.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if d.Spec.Replicas != nil && int(*d.Spec.Replicas) == replicas {
			return nil
		}
		wanted := int32(replicas)
		d.Spec.Replicas = &wanted
		_, err = deployments.Update(ctx, d, metav1.UpdateOptions{FieldManager: FieldManager + "-scale"})
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: scale Deployment %s/%s to %d: %w", c.Name, namespace, name, replicas, err)
	}
	return nil
}

// PodsWith returns the pods of a namespace that mount a claim and have not ended, by name.
func (c *Cluster) PodsWith(ctx context.Context, namespace, claim string) ([]Pod, error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: list pods: %w", c.Name, err)
	}
	var pods []Pod
	for i := range list.Items {
		p := &list.Items[i]
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if !ended && Mounts(&p.Spec, claim) {
			pods = append(pods, PodOf(p))
		}
	}
	slices.SortFunc(pods, func(a, b Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods, nil
}

// Mounts reports whether a pod has a volume of a claim.
func Mounts(spec *corev1.PodSpec, claim string) bool {
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}

// ForgetPods deletes pods without waiting for what runs in them: it is for those of a node that is gone, whose kubelet
// will never say that they have ended. Pods that have gone, and later ones of the same name, are left alone.
func (c *Cluster) ForgetPods(ctx context.Context, pods []Pod) error {
	now := int64(0)
	for _, p := range pods {
		uid := p.UID
		options := metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(uid)}
		err := c.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, options)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("%s: forget %s: %w", c.Name, p, err)
		}
	}
	return nil
}

// KeepsOff says why no pod of a Deployment would come to a node, "" when nothing keeps it off: the node's state, its
// taints, and what the Deployment asks of nodes.
func KeepsOff(d *appsv1.Deployment, n *corev1.Node) string {
	if isUnready(*n) {
		return "the node is not Ready"
	}
	if n.Spec.Unschedulable {
		return "the node is cordoned"
	}
	template := d.Spec.Template.DeepCopy()
	if !isFor(template, n) {
		return fmt.Sprintf("its nodeSelector, affinity or tolerations do not go with the node's labels and taints%s",
			selectorText(template.Spec.NodeSelector))
	}
	return ""
}

func selectorText(selector map[string]string) string {
	text := ""
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		text += fmt.Sprintf("; it asks for %s=%s", key, selector[key])
	}
	return text
}

// FolderOf is the folder of a host that a volume is, "" for other kinds.
func FolderOf(v *corev1.PersistentVolume) string {
	switch {
	case v.Spec.Local != nil:
		return v.Spec.Local.Path
	case v.Spec.HostPath != nil:
		return v.Spec.HostPath.Path
	}
	return ""
}

// HostnameOf is the label kubernetes.io/hostname of the one node that a volume is bound to, "" when it is not bound to
// just one.
func HostnameOf(v *corev1.PersistentVolume) string { return hostOf(v) }

// NodesLabelled returns the nodes with a value of a label, all that have the label where the value is "", by name.
func (c *Cluster) NodesLabelled(ctx context.Context, label, value string) ([]corev1.Node, error) {
	selector := label
	if value != "" {
		selector = labels.Set{label: value}.String()
	}
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("%s: list nodes: %w", c.Name, err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}
