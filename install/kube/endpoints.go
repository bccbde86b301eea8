package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

// keptAnnotation names, on a Service, the nodes whose pods stay among its endpoints whether
// they are ready or not. Without it publishNotReadyAddresses is somebody else's.
const keptAnnotation = "boxlift.dev/keeps-endpoints-on"

// KeepEndpoints makes the pods of a node stay among the endpoints of their Services while its
// kubelet, which is started again, calls them unready. Services of which a pod is unready now,
// or ending, are left alone: they would send requests where nobody answers.
func (c *Cluster) KeepEndpoints(ctx context.Context, node string) error {
	list, err := c.Client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("%s: list endpoints: %w", c.Name, err)
	}
	var errs []error
	for _, name := range servedOn(list.Items, node) {
		errs = append(errs, changeKept(ctx, c, name, func(s *corev1.Service, kept []string) []string {
			if len(s.Spec.Selector) == 0 || s.Spec.PublishNotReadyAddresses && len(kept) == 0 ||
				slices.Contains(kept, node) {
				return kept
			}
			return append(kept, node)
		}))
	}
	return errors.Join(errs...)
}

// LetEndpoints undoes what [Cluster.KeepEndpoints] did for a node, or for all when it is "".
func (c *Cluster) LetEndpoints(ctx context.Context, node string) error {
	list, err := c.Client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("%s: list Services: %w", c.Name, err)
	}
	var errs []error
	for i := range list.Items {
		s := &list.Items[i]
		if s.Annotations[keptAnnotation] == "" {
			continue
		}
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		errs = append(errs, changeKept(ctx, c, name, func(_ *corev1.Service, kept []string) []string {
			return slices.DeleteFunc(kept, func(one string) bool { return node == "" || one == node })
		}))
	}
	return errors.Join(errs...)
}

// servedOn are the Services that have endpoints on a node, all of whose endpoints are ready.
func servedOn(list []discoveryv1.EndpointSlice, node string) []types.NamespacedName {
	var served []types.NamespacedName
	unready := map[types.NamespacedName]bool{}
	for _, slice := range list {
		service := slice.Labels[discoveryv1.LabelServiceName]
		if service == "" {
			continue
		}
		name := types.NamespacedName{Namespace: slice.Namespace, Name: service}
		for _, e := range slice.Endpoints {
			isSet := func(condition *bool, otherwise bool) bool {
				if condition == nil {
					return otherwise
				}
				return *condition
			}
			if !isSet(e.Conditions.Ready, true) || isSet(e.Conditions.Terminating, false) {
				unready[name] = true
			}
			if e.NodeName != nil && *e.NodeName == node && !slices.Contains(served, name) {
				served = append(served, name)
			}
		}
	}
	return slices.DeleteFunc(served, func(name types.NamespacedName) bool { return unready[name] })
}

// changeKept changes the nodes whose pods a Service keeps. One that has gone is left alone.
func changeKept(
	ctx context.Context, c *Cluster, name types.NamespacedName, change func(s *corev1.Service, kept []string) []string,
) error {
	services := c.Client.CoreV1().Services(name.Namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		s, err := services.Get(ctx, name.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		was := s.Annotations[keptAnnotation]
		kept := strings.Join(change(s, strings.FieldsFunc(was, func(r rune) bool { return r == ',' })), ",")
		if kept == was {
			return nil
		}
		s.Spec.PublishNotReadyAddresses = kept != ""
		if kept == "" {
			delete(s.Annotations, keptAnnotation)
		} else {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, keptAnnotation, kept)
		}
		_, err = services.Update(ctx, s, metav1.UpdateOptions{FieldManager: FieldManager})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: change which endpoints the Service %s has: %w", c.Name, name, err)
	}
	return nil
}
