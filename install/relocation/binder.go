package relocation

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/kube/storage"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/manifests"
)

// binder gives LiteBoxd's claim the one or the other volume.
type binder struct {
	site   *site.Site
	change *liteboxd.Change
	users  *liteboxd.Users
}

// ref keeps a volume for a claim that is to come.
func (b *binder) ref() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: b.change.System,
		Name: manifests.DataClaim}
}

// unbound says why a volume is not that of the claim, "" when it is.
func (b *binder) unbound(ctx context.Context, name string) (string, error) {
	claim, err := b.site.API.Claim(ctx, b.change.System, manifests.DataClaim)
	switch {
	case err != nil:
		return "", err
	case claim == nil:
		return "there is no claim", nil
	case claim.Volume != name:
		return "its claim has " + orNone(claim.Volume), nil
	case claim.Deleting:
		return "its claim is on its way out", nil
	case claim.Phase != string(corev1.ClaimBound):
		return "its claim is " + claim.Phase, nil
	}
	return "", nil
}

func orNone(name string) string {
	if name == "" {
		return "no volume"
	}
	return "the volume " + name
}

// bind gives the claim a volume. A claim cannot be given another one: it is deleted, when it is certain that the volume
// which it has outlives that, and made anew. Nothing runs that uses it.
func (b *binder) bind(ctx context.Context, name string) error {
	if running, err := b.change.Running(ctx, b.users); err != nil || running != "" {
		return errors.Join(err, stillRuns(running))
	}
	claim, err := b.site.API.Claim(ctx, b.change.System, manifests.DataClaim)
	if err != nil {
		return err
	}
	if claim != nil && (claim.Volume != name || claim.Deleting) {
		if claim.Volume != "" {
			if err := b.keep(ctx, claim.Volume); err != nil {
				return err
			}
		}
		if err := storage.DeleteClaim(ctx, b.site.API, b.change.System, manifests.DataClaim); err != nil {
			return err
		}
		if err := b.site.Waiting(ctx, "wait for the end of the claim", func(ctx context.Context) error {
			return site.Poll(ctx, func(ctx context.Context) (bool, error) {
				claim, err := b.site.API.Claim(ctx, b.change.System, manifests.DataClaim)
				return err == nil && claim == nil, err
			})
		}); err != nil {
			return err
		}
		claim = nil
	}
	if claim == nil {
		if err := b.makeClaim(ctx, name); err != nil {
			return err
		}
	}
	return b.site.Waiting(ctx, "wait for the volume of the claim", func(ctx context.Context) error {
		return site.Poll(ctx, func(ctx context.Context) (bool, error) {
			reason, err := b.unbound(ctx, name)
			if err == nil && reason != "" {
				err = errors.New(reason)
			}
			return err == nil, err
		})
	})
}

// keep has a volume outlive its claim, whatever its class says, and makes sure of it.
func (b *binder) keep(ctx context.Context, name string) error {
	if err := storage.ChangeVolume(ctx, b.site.API, name, func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		if v.Labels == nil {
			v.Labels = make(map[string]string)
		}
		v.Labels[liteboxd.VolumeLabel] = ""
	}); err != nil {
		return err
	}
	v, err := storage.Volume(ctx, b.site.API, name)
	if err != nil {
		return err
	}
	if v == nil || v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		return fmt.Errorf("the volume %s would be deleted with its claim: it is left as it is", name)
	}
	return nil
}

// makeClaim makes the claim as LiteBoxd's release has it, for a volume that waits for it.
func (b *binder) makeClaim(ctx context.Context, name string) error {
	if err := storage.ChangeVolume(ctx, b.site.API, name, func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		v.Spec.ClaimRef = b.ref()
	}); err != nil {
		return err
	}
	claim := b.users.Claim.DeepCopy()
	claim.Spec.VolumeName = name
	return storage.CreateClaim(ctx, b.site.API, claim)
}
