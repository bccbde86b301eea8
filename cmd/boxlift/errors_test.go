package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/download"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/rebuild"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/bundle/upstream"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
)

// What a server or a host says reaches the terminal only as text.
func TestPrintErrorIsPrintable(t *testing.T) {
	var out bytes.Buffer
	printError(&out, fault.WithHint(errors.New("get x: 500 \x1b[2Jno\u009b\r\nsecond\tline: 好"), "try\x07 again"))
	want := "boxlift: error: get x: 500 \ufffd[2Jno\ufffd \n  second line: 好\nboxlift: hint: try\ufffd again\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The codes are those that exitHelp documents.
func TestExitCode(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want int
	}{
		{"of no class", errors.New("no room"), 1},
		{"a file that is not there", fs.ErrNotExist, 1},
		{"a lock", lock.Errors{{File: "versions.lock"}}, 3},
		{"a lock without pins", &plan.UnpinnedError{}, 3},
		{"install.yaml", &config.InvalidError{Problems: []config.Problem{{}}}, 3},
		{"another builder", &rebuild.OtherBuilderError{}, 3},
		{"the state", journal.ErrLocked, 3},
		{"the password of a key", signature.ErrWrongPassword, 3},
		{"refused for want of a cluster", fmt.Errorf("%w: %w", site.ErrRefused, site.ErrNoCluster), 3},
		{"refused for want of a revision", fmt.Errorf("%w: %w", site.ErrRefused, helm.ErrNoRevision), 3},
		{"a damaged volume", &volume.Fault{}, 4},
		{"a bundle that differs from its lock", &rebuild.DiffersError{}, 4},
		{"a delta alone", &bundle.MissingError{}, 4},
		{"a server", &source.Error{Err: errors.New("no")}, 5},
		{"a file that a lock names", &source.DiskError{Err: fs.ErrNotExist}, 5},
		{"other bytes", &download.DiffersError{}, 5},
		{"no such platform", &format.MissingPlatformError{}, 5},
		{"no such release", &upstream.UnknownError{}, 5},
		{"hosts", &run.HostsError{Failed: []error{site.ErrRefused}}, 6},
		{"hosts and what is refused", errors.Join(site.ErrHosts, site.ErrRefused), 6},
		{"a cluster with a damaged bundle", fmt.Errorf("%w: %w", site.ErrCluster, bundle.ErrInvalid), 6},
		{"status", site.ErrDifferent, 7},
		{"health, on hosts that failed", errors.Join(inspect.ErrUnhealthy, site.ErrHosts), 7},
		{"certificates", certificates.ErrCertificates, 7},
	} {
		if got := exitCode(fmt.Errorf("do it: %w", test.err)); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

// Every error that callers of a package may ask for says of which class it is.
func TestKinds(t *testing.T) {
	const root = "../.."
	found := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() {
			if name == "testdata" || name == "test" || path != root && strings.HasPrefix(name, ".") {
				return filepath.SkipDir
			}
			return nil
		} else if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, content, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, spec := range kindsIn(file) {
			found++
			for i, name := range spec.Names {
				if i >= len(spec.Values) || !isKind(spec.Values[i]) {
					t.Errorf("%s: %s is not made by fault.NewKind with a class of package fault",
						files.Position(name.Pos()), name.Name)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 50 {
		t.Errorf("only %d were found", found)
	}
}

// kindsIn lists the declarations of a file's exported errors.
func kindsIn(file *ast.File) []*ast.ValueSpec {
	var specs []*ast.ValueSpec
	for _, decl := range file.Decls {
		general, ok := decl.(*ast.GenDecl)
		if !ok || general.Tok != token.VAR {
			continue
		}
		for _, one := range general.Specs {
			if spec := one.(*ast.ValueSpec); strings.HasPrefix(spec.Names[0].Name, "Err") {
				specs = append(specs, spec)
			}
		}
	}
	return specs
}

// isKind reports whether an expression makes a kind.
func isKind(value ast.Expr) bool {
	call, ok := value.(*ast.CallExpr)
	return ok && isOfFault(call.Fun, "NewKind") &&
		isOfFault(call.Args[0], "Failure", "Usage", "Input", "Bundle", "Source", "Host", "Different")
}

// isOfFault reports whether an expression is one of package fault's names.
func isOfFault(value ast.Expr, names ...string) bool {
	selector, ok := value.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	of, ok := selector.X.(*ast.Ident)
	return ok && of.Name == "fault" && slices.Contains(names, selector.Sel.Name)
}
