package store_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/store"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/trusttest"
)

func TestMain(m *testing.M) {
	if os.Getenv(killedEnv) != "" {
		os.Exit(killedMain())
	}
	os.Exit(m.Run())
}

// release is a small bundle that shares all but one layer and what names it with other releases.
func release(version string) smallbundle.Bundle {
	image := smallbundle.Image{Ref: "docker.io/example/image:v1"}
	for _, platform := range []string{"linux/amd64", "linux/arm64"} {
		image.Platforms = append(image.Platforms, smallbundle.Platform{Name: platform,
			Layers: [][]byte{[]byte(strings.Repeat("shared", 20_000)), []byte("layer " + version + platform)}})
	}
	return smallbundle.Bundle{Components: []smallbundle.Component{{Name: "k3s", Version: "v1.0.0",
		Files:  []smallbundle.File{{Name: "k3s", Platform: "linux/amd64", Content: strings.Repeat("k3s", 50_000)}},
		Images: []smallbundle.Image{image},
	}}}
}

func mustAdd(t *testing.T, dir, path string, bases ...string) *store.Added {
	t.Helper()
	s, err := store.Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := mustOpen(t, path, bases...)
	defer r.Close()
	added, err := s.Add(t.Context(), r, store.AddOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return added
}

func mustOpen(t *testing.T, path string, bases ...string) *bundle.Reader {
	t.Helper()
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, base := range bases {
		r.Use(mustOpen(t, base))
	}
	return r
}

// mustHold proves that a bundle of a store is, byte for byte, a file, and so is what is exported.
func mustHold(t *testing.T, stored, file string) {
	t.Helper()
	want := mustRead(t, stored, file)
	r := mustOpen(t, stored)
	defer r.Close()
	if err := r.Verify(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(t.TempDir(), "exported.tar")
	if _, err := build.Copy(t.Context(), r, build.JoinOptions{Path: output}); err != nil {
		t.Fatal(err)
	}
	if exported, err := os.ReadFile(output); err != nil || !bytes.Equal(exported, want) {
		t.Errorf("%s is exported as %d bytes, %v", stored, len(exported), err)
	}
}

// mustRead reads all of a bundle of a store, which has to be a file.
func mustRead(t *testing.T, stored, file string) []byte {
	t.Helper()
	r := mustOpen(t, stored)
	defer r.Close()
	got, err := io.ReadAll(io.NewSectionReader(r.Whole(), 0, r.Whole().Size()))
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s reads as %d bytes that are not the %d of %s", stored, len(got), len(want), file)
	}
	return want
}

// sizeOf is how many bytes the files below a folder have.
func sizeOf(t *testing.T, dir string) (size int64) {
	t.Helper()
	for _, content := range filesOf(t, dir) {
		size += int64(len(content))
	}
	return size
}

// filesOf are the files below a folder and what is in them.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var content []byte
			content, err = os.ReadFile(filepath.Join(dir, path))
			files[path] = string(content)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestForms takes in bundles of every form, and reads each as the one file that it stands for.
func TestForms(t *testing.T) {
	m := bundletest.NewMaker(t)
	m.Signer = bundletest.NewSigner(t)
	old, _ := m.Build("old.tar", release("old"), nil)
	whole, built := m.Build("whole.tar", release("new"), nil)
	identity := bundletest.NewIdentity(t)
	for name, test := range map[string]struct {
		since  bool
		change func(*build.Options)
	}{
		"one file":         {false, func(*build.Options) {}},
		"volumes":          {false, func(o *build.Options) { o.VolumeSize = volume.MinSize }},
		"encrypted":        {false, func(o *build.Options) { o.Recipients = []age.Recipient{identity.Recipient()} }},
		"delta":            {true, func(*build.Options) {}},
		"delta in volumes": {true, func(o *build.Options) { o.VolumeSize = volume.MinSize }},
	} {
		t.Run(name, func(t *testing.T) {
			m := *m
			m.Dir = t.TempDir()
			base := m.Since(old)
			if !test.since {
				base = nil
			}
			path, _ := m.Build("new.tar", release("new"), base, test.change)
			dir := filepath.Join(m.Dir, "store")
			mustAdd(t, dir, old)
			s, err := store.Create(dir)
			if err != nil {
				t.Fatal(err)
			}
			r, err := bundle.OpenSigned(path, m.Signer.PublicKey(), identity)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			added, err := s.Add(t.Context(), r, store.AddOptions{Name: "v2"})
			if err != nil {
				t.Fatal(err)
			}
			if added.Digest != built.Digest || added.New.Bytes > added.Kept.Bytes || added.Mended.Blobs > 0 || added.Unchanged {
				t.Errorf("added: %+v", added)
			}
			mustHold(t, s.Path("v2"), whole)
			mustHold(t, s.Path("old.tar"), old)
			if _, err := s.Check(t.Context(), nil); err != nil {
				t.Error(err)
			}
			if signed, err := bundle.OpenSigned(s.Path("v2"), m.Signer.PublicKey()); err != nil {
				t.Error(err)
			} else {
				signed.Close()
			}
			for _, wanted := range []string{"v2", built.Digest.String()} {
				if found, err := s.Find(wanted); found != "v2" || err != nil {
					t.Errorf("%s is found as %q, %v", wanted, found, err)
				}
			}
		})
	}
}

// TestTrustFile keeps a bundle with a trust file, and does not take another one for the same.
func TestTrustFile(t *testing.T) {
	one := trusttest.First(t)
	m := bundletest.NewMaker(t)
	old, _ := m.Build("old.tar", release("old"), nil)
	of := release("new")
	of.Trust = one.File()
	whole, _ := m.Build("new.tar", of, nil)
	delta, _ := m.Build("delta.tar", of, m.Since(old))
	dir := filepath.Join(m.Dir, "store")
	mustAdd(t, dir, old)
	mustAdd(t, dir, whole)
	mustAdd(t, dir, delta)
	for _, name := range []string{"new.tar", "delta.tar"} {
		mustHold(t, filepath.Join(dir, name), whole)
		r := mustOpen(t, filepath.Join(dir, name))
		if f := r.TrustFile(); f == nil || f.Newest().Number != 1 {
			t.Errorf("%s has the trust file %v", name, f)
		}
		r.Close()
	}
	if added := mustAdd(t, dir, whole); !added.Unchanged {
		t.Errorf("once more: %+v", added)
	}
	of.Trust = trusttest.Next(t, one, func(*trust.Version) {}).File()
	other, _ := m.Build("other.tar", of, nil)
	s, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := mustOpen(t, other)
	defer r.Close()
	if _, err := s.Add(t.Context(), r, store.AddOptions{Name: "new.tar"}); err == nil ||
		!strings.Contains(err.Error(), "the same bundle with another signature or trust file in it") {
		t.Errorf("with another trust file: %v", err)
	}
	if _, err := s.Check(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// TestSharing measures what two releases take that have most in common.
func TestSharing(t *testing.T) {
	m := bundletest.NewMaker(t)
	old, _ := m.Build("old.tar", bundletest.Release(), nil)
	next, _ := m.Build("next.tar", bundletest.Release(3), nil)
	dir := filepath.Join(m.Dir, "store")
	mustAdd(t, dir, old)
	mustAdd(t, dir, next)
	mustHold(t, filepath.Join(dir, "next.tar"), next)
	files := int64(len(m.Read(old)) + len(m.Read(next)))
	took := sizeOf(t, dir)
	t.Logf("two files have %d bytes, the store has %d: %.1f %%", files, took, 100*float64(took)/float64(files))
	if took > files*56/100 {
		t.Errorf("the store has %d bytes, two files %d", took, files)
	}
	s, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	contents, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, b := range contents.Bundles {
		names = append(names, b.Name)
		if b.Alone.Bytes == 0 || b.Alone.Bytes > b.Size/8 || b.Problem != "" {
			t.Errorf("%+v", b)
		}
	}
	if diff := cmp.Diff([]string{"old.tar", "next.tar"}, names); diff != "" {
		t.Errorf("(-expected +got):\n%s", diff)
	}
	freed, err := s.Remove(t.Context(), "old.tar")
	if err != nil || freed != contents.Bundles[0].Alone {
		t.Errorf("freed: %+v, %v; expected %+v", freed, err, contents.Bundles[0].Alone)
	}
	mustHold(t, filepath.Join(dir, "next.tar"), next)
}

// blobOf is where a blob lies that two releases share.
func blobOf(t *testing.T, dir, content string) string {
	t.Helper()
	path := volume.BlobPath(dir, digest.FromString(content))
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestDamage has blobs of a store changed, cut and removed. Nobody is given them for good, all who look name them, and
// another bundle that has them mends the store.
func TestDamage(t *testing.T) {
	m := bundletest.NewMaker(t)
	old, _ := m.Build("old.tar", release("old"), nil)
	next, _ := m.Build("next.tar", release("new"), nil)
	shared := strings.Repeat("shared", 20_000)
	for name, test := range map[string]struct {
		damage  func(path string) error
		problem string
		opens   bool
	}{
		"changed": {func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("Shared", 20_000)), 0o600)
		}, "is damaged", true},
		"cut off": {func(path string) error { return os.Truncate(path, 100) }, "has 100 bytes", false},
		"gone":    {os.Remove, "is missing", false},
		"a link": {func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink(old, path))
		}, "regular", false},
		"no content": {func(path string) error { return os.WriteFile(path, nil, 0o600) }, "has 0 bytes", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			mustAdd(t, dir, old)
			path := blobOf(t, dir, shared)
			if err := test.damage(path); err != nil {
				t.Fatal(err)
			}
			s, err := store.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			var found *volume.Fault
			if _, err := s.Check(t.Context(), nil); !errors.As(err, &found) || found.Path != path ||
				!strings.Contains(err.Error(), test.problem) {
				t.Errorf("check: %v", err)
			}
			r, err := bundle.Open(s.Path("old.tar"))
			if (err == nil) != test.opens {
				t.Fatalf("open: %v", err)
			}
			if err == nil {
				content, err := r.Content(digest.FromString(shared), int64(len(shared)))
				if err == nil {
					_, err = io.Copy(io.Discard, content)
				}
				if !errors.Is(err, bundle.ErrInvalid) {
					t.Errorf("read: %v", err)
				}
				if err := r.Verify(t.Context(), nil); !errors.As(err, &found) || found.Path != path {
					t.Errorf("verify: %v", err)
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
			if added := mustAdd(t, dir, next); added.Mended.Blobs == 0 && name != "gone" {
				t.Errorf("added: %+v", added)
			}
			mustHold(t, s.Path("old.tar"), old)
			mustHold(t, s.Path("next.tar"), next)
		})
	}
}

