package bundle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/volume"
)

// The hash reads in assembly, where a fault must become an error as well.
func TestHashOfAFileThatIsCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := volume.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e := ocitar.Entry{Member: ocitar.Member{Name: "blob", Size: 1 << 20}}
	_, err = hashEntry(t.Context(), f, e, cutter{path})
	if err == nil || !strings.Contains(err.Error(), "read blob at offset 0: a part of the file cannot be read") {
		t.Errorf("got %v", err)
	}
}

// cutter is a task that empties the file that is worked on.
type cutter struct{ path string }

func (c cutter) Add(int64)  { _ = os.Truncate(c.path, 0) }
func (c cutter) Skip(int64) {}
func (c cutter) Done(error) {}
