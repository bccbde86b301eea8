package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/internal/progress"
)

// content is what all tests write: three volumes of MinSize and a bit.
var content = func() []byte {
	b := make([]byte, 3*MinSize+1000)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(b)
	return b
}()

func newDraft(t testing.TB, path string, volumeSize int64) *Draft {
	t.Helper()
	d, err := NewDraft(DraftOptions{Path: path, Suffix: ".partial", Size: int64(len(content)), VolumeSize: volumeSize})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// write writes content in pieces, the last first.
func write(t testing.TB, d *Draft) {
	t.Helper()
	if err := d.Allocate(); err != nil {
		t.Fatal(err)
	}
	const piece = 10_007
	for at := (len(content) - 1) / piece * piece; at >= 0; at -= piece {
		if _, err := d.WriteAt(content[at:min(at+piece, len(content))], int64(at)); err != nil {
			t.Fatal(err)
		}
	}
}

func commit(t testing.TB, d *Draft) {
	t.Helper()
	if err := d.Commit(t.Context(), progress.Discard); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// newSet makes a finished set of four volumes and returns its name.
func newSet(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.tar")
	d := newDraft(t, path, MinSize)
	write(t, d)
	commit(t, d)
	return path
}

func mustOpen(t testing.TB, path string, identities ...age.Identity) *File {
	t.Helper()
	f, err := Open(path, identities...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustWrite(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func wantError(t testing.TB, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got the error %v, expected one with %q", err, part)
		}
	}
}

// names lists the files of a folder.
func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var result []string
	for _, e := range entries {
		result = append(result, e.Name())
	}
	return result
}

// checkContent reads a file in ways that cross the borders of volumes and chunks.
func checkContent(t *testing.T, f *File) {
	t.Helper()
	if f.Size() != int64(len(content)) {
		t.Fatalf("it has %d bytes, expected %d", f.Size(), len(content))
	}
	all, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()+10))
	if err != nil || !bytes.Equal(all, content) {
		t.Fatalf("as a whole: %d bytes, %v", len(all), err)
	}
	const b = MinSize
	for _, r := range [][2]int{{0, 1}, {b - 1, 1}, {b - 1, 2}, {b, 1}, {b + 1, b}, {1, 2*b + 5}, {3*b - 1, 1001}, {len(content) - 1, 1}, {0, len(content)}, {5, 0}} {
		got := make([]byte, r[1])
		n, err := f.ReadAt(got, int64(r[0]))
		if n != r[1] || err != nil || !bytes.Equal(got, content[r[0]:r[0]+r[1]]) {
			t.Errorf("%d bytes at %d: got %d, %v", r[1], r[0], n, err)
		}
		var mapped bytes.Buffer
		err = f.UseMapped(int64(r[0]), int64(r[1]), func(p []byte) error { mapped.Write(p); return nil })
		if errors.Is(err, errors.ErrUnsupported) {
			continue
		}
		if err != nil || !bytes.Equal(mapped.Bytes(), content[r[0]:r[0]+r[1]]) {
			t.Errorf("%d bytes at %d, mapped: got %d, %v", r[1], r[0], mapped.Len(), err)
		}
	}
	for _, at := range []int{len(content) - 3, len(content), len(content) + 5} {
		n, err := f.ReadAt(make([]byte, 10), int64(at))
		if n != max(0, len(content)-at) || !errors.Is(err, io.EOF) {
			t.Errorf("beyond the end, at %d: %d, %v", at, n, err)
		}
	}
}

func TestOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	d := newDraft(t, path, 0)
	write(t, d)
	commit(t, d)
	f := mustOpen(t, path)
	checkContent(t, f)
	if f.Volumes() != 0 || f.VolumeSize() != 0 || f.Encrypted() || f.Stored() != f.Size() {
		t.Errorf("it has %d volumes of %d", f.Volumes(), f.VolumeSize())
	}
	if diff := cmp.Diff([]string{"b.tar"}, names(t, filepath.Dir(path))); diff != "" {
		t.Error(diff)
	}
	if err := Check(t.Context(), path, progress.Discard); err != nil {
		t.Error(err)
	}
}

