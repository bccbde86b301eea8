// Package explain says why something in a cluster does not become what it should, and what holds it up.
//
// Contract: it reads and changes nothing. What the cluster cannot tell is said instead, or left out; it is no error. An
// explanation is of a bounded number of bounded, printable lines.
package explain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/kube"
)

// Time bounds what it takes to explain one object.
const Time = 10 * time.Second

// Objects is how many objects of many are explained: the others tell the same story.
const Objects = 3

// Bounds of an explanation.
const (
	explainLines  = 60
	explainEvents = 5
	explainLog    = 10 // lines
	maxLog        = 16 << 10
)

// Object gathers what the cluster says about an object that does not become what it
// should: its conditions and events, and for workloads also those of its pods that are in
// trouble, why their containers wait, and the last lines of a container that crashes
// or runs without getting ready. Of a claim without a volume, which its pods wait for, it also has the
// pods in which k3s makes volumes.
// It returns at most 60 printable lines of at most 400 characters, each ending with a
// newline. What cannot be found out is said instead.
func Object(ctx context.Context, c *kube.Cluster, o kube.Object) string {
	e := explainer{ctx: ctx, c: c}
	var err error
	switch o.Kind {
	case kube.DaemonSet, kube.Deployment, kube.StatefulSet:
		err = e.workload(o)
	case "Pod":
		err = e.pod(o)
	case "Node":
		err = e.node(o)
	case "PersistentVolumeClaim":
		err = e.namedClaim(o)
	default:
		e.line(0, "%s", o)
		e.events(1, o)
	}
	if err != nil {
		e.line(0, "%s: %v", o, err)
	}
	return strings.Join(e.lines, "")
}

// After explains when a deadline has passed, or when ctx still has time. An operator
// who has pressed Ctrl-C does not wait for explanations: then it is "".
func After(ctx context.Context, c *kube.Cluster, o kube.Object) string {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Time)
	defer cancel()
	return Object(ctx, c, o)
}

type explainer struct {
	ctx   context.Context
	c     *kube.Cluster
	lines []string
	// claims are those that were told of, by UID.
	claims map[string]bool
}

func (e *explainer) line(depth int, format string, args ...any) {
	if len(e.lines) < explainLines {
		e.lines = append(e.lines, strings.Repeat("  ", depth)+kube.Brief(fmt.Sprintf(format, args...))+"\n")
	}
}

func (e *explainer) workload(o kube.Object) error {
	judge, err := e.c.Judge(e.ctx)
	if err != nil {
		return err
	}
	r, err := judge.Workload(e.ctx, o)
	if err != nil {
		return err
	}
	e.line(0, "%s", r.Rollout)
	e.conditions(1, o)
	e.events(1, o)
	pods, err := e.c.Selected(e.ctx, o.Namespace, r.Selector)
	if err != nil {
		return err
	}
	if o.Kind == kube.Deployment && len(pods) < r.Rollout.Wanted {
		e.replicaSets(o, r.Selector)
	}
	inTrouble := 0
	for i := range pods {
		if kube.PodReady(&pods[i]) {
			continue
		}
		if inTrouble++; inTrouble <= Objects {
			e.describe(1, &pods[i])
		}
	}
	if inTrouble > Objects {
		e.line(1, "and %d more pods", inTrouble-Objects)
	}
	return nil
}

// conditions are a Deployment's: the others have none that say something.
func (e *explainer) conditions(depth int, o kube.Object) {
	if o.Kind != kube.Deployment {
		return
	}
	d, err := e.c.Client.AppsV1().Deployments(o.Namespace).Get(e.ctx, o.Name, metav1.GetOptions{})
	if err != nil {
		return // rollout has got it a moment ago: it will be told there next time
	}
	for _, condition := range d.Status.Conditions {
		// Available and Progressing should be true, ReplicaFailure should not.
		if (condition.Status == corev1.ConditionTrue) == (condition.Type == "ReplicaFailure") {
			e.line(depth, "condition %s is %s: %s: %s",
				condition.Type, condition.Status, condition.Reason, condition.Message)
		}
	}
}

// replicaSets has the events that tell why pods cannot be made.
func (e *explainer) replicaSets(o kube.Object, selector *metav1.LabelSelector) {
	sets, err := e.c.Client.AppsV1().ReplicaSets(o.Namespace).List(e.ctx, metav1.ListOptions{
		LabelSelector: metav1.FormatLabelSelector(selector),
	})
	if err != nil {
		e.line(1, "list ReplicaSets: %v", err)
		return
	}
	for _, set := range sets.Items {
		if kube.Replicas(set.Spec.Replicas) > int(set.Status.Replicas) {
			e.line(1, "ReplicaSet %s: %d of %d pods made",
				set.Name, set.Status.Replicas, kube.Replicas(set.Spec.Replicas))
			e.events(2, kube.Object{Kind: "ReplicaSet", Namespace: o.Namespace, Name: set.Name})
		}
	}
}

