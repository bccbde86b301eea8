package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/test/ocilayout"
)

// crafted is a bundle made by hand, which can be made wrong before it is signed.
type crafted struct {
	index ocispec.Index
	blobs []craftedBlob
}

type craftedBlob struct {
	name    digest.Digest
	content []byte
}

func (c *crafted) add(mediaType string, content []byte) ocispec.Descriptor {
	d := descriptorOf(mediaType, content)
	c.blobs = append(c.blobs, craftedBlob{d.Digest, content})
	return d
}

func (c *crafted) addJSON(mediaType string, v any) ocispec.Descriptor {
	content, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return c.add(mediaType, content)
}

// remove takes a blob out by its content.
func (c *crafted) remove(content string) {
	c.blobs = slices.DeleteFunc(c.blobs, func(b craftedBlob) bool { return string(b.content) == content })
}

const (
	craftedImage = "example.com/a/b:1"
	craftedLayer = "the layer"
	craftedFile  = "the file"
)

// craft makes a bundle of one file and one image of two platforms, of which one is there.
func craft() *crafted {
	c := &crafted{index: ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, ArtifactType: ArtifactType,
		Annotations: map[string]string{AnnotationVersion: "v1.2.3"},
	}}
	config := c.addJSON(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}})
	layer := c.add(ocispec.MediaTypeImageLayerGzip, []byte(craftedLayer))
	manifest := c.addJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: []ocispec.Descriptor{layer},
	})
	manifest.Platform = &ocispec.Platform{OS: "linux", Architecture: "amd64"}
	absent := descriptorOf(ocispec.MediaTypeImageManifest, []byte("{}2"))
	absent.Platform = &ocispec.Platform{OS: "linux", Architecture: "s390x"}
	root := c.addJSON(ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{manifest, absent},
	})
	root.Annotations = map[string]string{AnnotationComponent: "a", AnnotationVersion: "1", AnnotationImageName: craftedImage}

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
`, digest.FromString(craftedFile).Encoded(), len(craftedFile), craftedImage, root.Digest)
	c.add(ocispec.DescriptorEmptyJSON.MediaType, ocispec.DescriptorEmptyJSON.Data)
	c.addFile(LockComponent, LockFile, lockArtifactType, lockMediaType, []byte(lockText))
	c.addFile("a", "f", fileArtifactType, fileMediaType, []byte(craftedFile))
	c.index.Manifests = append(c.index.Manifests, root)
	return c
}

func (c *crafted) addFile(component, title, artifactType, mediaType string, content []byte) {
	manifest, err := fileManifest(artifactType, c.add(mediaType, content), title)
	if err != nil {
		panic(err)
	}
	d := c.add(ocispec.MediaTypeImageManifest, manifest)
	d.ArtifactType = artifactType
	d.Annotations = map[string]string{AnnotationComponent: component, ocispec.AnnotationTitle: title}
	c.index.Manifests = append(c.index.Manifests, d)
}

// tar writes the file, signed unless signer is nil.
func (c *crafted) tar(t testing.TB, signer *signature.Signer) []byte {
	t.Helper()
	index, err := json.Marshal(c.index)
	if err != nil {
		t.Fatal(err)
	}
	return c.tarWith(t, index, signer)
}

func (c *crafted) tarWith(t testing.TB, index []byte, signer *signature.Signer) []byte {
	t.Helper()
	contents := [][]byte{[]byte(ocitar.LayoutContent), index}
	members := []ocitar.Member{{Name: ocitar.LayoutFile}, {Name: ocitar.IndexFile}}
	if signer != nil {
		s, err := signer.Sign(index)
		if err != nil {
			t.Fatal(err)
		}
		contents = append(contents, s.Bundle, s.Base64)
		members = append(members, ocitar.Member{Name: ocitar.SigstoreBundleFile}, ocitar.Member{Name: ocitar.SignatureFile})
	}
	for _, b := range c.blobs {
		contents = append(contents, b.content)
		members = append(members, ocitar.Blob(b.name, 0))
	}
	for i := range members {
		members[i].Size = int64(len(contents[i]))
	}
	return ocilayout.Tar(t, members, contents)
}

// check does all that is done before a bundle is trusted.
func check(t testing.TB, file []byte, key *signature.PublicKey) error {
	t.Helper()
	r, err := NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
	if err != nil {
		return err
	}
	if key != nil {
		if err := r.VerifySignature(key); err != nil {
			return err
		}
	}
	return r.Verify(t.Context(), nil)
}

// refused says whether an error is one of those for which a bundle is refused.
func refused(err error) bool {
	return errors.Is(err, ErrInvalid) || errors.Is(err, ocitar.ErrMalformed)
}

func TestCrafted(t *testing.T) {
	signer := signerOf(t, 0)
	if err := check(t, craft().tar(t, signer), signer.PublicKey()); err != nil {
		t.Fatal(err)
	}
	if err := check(t, craft().tar(t, nil), nil); err != nil {
		t.Fatal(err)
	}
}

// TestEveryFlippedByte changes the bytes of a signed bundle, one at a time; each run takes
// another quarter of them.
func TestEveryFlippedByte(t *testing.T) {
	signer := signerOf(t, 0)
	file := craft().tar(t, signer)
	for i := rand.IntN(4); i < len(file); i += 4 {
		file[i] ^= 1 << (i % 8)
		err := check(t, file, signer.PublicKey())
		if err == nil {
			t.Errorf("the flipped byte at %d was not noticed", i)
		} else if !refused(err) {
			t.Errorf("the flipped byte at %d: %v", i, err)
		}
		file[i] ^= 1 << (i % 8)
	}
}

// TestFlippedBytes does the same in places of a bundle with real contents.
func TestFlippedBytes(t *testing.T) {
	s := upstreamServer(t)
	signer := signerOf(t, 0)
	path := filepath.Join(t.TempDir(), "b.tar")
	mustBuild(t, smallLock(t), newClient(s), path, signer)
	file := mustRead(t, path)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	var places []int64
	for _, e := range mustOpen(t, path).Tar().Layout().Entries {
		places = append(places, e.HeaderOffset()+random.Int64N(ocitar.BlockSize))
		if e.Size > 0 {
			places = append(places, e.Offset+random.Int64N(e.Size))
		}
		if pad := e.End() - e.Offset - e.Size; pad > 0 {
			places = append(places, e.Offset+e.Size+random.Int64N(pad))
		}
	}
	places = append(places, int64(len(file))-1-random.Int64N(ocitar.TrailerSize))
	for _, i := range places {
		file[i] ^= 1 << random.IntN(8)
		err := check(t, file, signer.PublicKey())
		if err == nil || !refused(err) {
			t.Errorf("seed %d: the flipped byte at %d: %v", seed, i, err)
		}
		file[i] = mustReadAt(t, path, i)
	}
	if err := check(t, file, signer.PublicKey()); err != nil {
		t.Error(err)
	}
}

func mustReadAt(t *testing.T, path string, at int64) byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	return b[0]
}

func TestEveryTruncation(t *testing.T) {
	file := craft().tar(t, nil)
	for n := range file {
		if _, err := NewReader(bytes.NewReader(file[:n]), int64(n), "bundle.tar"); !errors.Is(err, ocitar.ErrMalformed) {
			t.Errorf("cut off after %d of %d bytes: %v", n, len(file), err)
		}
	}
	for _, n := range []int{1, 512, 1024, 10240} {
		if err := check(t, append(bytes.Clone(file), make([]byte, n)...), nil); !errors.Is(err, ocitar.ErrMalformed) {
			t.Errorf("%d zeros behind it: %v", n, err)
		}
	}
}

// TestRefused has bundles that are wrong although nobody changed them since: each was
// signed as it is.
func TestRefused(t *testing.T) {
	file := func(c *crafted) *ocispec.Descriptor { return &c.index.Manifests[1] }
	image := func(c *crafted) *ocispec.Descriptor { return &c.index.Manifests[2] }
	tests := map[string]struct {
		change func(*crafted)
		want   []string
	}{
		"layer missing": {
			func(c *crafted) { c.remove(craftedLayer) },
			[]string{"blob " + digest.FromString(craftedLayer).String() + " of " + craftedImage + " (linux/amd64) is missing"},
		},
		"layer and file missing": {
			func(c *crafted) { c.remove(craftedLayer); c.remove(craftedFile) },
			[]string{digest.FromString(craftedLayer).String(), digest.FromString(craftedFile).String() + " of f is missing"},
		},
		"empty config missing": {
			func(c *crafted) { c.remove("{}") },
			[]string{digest.FromString("{}").String(), "is missing"},
		},
		"image's root missing": {
			func(c *crafted) { image(c).Digest = digest.FromString("x") },
			[]string{"index.json: entry 2 (component \"a\"): image " + craftedImage, "not there"},
		},
		"stray blob": {
			func(c *crafted) { c.add("", []byte("stray")) },
			[]string{"blob " + digest.FromString("stray").String() + " belongs to nothing"},
		},
		"blob under another's name": {
			func(c *crafted) { c.blobs[1].content = []byte("the liver") },
			[]string{"blob " + digest.FromString(craftedLayer).String(), "holds bytes with the digest " + digest.FromString("the liver").String()},
		},
		"blob of another size": {
			func(c *crafted) { c.blobs[1].content = []byte("the layer, longer") },
			[]string{"has 17 bytes, its descriptor says 9", "holds bytes with the digest"},
		},
		"manifest's size": {
			func(c *crafted) { image(c).Size++ },
			[]string{"its descriptor says"},
		},
		"huge manifest": {
			func(c *crafted) { image(c).Size = 1 << 40 },
			[]string{"index.json: entry 2", "out of bounds"},
		},
		"sha512": {
			func(c *crafted) { image(c).Digest = digest.SHA512.FromString("x") },
			[]string{"only sha256 is supported"},
		},
		"digest with a path": {
			func(c *crafted) { image(c).Digest = "sha256:../../../../etc/passwd" },
			[]string{"index.json: entry 2"},
		},
		"image is a file": {
			func(c *crafted) { image(c).MediaType = "text/plain" },
			[]string{"neither an image manifest nor an image index"},
		},
		"neither": {
			func(c *crafted) { delete(image(c).Annotations, AnnotationImageName) },
			[]string{"neither an image nor a file"},
		},
		"image of no platform": {
			func(c *crafted) {
				d := c.addJSON(ocispec.MediaTypeImageIndex, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}})
				d.Annotations = image(c).Annotations
				c.index.Manifests[2] = d
			},
			[]string{"has no manifest for any platform"},
		},
		"no lock": {
			func(c *crafted) { c.index.Manifests = c.index.Manifests[1:] },
			[]string{"it carries no versions.lock"},
		},
		"lock that is none": {
			func(c *crafted) {
				c.index.Manifests = c.index.Manifests[1:]
				c.addFile(LockComponent, LockFile, lockArtifactType, lockMediaType, []byte("kind: None"))
			},
			[]string{"versions.lock:1:"},
		},
		"file of the lock missing": {
			func(c *crafted) { c.index.Manifests = slices.Delete(c.index.Manifests, 1, 2) },
			[]string{"a: file f is in the lock but not in the bundle"},
		},
		"image of the lock missing": {
			func(c *crafted) { c.index.Manifests = c.index.Manifests[:2] },
			[]string{"a: image " + craftedImage + " is in the lock but not in the bundle"},
		},
		"image in another component": {
			func(c *crafted) { image(c).Annotations[AnnotationComponent] = "b" },
			[]string{"a: image " + craftedImage + " is in the lock but not in the bundle"},
		},
		"another image under the name": {
			func(c *crafted) {
				config := c.addJSON(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}, Author: "x"})
				d := c.addJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: config})
				d.Annotations = image(c).Annotations
				c.index.Manifests[2] = d
			},
			[]string{"a: image " + craftedImage + " is sha256:", " in the lock and sha256:"},
		},
		"platform missing": {
			func(c *crafted) {
				config := c.addJSON(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "arm64"}})
				d := c.addJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: config})
				d.Annotations = image(c).Annotations
				c.index.Manifests[2] = d
			},
			[]string{"a: image " + craftedImage + " is not there for linux/amd64, which the lock claims"},
		},
		"title that leads elsewhere": {
			func(c *crafted) { file(c).Annotations[ocispec.AnnotationTitle] = "../f" },
			[]string{`"../f" is not the name of a file`},
		},
		"title that is a folder": {
			func(c *crafted) { file(c).Annotations[ocispec.AnnotationTitle] = ".." },
			[]string{`".." is not the name of a file`},
		},
		"no title": {
			func(c *crafted) { delete(file(c).Annotations, ocispec.AnnotationTitle) },
			[]string{"a file has one layer and a title"},
		},
		"name that clears the screen": {
			func(c *crafted) { image(c).Annotations[AnnotationImageName] = "a\x1b[2Jb" },
			[]string{`the name "a\x1b[2Jb"`},
		},
		"platform that clears the screen": {
			func(c *crafted) { file(c).Platform = &ocispec.Platform{OS: "\x1b[2J", Architecture: "x"} },
			[]string{`the name "\x1b[2J/x"`},
		},
		"version that clears the screen": {
			func(c *crafted) { c.index.Annotations[AnnotationVersion] = "\x1b[2J" },
			[]string{`the name "\x1b[2J"`},
		},
		"serial that the lock does not have": {
			func(c *crafted) { c.index.Annotations[AnnotationSerial] = "7" },
			[]string{"index.json has serial 7, audience all, end none", "versions.lock has serial none, audience all, end none"},
		},
		"audience that the lock does not have": {
			func(c *crafted) { c.index.Annotations[AnnotationAudience] = "lan-1" },
			[]string{"index.json has serial none, audience lan-1, end none"},
		},
		"end that the lock does not have": {
			func(c *crafted) { c.index.Annotations[AnnotationNotAfter] = "2027-06-30T00:00:00Z" },
			[]string{"index.json has serial none, audience all, end 2027-06-30T00:00:00Z"},
		},
		"serial that is none": {
			func(c *crafted) { c.index.Annotations[AnnotationSerial] = "0" },
			[]string{`the serial "0" is not a serial`},
		},
		"serial that is empty": {
			func(c *crafted) { c.index.Annotations[AnnotationSerial] = "" },
			[]string{"the annotation dev.boxlift.serial is empty"},
		},
		"audience without end": {
			func(c *crafted) { c.index.Annotations[AnnotationAudience] = strings.Repeat("a,", 1<<18) },
			[]string{"the audience has 262145 entries"},
		},
		"file with a config": {
			func(c *crafted) {
				d := c.addJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
					Config: descriptorOf("", []byte(craftedFile)), Layers: []ocispec.Descriptor{descriptorOf("", []byte(craftedFile))},
				})
				d.ArtifactType, d.Annotations = fileArtifactType, file(c).Annotations
				c.index.Manifests[1] = d
			},
			[]string{"has a config of its own"},
		},
		"foreign layer": {
			func(c *crafted) {
				d := c.addJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
					Config: ocispec.DescriptorEmptyJSON, Layers: []ocispec.Descriptor{{Digest: digest.FromString("x"), URLs: []string{"https://example.com"}}},
				})
				d.Annotations = image(c).Annotations
				c.index.Manifests[2] = d
			},
			[]string{"foreign addresses"},
		},
		"components without end": {
			func(c *crafted) {
				for i := range 300 {
					d := *file(c)
					d.Annotations = map[string]string{AnnotationComponent: fmt.Sprint(i), ocispec.AnnotationTitle: "f"}
					c.index.Manifests = append(c.index.Manifests, d)
				}
			},
			[]string{"more than 258 components"},
		},
		"another artifact type": {
			func(c *crafted) { c.index.ArtifactType = "application/vnd.boxlift.bundle.v2" },
			[]string{`artifact type "application/vnd.boxlift.bundle.v2"`, "one of a later format"},
		},
	}
	signer := signerOf(t, 0)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := craft()
			test.change(c)
			err := check(t, c.tar(t, signer), signer.PublicKey())
			wantError(t, err, test.want...)
			if !refused(err) {
				t.Errorf("%v does not wrap ErrInvalid or ErrMalformed", err)
			}
		})
	}
}

// TestContentsAreBounded names one large image often.
func TestContentsAreBounded(t *testing.T) {
	c := craft()
	config := c.addJSON(ocispec.MediaTypeImageConfig, ocispec.Image{Author: "x"})
	manifest, err := json.Marshal(ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	d := c.add(ocispec.MediaTypeImageManifest, append(manifest, bytes.Repeat([]byte(" "), maxManifestSize-len(manifest))...))
	d.Annotations = map[string]string{AnnotationComponent: "a", AnnotationImageName: craftedImage}
	const most = 128 << 20
	for range most/maxManifestSize + 1 {
		c.index.Manifests = append(c.index.Manifests, d)
	}
	file := c.tar(t, nil)
	r, err := NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Contents()
	wantError(t, err, fmt.Sprintf("its manifests have more than %d bytes", most))
}

func TestSignatures(t *testing.T) {
	signer, other := signerOf(t, 0), signerOf(t, 1)
	c := craft()
	index, err := json.Marshal(c.index)
	if err != nil {
		t.Fatal(err)
	}
	// An attacker's own bundle with our signature, and ours with theirs.
	evil := craft()
	evil.index.Annotations[AnnotationVersion] = "v6.6.6"
	good, bad := c.tar(t, signer), evil.tar(t, signer)
	entries := func(file []byte) []ocitar.Entry {
		r, err := NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
		if err != nil {
			t.Fatal(err)
		}
		return r.Tar().Layout().Entries
	}
	mixed := bytes.Clone(evil.tarWith(t, index, signer))
	copy(mixed[entries(good)[1].Offset:], bad[entries(bad)[1].Offset:entries(bad)[1].End()])

	tests := map[string]struct {
		file []byte
		want error
	}{
		"right":          {good, nil},
		"another's":      {c.tar(t, other), signature.ErrWrongKey},
		"none":           {c.tar(t, nil), signature.ErrNotSigned},
		"of another one": {mixed, signature.ErrInvalid},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := NewReader(bytes.NewReader(test.file), int64(len(test.file)), "bundle.tar")
			if err != nil {
				t.Fatal(err)
			}
			if err := r.VerifySignature(signer.PublicKey()); !errors.Is(err, test.want) {
				t.Errorf("got %v, expected %v", err, test.want)
			}
			if r.Signed() != (test.want != signature.ErrNotSigned) { //nolint:errorlint // an entry of the table
				t.Errorf("signed: %t", r.Signed())
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(dir, "empty"), nil)
	mustWrite(t, filepath.Join(dir, "text"), []byte(strings.Repeat("text", 1024)))
	mustWrite(t, filepath.Join(dir, "zeros"), make([]byte, 10240))
	for name, want := range map[string]string{
		"pipe": "not a regular file", ".": "not a regular file", "empty": "its length of 0 bytes",
		"text": "tar header of member 1", "zeros": "a block of zeros", "none": "no such file",
	} {
		_, err := Open(filepath.Join(dir, name))
		wantError(t, err, "open bundle "+filepath.Join(dir, name)+": ", want)
		if refused := errors.Is(err, ocitar.ErrMalformed) || errors.Is(err, volume.ErrDamaged); refused == (name == "none") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzOpen reads hostile bundles: nothing but an error may come of them.
func FuzzOpen(f *testing.F) {
	good := craft()
	index, err := json.Marshal(good.index)
	if err != nil {
		f.Fatal(err)
	}
	for i := range good.blobs {
		f.Add(index, uint8(i), good.blobs[i].content)
	}
	f.Fuzz(func(t *testing.T, index []byte, which uint8, content []byte) {
		c := craft()
		// The blob keeps its name in one half of the cases, and gets its own in the other.
		b := &c.blobs[int(which)%len(c.blobs)]
		old := b.name
		b.content = content
		if which >= 128 {
			b.name = digest.FromBytes(content)
			index = bytes.ReplaceAll(index, []byte(old), []byte(b.name))
			for i := range c.blobs {
				if i != int(which)%len(c.blobs) && c.blobs[i].name == b.name {
					t.Skip("two of the same name cannot be laid out")
				}
			}
		}
		file := c.tarWith(t, index, nil)
		r, err := NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
		if err != nil {
			return
		}
		contents, err := r.Contents()
		verifyErr := r.Verify(t.Context(), nil)
		if err != nil {
			if verifyErr == nil {
				t.Errorf("Verify accepts what Contents refuses: %v", err)
			}
			return
		}
		for _, platform := range contents.Platforms() {
			if _, err := r.Packs(platform, PackOptions{}); err != nil && verifyErr == nil {
				t.Errorf("a whole bundle has no pack for %s: %v", platform, err)
			}
		}
		if verifyErr == nil && which < 128 && digest.FromBytes(content) != old {
			t.Error("a blob under another's name was accepted")
		}
	})
}
