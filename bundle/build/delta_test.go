package build_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/test/bundletest"
)

// TestDeltaSize is the promise about the size: the new bytes and one percent, when two
// images were changed by one layer.
func TestDeltaSize(t *testing.T) {
	m := bundletest.NewMaker(t)
	m.Signer = bundletest.NewSigner(t)
	old, _ := m.Build("old.tar", bundletest.LargeRelease(), nil)
	whole, _ := m.Build("new.tar", bundletest.LargeRelease(2, 7), nil)
	delta, result := m.Build("delta.tar", bundletest.LargeRelease(2, 7), m.Since(old))
	d, err := bundle.Compare(m.Open(old), m.Open(whole))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(delta)
	if err != nil {
		t.Fatal(err)
	}
	if most := d.New.Bytes + d.New.Bytes/100; info.Size() > most {
		t.Errorf("the delta has %d bytes; %d are new, so %d is the most", info.Size(), d.New.Bytes, most)
	}
	t.Logf("new: %d bytes, delta: %d (%.3f%% more), whole: %d", d.New.Bytes, info.Size(),
		100*float64(info.Size()-d.New.Bytes)/float64(d.New.Bytes), m.Open(whole).Size())
	if result.Size != info.Size() || result.Digest != m.Open(whole).Digest() || result.LeftOut.Blobs == 0 {
		t.Errorf("the build says %+v", result)
	}

	// Nothing is in it that the other side holds, but for the manifests in the outline.
	had := m.Open(old)
	for _, e := range membersOf(t, delta) {
		if d := e.Digest(); d != "" && had.Has(d) {
			t.Errorf("the base holds %s, %d bytes", d, e.Size)
		}
	}
}

// membersOf lists what is in a file, whatever it is.
func membersOf(t *testing.T, path string) []ocitar.Entry {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tar, err := ocitar.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	return tar.Layout().Entries
}

// TestDelta reads a delta with and without its base.
func TestDelta(t *testing.T) {
	m := bundletest.NewMaker(t)
	m.Signer = bundletest.NewSigner(t)
	old, _ := m.Build("old.tar", bundletest.Release(), nil)
	whole, _ := m.Build("new.tar", bundletest.Release(3), nil)
	path, _ := m.Build("delta.tar", bundletest.Release(3), m.Since(old))
	full := m.Open(whole)

	alone := m.Open(path)
	if alone.Digest() != full.Digest() {
		t.Errorf("the digest is %s, that of the bundle %s", alone.Digest(), full.Digest())
	}
	if err := alone.VerifySignature(m.Signer.PublicKey()); err != nil {
		t.Error(err)
	}
	if err := alone.VerifySignature(bundletest.NewSigner(t).PublicKey()); !errors.Is(err, signature.ErrWrongKey) {
		t.Errorf("with another key: %v", err)
	}
	if err := alone.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	want, err := full.Contents()
	if err != nil {
		t.Fatal(err)
	}
	got, err := alone.Contents()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("contents (-bundle +delta):\n%s", diff)
	}
	for _, platform := range want.Platforms() {
		want, err := full.Packs(platform, bundle.PackOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := alone.Packs(platform, bundle.PackOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("packs for %s (-bundle +delta):\n%s", platform, diff)
		}
	}

	info := alone.Delta()
	if diff := cmp.Diff([]digest.Digest{m.Open(old).Digest()}, info.Since); diff != "" {
		t.Errorf("since (-want +got):\n%s", diff)
	}
	if info.WholeSize != full.Size() || len(info.Missing) != info.LeftOut.Blobs || info.LeftOut.Blobs == 0 {
		t.Errorf("it says %+v", info)
	}
	k3s, _ := got.File("k3s", "k3s", "linux/arm64")
	_, err = alone.Content(k3s.Digest, k3s.Size)
	var missing *bundle.MissingError
	if !errors.As(err, &missing) || !errors.Is(err, bundle.ErrIncomplete) || missing.Blobs[0].Digest != k3s.Digest {
		t.Errorf("a blob that is left out: %v", err)
	}
	for _, part := range []string{string(k3s.Digest), "300000 bytes", "of k3s linux/arm64",
		"the bundle " + m.Open(old).Digest().String() + " holds them"} {
		if err := alone.Require(k3s.Digest); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("what is required: %v, expected %q", err, part)
		}
	}
	if err := alone.Require(want.Images[3].Digest); err != nil {
		t.Errorf("what is there is required: %v", err)
	}

	both := m.Open(path, old)
	if err := both.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if info := both.Delta(); len(info.Missing) > 0 {
		t.Errorf("with its base it lacks %v", info.Missing)
	}
	for _, e := range membersOf(t, whole) {
		if e.Digest() == "" {
			continue
		}
		content, err := both.Content(e.Digest(), e.Size)
		if err == nil {
			_, err = io.Copy(io.Discard, content)
		}
		if err != nil {
			t.Error(err)
		}
	}
	if d, err := bundle.Compare(full, alone); err != nil || !d.Same() || d.New.Blobs+d.Gone.Blobs > 0 {
		t.Errorf("compared with its bundle: %+v, %v", d, err)
	}
	if !bytes.Equal(m.Read(m.Join(path, old)), m.Read(whole)) {
		t.Error("joined, it is not the bundle")
	}
}

