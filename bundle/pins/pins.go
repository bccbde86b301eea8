// Package pins fills in the pins that a lock leaves open: it asks registries what tags stand
// for, downloads files and archives to hash them, and resolves OS packages.
package pins

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/archive"
	"github.com/liteboxd/boxlift/bundle/download"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ospackages"
	"github.com/liteboxd/boxlift/bundle/pieces"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/parallel"
	"github.com/liteboxd/boxlift/internal/progress"
)

// Options say how pins are found. Document and Source are required.
type Options struct {
	Document *lock.Document
	Source   *source.Client
	// Elsewhere is another lock of which the pins of images hold here too; nil: none is.
	Elsewhere *lock.Lock
	// CheckPinned looks at images that are pinned as well, for whether they are published for
	// all platforms: a lock does not say what an image was pinned for. That takes the index of
	// each from its registry. What no registry can say is a message and no error.
	CheckPinned bool
	// Parallelism bounds the requests under way; 0 means 6.
	Parallelism int
	// Reporter is told of the work; nil discards it.
	Reporter progress.Reporter
}

// Fill fills the pins that a lock lacks: it asks registries what tags stand for, and
// downloads files and archives to hash them, once however many entries list the same
// thing. Pins that are there stay, and one that a tag has in another component holds for it
// everywhere, wherever upstream has moved the tag since. It reports all entries that it could not resolve; those
// that it could are pinned all the same. An image that lacks a platform of its component is
// an error that names both, whether it is in a registry or in archives.
func Fill(ctx context.Context, o Options) error {
	if o.Parallelism == 0 {
		o.Parallelism = 6
	}
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	r := resolver{options: o, registry: &onceRegistry{Registry: o.Source},
		packages: &ospackages.Finder{Source: o.Source, Reporter: o.Reporter}}
	l := o.Document.Lock()
	for _, c := range l.Components {
		platforms := c.PlatformsIn(l)
		for i, f := range c.Files {
			if (f.SHA256 == "" || f.Size == 0) && format.Wanted(f.Platform, platforms) {
				r.add(format.Label(c.Name, f.Name, f.Platform), f.URL+" "+f.SHA256,
					r.file(f.URL, f.SHA256, f.Name == bundle.ManifestsFile),
					func(pin found) error {
						return o.Document.SetFilePin(c.Name, i, pin.Digest.Encoded(), pin.Size)
					})
			}
		}
		for i, chart := range c.Charts {
			if chart.SHA256 == "" || chart.Size == 0 {
				r.add(format.Label(c.Name, chart.Name, ""), chart.URL+" "+chart.SHA256,
					r.file(chart.URL, chart.SHA256, false),
					func(pin found) error {
						return o.Document.SetChartPin(c.Name, i, pin.Digest.Encoded(), pin.Size)
					})
			}
		}
		for i, image := range c.Images {
			switch {
			case image.Ref != "" && image.Digest == "":
				r.add(format.Label(c.Name, image.Ref, ""), fmt.Sprint(image.Ref, platforms),
					r.image(image.Ref, r.pinned(image.Ref), platforms), func(pin found) error {
						return o.Document.SetImageDigest(c.Name, i, pin.Digest)
					})
			case image.Ref != "" && image.Digest != "" && o.CheckPinned:
				key := fmt.Sprint(image.Ref, "@", image.Digest, platforms)
				r.add(format.Label(c.Name, image.Ref, ""), key, r.published(image, platforms),
					func(found) error { return nil })
			case image.Archive != "" && (image.SHA256 == "" || image.Size == 0 || image.Contents == nil) &&
				format.Wanted(image.Platform, platforms):
				key := fmt.Sprint(image.Archive, " ", image.Platform, " ", image.SHA256)
				r.add(format.Label(c.Name, source.BaseName(image.Archive), image.Platform), key, r.archive(image),
					func(pin found) error {
						return o.Document.SetArchivePin(c.Name, i, pin.Digest.Encoded(), pin.Size, pin.contents)
					})
			}
		}
		for i, s := range c.Packages {
			if s.Contents == nil && format.Wanted(s.Platform, platforms) {
				r.add(format.Label(c.Name, "packages of "+s.Release(), s.Platform), fmt.Sprintf("packages %+v", s.Asked()),
					r.osPackages(s), func(pin found) error {
						return o.Document.SetPackages(c.Name, i, pin.packages)
					})
			}
		}
	}
	err := r.run(ctx)
	return errors.Join(err, plan.CheckArchives(o.Document.Lock()))
}

// resolver looks pins up in parallel and writes them one after another, in the order of
// the lock.
type resolver struct {
	options  Options
	registry *onceRegistry
	packages *ospackages.Finder
	work     []lookup
	silent   sync.Map // hosts of pinned images that gave no answer
}

