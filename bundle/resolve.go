package bundle

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pieces"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/internal/parallel"
	"github.com/liteboxd/boxlift/internal/progress"
)

// maxArchiveJSON bounds the manifests and configs of an image archive that are held in
// memory while it is read.
const maxArchiveJSON = 64 << 20

// ResolveOptions say how pins are found. Document and Source are required.
type ResolveOptions struct {
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

// Resolve fills the pins that a lock lacks: it asks registries what tags stand for, and
// downloads files and archives to hash them, once however many entries list the same
// thing. Pins that are there stay, and one that a tag has in another component holds for it
// everywhere, wherever upstream has moved the tag since. It reports all entries that it could not resolve; those
// that it could are pinned all the same. An image that lacks a platform of its component is
// an error that names both, whether it is in a registry or in archives.
func Resolve(ctx context.Context, o ResolveOptions) error {
	if o.Parallelism == 0 {
		o.Parallelism = 6
	}
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	r := resolver{ResolveOptions: o, registry: &onceRegistry{imageRegistry: o.Source}}
	l := o.Document.Lock()
	for _, c := range l.Components {
		platforms := c.PlatformsIn(l)
		for i, f := range c.Files {
			if (f.SHA256 == "" || f.Size == 0) && wanted(f.Platform, platforms) {
				r.add(label(c.Name, f.Name, f.Platform), f.URL+" "+f.SHA256, r.file(f.URL, f.SHA256), func(pin found) error {
					return o.Document.SetFilePin(c.Name, i, pin.Digest.Encoded(), pin.Size)
				})
			}
		}
		for i, chart := range c.Charts {
			if chart.SHA256 == "" || chart.Size == 0 {
				r.add(label(c.Name, chart.Name, ""), chart.URL+" "+chart.SHA256, r.file(chart.URL, chart.SHA256), func(pin found) error {
					return o.Document.SetChartPin(c.Name, i, pin.Digest.Encoded(), pin.Size)
				})
			}
		}
		for i, image := range c.Images {
			switch {
			case image.Ref != "" && image.Digest == "":
				r.add(label(c.Name, image.Ref, ""), fmt.Sprint(image.Ref, platforms), r.image(image.Ref, r.pinned(image.Ref), platforms), func(pin found) error {
					return o.Document.SetImageDigest(c.Name, i, pin.Digest)
				})
			case image.Ref != "" && image.Digest != "" && o.CheckPinned:
				key := fmt.Sprint(image.Ref, "@", image.Digest, platforms)
				r.add(label(c.Name, image.Ref, ""), key, r.published(image, platforms), func(found) error { return nil })
			case image.Archive != "" && (image.SHA256 == "" || image.Size == 0 || image.Contents == nil) && wanted(image.Platform, platforms):
				key := fmt.Sprint(image.Archive, " ", image.Platform, " ", image.SHA256)
				r.add(label(c.Name, baseName(image.Archive), image.Platform), key, r.archive(image), func(pin found) error {
					return o.Document.SetArchivePin(c.Name, i, pin.Digest.Encoded(), pin.Size, pin.contents)
				})
			}
		}
	}
	err := r.run(ctx)
	return errors.Join(err, archivePlatforms(o.Document.Lock()))
}

// archivePlatforms finds images that archives do not have for all platforms, which the lock
// alone tells. Of a component with something that is not pinned yet, it does not.
func archivePlatforms(l *lock.Lock) error {
	var errs []error
	for _, c := range l.Components {
		roots, err := lockedRoots(c, c.PlatformsIn(l))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, ref := range roots.refs {
			if _, _, err := roots.entry(ref, c.PlatformsIn(l)); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", label(c.Name, ref, ""), err))
			}
		}
	}
	return errors.Join(errs...)
}

// lockedRoots are the images of a component, if all are pinned, or none. Of those in
// registries, which are asked, only the digest is known.
func lockedRoots(c lock.Component, platforms []lock.Platform) (*imageRoots, error) {
	roots := newImageRoots()
	for _, image := range c.Images {
		switch {
		case image.Ref != "" && image.Digest == "", image.Archive != "" && image.Contents == nil && wanted(image.Platform, platforms):
			return newImageRoots(), nil
		case image.Ref != "":
			if err := roots.add(image.Ref, "", ocispec.Descriptor{Digest: image.Digest}); err != nil {
				return nil, fmt.Errorf("%s: %w", label(c.Name, image.Ref, ""), err)
			}
		case wanted(image.Platform, platforms):
			if err := roots.addArchive(c, image); err != nil {
				return nil, err
			}
		}
	}
	return roots, nil
}

// wanted reports whether something for a platform belongs into a bundle for platforms.
func wanted(p lock.Platform, platforms []lock.Platform) bool {
	return p == "" || slices.ContainsFunc(platforms, p.Match)
}

