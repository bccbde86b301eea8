//go:build linux

package images_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/pack"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/nodelab"
)

// FuzzImageID reads what ctr prints of a container, whose labels and names are users'.
func FuzzImageID(f *testing.F) {
	f.Add([]byte(`{"Extensions":{"io.cri-containerd.container.metadata":{"value":"eyJWZXJzaW9uIjoidjEiLCJNZXRhZGF0YSI6ey` +
		`JJbWFnZVJlZiI6InNoYTI1NjowMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwIn19` +
		`"}}}`))
	f.Add([]byte(`{"Extensions":{"io.cri-containerd.container.metadata":{"value":"bnVsbA=="}}}`))
	f.Add([]byte(`{"Extensions":null}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		if id := images.ParseImageID(out); id != "" && (id.Validate() != nil || id.Algorithm() != digest.SHA256) {
			t.Errorf("%q is no digest", id)
		}
	})
}

// FuzzPack lets a pack on a host say anything, in an index.json that its name goes with and in a manifest.
// DIGEST and SIZE are the manifest's.
func FuzzPack(f *testing.F) {
	const index = `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",` +
		`"digest":"DIGEST","size":SIZE,` +
		`"annotations":{"io.containerd.image.name":"docker.io/library/a:1"}}]}`
	f.Add([]byte(index), []byte(`{"schemaVersion":2,"config":{"digest":"sha256:`+strings.Repeat("0", 64)+
		`","size":1},"layers":[]}`))
	f.Add([]byte(index), []byte(`{"schemaVersion":2,"manifests":[{"digest":"DIGEST","size":1,"platform":{"os":"linux",`+
		`"architecture":"amd64"}}]}`))
	f.Add([]byte(index), []byte(`{"manifests":[null],"layers":[{"digest":"../../etc/passwd","size":-1}]}`))
	f.Add([]byte(`{"manifests":[{"digest":"sha256:../x","size":9,`+
		`"annotations":{"org.opencontainers.image.ref.name":"--help"}}]}`), []byte{})
	f.Fuzz(func(t *testing.T, index, manifest []byte) {
		l := nodelab.New(t)
		blob := l.Add(manifest)
		index = bytes.ReplaceAll(index, []byte("DIGEST"), []byte(blob.Digest))
		index = bytes.ReplaceAll(index, []byte("SIZE"), strconv.AppendInt(nil, int64(len(manifest)), 10))
		if len(index) == 0 || len(index) > wire.MaxIndex {
			t.Skip()
		}
		packed := wire.PackWant{Name: wire.PackName("a", index), Index: index, Blobs: []wire.Blob{blob}}
		if err := os.MkdirAll(l.Images, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(l.Images, packed.Name), l.Bytes(t, packed), 0o600); err != nil {
			t.Fatal(err)
		}
		report, err := pack.Check(t.Context(), l.Images)
		if err != nil || len(report.Packs) != 1 {
			t.Fatalf("%+v, %v", report, err)
		}
		arrived, err := images.Arrived(images.Options{ImagesDir: l.Images, ContentDir: l.Images}, os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if arrived.Blobs != 0 {
			t.Errorf("what the pack names was found outside of containerd's content: %+v", arrived)
		}
	})
}
