package foldertar

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tree is what a folder has: each path with its kind, owner, mode, time and content.
func tree(t *testing.T, folder string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch of := info.Sys().(*syscall.Stat_t); {
		case d.Type() == fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += " to " + to
		case d.Type().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += " " + string(content)
			fallthrough
		default:
			text += " " + info.ModTime().UTC().Format(time.RFC3339Nano) + " " + hex.EncodeToString([]byte{byte(of.Uid), byte(of.Gid)})
		}
		found[name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// sample is a folder with all that is kept.
func sample(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "volume")
	when := time.Date(2026, 3, 4, 5, 6, 7, 80, time.UTC)
	for name, content := range map[string]string{
		"records.jsonl": "one\ntwo\n", "empty": "", "a/b/c": "deep", "a/\xff\xfe": "a name that is no text", "ä": "x",
		strings.Repeat("n", 255): "a long name", "a." + "z": "beside a",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(content), 0o640), os.Chtimes(path, when, when)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("../../etc/passwd", filepath.Join(dir, "a", "link")), os.Symlink("/nowhere", filepath.Join(dir, "to")),
		os.Chmod(filepath.Join(dir, "empty"), 0o4711|fs.ModeSetuid), os.Mkdir(filepath.Join(dir, "closed"), 0o500),
		os.Chmod(filepath.Join(dir, "a"), 0o777|fs.ModeSticky|fs.ModeSetgid), os.Chmod(dir, 0o770)); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Lchown(filepath.Join(dir, "records.jsonl"), 65, 66), os.Lchown(filepath.Join(dir, "a"), 67, 68), os.Lchown(dir, 69, 70)); err != nil {
			t.Fatal(err)
		}
		// To own it has taken setgid away.
		if err := os.Chmod(filepath.Join(dir, "a"), 0o777|fs.ModeSticky|fs.ModeSetgid); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"closed", "a/b", "a", "."} {
		if err := os.Chtimes(filepath.Join(dir, name), when, when); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func pack(t *testing.T, folder string) ([]byte, string, Report) {
	t.Helper()
	var b bytes.Buffer
	report, err := Write(t.Context(), folder, &b)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	return b.Bytes(), hex.EncodeToString(sum[:]), report
}

// A folder comes back as it was, to where there is nothing, over something else, and over what a run that was broken
// off has left.
func TestRestore(t *testing.T) {
	from := sample(t)
	content, digest, report := pack(t, from)
	if checked, err := Check(t.Context(), bytes.NewReader(content)); err != nil || checked != report || report.Entries != 13 {
		t.Errorf("written are %+v, read %+v, %v", report, checked, err)
	}
	for name, make := range map[string]func(dir string) error{
		"nothing": func(string) error { return nil },
		"another folder": func(dir string) error {
			return errors.Join(os.MkdirAll(dir+"/a/old", 0o700), os.WriteFile(dir+"/records.jsonl", []byte("newer"), 0o600))
		},
		"files as folders": func(dir string) error {
			return errors.Join(os.MkdirAll(dir+"/records.jsonl/x", 0o700), os.WriteFile(dir+"/a", nil, 0o600))
		},
		"a run that was broken off": func(dir string) error {
			return errors.Join(os.MkdirAll(dir+"/"+Staging+"/a/b", 0o700), os.WriteFile(dir+"/"+Staging+"/a/b/c", []byte("half"), 0o600), os.WriteFile(dir+"/empty", nil, 0o600))
		},
		"a link elsewhere": func(dir string) error { return errors.Join(os.MkdirAll(dir, 0o700), os.Symlink(t.TempDir(), dir+"/a")) },
	} {
		to := filepath.Join(t.TempDir(), "storage", "volume")
		if err := make(to); err != nil {
			t.Fatal(err)
		}
		got, err := Restore(t.Context(), bytes.NewReader(content), digest, to)
		if err != nil || got != report {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if diff := cmp.Diff(tree(t, from), tree(t, to)); diff != "" {
			t.Errorf("%s, -want +got:\n%s", name, diff)
		}
	}
}

// What fails before all of it is there and proven leaves the folder as it was, and can be done again.
func TestRestoreFails(t *testing.T) {
	content, digest, _ := pack(t, sample(t))
	damaged := bytes.Replace(content, []byte("one\ntwo"), []byte("one\ntoo"), 1)
	for name, in := range map[string]io.Reader{
		"cut":           bytes.NewReader(content[:len(content)/2]),
		"damaged":       bytes.NewReader(damaged),
		"nothing":       strings.NewReader(""),
		"one that ends": io.MultiReader(bytes.NewReader(content[:2000]), failing{}),
	} {
		to := filepath.Join(t.TempDir(), "volume")
		if err := errors.Join(os.Mkdir(to, 0o750), os.WriteFile(filepath.Join(to, "records.jsonl"), []byte("as it was"), 0o600)); err != nil {
			t.Fatal(err)
		}
		before := tree(t, to)
		delete(before, ".")
		_, err := Restore(t.Context(), in, digest, to)
		if err == nil {
			t.Errorf("%s: it was taken", name)
		}
		after := tree(t, to)
		delete(after, ".")
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s, -before +after:\n%s", name, diff)
		}
		if _, err := Restore(t.Context(), bytes.NewReader(content), digest, to); err != nil {
			t.Errorf("%s, done again: %v", name, err)
		}
	}
}

var errFailing = errors.New("the connection was lost")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errFailing }

