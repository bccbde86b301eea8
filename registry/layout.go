package registry

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// Bounds of what a layout may have.
const (
	maxIndex    = 16 << 20 // bytes of index.json
	maxManifest = 4 << 20  // bytes of a manifest or an image index
	// maxManifests is how many bytes all manifests may have, maxNamed how many manifests
	// all image indexes may name.
	maxManifests = 128 << 20
	maxNamed     = 1 << 16
	// maxValues is how many values of JSON an index.json or a manifest may have.
	maxValues = 1 << 17
)

// Annotations of index.json.
const (
	annotationImageName = "io.containerd.image.name"
	annotationComponent = "dev.boxlift.component"
	annotationVersion   = "dev.boxlift.version"
	annotationFamily    = "dev.boxlift.os.family"
	annotationSuite     = "dev.boxlift.os.suite"
	// AnnotationChart is the name of a Helm chart whose manifest an entry is, in the form that Helm pulls. The entry's
	// version, AnnotationVersion, is the chart's. Layouts that registry/charts makes have such entries.
	AnnotationChart   = "dev.boxlift.chart"
	AnnotationVersion = annotationVersion
)

// Docker's media types, which image-spec does not have.
const (
	typeDockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	typeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
)

// manifest is what there is to know of a manifest or an image index.
type manifest struct {
	ocispec.Descriptor
	// subject is what the manifest refers to, or "".
	subject digest.Digest
	// names are the manifests that an image index names.
	names []digest.Digest
}

var (
	// errAbsent says that a layout does not hold a blob: image indexes may be sparse.
	errAbsent = errors.New("not there")
	// errRetired says that a layout is no longer served.
	errRetired = errors.New("no longer served")
	// errDamaged says that a manifest is not what its digest or its place promises.
	errDamaged = errors.New("damaged")
)

// layout is one open file. Its file is closed when it is retired and nobody reads it.
type layout struct {
	tar     *ocitar.Reader
	digest  digest.Digest
	entries []ocispec.Descriptor // of index.json
	// loose are those that have no name: what refers to others may stand in index.json
	// alone.
	loose    []digest.Digest
	modified time.Time

	mu      sync.Mutex
	file    io.Closer
	readers int
	retired bool

	// reading guards what was read of manifests.
	reading   sync.Mutex
	manifests map[digest.Digest]*manifest
	subjects  map[digest.Digest][]*manifest // nil until all is read
	broken    error                         // why all could not be read
}

// newLayout reads index.json, and takes the file over unless it fails.
func newLayout(file Stored) (*layout, error) {
	tar, err := ocitar.NewReader(file, file.Size())
	if err != nil {
		return nil, err
	}
	content, err := tar.ReadAll(ocitar.IndexFile, maxIndex)
	if err != nil {
		return nil, err
	}
	var parsed struct {
		SchemaVersion int                  `json:"schemaVersion"`
		Manifests     []ocispec.Descriptor `json:"manifests"`
	}
	if err := boundedjson.Unmarshal(content, &parsed, maxValues); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ocitar.ErrMalformed, ocitar.IndexFile, err)
	}
	if parsed.SchemaVersion != 2 {
		return nil, fmt.Errorf("%w: %s has the schema version %d, expected 2", ocitar.ErrMalformed, ocitar.IndexFile,
			parsed.SchemaVersion)
	}
	if len(parsed.Manifests) > maxNamed {
		return nil, fmt.Errorf("%w: %s has more than %d entries", ocitar.ErrMalformed, ocitar.IndexFile, maxNamed)
	}
	l := &layout{
		tar: tar, digest: digest.FromBytes(content), entries: parsed.Manifests, modified: file.Modified(),
		file: file, manifests: make(map[digest.Digest]*manifest),
	}
	for i, d := range parsed.Manifests {
		if err := l.check(d); err != nil {
			return nil, fmt.Errorf("%w: %s: entry %d: %w", ocitar.ErrMalformed, ocitar.IndexFile, i, err)
		}
	}
	return l, nil
}

// check refuses an entry that no client could ask for.
func (l *layout) check(d ocispec.Descriptor) error {
	if err := checkDigest(d.Digest); err != nil {
		return err
	}
	if name, ok := d.Annotations[annotationImageName]; ok {
		_, err := parseName(name)
		return err
	}
	if name, ok := d.Annotations[AnnotationChart]; ok {
		_, _, err := ChartReference(ChartsPrefix, name, d.Annotations[annotationVersion])
		return err
	}
	if _, ok := artifactOf(d); !ok {
		l.loose = append(l.loose, d.Digest)
	}
	return nil
}

func checkDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("digest %.80q: %w", string(d), err)
	}
	if d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest %.80q: only sha256 is supported", string(d))
	}
	return nil
}

// acquire keeps the file open until release. It fails with errRetired.
func (l *layout) acquire() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retired {
		return errRetired
	}
	l.readers++
	return nil
}

func (l *layout) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers--
	l.closeIfDone()
}

// retire ends the layout for all who come later.
func (l *layout) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retired = true
	l.closeIfDone()
}

func (l *layout) closeIfDone() {
	if l.retired && l.readers == 0 && l.file != nil {
		_ = l.file.Close() // it was only read
		l.file = nil
	}
}

// manifest reads and proves one manifest. The caller has acquired the layout. It fails
// with errAbsent or errDamaged, or because the file cannot be read.
func (l *layout) manifest(d digest.Digest) (*manifest, error) {
	l.reading.Lock()
	defer l.reading.Unlock()
	return l.read(d)
}

