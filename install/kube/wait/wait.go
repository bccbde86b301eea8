// Package wait waits for a cluster: until workloads are rolled out, objects of other kinds are what they should be, or
// pods have gone.
//
// Contract: it changes nothing. A wait ends with its context, and before that when what is waited for will not come by
// itself any more: a Deployment has exceeded its progress deadline, or a volume or an image cannot be had for too long.
// The error then names each thing that is missing, and explains.
package wait

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/explain"
	"github.com/liteboxd/boxlift/internal/fault"
)

// Rollouts waits until the workloads of one namespace exist and are rolled out, a
// DaemonSet on all registered nodes that it is for, but for those that are left out: see
// [kube.Options].Absent. Report is told of every change in what it waits for; nil is nobody. When ctx
// ends first, a Deployment exceeds its progress deadline, or a volume or an image cannot be had for
// so long that it will not come any more, the error says how far each one is, and explains.
//
// Nodes that register later are not waited for.
func Rollouts(
	ctx context.Context, c *kube.Cluster, namespace string, workloads []kube.Workload, report func(string),
) error {
	var objects []Awaited
	for _, w := range workloads {
		objects = append(objects, Awaited{Object: kube.Object{Kind: w.Kind, Namespace: namespace, Name: w.Name}})
	}
	if err := For(ctx, c, objects, report); err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	return nil
}

// Awaited is an object that is to become what it should.
type Awaited struct {
	Object kube.Object
	// Resource is where objects are found that are no workloads; it is empty for those that are.
	Resource schema.GroupVersionResource
}

// waitingFor is an object that has not got there.
type waitingFor struct {
	object kube.Object
	state  string
	// failed says that it will not get there by itself.
	failed bool
}

func joinWaiting(list []waitingFor) string {
	var texts []string
	for _, w := range list {
		texts = append(texts, w.object.String()+": "+w.state)
	}
	return strings.Join(texts, "; ")
}

// cutOff reports whether a question was given up because the wait is about to end.
// Client-go's limit of questions, golang.org/x/time/rate, has only a text for it.
func cutOff(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "would exceed context deadline")
}

// For waits until workloads are rolled out, and until kstatus finds nothing missing in
// objects of other kinds. The error has a hint and details; it leaves it to its callers to name the cluster.
// Report is told of every change in what is waited for; nil is nobody.
func For(ctx context.Context, c *kube.Cluster, objects []Awaited, report func(string)) error {
	tell := kube.OnChange(report)
	w := newWait(c)
	var waiting []waitingFor
	var failure error
	done := false
	kube.Poll(ctx, kube.PollInterval, func() bool {
		now, err := w.unfinished(ctx, objects)
		if err != nil {
			if failure == nil || !cutOff(err) { // what was answered before says more
				failure = err
			}
			return false
		}
		failure = nil
		if waiting = now; len(waiting) == 0 {
			done = true
			return true
		}
		tell(joinWaiting(waiting))
		return waiting[0].failed
	})
	if done {
		return nil
	}
	text := joinWaiting(waiting)
	if text == "" && failure != nil {
		text = kube.Brief(failure.Error())
	}
	text = fmt.Sprintf("not rolled out after %s: %s", kube.Since(w.start), text)
	err := errors.New(text)
	if ctx.Err() != nil {
		err = kube.TimeUp(ctx, text)
	}
	var hint, explanation string
	if len(waiting) > 0 {
		hint = waiting[0].describeHint()
	}
	for _, w := range waiting[:min(explain.Objects, len(waiting))] {
		explanation += explain.After(ctx, c, w.object)
	}
	return fault.WithHint(fault.WithDetail(err, explanation), hint)
}

func (w waitingFor) describeHint() string {
	namespace := ""
	if w.object.Namespace != "" {
		namespace = " -n " + w.object.Namespace
	}
	kind := strings.ToLower(w.object.Kind)
	return fmt.Sprintf("on a server: k3s kubectl%s describe %s %s", namespace, kind, w.object.Name)
}

// wait is one wait for several objects.
type wait struct {
	cluster *kube.Cluster
	start   time.Time
	// settled are objects that have no pods and are there: they need no second look.
	settled   map[Awaited]bool
	deadlines deadlines
	patience  *patience
}

// newWait begins to wait now.
func newWait(c *kube.Cluster) *wait {
	return &wait{
		cluster: c, start: time.Now(), settled: map[Awaited]bool{}, deadlines: deadlines{}, patience: newPatience(),
	}
}

