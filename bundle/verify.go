package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pieces"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/parallel"
	"github.com/liteboxd/boxlift/internal/progress"
)

// Verify proves that the bundle is whole: every blob has the bytes that its digest
// names, every image and file has all its blobs, for every platform that the lock in
// the bundle claims, and nothing else is in the file. It says nothing about who made
// the bundle: that is [Reader.VerifySignature]'s to find out.
//
// A delta is whole when it has all that it does not leave out. Blobs that it leaves out are
// proven too where a bundle that it was given holds them; [Reader.Delta] lists the others.
//
// All that is wrong is reported. The error wraps [ErrInvalid], and has a [volume.Fault] for
// each volume that differs from the list of checksums; these are read for it once more.
func (r *Reader) Verify(ctx context.Context, reporter progress.Reporter) error {
	if reporter == nil {
		reporter = progress.Discard
	}
	err := errors.Join(r.CheckStructure(), verifyBlobs(ctx, r, reporter))
	if errors.Is(err, ErrInvalid) || errors.Is(err, volume.ErrDamaged) {
		for _, file := range append([]*Reader{r}, r.bases...) {
			if file.file != nil {
				err = errors.Join(err, volume.Check(ctx, file.path, reporter))
			}
		}
	}
	if err != nil {
		return fmt.Errorf("verify %s: %w", r.path, err)
	}
	return nil
}

// CheckStructure compares what the manifests name with what is in the file.
func (r *Reader) CheckStructure() error {
	contents, err := readContents(r, everything)
	if err != nil {
		return err
	}
	l, _, err := lockIn(r, contents)
	if err != nil {
		return err
	}
	var errs []error
	named := make(map[digest.Digest]bool)
	need := func(d ocispec.Descriptor, of string) {
		named[d.Digest] = true
		e, ok := r.tar.Blob(d.Digest)
		switch {
		case !ok:
			errs = append(errs, errMissing(d.Digest, of))
		case e.Size != d.Size:
			errs = append(errs, fmt.Errorf("%w: blob %s of %s has %d bytes, its descriptor says %d", ErrInvalid,
				d.Digest, of, e.Size, d.Size))
		}
	}
	for _, d := range r.parsed.Manifests {
		need(d, ocitar.IndexFile)
	}
	for _, f := range contents.Files {
		need(ocispec.DescriptorEmptyJSON, f.Name)
		need(ocispec.Descriptor{Digest: f.Digest, Size: f.Size}, f.Name)
	}
	for _, image := range contents.Images {
		for _, p := range image.Platforms {
			for _, d := range p.Blobs() {
				need(d, image.Name+" ("+string(p.Platform)+")")
			}
		}
	}
	for _, e := range r.tar.Layout().Entries {
		if d := e.Digest(); d != "" && !named[d] {
			errs = append(errs, fmt.Errorf("%w: blob %s belongs to nothing", ErrInvalid, d))
		}
	}
	return errors.Join(append(errs, hasAll(l, contents)...)...)
}