func (l *layout) read(d digest.Digest) (*manifest, error) {
	if m, ok := l.manifests[d]; ok {
		return m, nil
	}
	e, ok := l.tar.Blob(d)
	if !ok {
		return nil, fmt.Errorf("blob %s: %w", d, errAbsent)
	}
	if e.Size > maxManifest {
		return nil, fmt.Errorf("%w: manifest %s has %d bytes, more than the %d that are allowed", errDamaged, d, e.Size,
			maxManifest)
	}
	content, err := l.tar.ReadAll(e.Name, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", d, err)
	}
	if got := digest.FromBytes(content); got != d {
		return nil, fmt.Errorf("%w: the bytes of manifest %s have the digest %s", errDamaged, d, got)
	}
	m, err := parseManifest(content)
	if err != nil {
		return nil, fmt.Errorf("%w: manifest %s: %w", errDamaged, d, err)
	}
	m.Digest, m.Size = d, e.Size
	l.manifests[d] = m
	return m, nil
}

func parseManifest(content []byte) (*manifest, error) {
	var c struct {
		MediaType    string               `json:"mediaType"`
		ArtifactType string               `json:"artifactType"`
		Config       *ocispec.Descriptor  `json:"config"`
		Manifests    []ocispec.Descriptor `json:"manifests"`
		Subject      *ocispec.Descriptor  `json:"subject"`
		Annotations  map[string]string    `json:"annotations"`
	}
	if err := boundedjson.Unmarshal(content, &c, maxValues); err != nil {
		return nil, err
	}
	m := &manifest{Descriptor: ocispec.Descriptor{MediaType: c.MediaType, ArtifactType: c.ArtifactType}}
	if m.MediaType == "" {
		// OCI's may leave it out (image-spec 1.1, manifest.md).
		m.MediaType = ocispec.MediaTypeImageManifest
		if c.Manifests != nil {
			m.MediaType = ocispec.MediaTypeImageIndex
		}
	}
	switch m.MediaType {
	case ocispec.MediaTypeImageIndex, typeDockerList:
		for _, d := range c.Manifests {
			m.names = append(m.names, d.Digest)
		}
	case ocispec.MediaTypeImageManifest, typeDockerManifest:
		if c.Config == nil {
			return nil, errors.New("it is neither an image manifest nor an image index")
		}
		if m.ArtifactType == "" {
			m.ArtifactType = c.Config.MediaType
		}
	default:
		return nil, fmt.Errorf("its media type %.80q is neither that of an image manifest nor of an image index",
			m.MediaType)
	}
	if c.Subject != nil {
		// Only who refers to something is asked for its annotations.
		m.subject, m.Annotations = c.Subject.Digest, c.Annotations
	}
	return m, nil
}

// reachable visits the manifests that belong to roots, the roots first: those that they
// name, those that have no name of their own, and those that refer to any of them, as far
// as they are there. It ends early when visit returns false. The caller has acquired the
// layout.
func (l *layout) reachable(roots []digest.Digest, visit func(*manifest) bool) error {
	l.reading.Lock()
	defer l.reading.Unlock()
	if err := l.readAll(); err != nil {
		return err
	}
	seen := make(map[digest.Digest]bool)
	for _, d := range roots {
		seen[d] = true
	}
	for queue := slices.Concat(roots, l.loose); len(queue) > 0; queue = queue[1:] {
		m, ok := l.manifests[queue[0]]
		if !ok {
			continue
		}
		if !visit(m) {
			return nil
		}
		next := m.names
		for _, referrer := range l.subjects[m.Digest] {
			next = append(next[:len(next):len(next)], referrer.Digest)
		}
		for _, d := range next {
			if !seen[d] {
				seen[d] = true
				queue = append(queue, d)
			}
		}
	}
	return nil
}

// referrers returns the manifests that refer to d, of those that belong to roots. The caller
// has acquired the layout.
func (l *layout) referrers(roots []digest.Digest, d digest.Digest) ([]*manifest, error) {
	all, err := l.allReferrers(d)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	belongs := make(map[digest.Digest]bool)
	err = l.reachable(roots, func(m *manifest) bool {
		belongs[m.Digest] = true
		return true
	})
	return slices.DeleteFunc(slices.Clone(all), func(m *manifest) bool { return !belongs[m.Digest] }), err
}

func (l *layout) allReferrers(d digest.Digest) ([]*manifest, error) {
	l.reading.Lock()
	defer l.reading.Unlock()
	if err := l.readAll(); err != nil {
		return nil, err
	}
	return l.subjects[d], nil
}

// readAll reads the manifests of all entries and those that they name. Damaged ones are
// left out: they are not there for who asks for them by digest.
func (l *layout) readAll() error {
	if l.subjects != nil || l.broken != nil {
		return l.broken
	}
	queue := make([]digest.Digest, 0, len(l.entries))
	for _, d := range l.entries {
		queue = append(queue, d.Digest)
	}
	subjects := make(map[digest.Digest][]*manifest)
	seen := make(map[digest.Digest]bool)
	size := int64(0)
	for ; len(queue) > 0; queue = queue[1:] {
		d := queue[0]
		if seen[d] {
			continue
		}
		seen[d] = true
		m, err := l.read(d)
		if errors.Is(err, errAbsent) || errors.Is(err, errDamaged) {
			continue
		}
		if err != nil {
			return err // it may be read the next time
		}
		if size += m.Size; size > maxManifests || len(queue)+len(m.names) > maxNamed {
			l.broken = fmt.Errorf("%w: its manifests have more than %d bytes or name more than %d others", errDamaged,
				maxManifests, maxNamed)
			return l.broken
		}
		queue = append(queue, m.names...)
		if m.subject != "" {
			subjects[m.subject] = append(subjects[m.subject], m)
		}
	}
	l.subjects = subjects
	return nil
}
