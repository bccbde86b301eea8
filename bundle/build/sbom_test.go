package build_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/rebuild"
	"github.com/liteboxd/boxlift/test/bundletest"
)

// only checks that nothing else lies beside a bundle.
func only(t testing.TB, path string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".partial") {
			t.Errorf("%s is left", name)
		}
	}
}

// TestSBOM builds bundles with the list of their software in all forms.
func TestSBOM(t *testing.T) {
	identity := bundletest.NewIdentity(t)
	encrypt := func(o *build.Options) {
		o.Recipients, o.Identities = []age.Recipient{identity.Recipient()}, []age.Identity{identity}
	}
	other := bundletest.Replaced(t, bundletest.SmallLock(t), "version: 1.20.0", "version: 1.20.1")
	for name, change := range map[string]func(*build.Options){
		"one file":  func(*build.Options) {},
		"signed":    func(o *build.Options) { o.Signer = bundletest.SignerOf(t, 0) },
		"volumes":   func(o *build.Options) { o.VolumeSize = bundletest.VolumeSize },
		"encrypted": encrypt,
		"encrypted and volumes": func(
			o *build.Options) {
			encrypt(o)
			o.VolumeSize = bundletest.VolumeSize
			o.WorkDir = t.TempDir()
		},
		"delta": func(o *build.Options) { o.Signer = bundletest.SignerOf(t, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			s := bundletest.UpstreamServer(t)
			base := bundletest.MustOpen(t, bundletest.Reference(t))
			content := bundletest.SmallLock(t)
			isDelta := name == "delta"
			if isDelta {
				content = other
			}
			makePlan := func() *plan.Plan {
				o, err := bundletest.PlanOptions(content, bundletest.NewClient(s))
				if err != nil {
					t.Fatal(err)
				}
				bundletest.Listing(&o)
				if isDelta {
					o.Since, o.Reuse = &plan.Base{}, []*bundle.Reader{base}
					o.Since.AddBundle(base)
				}
				planned, err := plan.New(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				return planned
			}
			options := build.Options{Path: filepath.Join(t.TempDir(), "b.tar")}
			change(&options)
			s.ResetRequests()
			result, err := build.Write(t.Context(), makePlan(), options)
			if err != nil {
				t.Fatal(err)
			}
			got := bundletest.Downloads(s)
			if diff := cmp.Diff(bundletest.Once(got), got); diff != "" || isDelta && len(got) > 0 {
				t.Errorf("downloads (-once +got):\n%s", diff)
			}
			only(t, options.Path)
			r, err := bundle.Open(options.Path, identity)
			if err != nil {
				t.Fatal(err)
			}
			defer r.File().Close()
			if r.Digest() != result.Digest {
				t.Errorf("the build says %s, and it is %s", result.Digest, r.Digest())
			}

			// It is about the bundle that is built without it, and known without the base.
			document, ok, err := r.SBOM()
			if err != nil || !ok {
				t.Fatalf("%v, %v", ok, err)
			}
			plain := filepath.Join(t.TempDir(), "plain.tar")
			bundletest.MustBuild(t, content, bundletest.NewClient(s), plain, nil)
			if want, err := bundletest.ListBlobs(t.Context(), bundletest.MustOpen(t, plain)); err != nil ||
				!bytes.Equal(document, want) {
				t.Errorf("the list is\n%s", document)
			}

			// The rest is what that bundle has.
			if isDelta {
				r.Use(base)
				if result.LeftOut.Blobs == 0 || r.Size() > bundletest.MustOpen(t, plain).Size()/2 {
					t.Errorf("the delta has %d bytes and leaves out %v", r.Size(), result.LeftOut)
				}
			}
			var blobs, want []string
			for _, e := range r.Tar().Layout().Entries {
				if e.Digest() != "" {
					blobs = append(blobs, e.Name)
				}
			}
			for _, e := range bundletest.MustOpen(t, plain).Tar().Layout().Entries {
				if e.Digest() != "" {
					want = append(want, e.Name)
				}
			}
			contents, err := r.Contents()
			if err != nil {
				t.Fatal(err)
			}
			list, _ := contents.SBOM()
			manifest := ocitar.BlobName(r.Entries()[len(r.Entries())-1].Digest)
			if blobs[len(blobs)-1] != ocitar.BlobName(list.Digest) {
				t.Error("the list is not the last blob")
			}
			blobs = slices.DeleteFunc(blobs,
				func(name string) bool { return name == ocitar.BlobName(list.Digest) || name == manifest })
			if diff := cmp.Diff(want, blobs); diff != "" {
				t.Errorf("blobs (-without +with):\n%s", diff)
			}

			rebuild := bundletest.RebuildOptions(t, content)
			rebuild.SBOM = bundletest.ListBlobs
			if err := bundletest.Proven(t, r, rebuild); err != nil {
				t.Error(err)
			}

			// Once more, it is there; and from the beginning, it is the same.
			first := whole(t, r)
			again, err := build.Write(t.Context(), makePlan(), options)
			if err != nil || !again.Unchanged || again.Digest != result.Digest {
				t.Errorf("again: %+v, %v", again, err)
			}
			options.Path = filepath.Join(t.TempDir(), "b.tar")
			if _, err := build.Write(t.Context(), makePlan(), options); err != nil {
				t.Fatal(err)
			}
			second, err := bundle.Open(options.Path, identity)
			if err != nil {
				t.Fatal(err)
			}
			defer second.File().Close()
			second.Use(base)
			if !bytes.Equal(whole(t, second), first) {
				t.Error("built again, it is another bundle")
			}
		})
	}
}

func whole(t testing.TB, r *bundle.Reader) []byte {
	t.Helper()
	content, err := io.ReadAll(io.NewSectionReader(r.Whole(), 0, r.Whole().Size()))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestSBOMGoesOn ends a build when the list is to be made; the next one fetches nothing.
func TestSBOMGoesOn(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	broken := errors.New("broken")
	_, err := bundletest.Build(t.Context(), bundletest.SmallLock(t), bundletest.NewClient(s), path, nil,
		func(o *plan.Options) {
			o.SBOM = func(context.Context, *bundle.Reader) ([]byte, error) { return nil, broken }
		})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	bundletest.NoFile(t, path)
	partials, err := build.Partials(path, "")
	if err != nil || len(partials) != 1 || !strings.Contains(partials[0], ".without-sbom.") {
		t.Errorf("left: %v, %v", partials, err)
	}
	s.ResetRequests()
	result := bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil, bundletest.Listing)
	if got := bundletest.DownloadsOfBuild(t, s); len(got) > 0 || result.Reused == 0 {
		t.Errorf("fetched %v, reused %d", got, result.Reused)
	}
	only(t, path)

	// What a process left that was killed when all was done.
	left := partials[0]
	bundletest.MustWrite(t, left, []byte("x"))
	if result := bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil,
		bundletest.Listing); !result.Unchanged {
		t.Errorf("got %+v", result)
	}
	bundletest.NoFile(t, left)

	// Another list than that of these layers is no such bundle.
	result = bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil,
		func(o *plan.Options) {
			o.SBOM = func(context.Context, *bundle.Reader) ([]byte, error) { return []byte("another"), nil }
		})
	if document, _, err := bundletest.MustOpen(t, path).SBOM(); err != nil || string(document) != "another" ||
		result.Unchanged {
		t.Errorf("%q, %v, %+v", document, err, result)
	}
}

