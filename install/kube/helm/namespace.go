package helm

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/printable"
)

// EnsureNamespace makes a namespace when it is missing, and marks it as belonging to a
// release, so that the release may contain it: Helm touches nothing that bears no such marks.
// A namespace that somebody else has made is marked as well, and otherwise stays as it is.
// When it belongs to another release, the error says so.
func EnsureNamespace(ctx context.Context, c *kube.Cluster, name, releaseName, releaseNamespace string) error {
	o := kube.ReleaseName{Namespace: releaseNamespace, Name: releaseName}
	if err := makeNamespace(ctx, c, name, &o); err != nil {
		return err
	}
	n, err := c.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("%s: get namespace %s: %w", c.Name, name, err)
	}
	other := kube.ReleaseName{
		Namespace: n.Annotations[kube.NamespaceAnnotation], Name: n.Annotations[kube.ReleaseAnnotation],
	}
	switch {
	case o.Owns(n) && n.Labels[kube.ManagedByLabel] == kube.ManagedByHelm:
		return nil
	case other != kube.ReleaseName{} && other != o:
		return c.Fail(fmt.Errorf("namespace %s belongs to the Helm release %s/%s, not to %s/%s",
			name, printable.Line(other.Namespace), printable.Line(other.Name), o.Namespace, o.Name),
			"uninstall that release, or name another namespace")
	}
	marks := &metav1.ObjectMeta{}
	o.Mark(marks)
	apply := corev1ac.Namespace(name).WithUID(n.UID).WithLabels(marks.Labels).WithAnnotations(marks.Annotations)
	options := metav1.ApplyOptions{FieldManager: kube.FieldManager + "-namespace", Force: true}
	if _, err := c.Client.CoreV1().Namespaces().Apply(ctx, apply, options); err != nil {
		return fmt.Errorf("%s: mark namespace %s as one of release %s/%s: %w", c.Name, name, o.Namespace, o.Name, err)
	}
	return nil
}

// makeNamespace makes a namespace when it is missing, as one of a release unless that is
// nil.
func makeNamespace(ctx context.Context, c *kube.Cluster, name string, release *kube.ReleaseName) error {
	_, err := c.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if release != nil {
			release.Mark(namespace)
		}
		options := metav1.CreateOptions{FieldManager: kube.FieldManager}
		_, err = c.Client.CoreV1().Namespaces().Create(ctx, namespace, options)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("%s: make namespace %s: %w", c.Name, name, err)
	}
	return nil
}
