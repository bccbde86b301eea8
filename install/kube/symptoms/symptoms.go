// Package symptoms reads what a cluster says of what is not well: conditions of nodes, pods in trouble, and warnings.
//
// Contract: it changes nothing, and judges nothing: see package diagnosis. What it returns is bounded, and its texts
// are fit to be shown.
package symptoms

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/liteboxd/boxlift/install/diagnosis"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/printable"
)

// page is how many objects are asked for at a time, and pages how often: what is more is left out.
const (
	page  = 500
	pages = 20
)

// eventAge is how old an event may be.
const eventAge = time.Hour

// Nodes returns the nodes with their conditions, by name.
func Nodes(ctx context.Context, c *kube.Cluster) ([]diagnosis.Node, error) {
	var nodes []diagnosis.Node
	err := paged(func(o metav1.ListOptions) (string, error) {
		list, err := c.Client.CoreV1().Nodes().List(ctx, o)
		if err != nil {
			return "", fmt.Errorf("%s: list nodes: %w", c.Name, err)
		}
		for i := range list.Items {
			nodes = append(nodes, nodeOf(&list.Items[i]))
		}
		return list.Continue, nil
	}, metav1.ListOptions{})
	slices.SortFunc(nodes, func(a, b diagnosis.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes[:min(len(nodes), diagnosis.Most)], err
}

func nodeOf(n *corev1.Node) diagnosis.Node {
	node := diagnosis.Node{Name: short(n.Name), Kubelet: short(n.Status.NodeInfo.KubeletVersion),
		Unschedulable: n.Spec.Unschedulable}
	const most = 50 // of a dozen that there are
	for _, c := range n.Status.Conditions[:min(len(n.Status.Conditions), most)] {
		node.Conditions = append(node.Conditions, diagnosis.Condition{Type: short(string(c.Type)),
			Status: short(string(c.Status)), Reason: short(c.Reason), Message: short(c.Message)})
	}
	return node
}

// Pods returns the pods that are not as they should be, by namespace and name: those that failed, that have no node,
// and that have a container which waits or has ended in vain. Pods that come or go as they should are none of these.
func Pods(ctx context.Context, c *kube.Cluster) ([]diagnosis.Pod, error) {
	var pods []diagnosis.Pod
	err := paged(func(o metav1.ListOptions) (string, error) {
		list, err := c.Client.CoreV1().Pods("").List(ctx, o)
		if err != nil {
			return "", fmt.Errorf("%s: list pods: %w", c.Name, err)
		}
		for i := range list.Items {
			if p, ok := podOf(&list.Items[i]); ok {
				pods = append(pods, p)
			}
		}
		return list.Continue, nil
	}, metav1.ListOptions{})
	slices.SortFunc(pods, func(a, b diagnosis.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return pods[:min(len(pods), diagnosis.Most)], err
}

// podOf reads a pod, and reports whether it is not as it should be.
func podOf(p *corev1.Pod) (diagnosis.Pod, bool) {
	pod := diagnosis.Pod{Namespace: short(p.Namespace), Name: short(p.Name), Node: short(p.Spec.NodeName),
		Phase: short(string(p.Status.Phase)), Reason: short(p.Status.Reason), Message: short(p.Status.Message)}
	if p.Status.Phase == corev1.PodSucceeded {
		return pod, false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && p.Spec.NodeName == "" {
			pod.Unscheduled = short(c.Reason + ": " + c.Message)
		}
	}
	images := map[string]string{}
	for _, container := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		images[container.Name] = container.Image
	}
	const most = 50
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		one := diagnosis.Container{Name: short(s.Name), Image: short(images[s.Name]),
			Restarts: int(max(0, s.RestartCount))}
		ends := s.State.Terminated
		if ends == nil {
			ends = s.LastTerminationState.Terminated
		}
		if ends != nil {
			one.Ended, one.Code = short(ends.Reason), int(max(0, ends.ExitCode))
		}
		if w := s.State.Waiting; w != nil && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
			one.Waiting, one.Message = short(w.Reason), short(w.Message)
		}
		// A container that runs, is ready, and was ended once, is well again.
		if (one.Waiting != "" || !s.Ready && ends != nil && ends.ExitCode != 0) && len(pod.Containers) < most {
			pod.Containers = append(pod.Containers, one)
		}
	}
	return pod, pod.Phase == string(corev1.PodFailed) || pod.Unscheduled != "" || pod.Containers != nil
}

// Events returns the warnings of the last hour, the newest first.
func Events(ctx context.Context, c *kube.Cluster) ([]diagnosis.Event, error) {
	var events []diagnosis.Event
	begin := time.Now().Add(-eventAge)
	err := paged(func(o metav1.ListOptions) (string, error) {
		list, err := c.Client.CoreV1().Events("").List(ctx, o)
		if err != nil {
			return "", fmt.Errorf("%s: list events: %w", c.Name, err)
		}
		for _, e := range list.Items {
			last := kube.LastSeen(e)
			if e.Type != corev1.EventTypeWarning || last.Before(begin) {
				continue
			}
			of := e.InvolvedObject
			events = append(events, diagnosis.Event{Kind: short(of.Kind), Namespace: short(of.Namespace),
				Name: short(of.Name), Reason: short(e.Reason), Message: short(e.Message), Last: last.UTC()})
		}
		return list.Continue, nil
	}, metav1.ListOptions{FieldSelector: fields.Set{"type": corev1.EventTypeWarning}.String()})
	slices.SortStableFunc(events, func(a, b diagnosis.Event) int { return b.Last.Compare(a.Last) })
	return events[:min(len(events), diagnosis.Most)], err
}

// paged asks for a list page by page, no more than bounded many.
func paged(list func(metav1.ListOptions) (next string, err error), o metav1.ListOptions) error {
	o.Limit = page
	for range pages {
		next, err := list(o)
		if err != nil || next == "" {
			return err
		}
		o.Continue = next
	}
	return nil
}

func short(text string) string { return printable.Short(text, diagnosis.MaxText) }