// TestDeltasSinceTheSame builds on a bundle, and on hosts that hold as much.
func TestDeltasSinceTheSame(t *testing.T) {
	m := bundletest.NewMaker(t)
	old, _ := m.Build("old.tar", bundletest.Release(), nil)
	of := bundletest.Release(0, 11)
	want, _ := m.Build("delta.tar", of, m.Since(old))

	held := make(map[digest.Digest]int64)
	for _, e := range membersOf(t, old) {
		if d := e.Digest(); d != "" {
			held[d] = e.Size
		}
	}
	hosts := func(change func(h []have.Host)) *plan.Base {
		list := []have.Host{
			{Name: "10.0.0.1", Platform: "linux/arm64", Bundles: []digest.Digest{m.Open(old).Digest()},
				Blobs: clone(held)},
			{Name: "10.0.0.2", Platform: "linux/amd64", Bundles: []digest.Digest{m.Open(old).Digest()},
				Blobs: clone(held)},
		}
		if change != nil {
			change(list)
		}
		content, err := have.Of("lan-1", list).Encode()
		if err != nil {
			t.Fatal(err)
		}
		h, err := have.Parse(content)
		if err != nil {
			t.Fatal(err)
		}
		base := &plan.Base{}
		base.AddHosts(h)
		return base
	}
	got, _ := m.Build("since-hosts.tar", of, hosts(nil))
	if !bytes.Equal(m.Read(got), m.Read(want)) {
		t.Error("since hosts that hold the same it is another delta")
	}

	// What one of the hosts lacks is carried, unless it is for the other's platform.
	contents, err := m.Open(old).Contents()
	if err != nil {
		t.Fatal(err)
	}
	amd64, arm64 := contents.Images[2].Platforms[0], contents.Images[2].Platforms[1]
	lacking, _ := m.Build("lacking.tar", of, hosts(func(h []have.Host) {
		delete(h[0].Blobs, amd64.Layers[2].Digest) // for the other platform
		delete(h[0].Blobs, arm64.Layers[2].Digest)
	}))
	var more []digest.Digest
	there := membersOf(t, want)
	for _, e := range membersOf(t, lacking)[3:] { // all but the outline
		if !slices.ContainsFunc(there, func(o ocitar.Entry) bool { return o.Name == e.Name }) {
			more = append(more, e.Digest())
		}
	}
	if diff := cmp.Diff([]digest.Digest{arm64.Layers[2].Digest}, more); diff != "" {
		t.Errorf("carried since a host lacks it (-want +got):\n%s", diff)
	}
}