// A bundle that is damaged where it came from leaves nothing that is listed, and nothing under a blob's name that
// is not this blob.
func TestAddDamaged(t *testing.T) {
	m := bundletest.NewMaker(t)
	path, _ := m.Build("b.tar", release("old"), nil)
	content := m.Read(path)
	at := bytes.Index(content, []byte("sharedsharedshared"))
	content[at+1000] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := store.Create(filepath.Join(m.Dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	r := mustOpen(t, path)
	defer r.Close()
	if _, err := s.Add(t.Context(), r, store.AddOptions{}); !errors.Is(err, bundle.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	for name, content := range filesOf(t, filepath.Join(m.Dir, "store")) {
		if of, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && digest.FromString(content).Encoded() != of[3:] {
			t.Errorf("%s holds something else", name)
		}
	}
	if names, err := s.Names(); len(names) > 0 || err != nil {
		t.Errorf("listed: %v, %v", names, err)
	}
}

func TestRefused(t *testing.T) {
	m := bundletest.NewMaker(t)
	old, _ := m.Build("old.tar", release("old"), nil)
	next, _ := m.Build("next.tar", release("new"), nil)
	delta, _ := m.Build("delta.tar", release("new"), m.Since(old))
	dir := filepath.Join(m.Dir, "store")
	add := func(path, name string) error {
		s, err := store.Create(dir)
		if err != nil {
			return err
		}
		r := mustOpen(t, path)
		defer r.Close()
		_, err = s.Add(t.Context(), r, store.AddOptions{Name: name})
		return err
	}
	if err := add(delta, ""); !errors.Is(err, bundle.ErrIncomplete) {
		t.Errorf("a delta without its base: %v", err)
	}
	if err := add(old, "v"); err != nil {
		t.Fatal(err)
	}
	bundletest.WantError(t, add(next, "v"), "v is there, and is the bundle sha256:")
	for name, why := range map[string]string{
		"../v": "other characters", "a b": "other characters", ".v": "begins with", "-v": "begins with",
		"blobs": "the blobs lie there", "v.trust": "beside a bundle", "v.signatures": "beside a bundle",
		"v.tar.000": "first volume", "v.sha256": "first volume", strings.Repeat("v", 129): "129 characters",
	} {
		bundletest.WantError(t, add(next, name), why)
	}
	if err := add(old, "v"); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if _, err := store.Open(m.Dir); !errors.Is(err, store.ErrNoStore) {
		t.Errorf("open another folder: %v", err)
	}
	if _, err := store.Create(m.Dir); !errors.Is(err, store.ErrNoStore) {
		t.Errorf("make a store of another folder: %v", err)
	}
	s, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(t.Context(), "nothing"); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("remove what is not there: %v", err)
	}
	if _, err := s.Find("sha256:" + strings.Repeat("0", 64)); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("find what is not there: %v", err)
	}
}

// What is read stays, and only one writes.
func TestLocks(t *testing.T) {
	m := bundletest.NewMaker(t)
	old, _ := m.Build("old.tar", release("old"), nil)
	next, _ := m.Build("next.tar", release("new"), nil)
	dir := filepath.Join(m.Dir, "store")
	mustAdd(t, dir, old)
	reader := mustOpen(t, filepath.Join(dir, "old.tar"))
	s, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(t.Context(), "old.tar"); !errors.Is(err, store.ErrBusy) {
		t.Errorf("removed while it is read: %v", err)
	}
	mustAdd(t, dir, next) // is not in the way of readers
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	var second error
	asked := false
	watched, err := store.Watched(dir, func(change string) error {
		if !asked && strings.HasPrefix(change, "remove ") {
			asked = true
			_, second = s.Prune(context.WithoutCancel(t.Context()))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watched.Remove(t.Context(), "old.tar"); err != nil {
		t.Fatal(err)
	}
	if !asked || !errors.Is(second, store.ErrBusy) {
		t.Errorf("two write at once: %v", second)
	}
	mustHold(t, filepath.Join(dir, "next.tar"), next)
}

// TestUnreadable has an entry that cannot be read: nobody knows which blobs it needs, so none goes.
func TestUnreadable(t *testing.T) {
	m := bundletest.NewMaker(t)
	old, _ := m.Build("old.tar", release("old"), nil)
	next, _ := m.Build("next.tar", release("new"), nil)
	dir := filepath.Join(m.Dir, "store")
	mustAdd(t, dir, old)
	mustAdd(t, dir, next)
	s, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	entry := m.Read(s.Path("next.tar"))
	for name, content := range map[string][]byte{
		"empty": nil, "cut off": entry[:len(entry)/2], "another beginning": append([]byte("x"), entry...),
		"a line is gone": bytes.Join(slices.Delete(bytes.SplitAfter(entry, []byte("\n")), 3, 4), nil),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(s.Path("next.tar"), content, 0o600); err != nil {
				t.Fatal(err)
			}
			before := filesOf(t, filepath.Join(dir, "blobs"))
			if _, err := s.Prune(t.Context()); !errors.Is(err, volume.ErrDamaged) {
				t.Errorf("prune: %v", err)
			}
			if diff := cmp.Diff(slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(filesOf(t,
				filepath.Join(dir, "blobs"))))); diff != "" {
				t.Errorf("blobs (-before +after):\n%s", diff)
			}
			contents, err := s.List()
			if err != nil || len(contents.Bundles) != 2 || contents.Bundles[1].Problem == "" {
				t.Errorf("listed: %+v, %v", contents, err)
			}
			if _, err := s.Check(t.Context(), progress.Discard); err == nil {
				t.Error("check finds nothing")
			}
			mustHold(t, s.Path("old.tar"), old)
		})
	}
	if _, err := s.Remove(t.Context(), "next.tar"); err != nil {
		t.Error(err)
	}
	mustHold(t, s.Path("old.tar"), old)
	mustAdd(t, dir, next)
	mustHold(t, s.Path("next.tar"), next)
}

// TestOrder looks at what goes to the disk when: a blob has its name after its bytes are there, and an entry its name
// after those of all its blobs are.
func TestOrder(t *testing.T) {
	m := bundletest.NewMaker(t)
	path, _ := m.Build("b.tar", release("old"), nil)
	dir := filepath.Join(m.Dir, "store")
	var changes []string
	s, err := store.Watched(dir, recorder(&changes))
	if err != nil {
		t.Fatal(err)
	}
	r := mustOpen(t, path)
	defer r.Close()
	if _, err := s.Add(t.Context(), r, store.AddOptions{}); err != nil {
		t.Fatal(err)
	}
	at := func(change string) int {
		t.Helper()
		i := slices.Index(changes, change)
		if i < 0 {
			t.Fatalf("%q is not among %q", change, changes)
		}
		return i
	}
	entry := at("rename " + s.Path("b.tar"))
	blobs := 0
	for i, change := range changes {
		blob, ok := strings.CutPrefix(change, "rename "+filepath.Join(dir, "blobs"))
		if !ok {
			continue
		}
		blobs++
		blob = filepath.Join(dir, "blobs", blob)
		if at("flush "+blob+".part") > i || slices.Index(changes[i:], "sync "+filepath.Dir(blob)) < 0 ||
			at("sync "+filepath.Dir(blob)) > entry {
			t.Errorf("%s: %q", blob, changes)
		}
	}
	if want := len(r.Tar().Layout().Entries) - 1; blobs != want {
		t.Errorf("%d blobs were written, expected %d", blobs, want)
	}
	for _, folder := range []string{dir, filepath.Join(dir, "blobs"), filepath.Join(dir, "blobs", "sha256")} {
		if at("sync "+folder) > entry {
			t.Errorf("%s comes too late: %q", folder, changes)
		}
	}
	if last := changes[len(changes)-1]; last != "sync "+dir {
		t.Errorf("the last is %s", last)
	}
	changes = nil
	if _, err := s.Remove(t.Context(), "b.tar"); err != nil {
		t.Fatal(err)
	}
	if got, want := changes[:3], []string{"lock", "remove " + s.Path("b.tar"), "sync " + dir}; !slices.Equal(got, want) {
		t.Errorf("removed in the order %q, expected %q first", got, want)
	}
	if left := filesOf(t, dir); len(left) != 1 {
		t.Errorf("left: %v", slices.Collect(maps.Keys(left)))
	}
}