// resolver looks pins up in parallel and writes them one after another, in the order of
// the lock.
type resolver struct {
	ResolveOptions
	registry *onceRegistry
	work     []lookup
	silent   sync.Map // hosts of pinned images that gave no answer
}

// pinned is what a ref that an entry leaves open is pinned to elsewhere; "" for nothing.
func (r *resolver) pinned(ref string) digest.Digest {
	if d := r.Document.Lock().Digest(ref); d != "" || r.Elsewhere == nil {
		return d
	}
	return r.Elsewhere.Digest(ref)
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
	contents *lock.Contents // of archives
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
	findErr := parallel.ForEach(ctx, r.Parallelism, len(r.work), func(ctx context.Context, i int) error {
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
func (r *resolver) download(ctx context.Context, name, url, pinned string, read func(io.Reader) error) (d ocispec.Descriptor, err error) {
	err = again(ctx, r.Reporter, name, func() error {
		d, err = r.downloadOnce(ctx, name, url, pinned, read)
		return err
	})
	return d, err
}

func (r *resolver) downloadOnce(ctx context.Context, name, url, pinned string, read func(io.Reader) error) (d ocispec.Descriptor, err error) {
	stream, err := r.open(ctx, url, pinned)
	if err != nil {
		return d, err
	}
	defer stream.Close() //nolint:errcheck // it was read to its end
	task := r.Reporter.Task("hash "+name, max(stream.Size, 0))
	defer func() { task.Done(err) }()
	h := sha256.New()
	counted := &countingReader{reader: io.TeeReader(metered(stream, newMeter(task)), h)}
	if err = read(pieces.Until(ctx, counted)); err == nil {
		d = ocispec.Descriptor{Digest: digest.NewDigest(digest.SHA256, h), Size: counted.count}
		err = checkPin(pinned, d)
	}
	if err != nil && pinned != "" && stream.Spliced() && !errors.As(err, new(*streamError)) {
		err = fmt.Errorf("it came in pieces that may not fit together: %w; %w", err, source.ErrAnew)
	}
	return d, err
}

// open begins a download. The pin of one that has it proves that pieces belong together.
func (r *resolver) open(ctx context.Context, url, pinned string) (*source.Stream, error) {
	if pinned != "" {
		return r.Source.OpenPinned(ctx, url, 0)
	}
	return r.Source.Open(ctx, url)
}

// checkPin refuses what is not pinned, if something is.
func checkPin(pinned string, got ocispec.Descriptor) error {
	if pinned == "" || pinned == got.Digest.Encoded() {
		return nil
	}
	want := ocispec.Descriptor{Digest: digest.NewDigestFromEncoded(digest.SHA256, pinned), Size: got.Size}
	return &differsError{want: want, got: got.Digest, size: got.Size}
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

// file looks up a file or a chart.
func (r *resolver) file(url, pinned string) finder {
	return func(ctx context.Context, name string) (found, error) {
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
			if d, err = r.Source.Resolve(ctx, ref); err != nil {
				return found{}, err
			}
		}
		err := checkImage(ctx, r.registry, lock.Image{Ref: ref, Digest: d.Digest}, platforms)
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
		r.Reporter.Message(fmt.Sprintf("%s: it is pinned, and whether it is published for %v is not known: %v", name, platforms, err))
		return found{}, nil
	}
}

func (r *resolver) checkPublished(ctx context.Context, repository string, pinned digest.Digest, platforms []lock.Platform) error {
	content, mediaType, err := r.registry.Manifest(ctx, repository, pinned)
	if err != nil {
		return err
	}
	root := descriptorOf(mediaType, content)
	return checkPlatforms(root, platforms, func(d ocispec.Descriptor) ([]byte, error) {
		if d.Digest == root.Digest {
			return content, nil
		}
		return r.registry.Config(ctx, repository, d.Digest)
	})
}

// onceRegistry asks for every manifest and config once, however many entries need it.
type onceRegistry struct {
	imageRegistry
	mu      sync.Mutex
	answers map[string]func() (registryAnswer, error)
}

type registryAnswer struct {
	content   []byte
	mediaType string
}

func (r *onceRegistry) Manifest(ctx context.Context, repository string, d digest.Digest) (content []byte, mediaType string, err error) {
	a, err := r.once(repository+"@"+d.String(), func() (a registryAnswer, err error) {
		a.content, a.mediaType, err = r.imageRegistry.Manifest(ctx, repository, d)
		return a, err
	})
	return a.content, a.mediaType, err
}

func (r *onceRegistry) Config(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	a, err := r.once(repository+" "+d.String(), func() (a registryAnswer, err error) {
		a.content, err = r.imageRegistry.Config(ctx, repository, d)
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
		var listing *archiveListing
		pin, err := r.download(ctx, name, image.Archive, image.SHA256, func(content io.Reader) error {
			listing = newListing()
			return listing.take(content)
		})
		if err != nil {
			return found{}, err
		}
		contents, err := listing.contents(image.Platform)
		return found{pin, contents}, err
	}
}

// archiveListing gathers what an image archive holds: an OCI layout, or docker's own form.
type archiveListing struct {
	index    []byte
	members  map[digest.Digest]archiveMember
	jsonSize int64
	docker   dockerListing
}

func newListing() *archiveListing {
	return &archiveListing{members: make(map[digest.Digest]archiveMember)}
}

// take reads an archive. It is to be called once.
func (a *archiveListing) take(archive io.Reader) error {
	return readArchive(archive, a.add, a.docker.link)
}

type archiveMember struct {
	path string
	size int64
	// content is kept where it may be JSON: small members that begin with a brace.
	content []byte
}

func (a *archiveListing) add(name string, size int64, content io.Reader) error {
	if name == ocitar.IndexFile {
		var err error
		a.index, err = readBounded(content, size, maxIndexSize)
		return err
	}
	named := ocitar.Member{Name: name}.Digest()
	if named == "" || named.Validate() != nil {
		return a.docker.add(name, size, content)
	}
	member := archiveMember{path: name, size: size}
	h := sha256.New()
	if size <= maxConfigSize {
		all, err := readBounded(content, size, maxConfigSize)
		if err != nil {
			return err
		}
		h.Write(all)
		if len(all) > 0 && all[0] == '{' {
			member.content = all
			if a.jsonSize += size; a.jsonSize > maxArchiveJSON {
				return fmt.Errorf("read the archive: its manifests have more than %d bytes", maxArchiveJSON)
			}
		}
	} else if _, err := io.Copy(h, content); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if got := digest.NewDigest(digest.SHA256, h); got != named {
		return fmt.Errorf("the archive is damaged: %s holds bytes with the digest %s", name, got)
	}
	a.members[named] = member
	return nil
}

func readBounded(r io.Reader, size, limit int64) ([]byte, error) {
	if size > limit {
		return nil, fmt.Errorf("read the archive: a manifest of %d bytes is larger than the %d that are allowed", size, limit)
	}
	content := make([]byte, size)
	_, err := io.ReadFull(r, content)
	return content, err
}

func (a *archiveListing) read(d ocispec.Descriptor) ([]byte, error) {
	m, ok := a.members[d.Digest]
	if !ok {
		return nil, fmt.Errorf("%w in the archive: %s", errAbsent, d.Digest)
	}
	if m.content == nil {
		return nil, fmt.Errorf("%s in the archive is not JSON", m.path)
	}
	return m.content, nil
}

// contents follows the archive's named images down to the blobs of one platform.
func (a *archiveListing) contents(platform lock.Platform) (*lock.Contents, error) {
	if a.index == nil {
		var err error
		if a.index, err = a.docker.asLayout(a.members); err != nil {
			return nil, err
		}
	}
	if a.index == nil {
		return nil, fmt.Errorf("the archive has neither %s nor %s: it is not an image archive, as `docker save`, `ctr images export` and `skopeo copy` write them", ocitar.IndexFile, dockerIndex)
	}
	var index ocispec.Index
	if err := boundedjson.Unmarshal(a.index, &index, maxIndexValues); err != nil {
		return nil, fmt.Errorf("the archive's %s: %w", ocitar.IndexFile, err)
	}
	contents := &lock.Contents{}
	listed := make(map[digest.Digest]bool)
	list := func(d ocispec.Descriptor) error {
		m, ok := a.members[d.Digest]
		if !ok {
			return fmt.Errorf("blob %s is missing in the archive", d.Digest)
		}
		if m.size != d.Size {
			return fmt.Errorf("blob %s has %d bytes, its descriptor says %d", d.Digest, m.size, d.Size)
		}
		if !listed[d.Digest] {
			listed[d.Digest] = true
			contents.Blobs = append(contents.Blobs, lock.ArchiveBlob{Path: m.path, Digest: d.Digest, Size: d.Size, MediaType: d.MediaType})
		}
		return nil
	}
	for _, root := range index.Manifests {
		name := root.Annotations[AnnotationImageName]
		if name == "" {
			name = root.Annotations[ocispec.AnnotationRefName]
		}
		if name == "" {
			return nil, fmt.Errorf("the archive holds an image without a name: %s", root.Digest)
		}
		if err := checkDescriptor(root, maxManifestSize); err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		images, err := imagePlatforms(root, []lock.Platform{platform}, a.read)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		for _, d := range append([]ocispec.Descriptor{root}, images[0].blobs()...) {
			if err := list(d); err != nil {
				return nil, fmt.Errorf("image %s: %w", name, err)
			}
		}
		contents.Images = append(contents.Images, lock.ArchiveImage{Ref: name, Digest: root.Digest, Size: root.Size, MediaType: root.MediaType})
	}
	if len(contents.Images) == 0 {
		return nil, errors.New("the archive holds no images")
	}
	return contents, nil
}
