package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// volatile is what differs between two runs of the same tests.
var volatile = regexp.MustCompile(`\d+\.\d+s`)

// trace is the stack trace after a panic, which is Go's and not ours to check.
var trace = regexp.MustCompile(`(?s)    goroutine .*?\n(FAIL )`)

// TestSummarize runs the tests of a small module and summarizes them.
func TestSummarize(t *testing.T) {
	archive, err := txtar.ParseFile(filepath.Join("testdata", "module.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, f := range archive.Files {
		path := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name     string
		packages []string
		require  bool
		ok       bool
	}{
		{name: "pass", packages: []string{"./pass"}, ok: true},
		{name: "skip", packages: []string{"./pass", "./skip", "./none"}, ok: true},
		{name: "skip-required", packages: []string{"./skip"}, require: true},
		{name: "fail", packages: []string{"./pass", "./fail"}},
		{name: "long", packages: []string{"./long"}},
		{name: "panic", packages: []string{"./panics"}},
		{name: "exit", packages: []string{"./exits"}},
		{name: "build", packages: []string{"./broken"}},
		{name: "missing", packages: []string{"./missing"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-json", "-p=1"}, tt.packages...)...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
			events, err := cmd.Output() // fails when a test does
			if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			var got bytes.Buffer
			ok, err := summarize(bytes.NewReader(events), &got, tt.require)
			if err != nil {
				t.Fatal(err)
			}
			if ok != tt.ok {
				t.Errorf("ok is %v, want %v", ok, tt.ok)
			}
			compare(t, tt.name, strings.ReplaceAll(got.String(), dir, "DIR"))
		})
	}
}

// TestSummarizeKilled gives it the beginning of what go test would have written.
func TestSummarizeKilled(t *testing.T) {
	for name, input := range map[string]string{
		"empty": "",
		"begun": `{"Action":"start","Package":"example.org/a"}` + "\n" + `{"Action":"run","Package":"example.org/a","Test":"TestA"}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			ok, err := summarize(strings.NewReader(input), &got, false)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				t.Error("reported as well")
			}
			compare(t, name, got.String())
		})
	}
}

func compare(t *testing.T, name, got string) {
	t.Helper()
	got = trace.ReplaceAllString(got, "    (trace)\n$1")
	got = volatile.ReplaceAllString(got, "0.0s")
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}
