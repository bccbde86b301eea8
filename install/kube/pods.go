package kube

import (
	"context"
	"errors"
	"fmt"
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
	// Terminating is when it was told to end, by the cluster's clock; zero when it was not.
	Terminating time.Time
	// Grace is the time that it has, or will have, to end by itself.
	Grace time.Duration
}

func (p Pod) String() string { return "pod " + p.Namespace + "/" + p.Name }

// Pods returns the pods of a namespace, or of all when it is "", that a label selector such
// as "app=liteboxd" selects ("" selects all), by namespace and name.
func (c *Cluster) Pods(ctx context.Context, namespace, selector string) ([]Pod, error) {
	return c.listPods(ctx, namespace, metav1.ListOptions{LabelSelector: selector})
}

func (c *Cluster) listPods(ctx context.Context, namespace string, o metav1.ListOptions) ([]Pod, error) {
	list, err := c.client.CoreV1().Pods(namespace).List(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("%s: list pods: %w", c.name, err)
	}
	var pods []Pod
	for i := range list.Items {
		pods = append(pods, newPod(&list.Items[i]))
	}
	slices.SortFunc(pods, func(a, b Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return pods, nil
}

// PodsOn returns the pods of all namespaces that have a node, by namespace and name.
func (c *Cluster) PodsOn(ctx context.Context, node string) ([]Pod, error) {
	return c.listPods(ctx, "", metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
}

func newPod(p *corev1.Pod) Pod {
	pod := Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName,
		Phase: string(p.Status.Phase), Reason: endedBy(p), Ready: podReady(p), Labels: p.Labels,
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
// WaitGone. Pods that have gone, and later ones of the same name, are left alone. All are
// told, whatever becomes of one; the error has each that could not be.
func (c *Cluster) EndPods(ctx context.Context, pods []Pod, grace time.Duration) error {
	seconds := int64(max(1, (grace+time.Second-1)/time.Second))
	failures := make([]error, len(pods))
	var group errgroup.Group
	group.SetLimit(8)
	for i, p := range pods {
		group.Go(func() error {
			uid := types.UID(p.UID)
			err := c.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
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
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// WaitGone waits until these very pods have gone. Report is told of every change in what it
// waits for; nil is nobody. When ctx ends first, the error says which are left, and explains.
func (c *Cluster) WaitGone(ctx context.Context, pods []Pod, report func(string)) error {
	start, tell := time.Now(), onChange(report)
	left := pods
	var failure error
	for {
		var now []Pod
		if now, failure = c.remaining(ctx, pods); failure == nil {
			if left = now; len(left) == 0 {
				return nil
			}
			tell("waiting for " + joinPods(left))
		}
		if sleep(ctx, pollInterval) != nil {
			break
		}
	}
	text := joinPods(left)
	if failure != nil && ctx.Err() == nil {
		text += ": " + brief(failure.Error())
	}
	out := c.fail(timeUp(ctx, fmt.Sprintf("not gone after %s: %s", since(start), text)), "see what the pods wait for; the same command goes on from here")
	for _, p := range left[:min(explainPods, len(left))] {
		out.Explanation += c.explainAfter(ctx, Object{"Pod", p.Namespace, p.Name})
	}
	return out
}

// remaining returns those of the pods that are still there.
func (c *Cluster) remaining(ctx context.Context, pods []Pod) ([]Pod, error) {
	there := map[string]bool{}
	listed := map[string]bool{}
	for _, p := range pods {
		if listed[p.Namespace] {
			continue
		}
		listed[p.Namespace] = true
		now, err := c.Pods(ctx, p.Namespace, "")
		if err != nil {
			return nil, err
		}
		for _, n := range now {
			there[n.UID] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return !there[p.UID] }), nil
}

func joinPods(pods []Pod) string {
	var texts []string
	for _, p := range pods {
		texts = append(texts, p.String())
	}
	return joinSome(texts)
}
