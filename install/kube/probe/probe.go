// Package probe runs pods that find something out and go.
//
// Contract: a pod of its own is all that it makes, and nothing of that is left, whatever becomes of the context; what
// somebody who was killed has left is cleared away by the next one in the same namespace. Images are never pulled.
package probe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/explain"
	"github.com/liteboxd/boxlift/internal/fault"
)

// Label is on the pods of [Pod], so that others can tell them from their own.
const Label = "boxlift.dev/probe"

// Bounds of a probe pod.
const (
	// life is after how long the kubelet ends one that nobody has deleted.
	life = 5 * time.Minute
	// left is the age at which one has been left behind by somebody who was killed.
	left = 2 * life
	// timeout bounds the time until one runs, and in Run until it has ended.
	timeout = 2 * time.Minute
	// cleanup bounds its deletion.
	cleanup = 30 * time.Second
	// pause lies between two looks at one, which lives a few seconds.
	pause = 250 * time.Millisecond
	// maxLog is as much as is read of what one has printed, in bytes.
	maxLog = 64 << 10
	// programPath is where a program of the node is in the pod.
	programPath = "/boxlift-probe"
)

// Pod is a pod that finds something out and goes. It runs once, with no key to the
// cluster, and no taint keeps it from its node.
type Pod struct {
	Namespace string
	Labels    map[string]string
	Node      string // the name of the node that it runs on
	// Image has to be on the node: it is never pulled.
	Image string
	// Program is a file of the node that is run instead of the image's own program, as
	// nobody and without privileges; "" runs the image's. The namespace must let pods have
	// volumes of the host's, which the Pod Security level baseline does not.
	Program string
	Args    []string
	// Before are the arguments of runs before the one that counts, one after the other. What
	// is enforced on a pod from outside may be so a moment after it has started only.
	Before [][]string
}

// Run runs a pod to its end, deletes it, and returns what it has printed, at most
// 64 KiB. It fails when the program does, after 2 min, and when the pod cannot be started.
func Run(ctx context.Context, c *kube.Cluster, p Pod) ([]byte, error) {
	var log []byte
	ended := func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded }
	err := withPod(ctx, c, p, ended, func(ctx context.Context, pod *corev1.Pod) (err error) {
		log, err = podLog(ctx, c, pod)
		return err
	})
	return log, err
}

// With runs use while a pod runs, with the pod's address, and deletes the pod.
func With(ctx context.Context, c *kube.Cluster, p Pod, use func(ctx context.Context, address string) error) error {
	running := func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" }
	return withPod(ctx, c, p, running, func(ctx context.Context, pod *corev1.Pod) error {
		return use(ctx, pod.Status.PodIP)
	})
}

func withPod(
	ctx context.Context, c *kube.Cluster, p Pod,
	far func(*corev1.Pod) bool, use func(context.Context, *corev1.Pod) error,
) (err error) {
	// The name is chosen here, so that the pod can be deleted also when the answer of the
	// API that made it is lost.
	wanted := p.pod("boxlift-probe-" + strings.ToLower(rand.Text()[:8]))
	defer func() {
		if deleted := deleteProbe(ctx, c, wanted.Namespace, wanted.Name); deleted != nil {
			err = errors.Join(err, deleted)
		}
	}()
	options := metav1.CreateOptions{FieldManager: kube.FieldManager}
	made, err := c.Client.CoreV1().Pods(p.Namespace).Create(ctx, wanted, options)
	if err != nil {
		return fmt.Errorf("%s: make a pod in namespace %s: %w", c.Name, p.Namespace, err)
	}
	deleteLeft(ctx, c, made)
	pod, err := await(ctx, c, made, far)
	if err != nil {
		return err
	}
	return use(ctx, pod)
}

// await waits until a pod is as far as asked for.
func await(ctx context.Context, c *kube.Cluster, pod *corev1.Pod, far func(*corev1.Pod) bool) (*corev1.Pod, error) {
	name, start := "pod "+pod.Namespace+"/"+pod.Name, time.Now()
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var failure error
	if kube.Poll(limited, pause, func() bool {
		now, err := c.Client.CoreV1().Pods(pod.Namespace).Get(limited, pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && (now.UID != pod.UID || now.DeletionTimestamp != nil):
			failure = c.Fail(fmt.Errorf("%s was deleted by somebody else before it had ended", name), "")
			return true
		case err == nil:
			pod = now
		case limited.Err() == nil:
			failure = fmt.Errorf("%s: get %s: %w", c.Name, name, err)
			return true
		}
		if err == nil && far(pod) {
			return true
		}
		text := hopeless(pod)
		if text == "" {
			return false
		}
		if log, err := podLog(limited, c, pod); err == nil && len(log) > 0 {
			text += "; it printed: " + string(log)
		}
		failure = c.Fail(fmt.Errorf("%s on node %s: %s", name, pod.Spec.NodeName, kube.Brief(text)), "")
		return true
	}) {
		return pod, failure
	}
	text := fmt.Sprintf("%s is %s after %s", name, pod.Status.Phase, kube.Since(start))
	explanation := explain.After(ctx, c, kube.Object{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name})
	return nil, fault.WithDetail(c.Fail(kube.TimeUp(limited, text), ""), explanation)
}

