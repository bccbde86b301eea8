package bundle

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/ocitar"
)

func TestReadMapped(t *testing.T) {
	content := make([]byte, 2*windowSize+12345)
	_, _ = rand.Read(content)
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	size := int64(len(content))
	for _, part := range [][2]int64{{0, size}, {1, size - 1}, {4096, 4096}, {4095, 2}, {windowSize - 1, 2}, {windowSize + 7, windowSize}, {512, 0}, {size, 0}} {
		var got bytes.Buffer
		err := readMapped(f, part[0], part[1], func(piece []byte) error {
			got.Write(piece)
			return nil
		})
		if err != nil || !bytes.Equal(got.Bytes(), content[part[0]:part[0]+part[1]]) {
			t.Errorf("%d bytes at %d: got %d bytes, %v", part[1], part[0], got.Len(), err)
		}
	}

	stop := errors.New("stop")
	if err := readMapped(f, 0, size, func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("the error of use: got %v", err)
	}
	if err := readMapped(bytes.NewReader(content), 0, size, nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a reader that is no file: got %v", err)
	}
}

// A file that is cut shorter while it is read must give an error, not end the program.
func TestReadMappedOfAFileThatIsCut(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	sum := 0
	err = readMapped(f, 0, 1<<20, func(piece []byte) error {
		if err := f.Truncate(0); err != nil {
			return err
		}
		for _, b := range piece {
			sum += int(b)
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("got %v (sum %d)", err, sum)
	}
}

// The hash reads in assembly, where a fault must become an error as well.
func TestHashOfAFileThatIsCut(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	e := ocitar.Entry{Member: ocitar.Member{Name: "blob", Size: 1 << 20}}
	_, err = hashSection(t.Context(), f, e, cutter{f})
	if err == nil || !strings.Contains(err.Error(), "read blob at offset 0: a part of the file cannot be read") {
		t.Errorf("got %v", err)
	}
}

// cutter is a task that empties the file that is worked on.
type cutter struct{ file *os.File }

func (c cutter) Add(int64)  { _ = c.file.Truncate(0) }
func (c cutter) Skip(int64) {}
func (c cutter) Done(error) {}
