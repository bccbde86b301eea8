package relocation

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/localdata"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Losses is what is lost when LiteBoxd's database is replaced by one of a backup.
type Losses struct {
	// Backup is the file or folder of it, Since when it was made.
	Backup string    `json:"backup"`
	Since  time.Time `json:"since"`
	// Lost is the node that had the database and is gone, "" for none. Then nobody can tell which rows are new.
	Lost string `json:"lost,omitempty"`
	// Rows are the templates and the like that came since, and Unknown is why they could not be found out, "" when they
	// were. Sandboxes are the persistent ones whose volumes are on the node that is gone. Pods are those of sandboxes that
	// ran on it, as far as the cluster still knows them.
	Rows      []string `json:"rows,omitempty"`
	Unknown   string   `json:"unknown,omitempty"`
	Sandboxes []string `json:"sandboxes,omitempty"`
	Pods      []string `json:"pods,omitempty"`
	// To is the node that LiteBoxd comes to run on.
	To string `json:"to"`
}

// Losses finds out what is lost by [Relocation.Restore]. It changes nothing.
func (r *Relocation) Losses(ctx context.Context, s *Source, to string) (*Losses, error) {
	m, err := r.find(ctx, RestorePhase, s)
	if err == nil {
		err = checkCopy(ctx, m)
	}
	if err == nil {
		err = m.aim(ctx, to)
	}
	if err != nil {
		return nil, refused(err)
	}
	l := &Losses{Backup: s.Path, Since: s.Time, To: m.to.Name}
	switch {
	case m.isLost:
		l.Lost = m.fromNode
		for _, s := range m.sandboxes {
			if s.Node == m.fromNode {
				l.Pods = append(l.Pods, printable.Line(s.Name))
			}
		}
		l.Sandboxes, err = m.lostSandboxes(ctx)
	case m.claim != nil && m.claim.Volume != "":
		l.Rows, err = m.newRows(ctx)
		if err != nil && ctx.Err() == nil {
			l.Unknown, err = printable.Text(err.Error()), nil
		}
	}
	return l, err
}

// newRows are those that the database has and the backup has not.
func (m *relocating) newRows(ctx context.Context) (_ []string, err error) {
	dir, remove, err := backup.ClearFolder(filepath.Dir(m.site.StatePath))
	if err != nil {
		return nil, fmt.Errorf("make a folder for the database: %w", err)
	}
	defer func() { err = errors.Join(err, remove()) }()
	_, rows, err := m.change.CopyDatabase(ctx, filepath.Join(dir, liteboxd.DatabaseFile))
	return rows.Missing(m.source.Rows), err
}

// lostSandboxes are the persistent sandboxes whose volumes are on the node that is gone, and on no other.
func (m *relocating) lostSandboxes(ctx context.Context) ([]string, error) {
	facts, err := m.relocation.Members.StorageFacts(ctx)
	if err != nil {
		return nil, err
	}
	gone := localdata.Host{Name: m.fromNode, Node: m.fromNode, Hostnames: []string{kube.HostnameOf(m.from)}}
	var lost []string
	for _, d := range localdata.Judge(facts, []localdata.Host{gone}) {
		if d.Use == localdata.Sandbox {
			lost = append(lost, printable.Line(d.Sandbox))
		}
	}
	return lost, nil
}

// Restore puts LiteBoxd's database back from a backup, on a new volume: on the node that is named, or without a name on
// the one that it is on, or where LiteBoxd can run. What is there is backed up first, and its volume kept. That of a
// node that is gone is kept as well: the node may come back.
func (r *Relocation) Restore(ctx context.Context, s *Source, to string) error {
	m, err := r.find(ctx, RestorePhase, s)
	if err != nil {
		return refused(err)
	}
	if m.from == nil && m.users.Claim.Spec.StorageClassName != nil && *m.users.Claim.Spec.StorageClassName != localPath {
		return fmt.Errorf("%w: LiteBoxd has no volume, and is to have one of the class %s, whose volumes boxlift does "+
			"not make", site.ErrRefused, *m.users.Claim.Spec.StorageClassName)
	}
	if err := checkCopy(ctx, m); err != nil {
		return refused(err)
	}
	if err := m.aim(ctx, to); err != nil {
		return refused(err)
	}
	if m.isRestored() {
		return nil
	}
	var lost []string
	if m.isLost {
		if lost, err = m.lostSandboxes(ctx); err != nil {
			return refused(err)
		}
	}
	if err := m.carryOut(ctx); err != nil {
		return err
	}
	m.tellKept(lost)
	return m.change.CloseBackup()
}

// isRestored reports whether the run that is gone on with had done its work, and died before it could say so.
func (m *relocating) isRestored() bool {
	return m.engine.Resume && m.pending == nil && m.from != nil && m.from.Annotations[stage] == moved &&
		m.from.Annotations[content] == m.content()
}

// tellKept says what is kept, and what waits for a node that is gone.
func (m *relocating) tellKept(lost []string) {
	m.relocation.tellLeft(m.volumes)
	switch {
	case m.goesOn():
		kept := former(m.volumes, m.next)
		for i := range kept {
			m.relocation.tellFormer(&kept[i])
		}
		return
	case m.from == nil:
		return
	case !m.isLost || m.source == nil:
		m.relocation.tellFormer(m.from)
		return
	}
	m.site.Warn("LiteBoxd's database is that of %s; what was done since is on %s only, in the folder %s of the volume "+
		"%s, which is kept: should the host come back, it is there", m.source.when(), m.fromNode, kube.FolderOf(m.from),
		m.from.Name)
	if len(lost) > 0 {
		m.site.Warn("these persistent sandboxes have their volumes on %s, and wait for it: %s", m.fromNode,
			strings.Join(lost, ", "))
	}
}
