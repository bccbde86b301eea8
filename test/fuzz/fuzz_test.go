package main

import (
	"os"
	"path/filepath"
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

func TestCopyInputs(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "testdata", "fuzz", "FuzzX")
	head := "go test fuzz v1\n"
	write(t, from, map[string]string{
		"large": head + strings.Repeat("x", maxInput), "small": head + "[]byte(\"a\")\n", "other": "no input\n",
	})
	if err := copyInputs(from, to); err != nil {
		t.Fatal(err)
	}
	if err := copyInputs(filepath.Join(from, "missing"), to); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(to)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != "small" {
		t.Errorf("kept %v, expected only small", entries)
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