// hasAll checks that everything that the lock lists is in the bundle.
func hasAll(l *lock.Lock, contents *Contents) []error {
	images := make(map[string]Image)
	for _, image := range contents.Images {
		images[image.Component+" "+image.Name] = image
	}
	files := make(map[string]bool)
	for _, f := range contents.Files {
		files[f.Component+" "+f.Digest.Encoded()] = true
		if f.IsOSPackage() {
			files[packageKey(f.Component, f.Package.Release(), f.Platform, f.Name, f.Digest.Encoded())] = true
		}
	}
	var errs []error
	fail := func(component, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s: %s", ErrInvalid, component, fmt.Sprintf(format, args...)))
	}
	for _, c := range l.Components {
		platforms := c.PlatformsIn(l)
		for _, f := range c.Files {
			if format.Wanted(f.Platform, platforms) && !files[c.Name+" "+f.SHA256] {
				fail(c.Name, "file %s is in the lock but not in the bundle", f.Name)
			}
		}
		for _, chart := range c.Charts {
			if !files[c.Name+" "+chart.SHA256] {
				fail(c.Name, "chart %s is in the lock but not in the bundle", chart.Name)
			}
		}
		for _, s := range c.Packages {
			for _, p := range s.Contents {
				if format.Wanted(s.Platform, platforms) &&
					!files[packageKey(c.Name, s.Release(), s.Platform, p.FileName(), p.SHA256)] {
					fail(c.Name, "the package %s for %s %s is in the lock but not in the bundle", p.FileName(),
						s.Release(), s.Platform)
				}
			}
		}
		for _, want := range c.Images {
			image, ok := images[c.Name+" "+want.Ref]
			switch {
			case want.Ref == "":
				if want.Contents != nil && format.Wanted(want.Platform, platforms) {
					for _, inside := range want.Contents.Images {
						if _, ok := images[c.Name+" "+inside.Ref]; !ok {
							fail(c.Name, "image %s is in the lock but not in the bundle", inside.Ref)
						}
					}
				}
			case !ok:
				fail(c.Name, "image %s is in the lock but not in the bundle", want.Ref)
			case want.Digest != image.Digest:
				fail(c.Name, "image %s is %s in the lock and %s in the bundle", want.Ref, want.Digest, image.Digest)
			}
		}
		for _, image := range contents.Images {
			for _, p := range platforms {
				if image.Component == c.Name &&
					!slices.ContainsFunc(image.Platforms,
						func(has format.PlatformImage) bool { return p.Match(has.Platform) }) {
					fail(c.Name, "image %s is not there for %s, which the lock claims", image.Name, p)
				}
			}
		}
	}
	return errs
}

// packageKey is what makes a package one of the lock's.
func packageKey(component, release string, platform lock.Platform, name, sha256 string) string {
	return strings.Join([]string{component, release, lock.DebianArchitecture(platform), name, sha256}, " ")
}

// verifyBlobs hashes all blobs on all cores, the largest first, so that none is left
// with a long one at the end.
func verifyBlobs(ctx context.Context, r *Reader, reporter progress.Reporter) error {
	type work struct {
		ocitar.Entry
		*supply
	}
	var blobs []work
	var total int64
	for _, e := range r.tar.Layout().Entries {
		if e.Digest() == "" {
			continue
		}
		found, err := r.find(e.Member)
		if errors.Is(err, ErrIncomplete) {
			continue
		}
		if err != nil {
			return err
		}
		blobs = append(blobs, work{e, found})
		total += e.Size
	}
	slices.SortStableFunc(blobs, func(a, b work) int { return int(min(max(b.Entry.Size-a.Entry.Size, -1), 1)) })
	task := reporter.Task("verify", total)
	err := parallel.ForEach(ctx, runtime.GOMAXPROCS(0), len(blobs), func(ctx context.Context, i int) error {
		e := blobs[i].Entry
		var source io.ReaderAt
		source, e.Offset, _ = blobs[i].Outer()
		got, err := hashEntry(ctx, source, e, task)
		if err == nil && got != e.Digest() {
			err = fmt.Errorf("%w: blob %s, %d bytes at offset %d, holds bytes with the digest %s", ErrInvalid,
				e.Digest(), e.Size, e.Offset, got)
		}
		if from := blobs[i].from; err != nil && from != r {
			err = fmt.Errorf("%s: %w", from.path, err)
		}
		return err
	})
	task.Done(err)
	return err
}

// hashEntry hashes the content of one entry of a file.
func hashEntry(ctx context.Context, file io.ReaderAt, e ocitar.Entry, task progress.Task) (digest.Digest, error) {
	d, err := pieces.Hash(ctx, file, e.Offset, e.Size, task.Add)
	if errors.Is(err, volume.ErrDamaged) {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err != nil {
		return "", fmt.Errorf("read %s at offset %d: %w", e.Name, e.Offset, err)
	}
	return d, nil
}
