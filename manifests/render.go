package manifests

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/yaml"
)

// Overlay is what is rendered. Later wins over earlier: the bases, Parameters (images among
// them), Site's patches, Site's kustomization, Site's values.env.
type Overlay struct {
	Bases      fs.FS // folders system and sandbox, from Embedded or Unpack
	Site       fs.FS // the site's folder (liteboxd.configDir), nil for none
	Parameters Parameters
}

// Rendered is a site's objects, each part in the order of application.
type Rendered struct{ System, Sandbox []*unstructured.Unstructured }

// kustomizing is held while kustomize's packages work: they keep the schema that they work by in
// a variable of their own.
var kustomizing sync.Mutex

// Render returns the objects of a site. Errors wrap ErrInvalid where the bases are to blame
// and ErrSite where the site's folder is; all others are about Parameters.
func Render(o Overlay) (*Rendered, error) {
	p := o.Parameters.withDefaults()
	if err := p.check(); err != nil {
		return nil, err
	}
	// All of the site's folder is read first, its part for sandboxes too where none are
	// rendered: mistakes in it show at once.
	site, err := readSite(o.Site)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSite, oneLine(err))
	}
	kustomizing.Lock()
	defer kustomizing.Unlock()
	parts, err := renderBases(o.Bases, p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: build the bundle again", ErrInvalid, err)
	}
	if err := applySite(parts, site); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSite, oneLine(err))
	}
	r, err := finish(parts, p)
	if err != nil {
		blame := ErrInvalid
		if o.Site != nil {
			blame = ErrSite
		}
		return nil, fmt.Errorf("%w: %w", blame, oneLine(err))
	}
	return r, nil
}

// part is what becomes of one base.
type part struct {
	base      string // "system" or "sandbox"
	namespace string
	objects   resmap.ResMap
}

func renderBases(tree fs.FS, p Parameters) ([]*part, error) {
	files := map[string][]byte{}
	err := readFiles(tree, func(name string, data []byte) error {
		files[name] = data
		return nil
	})
	if err != nil {
		return nil, err
	}
	parts := []*part{{base: "system", namespace: p.SystemNamespace}}
	if p.SandboxResources {
		parts = append(parts, &part{base: "sandbox", namespace: p.SandboxNamespace})
	}
	for _, part := range parts {
		if err := setParameters(files, part.base, p.values()); err != nil {
			return nil, err
		}
		if files[path.Join(part.base, kustomization)] == nil {
			return nil, fmt.Errorf("there is no %s", path.Join(part.base, kustomization))
		}
		if err := checkKustomization(files, part.base, part.base); err != nil {
			return nil, err
		}
		if part.objects, err = build(files, part.base); err != nil {
			return nil, fmt.Errorf("build %s: %w", part.base, oneLine(err))
		}
	}
	return parts, nil
}

// setParameters gives every parameter that a base asks for its value.
func setParameters(files map[string][]byte, base string, values map[string]string) error {
	file := path.Join(base, "parameters.yaml")
	var object struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   any               `json:"metadata"`
		Data       map[string]string `json:"data"`
	}
	if _, err := documents(file, files[file]); err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(files[file], &object); err != nil {
		return fmt.Errorf("%s: %w", file, oneLine(err))
	}
	for _, key := range slices.Sorted(maps.Keys(object.Data)) {
		value, known := values[key]
		if !known {
			return fmt.Errorf("%s: asks for %q, which this boxlift does not know: use the boxlift that built the bundle",
				file, key)
		}
		object.Data[key] = value
	}
	data, err := yaml.Marshal(object)
	files[file] = data
	return err
}

// finish makes objects of what kustomize holds and does what cannot be said in YAML.
func finish(parts []*part, p Parameters) (*Rendered, error) {
	r := &Rendered{}
	made := map[string]bool{}
	for _, part := range parts {
		objects, err := convert(part.objects)
		if err != nil {
			return nil, err
		}
		for _, object := range objects {
			if made[identity(object)] {
				return nil, fmt.Errorf("%s is there twice: in system and in sandbox", Name(object))
			}
			made[identity(object)] = true
			if err := acceptable(object); err != nil {
				return nil, fmt.Errorf("%s: %w", Name(object), err)
			}
		}
		if part.base == "system" {
			r.System = objects
		} else {
			r.Sandbox = objects
		}
	}
	config := find(r.System, "ConfigMap", p.SystemNamespace, ConfigMap)
	if config == nil {
		return nil, fmt.Errorf("ConfigMap %s/%s is gone, which the programs take their environment from: do not "+
			"delete it (a configMapGenerator that merges into it needs generatorOptions.disableNameSuffixHash: true)",
			p.SystemNamespace, ConfigMap)
	}
	mergeHosts(r.System)
	if p.TLS {
		serveTLS(r.System, []string{p.Host, p.GatewayHost})
	}
	annotateDigest(r.System, config, p.AdminUsername)
	sortObjects(r.System)
	sortObjects(r.Sandbox)
	return r, nil
}

func convert(m resmap.ResMap) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, resource := range m.Resources() {
		data, err := resource.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", resource.CurId(), err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(data); err != nil {
			return nil, fmt.Errorf("%s: %w", resource.CurId(), oneLine(err))
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// acceptable refuses what must not be in LiteBoxd's release, wherever it comes from.
func acceptable(object *unstructured.Unstructured) error {
	if err := keepable(object); err != nil {
		return err
	}
	for _, use := range imagesOf(object) {
		if strings.HasPrefix(use.Image, "boxlift.invalid/") {
			return fmt.Errorf("%s still has the placeholder %s: give it an image", use.Container, use.Image)
		}
	}
	if object.GetKind() == "ConfigMap" && object.GetName() == ConfigMap {
		return acceptableConfig(object)
	}
	return inlineSecret(object.Object)
}

// keepable refuses what must not be in any release that boxlift renders.
func keepable(object *unstructured.Unstructured) error {
	if object.GroupVersionKind().GroupKind().String() == "Secret" {
		return errors.New("secrets are not rendered, because what is rendered is printed and kept: make it in the " +
			"cluster yourself (kubectl create secret) and only refer to it")
	}
	if object.IsList() {
		return errors.New("lists are refused: write the objects one after another, with --- between them")
	}
	return nil
}

func acceptableConfig(object *unstructured.Unstructured) error {
	data, _, err := unstructured.NestedStringMap(object.Object, "data")
	if err != nil {
		return fmt.Errorf("data: %w: put quotes around numbers and booleans", err)
	}
	for _, key := range secretVariables {
		if _, ok := data[key]; ok {
			return fmt.Errorf("data.%s: %s", key, refusedVariables[key])
		}
	}
	return nil
}

// inlineSecret looks for containers that have a secret's value in their environment.
func inlineSecret(value any) error {
	return walkContainers(value, func(container map[string]any) error {
		env, _ := container["env"].([]any)
		for _, one := range env {
			variable, _ := one.(map[string]any)
			name, _ := variable["name"].(string)
			if variable["value"] != nil && slices.Contains(secretVariables, name) {
				return fmt.Errorf("container %v: variable %s has a value: %s", container["name"], name,
					refusedVariables[name])
			}
		}
		return nil
	})
}
