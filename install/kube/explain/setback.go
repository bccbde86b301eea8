package explain

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/printable"
)

// How long a failure that Kubernetes goes on trying to mend by itself may last before waiting is no
// use any more.
const (
	// A helper pod that has ended with an error does so again: what it runs, and on what, stays.
	helperPatience = 30 * time.Second
	// Provisioners may fail until all of their parts run.
	claimPatience = 3 * time.Minute
	// An image may still be on its way into a node's store; a pod that waits notices within a minute.
	imagePatience = 3 * time.Minute
)

// Setback is what holds up a pod.
type Setback struct {
	Text string // one line, printable
	// Patience is how long it may last; 0 is without an end.
	Patience time.Duration
	// Mark tells this failure from those of other pods, claims and attempts.
	Mark string
}

// maxSetback bounds the text of a setback, in bytes: it stands within a line that says more.
const maxSetback = 240

// imageReasons are those for which a container waits whose image cannot be had.
var imageReasons = []string{"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"}

// FirstSetback is what holds up one of the pods that a workload selects, nil when it takes nothing but patience.
func FirstSetback(ctx context.Context, c *kube.Cluster, namespace string, selector *metav1.LabelSelector) *Setback {
	pods, err := c.Selected(ctx, namespace, selector)
	if err != nil {
		return nil
	}
	for i := range pods {
		if p := &pods[i]; !kube.PodReady(p) {
			if s := setbackOf(ctx, c, p); s != nil {
				s.Text = printable.Clip(kube.Brief(s.Text), maxSetback)
				return s
			}
		}
	}
	return nil
}

func setbackOf(ctx context.Context, c *kube.Cluster, p *corev1.Pod) *Setback {
	// Before the scheduler's word, which is about the time that it took, and comes after ten minutes.
	for _, claim := range unboundClaims(ctx, c, p) {
		if s := claimSetback(ctx, c, claim); s != nil {
			return s
		}
	}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return &Setback{Text: fmt.Sprintf("pod %s: %s: %s", p.Name, condition.Reason, condition.Message)}
		}
	}
	found := Troubles(p)
	if len(found) == 0 {
		return nil
	}
	t := found[0]
	s := &Setback{Text: fmt.Sprintf("pod %s on %s: %s", p.Name, p.Spec.NodeName, t.Text)}
	if w := t.Container.State.Waiting; w != nil && slices.Contains(imageReasons, w.Reason) {
		s.Patience, s.Mark = imagePatience, string(p.UID)+"/"+t.Container.Name
	}
	return s
}

// claimSetback is why a claim gets no volume, nil when nothing is known to have failed.
func claimSetback(ctx context.Context, c *kube.Cluster, claim *corev1.PersistentVolumeClaim) *Setback {
	about := fmt.Sprintf("PersistentVolumeClaim %s/%s has no volume: ", claim.Namespace, claim.Name)
	for _, p := range helperPods(ctx, c, claim) {
		if found := Troubles(&p); len(found) > 0 && found[0].Crashes {
			return &Setback{about + fmt.Sprintf("pod %s on %s: %s", p.Name, p.Spec.NodeName, found[0].Text),
				helperPatience, string(p.UID)}
		}
	}
	events, err := eventsOf(ctx, c, kube.Object{
		Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name,
	})
	if err != nil {
		return nil
	}
	for _, e := range events {
		if e.Type == corev1.EventTypeWarning {
			return &Setback{about + e.Reason + ": " + e.Message, claimPatience,
				fmt.Sprintf("%s/%d", e.UID, eventCount(e))}
		}
	}
	return nil
}
