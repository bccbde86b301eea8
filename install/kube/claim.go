package kube

import (
	"context"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// kubeletPods is where the kubelet has its pods' volumes, with k3s too.
const kubeletPods = "/var/lib/kubelet/pods"

// Claim is a PersistentVolumeClaim, and where its data is.
type Claim struct {
	Phase        string // Pending, Bound or Lost
	StorageClass string
	Volume       string // the PersistentVolume's name; "" before it is bound
	Capacity     int64  // bytes, of the volume; 0 before it is bound
	// Deleting tells that it was deleted, and goes when no pod uses it any more: Kubernetes has
	// no way back from that.
	Deleting bool
	// Node and Path say where the data can be read: a folder of the volume itself where it is
	// one of a node, and otherwise where the kubelet has mounted it for a running pod. Both
	// are "" when there is no such place.
	Node string
	Path string
}

// Claim returns nil when there is no such claim.
func (c *Cluster) Claim(ctx context.Context, namespace, name string) (*Claim, error) {
	failed := func(err error) error {
		return fmt.Errorf("%s: get PersistentVolumeClaim %s/%s: %w", c.Name, namespace, name, err)
	}
	pvc, err := c.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, failed(err)
	}
	claim := &Claim{
		Phase: string(pvc.Status.Phase), Volume: pvc.Spec.VolumeName, Deleting: pvc.DeletionTimestamp != nil,
	}
	if pvc.Spec.StorageClassName != nil {
		claim.StorageClass = *pvc.Spec.StorageClassName
	}
	if pvc.Status.Phase != corev1.ClaimBound {
		return claim, nil
	}
	volume, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, failed(err)
	}
	size := volume.Spec.Capacity[corev1.ResourceStorage]
	claim.Capacity = size.Value()
	pods, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, failed(err)
	}
	user := userOf(pods.Items, name)
	folder := FolderOf(volume)
	if folder == "" && user != nil {
		claim.Node, claim.Path = user.Spec.NodeName, mountPath(user, volume)
		return claim, nil
	}
	if folder == "" {
		return claim, nil
	}
	node, err := nodeOf(ctx, c, volume, user)
	if err != nil {
		return nil, failed(err)
	}
	if node != "" {
		claim.Node, claim.Path = node, path.Clean(folder)
	}
	return claim, nil
}

// userOf is a running pod that mounts the claim, nil when there is none.
func userOf(pods []corev1.Pod, claim string) *corev1.Pod {
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for i := range pods {
		p := &pods[i]
		if p.Status.Phase == corev1.PodRunning && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
		}) {
			return p
		}
	}
	return nil
}

// nodeOf says which node has the volume's folder: the one that the volume is bound to, or
// that of a pod that uses it, "" when it could be any.
func nodeOf(ctx context.Context, c *Cluster, volume *corev1.PersistentVolume, user *corev1.Pod) (string, error) {
	if user != nil {
		return user.Spec.NodeName, nil
	}
	host := hostOf(volume)
	if host == "" {
		return "", nil
	}
	// The label is the host's name, which is not the node's name where that was given.
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{corev1.LabelHostname: host}.String(),
	})
	if err != nil {
		return "", fmt.Errorf("list nodes: %w", err)
	}
	if len(list.Items) != 1 {
		return "", nil
	}
	return list.Items[0].Name, nil
}

// hostOf is the one host that a volume is bound to, "" when there is not just one.
func hostOf(volume *corev1.PersistentVolume) string {
	affinity := volume.Spec.NodeAffinity
	if affinity == nil || affinity.Required == nil {
		return ""
	}
	hosts := map[string]bool{}
	for _, term := range affinity.Required.NodeSelectorTerms {
		bound := false
		for _, e := range term.MatchExpressions {
			if e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
				hosts[e.Values[0]], bound = true, true
			}
		}
		if !bound {
			return "" // this one allows others
		}
	}
	for host := range hosts {
		if len(hosts) == 1 {
			return host
		}
	}
	return ""
}

// mountPath is where the kubelet has a volume of a network for a pod, "" for kinds that this
// does not know.
func mountPath(p *corev1.Pod, volume *corev1.PersistentVolume) string {
	volumes := path.Join(kubeletPods, string(p.UID), "volumes")
	switch {
	case volume.Spec.CSI != nil:
		return path.Join(volumes, "kubernetes.io~csi", volume.Name, "mount")
	case volume.Spec.NFS != nil:
		return path.Join(volumes, "kubernetes.io~nfs", volume.Name)
	}
	return ""
}
