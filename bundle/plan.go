package bundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/internal/parallel"
	"github.com/liteboxd/boxlift/internal/progress"
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
			err = fmt.Errorf("%s: %w", label(ProgramsComponent, p.Name, p.Platform), err)
		}
		return err
	})
}

// PlanOptions say what a bundle is made from. Lock, LockContent and Source are
// required.
type PlanOptions struct {
	Lock *lock.Lock
	// LockName is the lock's file name, for messages.
	LockName string
	// LockContent is the lock as it was read, byte for byte: it travels in the bundle.
	LockContent []byte
	Programs    []Program
	// Manifests is a tar of the manifests that are installed, which travels as a file of
	// the component ManifestsComponent, provided that the lock has that; nil: no such file.
	Manifests []byte
	Source    *source.Client
	// Version is that of the boxlift that builds; it is part of the bundle.
	Version string
	// Parallelism bounds the requests under way; 0 means 6.
	Parallelism int
	// Reuse are older bundles, open until Build has returned. What they hold, and what is
	// proven to be what the lock pins, is taken from them instead of from Source.
	Reuse []*Reader
	// Since makes a delta: a bundle without the blobs that the base holds. Nil makes a whole
	// bundle.
	Since *Base
	// SBOM makes the list of the software in a bundle, as CycloneDX in JSON, which becomes the
	// file SBOMFile; nil: no such file. What it makes must depend on the bundle alone, which is
	// the one without this file and reads as long as the call lasts.
	SBOM func(ctx context.Context, r *Reader) ([]byte, error)
	// AllowMovedTags accepts tags that have moved away from the digest in the lock.
	AllowMovedTags bool
	// Chart is looked into before anything large is fetched; nil: none is. With older bundles
	// to copy from, Build waits for that after it has copied, and can be called once only.
	Chart *ChartCheck
	// Reporter is told of the work; nil discards it.
	Reporter progress.Reporter
}

// ChartCheck is a condition that a chart has to meet for there to be a plan.
type ChartCheck struct {
	// Component is whose first chart it is about.
	Component string
	// Check is called with the chart's archive, which is empty when the component has none:
	// once, beside the rest of planning; not at all when an older bundle is the planned one.
	Check func(ctx context.Context, chart []byte) error
}

// Plan is a bundle of which everything is known but the large blobs: its index.json,
// and where in the file each blob belongs.
type Plan struct {
	// index is index.json, which a signature has to cover.
	index    []byte
	entries  []ocispec.Descriptor // of index
	members  []ocitar.Member      // all but the signature's
	content  map[digest.Digest][]byte
	fetches  []*fetch
	reuse    []*Reader
	parallel int
	reporter progress.Reporter
	version  string
	validity lock.Validity

	chart   *chartCheck                                          // under way; nil for none
	isDelta bool                                                 // made of the plan of a whole bundle
	since   *Base                                                // nil for a whole bundle
	sbom    func(ctx context.Context, r *Reader) ([]byte, error) // nil for no list of software
	// smallBlobs is how many of the blobs, which are the members from the third on, are of
	// the first part of the file: manifests, configs and the like.
	smallBlobs int
	// platforms are those that a blob is for, with the empty one for all.
	platforms map[digest.Digest][]lock.Platform
	// unread are manifests and configs in archives, which are not known before the archives
	// are read.
	unread map[digest.Digest]bool
}

// fetch is one download. It supplies one blob, or, when it is an archive, many.
type fetch struct {
	// label names the entry of the lock, for messages and progress.
	label string
	// size is what comes over the line, in bytes.
	size int64
	// open begins the download at an offset.
	open func(ctx context.Context, from int64) (*source.Stream, error)
	// blob is what a download supplies that is a blob itself.
	blob ocispec.Descriptor
	// archive is set for image archives instead.
	archive *archiveFetch
}

// archiveFetch says what an archive is to hold: its own sha256, and where in it the
// blobs lie.
type archiveFetch struct {
	sha256 string
	blobs  map[string]ocispec.Descriptor // by the path inside the archive
	// all has those too that come from elsewhere.
	all map[string]ocispec.Descriptor
}

// Digest returns the bundle digest: the sha256 of index.json.
func (p *Plan) Digest() digest.Digest { return digest.FromBytes(p.index) }

