package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Pod is a pod at one moment.
type Pod struct {
	Namespace string
	Name      string
	UID       string // tells it from a later pod of the same name
	Node      string // "" before it has got one
	Phase     string // Pending, Running, Succeeded, Failed or Unknown
	// Reason is why the cluster ends it, such as Evicted; "" for a pod that ends by itself, or that
	// somebody deleted. DeadlineExceeded is the pod's own deadline.
	Reason string
	Ready  bool // false while it is being ended
	// Restarts is how often its containers were started again, all together.
	Restarts int
	// OwnerKind is the kind of its controller, such as ReplicaSet; "" when nobody would make
	// it anew.
	OwnerKind string
	Labels    map[string]string
	// Addresses are the pod's own: none where it is in its host's network.
	Addresses []netip.Addr
	// Terminating is when it was told to end, by the cluster's clock; zero when it was not.
	Terminating time.Time
	// Grace is the time that it has, or will have, to end by itself.
	Grace time.Duration
}

func (p Pod) String() string { return "pod " + p.Namespace + "/" + p.Name }

// Pods returns the pods of a namespace, or of all when it is "", that a label selector such
// as "app=liteboxd" selects ("" selects all), by namespace and name.
func (c *Cluster) Pods(ctx context.Context, namespace, selector string) ([]Pod, error) {
	return listPods(ctx, c, namespace, metav1.ListOptions{LabelSelector: selector})
}

func listPods(ctx context.Context, c *Cluster, namespace string, o metav1.ListOptions) ([]Pod, error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("%s: list pods: %w", c.Name, err)
	}
	var pods []Pod
	for i := range list.Items {
		pods = append(pods, PodOf(&list.Items[i]))
	}
	slices.SortFunc(pods, func(a, b Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return pods, nil
}

// PodsOn returns the pods of all namespaces that have a node, by namespace and name.
func (c *Cluster) PodsOn(ctx context.Context, node string) ([]Pod, error) {
	return listPods(ctx, c, "", metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
}

// PodOf reads a pod.
func PodOf(p *corev1.Pod) Pod {
	pod := Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName,
		Phase: string(p.Status.Phase), Reason: endedBy(p), Ready: PodReady(p), Labels: p.Labels,
	}
	if !p.Spec.HostNetwork {
		for _, ip := range p.Status.PodIPs {
			if address, err := netip.ParseAddr(ip.IP); err == nil {
				pod.Addresses = append(pod.Addresses, address.Unmap())
			}
		}
	}
	if owner := metav1.GetControllerOf(p); owner != nil {
		pod.OwnerKind = owner.Kind
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		pod.Restarts += int(s.RestartCount)
	}
	grace := p.DeletionGracePeriodSeconds
	if grace == nil {
		grace = p.Spec.TerminationGracePeriodSeconds
	}
	if grace != nil {
		pod.Grace = time.Duration(*grace) * time.Second
	}
	pod.Terminating = endingSince(p)
	return pod
}

// endedBy is the reason that a kubelet gives for a pod that it has failed, or else that of the
// condition which says that a part of the cluster has marked the pod for its end.
func endedBy(p *corev1.Pod) string {
	if p.Status.Reason != "" {
		return printable.Short(p.Status.Reason, maxReason)
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return printable.Short(c.Reason, maxReason)
		}
	}
	return ""
}

// maxReason bounds a reason, in bytes.
const maxReason = 100

// endingSince is zero when the pod was not told to end.
func endingSince(p *corev1.Pod) time.Time {
	if p.DeletionTimestamp == nil {
		return time.Time{}
	}
	// The timestamp is when it should be gone, grace period included.
	began := p.DeletionTimestamp.Time
	if grace := p.DeletionGracePeriodSeconds; grace != nil {
		began = began.Add(-time.Duration(*grace) * time.Second)
	}
	return began
}

// EndPods tells these very pods to end, and gives them the grace, rounded up to at least a
// second: less would make the cluster forget pods that still run. It does not wait: see
// package wait. Pods that have gone, and later ones of the same name, are left alone. All are
// told, whatever becomes of one; the error has each that could not be.
func (c *Cluster) EndPods(ctx context.Context, pods []Pod, grace time.Duration) error {
	seconds := int64(max(1, (grace+time.Second-1)/time.Second))
	failures := make([]error, len(pods))
	var group errgroup.Group
	group.SetLimit(8)
	for i, p := range pods {
		group.Go(func() error {
			uid := types.UID(p.UID)
			err := c.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
				GracePeriodSeconds: &seconds, Preconditions: &metav1.Preconditions{UID: &uid},
			})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				failures[i] = fmt.Errorf("end %s: %w", p, err)
			}
			return nil
		})
	}
	_ = group.Wait() // none of them returns an error
	if err := errors.Join(failures...); err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	return nil
}

// PodReady reports whether a pod is ready, and not being ended.
func PodReady(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil {
		return false
	}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Selected returns the pods that a workload selects, in a stable order.
func (c *Cluster) Selected(
	ctx context.Context, namespace string, selector *metav1.LabelSelector,
) ([]corev1.Pod, error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: metav1.FormatLabelSelector(selector),
	})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}
