package volume

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gofrs/flock"
)

// TestPartialThatWasRenamed has a build that opened the partial file before another one
// finished it, and got the lock after.
func TestPartialThatWasRenamed(t *testing.T) {
	partial := filepath.Join(t.TempDir(), "b.tar.0123.partial")
	lock := flock.New(partial)
	if locked, err := lock.TryLock(); err != nil || !locked {
		t.Fatal(locked, err)
	}
	defer lock.Close()
	f, err := openLocked(lock)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	if err := os.Rename(partial, filepath.Join(filepath.Dir(partial), "b.tar")); err != nil {
		t.Fatal(err)
	}
	_, err = openLocked(lock)
	wantError(t, err, "another build has just finished", "run the command again")

	mustWrite(t, partial, []byte("of a third build"))
	_, err = openLocked(lock)
	wantError(t, err, "one more is writing it")
}
