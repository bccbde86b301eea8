//go:build linux

package platform

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// object reads an object of the API, and reports whether it is there.
func (p *Platform) object(path string, to any) bool {
	found := p.API.Object(p.t, path)
	if found == nil {
		return false
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, to); err != nil {
		p.t.Error(err)
	}
	return true
}

// control is what the controllers and kubelets do: every workload is rolled out, DaemonSets on all nodes, and what
// mounts claims as far as these have volumes.
func (p *Platform) control() {
	p.API.ControlVolumes(p.t)
	nodes := int32(len(p.API.OfKind(p.t, schema.GroupVersionKind{Version: "v1", Kind: "Node"})))
	of := func(kind string) schema.GroupVersionKind { return appsv1.SchemeGroupVersion.WithKind(kind) }
	for _, found := range p.API.OfKind(p.t, of("DaemonSet")) {
		var d appsv1.DaemonSet
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &d); err != nil {
			p.t.Error(err)
		}
		status := appsv1.DaemonSetStatus{DesiredNumberScheduled: nodes, CurrentNumberScheduled: nodes,
			UpdatedNumberScheduled: nodes, NumberReady: nodes, NumberAvailable: nodes}
		if !equality.Semantic.DeepEqual(d.Status, status) {
			d.Status = status
			p.API.Put(p.t, &d)
		}
	}
	for _, found := range p.API.OfKind(p.t, of("Deployment")) {
		var d appsv1.Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &d); err != nil {
			p.t.Error(err)
		}
		if len(d.Spec.Template.Spec.Volumes) > 0 { // its pods are there as far as its claim is
			continue
		}
		replicas := int32(1)
		if d.Spec.Replicas != nil {
			replicas = *d.Spec.Replicas
		}
		status := appsv1.DeploymentStatus{Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: replicas,
			AvailableReplicas: replicas}
		if !equality.Semantic.DeepEqual(d.Status, status) {
			d.Status = status
			p.API.Put(p.t, &d)
		}
	}
}
