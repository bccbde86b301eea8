package ocitar_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// TestAssembled reads a file that is nowhere in every way that there is.
func TestAssembled(t *testing.T) {
	want := file(t, true, "a", "", "bb", string(make([]byte, 2*ocitar.BlockSize)), "the last")
	r, err := open(want)
	if err != nil {
		t.Fatal(err)
	}
	assembled := ocitar.Assemble(r.Layout(), func(m ocitar.Member) (io.ReaderAt, error) {
		content, _ := r.Open(m.Name)
		return content, nil
	})
	got, err := io.ReadAll(io.NewSectionReader(assembled, 0, assembled.Size()))
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("it differs: %v", err)
	}
	for offset := range len(want) {
		for _, length := range []int{0, 1, 511, 512, 513, 3000} {
			p := make([]byte, length)
			n, err := assembled.ReadAt(p, int64(offset))
			end := min(offset+length, len(want))
			if n != end-offset || !bytes.Equal(p[:n], want[offset:end]) || (err == nil) != (n == length) {
				t.Fatalf("%d bytes at %d: %d, %v", length, offset, n, err)
			}
		}
	}
	if _, err := assembled.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("it reads at a negative offset")
	}
	if _, err := ocitar.NewReader(assembled, assembled.Size()); err != nil {
		t.Error(err)
	}
}

// TestAssembledWithoutAMember reads around what is not there.
func TestAssembledWithoutAMember(t *testing.T) {
	whole, err := open(file(t, false, "a", "missing", "short"))
	if err != nil {
		t.Fatal(err)
	}
	missing := errors.New("missing")
	r, err := ocitar.NewReader(ocitar.Assemble(whole.Layout(), func(m ocitar.Member) (io.ReaderAt, error) {
		switch m.Digest() {
		case digest.FromString("missing"):
			return nil, missing
		case digest.FromString("short"):
			return bytes.NewReader(nil), nil
		}
		content, _ := whole.Open(m.Name)
		return content, nil
	}), whole.Layout().Size)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole.Layout(), r.Layout()); diff != "" {
		t.Errorf("layout (-whole +assembled):\n%s", diff)
	}
	read := func(text string) ([]byte, error) {
		return r.ReadAll(ocitar.BlobName(digest.FromString(text)), 100)
	}
	if content, err := read("a"); err != nil || string(content) != "a" {
		t.Errorf("a: %q, %v", content, err)
	}
	if _, err := read("missing"); !errors.Is(err, missing) {
		t.Errorf("missing: %v", err)
	}
	if _, err := read("short"); err == nil {
		t.Error("what is shorter than its size is read")
	}
}
