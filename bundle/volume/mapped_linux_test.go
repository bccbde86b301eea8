package volume

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMapFile(t *testing.T) {
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
		err := mapFile(f, part[0], part[1], func(piece []byte) error {
			got.Write(piece)
			return nil
		})
		if err != nil || !bytes.Equal(got.Bytes(), content[part[0]:part[0]+part[1]]) {
			t.Errorf("%d bytes at %d: got %d bytes, %v", part[1], part[0], got.Len(), err)
		}
	}

	stop := errors.New("stop")
	if err := mapFile(f, 0, size, func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("the error of use: got %v", err)
	}
}

// A file that is cut shorter while it is read must give an error, not end the program.
func TestMapFileOfAFileThatIsCut(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	sum := 0
	err = mapFile(f, 0, 1<<20, func(piece []byte) error {
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
