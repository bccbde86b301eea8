package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What is kept of one target's corpus in the tree. Every go test runs it, so it is small: at most 96 KiB.
const (
	maxInput = 4 << 10 // bytes of one input
	maxKept  = 24      // inputs
	maxTried = 128     // inputs of which it is found out what they reach
)

// A target is a fuzz target.
type target struct {
	dir  string // of its package, such as ./bundle/lock
	name string // such as FuzzParse
}

func (t target) String() string { return t.dir + "." + t.name }

// corpus is where the tree has its inputs.
func (t target) corpus() string { return filepath.Join(t.dir, "testdata", "fuzz", t.name) }

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
		// What is in comments and in texts declares nothing.
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && isTargetName(f.Name.Name) {
				targets = append(targets, target{"./" + filepath.ToSlash(filepath.Dir(path)), f.Name.Name})
			}
		}
		return nil
	})
	slices.SortFunc(targets, func(a, b target) int { return cmp.Compare(a.String(), b.String()) })
	return targets, err
}

// isTargetName reports whether go test takes a function of that name for a fuzz target: it does not take Fuzzy.
func isTargetName(name string) bool {
	rest, ok := strings.CutPrefix(name, "Fuzz")
	first, _ := utf8.DecodeRuneInString(rest)
	return ok && !unicode.IsLower(first)
}

// keepInputs copies what Go's cache has of a target's inputs to the tree, the smallest first, if they reach code of its
// package that nothing in the tree reaches. Go has written down all that reached something new when it was found, in
// any package, and so much more.
func keepInputs(ctx context.Context, t target) error {
	cache, err := output(ctx, "go", "env", "GOCACHE")
	if err != nil {
		return err
	}
	path, err := output(ctx, "go", "list", t.dir)
	if err != nil {
		return err
	}
	return copyInputs(ctx, t, filepath.Join(cache, "fuzz", filepath.FromSlash(path), t.name))
}

// copyInputs copies small inputs from a folder to the tree until it has maxKept of the target. A folder that is missing
// is empty.
func copyInputs(ctx context.Context, t target, from string) (err error) {
	there, err := os.ReadDir(t.corpus())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	inputs, err := readInputs(from)
	if err != nil {
		return err
	}
	inputs = slices.DeleteFunc(inputs, func(in input) bool {
		return slices.ContainsFunc(there, func(e fs.DirEntry) bool { return e.Name() == in.name })
	})
	if len(inputs) == 0 || len(there) >= maxKept {
		return nil
	}
	inputs = inputs[:min(len(inputs), maxTried)]
	dir, err := os.MkdirTemp("", "boxlift-fuzz-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := &choice{target: t, program: filepath.Join(dir, "target.test"), profile: filepath.Join(dir, "profile"), room: maxKept - len(there)}
	if _, err := output(ctx, "go", "test", "-c", "-cover", "-o", c.program, t.dir); err != nil {
		return err
	}
	if c.reached, err = c.reach(ctx, "^"+t.name+"$"); err != nil {
		return err
	}
	return c.choose(ctx, inputs)
}

// choice is about which inputs are kept.
type choice struct {
	target           target
	program, profile string
	// reached is the code that what is in the tree reaches.
	reached map[string]bool
	room    int
}

// choose keeps those of the inputs that reach what none before them reaches. Most of them do not, and so are tried
// together.
func (c *choice) choose(ctx context.Context, inputs []input) error {
	if c.room == 0 {
		return nil
	}
	reached, err := c.try(ctx, inputs)
	if err != nil {
		return err
	}
	adds := false
	for code := range reached {
		adds = adds || !c.reached[code]
	}
	switch {
	case !adds:
		return nil
	case len(inputs) > 1:
		return errors.Join(c.choose(ctx, inputs[:len(inputs)/2]), c.choose(ctx, inputs[len(inputs)/2:]))
	}
	c.room--
	maps.Copy(c.reached, reached)
	return c.place(inputs)
}

// try finds out what inputs reach, and leaves nothing in the tree.
func (c *choice) try(ctx context.Context, inputs []input) (reached map[string]bool, err error) {
	defer func() {
		for _, in := range inputs {
			err = errors.Join(err, os.Remove(filepath.Join(c.target.corpus(), in.name)))
		}
		_ = os.Remove(c.target.corpus()) // it stays if there is something in it
	}()
	if err := c.place(inputs); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(inputs))
	for _, in := range inputs {
		names = append(names, regexp.QuoteMeta(in.name))
	}
	return c.reach(ctx, "^"+c.target.name+"$/^("+strings.Join(names, "|")+")$")
}

func (c *choice) place(inputs []input) error {
	if err := os.MkdirAll(c.target.corpus(), 0o755); err != nil {
		return err
	}
	for _, in := range inputs {
		if err := os.WriteFile(filepath.Join(c.target.corpus(), in.name), in.content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// reach runs tests, and returns the code that they reach.
func (c *choice) reach(ctx context.Context, tests string) (map[string]bool, error) {
	cmd := exec.CommandContext(ctx, c.program, "-test.run="+tests, "-test.coverprofile="+c.profile, "-test.timeout=5m")
	cmd.Dir = c.target.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("run %s: %w\n%s", tests, err, out)
	}
	profile, err := os.ReadFile(c.profile)
	if err != nil {
		return nil, err
	}
	reached := make(map[string]bool)
	for line := range strings.Lines(string(profile)) { // such as example.test/a/a.go:3.24,5.2 1 0
		if code, times, ok := cutLast(strings.TrimSpace(line), " "); ok && times != "0" {
			reached[code] = true
		}
	}
	return reached, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
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
