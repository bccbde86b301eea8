// Package storage makes and changes PersistentVolumes, and the claims that have them.
//
// Contract: it asks for what it is told to, and waits for nothing. What is to be deleted and is not there is deleted.
package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/liteboxd/boxlift/install/kube"
)

// Volume returns a PersistentVolume, nil when there is none of the name.
func Volume(ctx context.Context, c *kube.Cluster, name string) (*corev1.PersistentVolume, error) {
	v, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: get PersistentVolume %s: %w", c.Name, name, err)
	}
	return v, nil
}

// Volumes returns the PersistentVolumes that a label selector selects ("" selects all), by name.
func Volumes(ctx context.Context, c *kube.Cluster, selector string) ([]corev1.PersistentVolume, error) {
	list, err := c.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("%s: list PersistentVolumes: %w", c.Name, err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.PersistentVolume) int {
		return strings.Compare(a.Name, b.Name)
	})
	return list.Items, nil
}

// CreateVolume makes a PersistentVolume. One of the name that is there already is an error.
func CreateVolume(ctx context.Context, c *kube.Cluster, v *corev1.PersistentVolume) error {
	_, err := c.Client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{FieldManager: kube.FieldManager})
	if err != nil {
		return fmt.Errorf("%s: make PersistentVolume %s: %w", c.Name, v.Name, err)
	}
	return nil
}

// ChangeVolume reads a PersistentVolume, changes it and writes it back, again when somebody else was faster.
func ChangeVolume(ctx context.Context, c *kube.Cluster, name string, change func(*corev1.PersistentVolume)) error {
	volumes := c.Client.CoreV1().PersistentVolumes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		v, err := volumes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(v)
		_, err = volumes.Update(ctx, v, metav1.UpdateOptions{FieldManager: kube.FieldManager})
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: change PersistentVolume %s: %w", c.Name, name, err)
	}
	return nil
}

// DeleteVolume deletes a PersistentVolume, not what is in it unless its reclaim policy says so. One that has gone is
// none to delete.
func DeleteVolume(ctx context.Context, c *kube.Cluster, name string) error {
	err := c.Client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: delete PersistentVolume %s: %w", c.Name, name, err)
	}
	return nil
}

// CreateClaim makes a PersistentVolumeClaim. One of the name that is there already is an error.
func CreateClaim(ctx context.Context, c *kube.Cluster, claim *corev1.PersistentVolumeClaim) error {
	_, err := c.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(ctx, claim,
		metav1.CreateOptions{FieldManager: kube.FieldManager})
	if err != nil {
		return fmt.Errorf("%s: make PersistentVolumeClaim %s/%s: %w", c.Name, claim.Namespace, claim.Name, err)
	}
	return nil
}

// DeleteClaim tells a PersistentVolumeClaim to go, which it does when no pod uses it. One that has gone is none to
// delete.
func DeleteClaim(ctx context.Context, c *kube.Cluster, namespace, name string) error {
	err := c.Client.CoreV1().PersistentVolumeClaims(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: delete PersistentVolumeClaim %s/%s: %w", c.Name, namespace, name, err)
	}
	return nil
}
