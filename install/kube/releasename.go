package kube

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Helm's marks on the objects of a release.
const (
	ManagedByLabel      = "app.kubernetes.io/managed-by"
	ManagedByHelm       = "Helm"
	ReleaseAnnotation   = "meta.helm.sh/release-name"
	NamespaceAnnotation = "meta.helm.sh/release-namespace"
)

// ReleaseName names a Helm release.
type ReleaseName struct{ Namespace, Name string }

// Mark puts Helm's marks on an object.
func (r ReleaseName) Mark(object metav1.Object) {
	labels, annotations := maps.Clone(object.GetLabels()), maps.Clone(object.GetAnnotations())
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	labels[ManagedByLabel] = ManagedByHelm
	annotations[ReleaseAnnotation], annotations[NamespaceAnnotation] = r.Name, r.Namespace
	object.SetLabels(labels)
	object.SetAnnotations(annotations)
}

// Owns reports whether an object bears the release's marks.
func (r ReleaseName) Owns(object metav1.Object) bool {
	annotations := object.GetAnnotations()
	return annotations[ReleaseAnnotation] == r.Name && annotations[NamespaceAnnotation] == r.Namespace
}
