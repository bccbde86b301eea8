package ocitar_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/test/ocilayout"
)

// file writes a whole bundle file into memory the way a writer does: every member at
// the place that the layout gives it.
func file(t testing.TB, signed bool, blobs ...string) []byte {
	t.Helper()
	contents := map[string]string{
		ocitar.LayoutFile: ocitar.LayoutContent,
		ocitar.IndexFile:  `{"schemaVersion":2}`,
	}
	members := []ocitar.Member{
		{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(contents[ocitar.IndexFile]))},
	}
	if signed {
		for _, name := range []string{ocitar.SigstoreBundleFile, ocitar.SignatureFile} {
			contents[name] = "signature in " + name
			members = append(members, ocitar.Member{Name: name, Size: int64(len(contents[name]))})
		}
	}
	for _, blob := range blobs {
		m := ocitar.Blob(digest.FromString(blob), int64(len(blob)))
		contents[m.Name] = blob
		members = append(members, m)
	}
	layout, err := ocitar.NewLayout(members)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, layout.Size)
	for _, e := range layout.Entries {
		header, err := ocitar.Header(e.Member)
		if err != nil {
			t.Fatal(err)
		}
		copy(b[e.HeaderOffset():], header)
		copy(b[e.Offset:], contents[e.Name])
	}
	return b
}

func open(b []byte) (*ocitar.Reader, error) {
	return ocitar.NewReader(bytes.NewReader(b), int64(len(b)))
}

func TestReaderFindsWhatTheLayoutPlaced(t *testing.T) {
	long := strings.Repeat("a layer ", 300)
	for _, signed := range []bool{false, true} {
		b := file(t, signed, "{}", long, strings.Repeat("x", ocitar.BlockSize), "")
		r, err := open(b)
		if err != nil {
			t.Fatalf("signed %v: %v", signed, err)
		}
		for _, want := range []string{"{}", long, ""} {
			e, ok := r.Blob(digest.FromString(want))
			if !ok {
				t.Fatalf("signed %v: blob of %d bytes not found", signed, len(want))
			}
			got, err := io.ReadAll(r.Section(e))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, string(got)); diff != "" {
				t.Error(diff)
			}
		}
		if _, ok := r.Blob(digest.FromString("absent")); ok {
			t.Error("a blob that is not in the file was found")
		}
		if _, ok := r.Open(ocitar.SignatureFile); ok != signed {
			t.Errorf("signature found: %v, want %v", ok, signed)
		}
	}
}

// Any tar program must be able to read the file.
func TestStandardTarReadsTheFile(t *testing.T) {
	b := file(t, true, "one", "two")
	r := tar.NewReader(bytes.NewReader(b))
	var names []string
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	want := []string{
		ocitar.LayoutFile, ocitar.IndexFile, ocitar.SigstoreBundleFile, ocitar.SignatureFile,
		ocitar.BlobName(digest.FromString("one")), ocitar.BlobName(digest.FromString("two")),
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}

// Outside the contents there is no byte that may change unnoticed.
func TestEveryByteOutsideTheContentsCounts(t *testing.T) {
	b := file(t, true, "first blob", strings.Repeat("second", 200))
	r, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	content := make([]bool, len(b))
	for _, e := range r.Layout().Entries[1:] { // oci-layout's content is fixed as well
		for i := e.Offset; i < e.Offset+e.Size; i++ {
			content[i] = true
		}
	}
	for i := range b {
		if content[i] {
			continue
		}
		for _, flip := range []byte{0x01, 0x80} {
			b[i] ^= flip
			if _, err := open(b); !errors.Is(err, ocitar.ErrMalformed) {
				t.Fatalf("byte %d changed by %#x: got %v, want ErrMalformed", i, flip, err)
			}
			b[i] ^= flip
		}
	}
}

func TestEveryTruncationIsNoticed(t *testing.T) {
	b := file(t, false, "first blob", "second blob")
	for n := range b {
		if _, err := open(b[:n]); !errors.Is(err, ocitar.ErrMalformed) {
			t.Fatalf("cut to %d bytes: got %v, want ErrMalformed", n, err)
		}
	}
	if _, err := open(append(b, make([]byte, ocitar.BlockSize)...)); !errors.Is(err, ocitar.ErrMalformed) {
		t.Errorf("with a block appended: got %v, want ErrMalformed", err)
	}
}

func TestForeignTarsAreRefused(t *testing.T) {
	blob := func(s string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: ocitar.BlobName(digest.FromString(s)), Size: int64(len(s)), Mode: 0o644}
	}
	tests := []struct {
		name   string
		header *tar.Header
		want   string
	}{
		{"parent directory", &tar.Header{Typeflag: tar.TypeReg, Name: "../evil", Mode: 0o644}, "expected a member named blobs/sha256/<64 hexadecimal digits>"},
		{"absolute path", &tar.Header{Typeflag: tar.TypeReg, Name: "/etc/passwd", Mode: 0o644}, "expected a member named"},
		{"symbolic link", &tar.Header{Typeflag: tar.TypeSymlink, Name: ocitar.BlobName(digest.FromString("l")), Linkname: "/etc/shadow"}, "it is a link"},
		{"hard link", &tar.Header{Typeflag: tar.TypeLink, Name: ocitar.BlobName(digest.FromString("l")), Linkname: "index.json"}, "it is a link"},
		{"directory", &tar.Header{Typeflag: tar.TypeDir, Name: "blobs/sha256/"}, "it is a directory"},
		{"device", &tar.Header{Typeflag: tar.TypeChar, Name: "dev"}, "not that of a regular file"},
		{"executable", func() *tar.Header { h := blob(""); h.Mode = 0o755; return h }(), "differs from the one"},
		{"owner", func() *tar.Header { h := blob(""); h.Uid = 1000; return h }(), "differs from the one"},
		{"twice", blob("known"), "the member is there twice"},
		{"trust file behind a blob", &tar.Header{Typeflag: tar.TypeReg, Name: ocitar.TrustFile, Mode: 0o644}, "it stands once, before the blobs"},
		{"index again", &tar.Header{Typeflag: tar.TypeReg, Name: ocitar.IndexFile, Mode: 0o644}, "expected a member named"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := file(t, false, "known")
			b = b[:len(b)-ocitar.TrailerSize]
			var extra bytes.Buffer
			w := tar.NewWriter(&extra)
			if err := w.WriteHeader(test.header); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(bytes.Repeat([]byte("x"), int(test.header.Size))); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			_, err := open(append(b, extra.Bytes()...))
			if !errors.Is(err, ocitar.ErrMalformed) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want ErrMalformed with %q", err, test.want)
			}
		})
	}
}

