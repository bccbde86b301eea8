// Package sbom lists everything in a bundle as a CycloneDX 1.6 document
// (https://cyclonedx.org/docs/1.6/json/): components, files and images by digest, and the
// packages inside images and programs, with package URLs and licences where they are known.
//
// The document depends on the bundle and the version of boxlift alone: it has no time, and
// its serial number comes from the bundle digest. Every layer is read once, however many
// images have it, and proven against its digest on the way.
//
// Its dependencies lead from the bundle to its components, from them to files and images,
// and on to the packages in these. What could not be read is said by a composition that
// calls the image incomplete, and by the image's properties.
package sbom

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/packages"
	"github.com/liteboxd/boxlift/internal/progress"
)

// Options say how a document is made. The zero value is fit for use.
type Options struct {
	// Version is that of the boxlift that makes the document; it is part of it.
	Version string
	// Cache keeps what was found in layers and files for the next time.
	Cache packages.Cache
	// Reporter is told of the work; nil discards it.
	Reporter progress.Reporter
}

// maxReaders bounds how many layers are read at a time, and with that the memory.
const maxReaders = 4

// maxConfig and maxConfigValues bound an image's configuration, in bytes and in values of JSON, as
// for all readers of bundles.
const (
	maxConfig       = 8 << 20
	maxConfigValues = 1 << 16
)

// Make reads all layers and files of a bundle. Errors wrap [bundle.ErrInvalid] when the
// bundle is damaged.
func Make(ctx context.Context, r *bundle.Reader, o Options) (*cdx.BOM, error) {
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	contents, err := r.Contents()
	if err != nil {
		return nil, err
	}
	l, _, err := r.Lock()
	if err != nil {
		return nil, err
	}
	found, err := examine(ctx, r, contents, o)
	if err != nil {
		return nil, fmt.Errorf("list the software in %s: %w", r.Path(), err)
	}
	d := newDocument(r, o.Version)
	for _, c := range contents.Describe() {
		d.addComponent(c)
	}
	urls := downloads(l)
	for _, f := range contents.Files {
		if f.IsOSPackage() {
			d.addOSPackage(f, urls[f.Digest])
			continue
		}
		d.addFile(f, urls[f.Digest], found.files[f.Digest])
	}
	for _, image := range contents.Images {
		for _, p := range image.Platforms {
			d.addImage(image, p, found.configs[p.Config.Digest], found.image(p))
		}
	}
	return d.finish(), nil
}

// Write writes a document as JSON.
func Write(w io.Writer, bom *cdx.BOM) error {
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).Encode(bom)
}

// downloads are the addresses that files came from, by digest.
func downloads(l *lock.Lock) map[digest.Digest]string {
	urls := make(map[digest.Digest]string)
	for _, c := range l.Components {
		for _, f := range c.Files {
			urls[digest.NewDigestFromEncoded(digest.SHA256, f.SHA256)] = f.URL
		}
		for _, chart := range c.Charts {
			urls[digest.NewDigestFromEncoded(digest.SHA256, chart.SHA256)] = chart.URL
		}
		for _, s := range c.Packages {
			for _, p := range s.Contents {
				urls[digest.NewDigestFromEncoded(digest.SHA256, p.SHA256)] = p.URL
			}
		}
	}
	return urls
}

// findings are what is in the blobs of a bundle, by their digests.
type findings struct {
	layers  map[digest.Digest]*packages.Layer
	files   map[digest.Digest][]packages.Package
	configs map[digest.Digest]ocispec.Image
}

func (f *findings) image(p format.PlatformImage) *packages.Image {
	layers := make([]*packages.Layer, 0, len(p.Layers))
	for _, d := range p.Layers {
		layers = append(layers, f.layers[d.Digest])
	}
	return packages.Merge(layers)
}

// blob is one to be read.
type blob struct {
	digest  digest.Digest
	size    int64
	isLayer bool
}