func TestVolumes(t *testing.T) {
	path := newSet(t)
	dir := filepath.Dir(path)
	if diff := cmp.Diff([]string{"b.tar.000", "b.tar.001", "b.tar.002", "b.tar.003", "b.tar.sha256"}, names(t, dir)); diff != "" {
		t.Fatal(diff)
	}
	var all []byte
	for _, name := range names(t, dir)[:4] {
		all = append(all, mustRead(t, filepath.Join(dir, name))...)
	}
	if !bytes.Equal(all, content) {
		t.Error("the volumes, one after another, are not the content")
	}
	for _, name := range []string{"", ".000", ".003", ".sha256"} {
		f := mustOpen(t, path+name)
		checkContent(t, f)
		if f.Volumes() != 4 || f.VolumeSize() != MinSize {
			t.Errorf("%q: it has %d volumes of %d", name, f.Volumes(), f.VolumeSize())
		}
	}
	if err := Check(t.Context(), path, progress.Discard); err != nil {
		t.Error(err)
	}
	cmd := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "b.tar.sha256")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestWriter has the list made on the way, in pieces that cross the borders of volumes.
func TestWriter(t *testing.T) {
	want := mustRead(t, newSet(t)+listSuffix)
	path := filepath.Join(t.TempDir(), "b.tar")
	d := newDraft(t, path, MinSize)
	if err := d.Allocate(); err != nil {
		t.Fatal(err)
	}
	w := d.Writer()
	for rest := content; len(rest) > 0; {
		n := min(len(rest), 100_003)
		if _, err := w.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if len(d.sums) != 4 {
		t.Errorf("%d checksums", len(d.sums))
	}
	commit(t, d)
	checkContent(t, mustOpen(t, path))
	if got := mustRead(t, path+listSuffix); !bytes.Equal(got, want) {
		t.Errorf("the list is\n%s", got)
	}
	if _, err := w.Write([]byte("more")); err == nil {
		t.Error("more than there is room for was written")
	}
}

// TestFaults spoils a set in one way each. Opening or checking it names the file.
func TestFaults(t *testing.T) {
	change := func(path string, f func([]byte) []byte) {
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, f(b), 0o600)
		}
		if err != nil {
			panic(err)
		}
	}
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:len(b)-n] } }
	tests := map[string]struct {
		spoil func(path string)
		open  []string // what opening says; nothing when it succeeds
		check []string
	}{
		"missing":       {func(p string) { _ = os.Remove(p + ".001") }, []string{"b.tar.001 is missing"}, nil},
		"first missing": {func(p string) { _ = os.Remove(p + ".000") }, []string{"b.tar.000 is missing"}, nil},
		"two missing":   {func(p string) { _ = os.Remove(p + ".001"); _ = os.Remove(p + ".003") }, []string{"b.tar.001 is missing", "b.tar.003 is missing"}, nil},
		"short":         {func(p string) { change(p+".002", cut(1)) }, []string{"b.tar.002 has 65535 bytes, the volumes of this set have at least 65536: it is cut off"}, nil},
		"first short":   {func(p string) { change(p+".000", cut(60000)) }, []string{"b.tar.000 has 5536 bytes"}, nil},
		"last short":    {func(p string) { change(p+".003", cut(1)) }, nil, []string{"b.tar.003 is damaged"}},
		"empty":         {func(p string) { change(p+".003", cut(1000)) }, []string{"b.tar.003 is empty"}, nil},
		"longer":        {func(p string) { change(p+".001", func(b []byte) []byte { return append(b, 0) }) }, []string{"b.tar.001 has 65537 bytes, the volumes of this set have 65536: something was appended"}, nil},
		"damaged":       {func(p string) { change(p+".001", func(b []byte) []byte { b[77] ^= 1; return b }) }, nil, []string{"b.tar.001 is damaged: its sha256 is not the one in the list"}},
		"two damaged": {
			func(p string) {
				for _, n := range []string{".000", ".003"} {
					change(p+n, func(b []byte) []byte { b[0] ^= 1; return b })
				}
			}, nil, []string{"b.tar.000 is damaged", "b.tar.003 is damaged"},
		},
		"swapped": {
			func(p string) {
				_ = os.Rename(p+".001", p+".x")
				_ = os.Rename(p+".002", p+".001")
				_ = os.Rename(p+".x", p+".002")
			}, nil, []string{"b.tar.001 holds what belongs in b.tar.002", "b.tar.002 holds what belongs in b.tar.001"},
		},
		"last in another's place": {
			func(p string) { _ = os.Rename(p+".003", p+".000") },
			[]string{"b.tar.003 is missing"}, nil,
		},
		"a folder":       {func(p string) { _ = os.Remove(p + ".001"); _ = os.Mkdir(p+".001", 0o755) }, []string{"b.tar.001 is not a regular file"}, nil},
		"a pipe":         {func(p string) { _ = os.Remove(p + ".001"); _ = syscall.Mkfifo(p+".001", 0o600) }, []string{"b.tar.001 is not a regular file"}, nil},
		"no list":        {func(p string) { _ = os.Remove(p + ".sha256") }, []string{"b.tar.sha256 is missing"}, nil},
		"list is a pipe": {func(p string) { _ = os.Remove(p + ".sha256"); _ = syscall.Mkfifo(p+".sha256", 0o600) }, []string{"b.tar.sha256 is not a regular file"}, nil},
		"list cut off":   {func(p string) { change(p+".sha256", cut(1)) }, []string{"b.tar.sha256 is cut off in line 4"}, nil},
		"list of others": {func(p string) {
			change(p+".sha256", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("b.tar"), []byte("c.tar")) })
		}, []string{`b.tar.sha256 has in line 1 the name "c.tar.000", expected "b.tar.000"`}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := newSet(t)
			test.spoil(path)
			f, err := Open(path + ".000")
			if err == nil {
				_ = f.Close()
			}
			if (err == nil) != (test.open == nil) {
				t.Errorf("open: %v", err)
			}
			wantError(t, err, test.open...)
			check := Check(t.Context(), path+".000", progress.Discard)
			wantError(t, check, append(test.check, test.open...)...)
			var fault *Fault
			if !errors.Is(check, ErrDamaged) || !errors.As(check, &fault) || !strings.Contains(fault.Hint(), "sha256sum -c b.tar.sha256") {
				t.Errorf("%T is no fault", check)
			}
			if got, want := strings.Count(check.Error(), "b.tar.0")-strings.Count(check.Error(), "belongs in")-strings.Count(check.Error(), "expected"), max(len(test.check), len(test.open)); !strings.Contains(check.Error(), "sha256 ") && got != want {
				t.Errorf("it names %d volumes, expected %d: %v", got, want, check)
			}

			_, err = Join(t.Context(), path, path+".joined", progress.Discard)
			if err == nil {
				t.Error("it was joined")
			}
			for _, name := range names(t, filepath.Dir(path)) {
				if strings.Contains(name, "joined") {
					t.Errorf("joining left %s", name)
				}
			}
		})
	}
}

