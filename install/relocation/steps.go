package relocation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/storage"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/database"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/manifests"
)

// steps are those of a relocation, in their order. Each finds out from the cluster whether it is still to be done.
func (m *relocating) steps() []run.Step {
	if m.goesOn() {
		return []run.Step{m.ownStep(), m.startStep(), m.goingOnStep(), m.endStep()}
	}
	steps := []run.Step{m.ownStep()}
	if m.source != nil {
		steps = append(steps, m.change.KeyStep(m.source.Key)) // a backup is worth nothing without it
	}
	if m.isThere {
		steps = append(steps, m.takeStep())
	} else {
		steps = append(steps, m.discardStep())
	}
	return append(steps, m.change.BackupStep(m.leaves), m.stopStep(), m.copyStep(), m.bindStep(), m.startStep(),
		m.compareStep(), m.endStep())
}

// goingOnStep proves what LiteBoxd has been running with, perhaps for long: that a move has left users what they had,
// which is told once, or that the database of a backup is sound. What users have done since is theirs.
func (m *relocating) goingOnStep() run.Step {
	if m.source == nil {
		return m.change.CompareStep()
	}
	return m.proveStep()
}

// takeStep takes the volume that LiteBoxd has for its own, though the run that brought it there has not come to its
// end.
func (m *relocating) takeStep() run.Step {
	name := m.pending.Name
	return run.Step{
		ID: "take-volume", Title: "take the volume " + name + " for LiteBoxd's",
		Needed: func(ctx context.Context) (string, error) {
			v, err := storage.Volume(ctx, m.site.API, name)
			if err != nil || v == nil || v.Annotations[stage] == moved {
				return "", err
			}
			return "the run that brought LiteBoxd there did not come to its end", nil
		},
		Run: func(ctx context.Context) error {
			return storage.ChangeVolume(ctx, m.site.API, name, func(v *corev1.PersistentVolume) {
				v.Annotations[stage] = moved
			})
		},
	}
}

// carryOut goes through the steps. What fails goes back to the volume from before, if that is still to be had.
func (m *relocating) carryOut(ctx context.Context) error {
	err := m.engine.RunSteps(ctx, m.phase, &m.engine.Cluster, m.steps())
	if err == nil || ctx.Err() != nil {
		return err
	}
	if m.from == nil || m.isLost {
		return fault.WithHint(err, "LiteBoxd may be stopped; run the same command again, which goes on from there")
	}
	if m.goesOn() { // what users have done since is there
		return fault.WithHint(err, "LiteBoxd's database stays on the volume "+m.next+" on "+m.to.Name+"; when the cause is "+
			"mended, run the same command again")
	}
	back := m.engine.RunSteps(ctx, m.phase, &m.engine.Cluster, []run.Step{m.goBackStep()})
	if back != nil {
		return fault.WithHint(errors.Join(err, back), "LiteBoxd may be stopped, and its database is on the volume "+
			m.from.Name+" on "+m.fromNode+"; when the cause is mended, run the same command again")
	}
	return err
}

// leaves says why the database is about to leave its volume, "" when it has, or when there is none to be read.
func (m *relocating) leaves() (string, error) {
	if m.from == nil || m.isLost || m.claim == nil || m.claim.Volume != m.from.Name {
		return "", nil
	}
	return "its database is to be on another volume, on " + m.to.Name, nil
}

// ownStep makes sure that nobody else uses the database: a pod that LiteBoxd's release does not have would keep the
// claim for ever.
func (m *relocating) ownStep() run.Step {
	return run.Step{ID: "check-users-of-database", Proves: true, Run: func(ctx context.Context) error {
		pods, err := m.site.API.PodsWith(ctx, m.change.System, manifests.DataClaim)
		if err != nil {
			return err
		}
		for i := range pods {
			if !m.users.Own(&pods[i]) {
				return fmt.Errorf("%w: %s, which is none of LiteBoxd's, uses its database: end it first",
					site.ErrRefused, pods[i])
			}
		}
		return nil
	}}
}

// discardStep takes away what an earlier run, to another place or of another backup, has begun.
func (m *relocating) discardStep() run.Step {
	return run.Step{
		ID: "discard-volume", Title: "take away the volume of an earlier run",
		Needed: func(context.Context) (string, error) {
			if m.pending == nil || m.isPending() {
				return "", nil
			}
			return "a run to " + kube.HostnameOf(m.pending) + " did not come to its end", nil
		},
		Run: func(ctx context.Context) error {
			err := m.goBack(ctx, m.pending.Name)
			if err == nil {
				m.pending = nil
			}
			return err
		},
	}
}

