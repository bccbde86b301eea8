package build

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"io"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/archive"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/progress"
)

// fuzzedArchive is an archive in docker's form with one config, one layer and a link.
func fuzzedArchive(t testing.TB, index, config, layer []byte, link string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []struct {
		tar.Header
		content []byte
	}{
		{tar.Header{Typeflag: tar.TypeReg, Name: "layer.tar", Size: int64(len(layer))}, layer},
		{tar.Header{Typeflag: tar.TypeSymlink, Name: "linked/layer.tar", Linkname: link}, nil},
		{tar.Header{Typeflag: tar.TypeReg, Name: "config.json", Size: int64(len(config))}, config},
		{tar.Header{Typeflag: tar.TypeReg, Name: "manifest.json", Size: int64(len(index))}, index},
	} {
		if err := w.WriteHeader(&h.Header); err != nil {
			t.Skip("no tar can have such a link")
		}
		if _, err := w.Write(h.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzDockerArchive locks hostile archives in docker's form: nothing but an error may come of
// them, and whatever is locked can be built.
func FuzzDockerArchive(f *testing.F) {
	const config = `{"os":"linux","architecture":"amd64"}`
	for _, index := range []string{
		`[{"Config":"config.json","RepoTags":["a:1","b:1"],"Layers":["layer.tar","linked/layer.tar"]}]`,
		`[{"Config":"layer.tar","RepoTags":["a:1"],"Layers":["config.json"]}]`,
		`[{"Config":"config.json","RepoTags":["a:1"],"Layers":["manifest.json"]},{"Config":"config.json","RepoTags":["a:1"]}]`,
	} {
		f.Add([]byte(index), []byte(config), []byte("a layer"), "../layer.tar")
		f.Add([]byte(index), []byte(config), []byte("\x1f\x8ba layer"), "layer.tar")
	}
	f.Fuzz(func(t *testing.T, index, config, layer []byte, link string) {
		content := fuzzedArchive(t, index, config, layer, link)
		listing := archive.NewListing()
		if err := listing.Take(bytes.NewReader(content)); err != nil {
			t.Fatalf("a whole archive cannot be read: %v", err)
		}
		contents, err := listing.Contents("linux/amd64")
		if err != nil {
			return
		}
		buildListed(t, content, contents)
	})
}

// buildListed stores what a lock lists of an archive, as a build does.
func buildListed(t *testing.T, content []byte, contents *lock.Contents) {
	t.Helper()
	sum := sha256.Sum256(content)
	archive := &plan.Archive{SHA256: digest.NewDigestFromBytes(digest.SHA256, sum[:]).Encoded(),
		Blobs: make(map[string]ocispec.Descriptor)}
	b := &builder{plan: &plan.Plan{Index: []byte("{}"), Reporter: progress.Discard}}
	b.plan.Members = []ocitar.Member{{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: 2}}
	for _, blob := range contents.Blobs {
		archive.Blobs[blob.Path] = ocispec.Descriptor{MediaType: blob.MediaType, Digest: blob.Digest, Size: blob.Size}
		b.plan.Members = append(b.plan.Members, ocitar.Blob(blob.Digest, blob.Size))
	}
	archive.All = archive.Blobs
	if err := b.layOut(nil, nil); err != nil {
		t.Fatalf("what is listed cannot be laid out: %v", err)
	}
	draft, err := volume.NewDraft(
		volume.DraftOptions{Path: filepath.Join(t.TempDir(), "b.tar"), Suffix: ".partial", Size: b.layout.Size})
	if err != nil {
		t.Fatal(err)
	}
	b.file = draft
	defer b.close()
	if err := draft.Allocate(); err != nil {
		t.Fatal(err)
	}
	if err := b.storeArchive(t.Context(), &plan.Fetch{Size: int64(len(content)), Archive: archive},
		io.Reader(bytes.NewReader(content))); err != nil {
		t.Fatalf("what was locked cannot be built: %v", err)
	}
	for _, blob := range contents.Blobs {
		if !b.isDone(blob.Digest) {
			t.Errorf("%s was not stored", blob.Path)
		}
	}
}
