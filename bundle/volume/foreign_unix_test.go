//go:build unix

package volume

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
	"github.com/liteboxd/boxlift/internal/progress"
)

// TestForeignDraft puts things at the names that a draft's files will have, which others can
// compute. None of them is written to, or gets the name of a bundle.
func TestForeignDraft(t *testing.T) {
	for name, options := range map[string]struct {
		volumeSize int64
		file       string // what the name is of
	}{
		"one file":     {0, "b.tar.partial"},
		"a volume":     {MinSize, "b.tar.001.partial"},
		"a set's list": {MinSize, "b.tar.sha256.partial"},
	} {
		for kind, put := range map[string]func(path, victim string) error{
			"link":            func(path, victim string) error { return os.Symlink(victim, path) },
			"link to nothing": func(path, victim string) error { return os.Symlink(victim+".new", path) },
			"hard link":       func(path, victim string) error { return os.Link(victim, path) },
			"pipe":            func(path, _ string) error { return syscall.Mkfifo(path, 0o666) },
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				dir, elsewhere := t.TempDir(), t.TempDir()
				victim := filepath.Join(elsewhere, "victim")
				mustWrite(t, victim, []byte("somebody's"))
				if err := put(filepath.Join(dir, options.file), victim); err != nil {
					t.Fatal(err)
				}
				d, err := NewDraft(DraftOptions{
					Path: filepath.Join(dir, "b.tar"), Suffix: ".partial", Size: 2 * MinSize, VolumeSize: options.volumeSize,
				})
				if err == nil {
					_ = d.Allocate()
					_ = d.Close()
				}
				if !errors.Is(err, ownfile.ErrForeign) || len(fault.Hints(err)) != 1 {
					t.Errorf("got %v", err)
				}
				entries, err := os.ReadDir(elsewhere)
				content, _ := os.ReadFile(victim)
				if err != nil || string(content) != "somebody's" || len(entries) != 1 {
					t.Errorf("the victim holds %q, and beside it are %v, %v", content, entries, err)
				}
			})
		}
	}
}

// TestReplacedDraft takes a draft's name away from it before it is finished.
func TestReplacedDraft(t *testing.T) {
	for name, volumeSize := range map[string]int64{"b.tar.partial": 0, "b.tar.001.partial": MinSize} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			d, err := NewDraft(DraftOptions{
				Path: filepath.Join(dir, "b.tar"), Suffix: ".partial", Size: 2 * MinSize, VolumeSize: volumeSize,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if _, err := d.Writer().Write(make([]byte, 2*MinSize)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, name)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			mustWrite(t, path, make([]byte, 2*MinSize))
			if err := d.Commit(t.Context(), progress.Discard); !errors.Is(err, ownfile.ErrForeign) {
				t.Errorf("got %v", err)
			}
			final := name[:len(name)-len(".partial")]
			if _, err := os.Lstat(filepath.Join(dir, final)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is there: %v", final, err)
			}
		})
	}
}
