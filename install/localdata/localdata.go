// Package localdata judges which data goes with hosts that are to leave a cluster, or waits for one that is
// away, because it is on no other host.
//
// Contract: [Judge] is a function of its arguments alone: what the API says of volumes, and what was seen on
// the hosts. Where it cannot be told whether data is on a host, it is taken to be there. A volume that the
// cluster has given up itself, because its claim is gone and it is to be deleted, does not count; one that is
// kept, or that nothing has claimed yet, does. Network storage is on no host.
package localdata

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Facts are what the API says.
type Facts struct {
	Nodes   []corev1.Node
	Volumes []corev1.PersistentVolume
	// Pods are those of all namespaces.
	Pods []corev1.Pod
	// DatabaseClaim is the name of the claim of LiteBoxd's database, and SandboxClaims what those of
	// persistent sandboxes begin with. The namespaces are theirs, "" for any.
	DatabaseClaim, DatabaseNamespace string
	SandboxClaims, SandboxNamespace  string
}

// Host is one that is to leave, or to be drained.
type Host struct {
	// Name is what messages call it, Node the name of its node.
	Name, Node string
	// Hostnames are what a node that is not in the cluster any more may have had as the label
	// kubernetes.io/hostname, besides its name.
	Hostnames []string
	// Seen tells that the host itself was looked at. Then Found are those of the folders that [Folders]
	// names which are there, and Stray are folders and files that the provisioner of k3s may have made.
	Seen  bool
	Found []Folder
	Stray []string
}

// Folder is a folder or file on a host.
type Folder struct {
	Path string
	// Empty tells that there is nothing in it, Network that it is on a file system of a network.
	Empty, Network bool
}

// Use is what data is there for.
type Use string

// The uses.
const (
	Database  Use = "LiteBoxd's database"
	Sandbox   Use = "persistent sandbox"
	Claimed   Use = "claim"
	Unclaimed Use = "volume without a claim"
	// Former is a volume that LiteBoxd's database was on, and which is kept since it is on another one.
	Former Use = "LiteBoxd's database as it was before"
	Stray  Use = "folder that no volume names"
)

// Holding is data that a host holds and no other.
type Holding struct {
	// Host is the [Host.Name].
	Host string
	Use  Use
	// Volume is the name of the PersistentVolume, Namespace and Claim those of what claims it, or did; "" for
	// none.
	Volume, Namespace, Claim string
	// Size is the volume's capacity in bytes, 0 when it is not known.
	Size int64
	// Path is the folder on the host, "" when there is none that can be told.
	Path string
	// Pods use the volume, as "namespace/name", sorted.
	Pods []string
	// Sandbox is the id of the persistent sandbox.
	Sandbox string
}

// Judge says what the hosts hold that is on no other host, when all of them are away at the same time: by host,
// in their order, and LiteBoxd's database first.
func Judge(f Facts, leaving []Host) []Holding {
	var held []Holding
	for _, h := range leaving {
		from := len(held)
		for i := range f.Volumes {
			if v := &f.Volumes[i]; f.holds(h, v, leaving) {
				held = append(held, f.holding(h, v))
			}
		}
		for _, stray := range h.Stray {
			if !f.isNamed(h, stray) {
				held = append(held, Holding{Host: h.Name, Use: Stray, Path: stray})
			}
		}
		order := []Use{Database, Sandbox, Claimed, Former, Unclaimed, Stray}
		slices.SortStableFunc(held[from:], func(a, b Holding) int {
			if a.Use != b.Use {
				return slices.Index(order, a.Use) - slices.Index(order, b.Use)
			}
			return strings.Compare(a.name(), b.name())
		})
	}
	return held
}

// Folders are those of the volumes that may be on a host, each once: they are what is to be looked for there.
func Folders(f Facts, h Host) []string {
	var folders []string
	for i := range f.Volumes {
		v := &f.Volumes[i]
		if folder := folderOf(v); folder != "" && f.mayBeOn(h, v) && !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
	}
	return folders
}

// holds reports whether a host holds a volume that no host has which stays.
func (f *Facts) holds(h Host, v *corev1.PersistentVolume, leaving []Host) bool {
	folder := folderOf(v)
	switch {
	case isDoomed(v), !f.mayBeOn(h, v):
		return false
	case folder == "":
		return v.Spec.CSI != nil && affinityOf(v) != nil && !f.staysWith(v, leaving)
	case !h.Seen:
		return !f.staysWith(v, leaving) || f.isUsedOn(h, v)
	}
	i := slices.IndexFunc(h.Found, func(found Folder) bool { return found.Path == folder })
	switch {
	case i >= 0 && h.Found[i].Network:
		return false
	case f.node(h.Node) == nil && i < 0:
		return false // the node has left before, and the data with it
	case !f.staysWith(v, leaving):
		return true
	}
	// Each host that may use such a volume has a folder of its own.
	return i >= 0 && !h.Found[i].Empty
}

