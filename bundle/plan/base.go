package plan

import (
	"io"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/lock"
)

// Base is what the other side of the air gap holds, so that a delta can leave it out.
type Base struct {
	bundles []digest.Digest
	held    []holder
}

// holder reports whether the other side holds a blob wherever it may want it: on the
// platforms given, or, when none are, on all.
type holder func(d digest.Digest, size int64, platforms []lock.Platform) bool

// AddBundle adds a bundle. A delta stands for its whole bundle: whoever has it has that.
func (b *Base) AddBundle(r *bundle.Reader) {
	b.add(r.Digest())
	b.held = append(b.held, func(d digest.Digest, size int64, _ []lock.Platform) bool {
		e, ok := r.Tar().Blob(d)
		return ok && e.Size == size
	})
}

// AddHosts adds what hosts hold. Of blobs for a platform that none of them has they have
// no use: these are left out only if they hold them by chance, all of them.
func (b *Base) AddHosts(h *have.Have) {
	b.add(h.Bundles...)
	type hosts struct {
		platform lock.Platform
		sizes    map[digest.Digest]int64
	}
	var all []hosts
	for _, p := range h.Platforms {
		sizes := make(map[digest.Digest]int64, len(p.Blobs))
		for _, blob := range p.Blobs {
			sizes[blob.Digest] = blob.Size
		}
		all = append(all, hosts{p.Platform, sizes})
	}
	b.held = append(b.held, func(d digest.Digest, size int64, platforms []lock.Platform) bool {
		isHeld := false
		for _, p := range all {
			if len(platforms) > 0 && !slices.ContainsFunc(platforms, p.platform.Match) {
				continue
			}
			if has, ok := p.sizes[d]; !ok || has != size {
				return false
			}
			isHeld = true
		}
		return isHeld
	})
}

// BaseOf is a base that holds blobs of these sizes.
func BaseOf(bundles []digest.Digest, sizes map[digest.Digest]int64) *Base {
	return &Base{bundles: bundles, held: []holder{func(d digest.Digest, size int64, _ []lock.Platform) bool {
		has, ok := sizes[d]
		return ok && has == size
	}}}
}

func (b *Base) add(bundles ...digest.Digest) {
	for _, d := range bundles {
		if !slices.Contains(b.bundles, d) {
			b.bundles = append(b.bundles, d)
		}
	}
}

func (b *Base) holds(d digest.Digest, size int64, platforms []lock.Platform) bool {
	return slices.ContainsFunc(b.held, func(h holder) bool { return h(d, size, platforms) })
}

// contentIn returns a small blob that one of some older bundles holds, proven.
func contentIn(older []*bundle.Reader, d digest.Digest, limit int64) ([]byte, bool) {
	for _, r := range older {
		e, ok := r.Tar().Blob(d)
		if !ok || e.Size > limit {
			continue
		}
		blob, err := r.Content(d, e.Size)
		if err != nil {
			continue
		}
		if content, err := io.ReadAll(blob); err == nil {
			return content, true
		}
	}
	return nil, false
}
