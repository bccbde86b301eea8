package localdata

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
)

// holding describes a volume that a host holds.
func (f *Facts) holding(h Host, v *corev1.PersistentVolume) Holding {
	size := v.Spec.Capacity[corev1.ResourceStorage]
	d := Holding{Host: h.Name, Use: Unclaimed, Volume: v.Name, Size: size.Value(), Path: folderOf(v)}
	claim := v.Spec.ClaimRef
	if claim == nil {
		return d
	}
	d.Namespace, d.Claim = claim.Namespace, claim.Name
	for i := range f.Pods {
		if p := &f.Pods[i]; uses(p, v) {
			d.Pods = append(d.Pods, p.Namespace+"/"+p.Name)
		}
	}
	slices.Sort(d.Pods)
	in := func(namespace string) bool { return namespace == "" || namespace == claim.Namespace }
	id, isSandbox := strings.CutPrefix(claim.Name, f.SandboxClaims)
	switch {
	case claim.Name == f.DatabaseClaim && in(f.DatabaseNamespace):
		d.Use = Database
		if v.Status.Phase != corev1.VolumeBound && f.hasOther(v) {
			d.Use = Former
		}
	case f.SandboxClaims != "" && isSandbox && in(f.SandboxNamespace):
		d.Use, d.Sandbox = Sandbox, id
	case v.Status.Phase == corev1.VolumeBound:
		d.Use = Claimed
	}
	return d
}

// hasOther reports whether another volume than this one has its claim now.
func (f *Facts) hasOther(v *corev1.PersistentVolume) bool {
	return slices.ContainsFunc(f.Volumes, func(other corev1.PersistentVolume) bool {
		claim := other.Spec.ClaimRef
		return other.Name != v.Name && other.Status.Phase == corev1.VolumeBound && claim != nil &&
			claim.Namespace == v.Spec.ClaimRef.Namespace && claim.Name == v.Spec.ClaimRef.Name
	})
}

func (d Holding) name() string { return d.Namespace + "/" + d.Claim + " " + d.Volume + " " + d.Path }

// String says what the data is for, how much it may be, where it is and which pods use it, fit for a terminal.
func (d Holding) String() string {
	const mostPods = 3
	var parts []string
	add := func(text string) { parts = append(parts, text) }
	what := string(d.Use)
	if d.Use == Sandbox {
		what += " " + d.Sandbox
	}
	switch {
	case d.Use == Unclaimed && d.Claim != "":
		add("the volume " + d.Volume + ", kept of the claim " + d.Namespace + "/" + d.Claim)
	case d.Use == Unclaimed:
		add("the volume " + d.Volume + ", which nothing has claimed")
	case d.Use == Stray:
		add("a " + what)
	case d.Use == Claimed:
		add("the claim " + d.Namespace + "/" + d.Claim)
	default:
		add(what + " (the claim " + d.Namespace + "/" + d.Claim + ")")
	}
	if d.Size > 0 {
		add("up to " + progress.Bytes(d.Size))
	}
	if d.Path != "" {
		add("in " + d.Path)
	}
	if n := len(d.Pods); n > 0 {
		pods := slices.Clone(d.Pods[:min(n, mostPods)])
		if n > mostPods {
			pods = append(pods, "others")
		}
		add("used by " + strings.Join(pods, ", "))
	}
	return printable.Line(strings.Join(parts, ", "))
}