// TestNotRebuiltSBOM finds a list that is not that of the layers.
func TestNotRebuiltSBOM(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil, func(o *plan.Options) {
		o.SBOM = func(ctx context.Context, r *bundle.Reader) ([]byte, error) {
			document, err := bundletest.ListBlobs(ctx, r)
			return append(document, "and more\n"...), err
		}
	})
	r := bundletest.MustOpen(t, path)
	o := bundletest.RebuildOptions(t, bundletest.SmallLock(t))
	o.SBOM = bundletest.ListBlobs
	err := rebuild.Prove(t.Context(), r, o)
	if !errors.Is(err, rebuild.ErrDiffers) {
		t.Errorf("got %v", err)
	}
	bundletest.WantError(t, err, `file boxlift: bundle.cdx.json: expected its end, found "and more`)
}

// TestSBOMOfDeltaForHosts cannot be made of layers that only hosts have. Nothing is fetched
// before that is said.
func TestSBOMOfDeltaForHosts(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	layer := bundletest.LayerOf(t, bundletest.OperatorRef, "linux/arm64")
	e, _ := bundletest.MustOpen(t, bundletest.Reference(t)).Tar().Blob(layer)
	hosts := func(o *plan.Options) {
		bundletest.Listing(o)
		o.Since = &plan.Base{}
		o.Since.AddHosts(&have.Have{Platforms: []have.Platform{
			{Platform: "linux/arm64", Hosts: []string{"a"}, Blobs: []have.Blob{{Digest: layer, Size: e.Size}}},
		}})
	}
	path := filepath.Join(t.TempDir(), "b.tar")
	_, err := bundletest.Build(t.Context(), bundletest.SmallLock(t), bundletest.NewClient(s), path, nil, hosts)
	bundletest.WantError(t, err, "the delta leaves out 1 blob that no bundle at hand has, such as "+layer.String())
	if got := bundletest.DownloadsOfBuild(t, s); len(got) > 0 {
		t.Errorf("fetched %v", got)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil, hosts,
		bundletest.Reusing(t, bundletest.Reference(t)))
	if _, ok, err := bundletest.MustOpen(t, path).SBOM(); err != nil || !ok {
		t.Errorf("%v, %v", ok, err)
	}
}
