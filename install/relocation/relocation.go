// Package relocation brings LiteBoxd's database to another volume: to one on another node, with what is on the volume
// that it has, or to one with what is in a backup.
//
// Contract: the database is in exactly one of two volumes that LiteBoxd runs with, before and after; in between
// LiteBoxd is stopped, and sandboxes go on running. The new volume is known to the cluster only when the copy on it was
// opened there and proven. The volume from before is kept, until somebody says that it can go ([Relocation.Confirm]);
// what fails goes back to it. How far a relocation has come is in the cluster, at the new volume: who goes on, with the
// state or without, does so from there.
package relocation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/storage"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/manifests"
)

// Relocation brings LiteBoxd's database to another volume.
type Relocation struct {
	Site     *site.Site
	Engine   *run.Engine
	Deployer *liteboxd.Deployer
	Members  *members.Members
}

// Annotations of the new volume.
const (
	// replaces is the name of the volume that the database was on, "" for none.
	replaces = "boxlift.dev/replaces-volume"
	// content is what is on the volume: what was on the other one, or the sha256 of a backup's database.
	content = "boxlift.dev/content"
	// stage is how far it has come.
	stage = "boxlift.dev/relocation"
)

// ofVolume is the content that comes from the volume before.
const ofVolume = "of-volume"

// The stages.
const (
	copied  = "copied"  // proven, and never used
	started = "started" // LiteBoxd was started with it
	moved   = "moved"   // it is the volume now
	left    = "left"    // LiteBoxd went back to the one before
)

// beforeRestore begins what a backup says that was made before a restore: what LiteBoxd was to become.
const beforeRestore = "the backup "

// localPath is the storage class whose volumes are folders of a node that k3s makes.
const localPath = "local-path"

// relocating is the database on its way to another volume.
type relocating struct {
	relocation *Relocation
	site       *site.Site
	engine     *run.Engine
	phase      string
	change     *liteboxd.Change
	users      *liteboxd.Users
	source     *Source // nil for what is on the volume

	claim   *kube.Claim               // nil for none
	volumes []corev1.PersistentVolume // those that have had the database
	from    *corev1.PersistentVolume  // nil for none
	// pending is a volume that an earlier run has brought the database to without coming to its end; nil for none.
	// isThere tells that LiteBoxd has it already: then from is the same one, and what users do is on it.
	pending *corev1.PersistentVolume
	isThere bool
	// fromNode is the node that the volume is on, fromHost its host, nil when that is not reached. isLost tells that
	// the node is gone, for now or for good.
	fromNode string
	fromHost *site.Host
	isLost   bool

	to     *corev1.Node
	toHost *site.Host
	// next is the name of the new volume, folder where it is.
	next, folder string
	sandboxes    []liteboxd.Sandbox
}

// find finds out where the database is, and how far a relocation has come. Nothing is changed.
func (r *Relocation) find(ctx context.Context, phase string, source *Source) (*relocating, error) {
	m := &relocating{relocation: r, site: r.Site, engine: r.Engine, phase: phase, source: source,
		change: r.Deployer.UpgradeTo("")}
	var err error
	if m.users, err = m.change.DatabaseUsers(ctx); err != nil {
		return nil, err
	}
	if m.claim, err = r.Site.API.Claim(ctx, m.change.System, manifests.DataClaim); err != nil {
		return nil, err
	}
	if m.volumes, err = storage.Volumes(ctx, r.Site.API, liteboxd.VolumeLabel); err != nil {
		return nil, err
	}
	was := ""
	if m.claim != nil {
		was = m.claim.Volume
	}
	for i := range m.volumes {
		v := &m.volumes[i]
		if s := v.Annotations[stage]; s == copied || s == started {
			m.pending = v
		}
	}
	if m.pending != nil {
		if m.isThere = was == m.pending.Name; !m.isThere {
			was = m.pending.Annotations[replaces]
		}
	}
	if was != "" {
		if m.from, err = storage.Volume(ctx, r.Site.API, was); err != nil {
			return nil, err
		}
	}
	if err := m.findHost(ctx); err != nil {
		return nil, err
	}
	m.sandboxes, err = m.change.ListSandboxes(ctx)
	return m, err
}

