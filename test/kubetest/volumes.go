package kubetest

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// ControlVolumes does what controllers, scheduler and kubelets do about claims and the Deployments that mount them: a
// claim that names a volume gets it, if that is free or waits for it; a volume whose claim has gone is released, or, as
// its policy says, destroyed, which fails the test; a Deployment has its pods, on the node that the volume is bound to,
// where they stay when that node is not Ready. A claim that a pod mounts is not deleted by the test's server, so it is
// an error to delete one. A test calls it from [Memory.Done].
func (m *Memory) ControlVolumes(t testing.TB) {
	t.Helper()
	// What one thing comes to may be what another waits for.
	for range 3 {
		m.controlClaims(t)
		m.controlVolumes(t)
		m.controlPods(t)
	}
}

func ofCore(kind string) schema.GroupVersionKind { return corev1.SchemeGroupVersion.WithKind(kind) }

func into(t testing.TB, o *unstructured.Unstructured, to any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, to); err != nil {
		t.Error(err)
	}
}

func (m *Memory) controlClaims(t testing.TB) {
	t.Helper()
	for _, found := range m.OfKind(t, ofCore("PersistentVolumeClaim")) {
		var claim corev1.PersistentVolumeClaim
		into(t, found, &claim)
		v := m.volume(t, claim.Spec.VolumeName)
		if v == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.Namespace != claim.Namespace ||
			v.Spec.ClaimRef.Name != claim.Name || v.Spec.ClaimRef.UID != "" && v.Spec.ClaimRef.UID != claim.UID {
			continue
		}
		if v.Spec.ClaimRef.UID == "" || v.Status.Phase != corev1.VolumeBound {
			v.Spec.ClaimRef.UID, v.Status.Phase = claim.UID, corev1.VolumeBound
			m.Put(t, v)
		}
		if claim.Status.Phase != corev1.ClaimBound {
			claim.Status.Phase = corev1.ClaimBound
			m.Put(t, &claim)
		}
	}
}

func (m *Memory) volume(t testing.TB, name string) *corev1.PersistentVolume {
	t.Helper()
	if name == "" {
		return nil
	}
	found := m.Object(t, "/api/v1/persistentvolumes/"+name)
	if found == nil {
		return nil
	}
	v := &corev1.PersistentVolume{}
	into(t, found, v)
	return v
}

func (m *Memory) controlVolumes(t testing.TB) {
	t.Helper()
	for _, found := range m.OfKind(t, ofCore("PersistentVolume")) {
		var v corev1.PersistentVolume
		into(t, found, &v)
		of, phase := v.Spec.ClaimRef, corev1.VolumeAvailable
		if of != nil && of.UID != "" {
			claim := m.Object(t, "/api/v1/namespaces/"+of.Namespace+"/persistentvolumeclaims/"+of.Name)
			phase = corev1.VolumeBound
			if claim == nil || claim.GetUID() != of.UID {
				phase = corev1.VolumeReleased
			}
		}
		if phase == corev1.VolumeReleased && v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
			t.Errorf("the volume %s is destroyed with its claim", v.Name)
		}
		if v.Status.Phase != phase {
			v.Status.Phase = phase
			m.Put(t, &v)
		}
	}
}

// controlPods has the Deployments have their pods that mount claims.
func (m *Memory) controlPods(t testing.TB) {
	t.Helper()
	for _, found := range m.OfKind(t, appsv1.SchemeGroupVersion.WithKind("Deployment")) {
		var d appsv1.Deployment
		into(t, found, &d)
		claim := claimOf(&d.Spec.Template.Spec)
		if claim == "" {
			continue
		}
		node := m.nodeOfClaim(t, d.Namespace, claim)
		wanted, ready := 1, 0
		if d.Spec.Replicas != nil {
			wanted = int(*d.Spec.Replicas)
		}
		for i := range max(wanted, m.podsOf(t, &d)) {
			path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s-%d", d.Namespace, d.Name, i)
			is := m.Object(t, path)
			switch {
			case i >= wanted && is != nil:
				if !m.isGone(t, is) {
					m.Remove(t, path)
				}
			case i < wanted && is == nil:
				m.Put(t, podOf(&d, i, node))
			case i < wanted && node != "":
				if on, _, _ := unstructured.NestedString(is.Object, "spec", "nodeName"); on == "" {
					m.Put(t, podOf(&d, i, node))
				}
			}
			if i < wanted && node != "" {
				ready++
			}
		}
		n, has := int32(wanted), int32(ready)
		status := appsv1.DeploymentStatus{Replicas: n, UpdatedReplicas: n, ReadyReplicas: has, AvailableReplicas: has}
		if !equality.Semantic.DeepEqual(d.Status, status) {
			d.Status = status
			m.Put(t, &d)
		}
	}
}

