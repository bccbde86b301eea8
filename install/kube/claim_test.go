package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestVolumePlaces(t *testing.T) {
	bound := func(terms ...[]string) *corev1.PersistentVolume {
		selector := &corev1.NodeSelector{}
		for _, hosts := range terms {
			selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: hosts},
			}})
		}
		return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{Required: selector}}}
	}
	zone := bound([]string{"a"})
	zone.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Key = "topology.kubernetes.io/zone"
	for name, c := range map[string]struct {
		volume *corev1.PersistentVolume
		want   string
	}{
		"one host":            {bound([]string{"a"}), "a"},
		"the same host twice": {bound([]string{"a"}, []string{"a"}), "a"},
		"two hosts":           {bound([]string{"a", "b"}), ""},
		"one or the other":    {bound([]string{"a"}, []string{"b"}), ""},
		"a zone":              {zone, ""},
		"anywhere":            {&corev1.PersistentVolume{}, ""},
		"nowhere":             {bound(), ""},
	} {
		if got := hostOf(c.volume); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1-2"}}
	volume := func(source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-7"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source}}
	}
	for want, source := range map[string]corev1.PersistentVolumeSource{
		"/var/lib/kubelet/pods/1-2/volumes/kubernetes.io~csi/pvc-7/mount": {CSI: &corev1.CSIPersistentVolumeSource{Driver: "driver.longhorn.io"}},
		"/var/lib/kubelet/pods/1-2/volumes/kubernetes.io~nfs/pvc-7":       {NFS: &corev1.NFSVolumeSource{}},
		"": {ISCSI: &corev1.ISCSIPersistentVolumeSource{}},
	} {
		if got := mountPath(pod, volume(source)); got != want {
			t.Errorf("path %q, want %q", got, want)
		}
	}
}