func clone(m map[digest.Digest]int64) map[digest.Digest]int64 {
	c := make(map[digest.Digest]int64, len(m))
	for d, size := range m {
		c[d] = size
	}
	return c
}

// TestDeltaOfDelta builds a delta on what another one is of.
func TestDeltaOfDelta(t *testing.T) {
	m := bundletest.NewMaker(t)
	old, _ := m.Build("old.tar", bundletest.Release(), nil)
	first, _ := m.Build("first.tar", bundletest.Release(1), m.Since(old))
	whole, _ := m.Build("new.tar", bundletest.Release(1, 2), nil)
	second, _ := m.Build("second.tar", bundletest.Release(1, 2), m.Since(first))
	if diff := cmp.Diff([]digest.Digest{m.Open(first).Digest()}, m.Open(second).Delta().Since); diff != "" {
		t.Errorf("since (-want +got):\n%s", diff)
	}
	if !bytes.Equal(m.Read(m.Join(second, first, old)), m.Read(whole)) {
		t.Error("joined, it is not the bundle")
	}
	r := m.Open(second, first)
	if err := r.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if len(r.Delta().Missing) == 0 {
		t.Error("a delta alone supplies what it does not have")
	}
	if _, err := build.Join(t.Context(), r, build.JoinOptions{Path: filepath.Join(m.Dir, "x.tar")}); !errors.Is(err,
		bundle.ErrIncomplete) {
		t.Errorf("joined without the first bundle: %v", err)
	}

	// On two bundles at once.
	both, _ := m.Build("both.tar", bundletest.Release(1, 2), m.Since(old, first))
	if !bytes.Equal(m.Read(m.Join(both, first, old)), m.Read(whole)) {
		t.Error("joined, the one since both is not the bundle")
	}
	// On the bundle itself nothing is left to carry.
	nothing, result := m.Build("nothing.tar", bundletest.Release(), m.Since(old))
	if members := membersOf(t, nothing); len(members) != 3 || result.Size > 30_000 {
		t.Errorf("since itself it has %d members and %d bytes", len(members), result.Size)
	}
	if !bytes.Equal(m.Read(m.Join(nothing, old)), m.Read(old)) {
		t.Error("joined, the one since itself is not the bundle")
	}
}

// TestDeltaForms reads and joins deltas in volumes and encrypted ones.
func TestDeltaForms(t *testing.T) {
	m := bundletest.NewMaker(t)
	m.Signer = bundletest.NewSigner(t)
	old, _ := m.Build("old.tar", bundletest.Release(), nil)
	whole, _ := m.Build("new.tar", bundletest.Release(5), nil)
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for name, form := range map[string]build.Output{
		"volumes": {VolumeSize: 1 << 18},
		"encrypted": {VolumeSize: 1 << 18, Recipients: []age.Recipient{identity.Recipient()},
			Identities: []age.Identity{identity}},
	} {
		t.Run(name, func(t *testing.T) {
			path, result := m.Build(name+".tar", bundletest.Release(5), m.Since(old),
				func(o *build.Options) { o.Output = form })
			if result.Volumes < 3 {
				t.Errorf("%d volumes", result.Volumes)
			}
			r, err := bundle.Open(path, identity)
			if err != nil {
				t.Fatal(err)
			}
			r.Use(m.Open(old))
			defer r.Close()
			if err := r.Verify(t.Context(), nil); err != nil {
				t.Error(err)
			}
			joined := filepath.Join(m.Dir, name+"-joined.tar")
			if _, err := build.Join(t.Context(), r, build.JoinOptions{Path: joined, Output: form}); err != nil {
				t.Fatal(err)
			}
			j, err := bundle.Open(joined, identity)
			if err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			content, err := io.ReadAll(io.NewSectionReader(j.File(), 0, j.File().Size()))
			if err != nil || !bytes.Equal(content, m.Read(whole)) {
				t.Errorf("joined, it is not the bundle: %v", err)
			}
			again, err := build.Join(t.Context(), r, build.JoinOptions{Path: joined, Output: form})
			if err != nil || !again.Unchanged {
				t.Errorf("joined again: %+v, %v", again, err)
			}
		})
	}
}

