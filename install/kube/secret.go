package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/liteboxd/boxlift/internal/fault"
)

// ErrConflict is wrapped by errors that say that somebody else has changed an object since it
// was read.
var ErrConflict = fault.NewKind(fault.Host, "somebody else has changed it meanwhile")

// Secret returns a Secret's data, nil when there is no such Secret.
func (c *Cluster) Secret(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	s, err := c.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: get Secret %s/%s: %w", c.Name, namespace, name, err)
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
	options := metav1.ApplyOptions{FieldManager: FieldManager + "-secret", Force: true}
	_, err := c.Client.CoreV1().Secrets(namespace).Apply(ctx, apply, options)
	if err != nil {
		return fmt.Errorf("%s: put Secret %s/%s: %w", c.Name, namespace, name, err)
	}
	return nil
}

// VersionedSecret returns a Secret's data and the version of it that
// [Cluster.ReplaceSecret] takes. When there is no such Secret, data is nil and version "".
func (c *Cluster) VersionedSecret(
	ctx context.Context, namespace, name string,
) (data map[string][]byte, version string, err error) {
	s, err := c.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, "", nil
	case err != nil:
		return nil, "", fmt.Errorf("%s: get Secret %s/%s: %w", c.Name, namespace, name, err)
	case s.Data == nil:
		s.Data = map[string][]byte{}
	}
	return s.Data, s.ResourceVersion, nil
}

// ReplaceSecret gives a Secret these data and no others, if it is still of the version, and
// makes it of the type if version is "". It returns the new version. The error wraps
// [ErrConflict] when the Secret was changed, made or deleted meanwhile. The namespace must
// exist.
func (c *Cluster) ReplaceSecret(
	ctx context.Context, namespace, name string, kind corev1.SecretType, data map[string][]byte, version string,
) (newVersion string, err error) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace, ResourceVersion: version,
			Labels: map[string]string{ManagedByLabel: FieldManager},
		},
		Type: kind, Data: data,
	}
	secrets := c.Client.CoreV1().Secrets(namespace)
	if version == "" {
		secret, err = secrets.Create(ctx, secret, metav1.CreateOptions{FieldManager: FieldManager})
	} else {
		secret, err = secrets.Update(ctx, secret, metav1.UpdateOptions{FieldManager: FieldManager})
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && version != "":
		return "", fmt.Errorf("%s: replace Secret %s/%s: %w: %w", c.Name, namespace, name, ErrConflict, err)
	case err != nil:
		return "", fmt.Errorf("%s: replace Secret %s/%s: %w", c.Name, namespace, name, err)
	}
	return secret.ResourceVersion, nil
}
