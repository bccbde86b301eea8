package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
)

// A delta leaves out what the other side holds: the operator in an older bundle, which he
// names, or the hosts in their packs. What neither of them has is found out before any host
// is changed.

// checkDelta makes sure that what is needed on the operator's machine is in the bundle, or in
// the bases that were given with it.
func (sd *Seeder) checkDelta() error {
	if sd.site.Bundle == nil {
		return nil
	}
	var blobs []digest.Digest
	for _, f := range sd.site.contents.Files {
		isChart := f.Component == CiliumComponent && strings.HasSuffix(f.Name, ".tgz")
		if isChart || f.Component == liteboxdComponent && f.Name == bundle.ManifestsFile && sd.site.Config.LiteBoxd != nil {
			blobs = append(blobs, f.Digest)
		}
	}
	if sd.site.Config.Seeding.Mode == config.SeedExternal {
		for _, image := range sd.site.contents.Images {
			blobs = append(blobs, image.Digest)
			for _, p := range image.Platforms {
				blobs = append(blobs, p.Manifest.Digest, p.Config.Digest)
				for _, layer := range p.Layers {
					blobs = append(blobs, layer.Digest)
				}
			}
		}
	}
	return sd.site.Bundle.Require(blobs...)
}

// checkSupply compares what the bundle leaves out with what the hosts hold. It only looks. A
// host that cannot be looked at is left to those who come after.
func (sd *Seeder) checkSupply(ctx context.Context) error {
	if d := sd.site.Bundle.Delta(); d == nil || len(d.Missing) == 0 {
		return nil
	}
	var mu sync.Mutex
	lacking := make(map[digest.Digest][]string)
	_ = sd.engine.eachHost(ctx, sd.site.hosts, func(ctx context.Context, h *host) error {
		missing, err := sd.unsupplied(ctx, h)
		mu.Lock()
		defer mu.Unlock()
		for _, d := range missing {
			lacking[d] = append(lacking[d], h.name)
		}
		return err
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return sd.lackingError(lacking)
}

// lackingError names blobs that nobody has for some hosts, or is nil when there are none.
func (sd *Seeder) lackingError(lacking map[digest.Digest][]string) error {
	blobs := make([]digest.Digest, 0, len(lacking))
	for d := range lacking {
		blobs = append(blobs, d)
	}
	slices.Sort(blobs)
	err := sd.site.Bundle.Require(blobs...)
	var missing *bundle.MissingError
	if errors.As(err, &missing) {
		for i := range missing.Blobs {
			hosts := lacking[missing.Blobs[i].Digest]
			slices.Sort(hosts)
			missing.Blobs[i].Of += ", which is not on " + strings.Join(hosts, ", ") + " either"
		}
	}
	return err
}

// unsupplied lists what a host lacks that the bundle leaves out.
func (sd *Seeder) unsupplied(ctx context.Context, h *host) ([]digest.Digest, error) {
	if err := sd.site.connect(ctx, h); err != nil {
		return nil, err
	}
	if !slices.Contains(sd.site.contents.Platforms(), h.platform) {
		return nil, nil // which is an error by itself
	}
	var err error
	if h.packs, err = sd.site.packsFor(h); err != nil {
		return nil, err
	}
	want, err := sd.wantedOn(h)
	if err != nil {
		return nil, err
	}
	sizes, err := sizesOf(want)
	if err != nil {
		return nil, err
	}
	there, err := present(ctx, h, sizes)
	if err != nil {
		return nil, err
	}
	held, err := heldBlobs(ctx, h)
	if err != nil {
		return nil, err
	}
	ship, _ := account(want, there, held)
	var missing []digest.Digest
	for d := range ship {
		if !sd.site.Bundle.Has(d) {
			missing = append(missing, d)
		}
	}
	file, ok := sd.site.contents.File(bundle.ProgramsComponent, bundle.NodeProgram, h.platform)
	if !ok || sd.site.Bundle.Has(file.Digest) {
		return missing, nil
	}
	isThere, err := h.hasHelper(ctx, file)
	if err == nil && !isThere {
		missing = append(missing, file.Digest)
	}
	return missing, err
}

// hasHelper tells whether the helper on the host is this one.
func (h *host) hasHelper(ctx context.Context, file bundle.File) (bool, error) {
	digests, err := machine.Digests(ctx, h.conn, helperPath)
	if err != nil {
		return false, fmt.Errorf("look for boxlift-node: %w", err)
	}
	return digests[helperPath] == file.Digest.Encoded(), nil
}