// lost+found is the file system's; pipes and what a restore has left are nobody's data.
func TestWriteLeavesOut(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(dir+"/lost+found/x", 0o700), os.MkdirAll(dir+"/"+Staging, 0o700), os.MkdirAll(dir+"/a/lost+found", 0o700),
		syscall.Mkfifo(dir+"/pipe", 0o600)); err != nil {
		t.Fatal(err)
	}
	content, digest, report := pack(t, dir)
	if report.Entries != 3 {
		t.Errorf("it has %d entries", report.Entries)
	}
	to := t.TempDir()
	if err := os.Mkdir(to+"/lost+found", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), bytes.NewReader(content), digest, to); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(to + "/lost+found"); err != nil {
		t.Errorf("the file system's own folder: %v", err)
	}
}

// A file that others write to is as long as it was, and one that they cut ends the copy.
func TestWriteWhileOthersWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "records")
	long := strings.Repeat("x", 1<<20)
	for _, size := range []int64{3 << 20, 0} {
		if err := os.WriteFile(path, []byte(long), 0o600); err != nil {
			t.Fatal(err)
		}
		out := &meddling{do: func() error { return os.Truncate(path, size) }}
		report, err := Write(t.Context(), dir, out)
		if size == 0 {
			if !errors.Is(err, ErrChanged) {
				t.Errorf("cut while it was read: %v", err)
			}
			continue
		}
		if checked, checkErr := Check(t.Context(), &out.Buffer); err != nil || checkErr != nil || checked != report || report.Bytes != 1<<20 {
			t.Errorf("%+v, %v; %+v, %v", report, err, checked, checkErr)
		}
	}
}

// meddling does something when the first bytes are written.
type meddling struct {
	bytes.Buffer
	do func() error
}

func (m *meddling) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("xxxx")) && m.do != nil {
		if err := m.do(); err != nil {
			return 0, err
		}
		m.do = nil
	}
	return m.Buffer.Write(p)
}

