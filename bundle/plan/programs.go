package plan

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/internal/parallel"
)

// Program is one of boxlift's own programs that travels in every bundle, so that the
// isolated side needs nothing else.
type Program struct {
	// Name is boxlift or boxlift-node.
	Name     string
	Platform lock.Platform
	// Path is where the program lies on this host.
	Path string

	// found is what Describe found; its digest is "" before.
	found ocispec.Descriptor
}

// Describe reads programs to know their digests, which planning does otherwise: a caller may
// have it done while it waits for something else.
func Describe(ctx context.Context, programs []Program) error {
	return parallel.ForEach(ctx, runtime.GOMAXPROCS(0), len(programs), func(_ context.Context, i int) (err error) {
		p := &programs[i]
		if p.found.Digest != "" {
			return nil
		}
		if p.found, err = describeFile(p.Path); err != nil {
			err = fmt.Errorf("%s: %w", format.Label(bundle.ProgramsComponent, p.Name, p.Platform), err)
		}
		return err
	})
}

func (p *planner) addPrograms(ctx context.Context) error {
	programs := slices.Clone(p.options.Programs)
	if err := Describe(ctx, programs); err != nil {
		return err
	}
	for _, program := range programs {
		d := program.found
		if err := p.addArtifact(bundle.File{
			Component: bundle.ProgramsComponent, Version: p.options.Version, Name: program.Name,
			Platform:  program.Platform,
			MediaType: format.FileMediaType, Digest: d.Digest, Size: d.Size,
		}, format.FileArtifactType); err != nil {
			return err
		}
		if p.place(&p.large, d, program.Platform) {
			p.plan.Fetches = append(p.plan.Fetches, &Fetch{
				Label: format.Label(bundle.ProgramsComponent, program.Name, program.Platform), Size: d.Size, Blob: d,
				Open: func(_ context.Context, from int64) (*source.Stream, error) {
					return source.OpenDisk(program.Path, from)
				},
			})
		}
	}
	return nil
}

// describeFile reads a file on disk once, to know its digest.
func describeFile(name string) (ocispec.Descriptor, error) {
	f, err := os.Open(name)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	d, err := digest.FromReader(f)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("read %s: %w", name, err)
	}
	return ocispec.Descriptor{MediaType: format.FileMediaType, Digest: d, Size: info.Size()}, nil
}
