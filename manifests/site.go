package manifests

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// site is a user's folder, read and found to be in order as far as that can be told without
// the bases.
type site struct {
	files   map[string][]byte     // everything, by path
	patches map[string][]document // by base, in the order of their files' names
	values  map[string]string     // of values.env
}

func patchFolder(base string) string { return path.Join(base, "patches") }

// readSite reads a site's folder; nil is an empty one.
func readSite(tree fs.FS) (*site, error) {
	s := &site{files: map[string][]byte{}, patches: map[string][]document{}}
	if tree == nil {
		return s, nil
	}
	err := readFiles(tree, func(name string, data []byte) error {
		s.files[name] = data
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		if err := s.checkPlace(name); err != nil {
			return nil, err
		}
	}
	for _, base := range bases {
		if s.patches[base], err = s.readPatches(base); err != nil {
			return nil, err
		}
		if !s.hasKustomization(base) {
			continue
		}
		if err := checkKustomization(s.files, base, base); err != nil {
			return nil, err
		}
	}
	s.values, err = parseValues(s.files[valuesFile])
	return s, err
}

func (s *site) hasKustomization(base string) bool {
	return s.files[path.Join(base, kustomization)] != nil
}

// checkPlace refuses files that nobody would look at: most are in the wrong folder, and what
// they say would be missing without a word.
func (s *site) checkPlace(name string) error {
	base, rest, inBase := strings.Cut(name, "/")
	switch {
	case ignored(name) || name == valuesFile:
		return nil
	case !inBase || !slices.Contains(bases, base):
		return fmt.Errorf("%s: not a place for files: the folder may hold %s, system/ and sandbox/", name, valuesFile)
	case path.Dir(name) == patchFolder(base) && isYAML(name):
		return nil
	case rest == kustomization || s.hasKustomization(base):
		return nil
	case rest == "kustomization.yml" || rest == "Kustomization":
		return fmt.Errorf("%s: call it %s", name, kustomization)
	}
	return fmt.Errorf("%s: nothing reads it: patches are %s/*.yaml, and other files need a %s that names them", name,
		patchFolder(base), path.Join(base, kustomization))
}

func isYAML(name string) bool { return path.Ext(name) == ".yaml" || path.Ext(name) == ".yml" }

// ignored reports whether a file is for people or for their tools, such as README.md and .gitkeep.
func ignored(name string) bool {
	return strings.HasPrefix(path.Base(name), ".") || strings.HasPrefix(name, ".") || path.Ext(name) == ".md"
}

func (s *site) readPatches(base string) ([]document, error) {
	var all []document
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		if path.Dir(name) != patchFolder(base) || !isYAML(name) || ignored(name) {
			continue
		}
		found, err := documents(name, s.files[name])
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%s: empty: take it away or write a patch", name)
		}
		all = append(all, found...)
	}
	return all, nil
}
