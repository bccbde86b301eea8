package build

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pieces"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/parallel"
)

// build does so for what is laid out.
func (b *builder) build(ctx context.Context, o Options, result *Result) (*Result, error) {
	result.Size, result.Blobs = b.layout.Size, len(b.layout.Entries)-len(b.fixed)
	if b.isAt(ctx, o, result) {
		if err := b.check.Wait(); err != nil {
			return nil, err
		}
		result.Unchanged = true
		return result, b.removeLeft(o)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := b.open(o); err != nil {
		return nil, err
	}
	defer b.close()
	if err := b.fill(ctx, result); err != nil {
		return nil, err
	}
	whole := b.file
	if b.sealed != nil {
		whole = b.sealed.file
	}
	result.Stored, result.Volumes = whole.Size(), whole.Volumes()
	return result, b.finish(ctx)
}

// fill puts everything in its place.
func (b *builder) fill(ctx context.Context, result *Result) error {
	var err error
	if result.Reused, err = b.prepare(ctx); err != nil {
		return err
	}
	if err := b.reserve(); err != nil {
		return err
	}
	if result.Copied, err = b.copyAll(ctx); err != nil {
		return err
	}
	result.Shared = b.shared.Load()
	if err := b.check.Wait(); err != nil {
		b.discard()
		return err
	}
	return b.fetchAll(ctx)
}

// builder fills one file.
type builder struct {
	plan   *plan.Plan
	layout *ocitar.Layout
	places map[string]ocitar.Entry // by member name
	fixed  map[string][]byte       // members that are not blobs
	// continued says that an earlier build has left something in the file.
	continued bool
	// isCopy says that all blobs are in older bundles, and that nothing else has them.
	isCopy bool
	// noClones are the files of older bundles whose blocks cannot be shared with this one's.
	noClones sync.Map
	shared   atomic.Int64 // bytes
	file     *volume.Draft
	sealed   *sealed // nil when nothing is encrypted
	// check is waited for before anything is fetched.
	check *plan.RunningCheck

	mu   sync.Mutex
	done map[string]bool // members that are verified and in place
}

// layOut lays the members out, with the signature and the trust file.
func (b *builder) layOut(s *signature.Signature, trustFile []byte) error {
	var err error
	if b.layout, b.fixed, err = plan.LayOut(b.plan.Index, b.plan.Members, s, trustFile); err != nil {
		return err
	}
	b.places = make(map[string]ocitar.Entry, len(b.layout.Entries))
	for _, e := range b.layout.Entries {
		b.places[e.Name] = e
	}
	b.done = make(map[string]bool)
	return nil
}

// isAt reports whether the finished bundle lies at the path already, with this signature
// and trust file and in the form that is asked for.
func (b *builder) isAt(ctx context.Context, o Options, result *Result) bool {
	r, err := bundle.Open(o.Path, o.Identities...)
	if err != nil {
		return false
	}
	defer r.Close() //nolint:errcheck // it was only read
	if r.Size() != b.layout.Size || !o.isForm(r.File()) {
		return false
	}
	if !maps.EqualFunc(b.fixed, r.Fixed(), bytes.Equal) {
		return false
	}
	result.Stored, result.Volumes = r.File().Stored(), r.File().Volumes()
	return r.Verify(ctx, b.plan.Reporter) == nil
}

// suffix is what the unfinished bundle's name ends with, after what is to be built, so that
// the leavings of another lock are never mixed in.
func (b *builder) suffix() string {
	kind := ""
	if b.fixed[ocitar.SignatureFile] != nil {
		kind = "-signed"
	}
	return "." + b.plan.Digest().Encoded()[:12] + kind + ".partial"
}

// prepare brings the file to its final length and writes what is at hand. It returns
// how many bytes of blobs were there already.
func (b *builder) prepare(ctx context.Context) (reused int64, err error) {
	isWhole, err := b.file.IsWhole()
	if err != nil {
		return 0, err
	}
	if b.continued = isWhole; b.continued {
		if err := b.findDone(ctx); err != nil {
			return 0, err
		}
		if err := b.clearPadding(); err != nil {
			return 0, err
		}
		for name := range b.done {
			reused += b.places[name].Size
		}
	} else if err := b.file.Allocate(); err != nil {
		return 0, err
	}
	for _, e := range b.layout.Entries {
		content, ok := b.fixed[e.Name]
		if !ok {
			content, ok = b.plan.Content[e.Digest()]
		}
		if !ok || b.done[e.Name] {
			continue
		}
		// With its padding: a longer signature or trust file may have stood here before.
		padded := append(bytes.Clone(content), make([]byte, e.End()-e.Offset-e.Size)...)
		if _, err := b.file.WriteAt(padded, e.Offset); err != nil {
			return 0, b.writeError(err)
		}
		if err := b.complete(e); err != nil {
			return 0, err
		}
	}
	return reused, nil
}

// findDone looks for members whose header is in place, and proves their contents.
func (b *builder) findDone(ctx context.Context) error {
	task := b.plan.Reporter.Task("check what an earlier build left", b.layout.Size)
	err := parallel.ForEach(ctx, runtime.GOMAXPROCS(0), len(b.layout.Entries), func(ctx context.Context, i int) error {
		e := b.layout.Entries[i]
		if e.Digest() == "" {
			return nil
		}
		want, err := ocitar.Header(e.Member)
		if err != nil {
			return err
		}
		got := make([]byte, ocitar.BlockSize)
		if _, err := b.file.ReadAt(got, e.HeaderOffset()); err != nil {
			return fmt.Errorf("read the unfinished bundle: %w", err)
		}
		if !bytes.Equal(got, want) {
			return nil
		}
		actual, err := b.hash(ctx, e, task.Add)
		if err != nil {
			return err
		}
		if actual == e.Digest() {
			b.markDone(e.Name)
		}
		return nil
	})
	task.Done(err)
	return err
}

// hash hashes what is in place of the content of an entry. read is told of its progress.
func (b *builder) hash(ctx context.Context, e ocitar.Entry, read func(n int64)) (digest.Digest, error) {
	d, err := pieces.Hash(ctx, b.file, e.Offset, e.Size, read)
	if err != nil {
		return "", fmt.Errorf("read %s at offset %d: %w", e.Name, e.Offset, err)
	}
	return d, nil
}

// clearPadding writes the zeros behind the contents, which no digest proves, anew.
func (b *builder) clearPadding() error {
	zeros := make([]byte, ocitar.TrailerSize)
	for _, e := range b.layout.Entries {
		end := e.Offset + e.Size
		if _, err := b.file.WriteAt(zeros[:e.End()-end], end); err != nil {
			return b.writeError(err)
		}
	}
	if _, err := b.file.WriteAt(zeros, b.layout.Size-ocitar.TrailerSize); err != nil {
		return b.writeError(err)
	}
	return nil
}

// complete writes the header of a member whose content is in place.
func (b *builder) complete(e ocitar.Entry) error {
	header, err := ocitar.Header(e.Member)
	if err != nil {
		return err
	}
	if _, err := b.file.WriteAt(header, e.HeaderOffset()); err != nil {
		return b.writeError(err)
	}
	b.markDone(e.Name)
	return nil
}

func (b *builder) markDone(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done[name] = true
}

func (b *builder) isDone(d digest.Digest) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done[ocitar.BlobName(d)]
}

// diskError is an error of the local disk.
type diskError struct {
	name string
	err  error
}

func (e *diskError) Error() string { return fmt.Sprintf("write %s: %v", e.name, e.err) }

// Unwrap says that nothing else can succeed after it either.
func (e *diskError) Unwrap() []error { return []error{parallel.ErrStop, e.err} }

func (b *builder) writeError(err error) error { return &diskError{b.file.Name(), err} }
