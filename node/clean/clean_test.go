//go:build linux

package clean_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/node/clean"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/nodelab"
)

func TestClean(t *testing.T) {
	l := nodelab.New(t)
	other := filepath.Join(t.TempDir(), "bin")
	old := time.Now().Add(-time.Hour)
	write := func(dir, name string, when time.Time) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("1234"), 0o600),
			os.Chtimes(path, when, when)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const pack = "boxlift-k3s-0123456789ab.tar"
	temporary := []string{
		write(l.Files, "bin/.boxlift-put-abcdef", old),
		write(l.Files, ".boxlift-put-1", old),
		write(l.Images, ".boxlift-put-2", old),
		write(other, ".boxlift-put-3", old),
		write(other, "k3s.boxlift-new", old),
	}
	unfinished := []string{
		write(l.Files, "files/k3s-0123456789ab.0123456789ab.part", old),
		write(l.Images, pack+".part", old),
	}
	kept := []string{
		write(l.Files, "bin/boxlift-node", old),
		write(l.Files, "bin/notes.part", old),
		write(l.Files, "bin/.boxlift-put-new", time.Now()),
		write(l.Images, pack, old),
		write(l.Images, "k3s-airgap.tar.part", old),
		write(other, "k3s", old),
		write(other, "deeper/.boxlift-put-4", old),
		write(other, "x.0123456789ab.part", old),
	}
	used := write(l.Files, "bin/.boxlift-put-used", old)
	user, err := os.Open(used)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(l.Files, ".boxlift-put-link")
	if err := os.Symlink(kept[0], link); err != nil {
		t.Fatal(err)
	}
	kept = append(kept, used, link)
	run := func(all bool, want ...string) {
		t.Helper()
		r, err := clean.Run(t.Context(), clean.Options{
			ImagesDir: l.Images, FilesDir: l.Files, Dirs: []string{other, "/boxlift-test-none"}, Unfinished: all,
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(want)
		slices.Sort(r.Removed)
		if diff := cmp.Diff(append([]string{}, want...), r.Removed); diff != "" {
			t.Error(diff)
		}
		if r.Bytes != int64(4*len(want)) {
			t.Errorf("%d bytes were removed", r.Bytes)
		}
		for _, name := range kept {
			if _, err := os.Lstat(name); err != nil {
				t.Error(err)
			}
		}
	}
	run(false, temporary...)
	run(false)

	// A receiver at work keeps what it may go on from.
	want := l.Want(l.Pack(t, "a", nodelab.Random(260, 1000)))
	want.Files = []wire.FileWant{l.File("x", 0o644, []byte("x"))}
	p := l.Start(t)
	if err := wire.WriteFrame(p.In, wire.Message{Want: &want}); err != nil {
		t.Fatal(err)
	}
	if _, err := wire.ReadFrame(p.Out); err != nil {
		t.Fatal(err)
	}
	write(l.Images, pack+".part", old)
	run(true)
	if err := p.In.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil {
		t.Error("the receiver says that it has finished")
	}
	run(true, unfinished...)

	if err := user.Close(); err != nil {
		t.Fatal(err)
	}
	kept = kept[:len(kept)-2]
	run(true, used)
	if _, err := os.Lstat(link); err != nil {
		t.Error(err)
	}
}
