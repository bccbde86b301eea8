package bundletest

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/test/ocilayout"
)

// Crafted is a bundle made by hand, which can be made wrong before it is signed.
type Crafted struct {
	Index ocispec.Index
	// Trust is the trust file in it; nil for none.
	Trust []byte
	Blobs []CraftedBlob
}

// CraftedBlob is a blob, which need not have the digest that it is called by.
type CraftedBlob struct {
	Name    digest.Digest
	Content []byte
}

// Add adds a blob.
func (c *Crafted) Add(mediaType string, content []byte) ocispec.Descriptor {
	d := format.DescriptorOf(mediaType, content)
	c.Blobs = append(c.Blobs, CraftedBlob{d.Digest, content})
	return d
}

// AddJSON adds the JSON of a value as a blob.
func (c *Crafted) AddJSON(mediaType string, v any) ocispec.Descriptor {
	content, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return c.Add(mediaType, content)
}

// Remove takes a blob out by its content.
func (c *Crafted) Remove(content string) {
	c.Blobs = slices.DeleteFunc(c.Blobs, func(b CraftedBlob) bool { return string(b.Content) == content })
}

// What crafted bundles have.
const (
	CraftedImage = "example.com/a/b:1"
	CraftedLayer = "the layer"
	CraftedFile  = "the file"
)

// Craft makes a bundle of one file and one image of two platforms, of which one is there.
func Craft() *Crafted {
	c := &Crafted{Index: ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		ArtifactType: format.ArtifactType,
		Annotations:  map[string]string{format.AnnotationVersion: "v1.2.3"},
	}}
	config := c.AddJSON(ocispec.MediaTypeImageConfig,
		ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}})
	layer := c.Add(ocispec.MediaTypeImageLayerGzip, []byte(CraftedLayer))
	manifest := c.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config,
		Layers: []ocispec.Descriptor{layer},
	})
	manifest.Platform = &ocispec.Platform{OS: "linux", Architecture: "amd64"}
	absent := format.DescriptorOf(ocispec.MediaTypeImageManifest, []byte("{}2"))
	absent.Platform = &ocispec.Platform{OS: "linux", Architecture: "s390x"}
	root := c.AddJSON(ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{manifest, absent},
	})
	root.Annotations = map[string]string{format.AnnotationComponent: "a", format.AnnotationVersion: "1",
		format.AnnotationImageName: CraftedImage}

	lockText := fmt.Sprintf(`apiVersion: boxlift.dev/v1
kind: Lock
platforms: [linux/amd64]
components:
  a:
    version: "1"
    files:
      - {name: f, url: "https://example.com/f", sha256: %q, size: %d}
    images:
      - {ref: %q, digest: %q}
`, digest.FromString(CraftedFile).Encoded(), len(CraftedFile), CraftedImage, root.Digest)
	c.Add(ocispec.DescriptorEmptyJSON.MediaType, ocispec.DescriptorEmptyJSON.Data)
	c.AddFile(bundle.LockComponent, bundle.LockFile, format.LockArtifactType, format.LockMediaType, []byte(lockText))
	c.AddFile("a", "f", format.FileArtifactType, format.FileMediaType, []byte(CraftedFile))
	c.Index.Manifests = append(c.Index.Manifests, root)
	return c
}

// AddFile adds a file, its manifest, and an entry for it.
func (c *Crafted) AddFile(component, title, artifactType, mediaType string, content []byte) {
	manifest, err := format.FileManifest(artifactType, c.Add(mediaType, content), title)
	if err != nil {
		panic(err)
	}
	d := c.Add(ocispec.MediaTypeImageManifest, manifest)
	d.ArtifactType = artifactType
	d.Annotations = map[string]string{format.AnnotationComponent: component, ocispec.AnnotationTitle: title}
	c.Index.Manifests = append(c.Index.Manifests, d)
}

// Tar writes the file, signed unless signer is nil.
func (c *Crafted) Tar(t testing.TB, signer *signature.Signer) []byte {
	t.Helper()
	index, err := json.Marshal(c.Index)
	if err != nil {
		t.Fatal(err)
	}
	return c.TarWith(t, index, signer)
}

// TarWith is Tar with another index.json.
func (c *Crafted) TarWith(t testing.TB, index []byte, signer *signature.Signer) []byte {
	t.Helper()
	contents := [][]byte{[]byte(ocitar.LayoutContent), index}
	members := []ocitar.Member{{Name: ocitar.LayoutFile}, {Name: ocitar.IndexFile}}
	if signer != nil {
		s, err := signer.Sign(index)
		if err != nil {
			t.Fatal(err)
		}
		contents = append(contents, s.Bundle, s.Base64)
		members = append(members, ocitar.Member{Name: ocitar.SigstoreBundleFile},
			ocitar.Member{Name: ocitar.SignatureFile})
	}
	if c.Trust != nil {
		contents, members = append(contents, c.Trust), append(members, ocitar.Member{Name: ocitar.TrustFile})
	}
	for _, b := range c.Blobs {
		contents = append(contents, b.Content)
		members = append(members, ocitar.Blob(b.Name, 0))
	}
	for i := range members {
		members[i].Size = int64(len(contents[i]))
	}
	return ocilayout.Tar(t, members, contents)
}
