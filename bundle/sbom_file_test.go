package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/test/upstream"
)

// listBlobs stands for what lists software: it reads every file and every layer.
func listBlobs(_ context.Context, r *Reader) ([]byte, error) {
	var list bytes.Buffer
	fmt.Fprintf(&list, "in %s:\n", r.Digest())
	for _, e := range r.Tar().Layout().Entries {
		if e.Digest() == "" {
			continue
		}
		content, err := r.Content(e.Digest(), e.Size)
		if err != nil {
			return nil, err
		}
		n, err := io.Copy(io.Discard, content)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&list, "%s %d\n", e.Digest(), n)
	}
	return list.Bytes(), nil
}

// listing lets a build list software.
func listing(o *PlanOptions) { o.SBOM = listBlobs }

// downloadsOfBuild are all but the config that plans need of an image without an index.
func downloadsOfBuild(t *testing.T, s *upstream.Server) map[string]int {
	t.Helper()
	got := downloads(s)
	delete(got, imageOf(t, webRef).Platforms[0].Config.Digest.String())
	return got
}

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
	identity := newIdentity(t)
	encrypt := func(o *BuildOptions) {
		o.Recipients, o.Identities = []age.Recipient{identity.Recipient()}, []age.Identity{identity}
	}
	other := replaced(t, smallLock(t), "version: 1.20.0", "version: 1.20.1")
	for name, change := range map[string]func(*BuildOptions){
		"one file":              func(*BuildOptions) {},
		"signed":                func(o *BuildOptions) { o.Signer = signerOf(t, 0) },
		"volumes":               func(o *BuildOptions) { o.VolumeSize = volumeSize },
		"encrypted":             encrypt,
		"encrypted and volumes": func(o *BuildOptions) { encrypt(o); o.VolumeSize = volumeSize; o.WorkDir = t.TempDir() },
		"delta":                 func(o *BuildOptions) { o.Signer = signerOf(t, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			s := upstreamServer(t)
			base := mustOpen(t, reference(t))
			content := smallLock(t)
			isDelta := name == "delta"
			if isDelta {
				content = other
			}
			planned := func() *Plan {
				o, err := planOptions(content, newClient(s))
				if err != nil {
					t.Fatal(err)
				}
				listing(&o)
				if isDelta {
					o.Since, o.Reuse = &Base{}, []*Reader{base}
					o.Since.AddBundle(base)
				}
				plan, err := NewPlan(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				return plan
			}
			options := BuildOptions{Path: filepath.Join(t.TempDir(), "b.tar")}
			change(&options)
			s.ResetRequests()
			result, err := planned().Build(t.Context(), options)
			if err != nil {
				t.Fatal(err)
			}
			got := downloads(s)
			if diff := cmp.Diff(once(got), got); diff != "" || isDelta && len(got) > 0 {
				t.Errorf("downloads (-once +got):\n%s", diff)
			}
			only(t, options.Path)
			r, err := Open(options.Path, identity)
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
			mustBuild(t, content, newClient(s), plain, nil)
			if want, err := listBlobs(t.Context(), mustOpen(t, plain)); err != nil || !bytes.Equal(document, want) {
				t.Errorf("the list is\n%s", document)
			}

			// The rest is what that bundle has.
			if isDelta {
				r.Use(base)
				if result.LeftOut.Blobs == 0 || r.Size() > mustOpen(t, plain).Size()/2 {
					t.Errorf("the delta has %d bytes and leaves out %v", r.Size(), result.LeftOut)
				}
			}
			var blobs, want []string
			for _, e := range r.Tar().Layout().Entries {
				if e.Digest() != "" {
					blobs = append(blobs, e.Name)
				}
			}
			for _, e := range mustOpen(t, plain).Tar().Layout().Entries {
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
			blobs = slices.DeleteFunc(blobs, func(name string) bool { return name == ocitar.BlobName(list.Digest) || name == manifest })
			if diff := cmp.Diff(want, blobs); diff != "" {
				t.Errorf("blobs (-without +with):\n%s", diff)
			}

			rebuild := rebuildOptions(t, content)
			rebuild.SBOM = listBlobs
			if err := proven(t, r, rebuild); err != nil {
				t.Error(err)
			}

			// Once more, it is there; and from the beginning, it is the same.
			first := whole(t, r)
			again, err := planned().Build(t.Context(), options)
			if err != nil || !again.Unchanged || again.Digest != result.Digest {
				t.Errorf("again: %+v, %v", again, err)
			}
			options.Path = filepath.Join(t.TempDir(), "b.tar")
			if _, err := planned().Build(t.Context(), options); err != nil {
				t.Fatal(err)
			}
			second, err := Open(options.Path, identity)
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

func whole(t testing.TB, r *Reader) []byte {
	t.Helper()
	content, err := io.ReadAll(io.NewSectionReader(r.Whole(), 0, r.Whole().Size()))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestSBOMGoesOn ends a build when the list is to be made; the next one fetches nothing.
func TestSBOMGoesOn(t *testing.T) {
	s := upstreamServer(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	broken := errors.New("broken")
	_, err := build(t.Context(), smallLock(t), newClient(s), path, nil, func(o *PlanOptions) {
		o.SBOM = func(context.Context, *Reader) ([]byte, error) { return nil, broken }
	})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	noFile(t, path)
	partials, err := Partials(path, "")
	if err != nil || len(partials) != 1 || !strings.Contains(partials[0], ".without-sbom.") {
		t.Errorf("left: %v, %v", partials, err)
	}
	s.ResetRequests()
	result := mustBuild(t, smallLock(t), newClient(s), path, nil, listing)
	if got := downloadsOfBuild(t, s); len(got) > 0 || result.Reused == 0 {
		t.Errorf("fetched %v, reused %d", got, result.Reused)
	}
	only(t, path)

	// What a process left that was killed when all was done.
	left := partials[0]
	mustWrite(t, left, []byte("x"))
	if result := mustBuild(t, smallLock(t), newClient(s), path, nil, listing); !result.Unchanged {
		t.Errorf("got %+v", result)
	}
	noFile(t, left)

	// Another list than that of these layers is no such bundle.
	result = mustBuild(t, smallLock(t), newClient(s), path, nil, func(o *PlanOptions) {
		o.SBOM = func(context.Context, *Reader) ([]byte, error) { return []byte("another"), nil }
	})
	if document, _, err := mustOpen(t, path).SBOM(); err != nil || string(document) != "another" || result.Unchanged {
		t.Errorf("%q, %v, %+v", document, err, result)
	}
}

// TestNotRebuiltSBOM finds a list that is not that of the layers.
func TestNotRebuiltSBOM(t *testing.T) {
	s := upstreamServer(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	mustBuild(t, smallLock(t), newClient(s), path, nil, func(o *PlanOptions) {
		o.SBOM = func(ctx context.Context, r *Reader) ([]byte, error) {
			document, err := listBlobs(ctx, r)
			return append(document, "and more\n"...), err
		}
	})
	r := mustOpen(t, path)
	o := rebuildOptions(t, smallLock(t))
	o.SBOM = listBlobs
	err := r.Rebuild(t.Context(), o)
	if !errors.Is(err, ErrNotRebuilt) {
		t.Errorf("got %v", err)
	}
	wantError(t, err, `file boxlift: bundle.cdx.json: expected its end, found "and more`)
}

// TestSBOMOfDeltaForHosts cannot be made of layers that only hosts have. Nothing is fetched
// before that is said.
func TestSBOMOfDeltaForHosts(t *testing.T) {
	s := upstreamServer(t)
	layer := layerOf(t, operatorRef, "linux/arm64")
	e, _ := mustOpen(t, reference(t)).Tar().Blob(layer)
	hosts := func(o *PlanOptions) {
		listing(o)
		o.Since = &Base{}
		o.Since.AddHosts(&have.Have{Platforms: []have.Platform{
			{Platform: "linux/arm64", Hosts: []string{"a"}, Blobs: []have.Blob{{Digest: layer, Size: e.Size}}},
		}})
	}
	path := filepath.Join(t.TempDir(), "b.tar")
	_, err := build(t.Context(), smallLock(t), newClient(s), path, nil, hosts)
	wantError(t, err, "the delta leaves out 1 blob that no bundle at hand has, such as "+layer.String())
	if got := downloadsOfBuild(t, s); len(got) > 0 {
		t.Errorf("fetched %v", got)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	mustBuild(t, smallLock(t), newClient(s), path, nil, hosts, reusing(t, reference(t)))
	if _, ok, err := mustOpen(t, path).SBOM(); err != nil || !ok {
		t.Errorf("%v, %v", ok, err)
	}
}
