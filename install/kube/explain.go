package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds of an explanation.
const (
	explainTime   = 10 * time.Second
	explainLines  = 60
	explainPods   = 3
	explainEvents = 5
	explainLog    = 10 // lines
	maxLog        = 16 << 10
	maxProblem    = 240 // characters, within a line that says more
)

// Object names an object of the cluster. Namespace is empty for those that are in none.
type Object struct {
	Kind      string
	Namespace string
	Name      string
}

// String returns "Kind namespace/name".
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// Explain gathers what the cluster says about an object that does not become what it
// should: its conditions and events, and for workloads also those of its pods that are in
// trouble, why their containers wait, and the last lines of a container that crashes
// or runs without getting ready. Of a claim without a volume, which its pods wait for, it also has the
// pods in which k3s makes volumes.
// It returns at most 60 printable lines of at most 400 characters, each ending with a
// newline. What cannot be found out is said instead.
func (c *Cluster) Explain(ctx context.Context, o Object) string {
	e := explainer{ctx: ctx, c: c}
	var err error
	switch o.Kind {
	case DaemonSet, Deployment, StatefulSet:
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

// explainAfter explains when a deadline has passed, or when ctx still has time. An operator
// who has pressed Ctrl-C does not wait for explanations.
func (c *Cluster) explainAfter(ctx context.Context, o Object) string {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainTime)
	defer cancel()
	return c.Explain(ctx, o)
}

type explainer struct {
	ctx   context.Context
	c     *Cluster
	lines []string
	// claims are those that were told of, by UID.
	claims map[string]bool
}

func (e *explainer) line(depth int, format string, args ...any) {
	if len(e.lines) < explainLines {
		e.lines = append(e.lines, strings.Repeat("  ", depth)+brief(fmt.Sprintf(format, args...))+"\n")
	}
}

func (e *explainer) workload(o Object) error {
	nodes, err := e.c.countedNodes(e.ctx)
	if err != nil {
		return err
	}
	r, err := e.c.rollout(e.ctx, o, nodes)
	if err != nil {
		return err
	}
	e.line(0, "%s", r.Rollout)
	e.conditions(1, o)
	e.events(1, o)
	pods, err := e.c.pods(e.ctx, o.Namespace, r.selector)
	if err != nil {
		return err
	}
	if o.Kind == Deployment && len(pods) < r.Wanted {
		e.replicaSets(o, r.selector)
	}
	inTrouble := 0
	for i := range pods {
		if podReady(&pods[i]) {
			continue
		}
		if inTrouble++; inTrouble <= explainPods {
			e.describe(1, &pods[i])
		}
	}
	if inTrouble > explainPods {
		e.line(1, "and %d more pods", inTrouble-explainPods)
	}
	return nil
}

// conditions are a Deployment's: the others have none that say something.
func (e *explainer) conditions(depth int, o Object) {
	if o.Kind != Deployment {
		return
	}
	d, err := e.c.client.AppsV1().Deployments(o.Namespace).Get(e.ctx, o.Name, metav1.GetOptions{})
	if err != nil {
		return // rollout has got it a moment ago: it will be told there next time
	}
	for _, condition := range d.Status.Conditions {
		// Available and Progressing should be true, ReplicaFailure should not.
		if (condition.Status == corev1.ConditionTrue) == (condition.Type == "ReplicaFailure") {
			e.line(depth, "condition %s is %s: %s: %s", condition.Type, condition.Status, condition.Reason, condition.Message)
		}
	}
}

// replicaSets has the events that tell why pods cannot be made.
func (e *explainer) replicaSets(o Object, selector *metav1.LabelSelector) {
	sets, err := e.c.client.AppsV1().ReplicaSets(o.Namespace).List(e.ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(selector)})
	if err != nil {
		e.line(1, "list ReplicaSets: %v", err)
		return
	}
	for _, set := range sets.Items {
		if replicas(set.Spec.Replicas) > int(set.Status.Replicas) {
			e.line(1, "ReplicaSet %s: %d of %d pods made", set.Name, set.Status.Replicas, replicas(set.Spec.Replicas))
			e.events(2, Object{"ReplicaSet", o.Namespace, set.Name})
		}
	}
}

func (e *explainer) pod(o Object) error {
	p, err := e.c.client.CoreV1().Pods(o.Namespace).Get(e.ctx, o.Name, metav1.GetOptions{})
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
		if condition.Status == corev1.ConditionFalse && condition.Message != "" && condition.Type != corev1.ContainersReady {
			e.line(depth+1, "condition %s is False: %s: %s", condition.Type, condition.Reason, condition.Message)
		}
	}
	for _, t := range troubles(p) {
		e.line(depth+1, "%s", t.text)
		if t.crashes || t.unready {
			e.log(depth+2, p, t.container)
		}
	}
	for _, claim := range e.c.unboundClaims(e.ctx, p) {
		e.claim(depth+1, claim)
	}
	e.events(depth+1, Object{"Pod", p.Namespace, p.Name})
}

