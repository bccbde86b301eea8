package ownfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A file that others could read is not readable for them any more, and one that is new has the mode as well.
func TestReplace(t *testing.T) {
	for _, was := range []fs.FileMode{0, 0o644, 0o600, 0o400} {
		path := filepath.Join(t.TempDir(), "file")
		if was != 0 {
			if err := os.WriteFile(path, []byte("old"), was); err != nil {
				t.Fatal(err)
			}
		}
		for _, mode := range []fs.FileMode{0o600, 0o640} {
			if err := Replace(path, []byte("new"), mode); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if content, readErr := os.ReadFile(path); err != nil || readErr != nil || info.Mode() != mode || string(content) != "new" {
				t.Errorf("it was %v, asked for %v: %v, %q, %v", was, mode, info.Mode(), content, err)
			}
		}
		if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
			t.Errorf("left behind: %v, %v", entries, err)
		}
	}
	if err := Replace(filepath.Join(t.TempDir(), "missing", "file"), nil, 0o600); err == nil {
		t.Error("there is no folder")
	}
}
