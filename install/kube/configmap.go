package kube

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
)

// configMapManager is the name under which keys of ConfigMaps are applied.
const configMapManager = FieldManager + "-configmap"

// ConfigMap returns a ConfigMap's data, nil when there is no such ConfigMap.
func (c *Cluster) ConfigMap(ctx context.Context, namespace, name string) (map[string]string, error) {
	m, err := c.Client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: get ConfigMap %s/%s: %w", c.Name, namespace, name, err)
	case m.Data == nil:
		return map[string]string{}, nil
	}
	return m.Data, nil
}

// PutConfigMap gives a ConfigMap these keys, and makes it when it is missing. Keys that an earlier call has put there
// and that data no longer has go; those of others stay. The namespace must exist.
func (c *Cluster) PutConfigMap(ctx context.Context, namespace, name string, data map[string]string) error {
	apply := corev1ac.ConfigMap(name, namespace).WithData(data)
	options := metav1.ApplyOptions{FieldManager: configMapManager, Force: true}
	if _, err := c.Client.CoreV1().ConfigMaps(namespace).Apply(ctx, apply, options); err != nil {
		return fmt.Errorf("%s: put ConfigMap %s/%s: %w", c.Name, namespace, name, err)
	}
	return nil
}

// RemoveFromConfigMap takes a key away that [Cluster.PutConfigMap] has put into a ConfigMap, and the ConfigMap itself
// where it has no other and nobody else has written anything of it. The error wraps [ErrConflict] when somebody does
// meanwhile.
func (c *Cluster) RemoveFromConfigMap(ctx context.Context, namespace, name, key string) error {
	configMaps := c.Client.CoreV1().ConfigMaps(namespace)
	m, err := configMaps.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		delete(m.Data, key)
		others := len(m.Data) > 0 || len(m.BinaryData) > 0
		for _, entry := range m.ManagedFields {
			others = others || entry.Manager != configMapManager
		}
		if others {
			_, err = configMaps.Apply(ctx, corev1ac.ConfigMap(name, namespace), metav1.ApplyOptions{
				FieldManager: configMapManager, Force: true,
			})
		} else {
			err = configMaps.Delete(ctx, name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion},
			})
		}
	}
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		err = fmt.Errorf("%w: %w", ErrConflict, err)
	}
	return fmt.Errorf("%s: take %s out of ConfigMap %s/%s: %w", c.Name, key, namespace, name, err)
}