func TestTwoVolumes(t *testing.T) {
	for name, test := range map[string]struct {
		cut  string
		size int64
		want string
	}{
		"first": {".000", 1000, "b.tar.000 has 1000 bytes, the volumes of this set have at least "},
		"last":  {".001", 1000, ""}, // as long as it could be: what is in it tells
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "b.tar")
			d := newDraft(t, path, 2*MinSize)
			write(t, d)
			commit(t, d)
			if err := os.Truncate(path+test.cut, test.size); err != nil {
				t.Fatal(err)
			}
			_, err := Open(path)
			if test.want != "" {
				wantError(t, err, test.want)
			}
			wantError(t, Check(t.Context(), path, progress.Discard), "b.tar"+test.cut)
		})
	}
}

func TestJoin(t *testing.T) {
	path := newSet(t)
	got, err := Join(t.Context(), path+".000", "", progress.Discard)
	if err != nil || got != path {
		t.Fatal(got, err)
	}
	if !bytes.Equal(mustRead(t, path), content) {
		t.Error("it is not the content")
	}
	f := mustOpen(t, path)
	if f.Volumes() != 0 {
		t.Error("the volumes were opened and not the file")
	}
	_, err = Join(t.Context(), path+".000", "", progress.Discard)
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a file that is there: %v", err)
	}
	_, err = Join(t.Context(), path, "", progress.Discard)
	wantError(t, err, "it is one file already")
	_, err = Join(t.Context(), path+".none", "", progress.Discard)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = Join(ctx, path+".000", path+".joined", progress.Discard); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestInterruptedCommit ends a commit after each of its steps, as a kill would, with an
