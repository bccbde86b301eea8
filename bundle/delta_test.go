package bundle_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

// noise is content that no compression makes smaller, the same for every run.
func noise(seed string, size int) string {
	var key [32]byte
	copy(key[:], seed)
	content := make([]byte, size)
	_, _ = rand.NewChaCha8(key).Read(content) // never fails
	return string(content)
}

// release describes a bundle of twelve images with three layers each, of which those in
// changed have another layer at the top.
func release(changed ...int) smallbundle.Bundle {
	k3s := smallbundle.Component{
		Name: "k3s", Version: "v1.0.0",
		Files: []smallbundle.File{
			{Name: "install.sh", Content: "#!/bin/sh\n"},
			{Name: "k3s", Platform: "linux/amd64", Content: noise("k3s amd64", 300_000)},
			{Name: "k3s", Platform: "linux/arm64", Content: noise("k3s arm64", 300_000)},
		},
	}
	cilium := smallbundle.Component{Name: "cilium", Version: "1.0.0", Charts: []smallbundle.File{{Name: "cilium", Content: noise("chart", 9_000)}}}
	for i := range 12 {
		c := &k3s
		if i%2 == 1 {
			c = &cilium
		}
		image := smallbundle.Image{Ref: fmt.Sprintf("docker.io/example/image-%d:v1", i)}
		for _, platform := range []string{"linux/amd64", "linux/arm64"} {
			top := fmt.Sprintf("top %d %s", i, platform)
			if slices.Contains(changed, i) {
				top += " changed"
			}
			image.Platforms = append(image.Platforms, smallbundle.Platform{Name: platform, Layers: [][]byte{
				[]byte(noise("base "+platform, 200_000)), []byte(noise(fmt.Sprintf("middle %d", i), 50_000)), []byte(noise(top, 1_500_000)),
			}})
		}
		c.Images = append(c.Images, image)
	}
	return smallbundle.Bundle{Components: []smallbundle.Component{k3s, cilium}}
}

// maker makes bundles in a folder.
type maker struct {
	t      *testing.T
	dir    string
	signer *signature.Signer
}

func newMaker(t *testing.T) *maker { return &maker{t: t, dir: t.TempDir()} }

// build builds what a description is of; since makes a delta.
func (m *maker) build(name string, of smallbundle.Bundle, since *bundle.Base, change ...func(*bundle.BuildOptions)) (string, *bundle.BuildResult) {
	m.t.Helper()
	of.Signer = m.signer
	path := filepath.Join(m.dir, name)
	return path, smallbundle.Build(m.t, path, of, since, change...)
}

func (m *maker) open(path string, bases ...string) *bundle.Reader {
	m.t.Helper()
	r, err := bundle.Open(path)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = r.Close() })
	for _, base := range bases {
		b, err := bundle.Open(base)
		if err != nil {
			m.t.Fatal(err)
		}
		r.Use(b)
	}
	return r
}

// since is the base that a bundle is.
func (m *maker) since(paths ...string) *bundle.Base {
	m.t.Helper()
	base := &bundle.Base{}
	for _, path := range paths {
		base.AddBundle(m.open(path))
	}
	return base
}

func (m *maker) read(path string) []byte {
	m.t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		m.t.Fatal(err)
	}
	return content
}

func (m *maker) join(delta string, bases ...string) string {
	m.t.Helper()
	path := delta + ".joined"
	if _, err := bundle.Join(m.t.Context(), m.open(delta, bases...), bundle.JoinOptions{Path: path}); err != nil {
		m.t.Fatal(err)
	}
	return path
}

