package bundle_test

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

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/test/bundletest"
)

// check does all that is done before a bundle is trusted.
func check(t testing.TB, file []byte, key *signature.PublicKey) error {
	t.Helper()
	r, err := bundle.NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
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

// refused reports whether an error is one of those for which a bundle is refused.
func refused(err error) bool {
	return errors.Is(err, bundle.ErrInvalid) || errors.Is(err, ocitar.ErrMalformed)
}

func TestCrafted(t *testing.T) {
	signer := bundletest.SignerOf(t, 0)
	if err := check(t, bundletest.Craft().Tar(t, signer), signer.PublicKey()); err != nil {
		t.Fatal(err)
	}
	if err := check(t, bundletest.Craft().Tar(t, nil), nil); err != nil {
		t.Fatal(err)
	}
}

// TestEveryFlippedByte changes the bytes of a signed bundle, one at a time; each run takes
// another quarter of them.
func TestEveryFlippedByte(t *testing.T) {
	signer := bundletest.SignerOf(t, 0)
	file := bundletest.Craft().Tar(t, signer)
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
	s := bundletest.UpstreamServer(t)
	signer := bundletest.SignerOf(t, 0)
	path := filepath.Join(t.TempDir(), "b.tar")
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, signer)
	file := bundletest.MustRead(t, path)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	var places []int64
	for _, e := range bundletest.MustOpen(t, path).Tar().Layout().Entries {
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
	file := bundletest.Craft().Tar(t, nil)
	for n := range file {
		if _, err := bundle.NewReader(bytes.NewReader(file[:n]), int64(n), "bundle.tar"); !errors.Is(err,
			ocitar.ErrMalformed) {
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
	file := func(c *bundletest.Crafted) *ocispec.Descriptor { return &c.Index.Manifests[1] }
	image := func(c *bundletest.Crafted) *ocispec.Descriptor { return &c.Index.Manifests[2] }
	tests := map[string]struct {
		change func(*bundletest.Crafted)
		want   []string
	}{
		"layer missing": {
			func(c *bundletest.Crafted) { c.Remove(bundletest.CraftedLayer) },
			[]string{"blob " + digest.FromString(bundletest.CraftedLayer).String() + " of " + bundletest.CraftedImage +
				" (linux/amd64) is missing"},
		},
		"layer and file missing": {
			func(c *bundletest.Crafted) { c.Remove(bundletest.CraftedLayer); c.Remove(bundletest.CraftedFile) },
			[]string{digest.FromString(bundletest.CraftedLayer).String(),
				digest.FromString(bundletest.CraftedFile).String() + " of f is missing"},
		},
		"empty config missing": {
			func(c *bundletest.Crafted) { c.Remove("{}") },
			[]string{digest.FromString("{}").String(), "is missing"},
		},
		"image's root missing": {
			func(c *bundletest.Crafted) { image(c).Digest = digest.FromString("x") },
			[]string{"index.json: entry 2 (component \"a\"): image " + bundletest.CraftedImage, "not there"},
		},
		"stray blob": {
			func(c *bundletest.Crafted) { c.Add("", []byte("stray")) },
			[]string{"blob " + digest.FromString("stray").String() + " belongs to nothing"},
		},
		"blob under another's name": {
			func(c *bundletest.Crafted) { c.Blobs[1].Content = []byte("the liver") },
			[]string{"blob " + digest.FromString(bundletest.CraftedLayer).String(),
				"holds bytes with the digest " + digest.FromString("the liver").String()},
		},
		"blob of another size": {
			func(c *bundletest.Crafted) { c.Blobs[1].Content = []byte("the layer, longer") },
			[]string{"has 17 bytes, its descriptor says 9", "holds bytes with the digest"},
		},
		"manifest's size": {
			func(c *bundletest.Crafted) { image(c).Size++ },
			[]string{"its descriptor says"},
		},
		"huge manifest": {
			func(c *bundletest.Crafted) { image(c).Size = 1 << 40 },
			[]string{"index.json: entry 2", "out of bounds"},
		},
		"sha512": {
			func(c *bundletest.Crafted) { image(c).Digest = digest.SHA512.FromString("x") },
			[]string{"only sha256 is supported"},
		},
		"digest with a path": {
			func(c *bundletest.Crafted) { image(c).Digest = "sha256:../../../../etc/passwd" },
			[]string{"index.json: entry 2"},
		},
		"image is a file": {
			func(c *bundletest.Crafted) { image(c).MediaType = "text/plain" },
			[]string{"neither an image manifest nor an image index"},
		},
		"neither": {
			func(c *bundletest.Crafted) { delete(image(c).Annotations, format.AnnotationImageName) },
			[]string{"neither an image nor a file"},
		},
		"image of no platform": {
			func(c *bundletest.Crafted) {
				d := c.AddJSON(ocispec.MediaTypeImageIndex, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}})
				d.Annotations = image(c).Annotations
				c.Index.Manifests[2] = d
			},
			[]string{"has no manifest for any platform"},
		},
		"no lock": {
			func(c *bundletest.Crafted) { c.Index.Manifests = c.Index.Manifests[1:] },
			[]string{"it carries no versions.lock"},
		},
		"lock that is none": {
			func(c *bundletest.Crafted) {
				c.Index.Manifests = c.Index.Manifests[1:]
				c.AddFile(bundle.LockComponent, bundle.LockFile, format.LockArtifactType, format.LockMediaType,
					[]byte("kind: None"))
			},
			[]string{"versions.lock:1:"},
		},
		"file of the lock missing": {
			func(c *bundletest.Crafted) { c.Index.Manifests = slices.Delete(c.Index.Manifests, 1, 2) },
			[]string{"a: file f is in the lock but not in the bundle"},
		},
		"image of the lock missing": {
			func(c *bundletest.Crafted) { c.Index.Manifests = c.Index.Manifests[:2] },
			[]string{"a: image " + bundletest.CraftedImage + " is in the lock but not in the bundle"},
		},
		"image in another component": {
			func(c *bundletest.Crafted) { image(c).Annotations[format.AnnotationComponent] = "b" },
			[]string{"a: image " + bundletest.CraftedImage + " is in the lock but not in the bundle"},
		},
		"another image under the name": {
			func(c *bundletest.Crafted) {
				config := c.AddJSON(ocispec.MediaTypeImageConfig,
					ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}, Author: "x"})
				d := c.AddJSON(ocispec.MediaTypeImageManifest,
					ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: config})
				d.Annotations = image(c).Annotations
				c.Index.Manifests[2] = d
			},
			[]string{"a: image " + bundletest.CraftedImage + " is sha256:", " in the lock and sha256:"},
		},
		"platform missing": {
			func(c *bundletest.Crafted) {
				config := c.AddJSON(ocispec.MediaTypeImageConfig,
					ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "arm64"}})
				d := c.AddJSON(ocispec.MediaTypeImageManifest,
					ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: config})
				d.Annotations = image(c).Annotations
				c.Index.Manifests[2] = d
			},
			[]string{"a: image " + bundletest.CraftedImage + " is not there for linux/amd64, which the lock claims"},
		},
		"title that leads elsewhere": {
			func(c *bundletest.Crafted) { file(c).Annotations[ocispec.AnnotationTitle] = "../f" },
			[]string{`"../f" is not the name of a file`},
		},
		"title that is a folder": {
			func(c *bundletest.Crafted) { file(c).Annotations[ocispec.AnnotationTitle] = ".." },
			[]string{`".." is not the name of a file`},
		},
		"no title": {
			func(c *bundletest.Crafted) { delete(file(c).Annotations, ocispec.AnnotationTitle) },
			[]string{"a file has one layer and a title"},
		},
		"name that clears the screen": {
			func(c *bundletest.Crafted) { image(c).Annotations[format.AnnotationImageName] = "a\x1b[2Jb" },
			[]string{`the name "a\x1b[2Jb"`},
		},
		"platform that clears the screen": {
			func(c *bundletest.Crafted) { file(c).Platform = &ocispec.Platform{OS: "\x1b[2J", Architecture: "x"} },
			[]string{`the name "\x1b[2J/x"`},
		},
		"version that clears the screen": {
			func(c *bundletest.Crafted) { c.Index.Annotations[format.AnnotationVersion] = "\x1b[2J" },
			[]string{`the name "\x1b[2J"`},
		},
		"serial that the lock does not have": {
			func(c *bundletest.Crafted) { c.Index.Annotations[format.AnnotationSerial] = "7" },
			[]string{"index.json has serial 7, audience all, end none",
				"versions.lock has serial none, audience all, end none"},
		},
		"audience that the lock does not have": {
			func(c *bundletest.Crafted) { c.Index.Annotations[format.AnnotationAudience] = "lan-1" },
			[]string{"index.json has serial none, audience lan-1, end none"},
		},
		"end that the lock does not have": {
			func(c *bundletest.Crafted) { c.Index.Annotations[format.AnnotationNotAfter] = "2027-06-30T00:00:00Z" },
			[]string{"index.json has serial none, audience all, end 2027-06-30T00:00:00Z"},
		},
		"serial that is none": {
			func(c *bundletest.Crafted) { c.Index.Annotations[format.AnnotationSerial] = "0" },
			[]string{`the serial "0" is not a serial`},
		},
		"serial that is empty": {
			func(c *bundletest.Crafted) { c.Index.Annotations[format.AnnotationSerial] = "" },
			[]string{"the annotation dev.boxlift.serial is empty"},
		},
		"audience without end": {
			func(c *bundletest.Crafted) {
				c.Index.Annotations[format.AnnotationAudience] = strings.Repeat("a,", 1<<18)
			},
			[]string{"the audience has 262145 entries"},
		},
		"file with a config": {
			func(c *bundletest.Crafted) {
				d := c.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
					Config: format.DescriptorOf("", []byte(bundletest.CraftedFile)),
					Layers: []ocispec.Descriptor{format.DescriptorOf("", []byte(bundletest.CraftedFile))},
				})
				d.ArtifactType, d.Annotations = format.FileArtifactType, file(c).Annotations
				c.Index.Manifests[1] = d
			},
			[]string{"has a config of its own"},
		},
		"foreign layer": {
			func(c *bundletest.Crafted) {
				d := c.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
					Config: ocispec.DescriptorEmptyJSON,
					Layers: []ocispec.Descriptor{{Digest: digest.FromString("x"),
						URLs: []string{"https://example.com"}}},
				})
				d.Annotations = image(c).Annotations
				c.Index.Manifests[2] = d
			},
			[]string{"foreign addresses"},
		},
		"components without end": {
			func(c *bundletest.Crafted) {
				for i := range 300 {
					d := *file(c)
					d.Annotations = map[string]string{format.AnnotationComponent: fmt.Sprint(i),
						ocispec.AnnotationTitle: "f"}
					c.Index.Manifests = append(c.Index.Manifests, d)
				}
			},
			[]string{"more than 258 components"},
		},
		"another artifact type": {
			func(c *bundletest.Crafted) { c.Index.ArtifactType = "application/vnd.boxlift.bundle.v2" },
			[]string{`artifact type "application/vnd.boxlift.bundle.v2"`, "one of a later format"},
		},
	}
	signer := bundletest.SignerOf(t, 0)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := bundletest.Craft()
			test.change(c)
			err := check(t, c.Tar(t, signer), signer.PublicKey())
			bundletest.WantError(t, err, test.want...)
			if !refused(err) {
				t.Errorf("%v does not wrap ErrInvalid or ErrMalformed", err)
			}
		})
	}
}

