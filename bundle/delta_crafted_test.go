package bundle_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/archive"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/ocilayout"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// craftedDelta is a delta made by hand, which can be made wrong.
type craftedDelta struct {
	index format.DeltaIndex
	trust []byte // nil for none
	// outline is that of index, not compressed, and unpacked what its tar has.
	outline []byte
	blobs   []bundletest.CraftedBlob
}

// craftDelta is a delta of the crafted bundle: it leaves out its layer, and the manifest of
// the file, which is in the outline.
func craftDelta(t testing.TB, signer *signature.Signer) *craftedDelta {
	t.Helper()
	whole := bundletest.Craft()
	index, err := json.Marshal(whole.Index)
	if err != nil {
		t.Fatal(err)
	}
	manifest := whole.Index.Manifests[1].Digest
	d := &craftedDelta{index: format.DeltaIndex{Bundle: digest.FromBytes(index),
		Since: []digest.Digest{digest.FromString("old")}}}
	d.index.SchemaVersion, d.index.ArtifactType = 2, format.DeltaArtifactType
	outline := &bundletest.Crafted{}
	for i, b := range whole.Blobs {
		if b.Name == manifest {
			outline.Blobs = append(outline.Blobs, b)
		}
		if b.Name == manifest || string(b.Content) == bundletest.CraftedLayer {
			d.index.LeftOut = append(d.index.LeftOut,
				format.LeftOutBlob{Digest: b.Name, Size: int64(len(b.Content)), At: i})
			continue
		}
		d.blobs = append(d.blobs, b)
	}
	d.outline = outline.TarWith(t, index, signer)
	return d
}

func (d *craftedDelta) tar(t testing.TB, signer *signature.Signer) []byte {
	t.Helper()
	var packed bytes.Buffer
	if err := archive.CompressLayer(&packed, bytes.NewReader(d.outline)); err != nil {
		t.Fatal(err)
	}
	outline := packed.Bytes()
	c := &bundletest.Crafted{Trust: d.trust, Blobs: append([]bundletest.CraftedBlob{{Name: digest.FromBytes(outline),
		Content: outline}}, d.blobs...)}
	if d.index.Manifests == nil {
		d.index.Manifests = []ocispec.Descriptor{format.DescriptorOf(format.OutlineMediaType, outline)}
	}
	index, err := json.Marshal(d.index)
	if err != nil {
		t.Fatal(err)
	}
	return c.TarWith(t, index, signer)
}

func TestCraftedDelta(t *testing.T) {
	d := craftDelta(t, nil)
	if err := check(t, d.tar(t, nil), nil); err != nil {
		t.Fatal(err)
	}
	file := d.tar(t, nil)
	r, err := bundle.NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
	if err != nil {
		t.Fatal(err)
	}
	if missing := r.Delta().Missing; len(missing) != 1 ||
		missing[0].Digest != digest.FromString(bundletest.CraftedLayer) {
		t.Errorf("missing: %v", missing)
	}
	whole := bundletest.Craft().Tar(t, nil)
	base, err := bundle.NewReader(bytes.NewReader(whole), int64(len(whole)), "bundle.tar")
	if err != nil {
		t.Fatal(err)
	}
	r.Use(base)
	got := make([]byte, r.Whole().Size())
	if _, err := r.Whole().ReadAt(got, 0); err != nil || !bytes.Equal(got, whole) {
		t.Errorf("with its base it is not the bundle: %v", err)
	}
}

