package archive

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	names "github.com/distribution/reference"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pieces"
)

// Docker's own form of an image archive (docker save, skopeo's docker-archive) has no OCI
// manifests, and its layers are most often not compressed. In a bundle they become zstd
// layers, and a manifest is made for them; both depend on nothing but the archive's content,
// so that the lock can state their digests and every build makes the same bytes.

// DockerIndex is the member that lists the images of an archive in docker's form. Below its
// name, a lock lists the manifests that are made from it: manifest.json/0 is that of the
// first image.
const DockerIndex = "manifest.json"

// DockerImage is an entry of manifest.json.
type DockerImage struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

// ParseDockerIndex reads [DockerIndex].
func ParseDockerIndex(content []byte) ([]DockerImage, error) {
	var images []DockerImage
	if err := boundedjson.Unmarshal(content, &images, format.MaxIndexValues); err != nil {
		return nil, fmt.Errorf("the archive's %s: %w", DockerIndex, err)
	}
	return images, nil
}

// ManifestPath is the path by which a lock lists the manifest of the image with that number.
func ManifestPath(i int) string { return DockerIndex + "/" + strconv.Itoa(i) }

// DockerManifest makes the manifest of an image. find returns what a member becomes.
func DockerManifest(image DockerImage, find func(member string) (ocispec.Descriptor, error)) ([]byte, error) {
	config, err := find(image.Config)
	if err != nil {
		return nil, err
	}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: config, Layers: []ocispec.Descriptor{},
	}
	for _, name := range image.Layers {
		layer, err := find(name)
		if err != nil {
			return nil, err
		}
		manifest.Layers = append(manifest.Layers, layer)
	}
	return json.Marshal(manifest)
}

// Links are the symbolic links of an archive: docker writes them for layers that it
// has written before.
type Links map[string]string

// Add notes a link, whose target is relative to where it lies.
func (l Links) Add(name, target string) {
	l[name] = path.Join(path.Dir(name), target)
}

// Follow returns the member that a name stands for.
func (l Links) Follow(name string) string {
	name = path.Clean(name)
	for range 8 {
		target, ok := l[name]
		if !ok {
			break
		}
		name = target
	}
	return name
}

// dockerListing gathers what an archive in docker's form holds.
type dockerListing struct {
	index    []byte
	members  map[string]dockerMember
	links    Links
	jsonSize int64
	// What all members share: an archive may have very many.
	buffered   *bufio.Reader
	compressor Compressor
	empty      *ocispec.Descriptor // what a member without a byte becomes
}

// dockerMember is a file of the archive: as a config, with its content, or as a layer.
type dockerMember struct {
	content []byte
	layer   ocispec.Descriptor
}

// add looks at a member that is not a blob of an OCI layout.
func (l *dockerListing) add(name string, size int64, content io.Reader) error {
	if l.members == nil {
		l.members = make(map[string]dockerMember)
		l.buffered = bufio.NewReaderSize(nil, pieces.Size)
	}
	if size == 0 && l.empty != nil {
		l.members[name] = dockerMember{layer: *l.empty}
		return nil
	}
	buffered := l.buffered
	buffered.Reset(content)
	first, err := buffered.Peek(1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if size <= format.MaxConfigSize && (bytes.Equal(first, []byte("{")) || name == DockerIndex) {
		all, err := ReadBounded(buffered, size, format.MaxConfigSize)
		if err != nil {
			return err
		}
		if l.jsonSize += size; l.jsonSize > maxArchiveJSON {
			return fmt.Errorf("read the archive: its configs have more than %d bytes", maxArchiveJSON)
		}
		if name == DockerIndex {
			l.index = all
		}
		l.members[name] = dockerMember{content: all}
		return nil
	}
	layer, err := l.describeLayer(buffered, size)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if size == 0 {
		l.empty = &layer
	}
	l.members[name] = dockerMember{layer: layer}
	return nil
}

func (l *dockerListing) link(name, target string) error {
	if l.links == nil {
		l.links = make(Links)
	}
	l.links.Add(name, target)
	return nil
}

// describeLayer says what a member becomes as a layer.
func (l *dockerListing) describeLayer(content *bufio.Reader, size int64) (ocispec.Descriptor, error) {
	h := sha256.New()
	mediaType, compressed, err := layerForm(content)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if !compressed {
		counted := &countingWriter{writer: h}
		err = l.compressor.compress(counted, content)
		size = counted.count
	} else {
		_, err = io.Copy(h, content)
	}
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.NewDigest(digest.SHA256, h), Size: size}, err
}

