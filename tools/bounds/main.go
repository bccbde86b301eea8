// Command bounds checks how large the parts of boxlift may become, and which room of install may import which.
//
//	bounds REPOSITORY
//
// Counted are files as they are, without tests, generated files, testdata, and what is never shipped. The rooms and
// what they may import are the table in docs/architecture.md. It prints what is past a bound, one a line, and exits
// with 1 if anything is.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// maxPackage is how many lines a package may have; commands are lists of flags, and may have more.
	maxPackage = 3500
	// maxMethods is how many methods a type may have.
	maxMethods = 40
	// maxColumns is how long a line may be, in characters, a tab being four; so many of 1,000 may be longer.
	maxColumns, maxLong = 120, 2
	module              = "github.com/liteboxd/boxlift/"
	rooms               = "install/"
)

// skipped are the folders at the root that are never shipped.
var skipped = []string{"test", "tools", "examples", "dist", "bin"}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: bounds REPOSITORY")
		os.Exit(2)
	}
	found, err := check(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "bounds:", err)
		os.Exit(1)
	}
	for _, text := range found {
		fmt.Println(text)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

// folder is what is counted of a package.
type folder struct {
	lines   int
	methods map[string]int
	imports map[string]bool
}

// check returns what is past a bound, sorted.
func check(root string) ([]string, error) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		return nil, err
	}
	folders, lines, long, err := count(root)
	if err != nil {
		return nil, err
	}
	var found []string
	for name, f := range folders {
		if f.lines > maxPackage && !strings.HasPrefix(name, "cmd/") {
			found = append(found, fmt.Sprintf("package %s has %d lines, %d is the most", name, f.lines, maxPackage))
		}
		for typ, n := range f.methods {
			if n > maxMethods {
				found = append(found, fmt.Sprintf("%s.%s has %d methods, %d is the most", name, typ, n, maxMethods))
			}
		}
	}
	if len(long)*1000 > lines*maxLong {
		found = append(found, fmt.Sprintf("%d of %d lines have more than %d columns, %d of 1,000 is the most; the longest are:\n  %s",
			len(long), lines, maxColumns, maxLong, strings.Join(long[:min(len(long), 20)], "\n  ")))
	}
	found = append(found, checkRooms(allowed(string(page)), folders)...)
	slices.Sort(found)
	return found, nil
}

// count counts all packages, all lines, and lists those that are too long, the longest first.
func count(root string) (folders map[string]*folder, lines int, long []string, err error) {
	folders = map[string]*folder{}
	type line struct {
		place   string
		columns int
	}
	var tooLong []line
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || slices.Contains(skipped, name)) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(filepath.Dir(name))
		f := folders[pkg]
		if f == nil {
			f = &folder{methods: map[string]int{}, imports: map[string]bool{}}
			folders[pkg] = f
		}
		scanner := bufio.NewScanner(bytes.NewReader(text))
		for n := 1; scanner.Scan(); n++ {
			f.lines, lines = f.lines+1, lines+1
			if columns := columnsOf(scanner.Text()); columns > maxColumns {
				tooLong = append(tooLong, line{fmt.Sprintf("%s:%d (%d)", name, n, columns), columns})
			}
		}
		return errors.Join(scanner.Err(), f.add(name, text))
	})
	slices.SortStableFunc(tooLong, func(a, b line) int { return cmp.Compare(b.columns, a.columns) })
	for _, l := range tooLong {
		long = append(long, l.place)
	}
	return folders, lines, long, err
}

// columnsOf is how wide a line is.
func columnsOf(line string) int { return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t") }

// add counts the methods and imports of a file.
func (f *folder) add(name string, text []byte) error {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		f.imports[path] = true
	}
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Recv == nil {
			continue
		}
		typ := fn.Recv.List[0].Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		if index, ok := typ.(*ast.IndexExpr); ok {
			typ = index.X
		}
		if id, ok := typ.(*ast.Ident); ok {
			f.methods[id.Name]++
		}
	}
	return nil
}

var row = regexp.MustCompile("(?m)^\\| `install/([a-z0-9]+)` \\|.*\\|((?: `[a-z0-9]+`)*) \\|$")

// allowed are the rooms of install, with those that each may import, by the table on a page.
func allowed(page string) map[string][]string {
	may := map[string][]string{}
	for _, match := range row.FindAllStringSubmatch(page, -1) {
		may[match[1]] = strings.Fields(strings.ReplaceAll(match[2], "`", ""))
	}
	return may
}

// checkRooms compares the rooms with what they may import.
func checkRooms(may map[string][]string, folders map[string]*folder) (found []string) {
	if len(may) == 0 {
		return []string{"docs/architecture.md has no table of the rooms of install"}
	}
	for room, others := range may {
		f := folders[rooms+room]
		if f == nil {
			found = append(found, "docs/architecture.md has the room "+rooms+room+", which is not there")
			continue
		}
		for path := range f.imports {
			other, ok := strings.CutPrefix(path, module+rooms)
			if _, isRoom := may[other]; ok && isRoom && !slices.Contains(others, other) {
				found = append(found, fmt.Sprintf("%s%s imports %s%s, which docs/architecture.md does not say", rooms, room, rooms, other))
			}
			if path == module+strings.TrimSuffix(rooms, "/") {
				found = append(found, fmt.Sprintf("%s%s imports install: the verbs are above the rooms", rooms, room))
			}
		}
	}
	for name := range folders {
		room, ok := strings.CutPrefix(name, rooms)
		if _, known := may[room]; ok && !known {
			for path := range folders[name].imports {
				other, ok := strings.CutPrefix(path, module+rooms)
				if _, isRoom := may[other]; ok && isRoom && !strings.HasPrefix(room, other+"/") {
					found = append(found, fmt.Sprintf("%s imports the room %s%s, and is no room", name, rooms, other))
				}
			}
		}
	}
	return found
}