func (e *explainer) pod(o kube.Object) error {
	p, err := e.c.Client.CoreV1().Pods(o.Namespace).Get(e.ctx, o.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	e.describe(0, p)
	return nil
}

func (e *explainer) describe(depth int, p *corev1.Pod) {
	where := ""
	if p.Spec.NodeName != "" {
		where = " on " + p.Spec.NodeName
	}
	state := string(p.Status.Phase)
	if p.DeletionTimestamp != nil {
		state = "being deleted since " + age(p.DeletionTimestamp.Time)
	}
	e.line(depth, "pod %s%s: %s %s %s", p.Name, where, state, p.Status.Reason, p.Status.Message)
	for _, condition := range p.Status.Conditions {
		if condition.Status == corev1.ConditionFalse && condition.Message != "" &&
			condition.Type != corev1.ContainersReady {
			e.line(depth+1, "condition %s is False: %s: %s", condition.Type, condition.Reason, condition.Message)
		}
	}
	for _, t := range Troubles(p) {
		e.line(depth+1, "%s", t.Text)
		if t.Crashes || t.Unready {
			e.log(depth+2, p, t.Container)
		}
	}
	for _, claim := range unboundClaims(e.ctx, e.c, p) {
		e.claim(depth+1, claim)
	}
	e.events(depth+1, kube.Object{Kind: "Pod", Namespace: p.Namespace, Name: p.Name})
}

func (e *explainer) namedClaim(o kube.Object) error {
	claim, err := e.c.Client.CoreV1().PersistentVolumeClaims(o.Namespace).Get(e.ctx, o.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	e.claim(0, claim)
	return nil
}

// claim tells of a claim, once: several pods may wait for it.
func (e *explainer) claim(depth int, claim *corev1.PersistentVolumeClaim) {
	if e.claims[string(claim.UID)] {
		return
	}
	if e.claims == nil {
		e.claims = map[string]bool{}
	}
	e.claims[string(claim.UID)] = true
	class := "the default storage class"
	if claim.Spec.StorageClassName != nil {
		class = "storage class " + *claim.Spec.StorageClassName
	}
	e.line(depth, "PersistentVolumeClaim %s/%s: %s, %s", claim.Namespace, claim.Name, claim.Status.Phase, class)
	e.events(depth+1, kube.Object{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name})
	if claim.Status.Phase == corev1.ClaimBound {
		return
	}
	for _, p := range helperPods(e.ctx, e.c, claim) {
		e.describe(depth+1, &p)
	}
}

func (e *explainer) log(depth int, p *corev1.Pod, container corev1.ContainerStatus) {
	ctx, cancel := context.WithTimeout(e.ctx, Time/2)
	defer cancel()
	lines, limit := int64(explainLog), int64(maxLog)
	stream, err := e.c.Client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
		Container: container.Name, TailLines: &lines, LimitBytes: &limit,
		// Of the container that waits to be started again, the last run has something to say.
		Previous: container.State.Terminated == nil && container.LastTerminationState.Terminated != nil,
	}).Stream(ctx)
	if err != nil {
		e.line(depth, "its log cannot be had: %v", err)
		return
	}
	defer func() { _ = stream.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(stream, maxLog))
	if err != nil {
		e.line(depth, "its log cannot be had: %v", err)
	}
	all := slices.Collect(strings.Lines(string(text)))
	for _, line := range all[max(0, len(all)-explainLog):] {
		if strings.TrimSpace(line) != "" {
			e.line(depth, "log: %s", line)
		}
	}
}

func (e *explainer) node(o kube.Object) error {
	n, err := e.c.Node(e.ctx, o.Name)
	if err != nil {
		return err
	}
	seen := kube.NodeOf(n)
	state := "ready"
	if !seen.Ready {
		state = "not ready: " + seen.Reason
	}
	e.line(0, "node %s: %s", n.Name, state)
	for _, condition := range n.Status.Conditions {
		if condition.Type != corev1.NodeReady && condition.Status != corev1.ConditionFalse {
			e.line(1, "condition %s is %s: %s: %s",
				condition.Type, condition.Status, condition.Reason, condition.Message)
		}
	}
	for _, taint := range seen.Taints {
		e.line(1, "taint %s", taint)
	}
	e.events(1, o)
	return nil
}

// events tells the newest events of an object, warnings before others.
func (e *explainer) events(depth int, o kube.Object) {
	list, err := eventsOf(e.ctx, e.c, o)
	if err != nil {
		e.line(depth, "%v", err)
		return
	}
	for _, text := range eventTexts(list) {
		e.line(depth, "%s", text)
	}
}