// layerForm says of which media type a layer is in a bundle, and whether it is so already.
func layerForm(content *bufio.Reader) (mediaType string, compressed bool, err error) {
	magic, err := content.Peek(len(zstdMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return "", false, err
	}
	if bytes.HasPrefix(magic, []byte(gzipMagic)) {
		return ocispec.MediaTypeImageLayerGzip, true, nil
	}
	return ocispec.MediaTypeImageLayerZstd, string(magic) == zstdMagic, nil
}

// Compressor makes zstd layers, one after another. An encoder has megabytes of tables, which
// all of them share.
type Compressor struct{ encoder *zstd.Encoder }

// compress makes one layer. Locks state its digest, so the settings must stay.
func (c *Compressor) compress(to io.Writer, from io.Reader) (err error) {
	if c.encoder == nil {
		c.encoder, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1),
			zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithWindowSize(8<<20))
		if err != nil {
			return err
		}
	}
	c.encoder.Reset(to)
	// The encoder itself would read from some sources in another way than from others.
	_, err = io.Copy(struct{ io.Writer }{c.encoder}, from)
	return errors.Join(err, c.encoder.Close())
}

// CompressLayer makes one layer and no more.
func CompressLayer(to io.Writer, from io.Reader) error {
	return new(Compressor).compress(to, from)
}

type countingWriter struct {
	writer io.Writer
	count  int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.writer.Write(p)
	w.count += int64(n)
	return n, err
}

// asLayout turns what was found into an OCI layout: the members of its blobs, and its
// index.json. Without a manifest.json there is none.
func (l *dockerListing) asLayout(members map[digest.Digest]member) ([]byte, error) {
	if l.index == nil {
		return nil, nil
	}
	images, err := ParseDockerIndex(l.index)
	if err != nil {
		return nil, err
	}
	find := func(name string) (ocispec.Descriptor, error) {
		target := l.links.Follow(name)
		m, ok := l.members[target]
		if !ok {
			return ocispec.Descriptor{}, fmt.Errorf("the archive's %s names %q, which is not in it", DockerIndex, name)
		}
		d := m.layer
		if m.content != nil {
			d = format.DescriptorOf(ocispec.MediaTypeImageConfig, m.content)
		}
		if _, ok := members[d.Digest]; !ok {
			members[d.Digest] = member{path: target, size: d.Size, content: m.content}
		}
		return d, nil
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}}
	for i, image := range images {
		manifest, err := DockerManifest(image, find)
		if err != nil {
			return nil, err
		}
		d := format.DescriptorOf(ocispec.MediaTypeImageManifest, manifest)
		members[d.Digest] = member{path: ManifestPath(i), size: d.Size, content: manifest}
		if len(image.RepoTags) == 0 {
			return nil, fmt.Errorf("the archive holds an image without a name: %s", image.Config)
		}
		for _, tag := range image.RepoTags {
			// Docker leaves out its own registry.
			named, err := names.ParseNormalizedNamed(tag)
			if err != nil {
				return nil, fmt.Errorf("the archive's %s: image %q: %w", DockerIndex, tag, err)
			}
			root := d
			root.Annotations = map[string]string{format.AnnotationImageName: named.String()}
			index.Manifests = append(index.Manifests, root)
		}
	}
	return json.Marshal(index)
}

// IsMade reports whether a blob is made from a member of an archive by compressing it.
func IsMade(member string, d ocispec.Descriptor, content *bufio.Reader) (bool, error) {
	if member == ocitar.BlobName(d.Digest) || !strings.HasSuffix(d.MediaType, "+zstd") {
		return false, nil
	}
	_, compressed, err := layerForm(content)
	return !compressed, err
}

// Compressing gives the zstd layer that is made from a member while it is read. Until it is
// closed, the compressor is in use.
func Compressing(compressor *Compressor, content io.Reader) io.ReadCloser {
	r, w := io.Pipe()
	l := &madeLayer{PipeReader: r, ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		_ = w.CloseWithError(compressor.compress(w, content))
	}()
	return l
}

// madeLayer is being compressed on the side.
type madeLayer struct {
	*io.PipeReader
	ended chan struct{}
}

// Close waits until nothing reads from the member any more.
func (l *madeLayer) Close() error {
	err := l.PipeReader.Close()
	<-l.ended
	return err
}