// maxChart bounds a chart, in bytes; Cilium's has some 230 kB.
const maxChart = 8 << 20

// fetchChart fetches the chart that there is a check for ahead of the rest.
func (p *planner) fetchChart(ctx context.Context) ([]byte, error) {
	for _, c := range p.Lock.Components {
		if c.Name != p.Chart.Component || len(c.Charts) == 0 {
			continue
		}
		locked := c.Charts[0]
		d := ocispec.Descriptor{Digest: digest.NewDigestFromEncoded(digest.SHA256, locked.SHA256), Size: locked.Size}
		if chart, ok := contentIn(p.Reuse, d.Digest, maxChart); ok {
			return chart, nil
		}
		f := &fetch{size: d.Size, blob: d, open: p.openURL(locked.URL)}
		chart, err := f.whole(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", label(c.Name, baseName(locked.URL), ""), err)
		}
		return chart, nil
	}
	return nil, nil
}

// chartCheck is a check that is under way: rendering a chart takes one core as long as planning takes the others.
type chartCheck struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed when err is what there is to say
	err    error
}

// startChart begins the check of a chart. It has to be stopped.
func (p *planner) startChart(ctx context.Context, chart []byte) *chartCheck {
	ctx, cancel := context.WithCancel(ctx)
	c := &chartCheck{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		c.err = p.Chart.Check(ctx, chart)
	}()
	return c
}

// wait returns what the check has found, once it has.
func (c *chartCheck) wait() error {
	if c == nil {
		return nil
	}
	<-c.ended
	return c.err
}

// stop ends the check, which nobody waits for any more.
func (c *chartCheck) stop() {
	if c != nil {
		c.cancel()
		<-c.ended
	}
}

// keep makes what was fetched ahead of the rest a part of the plan, so that Build does not
// fetch it again.
func (p *planner) keep(content []byte) {
	d := digest.FromBytes(content)
	if !p.have[d] {
		return
	}
	p.content[d] = content
	p.fetches = slices.DeleteFunc(p.fetches, func(f *fetch) bool { return f.archive == nil && f.blob.Digest == d })
}

// whole downloads something small.
func (f *fetch) whole(ctx context.Context) ([]byte, error) {
	if f.size > maxChart {
		return nil, fmt.Errorf("it has %d bytes, %d is the most that a chart may have", f.size, maxChart)
	}
	stream, err := f.open(ctx, 0)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(stream, f.size+1))
	if err := errors.Join(err, stream.Close()); err != nil {
		return nil, err
	}
	if got := digest.FromBytes(content); got != f.blob.Digest {
		return nil, &differsError{want: f.blob, got: got, size: int64(len(content))}
	}
	return content, nil
}

// UnpinnedError lists the entries of a lock that cannot be built because nothing says
// which bytes they stand for.
type UnpinnedError struct {
	Name    string
	Missing []lock.Missing
}

func (e *UnpinnedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d pins are missing:", e.Name, len(e.Missing))
	for _, m := range e.Missing {
		fmt.Fprintf(&b, "\n  %s:%d: %s: no %s", e.Name, m.Line, m.Entry, m.What)
	}
	return b.String()
}

// Hint says how to fill the pins.
func (e *UnpinnedError) Hint() string {
	return fmt.Sprintf("run `boxlift bundle lock -f %s` on a host with internet access to fill them in, and review the change", e.Name)
}

// CheckPins returns an [*UnpinnedError] unless every entry of the lock is pinned. It needs
// no network.
func CheckPins(name string, l *lock.Lock) error {
	if missing := l.Unpinned(); len(missing) > 0 {
		return &UnpinnedError{Name: name, Missing: missing}
	}
	return nil
}

// imageRegistry is what a plan is made from beside files: what tags stand for, and manifests and
// configs by digest, proven. [source.Client] is one.
type imageRegistry interface {
	Resolve(ctx context.Context, ref string) (ocispec.Descriptor, error)
	Manifest(ctx context.Context, repository string, d digest.Digest) (content []byte, mediaType string, err error)
	Config(ctx context.Context, repository string, d digest.Digest) ([]byte, error)
}

// NewPlan fetches the manifests of all images and lays out the bundle. It refuses a
// lock with entries that are not pinned, tags that have moved, and images that lack a
// platform; it reports all that it finds.
func NewPlan(ctx context.Context, o PlanOptions) (*Plan, error) {
	return newPlan(ctx, o, o.Source)
}

