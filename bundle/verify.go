package bundle

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"runtime"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/progress"
)

// Verify proves that the bundle is whole: every blob has the bytes that its digest
// names, every image and file has all its blobs, for every platform that the lock in
// the bundle claims, and nothing else is in the file. It says nothing about who made
// the bundle: that is [Reader.VerifySignature]'s to find out.
//
// All that is wrong is reported. The error wraps [ErrInvalid].
func (r *Reader) Verify(ctx context.Context, reporter progress.Reporter) error {
	if err := r.verifyStructure(); err != nil {
		return fmt.Errorf("verify %s: %w", r.path, err)
	}
	if err := r.verifyBlobs(ctx, reporter); err != nil {
		return fmt.Errorf("verify %s: %w", r.path, err)
	}
	return nil
}

// verifyStructure compares what the manifests name with what is in the file.
func (r *Reader) verifyStructure() error {
	contents, err := r.Contents()
	if err != nil {
		return err
	}
	l, _, err := r.Lock()
	if err != nil {
		return err
	}
	named := map[digest.Digest]bool{ocispec.DescriptorEmptyJSON.Digest: true}
	need := func(d ocispec.Descriptor, of string) error {
		named[d.Digest] = true
		e, ok := r.tar.Blob(d.Digest)
		if !ok {
			return errMissing(d.Digest, of)
		}
		if e.Size != d.Size {
			return fmt.Errorf("%w: blob %s of %s has %d bytes, its descriptor says %d", ErrInvalid, d.Digest, of, e.Size, d.Size)
		}
		return nil
	}
	for _, d := range r.parsed.Manifests {
		if err := need(d, "index.json"); err != nil {
			return err
		}
	}
	for _, f := range contents.Files {
		if err := need(ocispec.Descriptor{Digest: f.Digest, Size: f.Size}, f.Name); err != nil {
			return err
		}
	}
	for _, image := range contents.Images {
		for _, p := range image.Platforms {
			for _, d := range p.blobs() {
				if err := need(d, image.Name+" ("+string(p.Platform)+")"); err != nil {
					return err
				}
			}
		}
		if err := hasPlatforms(l, image); err != nil {
			return err
		}
	}
	if err := hasEntries(l, contents); err != nil {
		return err
	}
	for _, e := range r.tar.Layout().Entries {
		if d := e.Digest(); d != "" && !named[d] {
			return fmt.Errorf("%w: blob %s belongs to nothing", ErrInvalid, d)
		}
	}
	return nil
}

// hasPlatforms checks that an image is there for all platforms of its component.
func hasPlatforms(l *lock.Lock, image Image) error {
	for _, c := range l.Components {
		if c.Name != image.Component {
			continue
		}
		for _, p := range c.PlatformsIn(l) {
			if !slices.ContainsFunc(image.Platforms, func(has PlatformImage) bool { return p.Match(has.Platform) }) {
				return fmt.Errorf("%w: image %s is not there for %s, which the component %s claims", ErrInvalid, image.Name, p, c.Name)
			}
		}
	}
	return nil
}

// hasEntries checks that everything that the lock lists is in the bundle.
func hasEntries(l *lock.Lock, contents *Contents) error {
	images := make(map[string]bool)
	for _, image := range contents.Images {
		images[image.Component+" "+image.Name] = true
	}
	files := make(map[digest.Digest]bool)
	for _, f := range contents.Files {
		files[f.Digest] = true
	}
	for _, c := range l.Components {
		platforms := c.PlatformsIn(l)
		for _, f := range c.Files {
			if wanted(f.Platform, platforms) && !files[digest.NewDigestFromEncoded(digest.SHA256, f.SHA256)] {
				return fmt.Errorf("%w: file %s of %s is in the lock but not in the bundle", ErrInvalid, f.Name, c.Name)
			}
		}
		for _, chart := range c.Charts {
			if !files[digest.NewDigestFromEncoded(digest.SHA256, chart.SHA256)] {
				return fmt.Errorf("%w: chart %s of %s is in the lock but not in the bundle", ErrInvalid, chart.Name, c.Name)
			}
		}
		for _, image := range c.Images {
			refs := []string{image.Ref}
			if image.Contents != nil {
				refs = refs[:0]
				if !wanted(image.Platform, platforms) {
					continue
				}
				for _, inside := range image.Contents.Images {
					refs = append(refs, inside.Ref)
				}
			}
			for _, ref := range refs {
				if !images[c.Name+" "+ref] {
					return fmt.Errorf("%w: image %s of %s is in the lock but not in the bundle", ErrInvalid, ref, c.Name)
				}
			}
		}
	}
	return nil
}

// verifyBlobs hashes all blobs on all cores, the largest first, so that none is left
// with a long one at the end.
func (r *Reader) verifyBlobs(ctx context.Context, reporter progress.Reporter) error {
	if reporter == nil {
		reporter = progress.Discard
	}
	var blobs []ocitar.Entry
	var total int64
	for _, e := range r.tar.Layout().Entries {
		if e.Digest() != "" {
			blobs = append(blobs, e)
			total += e.Size
		}
	}
	slices.SortStableFunc(blobs, func(a, b ocitar.Entry) int { return int(min(max(b.Size-a.Size, -1), 1)) })
	task := reporter.Task("verify", total)
	err := forEach(ctx, runtime.GOMAXPROCS(0), len(blobs), func(ctx context.Context, i int) error {
		e := blobs[i]
		got, err := hashSection(ctx, r.tar, e, task)
		if err != nil {
			return err
		}
		if got != e.Digest() {
			return fmt.Errorf("%w: blob %s, %d bytes at offset %d, holds bytes with the digest %s", ErrInvalid, e.Digest(), e.Size, e.Offset, got)
		}
		return nil
	})
	task.Done(err)
	return err
}

// hashSection hashes the content of one entry.
func hashSection(ctx context.Context, source io.ReaderAt, e ocitar.Entry, task progress.Task) (digest.Digest, error) {
	h := sha256.New()
	buffer := takeBuffer()
	defer giveBuffer(buffer)
	for done := int64(0); done < e.Size; {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		chunk := (*buffer)[:min(int64(len(*buffer)), e.Size-done)]
		if _, err := source.ReadAt(chunk, e.Offset+done); err != nil {
			return "", fmt.Errorf("read %s at offset %d: %w", e.Name, e.Offset+done, err)
		}
		h.Write(chunk)
		done += int64(len(chunk))
		task.Add(int64(len(chunk)))
	}
	return digest.NewDigest(digest.SHA256, h), nil
}