// TestDeltaSize is the promise about the size: the new bytes and one percent, when two
// images were changed by one layer.
func TestDeltaSize(t *testing.T) {
	m := newMaker(t)
	m.signer = newSigner(t)
	old, _ := m.build("old.tar", release(), nil)
	whole, _ := m.build("new.tar", release(2, 7), nil)
	delta, result := m.build("delta.tar", release(2, 7), m.since(old))
	d, err := bundle.Compare(m.open(old), m.open(whole))
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
	t.Logf("new: %d bytes, delta: %d (%.3f%% more), whole: %d", d.New.Bytes, info.Size(), 100*float64(info.Size()-d.New.Bytes)/float64(d.New.Bytes), m.open(whole).Size())
	if result.Size != info.Size() || result.Digest != m.open(whole).Digest() || result.LeftOut.Blobs == 0 {
		t.Errorf("the build says %+v", result)
	}

	// Nothing is in it that the other side holds, but for the manifests in the outline.
	had := m.open(old)
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

func newSigner(t *testing.T) *signature.Signer {
	t.Helper()
	private, _, err := signature.GenerateKey([]byte("password"))
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signature.LoadSigner(private, []byte("password"))
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// TestDelta reads a delta with and without its base.
func TestDelta(t *testing.T) {
	m := newMaker(t)
	m.signer = newSigner(t)
	old, _ := m.build("old.tar", release(), nil)
	whole, _ := m.build("new.tar", release(3), nil)
	path, _ := m.build("delta.tar", release(3), m.since(old))
	full := m.open(whole)

	alone := m.open(path)
	if alone.Digest() != full.Digest() {
		t.Errorf("the digest is %s, that of the bundle %s", alone.Digest(), full.Digest())
	}
	if err := alone.VerifySignature(m.signer.PublicKey()); err != nil {
		t.Error(err)
	}
	if err := alone.VerifySignature(newSigner(t).PublicKey()); !errors.Is(err, signature.ErrWrongKey) {
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
	if diff := cmp.Diff([]digest.Digest{m.open(old).Digest()}, info.Since); diff != "" {
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
	for _, part := range []string{string(k3s.Digest), "300000 bytes", "of k3s linux/arm64", "the bundle " + m.open(old).Digest().String() + " holds them"} {
		if err := alone.Require(k3s.Digest); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("what is required: %v, expected %q", err, part)
		}
	}
	if err := alone.Require(want.Images[3].Digest); err != nil {
		t.Errorf("what is there is required: %v", err)
	}

	both := m.open(path, old)
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
	if !bytes.Equal(m.read(m.join(path, old)), m.read(whole)) {
		t.Error("joined, it is not the bundle")
	}
}

// TestDeltasSinceTheSame builds on a bundle, and on hosts that hold as much.
func TestDeltasSinceTheSame(t *testing.T) {
	m := newMaker(t)
	old, _ := m.build("old.tar", release(), nil)
	of := release(0, 11)
	want, _ := m.build("delta.tar", of, m.since(old))

	held := make(map[digest.Digest]int64)
	for _, e := range membersOf(t, old) {
		if d := e.Digest(); d != "" {
			held[d] = e.Size
		}
	}
	hosts := func(change func(h []have.Host)) *bundle.Base {
		list := []have.Host{
			{Name: "10.0.0.1", Platform: "linux/arm64", Bundles: []digest.Digest{m.open(old).Digest()}, Blobs: clone(held)},
			{Name: "10.0.0.2", Platform: "linux/amd64", Bundles: []digest.Digest{m.open(old).Digest()}, Blobs: clone(held)},
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
		base := &bundle.Base{}
		base.AddHosts(h)
		return base
	}
	got, _ := m.build("since-hosts.tar", of, hosts(nil))
	if !bytes.Equal(m.read(got), m.read(want)) {
		t.Error("since hosts that hold the same it is another delta")
	}

	// What one of the hosts lacks is carried, unless it is for the other's platform.
	contents, err := m.open(old).Contents()
	if err != nil {
		t.Fatal(err)
	}
	amd64, arm64 := contents.Images[2].Platforms[0], contents.Images[2].Platforms[1]
	lacking, _ := m.build("lacking.tar", of, hosts(func(h []have.Host) {
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
	m := newMaker(t)
	old, _ := m.build("old.tar", release(), nil)
	first, _ := m.build("first.tar", release(1), m.since(old))
	whole, _ := m.build("new.tar", release(1, 2), nil)
	second, _ := m.build("second.tar", release(1, 2), m.since(first))
	if diff := cmp.Diff([]digest.Digest{m.open(first).Digest()}, m.open(second).Delta().Since); diff != "" {
		t.Errorf("since (-want +got):\n%s", diff)
	}
	if !bytes.Equal(m.read(m.join(second, first, old)), m.read(whole)) {
		t.Error("joined, it is not the bundle")
	}
	r := m.open(second, first)
	if err := r.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if len(r.Delta().Missing) == 0 {
		t.Error("a delta alone supplies what it does not have")
	}
	if _, err := bundle.Join(t.Context(), r, bundle.JoinOptions{Path: filepath.Join(m.dir, "x.tar")}); !errors.Is(err, bundle.ErrIncomplete) {
		t.Errorf("joined without the first bundle: %v", err)
	}

	// On two bundles at once.
	both, _ := m.build("both.tar", release(1, 2), m.since(old, first))
	if !bytes.Equal(m.read(m.join(both, first, old)), m.read(whole)) {
		t.Error("joined, the one since both is not the bundle")
	}
	// On the bundle itself nothing is left to carry.
	nothing, result := m.build("nothing.tar", release(), m.since(old))
	if members := membersOf(t, nothing); len(members) != 3 || result.Size > 30_000 {
		t.Errorf("since itself it has %d members and %d bytes", len(members), result.Size)
	}
	if !bytes.Equal(m.read(m.join(nothing, old)), m.read(old)) {
		t.Error("joined, the one since itself is not the bundle")
	}
}

// TestDeltaForms reads and joins deltas in volumes and encrypted ones.
func TestDeltaForms(t *testing.T) {
	m := newMaker(t)
	m.signer = newSigner(t)
	old, _ := m.build("old.tar", release(), nil)
	whole, _ := m.build("new.tar", release(5), nil)
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for name, form := range map[string]bundle.OutputOptions{
		"volumes":   {VolumeSize: 1 << 20},
		"encrypted": {VolumeSize: 1 << 20, Recipients: []age.Recipient{identity.Recipient()}, Identities: []age.Identity{identity}},
	} {
		t.Run(name, func(t *testing.T) {
			path, result := m.build(name+".tar", release(5), m.since(old), func(o *bundle.BuildOptions) { o.OutputOptions = form })
			if result.Volumes < 3 {
				t.Errorf("%d volumes", result.Volumes)
			}
			r, err := bundle.Open(path, identity)
			if err != nil {
				t.Fatal(err)
			}
			r.Use(m.open(old))
			defer r.Close()
			if err := r.Verify(t.Context(), nil); err != nil {
				t.Error(err)
			}
			joined := filepath.Join(m.dir, name+"-joined.tar")
			if _, err := bundle.Join(t.Context(), r, bundle.JoinOptions{Path: joined, OutputOptions: form}); err != nil {
				t.Fatal(err)
			}
			j, err := bundle.Open(joined, identity)
			if err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			content, err := io.ReadAll(io.NewSectionReader(j.File(), 0, j.File().Size()))
			if err != nil || !bytes.Equal(content, m.read(whole)) {
				t.Errorf("joined, it is not the bundle: %v", err)
			}
			again, err := bundle.Join(t.Context(), r, bundle.JoinOptions{Path: joined, OutputOptions: form})
			if err != nil || !again.Unchanged {
				t.Errorf("joined again: %+v, %v", again, err)
			}
		})
	}
}

// TestDamagedDelta flips bytes of a delta and of its base.
func TestDamagedDelta(t *testing.T) {
	m := newMaker(t)
	m.signer = newSigner(t)
	old, _ := m.build("old.tar", release(), nil)
	path, _ := m.build("delta.tar", release(4), m.since(old))
	content := m.read(path)
	damaged := filepath.Join(m.dir, "damaged.tar")
	step := max(len(content)/200, 1)
	for at := 0; at < len(content); at += step {
		flipped := bytes.Clone(content)
		flipped[at] ^= 0x10
		if err := os.WriteFile(damaged, flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := bundle.Open(damaged)
		if err == nil {
			err = errors.Join(r.VerifySignature(m.signer.PublicKey()), r.Verify(t.Context(), nil), r.Close())
		}
		if !errors.Is(err, bundle.ErrInvalid) && !errors.Is(err, ocitar.ErrMalformed) {
			t.Fatalf("a flipped bit at %d: %v", at, err)
		}
	}

	whole := m.read(old)
	r := m.open(old)
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
	both := m.open(path, damaged)
	for name, err := range map[string]error{"verify": both.Verify(t.Context(), nil), "join": joinError(t, both, filepath.Join(m.dir, "x.tar"))} {
		if !errors.Is(err, bundle.ErrInvalid) || !strings.Contains(err.Error(), k3s.Digest.Encoded()) {
			t.Errorf("%s with a damaged base: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(m.dir, "x.tar")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was joined from a damaged base is there: %v", err)
	}
}

func joinError(t *testing.T, r *bundle.Reader, path string) error {
	_, err := bundle.Join(t.Context(), r, bundle.JoinOptions{Path: path})
	return err
}

// TestHostsOfOnePlatform leaves a blob out for hosts of the platforms that want it.
func TestHostsOfOnePlatform(t *testing.T) {
	m := newMaker(t)
	old, _ := m.build("old.tar", release(), nil)
	contents, err := m.open(old).Contents()
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
	base := &bundle.Base{}
	base.AddHosts(have.Of("lan-1", []have.Host{{Name: "a", Platform: lock.Platform("linux/amd64"), Blobs: held}}))
	path, _ := m.build("delta.tar", release(), base)
	r := m.open(path)
	if since := r.Delta().Since; len(since) != 0 {
		t.Errorf("since %v", since)
	}
	for _, blob := range r.Delta().Missing {
		if !strings.HasSuffix(blob.Of, " linux/amd64") {
			t.Errorf("%s is left out", blob.Of)
		}
	}
	if err := r.Require(r.Delta().Missing[0].Digest); err == nil || !strings.Contains(err.Error(), "no bundle is on record that holds them") {
		t.Errorf("what no bundle holds: %v", err)
	}
}
