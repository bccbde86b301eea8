package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Storage is what the cluster has of volumes, where they may be, and who uses them.
type Storage struct {
	Nodes   []corev1.Node
	Volumes []corev1.PersistentVolume
	Pods    []corev1.Pod // of all namespaces
}

// Storage asks for all of it.
func (c *Cluster) Storage(ctx context.Context) (Storage, error) {
	core, all := c.Client.CoreV1(), metav1.ListOptions{}
	failed := func(what string, err error) (Storage, error) {
		return Storage{}, fmt.Errorf("%s: list %s: %w", c.Name, what, err)
	}
	// The nodes come last: one that has gone since its volumes were listed is then known to have gone.
	volumes, err := core.PersistentVolumes().List(ctx, all)
	if err != nil {
		return failed("PersistentVolumes", err)
	}
	pods, err := core.Pods("").List(ctx, all)
	if err != nil {
		return failed("pods", err)
	}
	nodes, err := core.Nodes().List(ctx, all)
	if err != nil {
		return failed("nodes", err)
	}
	return Storage{Nodes: nodes.Items, Volumes: volumes.Items, Pods: pods.Items}, nil
}
