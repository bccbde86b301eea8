// Package plan makes of a lock the plan of a bundle: its index.json, the place of every blob in
// the file, and where the blobs come from. [New] fetches the manifests of images, and of
// everything large nothing; package build does the rest. A plan is a function of the lock, the
// programs and the version, so that it can be made again to prove a bundle ([NewFrom]).
package plan

import (
	"context"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/internal/progress"
)

// Options say what a bundle is made from. Lock, LockContent and Source are
// required.
type Options struct {
	Lock *lock.Lock
	// LockName is the lock's file name, for messages.
	LockName string
	// LockContent is the lock as it was read, byte for byte: it travels in the bundle.
	LockContent []byte
	Programs    []Program
	// Manifests is a tar of the manifests that are installed, which travels as a file of
	// the component [bundle.ManifestsComponent], provided that the lock has that; nil: no such file.
	Manifests []byte
	Source    *source.Client
	// Version is that of the boxlift that builds; it is part of the bundle.
	Version string
	// Parallelism bounds the requests under way; 0 means 6.
	Parallelism int
	// Reuse are older bundles, open until the build has returned. What they hold, and what is
	// proven to be what the lock pins, is taken from them instead of from Source.
	Reuse []*bundle.Reader
	// Since makes a delta: a bundle without the blobs that the base holds. Nil makes a whole
	// bundle.
	Since *Base
	// SBOM makes the list of the software in a bundle, as CycloneDX in JSON, which becomes the
	// file [bundle.SBOMFile]; nil: no such file. What it makes must depend on the bundle alone, which is
	// the one without this file and reads as long as the call lasts.
	SBOM func(ctx context.Context, r *bundle.Reader) ([]byte, error)
	// AllowMovedTags accepts tags that have moved away from the digest in the lock.
	AllowMovedTags bool
	// Sources are looked into before anything large is fetched; nil: none are. With older bundles
	// to copy from, the build waits for that after it has copied, and can be called once only.
	Sources *SourceCheck
	// Reporter is told of the work; nil discards it.
	Reporter progress.Reporter
}

// Plan is a bundle of which everything is known but the large blobs: its index.json,
// and where in the file each blob belongs.
type Plan struct {
	// Index is index.json, which a signature has to cover, and Entries are those in it.
	Index   []byte
	Entries []ocispec.Descriptor
	// Members are those of the file in their order, all but the signature's.
	Members []ocitar.Member
	// Content is that of the blobs that are at hand.
	Content map[digest.Digest][]byte
	// Fetches supply the others, unless the older bundles in Reuse have them. Parallel bounds
	// how many are under way.
	Fetches  []*Fetch
	Reuse    []*bundle.Reader
	Parallel int
	Reporter progress.Reporter
	// Check is what is under way; nil for none.
	Check *RunningCheck
	// Since is the base of a delta that is to be made of the plan; nil for a whole bundle.
	// IsDelta says that it was (see [Plan.Delta]).
	Since   *Base
	IsDelta bool
	// SBOM makes the list of software that the bundle is to have; nil for none.
	SBOM func(ctx context.Context, r *bundle.Reader) ([]byte, error)

	version  string
	validity lock.Validity
	// smallBlobs is how many of the blobs, which are the members from the third on, are of
	// the first part of the file: manifests, configs and the like.
	smallBlobs int
	// platforms are those that a blob is for, with the empty one for all.
	platforms map[digest.Digest][]lock.Platform
	// unread are manifests and configs in archives, which are not known before the archives
	// are read.
	unread map[digest.Digest]bool
}

// Digest returns the bundle digest: the sha256 of index.json.
func (p *Plan) Digest() digest.Digest { return digest.FromBytes(p.Index) }

// New fetches the manifests of all images and lays out the bundle. It refuses a
// lock with entries that are not pinned, tags that have moved, and images that lack a
// platform; it reports all that it finds.
func New(ctx context.Context, o Options) (*Plan, error) {
	return NewFrom(ctx, o, o.Source)
}

// NewFrom is New with the manifests of images from another registry.
func NewFrom(ctx context.Context, o Options, from Registry) (*Plan, error) {
	if err := CheckPins(o.LockName, o.Lock); err != nil {
		return nil, err
	}
	if o.Parallelism == 0 {
		o.Parallelism = 6
	}
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	p := &planner{options: o, registry: from, plan: &Plan{
		Content:  make(map[digest.Digest][]byte),
		Reuse:    o.Reuse,
		Parallel: o.Parallelism,
		Reporter: o.Reporter,
		version:  o.Version,
		validity: o.Lock.Validity,

		Since:     o.Since,
		SBOM:      o.SBOM,
		platforms: make(map[digest.Digest][]lock.Platform),
		unread:    make(map[digest.Digest]bool),
	}, have: make(map[digest.Digest]bool)}
	if err := p.run(ctx); err != nil {
		return nil, err
	}
	return p.plan, nil
}
