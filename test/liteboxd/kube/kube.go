// Package kube is how the stand-ins for LiteBoxd's programs use the cluster: with their
// service accounts' rights, all of which they ask for when they start.
package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Connect gives the configuration for the cluster that a kubeconfig names, or with an empty
// name for the pod's own.
func Connect(kubeconfig string) (*rest.Config, error) {
	find := rest.InClusterConfig
	if kubeconfig != "" {
		find = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", kubeconfig) }
	}
	config, err := find()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	config.QPS, config.Burst = 50, 100
	return config, nil
}

// EnsureNamespace makes a namespace that is not there. It needs the right to get it even
// where it is.
func EnsureNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("ensure namespace %s: %w", name, err)
	}
	return nil
}

// Rights are verbs on a resource, in one namespace or, where that is empty, in the cluster.
type Rights struct {
	Namespace string
	Resource  string // "pods", "pods/exec", "deployments.apps"
	Verbs     string // with spaces between them
}

// Require asks the API server for every right, and fails with those that are missing.
func Require(ctx context.Context, client kubernetes.Interface, rights []Rights) error {
	var missing []error
	for _, r := range rights {
		resource, group, _ := strings.Cut(r.Resource, ".")
		resource, sub, _ := strings.Cut(resource, "/")
		for verb := range strings.FieldsSeq(r.Verbs) {
			review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: r.Namespace, Verb: verb, Group: group, Resource: resource, Subresource: sub,
				}},
			}, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("ask for the right to %s %s: %w", verb, r.Resource, err)
			}
			if !review.Status.Allowed {
				missing = append(missing, fmt.Errorf("the service account must not %s %s %s", verb, r.Resource, r.place()))
			}
		}
	}
	return errors.Join(missing...)
}

func (r Rights) place() string {
	if r.Namespace == "" {
		return "in the cluster"
	}
	return "in namespace " + r.Namespace
}
