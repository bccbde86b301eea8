package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageUser runs in the image; it has no name there and owns nothing.
const imageUser = "65532:65532"

// writeImage writes an OCI image layout in a tar: an index of an image for each node platform,
// with the static programs, the documents and nothing else.
func (r *release) writeImage(w io.Writer) (err error) {
	folder, err := os.MkdirTemp(r.out, ".image-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()

	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range nodePlatforms {
		image, err := r.image(platform)
		if err != nil {
			return fmt.Errorf("image for %s: %w", platform, err)
		}
		system, architecture, _ := strings.Cut(platform, "-")
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: system, Architecture: architecture}},
		})
	}
	to, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	name := map[string]string{"org.opencontainers.image.ref.name": r.version}
	if err := to.AppendIndex(index, layout.WithAnnotations(name)); err != nil {
		return err
	}
	entries, err := filesIn(folder)
	if err != nil {
		return err
	}
	return writeTar(w, "", entries, r.time)
}

func (r *release) image(platform string) (v1.Image, error) {
	entries, err := r.tree(platform)
	if err != nil {
		return nil, err
	}
	for i, e := range entries {
		switch {
		case e.link != "":
			entries[i].name, entries[i].link = "usr/bin/"+e.name, path.Join(libraryFolder, e.link)
		case path.Dir(e.name) == ".":
			entries[i].name = path.Join(documentFolder[1:], e.name)
		default:
			entries[i].name = path.Join(libraryFolder[1:], e.name)
		}
	}
	var content bytes.Buffer
	if err := writeTar(&content, "", entries, r.time); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{
		Layer: layer, History: v1.History{Created: v1.Time{Time: r.time}, CreatedBy: "make release"},
	})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	system, architecture, _ := strings.Cut(platform, "-")
	config.OS, config.Architecture, config.Created = system, architecture, v1.Time{Time: r.time}
	config.Config = v1.Config{
		User: imageUser, WorkingDir: "/work", Entrypoint: []string{"/usr/bin/boxlift"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "boxlift", "org.opencontainers.image.version": r.version,
			"org.opencontainers.image.licenses": "Apache-2.0", "org.opencontainers.image.source": "https://github.com/liteboxd/boxlift",
		},
	}
	return mutate.ConfigFile(image, config)
}

// filesIn lists the files of a folder, sorted by their names.
func filesIn(folder string) ([]entry, error) {
	var entries []entry
	err := filepath.WalkDir(folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(folder, name)
		entries = append(entries, entry{name: filepath.ToSlash(relative), mode: 0o644, source: name})
		return err
	})
	return entries, err
}