// TestDamagedDelta flips bytes of a delta and of its base.
func TestDamagedDelta(t *testing.T) {
	m := bundletest.NewMaker(t)
	m.Signer = bundletest.NewSigner(t)
	old, _ := m.Build("old.tar", bundletest.Release(), nil)
	path, _ := m.Build("delta.tar", bundletest.Release(4), m.Since(old))
	content := m.Read(path)
	damaged := filepath.Join(m.Dir, "damaged.tar")
	step := max(len(content)/200, 1)
	for at := 0; at < len(content); at += step {
		flipped := bytes.Clone(content)
		flipped[at] ^= 0x10
		if err := os.WriteFile(damaged, flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := bundle.Open(damaged)
		if err == nil {
			err = errors.Join(r.VerifySignature(m.Signer.PublicKey()), r.Verify(t.Context(), nil), r.Close())
		}
		if !errors.Is(err, bundle.ErrInvalid) && !errors.Is(err, ocitar.ErrMalformed) {
			t.Fatalf("a flipped bit at %d: %v", at, err)
		}
	}

	whole := m.Read(old)
	r := m.Open(old)
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	k3s, _ := contents.File("k3s", "k3s", "linux/amd64")
	tar, err := ocitar.NewReader(bytes.NewReader(whole), int64(len(whole)))
	if err != nil {
		t.Fatal(err)
	}
	e, _ := tar.Blob(k3s.Digest)
	offset := e.Offset
	whole[offset+100] ^= 1
	if err := os.WriteFile(damaged, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	both := m.Open(path, damaged)
	for name, err := range map[string]error{"verify": both.Verify(t.Context(), nil),
		"join": joinError(t, both, filepath.Join(m.Dir, "x.tar"))} {
		if !errors.Is(err, bundle.ErrInvalid) || !strings.Contains(err.Error(), k3s.Digest.Encoded()) {
			t.Errorf("%s with a damaged base: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(m.Dir, "x.tar")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was joined from a damaged base is there: %v", err)
	}
}

func joinError(t *testing.T, r *bundle.Reader, path string) error {
	_, err := build.Join(t.Context(), r, build.JoinOptions{Path: path})
	return err
}

// TestHostsOfOnePlatform leaves a blob out for hosts of the platforms that want it.
func TestHostsOfOnePlatform(t *testing.T) {
	m := bundletest.NewMaker(t)
	old, _ := m.Build("old.tar", bundletest.Release(), nil)
	contents, err := m.Open(old).Contents()
	if err != nil {
		t.Fatal(err)
	}
	held := make(map[digest.Digest]int64)
	for _, image := range contents.Images {
		held[image.Digest] = image.Size
		on, _ := image.On("linux/amd64")
		for _, d := range append(on.Platforms[0].Layers, on.Platforms[0].Manifest, on.Platforms[0].Config) {
			held[d.Digest] = d.Size
		}
	}
	base := &plan.Base{}
	base.AddHosts(have.Of("lan-1", []have.Host{{Name: "a", Platform: lock.Platform("linux/amd64"), Blobs: held}}))
	path, _ := m.Build("delta.tar", bundletest.Release(), base)
	r := m.Open(path)
	if since := r.Delta().Since; len(since) != 0 {
		t.Errorf("since %v", since)
	}
	for _, blob := range r.Delta().Missing {
		if !strings.HasSuffix(blob.Of, " linux/amd64") {
			t.Errorf("%s is left out", blob.Of)
		}
	}
	if err := r.Require(r.Delta().Missing[0].Digest); err == nil ||
		!strings.Contains(err.Error(), "no bundle is on record that holds them") {
		t.Errorf("what no bundle holds: %v", err)
	}
}
