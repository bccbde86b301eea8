//go:build linux

package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	kgzip "github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// sbomTurns is how often the list of software is made. Each takes minutes of a slow machine.
const sbomTurns = 3

// unpackJob is what floor-unpack does: unpack each layer of a bundle once, one after
// another, and throw away what comes out.
type unpackJob struct {
	Bundle string `json:"bundle"`
	// Standard takes the standard library's gzip rather than the faster one.
	Standard bool `json:"standard"`
}

func floorUnpack(r io.Reader) error {
	var job unpackJob
	if err := json.NewDecoder(r).Decode(&job); err != nil {
		return err
	}
	b, err := bundle.Open(job.Bundle)
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // it was only read
	layers, err := uniqueLayers(b)
	if err != nil {
		return err
	}
	tar, err := ocitar.NewReader(b.File(), b.File().Size())
	if err != nil {
		return err
	}
	for d := range layers {
		if err := job.unpack(tar, d); err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
	}
	return nil
}

// unpack reads a layer without its hash, which is no part of the floor.
func (j unpackJob) unpack(tar *ocitar.Reader, d digest.Digest) error {
	blob, ok := tar.Open(ocitar.BlobName(d))
	if !ok {
		return fmt.Errorf("the bundle has no blob %s", d)
	}
	buffered := bufio.NewReaderSize(blob, 64<<10)
	magic, err := buffered.Peek(2)
	if err != nil {
		return err
	}
	var plain io.Reader
	switch {
	case magic[0] != 0x1f:
		z, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
		if err != nil {
			return err
		}
		defer z.Close()
		plain = z
	case j.Standard:
		plain, err = gzip.NewReader(buffered)
	default:
		plain, err = kgzip.NewReader(buffered)
	}
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, plain, make([]byte, 64<<10))
	return err
}

// uniqueLayers lists the layers of all images, each once, with their sizes.
func uniqueLayers(b *bundle.Reader) (map[digest.Digest]int64, error) {
	contents, err := b.Contents()
	if err != nil {
		return nil, err
	}
	layers := make(map[digest.Digest]int64)
	for _, image := range contents.Images {
		for _, p := range image.Platforms {
			for _, d := range p.Layers {
				layers[d.Digest] = d.Size
			}
		}
	}
	return layers, nil
}

func (f *fixture) measureSBOM(ctx context.Context) ([]figure, error) {
	info, err := os.Stat(f.bundle())
	if err != nil {
		return nil, err
	}
	var runs, floors, standard []cost
	for range sbomTurns {
		if err := readThrough(f.bundle()); err != nil {
			return nil, err
		}
		for _, floor := range []struct {
			job  unpackJob
			into *[]cost
		}{{unpackJob{Bundle: f.bundle()}, &floors}, {unpackJob{Bundle: f.bundle(), Standard: true}, &standard}} {
			c, err := f.measureFloor(ctx, "floor-unpack", floor.job)
			if err != nil {
				return nil, err
			}
			report("floor", c)
			*floor.into = append(*floor.into, c)
		}
		c, err := measure(f.boxlift(ctx, "bundle", "sbom", f.bundle(), "--no-cache", "-o", "bundle.cdx.json"))
		if err != nil {
			return nil, err
		}
		report("boxlift", c)
		runs = append(runs, c)
	}
	if err := os.Remove(f.path("bundle.cdx.json")); err != nil {
		return nil, err
	}
	ours, theirs, slower := median(runs, cpu), median(floors, cpu), median(standard, cpu)
	ratio, most := ours.Seconds()/theirs.Seconds(), median(runs, peak)
	passes := float64(median(runs, readBytes)) / float64(info.Size())
	return []figure{
		{"sbom: CPU, of unpacking each layer once", seconds(ours), seconds(theirs), times(ratio), "<= 1.5x", ratio <= 1.5},
		{"sbom: CPU, of that with Go's own gzip", seconds(ours), seconds(slower), times(ours.Seconds() / slower.Seconds()), "", true},
		{"sbom: wall", seconds(median(runs, wall)), seconds(median(floors, wall)), times(median(runs, wall).Seconds() / median(floors, wall).Seconds()), "", true},
		{"sbom: bytes read, of the bundle's", megabytes(median(runs, readBytes)), megabytes(info.Size()), times(passes), "<= 1.01x", passes <= 1.01},
		{"sbom: peak memory", megabytes(most), "", "", "<= 256 MB", most <= 256e6},
	}, nil
}
