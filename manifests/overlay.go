package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/api/provider"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/kyaml/openapi"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
)

// applySite applies a site's folder to what the bases gave.
func applySite(parts []*part, s *site) error {
	for _, p := range parts {
		for _, document := range s.patches[p.base] {
			if err := p.apply(document, parts); err != nil {
				return fmt.Errorf("%s: %w", document, err)
			}
		}
		if s.hasKustomization(p.base) {
			if err := p.kustomize(s); err != nil {
				return err
			}
		}
	}
	return parts[0].setValues(s.values)
}

// apply merges a patch into the object that it names, or adds it when there is none.
func (p *part) apply(d document, parts []*part) error {
	data, err := yaml.Marshal(d.node)
	if err != nil {
		return err
	}
	patch, err := parseObject(data)
	if err != nil {
		return err
	}
	target, err := p.target(patch)
	if err != nil {
		return err
	}
	if target == nil {
		return p.add(patch, d, parts)
	}
	if by := rewriter(target); by != "" {
		return errRewritten(describe(target), by)
	}
	err = contained(func() error {
		return p.objects.ApplySmPatch(resource.MakeIdSet([]*resource.Resource{target}), patch)
	})
	if err != nil {
		return fmt.Errorf("%s: does not merge: %w", describe(patch), oneLine(err))
	}
	return nil
}

// contained turns a panic into an error: kustomize's packages answer some objects that no
// Kubernetes would take with one.
func contained(do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("kustomize cannot handle it: %v", r)
		}
	}()
	return do()
}

func parseObject(data []byte) (*resource.Resource, error) {
	var head struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   struct {
			Name string `yaml:"name"`
		} `yaml:"metadata"`
	}
	if err := yaml.Unmarshal(data, &head); err != nil {
		return nil, oneLine(err)
	}
	for _, field := range []struct{ name, value string }{{"apiVersion", head.APIVersion}, {"kind", head.Kind},
		{"metadata.name", head.Metadata.Name}} {
		if field.value == "" {
			return nil, fmt.Errorf("%s is missing: a patch names its object by apiVersion, kind and metadata.name",
				field.name)
		}
	}
	var all []*resource.Resource
	err := contained(func() (err error) {
		all, err = provider.NewDefaultDepProvider().GetResourceFactory().SliceFromBytes(data)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", head.Kind, head.Metadata.Name, oneLine(err))
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("%s %s: want one object, got %d: lists are refused", head.Kind, head.Metadata.Name,
			len(all))
	}
	return all[0], nil
}

// target finds the object that a patch is for, nil when there is none. The version of its API
// and an absent namespace do not matter.
func (p *part) target(patch *resource.Resource) (*resource.Resource, error) {
	for _, object := range p.objects.Resources() {
		if object.GetKind() != patch.GetKind() || object.GetName() != patch.GetName() {
			continue
		}
		if object.GetGvk().Group != patch.GetGvk().Group {
			return nil, fmt.Errorf("%s: apiVersion is %s, that object's is %s", describe(patch), patch.GetApiVersion(),
				object.GetApiVersion())
		}
		if patch.GetNamespace() == "" || patch.GetNamespace() == object.GetNamespace() {
			return object, nil
		}
		if object.GetNamespace() == p.namespace && slices.Contains(renamable, patch.GetNamespace()) {
			return nil, fmt.Errorf("%s: the namespace is called %s at this site, not %s: leave metadata.namespace out",
				describe(patch), p.namespace, patch.GetNamespace())
		}
	}
	return nil, nil
}

// renamable are the names of namespaces that a file may have been written for.
var renamable = []string{"liteboxd-system", "liteboxd-sandbox"}

func (p *part) add(object *resource.Resource, d document, parts []*part) error {
	if deletes(d.node) {
		return fmt.Errorf("%s: is to be deleted, and is not there%s", describe(object), p.suggest(object))
	}
	if lacksPods(object) {
		return fmt.Errorf("%s: nothing of this name is there to be patched, and it is not complete enough to be added%s",
			describe(object), p.suggest(object))
	}
	if object.GetNamespace() == "" && !clusterScoped(object, parts) {
		if err := object.SetNamespace(p.namespace); err != nil {
			return err
		}
	}
	if err := p.objects.Append(object); err != nil {
		return fmt.Errorf("%s: %w", describe(object), oneLine(err))
	}
	return nil
}

// rolling are the kinds that replace their pods when the template changes.
var rolling = []string{"Deployment", "StatefulSet", "DaemonSet"}

// lacksPods reports whether an object should have a pod template and has none with containers:
// it is a patch for a name that does not exist.
func lacksPods(object *resource.Resource) bool {
	if !slices.Contains(rolling, object.GetKind()) && object.GetKind() != "Job" {
		return false
	}
	containers, err := object.Pipe(kyaml.Lookup("spec", "template", "spec", "containers"))
	if err != nil || containers.IsNilOrEmpty() {
		return true
	}
	elements, err := containers.Elements()
	return err != nil || slices.ContainsFunc(elements,
		func(c *kyaml.RNode) bool { return c.Field("image").IsNilOrEmpty() })
}

