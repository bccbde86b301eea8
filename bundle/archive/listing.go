package archive

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// maxArchiveJSON bounds the manifests and configs of an image archive that are held in
// memory while it is read.
const maxArchiveJSON = 64 << 20

// Listing gathers what an image archive holds: an OCI layout, or docker's own form.
type Listing struct {
	index    []byte
	members  map[digest.Digest]member
	jsonSize int64
	docker   dockerListing
}

// NewListing returns an empty one.
func NewListing() *Listing {
	return &Listing{members: make(map[digest.Digest]member)}
}

// Take reads an archive. It is to be called once.
func (a *Listing) Take(archive io.Reader) error {
	return Read(archive, a.add, a.docker.link)
}

type member struct {
	path string
	size int64
	// content is kept where it may be JSON: small members that begin with a brace.
	content []byte
}

func (a *Listing) add(name string, size int64, content io.Reader) error {
	if name == ocitar.IndexFile {
		var err error
		a.index, err = ReadBounded(content, size, format.MaxIndexSize)
		return err
	}
	named := ocitar.Member{Name: name}.Digest()
	if named == "" || named.Validate() != nil {
		return a.docker.add(name, size, content)
	}
	member := member{path: name, size: size}
	h := sha256.New()
	if size <= format.MaxConfigSize {
		all, err := ReadBounded(content, size, format.MaxConfigSize)
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

// ReadBounded reads a small member of size bytes whole, unless it has more than the limit.
func ReadBounded(r io.Reader, size, limit int64) ([]byte, error) {
	if size > limit {
		return nil, fmt.Errorf("read the archive: a manifest of %d bytes is larger than the %d that are allowed", size,
			limit)
	}
	content := make([]byte, size)
	_, err := io.ReadFull(r, content)
	return content, err
}

func (a *Listing) read(d ocispec.Descriptor) ([]byte, error) {
	m, ok := a.members[d.Digest]
	if !ok {
		return nil, fmt.Errorf("%w in the archive: %s", format.ErrAbsent, d.Digest)
	}
	if m.content == nil {
		return nil, fmt.Errorf("%s in the archive is not JSON", m.path)
	}
	return m.content, nil
}

// Contents follows the archive's named images down to the blobs of one platform.
func (a *Listing) Contents(platform lock.Platform) (*lock.Contents, error) {
	if a.index == nil {
		var err error
		if a.index, err = a.docker.asLayout(a.members); err != nil {
			return nil, err
		}
	}
	if a.index == nil {
		return nil, fmt.Errorf(
			"the archive has neither %s nor %s: it is not an image archive, as `docker save`, `ctr images export` "+
				"and `skopeo copy` write them", ocitar.IndexFile, DockerIndex)
	}
	var index ocispec.Index
	if err := boundedjson.Unmarshal(a.index, &index, format.MaxIndexValues); err != nil {
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
			contents.Blobs = append(contents.Blobs,
				lock.ArchiveBlob{Path: m.path, Digest: d.Digest, Size: d.Size, MediaType: d.MediaType})
		}
		return nil
	}
	for _, root := range index.Manifests {
		name := root.Annotations[format.AnnotationImageName]
		if name == "" {
			name = root.Annotations[ocispec.AnnotationRefName]
		}
		if name == "" {
			return nil, fmt.Errorf("the archive holds an image without a name: %s", root.Digest)
		}
		if err := format.CheckDescriptor(root, format.MaxManifestSize); err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		images, err := format.Platforms(root, []lock.Platform{platform}, a.read)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		for _, d := range append([]ocispec.Descriptor{root}, images[0].Blobs()...) {
			if err := list(d); err != nil {
				return nil, fmt.Errorf("image %s: %w", name, err)
			}
		}
		contents.Images = append(contents.Images,
			lock.ArchiveImage{Ref: name, Digest: root.Digest, Size: root.Size, MediaType: root.MediaType})
	}
	if len(contents.Images) == 0 {
		return nil, errors.New("the archive holds no images")
	}
	return contents, nil
}
