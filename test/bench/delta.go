//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// changedImages are those of which the other side has all but the last layer: an image of
// both platforms, and one of linux/amd64 alone.
var changedImages = []string{"quay.io/cilium/operator-generic", "ghcr.io/fslongjin/liteboxd-gateway"}

// measureDelta builds a delta for hosts that hold everything but what comes with another
// layer in two images: the layers, what names them, and the lock.
func (f *fixture) measureDelta(ctx context.Context) ([]figure, error) {
	added, err := f.writeHave(f.path("HAVE.json"))
	if err != nil {
		return nil, err
	}
	output := f.path("delta.tar")
	settle()
	build := f.build(ctx, output)
	build.Args = append(build.Args, "--since", f.path("HAVE.json"), "--reuse", f.bundle())
	c, err := measure(build)
	if err != nil {
		return nil, err
	}
	report("boxlift --since", c)
	if err := runQuietly(f.boxlift(ctx, "bundle", "verify", output, "--key", "boxlift.pub", "--base", f.bundle())); err != nil {
		return nil, err
	}
	info, err := os.Stat(output)
	if err != nil {
		return nil, err
	}
	ratio := float64(info.Size()) / float64(added)
	note("delta: %d bytes, of which %d are new", info.Size(), added)
	return []figure{
		{"delta: bytes, beside the new ones", megabytes(info.Size()), megabytes(added), fmt.Sprintf("%.4fx", ratio), "<= 1.01x", ratio <= 1.01},
	}, os.Remove(output)
}

// writeHave writes down what the other side holds, and returns how many bytes of the bundle
// are new to it.
func (f *fixture) writeHave(path string) (added int64, err error) {
	r, err := bundle.Open(f.bundle())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	contents, err := r.Contents()
	if err != nil {
		return 0, err
	}
	isNew := make(map[digest.Digest]bool)
	for _, file := range contents.Files {
		if file.Component == bundle.LockComponent {
			isNew[file.Digest] = true
		}
	}
	for _, image := range contents.Images {
		repository, _, _ := strings.Cut(image.Name, ":")
		if !slices.Contains(changedImages, repository) {
			continue
		}
		isNew[image.Digest] = true
		for _, p := range image.Platforms {
			isNew[p.Manifest.Digest], isNew[p.Config.Digest] = true, true
			isNew[p.Layers[len(p.Layers)-1].Digest] = true
		}
	}
	tar, err := ocitar.NewReader(r.File(), r.File().Size())
	if err != nil {
		return 0, err
	}
	held := make(map[digest.Digest]int64)
	for _, e := range tar.Layout().Entries {
		switch d := e.Digest(); {
		case isNew[d]:
			added += e.Size
		case d != "":
			held[d] = e.Size
		}
	}
	var hosts []have.Host
	for _, platform := range contents.Platforms() {
		hosts = append(hosts, have.Host{Name: string(platform), Platform: platform, Bundles: []digest.Digest{r.Digest()}, Blobs: held})
	}
	content, err := have.Of("bench", hosts).Encode()
	if err != nil {
		return 0, err
	}
	return added, os.WriteFile(path, content, 0o600)
}
