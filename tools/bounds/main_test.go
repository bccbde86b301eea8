package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const page = "| `install/site` | what a verb works on | |\n| `install/run` | the engine | `site` |\n"

// write makes a repository of files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestCheck(t *testing.T) {
	methods := func(n int) string {
		text := "package site\n\ntype T[K any] struct{}\n"
		for i := range n {
			text += fmt.Sprintf("func (*T[K]) m%d() {}\n", i)
		}
		return text
	}
	for _, test := range []struct {
		name  string
		files map[string]string
		want  string // "" for nothing
	}{
		{"as it is to be", map[string]string{"install/run/a.go": "package run\n\nimport _ \"" + module + "install/site\"\n"}, ""},
		{"upwards", map[string]string{"install/site/a.go": "package site\n\nimport _ \"" + module + "install/run\"\n"}, "install/site imports install/run"},
		{"the verbs", map[string]string{"install/run/a.go": "package run\n\nimport _ \"" + module + "install\"\n"}, "the verbs are above the rooms"},
		{"no room", map[string]string{"install/kube/a.go": "package kube\n\nimport _ \"" + module + "install/site\"\n"}, "install/kube imports the room install/site"},
		{"a room of a room", map[string]string{"install/site/sitetest/a.go": "package sitetest\n\nimport _ \"" + module + "install/site\"\n"}, ""},
		{"40 methods", map[string]string{"install/site/a.go": methods(40)}, ""},
		{"41 methods", map[string]string{"install/site/a.go": methods(41)}, "install/site.T has 41 methods"},
		{"a large package", map[string]string{"bundle/a.go": "package bundle\n" + strings.Repeat("\n", 3500)}, "package bundle has 3501 lines"},
		{"a large command", map[string]string{"cmd/a/a.go": "package main\n" + strings.Repeat("\n", 3500)}, ""},
		{"large tests", map[string]string{"bundle/a_test.go": "package bundle\n" + strings.Repeat("\n", 3500)}, ""},
		{"a long line", map[string]string{"bundle/a.go": "package bundle\n//" + strings.Repeat("x", 120) + "\n"}, "bundle/a.go:2 (122)"},
		{"not shipped", map[string]string{"test/a/a.go": "package a\n//" + strings.Repeat("x", 120) + "\n"}, ""},
		{"broken", map[string]string{"bundle/a.go": "package"}, "expected"},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := map[string]string{
				"docs/architecture.md": page, "install/site/site.go": "package site\n", "install/run/run.go": "package run\n",
			}
			for name, content := range test.files {
				files[name] = content
			}
			found, err := check(write(t, files))
			got := strings.Join(found, "\n")
			if err != nil {
				got = err.Error()
			}
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	for name, page := range map[string]string{
		"has no table": "nothing", "which is not there": page + "| `install/gone` | | `site` |\n",
	} {
		root := write(t, map[string]string{"docs/architecture.md": page, "install/site/a.go": "package site\n", "install/run/a.go": "package run\n"})
		if found, err := check(root); err != nil || !strings.Contains(strings.Join(found, "\n"), name) {
			t.Errorf("%s: %q, %v", name, found, err)
		}
	}
}
