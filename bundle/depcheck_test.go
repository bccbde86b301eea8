package bundle

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDependencies keeps the packages, and with them every program that uses bundles, free
// of what it has no use for.
func TestDependencies(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".", "./build", "./rebuild", "./pins",
		"./extract").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Fields(string(out))
	if !slices.Contains(all, "github.com/liteboxd/boxlift/bundle/ocitar") {
		t.Fatalf("this is not a list of dependencies: %v", all)
	}
	for _, name := range all {
		for _, heavy := range []string{
			"golang.org/x/crypto/ssh", "github.com/skeema/knownhosts", "github.com/pkg/sftp",
			"k8s.io/", "sigs.k8s.io/", "helm.sh/", "github.com/distribution/distribution/",
			"github.com/spf13/cobra", "testing",
			"github.com/liteboxd/boxlift/install", "github.com/liteboxd/boxlift/node",
			"github.com/liteboxd/boxlift/test",
		} {
			if name == heavy || strings.HasPrefix(name, strings.TrimSuffix(heavy, "/")+"/") {
				t.Errorf("bundle depends on %s", name)
			}
		}
	}
}

// TestUnprovenReads lists the packages that read bytes of a bundle without proof. Each proves what it takes, which its
// own tests show: whoever is added here has to.
func TestUnprovenReads(t *testing.T) {
	want := map[string][]string{
		"Unproven": {"bundle/build", "bundle/plan"}, // places of blobs, which are proven where they are copied to
		"Whole":    {"cmd/boxlift"},                 // for the registry, which proves what it serves
	}
	users := make(map[string]map[string]bool)
	for name := range want {
		users[name] = make(map[string]bool)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if path != root && strings.HasPrefix(e.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte(".Unproven(")) && !bytes.Contains(text, []byte(".Whole(")) {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if f, ok := call.Fun.(*ast.SelectorExpr); ok && users[f.Sel.Name] != nil {
					users[f.Sel.Name][filepath.ToSlash(dir)] = true
				}
			}
			return true
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string][]string)
	for name, dirs := range users {
		got[name] = slices.Sorted(maps.Keys(dirs))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-expected +got):\n%s", diff)
	}
}