// isGone reports whether a pod is on a node that is not Ready: nobody says that it has ended.
func (m *Memory) isGone(t testing.TB, pod *unstructured.Unstructured) bool {
	t.Helper()
	name, _, _ := unstructured.NestedString(pod.Object, "spec", "nodeName")
	found := m.Object(t, "/api/v1/nodes/"+name)
	if name == "" || found == nil {
		return false
	}
	var n corev1.Node
	into(t, found, &n)
	return !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func claimOf(spec *corev1.PodSpec) string {
	i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })
	if i < 0 {
		return ""
	}
	return spec.Volumes[i].PersistentVolumeClaim.ClaimName
}

// nodeOfClaim is the node that a claim's volume is bound to, "" while it has none.
func (m *Memory) nodeOfClaim(t testing.TB, namespace, name string) string {
	t.Helper()
	found := m.Object(t, "/api/v1/namespaces/"+namespace+"/persistentvolumeclaims/"+name)
	if found == nil {
		return ""
	}
	var claim corev1.PersistentVolumeClaim
	into(t, found, &claim)
	v := m.volume(t, claim.Spec.VolumeName)
	if claim.Status.Phase != corev1.ClaimBound || v == nil || v.Spec.NodeAffinity == nil {
		return ""
	}
	for _, n := range m.OfKind(t, ofCore("Node")) {
		for _, term := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
			if slices.Contains(term.MatchExpressions[0].Values, n.GetLabels()[corev1.LabelHostname]) {
				return n.GetName()
			}
		}
	}
	return ""
}

// podsOf is how many pods a Deployment has.
func (m *Memory) podsOf(t testing.TB, d *appsv1.Deployment) int {
	t.Helper()
	n := 0
	for m.Object(t, fmt.Sprintf("/api/v1/namespaces/%s/pods/%s-%d", d.Namespace, d.Name, n)) != nil {
		n++
	}
	return n
}

func podOf(d *appsv1.Deployment, i int, node string) *corev1.Pod {
	p := &corev1.Pod{Spec: *d.Spec.Template.Spec.DeepCopy()}
	p.Namespace, p.Name, p.Labels = d.Namespace, fmt.Sprintf("%s-%d", d.Name, i), d.Spec.Template.Labels
	p.UID = types.UID(p.Name + " on " + node)
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: d.Name, UID: "1"}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodPending
	if node != "" {
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return p
}

// BoundVolume is a claim, and the volume that it has: a folder of a node, as k3s' own provisioner makes it, which goes
// with its claim.
func BoundVolume(namespace, claim, class, volume, folder, hostname string) []runtime.Object {
	c := &corev1.PersistentVolumeClaim{}
	c.Namespace, c.Name, c.UID = namespace, claim, types.UID("uid of "+claim)
	c.Spec.VolumeName, c.Spec.StorageClassName, c.Status.Phase = volume, &class, corev1.ClaimBound
	v := &corev1.PersistentVolume{}
	v.Name, v.UID = volume, types.UID("uid of "+volume)
	v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: folder}
	v.Spec.StorageClassName, v.Status.Phase = class, corev1.VolumeBound
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	v.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: namespace,
		Name: claim, UID: c.UID}
	on := corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
		Values: []string{hostname}}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{on}}},
	}}
	return []runtime.Object{c, v}
}
