package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/liteboxd/boxlift/test/k3sbuild"
)

// generation goes up whenever the same catalog gives other bytes than before.
const generation = 1

const setFile = "set.json"

// artifact is a file in the cache.
type artifact struct {
	File   string // its name in the folder that the record is kept in; absolute once read
	SHA256 string
	Size   int64
}

// set is all that there is to serve.
type set struct {
	Images   []builtImage // of all releases, each once
	Releases []releaseSet

	// Not in set.json.
	Registry string              `json:"-"` // the registry's folder
	Charts   map[string]artifact `json:"-"` // Cilium charts by version
}

// releaseSet is what belongs to one release.
type releaseSet struct {
	Refs     []string            // of its images, in the catalog's order
	Archives map[string]artifact // air-gap archives by GOARCH

	// Not in set.json.
	Release Release             `json:"-"`
	K3s     map[string]artifact `json:"-"` // k3s binaries by GOARCH
	Install artifact            `json:"-"` // install.sh
}

func (s *set) image(ref string) *builtImage {
	for i := range s.Images {
		if s.Images[i].Ref == ref {
			return &s.Images[i]
		}
	}
	return nil
}

// of gives the images of one component of a release, in the catalog's order.
func (s *set) of(r *releaseSet, c component) []builtImage {
	var images []builtImage
	for _, ref := range r.Refs {
		if image := s.image(ref); image.Component == c {
			images = append(images, *image)
		}
	}
	return images
}

// generator makes the artifacts that the cache does not have yet.
type generator struct {
	cache    string
	size     Size
	releases []Release
	logf     func(format string, args ...any)

	programs map[string]string // files of the images' programs, by folder
}

func (g *generator) make(ctx context.Context) (*set, error) {
	if g.size != Small && g.size != Large {
		return nil, fmt.Errorf("there is no size %q, only %q and %q", g.size, Small, Large)
	}
	parts := []string{fmt.Sprint(generation, g.size, runtime.GOOS, runtime.GOARCH, smallScale, smallLeast)}
	for _, r := range g.releases {
		if r.K3s == "" {
			return nil, errors.New("a release without versions: there are Quick, Oldest, Older, Newer and Patched")
		}
		if _, ok := liteboxdReleases[r.LiteBoxd]; !ok {
			return nil, fmt.Errorf("there is no LiteBoxd %q", r.LiteBoxd)
		}
		parts = append(parts, fmt.Sprintf("%s %+v", r.K3s, catalog(r)))
	}
	sums, err := g.buildPrograms(ctx)
	if err != nil {
		return nil, fmt.Errorf("build the images' programs: %w", err)
	}
	dir := filepath.Join(g.cache, fmt.Sprintf("images-%s-%s", g.size, key(append(parts, sums...)...)))
	if err := once(ctx, dir, g.fillImages); err != nil {
		return nil, fmt.Errorf("make images: %w", err)
	}
	s := &set{Registry: dir}
	if err := readJSON(filepath.Join(dir, setFile), s); err != nil {
		return nil, err
	}
	for n, release := range g.releases {
		r := &s.Releases[n]
		r.Release = release
		for arch, a := range r.Archives {
			a.File = filepath.Join(dir, a.File)
			r.Archives[arch] = a
		}
		if err := g.addK3s(ctx, r); err != nil {
			return nil, fmt.Errorf("make the binaries of k3s %s: %w", release.K3s, err)
		}
	}
	if err := g.addCharts(ctx, s); err != nil {
		return nil, fmt.Errorf("get Cilium's chart: %w", err)
	}
	return s, nil
}

// buildPrograms builds what goes into the images, and gives its checksums.
func (g *generator) buildPrograms(ctx context.Context) (sums []string, err error) {
	g.programs = map[string]string{}
	for _, r := range g.releases {
		for _, image := range catalog(r) {
			for _, l := range image.Layers {
				if l.Program == "" || g.programs[l.Program] != "" {
					continue
				}
				if g.programs[l.Program], err = g.buildProgram(ctx, l.Program); err != nil {
					return nil, err
				}
				sum, err := fileSum(g.programs[l.Program])
				if err != nil {
					return nil, err
				}
				sums = append(sums, l.Program, sum)
			}
		}
	}
	return sums, nil
}

// buildProgram returns the file of a program for images, which is built if it must be.
func (g *generator) buildProgram(ctx context.Context, folder string) (string, error) {
	if folder != standinProgram {
		return k3sbuild.Program(ctx, folder, g.logf)
	}
	root, err := repositoryRoot()
	if err != nil {
		return "", err
	}
	sources, err := sourceKey(root, folder)
	if err != nil {
		return "", fmt.Errorf("read the sources of %s: %w", folder, err)
	}
	dir := filepath.Join(g.cache, "program-liteboxd-"+key(runtime.Version(), sources))
	name := filepath.Join(dir, "liteboxd")
	return name, once(ctx, dir, func(ctx context.Context, dir string) error {
		g.logf("building %s", folder)
		return goBuild(ctx, root, folder, arches[0], "", filepath.Join(dir, filepath.Base(name)))
	})
}

func fileSum(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read
	hash := sha256.New()
	_, err = io.Copy(hash, f)
	return hex.EncodeToString(hash.Sum(nil)), err
}

// fillImages makes the registry's storage and the air-gap archives.
func (g *generator) fillImages(ctx context.Context, dir string) error {
	store := storage(dir)
	var specs []imageSpec
	s := &set{}
	for _, release := range g.releases {
		r := releaseSet{Archives: map[string]artifact{}}
		for _, spec := range catalog(release) {
			r.Refs = append(r.Refs, spec.Ref)
			if !slices.ContainsFunc(specs, func(other imageSpec) bool { return other.Ref == spec.Ref }) {
				specs = append(specs, spec)
			}
		}
		s.Releases = append(s.Releases, r)
	}
	layers, err := g.makeLayers(ctx, store, specs)
	if err != nil {
		return err
	}
	for _, spec := range specs {
		image, err := buildImage(store, spec, layers)
		if err != nil {
			return err
		}
		s.Images = append(s.Images, image)
	}
	for n, release := range g.releases {
		r := &s.Releases[n]
		for _, arch := range arches {
			name := release.K3s + "-" + archiveName(arch)
			r.Archives[arch], err = createArtifact(dir, name, 0o644, func(w io.Writer) error {
				return writeArchive(ctx, w, store, s.of(r, k3s), arch)
			})
			if err != nil {
				return fmt.Errorf("make %s: %w", name, err)
			}
			g.logf("made %s, %d kB", name, r.Archives[arch].Size/1000)
		}
	}
	return saveJSON(filepath.Join(dir, setFile), s)
}

// createArtifact writes a file and its record.
func createArtifact(dir, name string, mode os.FileMode, write func(io.Writer) error) (a artifact, err error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return artifact{}, err
	}
	hash := sha256.New()
	count := &countingWriter{w: io.MultiWriter(f, hash)}
	if err := errors.Join(write(count), f.Close()); err != nil {
		return artifact{}, err
	}
	return artifact{File: name, SHA256: hex.EncodeToString(hash.Sum(nil)), Size: count.n}, nil
}

// key makes a part of a folder's name from what decides the folder's content.
func key(parts ...string) string {
	hash := sha256.New()
	for _, part := range parts {
		_, _ = fmt.Fprintf(hash, "%d %s", len(part), part) // cannot fail
	}
	return hex.EncodeToString(hash.Sum(nil))[:12]
}