// suggest lists what the site may have meant.
func (p *part) suggest(object *resource.Resource) string {
	var names []string
	for _, other := range p.objects.Resources() {
		if other.GetKind() == object.GetKind() {
			names = append(names, other.GetName())
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf(" (%s has %s)", p.base, strings.Join(names, ", "))
}

func deletes(node *yaml.Node) bool {
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == "$patch" && node.Content[i+1].Value == "delete" {
			return true
		}
	}
	return false
}

// clusterScoped reports whether objects of a kind lie outside namespaces: from Kubernetes' own
// schema, from a CustomResourceDefinition of the same site, from Cilium's list, or because
// their kind begins with Cluster, as is the custom.
func clusterScoped(object *resource.Resource, parts []*part) bool {
	kind, group := object.GetKind(), object.GetGvk().Group
	return scopeOf(object.GetApiVersion(), kind, group, func() string {
		for _, p := range parts {
			for _, other := range p.objects.Resources() {
				if other.GetKind() == definitionKind && text(other, "spec", "group") == group &&
					text(other, "spec", "names", "kind") == kind {
					return text(other, "spec", "scope")
				}
			}
		}
		return ""
	})
}

const definitionKind = "CustomResourceDefinition"

// scopeOf is clusterScoped for a kind; defined is the scope by a CustomResourceDefinition of the same site, "" where
// there is none.
func scopeOf(apiVersion, kind, group string, defined func() string) (isCluster bool) {
	if namespaced, known := openapi.IsNamespaceScoped(kyaml.TypeMeta{APIVersion: apiVersion, Kind: kind}); known {
		return !namespaced
	}
	if scope := defined(); scope != "" {
		return scope == "Cluster"
	}
	return group == "cilium.io" && slices.Contains(ciliumClusterScoped, kind) || strings.HasPrefix(kind, "Cluster")
}

var ciliumClusterScoped = []string{
	"CiliumBGPAdvertisement", "CiliumBGPClusterConfig", "CiliumBGPNodeConfigOverride", "CiliumBGPPeerConfig",
	"CiliumCIDRGroup",
	"CiliumClusterwideEnvoyConfig", "CiliumClusterwideNetworkPolicy", "CiliumEgressGatewayPolicy",
	"CiliumL2AnnouncementPolicy",
	"CiliumLoadBalancerIPPool", "CiliumPodIPPool",
}

func text(object *resource.Resource, fields ...string) string {
	node, err := object.Pipe(kyaml.Lookup(fields...))
	if err != nil || node == nil {
		return ""
	}
	return node.YNode().Value
}

func describe(object *resource.Resource) string { return object.GetKind() + " " + object.GetName() }

// kustomize applies the site's own kustomization, as a component, to all objects of a part.
func (p *part) kustomize(s *site) error {
	const root, current = "build", "current.yaml"
	file := path.Join(p.base, kustomization)
	component, err := asComponent(s.files[file])
	if err != nil {
		return fmt.Errorf("%s: %w", file, oneLine(err))
	}
	fixed, err := p.rewritten()
	if err != nil {
		return err
	}
	if err := p.setNamespaces(p.namespace, ""); err != nil {
		return err
	}
	objects, err := p.objects.AsYaml()
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	for name, data := range s.files {
		if strings.HasPrefix(name, p.base+"/") {
			files[name] = data
		}
	}
	files[file] = component
	files[path.Join(root, current)] = objects
	files[path.Join(root, kustomization)] = bytes.Join([][]byte{
		[]byte("apiVersion: kustomize.config.k8s.io/v1beta1"), []byte("kind: Kustomization"),
		[]byte("resources: [" + current + "]"), []byte("components: [../" + p.base + "]"), nil,
	}, []byte("\n"))
	var built resmap.ResMap
	err = contained(func() (err error) {
		built, err = build(files, root)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", file, oneLine(err))
	}
	p.objects = built
	if err := p.checkRewritten(fixed); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return p.setNamespaces("", p.namespace)
}

// setNamespaces moves the part's objects from one namespace to another. A kustomization works
// on objects without a namespace, so that its patches need not know what the namespace is
// called; afterwards they, and what it has added without one, are put into the part's.
func (p *part) setNamespaces(from, to string) error {
	for _, object := range p.objects.Resources() {
		if object.GetNamespace() != from || clusterScoped(object, []*part{p}) {
			continue
		}
		if err := object.SetNamespace(to); err != nil {
			return err
		}
	}
	return nil
}

// setValues merges values.env into the programs' environment.
func (p *part) setValues(values map[string]string) error {
	if len(values) == 0 {
		return nil
	}
	for _, object := range p.objects.Resources() {
		if object.GetKind() != "ConfigMap" || object.GetName() != ConfigMap || object.GetNamespace() != p.namespace {
			continue
		}
		data := object.GetDataMap()
		if data == nil {
			data = map[string]string{}
		}
		maps.Copy(data, values)
		object.SetDataMap(data)
		return nil
	}
	return errors.New(valuesFile + ": there is no ConfigMap " + ConfigMap +
		" any more to merge it into: do not delete or rename it")
}