// TestOrder has members in each order that they may have, and in others.
func TestOrder(t *testing.T) {
	const l, i, sigstore, sig, trust = ocitar.LayoutFile, ocitar.IndexFile, ocitar.SigstoreBundleFile, ocitar.SignatureFile,
		ocitar.TrustFile
	blob := ocitar.BlobName(digest.FromString("blob"))
	for _, test := range []struct {
		names []string
		want  string // in the error
	}{
		{[]string{l, i}, ""},
		{[]string{l, i, blob}, ""},
		{[]string{l, i, trust}, ""},
		{[]string{l, i, trust, blob}, ""},
		{[]string{l, i, sigstore, sig, blob}, ""},
		{[]string{l, i, sigstore, sig, trust, blob}, ""},
		{[]string{l, trust, i, blob}, "expected the member index.json here"},
		{[]string{trust, l, i, blob}, "expected the member oci-layout here"},
		{[]string{l, i, trust, sigstore, sig, blob}, "expected a member named blobs/sha256/"},
		{[]string{l, i, sigstore, trust, sig, blob}, "expected the member index.json.sig here"},
		{[]string{l, i, sig, trust}, "expected a member named blobs/sha256/"},
		{[]string{l, i, trust, trust, blob}, "lay out trust.json: malformed bundle file: the member is there twice, or behind"},
		{[]string{l, i, sigstore, sig, blob, trust}, "it stands once, before the blobs"},
		{[]string{l, i, sigstore, sig, trust, blob, trust}, "it stands once, before the blobs"},
		{[]string{l, i, sigstore}, "it ends too early"},
	} {
		var members []ocitar.Member
		for _, name := range test.names {
			members = append(members, ocitar.Member{Name: name, Size: 1})
		}
		_, err := ocitar.NewLayout(members)
		if test.want == "" && err != nil || test.want != "" && (!errors.Is(err, ocitar.ErrMalformed) ||
			!strings.Contains(err.Error(), test.want)) {
			t.Errorf("%v: %v", test.names, err)
		}
	}
}

// sparse is a file of zeros with a few bytes in it, so that large files need no memory.
type sparse struct {
	size int64
	data map[int64][]byte
}

func (s sparse) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	for at, data := range s.data {
		for i, b := range data {
			if j := at + int64(i) - off; j >= 0 && j < int64(len(p)) {
				p[j] = b
			}
		}
	}
	if off+int64(len(p)) > s.size {
		return int(max(0, s.size-off)), io.EOF
	}
	return len(p), nil
}

// Sizes from 8 GiB on need another form of the size field.
func TestLargeBlobs(t *testing.T) {
	for _, size := range []int64{1<<33 - 1, 1 << 33, 1<<40 + 1} {
		layout, err := ocitar.NewLayout([]ocitar.Member{
			{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
			{Name: ocitar.IndexFile, Size: 2},
			ocitar.Blob(digest.FromString("large"), size),
		})
		if err != nil {
			t.Fatal(err)
		}
		s := sparse{size: layout.Size, data: map[int64][]byte{layout.Entries[0].Offset: []byte(ocitar.LayoutContent)}}
		for _, e := range layout.Entries {
			header, err := ocitar.Header(e.Member)
			if err != nil {
				t.Fatal(err)
			}
			s.data[e.HeaderOffset()] = header
		}
		r, err := ocitar.NewReader(s, s.size)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(layout, r.Layout()); diff != "" {
			t.Errorf("size %d: %s", size, diff)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(file(f, true, "one", "two"))
	f.Add(ocilayout.Tar(f, []ocitar.Member{{Name: ocitar.LayoutFile, Size: 30}, {Name: ocitar.IndexFile, Size: 2},
		{Name: ocitar.TrustFile, Size: 2}}, [][]byte{[]byte(ocitar.LayoutContent), []byte("{}"), []byte("{}")}))
	f.Add(file(f, false))
	f.Add(make([]byte, ocitar.TrailerSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := open(b)
		if err != nil {
			if !errors.Is(err, ocitar.ErrMalformed) {
				t.Fatalf("an error that is not ErrMalformed: %v", err)
			}
			return
		}
		// What is accepted is what a writer would lay out from the same members.
		var members []ocitar.Member
		for _, e := range r.Layout().Entries {
			members = append(members, e.Member)
		}
		layout, err := ocitar.NewLayout(members)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(layout, r.Layout()); diff != "" {
			t.Fatal(diff)
		}
	})
}
