package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/outsideyaml"
	"github.com/liteboxd/boxlift/internal/printable"
)

// kustomization is the one name under which bases and sites describe themselves.
const kustomization = "kustomization.yaml"

// Build runs kustomize over a folder of fsys, whatever its objects are for, and returns them in
// the order of application. "." is all of fsys; what lies beside the folder can be referred to as
// kustomize allows it. The kustomization may say what those of the bases may, and also namespace,
// namePrefix, nameSuffix and commonLabels. Like Render it reads nothing else and asks no network.
// Errors wrap [ErrFolder].
func Build(fsys fs.FS, folder string) ([]*unstructured.Unstructured, error) {
	objects, err := buildFolder(fsys, folder)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, oneLine(err))
	}
	return objects, nil
}

func buildFolder(fsys fs.FS, folder string) ([]*unstructured.Unstructured, error) {
	if !fs.ValidPath(folder) {
		return nil, fmt.Errorf("%q is not a clean relative path", folder)
	}
	files := map[string][]byte{}
	err := readFiles(fsys, func(name string, data []byte) error {
		files[name] = data
		return nil
	})
	if err != nil {
		return nil, err
	}
	if file := path.Join(folder, kustomization); files[file] == nil {
		return nil, fmt.Errorf("there is no %s", file)
	}
	check := &kustomizationCheck{files: files, top: ".", keys: slices.Concat(kustomizationKeys, renamingKeys)}
	if _, err := check.folder(folder); err != nil {
		return nil, err
	}
	kustomizing.Lock()
	defer kustomizing.Unlock()
	var built resmap.ResMap
	err = contained(func() (err error) {
		built, err = build(files, folder)
		return err
	})
	if err != nil {
		return nil, err
	}
	objects, err := convert(built)
	if err != nil {
		return nil, err
	}
	sortObjects(objects)
	return objects, nil
}

// build runs kustomize over a tree of files, at the folder root, which holds a checked
// kustomization.
func build(files map[string][]byte, root string) (resmap.ResMap, error) {
	tree := filesys.MakeFsInMemory()
	for name, data := range files {
		if err := tree.WriteFile("/"+name, data); err != nil {
			return nil, err
		}
	}
	return krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(tree, path.Join("/", root))
}

// kustomizationFile is what a kustomization may say. Its fields are all that kustomize would
// load something from, or that say nothing about files. Everything else is refused, among it
// Helm charts, generators and transformers (plugins, which may run programs), configurations
// and openapi. Nested keys are listed to the last one too: kustomize reads them without regard
// to case, so that a Path that is not known here would still be loaded.
type kustomizationFile struct {
	APIVersion         string              `yaml:"apiVersion"`
	Kind               string              `yaml:"kind"`
	Metadata           any                 `yaml:"metadata"`
	Resources          []string            `yaml:"resources"`
	Components         []string            `yaml:"components"`
	Patches            []patchEntry        `yaml:"patches"`
	Replacements       []replacementEntry  `yaml:"replacements"`
	ConfigMapGenerator []configMapFromFile `yaml:"configMapGenerator"`
	GeneratorOptions   any                 `yaml:"generatorOptions"`
	Images             any                 `yaml:"images"`
	Replicas           any                 `yaml:"replicas"`
	Labels             any                 `yaml:"labels"`
	CommonAnnotations  any                 `yaml:"commonAnnotations"`
	// Those of renamingKeys.
	Namespace    string `yaml:"namespace"`
	NamePrefix   string `yaml:"namePrefix"`
	NameSuffix   string `yaml:"nameSuffix"`
	CommonLabels any    `yaml:"commonLabels"`
}

type patchEntry struct {
	Path    string `yaml:"path"`
	Patch   string `yaml:"patch"`
	Target  any    `yaml:"target"`
	Options any    `yaml:"options"`
}

type replacementEntry struct {
	Path    string `yaml:"path"`
	Source  any    `yaml:"source"`
	Targets any    `yaml:"targets"`
}

type configMapFromFile struct {
	Name      string   `yaml:"name"`
	Namespace string   `yaml:"namespace"`
	Behavior  string   `yaml:"behavior"`
	Files     []string `yaml:"files"`
	Envs      []string `yaml:"envs"`
	Env       string   `yaml:"env"`
	Literals  []string `yaml:"literals"`
	Options   any      `yaml:"options"`
}

var kustomizationKeys = []string{
	"apiVersion", "kind", "metadata", "resources", "components", "patches", "replacements",
	"configMapGenerator", "generatorOptions", "images", "replicas", "labels", "commonAnnotations",
}

// renamingKeys are for folders whose names and namespaces are their own affair: those of the bases
// and of sites are what installers go by.
var renamingKeys = []string{"namespace", "namePrefix", "nameSuffix", "commonLabels"}

