package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
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

// setback is what holds up a pod.
type setback struct {
	text string
	// patience is how long it may last; 0 is without an end.
	patience time.Duration
	// mark tells this failure from those of other pods, claims and attempts.
	mark string
}

// patience knows the setbacks of the objects that are waited for.
//
// What was there at the first look is no reason to give up, since it may have been mended just now:
// only the failure of an attempt after that is one.
type patience struct {
	looked map[Object]bool
	old    map[string]bool      // marks that were there at the first look at their object
	since  map[Object]time.Time // when the objects were first seen to be held up without a break
}

func newPatience() *patience {
	return &patience{looked: map[Object]bool{}, old: map[string]bool{}, since: map[Object]time.Time{}}
}

// over reports whether an object has been held up for too long. It is told of each look at the
// object; s is nil when nothing holds it up.
func (p *patience) over(o Object, s *setback, now time.Time) bool {
	first := !p.looked[o]
	p.looked[o] = true
	if s == nil || s.patience == 0 {
		delete(p.since, o)
		return false
	}
	if first {
		p.old[s.mark] = true
	}
	if p.old[s.mark] {
		delete(p.since, o)
		return false
	}
	if _, known := p.since[o]; !known {
		p.since[o] = now
	}
	return now.Sub(p.since[o]) >= s.patience
}

// imageReasons are those for which a container waits whose image cannot be had.
var imageReasons = []string{"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"}

// firstSetback is what holds up one of the pods, nil when it takes nothing but patience.
func (c *Cluster) firstSetback(ctx context.Context, namespace string, selector *metav1.LabelSelector) *setback {
	pods, err := c.pods(ctx, namespace, selector)
	if err != nil {
		return nil
	}
	for i := range pods {
		if p := &pods[i]; !podReady(p) {
			if s := c.setbackOf(ctx, p); s != nil {
				s.text = shorten(s.text, maxProblem)
				return s
			}
		}
	}
	return nil
}

func (c *Cluster) setbackOf(ctx context.Context, p *corev1.Pod) *setback {
	// Before the scheduler's word, which is about the time that it took, and comes after ten minutes.
	for _, claim := range c.unboundClaims(ctx, p) {
		if s := c.claimSetback(ctx, claim); s != nil {
			return s
		}
	}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return &setback{text: fmt.Sprintf("pod %s: %s: %s", p.Name, condition.Reason, condition.Message)}
		}
	}
	found := troubles(p)
	if len(found) == 0 {
		return nil
	}
	t := found[0]
	s := &setback{text: fmt.Sprintf("pod %s on %s: %s", p.Name, p.Spec.NodeName, t.text)}
	if w := t.container.State.Waiting; w != nil && slices.Contains(imageReasons, w.Reason) {
		s.patience, s.mark = imagePatience, string(p.UID)+"/"+t.container.Name
	}
	return s
}

// unboundClaims are the claims of a pod that have no volume. What cannot be found out is left out.
func (c *Cluster) unboundClaims(ctx context.Context, p *corev1.Pod) []*corev1.PersistentVolumeClaim {
	var claims []*corev1.PersistentVolumeClaim
	if p.Status.Phase != corev1.PodPending {
		return nil // it has all of its volumes
	}
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := c.client.CoreV1().PersistentVolumeClaims(p.Namespace).Get(ctx, v.PersistentVolumeClaim.ClaimName,
			metav1.GetOptions{})
		if err == nil && claim.Status.Phase != corev1.ClaimBound {
			claims = append(claims, claim)
		}
	}
	return claims
}

// claimSetback is why a claim gets no volume, nil when nothing is known to have failed.
func (c *Cluster) claimSetback(ctx context.Context, claim *corev1.PersistentVolumeClaim) *setback {
	about := fmt.Sprintf("PersistentVolumeClaim %s/%s has no volume: ", claim.Namespace, claim.Name)
	for _, p := range c.helperPods(ctx, claim) {
		if found := troubles(&p); len(found) > 0 && found[0].crashes {
			return &setback{about + fmt.Sprintf("pod %s on %s: %s", p.Name, p.Spec.NodeName, found[0].text),
				helperPatience, string(p.UID)}
		}
	}
	events, err := c.events(ctx, Object{"PersistentVolumeClaim", claim.Namespace, claim.Name})
	if err != nil {
		return nil
	}
	for _, e := range events {
		if e.Type == corev1.EventTypeWarning {
			return &setback{about + e.Reason + ": " + e.Message, claimPatience, fmt.Sprintf("%s/%d", e.UID, eventCount(e))}
		}
	}
	return nil
}

// helperPods are those in which k3s' local-path provisioner makes a claim's folder on its node: they
// lie beside it, and their names end with that of the volume, which has the claim's UID.
func (c *Cluster) helperPods(ctx context.Context, claim *corev1.PersistentVolumeClaim) []corev1.Pod {
	if claim.UID == "" {
		return nil
	}
	list, err := c.client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return !strings.HasSuffix(p.Name, "pvc-"+string(claim.UID))
	})
}

// events are an object's, the newest warnings first.
func (c *Cluster) events(ctx context.Context, o Object) ([]corev1.Event, error) {
	namespace := o.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where those of nodes are
	}
	list, err := c.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": o.Kind, "involvedObject.name": o.Name}.String(),
		Limit:         500,
	})
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	sortEvents(list.Items)
	return list.Items, nil
}

// eventCount is how often an event was seen.
func eventCount(e corev1.Event) int32 {
	if e.Series != nil {
		return e.Series.Count
	}
	return e.Count
}
