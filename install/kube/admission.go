package kube

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podSecurity is in what an API server says when Pod Security refuses a pod (k8s.io/pod-security-admission).
const podSecurity = "violates PodSecurity "

// AdmitsPrivileged reports whether Pod Security lets a privileged pod into a namespace, and why not. Nothing is made:
// the API server only says what it would do. A pod that is refused for another reason, such as a quota or missing
// rights, is an error: it tells nothing of Pod Security.
func (c *Cluster) AdmitsPrivileged(ctx context.Context, namespace string) (admitted bool, why string, err error) {
	yes := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "boxlift-admission-", Namespace: namespace},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "boxlift.invalid/none", ImagePullPolicy: corev1.PullNever,
			SecurityContext: &corev1.SecurityContext{Privileged: &yes},
		}}},
	}
	options := metav1.CreateOptions{FieldManager: FieldManager, DryRun: []string{metav1.DryRunAll}}
	_, err = c.Client.CoreV1().Pods(namespace).Create(ctx, pod, options)
	switch {
	case err == nil:
		return true, "", nil
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), podSecurity):
		return false, Brief(err.Error()), nil
	}
	return false, "", fmt.Errorf("%s: ask whether namespace %s takes a privileged pod: %w", c.Name, namespace, err)
}