// checkKustomization follows the kustomization in a folder to every file that kustomize will
// load because of it, and refuses what is not within top.
func checkKustomization(files map[string][]byte, top, folder string) error {
	c := &kustomizationCheck{files: files, top: top, keys: kustomizationKeys}
	_, err := c.folder(folder)
	return err
}

type kustomizationCheck struct {
	files map[string][]byte
	top   string
	keys  []string        // that a kustomization may have
	loads map[string]int  // of the folders that were looked at, by path
	under map[string]bool // folders that are being looked at
}

// folder returns how many files kustomize loads for a folder, each as often as it does: it builds
// a folder again wherever one refers to it, so that a few that refer to each other twice stand for
// any number of objects.
func (c *kustomizationCheck) folder(folder string) (loads int, err error) {
	file := path.Join(folder, kustomization)
	if c.under[folder] {
		return 0, fmt.Errorf("%s: the folder refers to itself", file)
	}
	if loads, ok := c.loads[folder]; ok {
		return loads, nil
	}
	if c.loads == nil {
		c.loads, c.under = map[string]int{}, map[string]bool{}
	}
	c.under[folder] = true
	defer delete(c.under, folder)
	if err := c.only(folder); err != nil {
		return 0, err
	}
	k, err := parseKustomization(c.files[file], c.keys)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	if loads, err = c.follow(folder, k); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	if loads++; loads > maxFiles {
		return 0, fmt.Errorf("%s: more than %d files are loaded for it, counting those of a folder each time that "+
			"it is referred to", file, maxFiles)
	}
	c.loads[folder] = loads
	return loads, nil
}

// only sees to it that kustomize takes the file that is checked: it knows other names too.
func (c *kustomizationCheck) only(folder string) error {
	for _, other := range []string{"kustomization.yml", "Kustomization"} {
		if c.files[path.Join(folder, other)] != nil {
			return fmt.Errorf("%s: call it %s", path.Join(folder, other), kustomization)
		}
	}
	return nil
}

func (c *kustomizationCheck) follow(folder string, k *kustomizationFile) (loads int, err error) {
	var loaded, opaque []string
	for _, p := range k.Patches {
		loaded = append(loaded, p.Path)
		if err := inline(p.Patch); err != nil {
			return 0, err
		}
	}
	for _, r := range k.Replacements {
		loaded = append(loaded, r.Path)
	}
	for _, g := range k.ConfigMapGenerator {
		for _, f := range g.Files {
			// "key=path" or "path"
			_, p, found := strings.Cut(f, "=")
			if !found {
				p = f
			}
			opaque = append(opaque, p)
		}
		opaque = append(append(opaque, g.Envs...), g.Env)
	}
	loaded, opaque = slices.DeleteFunc(loaded, empty), slices.DeleteFunc(opaque, empty)
	loads = len(loaded) + len(opaque)
	for _, p := range loaded {
		if err := c.document(folder, p); err != nil {
			return 0, err
		}
	}
	for _, p := range opaque {
		if _, err := c.file(folder, p); err != nil {
			return 0, err
		}
	}
	for _, p := range k.Resources {
		more, err := c.resource(folder, p)
		if err != nil {
			return 0, err
		}
		loads += more
	}
	for _, p := range k.Components {
		more, err := c.subfolder(folder, p)
		if err != nil {
			return 0, err
		}
		loads += more
	}
	return loads, nil
}

// inline looks at a patch that is written into a kustomization. What is no YAML is left to kustomize: it may be JSON.
func inline(patch string) error {
	for _, err := range bounded.Documents([]byte(patch)) {
		if refusal := (*outsideyaml.Refusal)(nil); errors.As(err, &refusal) {
			return fmt.Errorf("a patch in it: %w", unreadable(err))
		}
	}
	return nil
}

func empty(s string) bool { return s == "" }

// resource is a file or a folder.
func (c *kustomizationCheck) resource(folder, p string) (loads int, err error) {
	if name, err := c.local(folder, p); err == nil && c.files[name] == nil {
		return c.subfolder(folder, p)
	}
	return 1, c.document(folder, p)
}

func (c *kustomizationCheck) subfolder(folder, p string) (loads int, err error) {
	name, err := c.local(folder, p)
	if err != nil {
		return 0, err
	}
	if c.files[path.Join(name, kustomization)] == nil {
		return 0, fmt.Errorf("%q is neither a file nor a folder with a %s here", p, kustomization)
	}
	return c.folder(name)
}

// document is a file that kustomize reads as YAML.
func (c *kustomizationCheck) document(folder, p string) error {
	name, err := c.file(folder, p)
	if err != nil {
		return err
	}
	_, err = read(name, c.files[name])
	return err
}

func (c *kustomizationCheck) file(folder, p string) (string, error) {
	name, err := c.local(folder, p)
	if err == nil && c.files[name] == nil {
		err = fmt.Errorf("there is no file %q here", p)
	}
	return name, err
}