// findHost finds the host that the volume is on.
func (m *relocating) findHost(ctx context.Context) error {
	if m.from == nil {
		return nil
	}
	if kube.FolderOf(m.from) == "" || kube.HostnameOf(m.from) == "" {
		return fmt.Errorf("%w: LiteBoxd's database is on the volume %s, which is no folder of one node: it needs no "+
			"other node, and is brought back with the storage's own tools", site.ErrRefused, m.from.Name)
	}
	node, err := m.relocation.nodeOf(ctx, m.from)
	if err != nil {
		return err
	}
	m.fromNode = kube.HostnameOf(m.from)
	if node != nil {
		m.fromNode = node.Name
	}
	h, reached := m.site.HostOf(ctx, m.fromNode)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.fromHost = h
	ready := node != nil && kube.NodeOf(node).Ready
	switch {
	case reached == nil && ready:
		return m.relocation.hold(ctx, h)
	case reached == nil:
		return fault.WithHint(fmt.Errorf("%w: LiteBoxd's database is on the node %s, which is not Ready, and whose host "+
			"is reached", site.ErrRefused, m.fromNode), "boxlift install starts k3s there again; where the host cannot "+
			"be mended, turn it off, and run the command again")
	case ready:
		return fmt.Errorf("%w: the node %s, which has LiteBoxd's database, is Ready, and its host is not reached: %w",
			site.ErrHosts, m.fromNode, reached)
	case node == nil && slices.ContainsFunc(m.site.Hosts, func(h *site.Host) bool {
		return h.Conn != nil && h.NodeName() == m.fromNode
	}):
		return fault.WithHint(fmt.Errorf("%w: LiteBoxd's database is on the host %s, which is reached and is no node of "+
			"the cluster any more", site.ErrRefused, m.fromNode), "boxlift install brings its node back; then run the "+
			"command again")
	}
	m.isLost = true
	return nil
}

// checkCopy refuses to put a backup in the place of a copy that is newer: one that a move made when LiteBoxd was
// stopped, before the node was lost that the database was on.
func checkCopy(ctx context.Context, m *relocating) error {
	if !m.isLost || !m.hasCopy() {
		return nil
	}
	running, err := m.change.Running(ctx, m.users)
	if err != nil || running != "" {
		return err
	}
	return fault.WithHint(fmt.Errorf("%w: a move has copied the newest of LiteBoxd's database to %s before the node %s "+
		"was lost", site.ErrRefused, kube.HostnameOf(m.pending), m.fromNode), "go on with it, which needs the other "+
		"node no more: boxlift liteboxd move --to "+kube.HostnameOf(m.pending))
}

// hasCopy reports whether there is a proven copy of what is on the volume, with which LiteBoxd has not run.
func (m *relocating) hasCopy() bool {
	return m.pending != nil && !m.isThere && m.pending.Annotations[stage] == copied &&
		m.pending.Annotations[content] == ofVolume
}

// nodeOf is the node that a volume is bound to, nil when there is none.
func (r *Relocation) nodeOf(ctx context.Context, v *corev1.PersistentVolume) (*corev1.Node, error) {
	nodes, err := r.Site.API.NodesLabelled(ctx, corev1.LabelHostname, kube.HostnameOf(v))
	if err != nil || len(nodes) == 0 {
		return nil, err
	}
	return &nodes[0], nil
}

// hold keeps other runs away from a host.
func (r *Relocation) hold(ctx context.Context, h *site.Host) error {
	if h.Held {
		return nil
	}
	if err := r.Engine.CheckHelper(ctx, h); err != nil {
		return fmt.Errorf("%w: %w", site.ErrHosts, fault.OnHost(err, h.Name))
	}
	if err := r.Engine.Hold(ctx, h); err != nil {
		return fmt.Errorf("%w: %w", site.ErrHosts, fault.OnHost(err, h.Name))
	}
	return nil
}

