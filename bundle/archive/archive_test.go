package archive

import (
	"bytes"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/imagearchive"
)

// TestReadArchive checks that all forms of compression are told by their content, and
// that nothing is left unread.
func TestReadArchive(t *testing.T) {
	for name, file := range imagearchive.Forms(t, map[string]string{"a/b": "one", "c": "two"}) {
		t.Run(name, func(t *testing.T) {
			got := make(map[string]string)
			source := bytes.NewReader(file)
			err := Read(source, func(path string, size int64, content io.Reader) error {
				all, err := io.ReadAll(content)
				if int64(len(all)) != size {
					t.Errorf("%s has %d bytes, %d were announced", path, len(all), size)
				}
				got[path] = string(all)
				return err
			}, nil)
			if err != nil || source.Len() > 0 {
				t.Errorf("%d bytes left unread, %v", source.Len(), err)
			}
			if diff := cmp.Diff(map[string]string{"a/b": "one", "c": "two"}, got); diff != "" {
				t.Errorf("members (-expected +got):\n%s", diff)
			}
		})
	}
}
