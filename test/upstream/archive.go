package upstream

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// archiveName is the name of a release's archive.
func archiveName(arch string) string { return "k3s-airgap-images-" + arch + ".tar.zst" }

// member is a file of an archive: bytes, or a blob of the storage.
type member struct {
	name string
	mode int64
	data []byte
	blob *blob
}

// archiveBlobs lists the blobs of an image that its archive for one platform has: the
// root, which stays whole, and that platform's manifest, configuration and layers. The
// root of a plain image is its manifest and comes once.
func archiveBlobs(image builtImage, arch string) []blob {
	blobs := []blob{image.Root}
	for _, m := range image.Manifests {
		if m.Arch != arch {
			continue
		}
		if m.Blob.Digest != image.Root.Digest {
			blobs = append(blobs, m.Blob)
		}
		blobs = append(append(blobs, m.Config), m.Layers...)
	}
	return blobs
}

// archiveMembers is what `ctr images export --platform` would write: an OCI layout that
// docker can load too, members in order of their names.
func archiveMembers(images []builtImage, arch string) ([]member, error) {
	type dockerImage struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}}
	var docker []dockerImage
	members := []member{{name: "blobs/", mode: 0o755}, {name: "blobs/sha256/", mode: 0o755}}
	for _, image := range images {
		d := image.Root.descriptor()
		_, tag, _ := strings.Cut(image.Ref, ":")
		d.Annotations = map[string]string{
			"io.containerd.image.name":          image.Ref,
			"org.opencontainers.image.ref.name": tag,
		}
		index.Manifests = append(index.Manifests, d)
		for _, b := range archiveBlobs(image, arch) {
			members = append(members, member{name: blobMember(b), mode: 0o444, blob: &b})
		}
		for _, m := range image.Manifests {
			if m.Arch != arch {
				continue
			}
			entry := dockerImage{Config: blobMember(m.Config), RepoTags: []string{image.Ref}}
			for _, l := range m.Layers {
				entry.Layers = append(entry.Layers, blobMember(l))
			}
			docker = append(docker, entry)
		}
	}
	for _, document := range []struct {
		name string
		v    any
	}{
		{"index.json", index},
		{"manifest.json", docker},
		{"oci-layout", ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}},
	} {
		data, err := json.Marshal(document.v)
		if err != nil {
			return nil, err
		}
		members = append(members, member{name: document.name, mode: 0o444, data: data})
	}
	slices.SortStableFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(members, func(a, b member) bool { return a.name == b.name }), nil
}

func blobMember(b blob) string { return "blobs/sha256/" + b.Digest.Encoded() }

// writeArchive writes the air-gap archive of one platform.
func writeArchive(ctx context.Context, w io.Writer, s storage, images []builtImage, arch string) error {
	members, err := archiveMembers(images, arch)
	if err != nil {
		return err
	}
	// Upstream uses a long window too; 32 MiB is the most that k3s reads. One encoder, so
	// that the same members give the same bytes.
	packer, err := zstd.NewWriter(w, zstd.WithWindowSize(32<<20), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	t := tar.NewWriter(packer)
	for _, m := range members {
		if err = errors.Join(ctx.Err(), m.write(t, s)); err != nil {
			err = fmt.Errorf("write %s: %w", m.name, err)
			break
		}
	}
	return errors.Join(err, t.Close(), packer.Close())
}

func (m member) write(t *tar.Writer, s storage) error {
	header := &tar.Header{Name: m.name, Mode: m.mode, Typeflag: tar.TypeReg, Size: int64(len(m.data))}
	if strings.HasSuffix(m.name, "/") {
		header.Typeflag = tar.TypeDir
	}
	var content io.Reader = bytes.NewReader(m.data)
	if m.blob != nil {
		f, err := os.Open(s.blobPath(m.blob.Digest))
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // only read
		header.Size, content = m.blob.Size, f
	}
	if err := t.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(t, content)
	return err
}
