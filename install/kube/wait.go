package kube

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
)

// awaited is an object that is to become what it should.
type awaited struct {
	Object
	// resource is where objects are found that are no workloads.
	resource schema.GroupVersionResource
}

// waitingFor is an object that has not got there.
type waitingFor struct {
	Object
	state string
	// failed says that it will not get there by itself.
	failed bool
}

func joinWaiting(list []waitingFor) string {
	var texts []string
	for _, w := range list {
		texts = append(texts, w.String()+": "+w.state)
	}
	return strings.Join(texts, "; ")
}

// waitFor waits until workloads are rolled out, and until kstatus finds nothing missing in
// objects of other kinds. It leaves it to its callers to name the cluster.
func (c *Cluster) waitFor(ctx context.Context, objects []awaited, report func(string)) *Error {
	tell := onChange(report)
	w := c.newWait()
	var waiting []waitingFor
	var failure error
	for {
		var now []waitingFor
		if now, failure = w.unfinished(ctx, objects); failure == nil {
			if waiting = now; len(waiting) == 0 {
				return nil
			}
			tell(joinWaiting(waiting))
			if waiting[0].failed {
				break
			}
		}
		if sleep(ctx, pollInterval) != nil {
			break
		}
	}
	text := joinWaiting(waiting)
	if text == "" && failure != nil {
		text = brief(failure.Error())
	}
	text = fmt.Sprintf("not rolled out after %s: %s", since(w.start), text)
	out := &Error{err: errors.New(text)}
	if ctx.Err() != nil {
		out.err = timeUp(ctx, text)
	}
	if len(waiting) > 0 {
		out.hint = waiting[0].describeHint()
	}
	for _, w := range waiting[:min(3, len(waiting))] {
		out.Explanation += c.explainAfter(ctx, w.Object)
	}
	return out
}

func (w waitingFor) describeHint() string {
	namespace := ""
	if w.Namespace != "" {
		namespace = " -n " + w.Namespace
	}
	return fmt.Sprintf("on a server: k3s kubectl%s describe %s %s", namespace, strings.ToLower(w.Kind), w.Name)
}

// wait is one wait for several objects.
type wait struct {
	cluster *Cluster
	start   time.Time
	// settled are objects that have no pods and are there: they need no second look.
	settled   map[awaited]bool
	deadlines deadlines
	patience  *patience
}

// newWait begins to wait now.
func (c *Cluster) newWait() *wait {
	return &wait{
		cluster: c, start: time.Now(), settled: map[awaited]bool{}, deadlines: deadlines{}, patience: newPatience(),
	}
}

// unfinished returns those that have failed first, then those that have a known problem.
func (w *wait) unfinished(ctx context.Context, objects []awaited) ([]waitingFor, error) {
	nodes, err := w.cluster.countedNodes(ctx)
	if err != nil {
		return nil, err
	}
	var failed, troubled, others []waitingFor
	for _, a := range objects {
		look := w.workload
		if !a.resource.Empty() {
			look = w.other
		}
		state, problem, err := look(ctx, a, nodes)
		switch {
		case apierrors.IsNotFound(err):
			others = append(others, waitingFor{Object: a.Object, state: "does not exist"})
		case err != nil:
			return nil, fmt.Errorf("%s: get %s: %w", w.cluster.name, a.Object, err)
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
func (w *wait) workload(ctx context.Context, a awaited, nodes counted) (state *waitingFor, problem bool, err error) {
	r, err := w.cluster.rollout(ctx, a.Object, nodes)
	if err != nil {
		return nil, false, err
	}
	exceeded := r.deployment != nil && w.deadlines.exceeded(r.deployment, time.Since(w.start))
	if r.Done {
		w.patience.over(a.Object, nil, time.Now())
		return nil, false, nil
	}
	state = &waitingFor{Object: a.Object, state: r.State}
	held := w.cluster.firstSetback(ctx, a.Namespace, r.selector)
	if held != nil {
		state.state, problem = state.state+", "+held.text, true
	}
	if w.patience.over(a.Object, held, time.Now()) {
		state.state += fmt.Sprintf(", for %v now", held.patience)
		state.failed = true
	}
	if exceeded {
		state.state += fmt.Sprintf(", and its progress deadline of %d s is exceeded", progressDeadline(r.deployment)/time.Second)
		state.failed = true
	}
	return state, problem, nil
}

// deadlines has the Deployments that were seen within their progress deadline.
//
// The condition that it is exceeded stays on a Deployment, also under a new template, until
// the controller sees progress. So one that has it from the beginning gets its deadline once
// more, and only then counts as failed.
type deadlines map[Object]bool

// exceeded says whether a Deployment has exceeded its progress deadline. waited is the time
// since the first look.
func (d deadlines) exceeded(deployment *appsv1.Deployment, waited time.Duration) bool {
	if deployment.Status.ObservedGeneration < deployment.Generation {
		return false // what it says is about an older template
	}
	o := Object{Deployment, deployment.Namespace, deployment.Name}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(deployment)
	if err != nil {
		return false // then only the time limit ends the wait
	}
	object := &unstructured.Unstructured{Object: fields}
	object.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(Deployment))
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
func (w *wait) other(ctx context.Context, a awaited, _ counted) (state *waitingFor, problem bool, err error) {
	if w.settled[a] {
		return nil, false, nil
	}
	object, err := w.cluster.dynamic.Resource(a.resource).Namespace(a.Namespace).Get(ctx, a.Name, metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	result, err := status.Compute(object)
	if err != nil {
		return nil, false, err
	}
	switch result.Status {
	case status.FailedStatus:
		return &waitingFor{a.Object, brief(result.Message), true}, true, nil
	case status.InProgressStatus, status.TerminatingStatus:
		if later, err := w.cluster.boundLater(ctx, object); err != nil || !later {
			return &waitingFor{Object: a.Object, state: brief(result.Message)}, false, err
		}
	}
	w.settled[a] = true
	return nil, false, nil
}

// boundLater says whether an object is a claim that gets its volume when a pod needs it.
// Then it is the pods that are waited for; of one that nobody uses there is nothing to wait
// for.
func (c *Cluster) boundLater(ctx context.Context, object *unstructured.Unstructured) (bool, error) {
	if object.GroupVersionKind().GroupKind() != corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim").GroupKind() || object.GetDeletionTimestamp() != nil {
		return false, nil
	}
	name, _, err := unstructured.NestedString(object.Object, "spec", "storageClassName")
	if err != nil || name == "" {
		return false, err
	}
	class, err := c.client.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("get StorageClass %s: %w", name, err)
	}
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer, nil
}
