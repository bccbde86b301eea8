package upstream

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// modified is the time of every file in every layer.
var modified = time.Date(2026, time.August, 27, 0, 0, 0, 0, time.UTC)

const (
	// largestFile is the most that one file may have in a layer; files are read whole.
	largestFile = 32 << 20
	// expansion bounds the content of a layer, as a multiple of its compressed size.
	expansion = 4
)

// sourceFile is a file or link of this machine that may go into a layer.
type sourceFile struct {
	name string // in the layer
	path string // on this machine
	mode fs.FileMode
	size int64
}

// sources lists this machine's files in order of their names, by platform: whole folders
// go to one platform or the other, so that their layers differ as real ones do.
func sources(ctx context.Context) (map[string][]sourceFile, error) {
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("ask go for GOROOT: %w", err)
	}
	root := strings.TrimSpace(string(goroot))
	byArch := map[string][]sourceFile{}
	for _, tree := range []struct{ path, name string }{
		{"/usr/bin", "usr/bin"},
		{"/usr/lib", "usr/lib"},
		{filepath.Join(root, "pkg"), "usr/local/go/pkg"},
		{filepath.Join(root, "src"), "usr/local/go/src"},
		{"/usr/share", "usr/share"},
	} {
		err := filepath.WalkDir(tree.path, func(p string, d fs.DirEntry, err error) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				return nil // not readable by this user, or gone: there are others
			}
			info, err := d.Info()
			if err != nil || !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeSymlink {
				return nil
			}
			folder := fnv.New32a()
			_, _ = io.WriteString(folder, path.Dir(p)) // cannot fail
			arch := arches[folder.Sum32()>>8%uint32(len(arches))]
			byArch[arch] = append(byArch[arch], sourceFile{
				name: tree.name + strings.TrimPrefix(p, tree.path), path: p,
				mode: info.Mode(), size: info.Size(),
			})
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", tree.path, err)
		}
	}
	return byArch, nil
}

// layer is a layer in the registry's storage.
type layer struct {
	blob   blob
	diffID digest.Digest
	zstd   bool
}

type layerKey struct{ name, arch string }

