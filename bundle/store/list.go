package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/parallel"
	"github.com/liteboxd/boxlift/internal/progress"
)

// Listed is a bundle of a store. Nothing of it is proven.
type Listed struct {
	Name   string        `json:"name"`
	Digest digest.Digest `json:"digest,omitempty"`
	// Size is that of its tar in bytes.
	Size int64 `json:"size,omitempty"`
	// Alone is what it has and no other bundle of the store: what removing it would free.
	Alone   bundle.Amount `json:"alone"`
	Added   time.Time     `json:"added,omitzero"`
	Builder string        `json:"builder,omitempty"`
	Signed  bool          `json:"signed"`
	lock.Validity
	// Problem is why the bundle cannot be opened; what is not known then is empty.
	Problem string `json:"problem,omitempty"`
}

// Contents are what a store has.
type Contents struct {
	Bundles []Listed `json:"bundles"`
	// Needed are the blobs of all bundles, each once, and Unneeded those of none; what a bundle needs whose entry cannot
	// be read is not known, and then no blob counts as unneeded.
	Needed   bundle.Amount `json:"needed"`
	Unneeded bundle.Amount `json:"unneeded"`
}

// List lists the bundles of the store in the order in which they were added. Blobs are not read.
func (s *Store) List() (*Contents, error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	needed, unreadable := s.needed() // what cannot be read is told with the bundle that it is
	c := &Contents{Bundles: []Listed{}}
	alone := make(map[string]bundle.Amount)
	for _, b := range needed {
		c.Needed.Add(b.Size)
		if len(b.bundles) == 1 {
			amount := alone[b.bundles[0]]
			amount.Add(b.Size)
			alone[b.bundles[0]] = amount
		}
	}
	unneeded, _, err := s.unneeded(needed)
	if err != nil {
		return nil, fmt.Errorf("list the store: %w", err)
	}
	for _, b := range unneeded {
		if unreadable == nil {
			c.Unneeded.Add(b.Size)
		}
	}
	for _, name := range names {
		l := s.listed(name)
		l.Alone = alone[name]
		c.Bundles = append(c.Bundles, l)
	}
	slices.SortStableFunc(c.Bundles, func(a, b Listed) int { return a.Added.Compare(b.Added) })
	return c, nil
}

func (s *Store) listed(name string) Listed {
	l := Listed{Name: name}
	if info, err := os.Lstat(s.Path(name)); err == nil {
		l.Added = info.ModTime().UTC()
	}
	e, err := volume.ReadEntry(s.Path(name))
	if err != nil {
		l.Problem = err.Error()
		return l
	}
	l.Digest = e.Bundle()
	r, err := bundle.Open(s.Path(name))
	if err != nil {
		l.Problem = err.Error()
		return l
	}
	defer r.Close() //nolint:errcheck // it was only read
	l.Digest, l.Size, l.Builder, l.Signed, l.Validity = r.Digest(), r.Size(), r.Version(), r.Signed(), r.Validity()
	return l
}

// Check reads and hashes every blob of the store once, and compares what each bundle names with what it has. All that
// is wrong is in the error, which has a [volume.Fault] for each damaged or missing blob. Who signed the bundles is not
// asked: [bundle.OpenVerified] says that.
func (s *Store) Check(ctx context.Context, reporter progress.Reporter) (*Contents, error) {
	c, err := s.check(ctx, reporter)
	if err != nil {
		return c, fmt.Errorf("check the store %s: %w", s.dir, err)
	}
	return c, nil
}

func (s *Store) check(ctx context.Context, reporter progress.Reporter) (*Contents, error) {
	if reporter == nil {
		reporter = progress.Discard
	}
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range names {
		// What is open is not removed meanwhile.
		r, err := bundle.Open(s.Path(name))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer r.Close() //nolint:errcheck // it was only read
		if err := r.CheckStructure(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	needed, _ := s.needed() // an entry that cannot be read could not be opened
	blobs := slices.SortedFunc(maps.Values(needed), func(a, b *blob) int { return cmp.Compare(b.Size, a.Size) })
	var total int64
	for _, b := range blobs {
		total += b.Size
	}
	task := reporter.Task("check", total)
	err = parallel.ForEach(ctx, runtime.GOMAXPROCS(0), len(blobs), func(ctx context.Context, i int) error {
		err := volume.CheckBlob(ctx, s.dir, blobs[i].StoredMember, task.Add)
		if err != nil {
			err = fmt.Errorf("a blob of %s: %w", strings.Join(blobs[i].bundles, ", "), err)
		}
		return err
	})
	task.Done(err)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	return s.List()
}
