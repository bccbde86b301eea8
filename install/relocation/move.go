package relocation

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/storage"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/fault"
)

// MovePhase brings the database to another node, RestorePhase back from a backup, and ConfirmPhase removes the volumes
// from before.
const (
	MovePhase    = "move"
	RestorePhase = "restore-liteboxd"
	ConfirmPhase = "confirm-move"
)

// Move brings LiteBoxd's database to a volume on another node, which is named as the cluster or install.yaml names it.
func (r *Relocation) Move(ctx context.Context, to string) error {
	m, err := r.find(ctx, MovePhase, nil)
	if err != nil {
		return refused(err)
	}
	switch {
	case m.from == nil:
		return fmt.Errorf("%w: LiteBoxd has no database yet: there is no volume that is to be moved", site.ErrRefused)
	case m.isLost && !m.hasCopy():
		return fault.WithHint(fmt.Errorf("%w: LiteBoxd's database is on the node %s, which is not Ready, and whose host "+
			"is not reached: it cannot be copied", site.ErrRefused, m.fromNode), "bring the host back; if it is gone "+
			"for good, boxlift backup restore --only liteboxd brings LiteBoxd back on another node from a backup")
	}
	if err := m.aim(ctx, to); err != nil {
		return refused(err)
	}
	if m.pending != nil && !m.isPending() && (m.isThere || m.isLost) {
		return refused(errUnfinished(m.pending))
	}
	if m.pending == nil {
		kept := former(m.volumes, m.from.Name)
		switch {
		case m.fromNode == m.to.Name:
			for i := range kept {
				r.tellFormer(&kept[i])
			}
			return nil
		case len(kept) > 0:
			return errKept(&kept[0])
		}
	}
	if err := m.carryOut(ctx); err != nil {
		return err
	}
	m.tellKept(nil)
	return nil
}

// Confirm removes the volumes that have had the database before, once the one that it is on is proven. One whose host
// is not reached is an error, unless it may be forgotten: then its folder stays there.
func (r *Relocation) Confirm(ctx context.Context, forgetUnreachable bool) error {
	m, err := r.find(ctx, ConfirmPhase, nil)
	if err != nil {
		return refused(err)
	}
	if m.pending != nil {
		return refused(errUnfinished(m.pending))
	}
	if m.from == nil {
		return fmt.Errorf("%w: LiteBoxd's claim has no volume", site.ErrRefused)
	}
	if m.isLost {
		return fmt.Errorf("%w: the node %s, which has LiteBoxd's database, is not reached: no other volume is removed "+
			"meanwhile", site.ErrRefused, m.fromNode)
	}
	r.tellLeft(m.volumes)
	kept := former(m.volumes, m.from.Name)
	if len(kept) == 0 {
		return nil
	}
	if _, ok := m.from.Labels[liteboxd.VolumeLabel]; !ok {
		return fault.WithHint(fmt.Errorf("%w: LiteBoxd's claim has the volume %s, which boxlift has not brought its "+
			"database to: the database may be on one of those that are kept, such as %s on %s", site.ErrRefused, m.from.Name,
			kept[0].Name, kube.HostnameOf(&kept[0])), "look whether LiteBoxd has all that it had; where it has not, "+
			"boxlift backup restore --only liteboxd brings it back")
	}
	steps := []run.Step{m.proveStep()}
	for i := range kept {
		steps = append(steps, removeStep(m, &kept[i], forgetUnreachable))
	}
	return r.Engine.RunSteps(ctx, ConfirmPhase, &r.Engine.Cluster, steps)
}

// proveStep proves the database that is there, before others go.
func (m *relocating) proveStep() run.Step {
	return run.Step{
		ID: "prove-liteboxd-database", Title: "prove LiteBoxd's database on " + m.fromNode, Proves: true,
		Run: func(ctx context.Context) (err error) {
			if reason, err := m.change.Stopped(ctx, m.users); err != nil || reason != "" {
				return errors.Join(err, notRunning(reason))
			}
			dir, remove, err := backup.ClearFolder(filepath.Dir(m.site.StatePath))
			if err != nil {
				return fmt.Errorf("make a folder for the database: %w", err)
			}
			defer func() { err = errors.Join(err, remove()) }()
			digest, _, err := m.change.CopyDatabase(ctx, filepath.Join(dir, liteboxd.DatabaseFile))
			if err == nil && digest == "" {
				err = fmt.Errorf("%w: there is none", site.ErrRefused)
			}
			return err
		},
	}
}

// errUnfinished says that a run has brought the database somewhere, and has not come to its end.
func errUnfinished(v *corev1.PersistentVolume) error {
	again := "boxlift backup restore --only liteboxd with the same backup and --to " + kube.HostnameOf(v)
	if v.Annotations[content] == ofVolume {
		again = "boxlift liteboxd move --to " + kube.HostnameOf(v)
	}
	return fault.WithHint(fmt.Errorf("%w: LiteBoxd's database is on its way to %s by a run that did not come to its end",
		site.ErrRefused, kube.HostnameOf(v)), "go on with that first: "+again)
}

func notRunning(reason string) error {
	if reason == "" {
		return nil
	}
	return fmt.Errorf("%w: LiteBoxd does not run: %s", site.ErrRefused, reason)
}

// removeStep removes a volume that has had the database.
func removeStep(m *relocating, v *corev1.PersistentVolume, forgetUnreachable bool) run.Step {
	return run.Step{
		ID: "remove-volume " + v.Name, Title: fmt.Sprintf("remove the volume %s, the folder %s on %s", v.Name,
			kube.FolderOf(v), kube.HostnameOf(v)),
		Needed: func(ctx context.Context) (string, error) {
			is, err := storage.Volume(ctx, m.site.API, v.Name)
			if err != nil || is == nil {
				return "", err
			}
			return "LiteBoxd's database is on " + m.fromNode + ", and this one is not needed any more", nil
		},
		Run: func(ctx context.Context) error { return m.relocation.remove(ctx, v, forgetUnreachable) },
	}
}
