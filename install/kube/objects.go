package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Secret returns a Secret's data, nil when there is no such Secret.
func (c *Cluster) Secret(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	s, err := c.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: get Secret %s/%s: %w", c.name, namespace, name, err)
	case s.Data == nil:
		return map[string][]byte{}, nil
	}
	return s.Data, nil
}

// PutSecret gives a Secret these keys, and makes it when it is missing, of type Opaque. Keys
// that an earlier call has put there and that data no longer has go; those of others stay.
// The namespace must exist.
func (c *Cluster) PutSecret(ctx context.Context, namespace, name string, data map[string][]byte) error {
	apply := corev1ac.Secret(name, namespace).WithData(data).WithImmutable(false)
	// Not the name under which releases are applied: what two of one name apply to an object
	// replaces one another.
	_, err := c.client.CoreV1().Secrets(namespace).Apply(ctx, apply, metav1.ApplyOptions{FieldManager: fieldManager + "-secret", Force: true})
	if err != nil {
		return fmt.Errorf("%s: put Secret %s/%s: %w", c.name, namespace, name, err)
	}
	return nil
}

// EnsureNamespace makes a namespace when it is missing, and marks it as belonging to a
// release, so that the release may contain it: Helm touches nothing that bears no such marks.
// A namespace that somebody else has made is marked as well, and otherwise stays as it is.
// When it belongs to another release, the error says so.
func (c *Cluster) EnsureNamespace(ctx context.Context, name, releaseName, releaseNamespace string) error {
	o := owner{releaseNamespace, releaseName}
	if err := c.ensureNamespace(ctx, name, &o); err != nil {
		return err
	}
	n, err := c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("%s: get namespace %s: %w", c.name, name, err)
	}
	other := owner{n.Annotations[namespaceAnnotation], n.Annotations[releaseAnnotation]}
	switch {
	case o.owns(n) && n.Labels[managedByLabel] == managedByHelm:
		return nil
	case other != owner{} && other != o:
		return c.fail(fmt.Errorf("namespace %s belongs to the Helm release %s/%s, not to %s/%s", name, printable.Line(other.namespace), printable.Line(other.name), o.namespace, o.name),
			"uninstall that release, or name another namespace")
	}
	marks := &metav1.ObjectMeta{}
	o.mark(marks)
	apply := corev1ac.Namespace(name).WithUID(n.UID).WithLabels(marks.Labels).WithAnnotations(marks.Annotations)
	if _, err := c.client.CoreV1().Namespaces().Apply(ctx, apply, metav1.ApplyOptions{FieldManager: fieldManager + "-namespace", Force: true}); err != nil {
		return fmt.Errorf("%s: mark namespace %s as one of release %s/%s: %w", c.name, name, o.namespace, o.name, err)
	}
	return nil
}

// ensureNamespace makes a namespace when it is missing, as one of a release unless that is
// nil.
func (c *Cluster) ensureNamespace(ctx context.Context, name string, release *owner) error {
	_, err := c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if release != nil {
			release.mark(namespace)
		}
		_, err = c.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{FieldManager: fieldManager})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("%s: make namespace %s: %w", c.name, name, err)
	}
	return nil
}
