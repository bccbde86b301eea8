package manifests

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"sigs.k8s.io/kustomize/api/resource"
)

// RewrittenBy is the annotation of objects that a program of LiteBoxd replaces as a whole whenever it
// starts, labels and annotations included. Its value is the program's name. The bases state such an
// object as the program writes it, and a site cannot change it.
const RewrittenBy = "boxlift.dev/rewritten-by"

// errRewritten says why a site's change of an object is refused.
func errRewritten(object, by string) error {
	return fmt.Errorf("%s: %s writes it anew whenever it starts, so that a change will not last: write an object of "+
		"another name instead (network policies add up)", object, by)
}

// rewriter is the program that replaces an object, "" when none does.
func rewriter(object *resource.Resource) string { return object.GetAnnotations()[RewrittenBy] }

// rewritten is what the part's objects of that kind say beside their metadata, by their names.
func (p *part) rewritten() (map[string]map[string]any, error) {
	all := map[string]map[string]any{}
	for _, object := range p.objects.Resources() {
		if rewriter(object) == "" {
			continue
		}
		content, err := object.Map()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", describe(object), err)
		}
		delete(content, "metadata")
		all[describe(object)] = content
	}
	return all, nil
}

// checkRewritten makes sure that a site's kustomization has left alone what would not last. Labels
// and annotations that it puts on all objects do no harm there.
func (p *part) checkRewritten(before map[string]map[string]any) error {
	after, err := p.rewritten()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if !reflect.DeepEqual(before[name], after[name]) {
			return errRewritten(name, API)
		}
	}
	return nil
}