// makeLayers makes every layer of the images, several at once.
func (g *generator) makeLayers(ctx context.Context, store storage, images []imageSpec) (map[layerKey]layer, error) {
	files, err := sources(ctx)
	if err != nil {
		return nil, err
	}
	type job struct {
		layerKey
		spec layerSpec
	}
	var jobs []job
	for _, image := range images {
		for _, spec := range image.Layers {
			for _, arch := range image.arches() {
				j := job{layerKey{spec.Name, arch}, spec}
				if !slices.Contains(jobs, j) {
					jobs = append(jobs, j)
				}
			}
		}
	}
	// The big ones first, or the last of them keeps one core busy alone.
	slices.SortStableFunc(jobs, func(a, b job) int { return cmp.Compare(b.spec.Size, a.spec.Size) })

	made := make([]layer, len(jobs))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	for n, j := range jobs {
		group.Go(func() (err error) {
			made[n], err = g.makeLayer(ctx, store, j.spec, j.arch, files[j.arch])
			if err != nil {
				return fmt.Errorf("make layer %s for %s: %w", j.name, j.arch, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	layers := map[layerKey]layer{}
	for n, j := range jobs {
		layers[j.layerKey] = made[n]
	}
	return layers, nil
}

func (g *generator) makeLayer(ctx context.Context, store storage, spec layerSpec, arch string, files []sourceFile) (layer, error) {
	target := g.size.bytes(spec.Size)
	content := sha256.New()
	b, err := store.create(func(w io.Writer) error {
		out := &countingWriter{w: w}
		packer, err := newPacker(out, spec.Zstd)
		if err != nil {
			return err
		}
		if spec.exact(arch) {
			err = g.writeExact(io.MultiWriter(packer, content), spec)
		} else {
			err = writeTree(ctx, io.MultiWriter(packer, content), files, spec.Name+"/"+arch, target,
				func(written int64) bool { return out.n >= target || written >= expansion*target })
		}
		return errors.Join(err, packer.Close())
	})
	if err != nil {
		return layer{}, err
	}
	g.logf("made layer %s for linux/%s, %d kB", spec.Name, arch, b.Size/1000)
	return layer{blob: b, diffID: digest.NewDigest(digest.SHA256, content), zstd: spec.Zstd}, nil
}

func newPacker(w io.Writer, useZstd bool) (io.WriteCloser, error) {
	if useZstd {
		// With more than one encoder the output depends on timing.
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	}
	return gzip.NewWriterLevel(w, gzip.DefaultCompression)
}

// writeTree writes a tar of files, from a place in their order that seed decides, until
// enough says so. Files that would be most of the layer by themselves are left out.
func writeTree(ctx context.Context, w io.Writer, files []sourceFile, seed string, target int64, enough func(written int64) bool) error {
	if len(files) == 0 {
		return errors.New("this machine has no files to make layers from")
	}
	hash := fnv.New64a()
	_, _ = io.WriteString(hash, seed) // cannot fail
	start := int(hash.Sum64() >> 1 % uint64(len(files)))

	counted := &countingWriter{w: w}
	tree := &treeWriter{tar: tar.NewWriter(counted), dirs: map[string]bool{}}
	largest := min(max(target, 64<<10), largestFile)
	for round := 0; !enough(counted.n); round++ {
		before := counted.n
		for n := 0; n < len(files) && !enough(counted.n); n++ {
			if err := ctx.Err(); err != nil {
				return err
			}
			f := files[(start+n)%len(files)]
			if f.size > largest {
				continue
			}
			if round > 0 { // a small machine: the same files again, elsewhere
				f.name = fmt.Sprintf("opt/%d/%s", round, f.name)
			}
			if err := tree.add(f); err != nil {
				return err
			}
		}
		if counted.n == before {
			return errors.New("this machine has no readable files to make layers from")
		}
	}
	return tree.tar.Close()
}

// writeExact writes a tar of one file and the links to it.
func (g *generator) writeExact(w io.Writer, spec layerSpec) error {
	content := []byte(spec.Text)
	if spec.Program != "" {
		var err error
		if content, err = os.ReadFile(g.programs[spec.Program]); err != nil {
			return err
		}
	}
	tree := &treeWriter{tar: tar.NewWriter(w), dirs: map[string]bool{}}
	for n, name := range spec.paths() {
		header := &tar.Header{Format: tar.FormatPAX, Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content)), ModTime: modified}
		if n > 0 {
			header.Typeflag, header.Size, header.Mode = tar.TypeSymlink, 0, 0o777
			header.Linkname = "/" + spec.paths()[0]
			content = nil
		}
		if err := errors.Join(tree.parents(path.Dir(name)), tree.tar.WriteHeader(header)); err != nil {
			return err
		}
		if _, err := tree.tar.Write(content); err != nil {
			return err
		}
	}
	return tree.tar.Close()
}

type treeWriter struct {
	tar  *tar.Writer
	dirs map[string]bool
}

// add writes a file or link; one that cannot be read is left out.
func (t *treeWriter) add(f sourceFile) error {
	header := &tar.Header{
		Format: tar.FormatPAX, Name: f.name, Mode: int64(f.mode.Perm()), ModTime: modified,
	}
	var data []byte
	var err error
	if f.mode.Type() == fs.ModeSymlink {
		header.Typeflag = tar.TypeSymlink
		header.Linkname, err = os.Readlink(f.path)
	} else {
		header.Typeflag = tar.TypeReg
		data, err = os.ReadFile(f.path)
		header.Size = int64(len(data))
	}
	if err != nil || int64(len(data)) > largestFile {
		return nil
	}
	if err := t.parents(path.Dir(f.name)); err != nil {
		return err
	}
	if err := t.tar.WriteHeader(header); err != nil {
		return err
	}
	_, err = t.tar.Write(data)
	return err
}

// parents writes the folders that lead to a file, each once.
func (t *treeWriter) parents(dir string) error {
	if dir == "." || t.dirs[dir] {
		return nil
	}
	if err := t.parents(path.Dir(dir)); err != nil {
		return err
	}
	t.dirs[dir] = true
	return t.tar.WriteHeader(&tar.Header{
		Format: tar.FormatPAX, Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: modified,
	})
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
