package seed

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/config/workloads"
	"github.com/liteboxd/boxlift/install/site"
)

// A delta leaves out what the other side holds: the operator in an older bundle, which he
// names, or the hosts in their packs. What neither of them has is found out before any host
// is changed.

// CheckDelta makes sure that what is needed on the operator's machine is in the bundle, or in
// the bases that were given with it.
func (sd *Seeder) CheckDelta() error {
	if sd.Site.Bundle == nil {
		return nil
	}
	var blobs []digest.Digest
	for _, f := range sd.Site.Contents.Files {
		isChart := f.Component == site.CiliumComponent && strings.HasSuffix(f.Name, ".tgz")
		if isChart || f.Component == LiteBoxdComponent && f.Name == bundle.ManifestsFile &&
			sd.Site.Config.LiteBoxd != nil || sd.isOfWorkload(f) {
			blobs = append(blobs, f.Digest)
		}
	}
	if sd.Site.Config.Seeding.Mode == config.SeedExternal {
		for _, image := range sd.Site.Contents.Images {
			blobs = append(blobs, image.Digest)
			for _, p := range image.Platforms {
				blobs = append(blobs, p.Manifest.Digest, p.Config.Digest)
				for _, layer := range p.Layers {
					blobs = append(blobs, layer.Digest)
				}
			}
		}
	}
	return sd.Site.Bundle.Require(blobs...)
}

// isOfWorkload reports whether a workload of install.yaml is made from a file.
func (sd *Seeder) isOfWorkload(f bundle.File) bool {
	return (f.MediaType == format.ChartMediaType || f.Name == bundle.ManifestsFile || f.Name == bundle.ValuesFile) &&
		slices.ContainsFunc(sd.Site.Config.Workloads, func(w workloads.Workload) bool { return w.Component == f.Component })
}

// CheckSupply compares what the bundle leaves out with what the hosts hold. It only looks. A
// host that cannot be looked at is left to those who come after.
func (sd *Seeder) CheckSupply(ctx context.Context) error {
	if d := sd.Site.Bundle.Delta(); d == nil || len(d.Missing) == 0 {
		return nil
	}
	var mu sync.Mutex
	lacking := make(map[digest.Digest][]string)
	_ = sd.Engine.EachHost(ctx, sd.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		missing, err := sd.unsupplied(ctx, h)
		mu.Lock()
		defer mu.Unlock()
		for _, d := range missing {
			lacking[d] = append(lacking[d], h.Name)
		}
		return err
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return sd.LackingError(lacking)
}

// LackingError names blobs that nobody has for some hosts, or is nil when there are none.
func (sd *Seeder) LackingError(lacking map[digest.Digest][]string) error {
	blobs := make([]digest.Digest, 0, len(lacking))
	for d := range lacking {
		blobs = append(blobs, d)
	}
	slices.Sort(blobs)
	err := sd.Site.Bundle.Require(blobs...)
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
func (sd *Seeder) unsupplied(ctx context.Context, h *site.Host) ([]digest.Digest, error) {
	if err := sd.Site.Connect(ctx, h); err != nil {
		return nil, err
	}
	if !slices.Contains(sd.Site.Contents.Platforms(), h.Platform) {
		return nil, nil // which is an error by itself
	}
	var err error
	if h.Packs, err = sd.Site.PacksFor(h); err != nil {
		return nil, err
	}
	want, err := sd.WantedOn(h)
	if err != nil {
		return nil, err
	}
	sizes, err := SizesOf(want)
	if err != nil {
		return nil, err
	}
	there, err := Present(ctx, h, sizes)
	if err != nil {
		return nil, err
	}
	held, err := HeldBlobs(ctx, h)
	if err != nil {
		return nil, err
	}
	ship, _ := Account(want, there, held)
	var missing []digest.Digest
	for d := range ship {
		if !sd.Site.Bundle.Has(d) {
			missing = append(missing, d)
		}
	}
	file, ok := sd.Site.Contents.File(bundle.ProgramsComponent, bundle.NodeProgram, h.Platform)
	if !ok || sd.Site.Bundle.Has(file.Digest) {
		return missing, nil
	}
	isThere, err := h.HasHelper(ctx, file)
	if err == nil && !isThere {
		missing = append(missing, file.Digest)
	}
	return missing, err
}