// hopeless says why a pod will not get any further, "" when it may.
func hopeless(p *corev1.Pod) string {
	for _, t := range explain.Troubles(p) {
		waiting := t.Container.State.Waiting
		if t.Crashes || waiting != nil && slices.Contains([]string{
			"ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
		}, waiting.Reason) {
			return t.Text
		}
	}
	switch p.Status.Phase {
	case corev1.PodFailed:
		return "failed: " + p.Status.Reason + ": " + p.Status.Message
	case corev1.PodSucceeded:
		return "its program has ended"
	}
	return ""
}

func podLog(ctx context.Context, c *kube.Cluster, p *corev1.Pod) ([]byte, error) {
	most := int64(maxLog)
	log, err := c.Client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
		Container: p.Spec.Containers[0].Name, LimitBytes: &most,
	}).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: read the log of pod %s/%s: %w", c.Name, p.Namespace, p.Name, err)
	}
	return log, nil
}

// deleteProbe deletes a pod, whatever has become of ctx, and waits until it has gone.
func deleteProbe(ctx context.Context, c *kube.Cluster, namespace, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	var last error
	if kube.Poll(ctx, pause, func() bool {
		// 0 would make the cluster forget a pod that still runs.
		grace := int64(1)
		last = c.Client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
		return apierrors.IsNotFound(last)
	}) {
		return nil
	}
	if last == nil {
		last = errors.New("it is still there")
	}
	return c.Fail(fmt.Errorf("delete pod %s/%s: %w", namespace, name, last),
		fmt.Sprintf("on a server: k3s kubectl -n %s delete pod %s", namespace, name))
}

// deleteLeft deletes pods that others who were killed have left in a namespace. Their age
// is by the cluster's clock alone: own is a pod that it has just made.
func deleteLeft(ctx context.Context, c *kube.Cluster, own *corev1.Pod) {
	list, err := c.Client.CoreV1().Pods(own.Namespace).List(ctx, metav1.ListOptions{LabelSelector: Label})
	if err != nil {
		return // they do no harm, and the next one tries again
	}
	for i := range list.Items {
		if p := &list.Items[i]; own.CreationTimestamp.Sub(p.CreationTimestamp.Time) > left {
			_ = c.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &p.UID},
			})
		}
	}
}

// pod is what the cluster is asked for.
func (p Pod) pod(name string) *corev1.Pod {
	no, deadline, grace := false, int64(life.Seconds()), int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name, Labels: map[string]string{Label: "true"}},
		Spec: corev1.PodSpec{
			RestartPolicy:         corev1.RestartPolicyNever,
			ActiveDeadlineSeconds: &deadline, TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			// By the scheduler, which says why when it cannot be.
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
						{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{p.Node}},
					}}},
				},
			}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	for key, value := range p.Labels {
		pod.Labels[key] = value
	}
	container := corev1.Container{
		Name: "probe", Image: p.Image, ImagePullPolicy: corev1.PullNever, Args: p.Args,
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
			},
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
		},
	}
	if p.Program != "" {
		p.bringProgram(&pod.Spec, &container)
	}
	for i, args := range p.Before {
		before := container
		before.Name, before.Args = fmt.Sprintf("before-%d", i), args
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, before)
	}
	pod.Spec.Containers = []corev1.Container{container}
	return pod
}

// bringProgram lets a container run a program of its node.
func (p Pod) bringProgram(spec *corev1.PodSpec, container *corev1.Container) {
	const volume = "program"
	file, no, nobody := corev1.HostPathFile, false, int64(65534)
	spec.Volumes = []corev1.Volume{{Name: volume, VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: p.Program, Type: &file},
	}}}
	container.Command = []string{programPath}
	container.VolumeMounts = []corev1.VolumeMount{{Name: volume, MountPath: programPath, ReadOnly: true}}
	container.SecurityContext = &corev1.SecurityContext{
		RunAsUser: &nobody, RunAsGroup: &nobody, AllowPrivilegeEscalation: &no,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		// Other types may not run programs of the host where SELinux is enforced.
		SELinuxOptions: &corev1.SELinuxOptions{Type: "spc_t"},
	}
}