// aim sets where the database is to go: to the node or host that is called so, and without a name to where the last run
// was about to bring it, to the node that it is on, or else to the first host of install.yaml where LiteBoxd can run.
func (m *relocating) aim(ctx context.Context, name string) error {
	nodes, err := m.site.API.NodesLabelled(ctx, corev1.LabelHostname, "")
	if err != nil {
		return err
	}
	all := make([]kube.Node, 0, len(nodes))
	for i := range nodes {
		all = append(all, kube.NodeOf(&nodes[i]))
	}
	if name == "" {
		return m.choose(ctx, nodes, all)
	}
	i := slices.IndexFunc(all, func(n kube.Node) bool {
		if n.Name == name || slices.Contains(n.Addresses, name) {
			return true
		}
		return slices.ContainsFunc(m.site.Hosts, func(h *site.Host) bool {
			is := m.site.NodeOf(h, all)
			return site.IsCalled(h.Config, name) && is != nil && is.Name == n.Name
		})
	})
	if i < 0 {
		var names []string
		for _, n := range all {
			names = append(names, n.Name)
		}
		return fmt.Errorf("%w: the cluster has no node %q; its nodes are %s", site.ErrRefused, name,
			strings.Join(names, ", "))
	}
	if reason := m.keepsOff(&nodes[i]); reason != "" {
		return fmt.Errorf("%w: LiteBoxd cannot run on the node %s: %s", site.ErrRefused, nodes[i].Name, reason)
	}
	h, err := m.site.HostOf(ctx, nodes[i].Name)
	if err != nil {
		return fmt.Errorf("%w: log in to the host of the node %s: %w", site.ErrHosts, nodes[i].Name, err)
	}
	return m.settle(ctx, &nodes[i], h)
}