// TestContentsAreBounded names one large image often.
func TestContentsAreBounded(t *testing.T) {
	c := bundletest.Craft()
	config := c.AddJSON(ocispec.MediaTypeImageConfig, ocispec.Image{Author: "x"})
	manifest, err := json.Marshal(ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	d := c.Add(ocispec.MediaTypeImageManifest,
		append(manifest, bytes.Repeat([]byte(" "), format.MaxManifestSize-len(manifest))...))
	d.Annotations = map[string]string{format.AnnotationComponent: "a",
		format.AnnotationImageName: bundletest.CraftedImage}
	const most = 128 << 20
	for range most/format.MaxManifestSize + 1 {
		c.Index.Manifests = append(c.Index.Manifests, d)
	}
	file := c.Tar(t, nil)
	r, err := bundle.NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Contents()
	bundletest.WantError(t, err, fmt.Sprintf("its manifests have more than %d bytes", most))
}

func TestSignatures(t *testing.T) {
	signer, other := bundletest.SignerOf(t, 0), bundletest.SignerOf(t, 1)
	c := bundletest.Craft()
	index, err := json.Marshal(c.Index)
	if err != nil {
		t.Fatal(err)
	}
	// An attacker's own bundle with our signature, and ours with theirs.
	evil := bundletest.Craft()
	evil.Index.Annotations[format.AnnotationVersion] = "v6.6.6"
	good, bad := c.Tar(t, signer), evil.Tar(t, signer)
	entries := func(file []byte) []ocitar.Entry {
		r, err := bundle.NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
		if err != nil {
			t.Fatal(err)
		}
		return r.Tar().Layout().Entries
	}
	mixed := bytes.Clone(evil.TarWith(t, index, signer))
	copy(mixed[entries(good)[1].Offset:], bad[entries(bad)[1].Offset:entries(bad)[1].End()])

	tests := map[string]struct {
		file []byte
		want error
	}{
		"right":          {good, nil},
		"another's":      {c.Tar(t, other), signature.ErrWrongKey},
		"none":           {c.Tar(t, nil), signature.ErrNotSigned},
		"of another one": {mixed, signature.ErrInvalid},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := bundle.NewReader(bytes.NewReader(test.file), int64(len(test.file)), "bundle.tar")
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
	bundletest.MustWrite(t, filepath.Join(dir, "empty"), nil)
	bundletest.MustWrite(t, filepath.Join(dir, "text"), []byte(strings.Repeat("text", 1024)))
	bundletest.MustWrite(t, filepath.Join(dir, "zeros"), make([]byte, 10240))
	for name, want := range map[string]string{
		"pipe": "not a regular file", ".": "not a regular file", "empty": "its length of 0 bytes",
		"text": "tar header of member 1", "zeros": "a block of zeros", "none": "no such file",
	} {
		_, err := bundle.Open(filepath.Join(dir, name))
		bundletest.WantError(t, err, "open bundle "+filepath.Join(dir, name)+": ", want)
		if refused := errors.Is(err, ocitar.ErrMalformed) ||
			errors.Is(err, volume.ErrDamaged); refused == (name == "none") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzOpen reads hostile bundles: nothing but an error may come of them.
func FuzzOpen(f *testing.F) {
	good := bundletest.Craft()
	index, err := json.Marshal(good.Index)
	if err != nil {
		f.Fatal(err)
	}
	for i := range good.Blobs {
		f.Add(index, uint8(i), good.Blobs[i].Content)
	}
	f.Fuzz(func(t *testing.T, index []byte, which uint8, content []byte) {
		c := bundletest.Craft()
		// The blob keeps its name in one half of the cases, and gets its own in the other.
		b := &c.Blobs[int(which)%len(c.Blobs)]
		old := b.Name
		b.Content = content
		if which >= 128 {
			b.Name = digest.FromBytes(content)
			index = bytes.ReplaceAll(index, []byte(old), []byte(b.Name))
			for i := range c.Blobs {
				if i != int(which)%len(c.Blobs) && c.Blobs[i].Name == b.Name {
					t.Skip("two of the same name cannot be laid out")
				}
			}
		}
		file := c.TarWith(t, index, nil)
		r, err := bundle.NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
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
			if _, err := r.Packs(platform, bundle.PackOptions{}); err != nil && verifyErr == nil {
				t.Errorf("a whole bundle has no pack for %s: %v", platform, err)
			}
		}
		if verifyErr == nil && which < 128 && digest.FromBytes(content) != old {
			t.Error("a blob under another's name was accepted")
		}
	})
}
