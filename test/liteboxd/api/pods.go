package api

import (
	"context"
	"fmt"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/test/liteboxd/store"
)

const (
	internetLabel = "liteboxd.io/internet-access"
	// PodPrefix comes before a sandbox's identifier in the name of its pod.
	PodPrefix = "sandbox-"
	container = "main"
)

// pod is a sandbox's pod: a bare one, which nothing makes anew.
func (a *api) pod(b store.Sandbox, spec store.TemplateSpec, token string) (*corev1.Pod, error) {
	limits := corev1.ResourceList{}
	for name, value := range map[corev1.ResourceName]string{corev1.ResourceCPU: spec.CPU, corev1.ResourceMemory: spec.Memory} {
		if value == "" {
			value = map[corev1.ResourceName]string{corev1.ResourceCPU: "500m", corev1.ResourceMemory: "512Mi"}[name]
		}
		quantity, err := resource.ParseQuantity(value)
		if err != nil {
			return nil, fmt.Errorf("read the template's %s %q: %w", name, value, err)
		}
		limits[name] = quantity
	}
	// The same for all: a template whose limits are below them is one whose pods the API server refuses.
	requests := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi"),
	}
	labels := map[string]string{"app": "liteboxd", "sandbox-id": b.ID, "liteboxd.io/managed-by": "liteboxd-server"}
	if spec.InternetAccess && len(spec.AllowedDomains) == 0 { // with domains, the controller's policy lets it out
		labels[internetLabel] = "true"
	}
	var tolerations []corev1.Toleration
	for _, pressure := range []string{"disk", "memory", "pid"} {
		tolerations = append(tolerations, corev1.Toleration{
			Key: "node.kubernetes.io/" + pressure + "-pressure", Operator: corev1.TolerationOpExists, // whatever the effect
		})
	}
	no := false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: PodPrefix + b.ID, Labels: labels,
			Annotations: map[string]string{
				"liteboxd/ttl":             strconv.Itoa(int(b.ExpiresAt.Sub(b.CreatedAt).Seconds())),
				"liteboxd/created-at":      b.CreatedAt.UTC().Format(time.RFC3339),
				"liteboxd.io/access-token": token,
			},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: &no,
			SecurityContext:              &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Tolerations:                  tolerations,
			Containers: []corev1.Container{{
				Name: container, Image: b.Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: spec.Command,
				Resources:       corev1.ResourceRequirements{Limits: limits, Requests: requests},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no},
				VolumeMounts:    []corev1.VolumeMount{{Name: "workspace", MountPath: "/workspace"}},
			}},
			Volumes: []corev1.Volume{{Name: "workspace", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}, nil
}

// deleteSandbox deletes a sandbox's pod and marks its row.
func (a *api) deleteSandbox(ctx context.Context, b store.Sandbox, reason string) error {
	err := a.client.CoreV1().Pods(a.SandboxNamespace).Delete(ctx, PodPrefix+b.ID, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the pod of sandbox %s: %w", b.ID, err)
	}
	return a.store.SetSandboxStatus(ctx, b, store.Deleted, reason)
}

func prepullName(p store.Prepull) string { return "prepull-" + p.ID }

// startPrepull makes the job that has an image pulled.
func (a *api) startPrepull(ctx context.Context, p store.Prepull) error {
	nodes, err := a.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	ready := max(readyNodes(nodes.Items), 1)
	none, keep := int32(0), int32(300)
	labels := map[string]string{"app": "liteboxd-prepull", "prepull-image-hash": p.ImageHash}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: prepullName(p), Labels: labels},
		Spec: batchv1.JobSpec{
			Parallelism: &ready, Completions: &ready, BackoffLimit: &none, TTLSecondsAfterFinished: &keep,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever,
					Containers: []corev1.Container{{
						Name: "prepull", Image: p.Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sh", "-c", "true"},
					}},
				},
			},
		},
	}
	if _, err = a.client.BatchV1().Jobs(a.SandboxNamespace).Create(ctx, job, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make a job that pulls %s: %w", p.Image, err)
	}
	return nil
}

func readyNodes(nodes []corev1.Node) (n int32) {
	for _, node := range nodes {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				n++
			}
		}
	}
	return n
}