// stopStep stops what uses the database. A copy that was made before LiteBoxd ran again is worth nothing.
func (m *relocating) stopStep() run.Step {
	return run.Step{
		ID: "stop-liteboxd", Title: "stop LiteBoxd",
		Needed: func(ctx context.Context) (string, error) {
			bound, err := m.bound(ctx)
			if err != nil || bound == m.next {
				return "", err
			}
			return m.change.Running(ctx, m.users)
		},
		Run: func(ctx context.Context) error {
			v, err := m.volume(ctx)
			if err != nil {
				return err
			}
			if v != nil && v.Annotations[stage] == copied {
				if m.isLost && m.source == nil {
					return fmt.Errorf("%w: LiteBoxd ran again after its database was copied, and the node %s, which has it, "+
						"is lost", site.ErrRefused, m.fromNode)
				}
				if err := deleteVolume(ctx, m.site, m.next); err != nil {
					return err
				}
			}
			return m.change.Stop(ctx, m.users, m.isGone)
		},
	}
}

// isGone reports whether a node is gone that the database was on.
func (m *relocating) isGone(node string) bool { return m.isLost && node == m.fromNode }

// copyStep brings the database to the new volume, proves it there, and lets the cluster know of the volume then.
func (m *relocating) copyStep() run.Step {
	title := "copy LiteBoxd's database to " + m.to.Name
	if m.source != nil {
		title = fmt.Sprintf("bring the database of the backup of %s to %s", m.source.when(), m.to.Name)
	}
	return run.Step{
		ID: "copy-liteboxd-database", Title: title, Follows: true,
		Needed: func(ctx context.Context) (string, error) {
			v, err := m.volume(ctx)
			if err != nil || v != nil {
				return "", err
			}
			return "there is no proven copy in " + m.folder, nil
		},
		Run: func(ctx context.Context) (err error) {
			dir, remove, err := backup.ClearFolder(filepath.Dir(m.site.StatePath))
			if err != nil {
				return fmt.Errorf("make a folder for the database: %w", err)
			}
			defer func() { err = errors.Join(err, remove()) }()
			return m.copy(ctx, dir)
		},
	}
}

// copy brings the database over, by a folder of the operator's that is only his.
func (m *relocating) copy(ctx context.Context, dir string) error {
	if running, err := m.change.Running(ctx, m.users); err != nil || running != "" {
		return errors.Join(err, stillRuns(running))
	}
	file, proof := filepath.Join(dir, liteboxd.DatabaseFile), filepath.Join(dir, "proof.db")
	to := m.location()
	digest, err := m.fetch(ctx, file, to)
	if err != nil {
		return err
	}
	rows, err := database.Counts(ctx, file)
	if err != nil {
		return fmt.Errorf("LiteBoxd's database: %w", err)
	}
	if err := place(ctx, m.toHost, to, file, digest); err != nil {
		return fault.OnHost(err, m.toHost.Name)
	}
	if _, err := liteboxd.FetchDatabase(ctx, m.toHost, to.Path, proof); err != nil {
		return fmt.Errorf("open the copy on %s: %w", m.toHost.Name, err)
	}
	has, err := database.Counts(ctx, proof)
	if err != nil {
		return fmt.Errorf("the copy on %s: %w", m.toHost.Name, err)
	}
	if !maps.Equal(rows, has) {
		return fmt.Errorf("the copy on %s has other rows than the database: %v, and not %v", m.toHost.Name, has, rows)
	}
	return storage.CreateVolume(ctx, m.site.API, m.newVolume())
}

func stillRuns(running string) error {
	if running == "" {
		return nil
	}
	return fmt.Errorf("LiteBoxd was to be stopped, and somebody has started it: %s", running)
}

// location is where the database is to be on the new volume. Whose it is, is as before, or as k3s' provisioner and
// LiteBoxd, which runs as root, make it.
func (m *relocating) location() *backup.Location {
	l := &backup.Location{Node: m.to.Name, Path: path.Join(m.folder, liteboxd.DatabaseFile)}
	l.File.Mode, l.Folder.Mode = 0o644, 0o777
	if m.source != nil && m.source.Location != nil {
		l.File, l.Folder = m.source.Location.File, m.source.Location.Folder
	}
	return l
}