// TestRefusedDeltas makes deltas wrong in one way each.
func TestRefusedDeltas(t *testing.T) {
	layer := digest.FromString(bundletest.CraftedLayer)
	at := func(d *craftedDelta, of digest.Digest) *format.LeftOutBlob {
		i := slices.IndexFunc(d.index.LeftOut, func(b format.LeftOutBlob) bool { return b.Digest == of })
		return &d.index.LeftOut[i]
	}
	reoutline := func(t *testing.T, d *craftedDelta, blobs ...string) {
		t.Helper()
		tar, err := ocitar.NewReader(bytes.NewReader(d.outline), int64(len(d.outline)))
		if err != nil {
			t.Fatal(err)
		}
		index, err := tar.ReadAll(ocitar.IndexFile, format.MaxIndexSize)
		if err != nil {
			t.Fatal(err)
		}
		var contents [][]byte
		for _, b := range blobs {
			contents = append(contents, []byte(b))
		}
		d.outline = ocilayout.Pack(t, index, contents...)
	}
	for name, test := range map[string]struct {
		change func(t *testing.T, d *craftedDelta)
		want   string
	}{
		"another schema": {func(_ *testing.T, d *craftedDelta) { d.index.SchemaVersion = 1 }, "schema version 1"},
		"another serial": {func(_ *testing.T, d *craftedDelta) {
			d.index.Annotations = map[string]string{format.AnnotationSerial: "7"}
		}, "index.json of the delta: it has serial 7, audience all, end none, its bundle has serial none"},
		"no outline": {func(_ *testing.T, d *craftedDelta) { d.index.Manifests = []ocispec.Descriptor{} },
			"one outline"},
		"another outline": {func(_ *testing.T, d *craftedDelta) {
			d.index.Manifests = []ocispec.Descriptor{{MediaType: format.OutlineMediaType, Digest: layer, Size: 9}}
		}, "is not there"},
		"an outline of MiBs": {func(_ *testing.T, d *craftedDelta) {
			d.index.Manifests = []ocispec.Descriptor{{MediaType: format.OutlineMediaType, Digest: layer,
				Size: format.MaxOutline + 1}}
		}, "out of bounds"},
		"an endless outline": {func(_ *testing.T, d *craftedDelta) { d.outline = make([]byte, format.MaxOutline+1) },
			"more than 33554432 bytes"},
		"an empty outline": {func(_ *testing.T, d *craftedDelta) { d.outline = nil }, "outline"},
		"another bundle": {func(_ *testing.T, d *craftedDelta) { d.index.Bundle = layer },
			"and the delta is of " + layer.String()},
		"no bundle": {func(_ *testing.T, d *craftedDelta) { d.index.Bundle = "" }, "bundle: digest"},
		"since nonsense": {func(_ *testing.T, d *craftedDelta) { d.index.Since = []digest.Digest{"x"} },
			"bundle: digest"},
		"a negative place": {func(_ *testing.T, d *craftedDelta) { d.index.LeftOut[0].At = -1 }, "out of order"},
		"a place twice": {func(_ *testing.T, d *craftedDelta) { d.index.LeftOut[1].At = d.index.LeftOut[0].At },
			"out of order"},
		"a place behind all": {func(_ *testing.T, d *craftedDelta) { d.index.LeftOut[1].At = 100 },
			"is to be number 100"},
		"no such place":     {func(_ *testing.T, d *craftedDelta) { d.index.LeftOut[1].At = 1 << 40 }, "out of order"},
		"a negative size":   {func(_ *testing.T, d *craftedDelta) { at(d, layer).Size = -1 }, "out of bounds"},
		"sizes without end": {func(_ *testing.T, d *craftedDelta) { at(d, layer).Size = 1 << 62 }, "out of bounds"},
		"another size": {func(_ *testing.T, d *craftedDelta) { at(d, layer).Size++ },
			"has 10 bytes, its descriptor says 9"},
		"another digest": {func(_ *testing.T, d *craftedDelta) { at(d, layer).Digest = digest.FromString("x") },
			"belongs to nothing"},
		"carried as well": {func(_ *testing.T, d *craftedDelta) {
			d.blobs = append(d.blobs, bundletest.CraftedBlob{Name: layer, Content: []byte(bundletest.CraftedLayer)})
		}, "the member is there twice"},
		"carried instead of another": {func(_ *testing.T, d *craftedDelta) {
			d.blobs[len(d.blobs)-1] = bundletest.CraftedBlob{Name: digest.FromString("x"), Content: []byte("x")}
		}, "is missing"},
		"nothing left out": {func(_ *testing.T, d *craftedDelta) { d.index.LeftOut = nil },
			"which is not left out"},
		"a manifest that is nowhere": {func(t *testing.T, d *craftedDelta) { reoutline(t, d) }, "incomplete bundle"},
		"a trust file in the outline": {func(t *testing.T, d *craftedDelta) {
			whole := bundletest.Craft()
			index, err := json.Marshal(whole.Index)
			if err != nil {
				t.Fatal(err)
			}
			outline := bundletest.Crafted{Trust: trustFile(t, trusttest.First(t)), Blobs: whole.Blobs[:1]}
			d.outline = outline.TarWith(t, index, nil)
		}, "the outline has the member trust.json, which stands in the delta itself"},
		"something else in the outline": {func(t *testing.T, d *craftedDelta) {
			reoutline(t, d, "x")
		}, "which is not left out"},
		"a manifest that is another": {func(_ *testing.T, d *craftedDelta) {
			d.outline = bytes.Replace(d.outline, []byte(`"mediaType":"application/octet-stream"`),
				[]byte(`"mediaType":"application/octet-strean"`), 1)
		}, "holds bytes with the digest"},
	} {
		t.Run(name, func(t *testing.T) {
			d := craftDelta(t, nil)
			test.change(t, d)
			err := check(t, d.tar(t, nil), nil)
			bundletest.WantError(t, err, test.want)
			if !refused(err) && !errors.Is(err, bundle.ErrIncomplete) {
				t.Errorf("not refused for it: %v", err)
			}
		})
	}
}

