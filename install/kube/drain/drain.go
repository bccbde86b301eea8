// Package drain empties a node of its pods, as kubectl drain does.
//
// Contract: PodDisruptionBudgets are respected, and the node is left cordoned, whatever comes of it. Nothing is evicted
// when a pod would be lost that no controller makes anew, unless that is asked for. Whoever is interrupted can make the
// same call again.
package drain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubectl/pkg/drain"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/explain"
	"github.com/liteboxd/boxlift/internal/fault"
)

const (
	// timeout is for callers that name none.
	timeout = 5 * time.Minute
	// evictAgain is the pause before an eviction that was refused is tried again.
	evictAgain = 2 * time.Second
	// goneAfter is how long a pod may outlive its own grace period on a node that is gone.
	goneAfter = 5 * time.Second
)

// Options say how to drain a node.
type Options struct {
	// Timeout bounds the whole, 5 minutes when it is 0.
	Timeout time.Duration
	// Report is told which pods have left, and of every change in what holds up the rest;
	// nil is nobody. It is called from one goroutine at a time.
	Report func(string)
	// Unmanaged pods, which no controller makes anew elsewhere, are deleted too. Without
	// it, one such pod makes Node fail before anything is evicted.
	Unmanaged bool
	// Gone says that the node is switched off for good: nobody is there to end its pods, so
	// they are not waited for longer than their grace period.
	Gone bool
}

// Node cordons a node and evicts its pods, all but those of DaemonSets and static ones.
// What pods have in emptyDir volumes is lost. PodDisruptionBudgets are respected: when the
// time is up, the error names each pod that is left and the budget that forbids its
// eviction. The node stays cordoned then; Node may be called again.
// The error wraps [kube.ErrNoNode] when there is no such node.
func Node(ctx context.Context, c *kube.Cluster, name string, o Options) error {
	if o.Timeout <= 0 {
		o.Timeout = timeout
	}
	var mu sync.Mutex
	report := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		if o.Report != nil {
			o.Report(text)
		}
	}
	if _, err := c.Cordon(ctx, name); err != nil {
		return err
	}
	start := time.Now()
	draining, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	// Discovery, which the library does before it evicts, takes no context.
	b, err := c.Bound(draining)
	if err != nil {
		return err
	}
	helper := o.helper(draining, b, report)
	pods, problems := helper.GetPodsForDeletion(name)
	if len(problems) > 0 {
		if draining.Err() != nil {
			return fmt.Errorf("%s: drain node %s: %w", c.Name, name, context.Cause(draining))
		}
		text := kube.Brief(errors.Join(problems...).Error())
		return c.Fail(fmt.Errorf("drain node %s: nothing was evicted: %s", name, text),
			"pods without a controller are not made anew on another node: wait until they are done, or end them "+
				"and their data with boxlift node remove --delete-unmanaged-pods")
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		tellHoldUps(draining, c, helper, name, report)
	}()
	err = helper.DeleteOrEvictPods(pods.Pods())
	cause := context.Cause(draining)
	cancel()
	<-told
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: drain node %s: %w", c.Name, name, context.Cause(ctx))
	case cause == nil:
		return c.Fail(fmt.Errorf("drain node %s: %w", name, err), "run the same command again when the reason is gone")
	}
	return timeUp(ctx, c, helper, name, kube.Since(start))
}

// helper is kubectl's, for a cluster that is bound to the context. report is told which pods have left.
func (o Options) helper(ctx context.Context, bound *kube.Cluster, report func(string)) *drain.Helper {
	out := &lineLog{log: bound.Log}
	helper := &drain.Helper{
		Ctx:                  ctx,
		Client:               bound.Client,
		Force:                o.Unmanaged,
		GracePeriodSeconds:   -1, // the pod's own
		IgnoreAllDaemonSets:  true,
		DeleteEmptyDirData:   true,
		EvictErrorRetryDelay: evictAgain,
		Out:                  out,
		ErrOut:               out,
		OnPodDeletionOrEvictionFinished: func(pod *corev1.Pod, _ bool, err error) {
			if err == nil {
				report(fmt.Sprintf("pod %s/%s has left", pod.Namespace, pod.Name))
			}
		},
	}
	if o.Gone {
		helper.SkipWaitForDeleteTimeoutSeconds = int(goneAfter.Seconds())
	}
	return helper
}

// tellHoldUps reports what holds up a drain, and every change in it, until ctx ends.
func tellHoldUps(ctx context.Context, c *kube.Cluster, helper *drain.Helper, name string, report func(string)) {
	tell := kube.OnChange(func(text string) { report("waiting for " + text) })
	ticker := time.NewTicker(2 * kube.PollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if left, err := holdUps(ctx, c, helper, name); err == nil && len(left) > 0 {
			tell(joinHoldUps(left))
		}
	}
}

