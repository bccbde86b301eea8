package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// TestArchiveMemory lists image archives whose lists of images are made to take memory. All that
// is allocated is counted, so that it cannot be more at any moment.
func TestArchiveMemory(t *testing.T) {
	const most = 64 << 20
	for name, content := range map[string]string{
		DockerIndex:      "[" + strings.Repeat("{},", 7<<20/3) + "{}]",
		ocitar.IndexFile: `{"manifests":[` + strings.Repeat("{},", format.MaxIndexSize/3-16) + "{}]}",
	} {
		t.Run(name, func(t *testing.T) {
			var archive bytes.Buffer
			w := tar.NewWriter(&archive)
			err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o644})
			if err == nil {
				_, err = io.WriteString(w, content)
			}
			if err := errors.Join(err, w.Close()); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			listing := NewListing()
			err = listing.Take(&archive)
			if err == nil {
				_, err = listing.Contents("linux/amd64")
			}
			runtime.ReadMemStats(&after)
			if !errors.Is(err, boundedjson.ErrTooMuch) {
				t.Errorf("got %v", err)
			}
			if taken := after.TotalAlloc - before.TotalAlloc; taken > most {
				t.Errorf("it took %d MiB", taken>>20)
			} else {
				t.Logf("it took %d MiB", taken>>20)
			}
		})
	}
}