// examine reads each blob once, the largest first, so that none is left with a long one
// at the end.
func examine(ctx context.Context, r *bundle.Reader, contents *bundle.Contents, o Options) (*findings, error) {
	f := &findings{
		layers:  make(map[digest.Digest]*packages.Layer),
		files:   make(map[digest.Digest][]packages.Package),
		configs: make(map[digest.Digest]ocispec.Image),
	}
	blobs, err := f.plan(r, contents, o.Cache)
	if err != nil {
		return nil, err
	}
	var total int64
	for _, b := range blobs {
		total += b.size
	}
	task := o.Reporter.Task(fmt.Sprintf("read %d layers and files", len(blobs)), total)
	err = f.readAll(ctx, r, blobs, o.Cache, task)
	task.Done(err)
	return f, err
}

// plan reads what is small and lists the blobs that the cache does not know.
func (f *findings) plan(r *bundle.Reader, contents *bundle.Contents, cache packages.Cache) ([]blob, error) {
	var blobs []blob
	for _, file := range contents.Files {
		if _, ok := f.files[file.Digest]; ok || file.IsOSPackage() {
			continue // a package says itself what it is
		}
		known, ok := cache.LoadFile(file.Digest)
		f.files[file.Digest] = known
		if !ok {
			blobs = append(blobs, blob{digest: file.Digest, size: file.Size})
		}
	}
	for _, image := range contents.Images {
		for _, p := range image.Platforms {
			if err := f.readConfig(r, p.Config); err != nil {
				return nil, fmt.Errorf("%s (%s): %w", image.Name, p.Platform, err)
			}
			for _, d := range p.Layers {
				if _, ok := f.layers[d.Digest]; ok {
					continue
				}
				known, ok := cache.Load(d.Digest)
				f.layers[d.Digest] = known
				if !ok {
					blobs = append(blobs, blob{d.Digest, d.Size, true})
				}
			}
		}
	}
	slices.SortStableFunc(blobs, func(a, b blob) int { return int(min(max(b.size-a.size, -1), 1)) })
	return blobs, nil
}

func (f *findings) readConfig(r *bundle.Reader, d ocispec.Descriptor) error {
	if _, ok := f.configs[d.Digest]; ok {
		return nil
	}
	if d.Size > maxConfig {
		return fmt.Errorf("%w: the configuration has %d bytes", bundle.ErrInvalid, d.Size)
	}
	content, err := r.Content(d.Digest, d.Size)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	var config ocispec.Image
	if err := boundedjson.Unmarshal(text, &config, maxConfigValues); err != nil {
		return fmt.Errorf("%w: configuration %s: %w", bundle.ErrInvalid, d.Digest, err)
	}
	f.configs[d.Digest] = config
	return nil
}

func (f *findings) readAll(
	ctx context.Context, r *bundle.Reader, blobs []blob, cache packages.Cache, task progress.Task,
) error {
	layers := make([]*packages.Layer, len(blobs))
	files := make([][]packages.Package, len(blobs))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(min(runtime.GOMAXPROCS(0), maxReaders))
	for i, b := range blobs {
		group.Go(func() error {
			content, err := r.Content(b.digest, b.size)
			if err != nil {
				return err
			}
			counted := &counter{content, task}
			if b.isLayer {
				if layers[i], err = packages.Scan(ctx, counted); err != nil {
					return err
				}
				return cache.Store(b.digest, layers[i])
			}
			if files[i], err = packages.ScanFile(ctx, counted); err != nil {
				return err
			}
			return cache.StoreFile(b.digest, files[i])
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, b := range blobs {
		if b.isLayer {
			f.layers[b.digest] = layers[i]
		} else {
			f.files[b.digest] = files[i]
		}
	}
	return nil
}

// counter tells a task how much was read.
type counter struct {
	r    io.Reader
	task progress.Task
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.task.Add(int64(n))
	return n, err
}
