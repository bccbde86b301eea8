package kube

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
)

// ProbeLabel is on the pods of [ProbePod], so that others can tell them from their own.
const ProbeLabel = "boxlift.dev/probe"

// Bounds of a probe pod.
const (
	// probeLife is after how long the kubelet ends one that nobody has deleted.
	probeLife = 5 * time.Minute
	// probeLeft is the age at which one has been left behind by somebody who was killed.
	probeLeft = 2 * probeLife
	// probeTimeout bounds the time until one runs, and in RunPod until it has ended.
	probeTimeout = 2 * time.Minute
	// probeCleanup bounds its deletion.
	probeCleanup = 30 * time.Second
	// maxProbeLog is as much as is read of what one has printed, in bytes.
	maxProbeLog = 64 << 10
	// programPath is where a program of the node is in the pod.
	programPath = "/boxlift-probe"
)

// ProbePod is a pod that finds something out and goes. It runs once, with no key to the
// cluster, and no taint keeps it from its node.
type ProbePod struct {
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

// RunPod runs a pod to its end, deletes it, and returns what it has printed, at most
// 64 KiB. It fails when the program does, after 2 min, and when the pod cannot be started.
func (c *Cluster) RunPod(ctx context.Context, p ProbePod) ([]byte, error) {
	var log []byte
	err := c.withPod(ctx, p, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded }, func(ctx context.Context, pod *corev1.Pod) (err error) {
		log, err = c.podLog(ctx, pod)
		return err
	})
	return log, err
}

// WithPod runs use while a pod runs, with the pod's address, and deletes the pod.
func (c *Cluster) WithPod(ctx context.Context, p ProbePod, use func(ctx context.Context, address string) error) error {
	running := func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" }
	return c.withPod(ctx, p, running, func(ctx context.Context, pod *corev1.Pod) error { return use(ctx, pod.Status.PodIP) })
}

func (c *Cluster) withPod(ctx context.Context, p ProbePod, far func(*corev1.Pod) bool, use func(context.Context, *corev1.Pod) error) (err error) {
	// The name is chosen here, so that the pod can be deleted also when the answer of the
	// API that made it is lost.
	wanted := p.pod("boxlift-probe-" + strings.ToLower(rand.Text()[:8]))
	defer func() {
		if deleted := c.deleteProbe(ctx, wanted.Namespace, wanted.Name); deleted != nil {
			err = errors.Join(err, deleted)
		}
	}()
	made, err := c.client.CoreV1().Pods(p.Namespace).Create(ctx, wanted, metav1.CreateOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("%s: make a pod in namespace %s: %w", c.name, p.Namespace, err)
	}
	c.deleteLeft(ctx, made)
	pod, err := c.awaitPod(ctx, made, far)
	if err != nil {
		return err
	}
	return use(ctx, pod)
}

// awaitPod waits until a pod is as far as asked for.
func (c *Cluster) awaitPod(ctx context.Context, pod *corev1.Pod, far func(*corev1.Pod) bool) (*corev1.Pod, error) {
	name, start := "pod "+pod.Namespace+"/"+pod.Name, time.Now()
	limited, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	for {
		now, err := c.client.CoreV1().Pods(pod.Namespace).Get(limited, pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && (now.UID != pod.UID || now.DeletionTimestamp != nil):
			return nil, c.fail(fmt.Errorf("%s was deleted by somebody else before it had ended", name), "")
		case err == nil:
			pod = now
		case limited.Err() == nil:
			return nil, fmt.Errorf("%s: get %s: %w", c.name, name, err)
		}
		if err == nil && far(pod) {
			return pod, nil
		}
		if text := hopeless(pod); text != "" {
			if log, err := c.podLog(limited, pod); err == nil && len(log) > 0 {
				text += "; it printed: " + string(log)
			}
			return nil, c.fail(fmt.Errorf("%s on node %s: %s", name, pod.Spec.NodeName, brief(text)), "")
		}
		if sleep(limited, pollInterval) != nil {
			return nil, &Error{
				err:         fmt.Errorf("%s: %w", c.name, timeUp(limited, fmt.Sprintf("%s is %s after %s", name, pod.Status.Phase, since(start)))),
				Explanation: c.explainAfter(ctx, Object{"Pod", pod.Namespace, pod.Name}),
			}
		}
	}
}

// hopeless says why a pod will not get any further, "" when it may.
func hopeless(p *corev1.Pod) string {
	for _, t := range troubles(p) {
		waiting := t.container.State.Waiting
		if t.crashes || waiting != nil && slices.Contains([]string{
			"ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
		}, waiting.Reason) {
			return t.text
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

func (c *Cluster) podLog(ctx context.Context, p *corev1.Pod) ([]byte, error) {
	most := int64(maxProbeLog)
	log, err := c.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
		Container: p.Spec.Containers[0].Name, LimitBytes: &most,
	}).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: read the log of pod %s/%s: %w", c.name, p.Namespace, p.Name, err)
	}
	return log, nil
}

// deleteProbe deletes a pod, whatever has become of ctx, and waits until it has gone.
func (c *Cluster) deleteProbe(ctx context.Context, namespace, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeCleanup)
	defer cancel()
	pods := c.client.CoreV1().Pods(namespace)
	var last error
	for {
		// 0 would make the cluster forget a pod that still runs.
		grace := int64(1)
		if last = pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); apierrors.IsNotFound(last) {
			return nil
		}
		if sleep(ctx, pollInterval) != nil {
			break
		}
	}
	if last == nil {
		last = errors.New("it is still there")
	}
	return c.fail(fmt.Errorf("delete pod %s/%s: %w", namespace, name, last), fmt.Sprintf("on a server: k3s kubectl -n %s delete pod %s", namespace, name))
}

// deleteLeft deletes pods that others who were killed have left in a namespace. Their age
// is by the cluster's clock alone: own is a pod that it has just made.
func (c *Cluster) deleteLeft(ctx context.Context, own *corev1.Pod) {
	list, err := c.client.CoreV1().Pods(own.Namespace).List(ctx, metav1.ListOptions{LabelSelector: ProbeLabel})
	if err != nil {
		return // they do no harm, and the next one tries again
	}
	for i := range list.Items {
		if p := &list.Items[i]; own.CreationTimestamp.Sub(p.CreationTimestamp.Time) > probeLeft {
			_ = c.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
		}
	}
}

// pod is what the cluster is asked for.
func (p ProbePod) pod(name string) *corev1.Pod {
	no, life, grace := false, int64(probeLife.Seconds()), int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name, Labels: map[string]string{ProbeLabel: "true"}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &life, TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			// By the scheduler, which says why when it cannot be.
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
					{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{p.Node}},
				}}},
			}}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	for key, value := range p.Labels {
		pod.Labels[key] = value
	}
	container := corev1.Container{
		Name: "probe", Image: p.Image, ImagePullPolicy: corev1.PullNever, Args: p.Args,
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
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
func (p ProbePod) bringProgram(spec *corev1.PodSpec, container *corev1.Container) {
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