// fetch brings the database here, and returns its sha256.
func (m *relocating) fetch(ctx context.Context, file string, to *backup.Location) (string, error) {
	if m.source != nil {
		return m.source.SHA256, m.source.extract(file)
	}
	if m.fromHost == nil {
		return "", fmt.Errorf("the host of the node %s, which has the database, is not reached", m.fromNode)
	}
	source := path.Join(path.Clean(kube.FolderOf(m.from)), liteboxd.DatabaseFile)
	is, err := liteboxd.Locate(ctx, m.fromHost, m.fromNode, source)
	if err != nil {
		return "", err
	}
	to.File, to.Folder = is.File, is.Folder
	digest, err := liteboxd.FetchDatabase(ctx, m.fromHost, source, file)
	if err != nil {
		return "", fmt.Errorf("copy LiteBoxd's database: %w", err)
	}
	return digest, nil
}

func place(ctx context.Context, h *site.Host, to *backup.Location, file, digest string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return liteboxd.Place(ctx, h, to, info.Size(), digest, f)
}

// newVolume is the new volume. It is one of type local, which is not used where its folder is missing, and it outlives
// its claim.
func (m *relocating) newVolume() *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{}
	v.Name = m.next
	v.Labels = map[string]string{liteboxd.VolumeLabel: ""}
	v.Annotations = map[string]string{replaces: "", content: m.content(), stage: copied}
	claim := m.users.Claim
	v.Spec.Capacity = corev1.ResourceList{
		corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage],
	}
	if m.from != nil {
		v.Annotations[replaces] = m.from.Name
		v.Spec.Capacity = m.from.Spec.Capacity
	}
	v.Spec.AccessModes = claim.Spec.AccessModes
	if claim.Spec.StorageClassName != nil {
		v.Spec.StorageClassName = *claim.Spec.StorageClassName
	}
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	v.Spec.Local = &corev1.LocalVolumeSource{Path: m.folder}
	v.Spec.ClaimRef = m.binder().ref()
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
			Values: []string{m.to.Labels[corev1.LabelHostname]},
		}}}},
	}}
	return v
}

func (m *relocating) binder() *binder { return &binder{m.site, m.change, m.users} }

// bindStep gives the claim the new volume.
func (m *relocating) bindStep() run.Step {
	return run.Step{
		ID: "bind-volume", Title: "give LiteBoxd the volume " + m.next, Follows: true,
		Needed: func(ctx context.Context) (string, error) {
			reason, err := m.binder().unbound(ctx, m.next)
			return reason, err
		},
		Run: func(ctx context.Context) error { return m.binder().bind(ctx, m.next) },
	}
}

// startStep starts LiteBoxd with the new volume.
func (m *relocating) startStep() run.Step {
	return run.Step{
		ID: "start-liteboxd", Title: "start LiteBoxd", Follows: true,
		Needed: func(ctx context.Context) (string, error) {
			v, err := m.volume(ctx)
			if err != nil || v == nil || v.Annotations[stage] == moved {
				return "", err
			}
			if v.Annotations[stage] == copied {
				return "it has not run with the volume " + m.next, nil
			}
			return m.change.Stopped(ctx, m.users)
		},
		Run: func(ctx context.Context) error {
			if err := m.note(ctx, started); err != nil {
				return err
			}
			return m.change.Start(ctx, m.users)
		},
	}
}

// note notes at the new volume how far it has come.
func (m *relocating) note(ctx context.Context, s string) error {
	return storage.ChangeVolume(ctx, m.site.API, m.next, func(v *corev1.PersistentVolume) { v.Annotations[stage] = s })
}

// compareStep proves that users have what they had, or what the backup has of it.
func (m *relocating) compareStep() run.Step {
	if m.source == nil {
		return m.change.CompareStep()
	}
	return run.Step{
		ID: "compare-liteboxd", Title: "compare LiteBoxd with its backup", Proves: true,
		Run: func(ctx context.Context) (err error) {
			dir, remove, err := backup.ClearFolder(filepath.Dir(m.site.StatePath))
			if err != nil {
				return fmt.Errorf("make a folder for the database: %w", err)
			}
			defer func() { err = errors.Join(err, remove()) }()
			before := &liteboxd.Backup{Time: m.source.Time, SHA256: m.source.SHA256, Rows: m.source.Rows}
			if !m.isLost {
				before.Sandboxes = m.sandboxes
			}
			lost, err := m.change.Compare(ctx, before, dir)
			if err == nil && len(lost) > 0 {
				err = fmt.Errorf("since LiteBoxd was started with the backup, %s", strings.Join(lost, "; "))
			}
			return err
		},
	}
}

// endStep notes that the new volume is the one from now on.
func (m *relocating) endStep() run.Step {
	return run.Step{
		ID: "keep-former-volume", Title: "note that LiteBoxd's database is on " + m.to.Name, Follows: true,
		Needed: func(ctx context.Context) (string, error) {
			v, err := m.volume(ctx)
			if err != nil || v == nil || v.Annotations[stage] == moved {
				return "", err
			}
			return "LiteBoxd runs with it", nil
		},
		Run: func(ctx context.Context) error { return m.note(ctx, moved) },
	}
}

