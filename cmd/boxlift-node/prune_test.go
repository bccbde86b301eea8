//go:build linux

package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

func TestPruneCommandLine(t *testing.T) {
	dir := t.TempDir()
	images, files := filepath.Join(dir, "images"), filepath.Join(dir, "boxlift")
	tests := []struct {
		name, stdin string
		args        []string
		code        int
		stdout      string
		stderr      string
	}{
		{"no request", "", []string{"prune", "-images", images, "-files", files}, 1, "",
			"boxlift-node: prune: read what is to be pruned: EOF"},
		{"another version", `{"version":9}`, []string{"prune", "-images", images, "-files", files}, 1, "",
			"its version is 9"},
		{"too large", strings.Repeat(" ", 1<<20) + `{"version":1}`, []string{"prune", "-images", images, "-files", files}, 1,
			"", "more than 1048576"},
		{"nothing recorded", `{"version":1}`, []string{"prune", "-images", images, "-files", files}, 1, "",
			"nothing says what the releases on this host need"},
		{"nothing there", `{"version":1,"release":{"id":"sha256:` + strings.Repeat("0", 64) + `"}}`,
			[]string{"prune", "-images", images, "-files", files, "-k3s", "/none/k3s"}, 0,
			`{"version":1,"current":"sha256:` + strings.Repeat("0", 64) + `","items":[]}` + "\n", ""},
		{"an argument", "", []string{"prune", "all"}, 2, "", `unexpected argument "all"`},
		{"a flag", "", []string{"disk", "-remove"}, 2, "", "not defined: -remove"},
		{"disk", "", []string{"disk", "-images", images, "-files", files, "-k3s", "/none/k3s"}, 0,
			`{"version":1,"packs":0,"files":0,`, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), test.args, strings.NewReader(test.stdin), &stdout, &stderr)
			if code != test.code || !strings.HasPrefix(stdout.String(), test.stdout) ||
				!strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
			}
		})
	}
}