// made is a tar of these entries, as they are.
func made(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, strings.Repeat("x", int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Whatever would lead out of the folder, or is not as [Write] writes it, is refused before anything is replaced.
func TestHostile(t *testing.T) {
	top, folder := tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o700}, func(name string) tar.Header {
		return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o700}
	}
	file := func(name string) tar.Header { return tar.Header{Name: name, Mode: 0o600, Size: 1} }
	deep := []tar.Header{top}
	for i := range maxDepth + 2 {
		deep = append(deep, folder(strings.Repeat("d/", i+1)))
	}
	sound := made(t, top, file("a"))
	// archive/tar writes no such records.
	sparse := bytes.ReplaceAll(made(t, top, tar.Header{Name: "a", Size: 1, Mode: 0o600, PAXRecords: map[string]string{
		"GNU.hollow.map": "0,1", "GNU.hollow.size": "1099511627776", "GNU.hollow.numblocks": "1",
	}}), []byte("GNU.hollow"), []byte("GNU.sparse"))
	if _, err := Check(t.Context(), bytes.NewReader(sparse)); err == nil || !strings.Contains(err.Error(), "stored with holes") {
		t.Errorf("a file with holes: %v", err)
	}
	for name, content := range map[string][]byte{
		"nothing":                      nil,
		"no entries":                   made(t),
		"no folder first":              made(t, file("a")),
		"the folder twice":             made(t, top, top),
		"a parent":                     made(t, top, file("../a")),
		"a parent within":              made(t, top, folder("a/"), file("a/../../b")),
		"an absolute path":             made(t, top, file("/etc/passwd")),
		"a double slash":               made(t, top, folder("a/"), file("a//b")),
		"a folder that is none":        made(t, top, file("a/b")),
		"through a link":               made(t, top, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc"}, file("a/b")),
		"through a file":               made(t, top, file("a"), file("a/b")),
		"back in a folder":             made(t, top, folder("a/"), folder("b/"), file("a/c")),
		"a link to a file":             made(t, top, file("a"), tar.Header{Typeflag: tar.TypeLink, Name: "b", Linkname: "a"}),
		"a link to nothing":            made(t, top, tar.Header{Typeflag: tar.TypeSymlink, Name: "b"}),
		"a device":                     made(t, top, tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8}),
		"a pipe":                       made(t, top, tar.Header{Typeflag: tar.TypeFifo, Name: "p"}),
		"a mode with more":             made(t, top, tar.Header{Name: "a", Mode: 0o100644}),
		"nobody's number":              made(t, top, tar.Header{Name: "a", Uid: 1<<32 - 1}),
		"where a restore works":        made(t, top, folder(Staging+"/")),
		"the file system's own":        made(t, top, folder("lost+found/")),
		"too deep":                     made(t, deep...),
		"a part that is too long":      made(t, top, file(strings.Repeat("n", 256))),
		"something after the end":      append(bytes.Clone(sound), 1),
		"another one after the end":    append(bytes.Clone(sound), sound...),
		"holes":                        sparse,
		"a file that is not all there": sound[:1100],
		"no end":                       sound[:1536],
		"half an end":                  sound[:2048],
	} {
		if _, err := Check(t.Context(), bytes.NewReader(content)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		sum := sha256.Sum256(content)
		above := t.TempDir()
		to := filepath.Join(above, "volume")
		if err := errors.Join(os.Mkdir(to, 0o700), os.WriteFile(to+"/records", []byte("as it was"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(t.Context(), bytes.NewReader(content), hex.EncodeToString(sum[:]), to); err == nil {
			t.Errorf("%s was brought back", name)
		}
		names, err := filepath.Glob(above + "/*/*")
		if err != nil || !cmp.Equal(names, []string{to + "/records"}) {
			t.Errorf("%s: there are %q, %v", name, names, err)
		}
	}
	twice := made(t, top, file("a"), file("a"))
	sum := sha256.Sum256(twice)
	if _, err := Restore(t.Context(), bytes.NewReader(twice), hex.EncodeToString(sum[:]), t.TempDir()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file twice: %v", err)
	}
}

// What is read is refused or can be brought back, and nothing comes to lie elsewhere.
func FuzzRead(f *testing.F) {
	top := tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o700}
	f.Add(made(f, top, tar.Header{Typeflag: tar.TypeDir, Name: "a/", Mode: 0o700}, tar.Header{Name: "a/b", Size: 3, Mode: 0o600}))
	f.Add(made(f, top, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../x"}, tar.Header{Name: "l/b", Size: 3}))
	f.Add(made(f, top, tar.Header{Name: "../x", Size: 1}))
	f.Fuzz(func(t *testing.T, content []byte) {
		report, err := Check(t.Context(), bytes.NewReader(content))
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("another error: %v", err)
			}
			return
		}
		if report.Entries < 1 || report.Bytes < 0 || report.Bytes > int64(len(content)) {
			t.Fatalf("%+v of %d bytes", report, len(content))
		}
	})
}