// isDoomed reports whether the cluster deletes a volume, because its claim is gone.
func isDoomed(v *corev1.PersistentVolume) bool {
	gone := v.Status.Phase == corev1.VolumeReleased || v.Status.Phase == corev1.VolumeFailed
	return gone && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
}

// folderOf is the folder of a host that a volume is, "" for other kinds.
func folderOf(v *corev1.PersistentVolume) string {
	switch {
	case v.Spec.Local != nil:
		return path.Clean(v.Spec.Local.Path)
	case v.Spec.HostPath != nil:
		return path.Clean(v.Spec.HostPath.Path)
	}
	return ""
}

func affinityOf(v *corev1.PersistentVolume) *corev1.NodeSelector {
	if v.Spec.NodeAffinity == nil {
		return nil
	}
	return v.Spec.NodeAffinity.Required
}

func (f *Facts) node(name string) *corev1.Node {
	i := slices.IndexFunc(f.Nodes, func(n corev1.Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &f.Nodes[i]
}

// staysWith reports whether a node may use the volume that does not leave.
func (f *Facts) staysWith(v *corev1.PersistentVolume, leaving []Host) bool {
	return slices.ContainsFunc(f.Nodes, func(n corev1.Node) bool {
		leaves := slices.ContainsFunc(leaving, func(h Host) bool { return h.Node == n.Name })
		return !leaves && matches(affinityOf(v), &n, false)
	})
}

// mayBeOn reports whether a volume may be on a host. Of a node that is not in the cluster any more, only the
// names are known: whatever else is asked of it, it may have had.
func (f *Facts) mayBeOn(h Host, v *corev1.PersistentVolume) bool {
	selector := affinityOf(v)
	if n := f.node(h.Node); n != nil {
		return matches(selector, n, true)
	}
	if selector == nil {
		return true
	}
	for _, term := range selector.NodeSelectorTerms {
		isOther := func(r corev1.NodeSelectorRequirement) bool { return r.Key != corev1.LabelHostname }
		known := corev1.NodeSelectorTerm{
			MatchExpressions: slices.DeleteFunc(slices.Clone(term.MatchExpressions), isOther),
			MatchFields:      term.MatchFields,
		}
		if len(known.MatchExpressions)+len(known.MatchFields) == 0 {
			return true
		}
		for _, hostname := range append([]string{h.Node}, h.Hostnames...) {
			n := &corev1.Node{}
			n.Name, n.Labels = h.Node, map[string]string{corev1.LabelHostname: hostname}
			if matches(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{known}}, n, true) {
				return true
			}
		}
	}
	return false
}

// matches reports whether a node is among those that a selector selects: nil selects all. What cannot be
// understood of it is taken to be unclear.
func matches(selector *corev1.NodeSelector, n *corev1.Node, unclear bool) bool {
	if selector == nil {
		return true
	}
	match, err := nodeaffinity.NewLazyErrorNodeSelector(selector).Match(n)
	return match || err != nil && unclear
}

// isUsedOn reports whether a pod on the host uses a volume.
func (f *Facts) isUsedOn(h Host, v *corev1.PersistentVolume) bool {
	return slices.ContainsFunc(f.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName == h.Node && uses(&p, v) })
}

// uses reports whether a pod uses a volume.
func uses(p *corev1.Pod, v *corev1.PersistentVolume) bool {
	claim := v.Spec.ClaimRef
	if claim == nil || p.Namespace != claim.Namespace {
		return false
	}
	return slices.ContainsFunc(p.Spec.Volumes, func(used corev1.Volume) bool {
		// The claim of an ephemeral volume has the names of the pod and of the volume.
		return used.PersistentVolumeClaim != nil && used.PersistentVolumeClaim.ClaimName == claim.Name ||
			used.Ephemeral != nil && p.Name+"-"+used.Name == claim.Name
	})
}

// isNamed reports whether a volume that may be on the host is, or is in, or has in it, what is at a path.
func (f *Facts) isNamed(h Host, stray string) bool {
	within := func(a, b string) bool { return a == b || strings.HasPrefix(a, b+"/") }
	return slices.ContainsFunc(f.Volumes, func(v corev1.PersistentVolume) bool {
		folder := folderOf(&v)
		return folder != "" && f.mayBeOn(h, &v) && (within(folder, stray) || within(stray, folder))
	})
}