// older and longer set of the same name in its way.
func TestInterruptedCommit(t *testing.T) {
	for steps := range 7 {
		t.Run(fmt.Sprint(steps), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "b.tar")
			var old strings.Builder
			for i := range 6 {
				mustWrite(t, set(path).volume(i), []byte("old"))
				fmt.Fprintf(&old, "%064d  b.tar.%03d\n", i, i)
			}
			mustWrite(t, path+listSuffix, []byte(old.String()))

			d := newDraft(t, path, MinSize)
			write(t, d)
			todo := []func() error{func() error { return d.writeList(t.Context(), progress.Discard) }}
			for i := range 4 {
				todo = append(todo, func() error { return os.Rename(d.set.volume(i)+".partial", d.set.volume(i)) })
			}
			todo = append(todo, d.removeStale)
			for _, step := range todo[:steps] {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			if err := d.Close(); err != nil { // as the end of the process does
				t.Fatal(err)
			}

			d = newDraft(t, path, MinSize)
			if whole, err := d.IsWhole(); !whole || err != nil {
				t.Fatalf("it is not whole: %v", err)
			}
			got := make([]byte, len(content))
			if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, content) {
				t.Errorf("what was written is lost: %v", err)
			}
			commit(t, d)
			checkContent(t, mustOpen(t, path))
			if diff := cmp.Diff([]string{"b.tar.000", "b.tar.001", "b.tar.002", "b.tar.003", "b.tar.sha256"}, names(t, filepath.Dir(path))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestCommitOfAnotherSet has a set that was finished after the Commit of another one was ended in
// its middle: it is not that one's to take back.
func TestCommitOfAnotherSet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	d := newDraft(t, path, MinSize)
	write(t, d)
	if err := d.writeList(t.Context(), progress.Discard); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := os.Rename(d.set.volume(i)+".partial", d.set.volume(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if !IsCommitting(path) {
		t.Error("its Commit was ended, and is not seen")
	}
	for i := range 4 {
		mustWrite(t, set(path).volume(i), []byte("another"))
	}
	if IsCommitting(path) {
		t.Error("the other set is taken for one that is not finished")
	}
	newDraft(t, path, MinSize)
	for i := range 4 {
		if got := mustRead(t, set(path).volume(i)); string(got) != "another" {
			t.Errorf("volume %d of the other set is %q", i, got)
		}
	}
}

func TestDraftKeepsOthersAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	for _, size := range []int64{0, MinSize} {
		_ = newDraft(t, path, size)
		_, err := NewDraft(DraftOptions{Path: path, Suffix: ".partial", Size: int64(len(content)), VolumeSize: size})
		wantError(t, err, "is locked: another build is writing it")
	}
}

func TestPrivateDraft(t *testing.T) {
	dir := t.TempDir()
	mustWrite(t, filepath.Join(dir, "b.tar.partial"), []byte("left by a build that was for all"))
	for _, size := range []int64{0, MinSize} {
		d, err := NewDraft(DraftOptions{Path: filepath.Join(dir, "b.tar"), Suffix: ".partial", Size: MinSize, VolumeSize: size, Private: true})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
	}
	for _, name := range names(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v, %v", name, info.Mode(), err)
		}
	}
}

func TestVolumeSizes(t *testing.T) {
	for name, test := range map[string]struct {
		size, volumeSize int64
		want             string
	}{
		"small": {MinSize, MinSize - 1, "at least 64.0 KiB are needed"},
		"many":  {MinSize*MaxVolumes + 1, MinSize, "would be 1001, at most 1000 can be: make them larger"},
	} {
		_, err := NewDraft(DraftOptions{Path: filepath.Join(t.TempDir(), "b.tar"), Suffix: ".partial", Size: test.size, VolumeSize: test.volumeSize})
		if wantError(t, err, test.want); err == nil {
			t.Error(name)
		}
	}
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"set.sha256", "half.000", "both", "both.000", "both.sha256", "file-1.234", "text.sha256.txt"} {
		mustWrite(t, filepath.Join(dir, name), nil)
	}
	for name, want := range map[string]set{
		"set": "set", "set.000": "set", "set.017": "set", "set.sha256": "set", "half": "half", "half.000": "half",
		"both": "", "both.000": "both", "file-1.234": "", "none": "", "none.000": "none", "none.001": "", "none.sha256": "none", "text.sha256.txt": "",
	} {
		got := setOf(filepath.Join(dir, name))
		if want != "" {
			want = set(filepath.Join(dir, string(want)))
		}
		if got != want {
			t.Errorf("%s: %q, expected %q", name, got, want)
		}
	}
	for name, isGood := range map[string]bool{"b.tar": true, "b.000": false, "b.sha256": false, "b-1.36.400": true, "a\\b": false, "a\nb": false} {
		if err := CheckName(name, true); (err == nil) != isGood {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// identity is one recipient of what tests encrypt.
var identity = func() *age.X25519Identity {
	i, err := age.GenerateX25519Identity()
	if err != nil {
		panic(err)
	}
	return i
}()

// quantum is another, whose recipient is post-quantum.
var quantum = func() *age.HybridIdentity {
	i, err := age.GenerateHybridIdentity()
	if err != nil {
		panic(err)
	}
	return i
}()

// encrypted makes an encrypted file, or a set of them.
func encrypted(t testing.TB, volumeSize int64, recipients ...age.Recipient) string {
	t.Helper()
	dir := t.TempDir()
	plain := newDraft(t, filepath.Join(dir, "clear"), 0)
	write(t, plain)
	with, err := NewEncryption(recipients...)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "b.tar.age")
	d, err := NewDraft(DraftOptions{Path: path, Suffix: ".partial", Size: with.Size(plain.Size()), VolumeSize: volumeSize})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Allocate(), with.Run(t.Context(), d, plain, progress.Discard)); err != nil {
		t.Fatal(err)
	}
	commit(t, d)
	plain.Remove()
	if slices.Contains(names(t, dir), "clear.partial") {
		t.Error("what is not encrypted is still there")
	}
	return path
}

func TestEncrypted(t *testing.T) {
	another, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{0, MinSize} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			path := encrypted(t, size, another.Recipient(), identity.Recipient())
			f := mustOpen(t, path, identity)
			checkContent(t, f)
			if !f.Encrypted() || (f.Volumes() > 0) != (size > 0) || f.Stored() <= f.Size() {
				t.Errorf("%d volumes, %d of %d bytes", f.Volumes(), f.Stored(), f.Size())
			}
			if size > 0 {
				if err := Check(t.Context(), path, progress.Discard); err != nil {
					t.Errorf("without an identity: %v", err)
				}
			}
			_, err := Open(path)
			if !errors.Is(err, ErrNoIdentity) {
				t.Errorf("without an identity: %v", err)
			}
			third, err := age.GenerateX25519Identity()
			if err != nil {
				t.Fatal(err)
			}
			_, err = Open(path, third)
			if !errors.Is(err, ErrNoIdentity) {
				t.Errorf("with another identity: %v", err)
			}
			wantError(t, err, "(it is for recipients of the type X25519, X25519)")

			// age itself, in order.
			if size > 0 {
				if path, err = Join(t.Context(), path, "", progress.Discard); err != nil {
					t.Fatal(err)
				}
			}
			plain, err := age.Decrypt(bytes.NewReader(mustRead(t, path)), another)
			if err != nil {
				t.Fatal(err)
			}
			if all, err := io.ReadAll(plain); err != nil || !bytes.Equal(all, content) {
				t.Errorf("age reads %d bytes, %v", len(all), err)
			}
		})
	}
}

