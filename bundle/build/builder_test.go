package build

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/download"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pieces"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/bundle/volume"
)

// TestEndlessArchive has a server that does not state a length and never ends.
func TestEndlessArchive(t *testing.T) {
	endless := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		zeros := make([]byte, 4096)
		for left := 4 << 20; left > 0; left -= len(zeros) {
			if _, err := w.Write(zeros); err != nil {
				return
			}
		}
		t.Error("it is still being read")
	}))
	defer endless.Close()
	authorities := x509.NewCertPool()
	authorities.AddCert(endless.Certificate())
	client := source.New(source.Options{Authorities: authorities, MaxTries: 1})
	b := &builder{plan: &plan.Plan{}, done: make(map[string]bool)}
	f := &plan.Fetch{
		Size:    4096,
		Archive: &plan.Archive{SHA256: digest.FromString("another").Encoded()},
		Open: func(ctx context.Context, from int64) (*source.Stream, error) {
			return client.OpenPinned(ctx, endless.URL, from)
		},
	}
	if _, err := b.fetchFrom(t.Context(), f, &download.Meter{}, 0, sha256.New()); !errors.Is(err, format.ErrUpstream) {
		t.Errorf("got %v", err)
	}
}

// TestWrittenLength finds the end of what was written, also where it is in several volumes.
func TestWrittenLength(t *testing.T) {
	const size = 3 * pieces.Size
	for _, split := range []int64{0, size / 2} {
		f, err := volume.NewDraft(
			volume.DraftOptions{Path: filepath.Join(t.TempDir(), "b.tar"), Suffix: ".partial", Size: 2 * size,
				VolumeSize: split})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if err := f.Allocate(); err != nil {
			t.Fatal(err)
		}
		b := &builder{file: f}
		for _, n := range []int64{0, 1, 511, 4096, pieces.Size - 1, pieces.Size, pieces.Size + 1, size} {
			const offset = 1536
			if _, err := f.WriteAt(bytes.Repeat([]byte("x"), int(n)), offset); err != nil {
				t.Fatal(err)
			}
			got, err := b.writtenLength(offset, size)
			if err != nil || got != n {
				t.Errorf("%d bytes in volumes of %d: got %d, %v", n, split, got, err)
			}
			if err := b.erase(ocitar.Entry{Member: ocitar.Member{Size: n}, Offset: offset}); err != nil {
				t.Fatal(err)
			}
			if got, err := b.writtenLength(offset, size); err != nil || got != 0 {
				t.Errorf("%d bytes in volumes of %d, erased: got %d, %v", n, split, got, err)
			}
		}
	}
}
