package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// What is kept of one target's corpus in the tree. Every go test runs it, so it is small.
const (
	maxInput = 4 << 10 // bytes of one input
	maxKept  = 24      // inputs
)

// A target is a fuzz target.
type target struct {
	dir  string // of its package, such as ./bundle/lock
	name string // such as FuzzParse
}

func (t target) String() string { return t.dir + "." + t.name }

// corpus is where the tree has its inputs.
func (t target) corpus() string { return filepath.Join(t.dir, "testdata", "fuzz", t.name) }

var declaration = regexp.MustCompile(`(?m)^func (Fuzz\w*)\(`)

// findTargets returns the fuzz targets of the module whose root is given, in order. Modules inside
// of it are left out, as go test leaves them out.
func findTargets(root string) ([]target, error) {
	var targets []target
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if path == root {
				return nil
			}
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			if err == nil || entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range declaration.FindAllSubmatch(text, -1) {
			targets = append(targets, target{"./" + filepath.ToSlash(filepath.Dir(path)), string(found[1])})
		}
		return nil
	})
	slices.SortFunc(targets, func(a, b target) int { return cmp.Compare(a.String(), b.String()) })
	return targets, err
}

// keepInputs copies what Go's cache has of a target's inputs to the tree, the smallest first.
func keepInputs(ctx context.Context, t target) error {
	cache, err := output(ctx, "go", "env", "GOCACHE")
	if err != nil {
		return err
	}
	path, err := output(ctx, "go", "list", t.dir)
	if err != nil {
		return err
	}
	return copyInputs(filepath.Join(cache, "fuzz", filepath.FromSlash(path), t.name), t.corpus())
}

// copyInputs copies small inputs from one folder to another until that has maxKept of them. A folder
// that is missing is empty.
func copyInputs(from, to string) error {
	there, err := os.ReadDir(to)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	inputs, err := readInputs(from)
	if err != nil {
		return err
	}
	room := maxKept - len(there)
	for _, in := range inputs {
		if room <= 0 {
			return nil
		}
		if slices.ContainsFunc(there, func(e fs.DirEntry) bool { return e.Name() == in.name }) {
			continue
		}
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, in.name), in.content, 0o644); err != nil {
			return err
		}
		room--
	}
	return nil
}

type input struct {
	name    string
	content []byte
}

// readInputs returns the inputs in a folder that are small enough to be kept, the smallest first.
func readInputs(dir string) ([]input, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var inputs []input
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if len(content) <= maxInput && bytes.HasPrefix(content, []byte("go test fuzz v1\n")) {
			inputs = append(inputs, input{e.Name(), content})
		}
	}
	slices.SortFunc(inputs, func(a, b input) int {
		return cmp.Or(cmp.Compare(len(a.content), len(b.content)), cmp.Compare(a.name, b.name))
	})
	return inputs, nil
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
