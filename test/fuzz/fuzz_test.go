package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCountExecutions(t *testing.T) {
	for name, test := range map[string]struct {
		printed string
		want    int64
		err     string
	}{
		"the last count": {
			printed: "fuzz: elapsed: 0s, gathering baseline coverage: 0/7 completed\n" +
				"fuzz: elapsed: 3s, execs: 5 (2/sec), new interesting: 1 (total: 8)\n" +
				"fuzz: elapsed: 6s, execs: 1205 (400/sec), new interesting: 1 (total: 8)\nPASS\n",
			want: 1205,
		},
		"no count":         {printed: "PASS\nok  \texample.test/a\t0.1s\n", err: "does not say how often"},
		"more than counts": {printed: "fuzz: elapsed: 3s, execs: 99999999999999999999 (2/sec), x\n", err: "read"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := countExecutions(strings.NewReader(test.printed))
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("error %v, expected %q", err, test.err)
			}
			if err == nil && got != test.want {
				t.Errorf("%d, expected %d", got, test.want)
			}
		})
	}
}

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFindTargets(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, ".", map[string]string{
		"go.mod":                   "module example.test\n",
		"b/b_test.go":              "package b\n\nfunc FuzzTwo(f *testing.F) {}\n\nfunc FuzzOne(f *testing.F) {}\n",
		"a/b.go":                   "package a\n\nfunc FuzzNoTest() {}\n",
		"a/testdata/skip_test.go":  "package a\n\nfunc FuzzData(f *testing.F) {}\n",
		"other/go.mod":             "module other.test\n",
		"other/a_test.go":          "package other\n\nfunc FuzzOther(f *testing.F) {}\n",
		"a/deep/deep_test.go":      "package deep\n\n// func FuzzComment(\nfunc FuzzDeep(f *testing.F) {}\n",
		"a/deep/text_test.go":      "package deep\n\nconst text = `\nfunc FuzzText(f *testing.F) {}\n`\n",
		"a/deep/method_test.go":    "package deep\n\ntype t int\n\nfunc (t) FuzzMethod() {}\n\nfunc Fuzzy() {}\n",
		".hidden/hidden_test.go":   "package hidden\n\nfunc FuzzHidden(f *testing.F) {}\n",
		"a/deep/indented_test.txt": "func FuzzText(f *testing.F) {}\n",
	})
	got, err := findTargets(".")
	if err != nil {
		t.Fatal(err)
	}
	want := []target{{"./a/deep", "FuzzDeep"}, {"./b", "FuzzOne"}, {"./b", "FuzzTwo"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(target{})); diff != "" {
		t.Error(diff)
	}
}

// Of what the cache has, the tree gets what is small and reaches something that nothing else there reaches.
func TestCopyInputs(t *testing.T) {
	t.Chdir(t.TempDir())
	entry := func(text string) string { return "go test fuzz v1\nstring(" + strconv.Quote(text) + ")\n" }
	write(t, ".", map[string]string{
		"go.mod": "module example.test\n\ngo 1.26\n",
		"a/a.go": `package a

func Kind(s string) (kind int) {
	if len(s) > 1 && s[0] == 'x' {
		kind++
	}
	if len(s) > 2 && s[1] == 'y' {
		kind += 2
	}
	if len(s) > 3 && s[2] == 'z' {
		kind += 4
	}
	return kind
}
`,
		"a/a_test.go": `package a

import "testing"

func FuzzKind(f *testing.F) {
	f.Add("x1")
	f.Fuzz(func(t *testing.T, s string) { Kind(s) })
}
`,
		"a/testdata/fuzz/FuzzKind/first": entry("ay1"),
		"cache/again":                    entry("xy3"), "cache/none": entry("b"), "cache/shorter": entry("..z1"), "cache/longer": entry("..z12"),
		"cache/first": entry("ay1"), "cache/large": entry(strings.Repeat("x", maxInput)), "cache/other": "no input\n",
	})
	kind := target{"./a", "FuzzKind"}
	for _, from := range []string{"cache", "cache", "missing"} {
		if err := copyInputs(t.Context(), kind, from); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(kind.corpus())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if diff := cmp.Diff([]string{"first", "shorter"}, names); diff != "" {
			t.Errorf("from %s: %s", from, diff)
		}
	}
}

// A target that does nothing fails the run, and so does one that is executed too seldom.
func TestFloor(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, ".", map[string]string{
		"go.mod": "module example.test\n\ngo 1.26\n",
		"a/a_test.go": `package a

import "testing"

func FuzzQuick(f *testing.F) {
	f.Add([]byte("a"))
	f.Fuzz(func(t *testing.T, b []byte) {})
}
`,
	})
	var out strings.Builder
	o := options{time: 2e9, floor: 1}
	if err := fuzz(t.Context(), &out, o, ""); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	o.floor = 1e9
	err := fuzz(t.Context(), &out, o, "FuzzQuick")
	if err == nil || !strings.Contains(err.Error(), "./a.FuzzQuick: it was executed ") {
		t.Errorf("error %v, expected that it was executed too seldom\n%s", err, &out)
	}
	if err := fuzz(t.Context(), &out, o, "FuzzNone"); err == nil {
		t.Error("no target matches, and it passes")
	}
}

// What fails fails the run, and the most that is done to make it smaller are a few tries: Go would take a minute of
// each input, and nothing else would be tried meanwhile.
func TestInputsAreHardlyMadeSmaller(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, ".", map[string]string{
		"go.mod": "module example.test\n\ngo 1.26\n",
		"a/a_test.go": `package a

import (
	"bytes"
	"os"
	"testing"
)

func FuzzLong(f *testing.F) {
	same := make([]byte, 8<<10)
	f.Add(same)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) <= 1<<10 || bytes.HasPrefix(same, b) {
			return
		}
		failures, err := os.OpenFile("failures", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer failures.Close()
		if _, err := failures.Write([]byte{'.'}); err != nil {
			t.Fatal(err)
		}
		t.Fatal("this one is long")
	})
}
`,
	})
	var out strings.Builder
	if err := fuzz(t.Context(), &out, options{time: 20e9}, ""); err == nil || !strings.Contains(out.String(), "this one is long") {
		t.Fatalf("error %v, expected that a failing input is told\n%s", err, &out)
	}
	failures, err := os.ReadFile("a/failures")
	if err != nil {
		t.Fatal(err)
	}
	// Each worker fails once, and one of them tries.
	if most := 20 + 2*runtime.GOMAXPROCS(0); len(failures) > most {
		t.Errorf("it failed %d times, expected at most %d", len(failures), most)
	}
}