// localPath is a path that kustomize cannot take for a URL or a repository: those have a colon,
// an @ or a dot before the last segment (github.com/…).
var localPath = lazyregexp.New(`^(\.{1,2}/)*([A-Za-z0-9_-]+/)*[A-Za-z0-9_-][A-Za-z0-9._-]*$|^\.{1,2}(/\.\.)*$`)

func (c *kustomizationCheck) local(folder, p string) (string, error) {
	if !localPath.MatchString(p) {
		return "", fmt.Errorf("%q is not a plain relative path: URLs, repositories and absolute paths are refused, "+
			"because nothing outside this folder is reachable; copy the files into it", p)
	}
	name := path.Join(folder, p)
	if name != c.top && !strings.HasPrefix(name, c.top+"/") && c.top != "." || name == ".." ||
		strings.HasPrefix(name, "../") {
		return "", fmt.Errorf("%q leaves the folder %s", p, c.top)
	}
	return name, nil
}

func parseKustomization(data []byte, keys []string) (*kustomizationFile, error) {
	nodes, err := documents("", data)
	if err != nil {
		return nil, err
	}
	if len(nodes) != 1 {
		return nil, fmt.Errorf("%d documents: want one", len(nodes))
	}
	root := nodes[0].node
	for i := 0; i < len(root.Content); i += 2 {
		if key := root.Content[i]; !slices.Contains(keys, key.Value) {
			return nil, fmt.Errorf("line %d: %q is refused: boxlift takes %s", key.Line, key.Value,
				strings.Join(keys, ", "))
		}
	}
	var k kustomizationFile
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&k); err != nil {
		return nil, oneLine(err)
	}
	return &k, nil
}

// asComponent returns a kustomization that works on what is already there, whatever kind it
// has called itself.
func asComponent(data []byte) ([]byte, error) {
	var root map[string]any
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, err
	}
	root["apiVersion"], root["kind"] = "kustomize.config.k8s.io/v1alpha1", "Component"
	return yaml.Marshal(root)
}

// document is one YAML document of a file.
type document struct {
	file string
	node *yaml.Node
}

func (d document) String() string { return fmt.Sprintf("%s:%d", d.file, d.node.Line) }

// documents reads the YAML documents of a file, each of them a mapping.
func documents(file string, data []byte) ([]document, error) {
	all, err := read(file, data)
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		if d.node.Kind != yaml.MappingNode {
			return nil, at(file, fmt.Errorf("line %d: want an object with apiVersion, kind and metadata", d.node.Line))
		}
	}
	return all, nil
}

// read reads the YAML documents of a file that are not empty. Anchors and aliases are refused:
// with them a few lines can stand for gigabytes.
func read(file string, data []byte) ([]document, error) {
	var all []document
	for root, err := range bounded.Documents(data) {
		if err != nil {
			return nil, at(file, unreadable(err))
		}
		if len(root.Content) == 0 {
			continue
		}
		node := root.Content[0]
		if node.Tag == "!!null" {
			continue // nothing but comments between two separators
		}
		if err := plain(node); err != nil {
			return nil, at(file, err)
		}
		var check any // finds values that are not what their tags say
		if err := node.Decode(&check); err != nil {
			return nil, at(file, oneLine(err))
		}
		all = append(all, document{file, node})
	}
	return all, nil
}

// bounded reads what kustomize will read after it, which looks at every pair of a mapping's keys.
var bounded = outsideyaml.Reader{MaxSize: maxFile, MaxNodes: maxValues}

// unreadable names the key that a file has twice: there are no secrets in it.
func unreadable(err error) error {
	if refusal := (*outsideyaml.Refusal)(nil); errors.As(err, &refusal) && refusal.First > 0 {
		return fmt.Errorf("line %d: %s is there already, on line %d", refusal.Line,
			strconv.Quote(printable.Short(refusal.Key, 100)), refusal.First)
	}
	return oneLine(err)
}

func plain(node *yaml.Node) error {
	switch {
	case node.Kind == yaml.AliasNode || node.Anchor != "":
		return fmt.Errorf("line %d: anchors and aliases are refused: write it out", node.Line)
	case node.Tag == "!!merge":
		return fmt.Errorf("line %d: merge keys (<<) are refused: write it out", node.Line)
	case node.Style&yaml.TaggedStyle != 0 && !strings.HasPrefix(node.ShortTag(), "!!"):
		return fmt.Errorf("line %d: tag %s is refused", node.Line, node.Tag)
	}
	for _, child := range node.Content {
		if err := plain(child); err != nil {
			return err
		}
	}
	return nil
}

func at(file string, err error) error {
	if file == "" {
		return err
	}
	return fmt.Errorf("%s: %w", file, err)
}

// oneLine makes one line, fit for a terminal, of what yaml and kustomize say in several.
func oneLine(err error) error {
	text := strings.Join(strings.Fields(printable.Line(err.Error())), " ")
	return errors.New(strings.TrimPrefix(text, "yaml: "))
}