// TestPostQuantum encrypts for recipients of age's hybrid kind, which no other kind opens.
func TestPostQuantum(t *testing.T) {
	another, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	path := encrypted(t, MinSize, another.Recipient(), quantum.Recipient())
	f := mustOpen(t, path, identity, quantum)
	checkContent(t, f)
	_, err = Open(path, identity)
	if !errors.Is(err, ErrNoIdentity) {
		t.Errorf("with an identity of the other kind: %v", err)
	}
	wantError(t, err, "(it is for recipients of the type mlkem768x25519, mlkem768x25519)")
	if _, err := NewEncryption(quantum.Recipient(), identity.Recipient()); err == nil {
		t.Error("both kinds at once: what is post-quantum about one is undone by the other")
	}
}

// TestEncryptionHeader opens files whose headers are as large as they may be, and larger.
func TestEncryptionHeader(t *testing.T) {
	other := func(arguments string) *age.Stanza {
		return &age.Stanza{Type: "other", Args: strings.Fields(arguments), Body: []byte{1}}
	}
	for name, test := range map[string]struct {
		stanzas []*age.Stanza
		want    error
	}{
		"1024 recipients": {slices.Repeat([]*age.Stanza{other("a")}, 1023), nil},
		"1025 recipients": {slices.Repeat([]*age.Stanza{other("a")}, 1024), ErrDamaged},
		"below 2 MiB":     {[]*age.Stanza{other(strings.Repeat("a", 2<<20-1<<10))}, nil},
		"above 2 MiB":     {[]*age.Stanza{other(strings.Repeat("a", 2<<20))}, ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			path := encrypted(t, 0, identity.Recipient(), recipientFunc(func([]byte) ([]*age.Stanza, error) {
				return test.stanzas, nil
			}))
			f, err := Open(path, identity)
			if !errors.Is(err, test.want) {
				t.Fatalf("got %v, want %v", err, test.want)
			}
			if err == nil {
				checkContent(t, f)
				_ = f.Close()
			}
		})
	}
}

