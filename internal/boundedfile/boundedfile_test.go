package boundedfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path string
		most int64
		want string
	}{
		{path, 6, ""},
		{path, 5, ""},
		{path, 4, "has more than 4 bytes"},
		{dir, 5, "is no regular file"},
	} {
		content, err := Read(test.path, test.most)
		if test.want == "" && (err != nil || string(content) != "12345") ||
			test.want != "" && (!errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s, %d: %q, %v", test.path, test.most, content, err)
		}
	}
	if _, err := Read(filepath.Join(dir, "none"), 5); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
