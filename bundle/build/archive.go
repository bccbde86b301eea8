package build

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/archive"
	"github.com/liteboxd/boxlift/bundle/download"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pieces"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/internal/fault"
)

// storeArchive takes from an archive those blobs that are not in place yet, and proves
// the whole archive in the end.
func (b *builder) storeArchive(ctx context.Context, f *plan.Fetch, stream io.Reader) error {
	whole := sha256.New()
	tee := io.TeeReader(stream, whole)
	left := make(map[string]ocispec.Descriptor, len(f.Archive.Blobs))
	for path, d := range f.Archive.Blobs {
		if !b.isDone(d.Digest) {
			left[path] = d
		}
	}
	var index []byte // of docker's form
	links := make(archive.Links)
	var compressor archive.Compressor
	err := archive.Read(tee, func(path string, size int64, content io.Reader) error {
		if path == archive.DockerIndex {
			var err error
			if index, err = archive.ReadBounded(content, size, format.MaxConfigSize); err != nil {
				return err
			}
			content = bytes.NewReader(index)
		}
		d, ok := left[path]
		if !ok {
			return nil
		}
		if err := b.storeMember(ctx, path, d, size, content, &compressor); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		delete(left, path)
		return nil
	}, func(name, target string) error {
		links.Add(name, target)
		return nil
	})
	if err == nil {
		err = b.storeManifests(f.Archive, index, links, left)
	}
	var broken *download.LineError
	if err != nil && (ctx.Err() != nil || errors.As(err, new(*diskError)) || errors.As(err, &broken)) {
		return err
	}
	if err != nil {
		// An archive that cannot be read is most often not the archive that was locked:
		// its sha256 tells, which needs the rest of it.
		if _, restErr := io.Copy(io.Discard, pieces.Until(ctx, tee)); restErr != nil {
			return err
		}
	}
	if got := hex(whole); got != f.Archive.SHA256 {
		return &download.DiffersError{
			Want: ocispec.Descriptor{Digest: digest.NewDigestFromEncoded(digest.SHA256, f.Archive.SHA256),
				Size: f.Size},
			Got: digest.NewDigestFromEncoded(digest.SHA256, got), Size: f.Size,
		}
	}
	if err != nil {
		return err
	}
	for path := range left {
		return fmt.Errorf("the archive does not hold %s, which the lock lists: run `boxlift bundle lock` again", path)
	}
	return nil
}

// storeMember stores a member of an archive as the blob that it is, or becomes.
func (b *builder) storeMember(
	ctx context.Context, name string, d ocispec.Descriptor, size int64, content io.Reader,
	compressor *archive.Compressor,
) error {
	buffered := bufio.NewReaderSize(content, pieces.WriteSize)
	made, err := archive.IsMade(name, d, buffered)
	if err != nil {
		return err
	}
	if !made {
		if size != d.Size {
			return &download.DiffersError{Want: d, Size: size}
		}
		return b.storeBlob(ctx, d, buffered)
	}
	layer := archive.Compressing(compressor, buffered)
	err = b.storeBlob(ctx, d, layer)
	if closeErr := layer.Close(); err == nil {
		err = closeErr
	}
	var differs *download.DiffersError
	if errors.As(err, &differs) {
		return lockedByAnother(name, differs.Got, d.Digest)
	}
	return err
}

// storeManifests makes the manifests that the lock lists of an archive in docker's form.
func (b *builder) storeManifests(
	locked *plan.Archive, index []byte, links archive.Links, left map[string]ocispec.Descriptor,
) error {
	if index == nil {
		return nil // what is missing is told by whoever looks at what is left
	}
	images, err := archive.ParseDockerIndex(index)
	if err != nil {
		return err
	}
	find := func(name string) (ocispec.Descriptor, error) {
		d, ok := locked.All[links.Follow(name)]
		if !ok {
			return d, fmt.Errorf(
				"the lock does not list %s, which the archive's %s names: run `boxlift bundle lock` again", name,
				archive.DockerIndex)
		}
		return d, nil
	}
	for i, image := range images {
		d, ok := left[archive.ManifestPath(i)]
		if !ok {
			continue
		}
		content, err := archive.DockerManifest(image, find)
		if err != nil {
			return err
		}
		if got := digest.FromBytes(content); got != d.Digest {
			return lockedByAnother(archive.ManifestPath(i), got, d.Digest)
		}
		e := b.places[ocitar.BlobName(d.Digest)]
		if _, err := b.file.WriteAt(content, e.Offset); err != nil {
			return b.writeError(err)
		}
		if err := b.complete(e); err != nil {
			return err
		}
		delete(left, archive.ManifestPath(i))
	}
	return nil
}

// lockedByAnother says that an archive is the one that was locked, but that what is made from it
// is not.
func lockedByAnother(what string, got, want digest.Digest) error {
	return fault.WithHint(fmt.Errorf("what is made from %s has %s, and the lock says %s", what, got, want),
		"another version of boxlift has locked this archive; remove its contents from the lock and run `boxlift "+
			"bundle lock` to lock it anew")
}