type recipientFunc func(fileKey []byte) ([]*age.Stanza, error)

func (f recipientFunc) Wrap(fileKey []byte) ([]*age.Stanza, error) { return f(fileKey) }

// TestDamagedEncryption changes one byte of each part of an encrypted file.
func TestDamagedEncryption(t *testing.T) {
	path := encrypted(t, 0, identity.Recipient())
	good := mustRead(t, path)
	payload := len(good) - len(content) - 4*tagSize
	for name, at := range map[string]int{
		"header": payload - 60, "nonce": payload - 1, "first chunk": payload, "third chunk": payload + 2*(chunkSize+tagSize) + 5, "last": len(good) - 1,
	} {
		bad := slices.Clone(good)
		bad[at] ^= 1
		mustWrite(t, path, bad)
		f, err := Open(path, identity)
		if err == nil {
			_, err = io.Copy(io.Discard, io.NewSectionReader(f, 0, f.Size()))
			_ = f.Close()
		}
		if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNoIdentity) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, cut := range []int{1, 1000, chunkSize + tagSize, len(content), len(good) - 10} {
		mustWrite(t, path, good[:len(good)-cut])
		f, err := Open(path, identity)
		if err == nil {
			_ = f.Close()
		}
		if !errors.Is(err, ErrDamaged) && len(good)-cut > len(ageMagic) {
			t.Errorf("without the last %d bytes: %v", cut, err)
		}
	}
}

func TestPassphrase(t *testing.T) {
	recipient, err := age.NewScryptRecipient("secret")
	if err != nil {
		t.Fatal(err)
	}
	recipient.SetWorkFactor(10)
	path := encrypted(t, 0, recipient)
	for passphrase, isRight := range map[string]bool{"secret": true, "other": false} {
		identity, err := age.NewScryptIdentity(passphrase)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(path, identity)
		if (err == nil) != isRight || !isRight && !errors.Is(err, ErrNoIdentity) {
			t.Errorf("%s: %v", passphrase, err)
		}
		if err == nil {
			checkContent(t, f)
			_ = f.Close()
		}
	}
	noSecret := &SecretError{errors.New("nobody answers")}
	if _, err := Open(path, identityFunc(func([]*age.Stanza) ([]byte, error) { return nil, noSecret })); !errors.Is(err, noSecret) || errors.Is(err, ErrDamaged) {
		t.Errorf("a secret that cannot be had: %v", err)
	}
}

type identityFunc func([]*age.Stanza) ([]byte, error)

func (f identityFunc) Unwrap(stanzas []*age.Stanza) ([]byte, error) { return f(stanzas) }

// TestSizeOfEncryption is about the lengths around whole chunks.
func TestSizeOfEncryption(t *testing.T) {
	for _, size := range []int{0, 1, chunkSize - 1, chunkSize, chunkSize + 1, 2 * chunkSize} {
		with, err := NewEncryption(identity.Recipient())
		if err != nil {
			t.Fatal(err)
		}
		want := with.Size(int64(size))
		var got bytes.Buffer
		got.Write(with.header().Bytes())
		with.to.Writer = &got
		if _, err := with.with.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if err := with.with.Close(); err != nil {
			t.Fatal(err)
		}
		if int64(got.Len()) != want {
			t.Errorf("%d bytes become %d, expected %d", size, got.Len(), want)
		}
	}
}