// pinned is what a ref that an entry leaves open is pinned to elsewhere; "" for nothing.
func (r *resolver) pinned(ref string) digest.Digest {
	if d := r.options.Document.Lock().Digest(ref); d != "" || r.options.Elsewhere == nil {
		return d
	}
	return r.options.Elsewhere.Digest(ref)
}

// lookup finds a pin for one entry or several, each of which has a function that writes
// it into the document.
type lookup struct {
	name string
	key  string // what is fetched and what for: entries with the same key share the lookup
	find finder
	pin  []func(found) error
}

type finder func(ctx context.Context, name string) (found, error)

// found is what a pin is made of.
type found struct {
	ocispec.Descriptor
	contents *lock.Contents   // of archives
	packages []lock.OSPackage // of an operating system
}

func (r *resolver) add(name, key string, find finder, pin func(found) error) {
	for i := range r.work {
		if r.work[i].key == key {
			r.work[i].pin = append(r.work[i].pin, pin)
			return
		}
	}
	r.work = append(r.work, lookup{name, key, find, []func(found) error{pin}})
}

func (r *resolver) run(ctx context.Context) error {
	pins := make([]*found, len(r.work))
	findErr := parallel.ForEach(ctx, r.options.Parallelism, len(r.work), func(ctx context.Context, i int) error {
		w := r.work[i]
		pin, err := w.find(ctx, w.name)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		pins[i] = &pin
		return nil
	})
	errs := []error{findErr}
	for i, w := range r.work {
		if pins[i] == nil {
			continue
		}
		for _, pin := range w.pin {
			if err := pin(*pins[i]); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", w.name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// download passes a file to read and returns its digest and size. A pin that is there
// must agree. When the line breaks for good, or what came in several answers is not what is
// pinned, read is called again with the file from its start.
func (r *resolver) download(
	ctx context.Context, name, url, pinned string, read func(io.Reader) error,
) (d ocispec.Descriptor, err error) {
	err = download.Again(ctx, r.options.Reporter, name, func() error {
		d, err = r.downloadOnce(ctx, name, url, pinned, read)
		return err
	})
	return d, err
}

func (r *resolver) downloadOnce(
	ctx context.Context, name, url, pinned string, read func(io.Reader) error,
) (d ocispec.Descriptor, err error) {
	stream, err := r.open(ctx, url, pinned)
	if err != nil {
		return d, err
	}
	defer stream.Close() //nolint:errcheck // it was read to its end
	task := r.options.Reporter.Task("hash "+name, max(stream.Size, 0))
	defer func() { task.Done(err) }()
	h := sha256.New()
	counted := &countingReader{reader: io.TeeReader(download.Metered(stream, download.NewMeter(task)), h)}
	if err = read(pieces.Until(ctx, counted)); err == nil {
		d = ocispec.Descriptor{Digest: digest.NewDigest(digest.SHA256, h), Size: counted.count}
		err = checkPin(pinned, d)
	}
	if err != nil && pinned != "" && stream.Spliced() && !errors.As(err, new(*download.LineError)) {
		err = fmt.Errorf("it came in pieces that may not fit together: %w; %w", err, source.ErrAnew)
	}
	return d, err
}

// open begins a download. The pin of one that has it proves that pieces belong together.
func (r *resolver) open(ctx context.Context, url, pinned string) (*source.Stream, error) {
	if pinned != "" {
		return r.options.Source.OpenPinned(ctx, url, 0)
	}
	return r.options.Source.Open(ctx, url)
}

// checkPin refuses what is not pinned, if something is.
func checkPin(pinned string, got ocispec.Descriptor) error {
	if pinned == "" || pinned == got.Digest.Encoded() {
		return nil
	}
	want := ocispec.Descriptor{Digest: digest.NewDigestFromEncoded(digest.SHA256, pinned), Size: got.Size}
	return &download.DiffersError{Want: want, Got: got.Digest, Size: got.Size}
}

type countingReader struct {
	reader io.Reader
	count  int64
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.reader.Read(p)
	r.count += int64(n)
	return n, err
}

// file looks up a file or a chart. Only manifests may be a folder of this host.
func (r *resolver) file(url, pinned string, isManifests bool) finder {
	return func(ctx context.Context, name string) (found, error) {
		if !isManifests && r.options.Source.IsFolder(url) {
			return found{}, fault.WithHint(fault.Input.Errorf("%s is a folder, and only a file %s or an archive of "+
				"images may be one", url, bundle.ManifestsFile), "name a file; `helm package --dependency-update FOLDER` "+
				"makes one of a chart")
		}
		pin, err := r.download(ctx, name, url, pinned, func(content io.Reader) error {
			_, err := io.Copy(io.Discard, content)
			return err
		})
		return found{Descriptor: pin}, err
	}
}

// image looks up what a tag stands for, if it is published for all platforms. Where the tag is
// pinned already, only the platforms are looked at.
func (r *resolver) image(ref string, pinned digest.Digest, platforms []lock.Platform) finder {
	return func(ctx context.Context, _ string) (found, error) {
		d := ocispec.Descriptor{Digest: pinned}
		if pinned == "" {
			var err error
			if d, err = r.options.Source.Resolve(ctx, ref); err != nil {
				return found{}, err
			}
		}
		err := plan.CheckImage(ctx, r.registry, lock.Image{Ref: ref, Digest: d.Digest}, platforms)
		if err != nil && pinned != "" {
			err = fmt.Errorf("the lock has it in another component, as %s: %w", pinned, err)
		}
		return found{Descriptor: d}, err
	}
}

// published looks at whether an image that is pinned is published for all platforms, where
// its registry can say so.
func (r *resolver) published(image lock.Image, platforms []lock.Platform) finder {
	return func(ctx context.Context, name string) (found, error) {
		repository, err := source.Repository(image.Ref)
		if err != nil {
			return found{}, err
		}
		host, _, _ := strings.Cut(repository, "/")
		if _, ok := r.silent.Load(host); ok {
			err = &source.Error{URL: "https://" + host, Err: errors.New("it did not answer before")}
		} else {
			err = r.checkPublished(ctx, repository, image.Digest, platforms)
		}
		var unknown *source.Error
		if ctx.Err() != nil || !errors.As(err, &unknown) {
			return found{}, err
		}
		if unknown.Status == 0 {
			r.silent.Store(host, nil)
		}
		r.options.Reporter.Message(
			fmt.Sprintf("%s: it is pinned, and whether it is published for %v is not known: %v", name, platforms, err))
		return found{}, nil
	}
}

func (r *resolver) checkPublished(
	ctx context.Context, repository string, pinned digest.Digest, platforms []lock.Platform,
) error {
	content, mediaType, err := r.registry.Manifest(ctx, repository, pinned)
	if err != nil {
		return err
	}
	root := format.DescriptorOf(mediaType, content)
	return format.CheckPlatforms(root, platforms, func(d ocispec.Descriptor) ([]byte, error) {
		if d.Digest == root.Digest {
			return content, nil
		}
		return r.registry.Config(ctx, repository, d.Digest)
	})
}

// onceRegistry asks for every manifest and config once, however many entries need it.
type onceRegistry struct {
	plan.Registry
	mu      sync.Mutex
	answers map[string]func() (registryAnswer, error)
}

type registryAnswer struct {
	content   []byte
	mediaType string
}

// Manifest asks once.
func (r *onceRegistry) Manifest(
	ctx context.Context, repository string, d digest.Digest,
) (content []byte, mediaType string, err error) {
	a, err := r.once(repository+"@"+d.String(), func() (a registryAnswer, err error) {
		a.content, a.mediaType, err = r.Registry.Manifest(ctx, repository, d)
		return a, err
	})
	return a.content, a.mediaType, err
}

// Config asks once.
func (r *onceRegistry) Config(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	a, err := r.once(repository+" "+d.String(), func() (a registryAnswer, err error) {
		a.content, err = r.Registry.Config(ctx, repository, d)
		return a, err
	})
	return a.content, err
}

func (r *onceRegistry) once(key string, ask func() (registryAnswer, error)) (registryAnswer, error) {
	r.mu.Lock()
	answer, ok := r.answers[key]
	if !ok {
		if r.answers == nil {
			r.answers = make(map[string]func() (registryAnswer, error))
		}
		answer = sync.OnceValues(ask)
		r.answers[key] = answer
	}
	r.mu.Unlock()
	return answer()
}

// archive downloads an image archive and lists what it holds.
func (r *resolver) archive(image lock.Image) finder {
	return func(ctx context.Context, name string) (found, error) {
		var listing *archive.Listing
		pin, err := r.download(ctx, name, image.Archive, image.SHA256, func(content io.Reader) error {
			listing = archive.NewListing()
			return listing.Take(content)
		})
		if err != nil {
			return found{}, err
		}
		contents, err := listing.Contents(image.Platform)
		return found{Descriptor: pin, contents: contents}, err
	}
}

// osPackages looks up which packages an entry stands for.
func (r *resolver) osPackages(s lock.OSPackages) finder {
	return func(ctx context.Context, _ string) (found, error) {
		packages, err := r.packages.Find(ctx, s)
		return found{packages: packages}, err
	}
}