// timeUp says what has not left in time. The helper is still bound to the context of the drain.
func timeUp(ctx context.Context, c *kube.Cluster, helper *drain.Helper, name string, took time.Duration) error {
	draining := helper.Ctx
	ctx, cancel := context.WithTimeout(ctx, explain.Time)
	defer cancel()
	helper.Ctx, helper.Client = ctx, c.Client
	left, err := holdUps(ctx, c, helper, name)
	if err != nil {
		return fmt.Errorf("%s: drain node %s: not done after %s, and what is left cannot be found out: %w",
			c.Name, name, took, err)
	}
	hint := "see what the pods wait for; the same command goes on from here"
	if slices.ContainsFunc(left, func(h holdUp) bool { return h.budget != "" }) {
		hint = "the budget allows it when more of its pods are ready, on other nodes: see to that, or change the " +
			"budget; the same command goes on from here"
	}
	text := fmt.Sprintf("not done after %s: %s", took, joinHoldUps(left))
	err = c.Fail(fmt.Errorf("drain node %s: %w", name, kube.TimeUp(draining, text)), hint)
	explanation := ""
	for _, h := range left[:min(explain.Objects, len(left))] {
		explanation += explain.Object(ctx, c, kube.Object{Kind: "Pod", Namespace: h.namespace, Name: h.pod})
	}
	return fault.WithDetail(err, explanation)
}

// holdUp is a pod that is still on the node, and why.
type holdUp struct {
	namespace, pod string
	budget         string // the PodDisruptionBudget that forbids to evict it, and its numbers
	deleting       time.Duration
}

func (h holdUp) String() string {
	switch {
	case h.budget != "":
		return fmt.Sprintf("pod %s/%s, which %s", h.namespace, h.pod, h.budget)
	case h.deleting > 0:
		return fmt.Sprintf("pod %s/%s, which has been ending for %s", h.namespace, h.pod, h.deleting)
	}
	return fmt.Sprintf("pod %s/%s", h.namespace, h.pod)
}

func joinHoldUps(list []holdUp) string {
	const most = 5
	var texts []string
	for _, h := range list[:min(most, len(list))] {
		texts = append(texts, h.String())
	}
	if n := len(list) - most; n > 0 {
		texts = append(texts, fmt.Sprintf("%d more", n))
	}
	if len(texts) == 0 {
		return "nothing that is still there"
	}
	return strings.Join(texts, "; ")
}

func holdUps(ctx context.Context, c *kube.Cluster, helper *drain.Helper, name string) ([]holdUp, error) {
	list, problems := helper.GetPodsForDeletion(name)
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	pods := list.Pods()
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	budgets := map[string][]policyv1.PodDisruptionBudget{}
	var left []holdUp
	for i := range pods {
		p := &pods[i]
		h := holdUp{namespace: p.Namespace, pod: p.Name}
		if p.DeletionTimestamp != nil {
			// In steps, so that it is not something new every time.
			h.deleting = max(time.Second, time.Since(kube.PodOf(p).Terminating).Truncate(10*time.Second))
			left = append(left, h)
			continue
		}
		if _, ok := budgets[p.Namespace]; !ok {
			found, err := budgetsOf(ctx, c.Client, p.Namespace)
			if err != nil {
				return nil, err
			}
			budgets[p.Namespace] = found
		}
		h.budget = forbids(budgets[p.Namespace], p)
		left = append(left, h)
	}
	return left, nil
}

func budgetsOf(
	ctx context.Context, client kubernetes.Interface, namespace string,
) ([]policyv1.PodDisruptionBudget, error) {
	list, err := client.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list PodDisruptionBudgets: %w", err)
	}
	return list.Items, nil
}

// forbids says which budget lets the pod not be evicted now, "" when none.
func forbids(budgets []policyv1.PodDisruptionBudget, p *corev1.Pod) string {
	var matching []string
	for i := range budgets {
		b := &budgets[i]
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(p.Labels)) {
			continue
		}
		matching = append(matching, b.Name)
		if b.Status.DisruptionsAllowed <= 0 {
			return fmt.Sprintf("PodDisruptionBudget %s does not let go: it allows %d disruptions, "+
				"with %d pods healthy and %d needed",
				b.Name, b.Status.DisruptionsAllowed, b.Status.CurrentHealthy, b.Status.DesiredHealthy)
		}
	}
	if len(matching) > 1 {
		return "more than one PodDisruptionBudget covers, which Kubernetes does not support: " +
			strings.Join(matching, ", ")
	}
	return ""
}

// lineLog writes lines to a log at level debug.
type lineLog struct{ log *slog.Logger }

var _ io.Writer = (*lineLog)(nil)

func (l *lineLog) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		l.log.Debug("drain", "text", kube.Brief(string(line)))
	}
	return len(p), nil
}