// TestSignaturesOfDeltas has deltas of which only one half is signed, or by another.
func TestSignaturesOfDeltas(t *testing.T) {
	one, other := bundletest.SignerOf(t, 0), bundletest.SignerOf(t, 1)
	for name, test := range map[string]struct {
		outline, delta *signature.Signer
		want           error
	}{
		"both":                 {one, one, nil},
		"the bundle alone":     {one, nil, signature.ErrNotSigned},
		"the delta alone":      {nil, one, signature.ErrNotSigned},
		"the delta by another": {one, other, signature.ErrWrongKey},
		"of another's bundle":  {other, one, signature.ErrWrongKey},
	} {
		t.Run(name, func(t *testing.T) {
			err := check(t, craftDelta(t, test.outline).tar(t, test.delta), one.PublicKey())
			if !errors.Is(err, test.want) || test.want == nil && err != nil {
				t.Errorf("%v, expected %v", err, test.want)
			}
		})
	}
}

// FuzzDelta reads hostile deltas: nothing but an error may come of them, and what is accepted
// and complete is a bundle that is accepted.
func FuzzDelta(f *testing.F) {
	d := craftDelta(f, nil)
	whole := bundletest.Craft().Tar(f, nil)
	leftOut, err := json.Marshal(d.index.LeftOut)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(leftOut, d.outline, string(d.index.Bundle))
	f.Add([]byte("[]"), d.outline, string(d.index.Bundle))
	f.Fuzz(func(t *testing.T, leftOut, outline []byte, of string) {
		d := craftDelta(t, nil)
		if json.Unmarshal(leftOut, &d.index.LeftOut) != nil {
			t.Skip("it is no list of blobs")
		}
		d.outline, d.index.Bundle = outline, digest.Digest(of)
		file := d.tar(t, nil)
		r, err := bundle.NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
		if err != nil {
			if !refused(err) {
				t.Errorf("not one of the errors for which a bundle is refused: %v", err)
			}
			return
		}
		_ = r.Delta()
		_, _ = r.Contents()
		base, err := bundle.NewReader(bytes.NewReader(whole), int64(len(whole)), "bundle.tar")
		if err != nil {
			t.Fatal(err)
		}
		r.Use(base)
		if r.Verify(t.Context(), nil) != nil || r.RequireAll() != nil || r.Whole().Size() > 1<<20 {
			return
		}
		joined := make([]byte, r.Whole().Size())
		if _, err := r.Whole().ReadAt(joined, 0); err != nil {
			t.Fatal(err)
		}
		if err := check(t, joined, nil); err != nil {
			t.Errorf("a delta is accepted, and its bundle is not: %v", err)
		}
	})
}