// newPlan takes manifests from a registry.
func newPlan(ctx context.Context, o PlanOptions, from imageRegistry) (*Plan, error) {
	if err := CheckPins(o.LockName, o.Lock); err != nil {
		return nil, err
	}
	if o.Parallelism == 0 {
		o.Parallelism = 6
	}
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	p := &planner{PlanOptions: o, registry: from, Plan: &Plan{
		content:  make(map[digest.Digest][]byte),
		reuse:    o.Reuse,
		parallel: o.Parallelism,
		reporter: o.Reporter,
		version:  o.Version,
		validity: o.Lock.Validity,

		since:     o.Since,
		sbom:      o.SBOM,
		platforms: make(map[digest.Digest][]lock.Platform),
		unread:    make(map[digest.Digest]bool),
	}, have: make(map[digest.Digest]bool)}
	if err := p.run(ctx); err != nil {
		return nil, err
	}
	return p.Plan, nil
}

// run does everything. The chart is checked meanwhile, and when both fail, the rest is what is said: with images that
// are not what was locked, what the chart asks for is not the point. The check may outlast the plan, which Build
// waits for before it fetches anything.
func (p *planner) run(ctx context.Context) error {
	var chart []byte
	if p.Chart != nil {
		var err error
		if chart, err = p.fetchChart(ctx); err != nil {
			return err
		}
		p.chart = p.startChart(ctx, chart)
	}
	p.oldTypes = p.readOldTypes()
	images, err := p.fetchManifests(ctx)
	if err == nil {
		err = p.layOut(ctx, images)
	}
	if err != nil {
		p.chart.stop()
		return err
	}
	p.keep(chart)
	if slices.ContainsFunc(p.Reuse, func(r *Reader) bool { return r.Digest() == p.Digest() }) {
		// An older bundle is what is planned: it was checked when it was built.
		p.chart.stop()
		p.chart = nil
	}
	return nil
}

// planner collects what goes into a plan, in the order of the file.
type planner struct {
	PlanOptions
	*Plan
	registry imageRegistry
	// json and large are the blobs of the two parts of the file, in order.
	json, large []ocitar.Member
	have        map[digest.Digest]bool
	// oldTypes are the media types of the images' roots in older bundles.
	oldTypes map[digest.Digest]string
}

// resolvedImage is an image of the lock with its manifests.
type resolvedImage struct {
	repository string
	root       ocispec.Descriptor
	platforms  []PlatformImage
	// json are the bytes of the root, the wanted manifests, and configs that had to be read.
	json map[digest.Digest][]byte
}

// fetchManifests resolves all images that are named by reference, in parallel. The
// result has the indexes of the lock: component, then image.
func (p *planner) fetchManifests(ctx context.Context) ([][]resolvedImage, error) {
	type work struct {
		component lock.Component
		image     lock.Image
		result    *resolvedImage
	}
	results := make([][]resolvedImage, len(p.Lock.Components))
	var all []work
	for i, c := range p.Lock.Components {
		results[i] = make([]resolvedImage, len(c.Images))
		for j, image := range c.Images {
			if image.Ref != "" {
				all = append(all, work{c, image, &results[i][j]})
			}
		}
	}
	task := p.Reporter.Task(fmt.Sprintf("read the manifests of %d images", len(all)), 0)
	err := parallel.ForEach(ctx, p.Parallelism, len(all), func(ctx context.Context, i int) error {
		w := all[i]
		image, err := p.resolve(ctx, w.image, w.component.PlatformsIn(p.Lock))
		if err != nil {
			return fmt.Errorf("%s: %s:%d: %w", label(w.component.Name, w.image.Ref, ""), p.LockName, w.image.Line, err)
		}
		*w.result = *image
		return nil
	})
	task.Done(err)
	return results, err
}

// checkImage finds out whether a registry has an image by its digest for all platforms.
func checkImage(ctx context.Context, from imageRegistry, image lock.Image, platforms []lock.Platform) error {
	p := planner{PlanOptions: PlanOptions{AllowMovedTags: true}, registry: from}
	_, err := p.resolve(ctx, image, platforms)
	return err
}

