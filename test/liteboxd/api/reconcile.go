package api

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/test/liteboxd/store"
)

// reconcileInterval is how often the rows are compared with the cluster.
const reconcileInterval = 5 * time.Second

// view is what the API sees of the cluster.
type view struct {
	pods map[string]corev1.Pod  // by name
	jobs map[string]batchv1.Job // by name
}

// look lists all that the API lists in its life.
func (a *api) look(ctx context.Context) (*view, error) {
	v := &view{pods: map[string]corev1.Pod{}, jobs: map[string]batchv1.Job{}}
	core, all, ours := a.client.CoreV1(), metav1.ListOptions{}, metav1.ListOptions{LabelSelector: "app=liteboxd"}
	pods, err := core.Pods(a.SandboxNamespace).List(ctx, ours)
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	for _, p := range pods.Items {
		v.pods[p.Name] = p
	}
	jobs, err := a.client.BatchV1().Jobs(a.SandboxNamespace).List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	for _, j := range jobs.Items {
		v.jobs[j.Name] = j
	}
	// What belongs to persistent sandboxes is only looked at: none are made.
	for what, list := range map[string]func() error{
		"nodes":                  func() error { _, err := core.Nodes().List(ctx, all); return err },
		"persistentvolumes":      func() error { _, err := core.PersistentVolumes().List(ctx, all); return err },
		"volumeattachments":      func() error { _, err := a.client.StorageV1().VolumeAttachments().List(ctx, all); return err },
		"persistentvolumeclaims": func() error { _, err := core.PersistentVolumeClaims(a.SandboxNamespace).List(ctx, all); return err },
		"events":                 func() error { _, err := core.Events(a.SandboxNamespace).List(ctx, all); return err },
		"deployments":            func() error { _, err := a.client.AppsV1().Deployments(a.SandboxNamespace).List(ctx, all); return err },
	} {
		if err := list(); err != nil {
			return nil, fmt.Errorf("list %s: %w", what, err)
		}
	}
	return v, nil
}

// reconcileForever reconciles until ctx ends.
func (a *api) reconcileForever(ctx context.Context) {
	ticks := time.NewTicker(reconcileInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		if a.release.NeverReady != "" {
			a.Log.Error("the API is not ready", "reason", a.release.NeverReady)
		}
		if err := a.reconcile(ctx); err != nil && ctx.Err() == nil {
			a.Log.Error("reconcile failed", "error", err.Error())
		}
	}
}

// reconcile brings the rows up to what is in the cluster, and notes the run.
func (a *api) reconcile(ctx context.Context) error {
	began := time.Now()
	actions := map[string]string{}
	sandboxes, err := a.store.Sandboxes(ctx)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	v, err := a.look(ctx)
	if err == nil {
		err = a.reconcileSandboxes(ctx, v, sandboxes, actions)
	}
	if err == nil {
		err = a.reconcilePrepulls(ctx, v)
	}
	if err == nil {
		err = a.store.RemoveOld(ctx, began.Add(-a.retention))
	}
	if noted := a.store.AddReconcileRun(ctx, began, len(sandboxes), actions, err); noted != nil && err == nil {
		err = noted
	}
	return err
}

func (a *api) reconcileSandboxes(ctx context.Context, v *view, sandboxes []store.Sandbox, actions map[string]string) error {
	for _, b := range sandboxes {
		if time.Now().After(b.ExpiresAt) {
			actions[b.ID] = "expired"
			if err := a.deleteSandbox(ctx, b, "its time to live is over"); err != nil {
				return err
			}
			continue
		}
		status := podStatus(v.pods, b.ID)
		// A pod that is younger than the list is not in it.
		if status == b.Status || status == "lost" && time.Since(b.CreatedAt) < 2*reconcileInterval {
			continue
		}
		actions[b.ID] = status
		if err := a.store.SetSandboxStatus(ctx, b, status, "found by reconciling"); err != nil {
			return err
		}
	}
	return nil
}

// podStatus is the status of a sandbox as its pod has it.
func podStatus(pods map[string]corev1.Pod, id string) string {
	pod, ok := pods[PodPrefix+id]
	if !ok {
		return "lost"
	}
	switch pod.Status.Phase {
	case corev1.PodRunning:
		return "running"
	case corev1.PodFailed, corev1.PodSucceeded:
		return "failed"
	}
	return "pending"
}

// reconcilePrepulls notes which pulls are over. One that fails is found only when its job
// is gone, as in LiteBoxd.
func (a *api) reconcilePrepulls(ctx context.Context, v *view) error {
	prepulls, err := a.store.Prepulls(ctx)
	if err != nil {
		return fmt.Errorf("list prepulls: %w", err)
	}
	for _, p := range prepulls {
		job, found := v.jobs[prepullName(p)]
		switch {
		case p.Status != "pulling":
		case !found && a.startsNow(p):
		case !found:
			err = a.store.SetPrepull(ctx, p.ID, "failed", "the job is gone")
		case job.Spec.Completions != nil && job.Status.Succeeded >= *job.Spec.Completions:
			err = a.store.SetPrepull(ctx, p.ID, "completed", "")
		}
		if err != nil {
			return fmt.Errorf("note what became of the prepull of %s: %w", p.Image, err)
		}
	}
	return nil
}

// startsNow is true for prepulls whose job may be younger than the list of jobs.
func (a *api) startsNow(p store.Prepull) bool {
	created, err := time.Parse(time.RFC3339, p.CreatedAt)
	return err == nil && time.Since(created) < 2*reconcileInterval
}