func (e *explainer) namedClaim(o Object) error {
	claim, err := e.c.client.CoreV1().PersistentVolumeClaims(o.Namespace).Get(e.ctx, o.Name, metav1.GetOptions{})
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
	e.events(depth+1, Object{"PersistentVolumeClaim", claim.Namespace, claim.Name})
	if claim.Status.Phase == corev1.ClaimBound {
		return
	}
	for _, p := range e.c.helperPods(e.ctx, claim) {
		e.describe(depth+1, &p)
	}
}

func (e *explainer) log(depth int, p *corev1.Pod, container corev1.ContainerStatus) {
	ctx, cancel := context.WithTimeout(e.ctx, explainTime/2)
	defer cancel()
	lines, limit := int64(explainLog), int64(maxLog)
	stream, err := e.c.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
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

func (e *explainer) node(o Object) error {
	n, err := e.c.node(e.ctx, o.Name)
	if err != nil {
		return err
	}
	state := "ready"
	if ready, reason := readiness(n); !ready {
		state = "not ready: " + reason
	}
	e.line(0, "node %s: %s", n.Name, state)
	for _, condition := range n.Status.Conditions {
		if condition.Type != corev1.NodeReady && condition.Status != corev1.ConditionFalse {
			e.line(1, "condition %s is %s: %s: %s", condition.Type, condition.Status, condition.Reason, condition.Message)
		}
	}
	for _, taint := range taintsOf(n) {
		e.line(1, "taint %s", taint)
	}
	e.events(1, o)
	return nil
}

// events tells the newest events of an object, warnings before others.
func (e *explainer) events(depth int, o Object) {
	list, err := e.c.events(e.ctx, o)
	if err != nil {
		e.line(depth, "%v", err)
		return
	}
	for _, text := range eventTexts(list) {
		e.line(depth, "%s", text)
	}
}

// sortEvents puts warnings before others, and newer ones before older ones.
func sortEvents(events []corev1.Event) {
	slices.SortStableFunc(events, func(a, b corev1.Event) int {
		if a.Type != b.Type && (a.Type == corev1.EventTypeWarning || b.Type == corev1.EventTypeWarning) {
			return cmp.Compare(b.Type, a.Type) // "Warning" is greater than "Normal"
		}
		return eventTime(b).Compare(eventTime(a))
	})
}

// eventTexts are the first events that say something of their own.
func eventTexts(events []corev1.Event) []string {
	var texts []string
	told := map[string]bool{}
	for _, event := range events {
		if len(texts) == explainEvents {
			break
		}
		if key := event.Reason + event.Message; !told[key] {
			told[key] = true
			texts = append(texts, fmt.Sprintf("event %s %s (%s ago): %s", event.Type, event.Reason, age(eventTime(event)), event.Message))
		}
	}
	return texts
}

func eventTime(e corev1.Event) time.Time {
	t := e.LastTimestamp.Time
	if e.EventTime.After(t) {
		t = e.EventTime.Time
	}
	if e.Series != nil && e.Series.LastObservedTime.After(t) {
		t = e.Series.LastObservedTime.Time
	}
	return t
}

func age(t time.Time) string { return max(0, time.Since(t)).Round(time.Second).String() }

// trouble is a container that does not run as it should.
type trouble struct {
	container corev1.ContainerStatus
	text      string
	crashes   bool
	unready   bool // it runs, and its probe fails
}

// troubles looks at the containers in the order in which they are started.
func troubles(p *corev1.Pod) []trouble {
	images := map[string]string{}
	for _, container := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		images[container.Name] = container.Image
	}
	var all []trouble
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		t := trouble{container: s}
		about := fmt.Sprintf("container %s (image %s)", s.Name, images[s.Name])
		waiting, ended, before := s.State.Waiting, s.State.Terminated, s.LastTerminationState.Terminated
		switch {
		case waiting != nil && before != nil:
			t.crashes = true
			t.text = fmt.Sprintf("%s crashes: %s: %s, started %d times again", about, waiting.Reason, exit(before), s.RestartCount)
		case waiting != nil && waiting.Reason != "PodInitializing" && waiting.Reason != "ContainerCreating":
			t.text = fmt.Sprintf("%s waits: %s: %s", about, waiting.Reason, waiting.Message)
		case ended != nil && ended.ExitCode != 0:
			t.crashes = true
			t.text = fmt.Sprintf("%s has ended: %s", about, exit(ended))
		case s.State.Running != nil && !s.Ready && before != nil:
			t.crashes = true
			t.text = fmt.Sprintf("%s runs again after it had ended: %s, started %d times again", about, exit(before), s.RestartCount)
		case s.State.Running != nil && !s.Ready && p.DeletionTimestamp == nil:
			t.unready = true
			t.text = fmt.Sprintf("%s runs for %s and is not ready", about, age(s.State.Running.StartedAt.Time))
		default:
			continue
		}
		all = append(all, t)
	}
	return all
}

func exit(t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("exit code %d", t.ExitCode)
	if t.Reason != "" && t.Reason != "Error" {
		text += " (" + t.Reason + ")"
	}
	if t.Message != "" {
		text += ": " + t.Message
	}
	return text
}

func podReady(p *corev1.Pod) bool {
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

// pods returns the pods that a workload selects, in a stable order.
func (c *Cluster) pods(ctx context.Context, namespace string, selector *metav1.LabelSelector) ([]corev1.Pod, error) {
	list, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(selector)})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}
