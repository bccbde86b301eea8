// Package lint finds what is wrong with a set of Kubernetes objects before a cluster sees
// them: mistakes that the API server would refuse, and those that it accepts and that show
// much later, such as a node that cannot be drained or a session that is cut off.
//
// It looks at nothing but the objects, and takes them for all there are: what they refer to is
// among them, is one of those that every cluster has, or is named in Options.
package lint

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/liteboxd/boxlift/manifests"
)

// Severity says what a finding means for an installation.
type Severity string

// Severities.
const (
	Error   Severity = "error"   // it will be refused, will not work, or will not last
	Warning Severity = "warning" // it works, and is worth a thought
)

// Finding is one thing that is wrong.
type Finding struct {
	Rule     string   `json:"rule"` // which of docs/manifests.md's rules, such as "pull-policy"
	Severity Severity `json:"severity"`
	Object   string   `json:"object"` // "Deployment liteboxd-system/liteboxd-api"
	Path     string   `json:"path"`   // "spec.template.spec.containers[api].image"
	Problem  string   `json:"problem"`
	Mend     string   `json:"mend"` // what to write instead
}

// String returns the finding in one line.
func (f Finding) String() string {
	return fmt.Sprintf("%s: %s: %s; %s", f.Object, f.Path, f.Problem, f.Mend)
}

// Options is what the objects alone do not tell.
type Options struct {
	// Known are objects that exist without being among those that are checked, in the form
	// "Secret liteboxd-system/liteboxd-auth", or "Namespace monitoring" outside namespaces.
	Known []string
}

// Check returns what is wrong, ordered by object, path and rule.
func Check(objects []*unstructured.Unstructured, o Options) []Finding {
	c := &check{exists: map[string]bool{}}
	for _, name := range o.Known {
		c.exists[name] = true
	}
	for _, object := range objects {
		c.exists[manifests.Name(object)] = true
	}
	for _, object := range objects {
		c.decode(object)
	}
	for _, item := range c.items {
		c.object = manifests.Name(item.raw)
		c.namespaces(item)
		c.disruptionBudget(item)
		c.networkPolicy(item)
		c.roles(item)
		c.references(item)
		if item.pods != nil {
			c.workload(item)
		}
	}
	slices.SortStableFunc(c.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Rule, b.Rule))
	})
	return c.findings
}

type check struct {
	items    []*item
	exists   map[string]bool // by manifests.Name
	object   string          // that is being looked at
	findings []Finding
}

// item is an object as Kubernetes' own types know it.
type item struct {
	raw      *unstructured.Unstructured
	typed    runtime.Object // nil for kinds that are not Kubernetes' own
	pods     *corev1.PodTemplateSpec
	at       string // path of pods' spec in the object
	replicas int32  // of pods; 1 where the number depends on the cluster
}

func (c *check) found(rule string, severity Severity, path, problem, mend string) {
	c.findings = append(c.findings, Finding{rule, severity, c.object, path, problem, mend})
}

// decode finds fields that do not exist and values of the wrong type, which server-side apply
// would refuse.
func (c *check) decode(object *unstructured.Unstructured) {
	c.object = manifests.Name(object)
	it := &item{raw: object}
	c.items = append(c.items, it)
	typed, err := scheme.Scheme.New(object.GroupVersionKind())
	if err != nil {
		return // a custom resource: only the cluster knows its schema
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, typed,
		true); err != nil {
		c.found("schema", Error, "", "Kubernetes does not take it: "+oneLine(err), "see kubectl explain "+
			strings.ToLower(object.GetKind())+" for the fields that there are")
		if !runtime.IsStrictDecodingError(err) {
			return
		}
	}
	it.typed = typed
	it.findPods()
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func (it *item) findPods() {
	count := func(replicas *int32) int32 {
		if replicas == nil {
			return 1
		}
		return *replicas
	}
	it.at, it.replicas = "spec.template.spec", 1
	switch o := it.typed.(type) {
	case *corev1.Pod:
		it.pods, it.at = &corev1.PodTemplateSpec{ObjectMeta: o.ObjectMeta, Spec: o.Spec}, "spec"
	case *appsv1.Deployment:
		it.pods, it.replicas = &o.Spec.Template, count(o.Spec.Replicas)
	case *appsv1.StatefulSet:
		it.pods, it.replicas = &o.Spec.Template, count(o.Spec.Replicas)
	case *appsv1.ReplicaSet:
		it.pods, it.replicas = &o.Spec.Template, count(o.Spec.Replicas)
	case *appsv1.DaemonSet:
		it.pods = &o.Spec.Template
	case *batchv1.Job:
		it.pods = &o.Spec.Template
	case *batchv1.CronJob:
		it.pods, it.at = &o.Spec.JobTemplate.Spec.Template, "spec.jobTemplate.spec.template.spec"
	}
}

func (it *item) namespace() string { return it.raw.GetNamespace() }

// selected returns what has pods with certain labels.
func (c *check) selected(namespace string, selector *metav1.LabelSelector) []*item {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.items), func(it *item) bool {
		return it.pods == nil || it.namespace() != namespace || !s.Matches(labelSet(it.pods.Labels))
	})
}
