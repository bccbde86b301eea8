package explain

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/kube"
)

// unboundClaims are the claims of a pod that have no volume. What cannot be found out is left out.
func unboundClaims(ctx context.Context, c *kube.Cluster, p *corev1.Pod) []*corev1.PersistentVolumeClaim {
	var claims []*corev1.PersistentVolumeClaim
	if p.Status.Phase != corev1.PodPending {
		return nil // it has all of its volumes
	}
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := c.Client.CoreV1().PersistentVolumeClaims(p.Namespace).Get(ctx, v.PersistentVolumeClaim.ClaimName,
			metav1.GetOptions{})
		if err == nil && claim.Status.Phase != corev1.ClaimBound {
			claims = append(claims, claim)
		}
	}
	return claims
}

// helperPods are those in which k3s' local-path provisioner makes a claim's folder on its node: they
// lie beside it, and their names end with that of the volume, which has the claim's UID.
func helperPods(ctx context.Context, c *kube.Cluster, claim *corev1.PersistentVolumeClaim) []corev1.Pod {
	if claim.UID == "" {
		return nil
	}
	list, err := c.Client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return !strings.HasSuffix(p.Name, "pvc-"+string(claim.UID))
	})
}
