package liteboxd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/kube/wait"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/manifests"
)

// Users is what of LiteBoxd uses its database, as the newest revision that was rolled out has it.
type Users struct {
	// Deployments mount the claim.
	Deployments []appsv1.Deployment
	// Claim is the claim of the database as it was rendered, with Helm's marks.
	Claim *corev1.PersistentVolumeClaim
}

// DatabaseUsers finds what uses the database. A cluster without LiteBoxd is an error.
func (u *Change) DatabaseUsers(ctx context.Context) (*Users, error) {
	manifest, err := helm.Manifest(ctx, u.Deployer.Site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease)
	if errors.Is(err, helm.ErrNoRevision) {
		return nil, fmt.Errorf("%w: LiteBoxd is not on the cluster: %w", site.ErrRefused, err)
	}
	if err != nil {
		return nil, err
	}
	objects, err := helm.DecodeManifest(manifest)
	if err != nil {
		return nil, err
	}
	users := &Users{}
	for _, o := range objects {
		if err := users.add(o, u.System); err != nil {
			return nil, fmt.Errorf("read the %s %s of LiteBoxd's release: %w", o.GetKind(), o.GetName(), err)
		}
	}
	if users.Claim == nil || len(users.Deployments) == 0 {
		return nil, fmt.Errorf("%w: LiteBoxd's release has no claim %s/%s, or nothing that mounts it", site.ErrRefused,
			u.System, manifests.DataClaim)
	}
	return users, nil
}

func (s *Users) add(o *unstructured.Unstructured, namespace string) error {
	if o.GetNamespace() != namespace {
		return nil
	}
	switch {
	case o.GetKind() == kube.Deployment:
		var d appsv1.Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d); err != nil {
			return err
		}
		if kube.Mounts(&d.Spec.Template.Spec, manifests.DataClaim) {
			s.Deployments = append(s.Deployments, d)
		}
	case o.GetKind() == "PersistentVolumeClaim" && o.GetName() == manifests.DataClaim:
		s.Claim = &corev1.PersistentVolumeClaim{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, s.Claim); err != nil {
			return err
		}
		kube.ReleaseName{Namespace: seed.ReleasesNamespace, Name: seed.LiteBoxdRelease}.Mark(s.Claim)
	}
	return nil
}

// Own reports whether a pod is of one of the Deployments.
func (s *Users) Own(p *kube.Pod) bool {
	return slices.ContainsFunc(s.Deployments, func(d appsv1.Deployment) bool {
		return d.Spec.Selector != nil && labels.SelectorFromSet(d.Spec.Selector.MatchLabels).Matches(labels.Set(p.Labels))
	})
}

// Running says what uses the database or is to, "" for nothing.
func (u *Change) Running(ctx context.Context, users *Users) (string, error) {
	for i := range users.Deployments {
		scale, err := u.Deployer.Site.API.ScaleOf(ctx, u.System, users.Deployments[i].Name)
		if err != nil {
			return "", err
		}
		if scale.Wanted > 0 {
			return users.Deployments[i].Name + " is to run", nil
		}
	}
	pods, err := u.Deployer.Site.API.PodsWith(ctx, u.System, manifests.DataClaim)
	if err != nil || len(pods) == 0 {
		return "", err
	}
	return podNames(pods) + " have the database open", nil
}

// Stop ends everything that uses the database, and waits until it has ended: users' connections have their time, or
// that of ForceAfter. Pods of a node for which isGone is true are forgotten. Sandboxes go on running.
func (u *Change) Stop(ctx context.Context, users *Users, isGone func(node string) bool) error {
	api := u.Deployer.Site.API
	for i := range users.Deployments {
		if err := api.Scale(ctx, u.System, users.Deployments[i].Name, 0); err != nil {
			return err
		}
	}
	const margin = time.Minute
	limit := margin
	if box := u.Deployer.Site.Config.LiteBoxd; box != nil {
		limit += box.TerminationGrace
	}
	end := u.forceLater(ctx)
	defer end()
	var left []kube.Pod
	err := u.Deployer.Site.WaitingFor(ctx, limit, "wait for the end of LiteBoxd", func(ctx context.Context) error {
		return site.Poll(ctx, func(ctx context.Context) (bool, error) {
			pods, err := api.PodsWith(ctx, u.System, manifests.DataClaim)
			if err != nil {
				return false, err
			}
			left = pods
			gone := slices.DeleteFunc(slices.Clone(pods), func(p kube.Pod) bool { return !isGone(p.Node) })
			return len(pods) == 0, api.ForgetPods(ctx, gone)
		})
	})
	if err != nil && len(left) > 0 {
		return fmt.Errorf("%s have not ended: %w", podNames(left), err)
	}
	return err
}

// Stopped says why LiteBoxd does not run as its release wants it, "" when it does.
func (u *Change) Stopped(ctx context.Context, users *Users) (string, error) {
	for i := range users.Deployments {
		d := &users.Deployments[i]
		scale, err := u.Deployer.Site.API.ScaleOf(ctx, u.System, d.Name)
		if err != nil {
			return "", err
		}
		if wanted := kube.Replicas(d.Spec.Replicas); scale.Wanted != wanted || scale.Available < wanted {
			return fmt.Sprintf("%s has %d of %s", d.Name, min(scale.Wanted, scale.Available),
				printable.Counted(wanted, "pod")), nil
		}
	}
	return "", nil
}

// Start has everything run again that uses the database, as its release wants it, and waits until it does.
func (u *Change) Start(ctx context.Context, users *Users) error {
	var workloads []kube.Workload
	for i := range users.Deployments {
		d := &users.Deployments[i]
		if err := u.Deployer.Site.API.Scale(ctx, u.System, d.Name, kube.Replicas(d.Spec.Replicas)); err != nil {
			return err
		}
		workloads = append(workloads, kube.Workload{Kind: kube.Deployment, Name: d.Name})
	}
	return u.Deployer.Site.Waiting(ctx, "wait for LiteBoxd", func(ctx context.Context) error {
		return wait.Rollouts(ctx, u.Deployer.Site.API, u.System, workloads, u.Deployer.Site.Awaits(""))
	})
}