// goBackStep goes back to the volume from before. The new one goes if LiteBoxd has never run with it, and is kept
// otherwise: what users have done meanwhile is there.
func (m *relocating) goBackStep() run.Step {
	return run.Step{
		ID: "go-back", Title: "go back to the volume " + m.fromName(),
		Needed: func(ctx context.Context) (string, error) {
			reason, err := m.binder().unbound(ctx, m.fromName())
			if err != nil || reason != "" {
				return reason, err
			}
			if reason, err = m.change.Stopped(ctx, m.users); err != nil || reason != "" {
				return reason, err
			}
			v, err := m.volume(ctx)
			if err != nil || v == nil || v.Annotations[stage] != copied {
				return "", err
			}
			return "the volume " + m.next + " is not needed", nil
		},
		Run: func(ctx context.Context) error { return m.goBack(ctx, m.next) },
	}
}

func (m *relocating) fromName() string {
	if m.from == nil {
		return "from before"
	}
	return m.from.Name
}

// goBack goes back to the volume from before from another one, which is the next one or that of an earlier run.
func (m *relocating) goBack(ctx context.Context, other string) error {
	if m.from != nil {
		if reason, err := m.binder().unbound(ctx, m.from.Name); err != nil {
			return err
		} else if reason != "" {
			if err := m.change.Stop(ctx, m.users, m.isGone); err != nil {
				return err
			}
			if err := m.binder().bind(ctx, m.from.Name); err != nil {
				return err
			}
		}
		if !m.isLost {
			if err := m.change.Start(ctx, m.users); err != nil {
				return err
			}
			// What users do from now on is in none of the backups.
			if err := m.change.CloseBackup(); err != nil {
				return err
			}
		}
	}
	v, err := storage.Volume(ctx, m.site.API, other)
	if err != nil {
		return err
	}
	if v == nil && other != m.next {
		return nil
	}
	if v == nil { // it was not proven, and is nobody's
		if _, err := m.toHost.Root(ctx, "remove the folder of the volume", "rm", "-rf", "--", m.folder); err != nil {
			m.site.Warn("the folder %s on %s stays: %v", m.folder, m.toHost.Name, err)
		}
		return nil
	}
	if v.Annotations[stage] == started {
		m.site.Warn("LiteBoxd went back to the volume %s; what was done while it ran with the volume %s is in the "+
			"folder %s on %s only, which is kept", m.fromName(), other, kube.FolderOf(v), kube.HostnameOf(v))
		return storage.ChangeVolume(ctx, m.site.API, other, func(v *corev1.PersistentVolume) { v.Annotations[stage] = left })
	}
	return m.relocation.remove(ctx, v, true)
}

// remove removes a volume with its folder. Where its host is not reached, that is an error unless it may stay.
func (r *Relocation) remove(ctx context.Context, v *corev1.PersistentVolume, mayStay bool) error {
	folder := path.Clean(kube.FolderOf(v))
	if !path.IsAbs(folder) || !strings.Contains(path.Base(folder), manifests.DataClaim) || strings.Count(folder,
		"/") < 3 {
		return fmt.Errorf("%w: the folder %q of the volume %s does not bear the name of LiteBoxd's claim: remove folder "+
			"and volume by hand", site.ErrRefused, folder, v.Name)
	}
	err := r.removeFolder(ctx, v, folder)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil && !mayStay {
		return err
	}
	if err != nil {
		r.Site.Warn("the folder %s on %s stays: %v", folder, kube.HostnameOf(v), err)
	}
	return storage.DeleteVolume(ctx, r.Site.API, v.Name)
}

func (r *Relocation) removeFolder(ctx context.Context, v *corev1.PersistentVolume, folder string) error {
	name := kube.HostnameOf(v)
	if n, err := r.nodeOf(ctx, v); err != nil {
		return err
	} else if n != nil {
		name = n.Name
	}
	h, err := r.Site.HostOf(ctx, name)
	if err != nil {
		return fmt.Errorf("%w: remove the volume %s: %w", site.ErrHosts, v.Name, err)
	}
	if err := r.hold(ctx, h); err != nil {
		return err
	}
	if _, err := h.Root(ctx, "remove the folder of the volume", "rm", "-rf", "--", folder); err != nil {
		return fmt.Errorf("%w: %w", site.ErrHosts, fault.OnHost(err, h.Name))
	}
	return nil
}
