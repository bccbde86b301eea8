package manifests

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Workload is a kustomize folder of somebody's, for one site.
type Workload struct {
	Base fs.FS // with a kustomization.yaml at its top, as from UnpackFolder
	// Site is the site's own folder, with a kustomization.yaml at its top that goes over Base's objects; nil for none.
	Site fs.FS
	// Namespace is that of objects which name none and are in one.
	Namespace string
}

// Folders of what a workload is built in.
const (
	workloadBase  = "workload"
	workloadSite  = "site"
	workloadBuild = "build"
)

// RenderWorkload returns the objects of a workload in the order of application. Errors wrap ErrFolder where Base is to
// blame and ErrSite where Site is.
func RenderWorkload(w Workload) ([]*unstructured.Unstructured, error) {
	objects, err := Build(w.Base, ".")
	if err != nil {
		return nil, err
	}
	blame := ErrFolder
	if w.Site != nil {
		blame = ErrSite
		if objects, err = w.patched(); err != nil {
			return nil, err
		}
	}
	made := map[string]bool{}
	for _, object := range objects {
		if object.GetNamespace() == "" && !inCluster(object, objects) {
			object.SetNamespace(w.Namespace)
		}
		if err := keepable(object); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", blame, Name(object), err)
		}
		if made[identity(object)] {
			return nil, fmt.Errorf("%w: %s is there twice", blame, Name(object))
		}
		made[identity(object)] = true
	}
	sortObjects(objects)
	return objects, nil
}

// patched is the base with the site's kustomization over it.
func (w Workload) patched() ([]*unstructured.Unstructured, error) {
	files := map[string][]byte{}
	for folder, tree := range map[string]fs.FS{workloadBase: w.Base, workloadSite: w.Site} {
		if err := readFiles(tree, func(name string, data []byte) error {
			files[path.Join(folder, name)] = data
			return nil
		}); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrSite, oneLine(err))
		}
	}
	file := path.Join(workloadSite, kustomization)
	if files[file] == nil {
		return nil, fmt.Errorf("%w: there is no %s at its top", ErrSite, kustomization)
	}
	// What it may say is found out before it is made another kind, with its own lines.
	if err := checkKustomization(files, workloadSite, workloadSite); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSite, oneLine(err))
	}
	component, err := asComponent(files[file])
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrSite, kustomization, oneLine(err))
	}
	files[file] = component
	files[path.Join(workloadBuild, kustomization)] = bytes.Join([][]byte{
		[]byte("apiVersion: kustomize.config.k8s.io/v1beta1"), []byte("kind: Kustomization"),
		[]byte("resources: [../" + workloadBase + "]"), []byte("components: [../" + workloadSite + "]"), nil,
	}, []byte("\n"))
	tree, err := inMemory(slices.Sorted(maps.Keys(files)), files)
	if err != nil {
		return nil, err
	}
	objects, err := Build(tree, workloadBuild)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSite, err)
	}
	return objects, nil
}

// inCluster reports whether an object lies outside namespaces: see clusterScoped.
func inCluster(object *unstructured.Unstructured, all []*unstructured.Unstructured) bool {
	kind, group := object.GetKind(), object.GroupVersionKind().Group
	return scopeOf(object.GetAPIVersion(), kind, group, func() string {
		for _, other := range all {
			if other.GetKind() != definitionKind {
				continue
			}
			of, _, _ := unstructured.NestedString(other.Object, "spec", "group")
			defines, _, _ := unstructured.NestedString(other.Object, "spec", "names", "kind")
			if of == group && defines == kind {
				scope, _, _ := unstructured.NestedString(other.Object, "spec", "scope")
				return scope
			}
		}
		return ""
	})
}