// choose takes a node where nobody has named one.
func (m *relocating) choose(ctx context.Context, nodes []corev1.Node, all []kube.Node) error {
	var candidates []string
	for _, v := range []*corev1.PersistentVolume{m.pending, m.from} {
		if v == nil {
			continue
		}
		if n, err := m.relocation.nodeOf(ctx, v); err != nil {
			return err
		} else if n != nil {
			candidates = append(candidates, n.Name)
		}
	}
	for _, h := range m.site.Hosts {
		if h.Conn == nil {
			_ = m.site.Connect(ctx, h) // one that is not reached is no candidate
		}
		if n := m.site.NodeOf(h, all); n != nil {
			candidates = append(candidates, n.Name)
		}
	}
	var reasons []string
	for _, name := range candidates {
		i := slices.IndexFunc(nodes, func(n corev1.Node) bool { return n.Name == name })
		reason := m.keepsOff(&nodes[i])
		if reason == "" {
			h, err := m.site.HostOf(ctx, name)
			if err == nil {
				return m.settle(ctx, &nodes[i], h)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			reason = err.Error()
		}
		if text := name + ": " + reason; !slices.Contains(reasons, text) {
			reasons = append(reasons, text)
		}
	}
	return fmt.Errorf("%w: LiteBoxd can run on no node: %s", site.ErrRefused, strings.Join(reasons, "; "))
}

// keepsOff says why LiteBoxd could not run on a node, "" when it could.
func (m *relocating) keepsOff(n *corev1.Node) string {
	for i := range m.users.Deployments {
		d := &m.users.Deployments[i]
		if reason := kube.KeepsOff(d, n); reason != "" {
			return d.Name + ": " + reason
		}
	}
	return ""
}

// settle sets the node, and the name and place of the volume there.
func (m *relocating) settle(ctx context.Context, n *corev1.Node, h *site.Host) error {
	m.to, m.toHost = n, h
	if err := m.relocation.hold(ctx, h); err != nil {
		return err
	}
	if m.isPending() {
		m.next, m.folder = m.pending.Name, kube.FolderOf(m.pending)
	} else {
		m.next = m.nextName()
		parent := members.LocalStorage
		if m.from != nil {
			parent = path.Dir(path.Clean(kube.FolderOf(m.from)))
		}
		m.folder = path.Join(parent, strings.Join([]string{m.next, m.change.System, manifests.DataClaim}, "_"))
	}
	target := "the node " + n.Name
	if m.source != nil {
		target = beforeRestore + m.source.Path + " on " + target
	}
	m.change = m.relocation.Deployer.UpgradeTo(target)
	return nil
}

// isPending reports whether what an earlier run has begun is what is wanted. What LiteBoxd has run with and went back
// from is not: users may have written there, and it is nothing to be written over.
func (m *relocating) isPending() bool {
	return m.pending != nil && m.pending.Annotations[content] == m.content() &&
		kube.HostnameOf(m.pending) == m.to.Labels[corev1.LabelHostname] &&
		(m.pending.Annotations[stage] == copied || m.isThere || m.claim == nil || m.claim.Volume == "")
}

// goesOn reports whether LiteBoxd has the volume already that an earlier run was to give it: the rest is to start it
// and to say so.
func (m *relocating) goesOn() bool { return m.isThere && m.isPending() }

// content is what is to be on the new volume.
func (m *relocating) content() string {
	if m.source == nil {
		return ofVolume
	}
	return m.source.SHA256
}

// nextName is the name of a volume that is to be made. Who goes on after a run that was killed finds the same one.
func (m *relocating) nextName() string {
	was := ""
	if m.from != nil {
		was = string(m.from.UID)
	}
	for n := 0; ; n++ {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%d", was, m.to.Name, n))
		name := "liteboxd-" + hex.EncodeToString(sum[:])[:16]
		if !slices.ContainsFunc(m.volumes, func(v corev1.PersistentVolume) bool { return v.Name == name }) {
			return name
		}
	}
}

// volume is the new volume as the cluster has it now, nil while there is none. One on its way out is none, and in the
// way of another of its name.
func (m *relocating) volume(ctx context.Context) (*corev1.PersistentVolume, error) {
	v, err := storage.Volume(ctx, m.site.API, m.next)
	if err == nil && v != nil && v.DeletionTimestamp != nil {
		return nil, fmt.Errorf("the volume %s is on its way out: run the command again when it is gone", v.Name)
	}
	return v, err
}

// deleteVolume deletes a volume, and waits until there is none.
func deleteVolume(ctx context.Context, s *site.Site, name string) error {
	if err := storage.DeleteVolume(ctx, s.API, name); err != nil {
		return err
	}
	return s.Waiting(ctx, "wait for the end of the volume", func(ctx context.Context) error {
		return site.Poll(ctx, func(ctx context.Context) (bool, error) {
			v, err := storage.Volume(ctx, s.API, name)
			return err == nil && v == nil, err
		})
	})
}

// bound is the name of the volume that the claim has now, "" for none.
func (m *relocating) bound(ctx context.Context) (string, error) {
	claim, err := m.site.API.Claim(ctx, m.change.System, manifests.DataClaim)
	if err != nil || claim == nil || claim.Deleting {
		return "", err
	}
	return claim.Volume, nil
}

// former are the volumes that have had the database and do not have it any more. Those that LiteBoxd went back from are
// not among them: what was written on them meanwhile is nowhere else, and boxlift never removes them.
func former(volumes []corev1.PersistentVolume, current string) []corev1.PersistentVolume {
	return slices.DeleteFunc(slices.Clone(volumes), func(v corev1.PersistentVolume) bool {
		return v.Name == current || v.Annotations[stage] == left
	})
}

// tellFormer says which volumes are kept.
func (r *Relocation) tellFormer(v *corev1.PersistentVolume) {
	r.Site.Warn("the volume %s, the folder %s on %s, has LiteBoxd's database as it was before, and is kept; when it is "+
		"not needed any more, boxlift liteboxd move --confirm removes it", v.Name, kube.FolderOf(v), kube.HostnameOf(v))
}

// tellLeft says which volumes stay that LiteBoxd went back from.
func (r *Relocation) tellLeft(volumes []corev1.PersistentVolume) {
	for i := range volumes {
		if v := &volumes[i]; v.Annotations[stage] == left {
			r.Site.Warn("the volume %s, the folder %s on %s, has what was written while LiteBoxd ran with it, before it "+
				"went back: it stays, until you remove the folder and the PersistentVolume yourself", v.Name,
				kube.FolderOf(v), kube.HostnameOf(v))
		}
	}
}

// errKept says that a volume is kept that nobody has looked after.
func errKept(v *corev1.PersistentVolume) error {
	return fault.WithHint(fmt.Errorf("%w: the volume %s on %s, which LiteBoxd's database was on, is kept since the last "+
		"time that it was moved", site.ErrRefused, v.Name, kube.HostnameOf(v)),
		"boxlift liteboxd move --confirm removes it; then run the command again")
}

// refused makes an error a refusal unless it is of another class already.
func refused(err error) error {
	if err == nil || errors.Is(err, site.ErrRefused) || errors.Is(err, site.ErrHosts) {
		return err
	}
	return fmt.Errorf("%w: %w", site.ErrCluster, err)
}