// unfinished returns those that have failed first, then those that have a known problem.
func (w *wait) unfinished(ctx context.Context, objects []Awaited) ([]waitingFor, error) {
	judge, err := w.cluster.Judge(ctx)
	if err != nil {
		return nil, err
	}
	var failed, troubled, others []waitingFor
	for _, a := range objects {
		look := w.workload
		if !a.Resource.Empty() {
			look = w.other
		}
		state, problem, err := look(ctx, a, judge)
		switch {
		case apierrors.IsNotFound(err):
			others = append(others, waitingFor{object: a.Object, state: "does not exist"})
		case err != nil:
			return nil, fmt.Errorf("%s: get %s: %w", w.cluster.Name, a.Object, err)
		case state == nil:
		case state.failed:
			failed = append(failed, *state)
		case problem:
			troubled = append(troubled, *state)
		default:
			others = append(others, *state)
		}
	}
	return slices.Concat(failed, troubled, others), nil
}

// workload returns nil when it is rolled out. problem says that more is known of it than
// that it takes its time.
func (w *wait) workload(ctx context.Context, a Awaited, judge kube.Judge) (state *waitingFor, problem bool, err error) {
	r, err := judge.Workload(ctx, a.Object)
	if err != nil {
		return nil, false, err
	}
	exceeded := r.Deployment != nil && w.deadlines.exceeded(r.Deployment, time.Since(w.start))
	if r.Rollout.Done {
		w.patience.over(a.Object, nil, time.Now())
		return nil, false, nil
	}
	state = &waitingFor{object: a.Object, state: r.Rollout.State}
	held := explain.FirstSetback(ctx, w.cluster, a.Object.Namespace, r.Selector)
	if held != nil {
		state.state, problem = state.state+", "+held.Text, true
	}
	if w.patience.over(a.Object, held, time.Now()) {
		state.state += fmt.Sprintf(", for %v now", held.Patience)
		state.failed = true
	}
	if exceeded {
		seconds := progressDeadline(r.Deployment) / time.Second
		state.state += fmt.Sprintf(", and its progress deadline of %d s is exceeded", seconds)
		state.failed = true
	}
	return state, problem, nil
}

// deadlines has the Deployments that were seen within their progress deadline.
//
// The condition that it is exceeded stays on a Deployment, also under a new template, until
// the controller sees progress. So one that has it from the beginning gets its deadline once
// more, and only then counts as failed.
type deadlines map[kube.Object]bool

// exceeded reports whether a Deployment has exceeded its progress deadline. waited is the time
// since the first look.
func (d deadlines) exceeded(deployment *appsv1.Deployment, waited time.Duration) bool {
	if deployment.Status.ObservedGeneration < deployment.Generation {
		return false // what it says is about an older template
	}
	o := kube.Object{Kind: kube.Deployment, Namespace: deployment.Namespace, Name: deployment.Name}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(deployment)
	if err != nil {
		return false // then only the time limit ends the wait
	}
	object := &unstructured.Unstructured{Object: fields}
	object.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(kube.Deployment))
	if result, err := status.Compute(object); err != nil || result.Status != status.FailedStatus {
		d[o] = true
		return false
	}
	return d[o] || waited >= progressDeadline(deployment)
}

func progressDeadline(d *appsv1.Deployment) time.Duration {
	if d.Spec.ProgressDeadlineSeconds == nil {
		return 10 * time.Minute // what the API server sets
	}
	return time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second
}

// other is for objects that are no workloads.
func (w *wait) other(ctx context.Context, a Awaited, _ kube.Judge) (state *waitingFor, problem bool, err error) {
	if w.settled[a] {
		return nil, false, nil
	}
	objects := w.cluster.Dynamic.Resource(a.Resource).Namespace(a.Object.Namespace)
	object, err := objects.Get(ctx, a.Object.Name, metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	result, err := status.Compute(object)
	if err != nil {
		return nil, false, err
	}
	switch result.Status {
	case status.FailedStatus:
		return &waitingFor{a.Object, kube.Brief(result.Message), true}, true, nil
	case status.InProgressStatus, status.TerminatingStatus:
		if later, err := boundLater(ctx, w.cluster, object); err != nil || !later {
			return &waitingFor{object: a.Object, state: kube.Brief(result.Message)}, false, err
		}
	}
	w.settled[a] = true
	return nil, false, nil
}

// boundLater reports whether an object is a claim that gets its volume when a pod needs it.
// Then it is the pods that are waited for; of one that nobody uses there is nothing to wait
// for.
func boundLater(ctx context.Context, c *kube.Cluster, object *unstructured.Unstructured) (bool, error) {
	claim := corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim").GroupKind()
	if object.GroupVersionKind().GroupKind() != claim || object.GetDeletionTimestamp() != nil {
		return false, nil
	}
	name, _, err := unstructured.NestedString(object.Object, "spec", "storageClassName")
	if err != nil || name == "" {
		return false, err
	}
	class, err := c.Client.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("get StorageClass %s: %w", name, err)
	}
	mode := class.VolumeBindingMode
	return mode != nil && *mode == storagev1.VolumeBindingWaitForFirstConsumer, nil
}