func (p *planner) resolve(ctx context.Context, image lock.Image, platforms []lock.Platform) (*resolvedImage, error) {
	repository, err := source.Repository(image.Ref)
	if err != nil {
		return nil, err
	}
	if !p.AllowMovedTags {
		now, err := p.registry.Resolve(ctx, image.Ref)
		if err != nil {
			return nil, err
		}
		if now.Digest != image.Digest {
			return nil, &movedTagError{locked: image.Digest, now: now.Digest}
		}
	}
	content, mediaType, ok := p.oldRoot(image.Digest)
	if !ok {
		if content, mediaType, err = p.registry.Manifest(ctx, repository, image.Digest); err != nil {
			return nil, err
		}
	}
	r := &resolvedImage{
		repository: repository,
		root:       ocispec.Descriptor{MediaType: mediaType, Digest: image.Digest, Size: int64(len(content))},
		json:       map[digest.Digest][]byte{image.Digest: content},
	}
	r.platforms, err = imagePlatforms(r.root, platforms, func(d ocispec.Descriptor) ([]byte, error) {
		if content, ok := r.json[d.Digest]; ok {
			return content, nil
		}
		content, ok := contentIn(p.Reuse, d.Digest, maxConfigSize)
		var err error
		switch {
		case ok:
		case isManifest(d.MediaType):
			content, _, err = p.registry.Manifest(ctx, repository, d.Digest)
		default: // the config: read here only where no index states the platform
			content, err = p.registry.Config(ctx, repository, d.Digest)
		}
		if err == nil && int64(len(content)) != d.Size {
			err = fmt.Errorf("%s has %d bytes, but its descriptor says %d", d.Digest, len(content), d.Size)
		}
		if err != nil {
			return nil, err
		}
		r.json[d.Digest] = content
		return content, nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// movedTagError says that a tag stands for something else than when it was locked.
type movedTagError struct{ locked, now digest.Digest }

func (e *movedTagError) Error() string {
	return fmt.Sprintf("the tag has moved: it was locked as %s and is now %s", e.locked, e.now)
}

func (e *movedTagError) Is(target error) bool { return target == ErrUpstream }

func (e *movedTagError) Hint() string {
	return "find out why it moved; to take the new image, remove the digest from all components of the lock and run `boxlift bundle lock`; --allow-moved-tags builds with the locked one"
}

// layOut makes index.json and the order of the blobs: JSON first, then files and layers,
// both in the order of the components.
func (p *planner) layOut(ctx context.Context, images [][]resolvedImage) error {
	if err := p.addLock(); err != nil {
		return err
	}
	if err := p.addPrograms(ctx); err != nil {
		return err
	}
	for i, c := range p.Lock.Components {
		if err := p.addManifests(c); err != nil {
			return err
		}
		if err := p.addFiles(c); err != nil {
			return err
		}
		if err := p.addCharts(c); err != nil {
			return err
		}
		if err := p.addImages(c, images[i]); err != nil {
			return err
		}
	}
	return p.finish()
}

// finish makes index.json and the sequence of the members of what was collected.
func (p *planner) finish() error {
	index, err := json.Marshal(ocispec.Index{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageIndex,
		ArtifactType: ArtifactType,
		Manifests:    p.entries,
		Annotations:  indexAnnotations(p.version, p.validity),
	})
	if err != nil {
		return fmt.Errorf("make index.json: %w", err)
	}
	if len(index) > maxIndexSize {
		return fmt.Errorf("make index.json: %d bytes are more than the %d that readers accept: there are too many images and files", len(index), maxIndexSize)
	}
	if n := boundedjson.Count(index); n > maxIndexValues {
		return fmt.Errorf(
			"make index.json: %d values are more than the %d that readers accept: there are too many images and files",
			n, maxIndexValues)
	}
	p.index = index
	p.members = append([]ocitar.Member{
		{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(index))},
	}, append(p.json, p.large...)...)
	p.smallBlobs = len(p.json)
	return nil
}

// place gives a blob its position, unless it has one; it reports whether it was new. The
// empty platform stands for all.
func (p *planner) place(part *[]ocitar.Member, d ocispec.Descriptor, platforms ...lock.Platform) bool {
	for _, platform := range platforms {
		if !slices.Contains(p.platforms[d.Digest], platform) {
			p.platforms[d.Digest] = append(p.platforms[d.Digest], platform)
		}
	}
	if p.have[d.Digest] {
		return false
	}
	p.have[d.Digest] = true
	*part = append(*part, ocitar.Blob(d.Digest, d.Size))
	return true
}

// placeContent places a blob whose bytes are at hand.
func (p *planner) placeContent(part *[]ocitar.Member, d ocispec.Descriptor, content []byte, platforms ...lock.Platform) {
	if p.place(part, d, platforms...) {
		p.content[d.Digest] = content
	}
}

// addArtifact adds a file of which layer describes the content.
func (p *planner) addArtifact(f File, artifactType string) error {
	layer := ocispec.Descriptor{MediaType: f.MediaType, Digest: f.Digest, Size: f.Size}
	content, err := fileManifest(artifactType, layer, f.Name)
	if err != nil {
		return err
	}
	d := descriptorOf(ocispec.MediaTypeImageManifest, content)
	d.ArtifactType = artifactType
	d.Annotations = annotations(f.Component, f.Version)
	d.Annotations[ocispec.AnnotationTitle] = f.Name
	if f.Platform != "" {
		d.Platform = &ocispec.Platform{OS: f.Platform.OS(), Architecture: f.Platform.Architecture(), Variant: f.Platform.Variant()}
	}
	p.entries = append(p.entries, d)
	p.placeContent(&p.json, plain(d), content, f.Platform)
	return nil
}

func annotations(component, version string) map[string]string {
	a := map[string]string{AnnotationComponent: component}
	if version != "" {
		a[AnnotationVersion] = version
	}
	return a
}

func (p *planner) addLock() error {
	d := descriptorOf(lockMediaType, p.LockContent)
	p.placeContent(&p.json, d, p.LockContent, "")
	p.placeContent(&p.json, ocispec.DescriptorEmptyJSON, ocispec.DescriptorEmptyJSON.Data, "")
	return p.addArtifact(File{Component: LockComponent, Name: LockFile, MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}, lockArtifactType)
}

func (p *planner) addPrograms(ctx context.Context) error {
	programs := slices.Clone(p.Programs)
	if err := Describe(ctx, programs); err != nil {
		return err
	}
	for _, program := range programs {
		d := program.found
		if err := p.addArtifact(File{
			Component: ProgramsComponent, Version: p.Version, Name: program.Name, Platform: program.Platform,
			MediaType: fileMediaType, Digest: d.Digest, Size: d.Size,
		}, fileArtifactType); err != nil {
			return err
		}
		if p.place(&p.large, d, program.Platform) {
			p.fetches = append(p.fetches, &fetch{
				label: label(ProgramsComponent, program.Name, program.Platform), size: d.Size, blob: d,
				open: func(_ context.Context, from int64) (*source.Stream, error) {
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
	return ocispec.Descriptor{MediaType: fileMediaType, Digest: d, Size: info.Size()}, nil
}

// addManifests carries the manifests, if c is the component that they install.
func (p *planner) addManifests(c lock.Component) error {
	if c.Name != ManifestsComponent || p.Manifests == nil {
		return nil
	}
	for _, f := range c.Files {
		if f.Name == ManifestsFile {
			return fmt.Errorf(
				"%s: %s:%d: boxlift carries its own file of this name for this component; call this one otherwise",
				label(c.Name, f.Name, f.Platform), p.LockName, f.Line)
		}
	}
	d := descriptorOf(fileMediaType, p.Manifests)
	p.placeContent(&p.large, d, p.Manifests, "")
	return p.addArtifact(File{
		Component: c.Name, Version: c.Version, Name: ManifestsFile,
		MediaType: d.MediaType, Digest: d.Digest, Size: d.Size,
	}, fileArtifactType)
}

func (p *planner) addFiles(c lock.Component) error {
	platforms := c.PlatformsIn(p.Lock)
	for _, f := range c.Files {
		if !wanted(f.Platform, platforms) {
			continue
		}
		if err := p.addDownload(c, f.Name, f.Platform, f.URL, f.SHA256, f.Size, fileMediaType, fileArtifactType); err != nil {
			return err
		}
	}
	return nil
}

func (p *planner) addCharts(c lock.Component) error {
	for _, chart := range c.Charts {
		// The file of a chart is called by its own name, which holds the version.
		if err := p.addDownload(c, baseName(chart.URL), "", chart.URL, chart.SHA256, chart.Size, chartMediaType, chartArtifactType); err != nil {
			return err
		}
	}
	return nil
}

func (p *planner) addDownload(c lock.Component, name string, platform lock.Platform, url, sha256 string, size int64, mediaType, artifactType string) error {
	file := File{
		Component: c.Name, Version: c.Version, Name: name, Platform: platform,
		MediaType: mediaType, Digest: digest.NewDigestFromEncoded(digest.SHA256, sha256), Size: size,
	}
	if err := p.addArtifact(file, artifactType); err != nil {
		return err
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: file.Digest, Size: size}
	if p.place(&p.large, d, platform) {
		p.fetches = append(p.fetches, &fetch{label: label(c.Name, name, platform), size: size, blob: d, open: p.openURL(url)})
	}
	return nil
}

func (p *planner) openURL(url string) func(context.Context, int64) (*source.Stream, error) {
	return func(ctx context.Context, from int64) (*source.Stream, error) {
		return p.Source.OpenPinned(ctx, url, from)
	}
}

func (p *planner) openBlob(repository string, d digest.Digest) func(context.Context, int64) (*source.Stream, error) {
	return func(ctx context.Context, from int64) (*source.Stream, error) {
		return p.Source.BlobFrom(ctx, repository, d, from)
	}
}

func (p *planner) addImages(c lock.Component, resolved []resolvedImage) error {
	roots := newImageRoots()
	for i, image := range c.Images {
		if image.Archive != "" {
			if !wanted(image.Platform, c.PlatformsIn(p.Lock)) {
				continue
			}
			if err := p.addArchive(c, image, roots); err != nil {
				return err
			}
			continue
		}
		r := resolved[i]
		if err := roots.add(image.Ref, "", r.root); err != nil {
			return fmt.Errorf("%s: %w", label(c.Name, image.Ref, ""), err)
		}
		p.addImage(c, image.Ref, r)
	}
	return p.addRoots(c, roots)
}

// addImage places the blobs of an image that a registry has.
func (p *planner) addImage(c lock.Component, ref string, r resolvedImage) {
	platforms := make([]lock.Platform, 0, len(r.platforms))
	for _, image := range r.platforms {
		platforms = append(platforms, image.Platform)
	}
	p.placeContent(&p.json, r.root, r.json[r.root.Digest], platforms...)
	for _, image := range r.platforms {
		p.placeContent(&p.json, image.Manifest, r.json[image.Manifest.Digest], image.Platform)
		if config, ok := r.json[image.Config.Digest]; ok {
			p.placeContent(&p.json, image.Config, config, image.Platform)
		} else {
			p.fetchBlob(&p.json, image.Config, label(c.Name, ref, image.Platform), r.repository, image.Platform)
		}
		for _, d := range image.Layers {
			p.fetchBlob(&p.large, d, label(c.Name, ref, image.Platform), r.repository, image.Platform)
		}
	}
}

// fetchBlob places a blob that a registry has.
func (p *planner) fetchBlob(part *[]ocitar.Member, d ocispec.Descriptor, label, repository string, platform lock.Platform) {
	if p.place(part, d, platform) {
		p.fetches = append(p.fetches, &fetch{label: label, size: d.Size, blob: d, open: p.openBlob(repository, d.Digest)})
	}
}

// addArchive places the blobs of an image archive and notes its images.
func (p *planner) addArchive(c lock.Component, image lock.Image, roots *imageRoots) error {
	if err := roots.addArchive(c, image); err != nil {
		return err
	}
	archive := &archiveFetch{sha256: image.SHA256, blobs: make(map[string]ocispec.Descriptor), all: make(map[string]ocispec.Descriptor)}
	for _, blob := range image.Contents.Blobs {
		d := ocispec.Descriptor{MediaType: blob.MediaType, Digest: blob.Digest, Size: blob.Size}
		archive.all[blob.Path] = d
		part := &p.large
		if isJSON(blob.MediaType) {
			part = &p.json
			p.unread[d.Digest] = true
		}
		if p.place(part, d, image.Platform) {
			archive.blobs[blob.Path] = d
		}
	}
	if len(archive.blobs) > 0 {
		p.fetches = append(p.fetches, &fetch{label: label(c.Name, baseName(image.Archive), image.Platform), size: image.Size, open: p.openURL(image.Archive), archive: archive})
	}
	return nil
}

func isJSON(mediaType string) bool { return strings.HasSuffix(mediaType, "json") }

// addRoots writes the entries of a component's images into index.json.
func (p *planner) addRoots(c lock.Component, roots *imageRoots) error {
	for _, ref := range roots.refs {
		d, content, err := roots.entry(ref, c.PlatformsIn(p.Lock))
		if err != nil {
			return fmt.Errorf("%s: %w", label(c.Name, ref, ""), err)
		}
		if content != nil {
			p.placeContent(&p.json, d, content, "")
		}
		d.MediaType = ociMediaType(d.MediaType)
		d.Annotations = annotations(c.Name, c.Version)
		d.Annotations[AnnotationImageName] = ref
		d.Annotations[ocispec.AnnotationRefName] = ref
		p.entries = append(p.entries, d)
	}
	return nil
}

// ociMediaType is how index.json announces an image: an OCI layout has no others, and
// skopeo passes over entries with Docker's. The content keeps its own, and its bytes.
func ociMediaType(mediaType string) string {
	switch mediaType {
	case source.DockerManifestList:
		return ocispec.MediaTypeImageIndex
	case source.DockerManifest:
		return ocispec.MediaTypeImageManifest
	}
	return mediaType
}

// imageRoots gathers what the name of an image stands for. Archives hold one platform
// each, so that an image may come in parts.
type imageRoots struct {
	refs  []string
	parts map[string][]imagePart
}

// imagePart is one root of an image. platform is empty for an image from a registry,
// which was found to have all platforms.
type imagePart struct {
	platform lock.Platform
	root     ocispec.Descriptor
}

func newImageRoots() *imageRoots { return &imageRoots{parts: make(map[string][]imagePart)} }

func (r *imageRoots) add(ref string, platform lock.Platform, root ocispec.Descriptor) error {
	if err := checkDescriptor(root, maxManifestSize); err != nil {
		return err
	}
	if r.parts[ref] == nil {
		r.refs = append(r.refs, ref)
	}
	r.parts[ref] = append(r.parts[ref], imagePart{platform, root})
	return nil
}

// addArchive adds what an archive holds.
func (r *imageRoots) addArchive(c lock.Component, image lock.Image) error {
	for _, inside := range image.Contents.Images {
		root := ocispec.Descriptor{MediaType: inside.MediaType, Digest: inside.Digest, Size: inside.Size}
		if err := r.add(inside.Ref, image.Platform, root); err != nil {
			return fmt.Errorf("%s: %w", label(c.Name, baseName(image.Archive), image.Platform), err)
		}
	}
	return nil
}

// entry returns what a name stands for: the one root that all parts share, or else an
// index made from them, with its content. All wanted platforms must be there.
func (r *imageRoots) entry(ref string, wanted []lock.Platform) (ocispec.Descriptor, []byte, error) {
	parts := r.parts[ref]
	for _, p := range wanted {
		if !slices.ContainsFunc(parts, func(part imagePart) bool { return part.platform == "" || p.Match(part.platform) }) {
			missing := &missingPlatformError{platform: p}
			for _, part := range parts {
				missing.has = append(missing.has, part.platform)
			}
			return ocispec.Descriptor{}, nil, missing
		}
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, part := range parts {
		if slices.ContainsFunc(index.Manifests, func(d ocispec.Descriptor) bool { return d.Digest == part.root.Digest }) {
			continue
		}
		d := plain(part.root)
		d.Platform = &ocispec.Platform{OS: part.platform.OS(), Architecture: part.platform.Architecture(), Variant: part.platform.Variant()}
		index.Manifests = append(index.Manifests, d)
	}
	if len(index.Manifests) == 1 {
		return plain(parts[0].root), nil, nil
	}
	for _, part := range parts {
		if part.platform == "" || !isManifest(part.root.MediaType) {
			return ocispec.Descriptor{}, nil, fmt.Errorf("the lock's entries disagree about what this image is: %s and %s", index.Manifests[0].Digest, index.Manifests[1].Digest)
		}
	}
	content, err := json.Marshal(index)
	return descriptorOf(ocispec.MediaTypeImageIndex, content), content, err
}

// baseName returns the last part of a URL's path.
func baseName(url string) string {
	address, _, _ := strings.Cut(strings.TrimPrefix(url, "file:"), "?")
	return path.Base(address)
}
