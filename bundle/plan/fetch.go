package plan

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/download"
	"github.com/liteboxd/boxlift/bundle/source"
)

// Fetch is one download. It supplies one blob, or, when it is an archive, many.
type Fetch struct {
	// Label names the entry of the lock, for messages and progress.
	Label string
	// Size is what comes over the line, in bytes.
	Size int64
	// Open begins the download at an offset.
	Open func(ctx context.Context, from int64) (*source.Stream, error)
	// Blob is what a download supplies that is a blob itself.
	Blob ocispec.Descriptor
	// Archive is set for image archives instead.
	Archive *Archive
}

// Archive says what an archive is to hold: its own sha256, and where in it the
// blobs lie.
type Archive struct {
	SHA256 string
	Blobs  map[string]ocispec.Descriptor // by the path inside the archive
	// All has those too that come from elsewhere.
	All map[string]ocispec.Descriptor
}

// whole downloads something of at most so many bytes.
func (f *Fetch) whole(ctx context.Context, most int64) ([]byte, error) {
	if f.Size > most {
		return nil, fmt.Errorf("it has %d bytes, %d is the most that it may have", f.Size, most)
	}
	stream, err := f.Open(ctx, 0)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(stream, f.Size+1))
	if err := errors.Join(err, stream.Close()); err != nil {
		return nil, err
	}
	if got := digest.FromBytes(content); got != f.Blob.Digest {
		return nil, &download.DiffersError{Want: f.Blob, Got: got, Size: int64(len(content))}
	}
	return content, nil
}

func (p *planner) openURL(url string) func(context.Context, int64) (*source.Stream, error) {
	return func(ctx context.Context, from int64) (*source.Stream, error) {
		return p.options.Source.OpenPinned(ctx, url, from)
	}
}

func (p *planner) openBlob(repository string, d digest.Digest) func(context.Context, int64) (*source.Stream, error) {
	return func(ctx context.Context, from int64) (*source.Stream, error) {
		return p.options.Source.BlobFrom(ctx, repository, d, from)
	}
}

// only is the part of a download that supplies one of these blobs, or nil.
func (f *Fetch) only(wanted map[digest.Digest]bool) *Fetch {
	if f.Archive == nil {
		if wanted[f.Blob.Digest] {
			return f
		}
		return nil
	}
	part := *f
	archive := *f.Archive
	archive.Blobs = make(map[string]ocispec.Descriptor)
	for path, d := range f.Archive.Blobs {
		if wanted[d.Digest] {
			archive.Blobs[path] = d
		}
	}
	if len(archive.Blobs) == 0 {
		return nil
	}
	part.Archive = &archive
	return &part
}
