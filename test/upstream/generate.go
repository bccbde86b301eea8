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
	Images   []builtImage
	Archives map[string]artifact // by GOARCH

	// Not in set.json.
	Registry string              `json:"-"` // the registry's folder
	K3s      map[string]artifact `json:"-"` // k3s binaries by GOARCH
	Install  artifact            `json:"-"` // install.sh
	Charts   map[string]artifact `json:"-"` // Cilium charts by version
}

func (s *set) image(ref string) *builtImage {
	for i := range s.Images {
		if s.Images[i].Ref == ref {
			return &s.Images[i]
		}
	}
	return nil
}

// of gives the images of one component, in the catalog's order.
func (s *set) of(c component) []builtImage {
	var images []builtImage
	for _, image := range s.Images {
		if image.Component == c {
			images = append(images, image)
		}
	}
	return images
}

// generator makes the artifacts that the cache does not have yet.
type generator struct {
	cache string
	size  Size
	logf  func(format string, args ...any)
}

func (g *generator) make(ctx context.Context) (*set, error) {
	if g.size != Small && g.size != Large {
		return nil, fmt.Errorf("there is no size %q, only %q and %q", g.size, Small, Large)
	}
	dir := filepath.Join(g.cache, fmt.Sprintf("images-%s-%s", g.size, key(
		fmt.Sprint(generation, g.size, runtime.GOOS, runtime.GOARCH, smallScale, smallLeast), fmt.Sprintf("%+v", catalog()))))
	if err := once(ctx, dir, g.fillImages); err != nil {
		return nil, fmt.Errorf("make images: %w", err)
	}
	s := &set{Registry: dir}
	if err := readJSON(filepath.Join(dir, setFile), s); err != nil {
		return nil, err
	}
	for arch, a := range s.Archives {
		a.File = filepath.Join(dir, a.File)
		s.Archives[arch] = a
	}
	if err := g.addK3s(ctx, s); err != nil {
		return nil, fmt.Errorf("make k3s binaries: %w", err)
	}
	if err := g.addCharts(ctx, s); err != nil {
		return nil, fmt.Errorf("get Cilium's chart: %w", err)
	}
	return s, nil
}

// fillImages makes the registry's storage and the air-gap archives.
func (g *generator) fillImages(ctx context.Context, dir string) error {
	store := storage(dir)
	layers, err := g.makeLayers(ctx, store)
	if err != nil {
		return err
	}
	s := &set{Archives: map[string]artifact{}}
	for _, spec := range catalog() {
		image, err := buildImage(store, spec, layers)
		if err != nil {
			return err
		}
		s.Images = append(s.Images, image)
	}
	for _, arch := range arches {
		name := archiveName(arch)
		s.Archives[arch], err = createArtifact(dir, name, 0o644, func(w io.Writer) error {
			return writeArchive(ctx, w, store, s.of(k3s), arch)
		})
		if err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		g.logf("made %s, %d kB", name, s.Archives[arch].Size/1000)
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
