package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/source"
)

// rebuildOptions are those that the tests build with.
func rebuildOptions(t testing.TB, content []byte) RebuildOptions {
	t.Helper()
	o, err := planOptions(content, nil)
	if err != nil {
		t.Fatal(err)
	}
	return RebuildOptions{Lock: o.Lock, LockName: o.LockName, LockContent: o.LockContent, Programs: o.Programs, Version: o.Version}
}

// proven does what `bundle verify --rebuild` does.
func proven(t testing.TB, r *Reader, o RebuildOptions) error {
	t.Helper()
	return errors.Join(r.Rebuild(t.Context(), o), r.Verify(t.Context(), nil))
}

// TestRebuild proves bundles of all forms, without a server to ask.
func TestRebuild(t *testing.T) {
	identity := newIdentity(t)
	other := replaced(t, smallLock(t), "version: 1.20.0", "version: 1.20.1")
	tests := map[string]struct {
		plan  func(*PlanOptions)
		build func(*BuildOptions)
		bases []string
	}{
		"one file": {},
		"signed":   {build: func(o *BuildOptions) { o.Signer = signerOf(t, 0) }},
		"volumes":  {build: func(o *BuildOptions) { o.VolumeSize = volumeSize }},
		"encrypted volumes": {build: func(o *BuildOptions) {
			o.VolumeSize, o.Recipients = volumeSize, []age.Recipient{identity.Recipient()}
		}},
		"with manifests": {plan: func(o *PlanOptions) { o.Manifests = []byte("manifests") }},
		"delta": {plan: func(o *PlanOptions) {
			o.Since = &Base{}
			o.Since.AddBundle(mustOpen(t, reference(t)))
		}},
		"signed delta with its base": {
			plan: func(o *PlanOptions) {
				o.Since = &Base{}
				o.Since.AddBundle(mustOpen(t, reference(t)))
			},
			build: func(o *BuildOptions) { o.Signer = signerOf(t, 0) },
			bases: []string{reference(t)},
		},
		"delta for hosts": {plan: func(o *PlanOptions) {
			o.Since = &Base{}
			layer := layerOf(t, operatorRef, "linux/arm64")
			e, _ := mustOpen(t, reference(t)).Tar().Blob(layer)
			o.Since.AddHosts(&have.Have{Platforms: []have.Platform{
				{Platform: "linux/arm64", Hosts: []string{"a"}, Blobs: []have.Blob{{Digest: layer, Size: e.Size}}},
			}})
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := upstreamServer(t)
			content := smallLock(t)
			if strings.Contains(name, "delta") {
				content = other
			}
			o, err := planOptions(content, newClient(s))
			if err != nil {
				t.Fatal(err)
			}
			if test.plan != nil {
				test.plan(&o)
			}
			plan, err := NewPlan(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			b := BuildOptions{Path: filepath.Join(t.TempDir(), "b.tar")}
			if test.build != nil {
				test.build(&b)
			}
			if _, err := plan.Build(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			s.ResetRequests()
			r, err := Open(b.Path, identity)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			for _, base := range test.bases {
				r.Use(mustOpen(t, base))
			}
			rebuild := rebuildOptions(t, content)
			rebuild.Manifests = o.Manifests
			if err := proven(t, r, rebuild); err != nil {
				t.Error(err)
			}
			if asked := s.Requests(); len(asked) > 0 {
				t.Errorf("it asked for %v", asked)
			}
		})
	}
}

// TestRebuildOfArchives proves a bundle whose layers and manifests were made from an archive
// that is not in it.
func TestRebuildOfArchives(t *testing.T) {
	dir := t.TempDir()
	dockerArchiveFile(t, filepath.Join(dir, "saved.tar"))
	client := source.New(source.Options{Folder: dir})
	content := lockOf(t, client, "file:saved.tar")
	path := filepath.Join(dir, "b.tar")
	mustBuild(t, content, client, path, nil)
	if err := proven(t, mustOpen(t, path), rebuildOptions(t, content)); err != nil {
		t.Error(err)
	}

	// A delta, which has the manifests from the archive, that are not known when it is planned.
	old := mustOpen(t, path)
	later := replaced(t, content, "version: v1", "version: v2")
	delta := filepath.Join(dir, "delta.tar")
	mustBuild(t, later, client, delta, nil, func(o *PlanOptions) {
		o.Since = &Base{}
		o.Since.AddBundle(old)
	})
	if err := proven(t, mustOpen(t, delta), rebuildOptions(t, later)); err != nil {
		t.Error(err)
	}

	// With a list of software, the layers that only the base has are needed for it, and those
	// that are made of the archive.
	mustBuild(t, later, client, filepath.Join(dir, "listed.tar"), nil, listing, reusing(t, path), func(o *PlanOptions) {
		o.Since = &Base{}
		o.Since.AddBundle(old)
	})
	r := mustOpen(t, filepath.Join(dir, "listed.tar"))
	r.Use(old)
	o := rebuildOptions(t, later)
	o.SBOM = listBlobs
	if err := proven(t, r, o); err != nil {
		t.Error(err)
	}
}

// ofReference is the reference bundle as something that can be changed and signed anew.
func ofReference(t *testing.T) *crafted {
	t.Helper()
	r := mustOpen(t, reference(t))
	c := &crafted{}
	if err := json.Unmarshal(r.Index(), &c.index); err != nil {
		t.Fatal(err)
	}
	for _, e := range r.Tar().Layout().Entries {
		if d := e.Digest(); d != "" {
			content, err := r.Tar().ReadAll(e.Name, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			c.blobs = append(c.blobs, craftedBlob{name: d, content: content})
		}
	}
	return c
}

// nameOf is what differences call an entry that is for all platforms.
func nameOf(d ocispec.Descriptor) string {
	component := d.Annotations[AnnotationComponent]
	if image := d.Annotations[AnnotationImageName]; image != "" {
		return "image " + image + " of " + component
	}
	return "file " + component + ": " + d.Annotations[ocispec.AnnotationTitle]
}

// entryOf finds an entry of index.json.
func entryOf(t *testing.T, c *crafted, name string) *ocispec.Descriptor {
	t.Helper()
	i := slices.IndexFunc(c.index.Manifests, func(d ocispec.Descriptor) bool { return nameOf(d) == name })
	if i < 0 {
		t.Fatalf("no entry %s", name)
	}
	return &c.index.Manifests[i]
}

func TestNotRebuilt(t *testing.T) {
	const (
		operator = "image " + operatorRef + " of cilium"
		script   = "file k3s: install.sh"
	)
	imageDigest := func(name string) digest.Digest { return imageOf(t, name).Digest }
	otherSum := digest.FromString("other")
	tests := map[string]struct {
		// lock changes the lock that is given, bundle the bundle, options the rest.
		lock    func(content []byte) []byte
		bundle  func(t *testing.T, c *crafted)
		options func(*RebuildOptions)
		want    NotRebuiltError // but for the offset
		// whole says that the bundle is whole all the same, so that only Rebuild tells.
		whole bool
	}{
		"lock with another image": {
			lock: func(content []byte) []byte {
				return replaced(t, content, imageDigest(operatorRef).Encoded(), otherSum.Encoded())
			},
			want: NotRebuiltError{
				What:     "versions.lock in the bundle: cilium: images quay.io/cilium/operator-generic",
				Expected: "v1.20.0 sha256:" + otherSum.Encoded()[:12], Found: "v1.20.0 sha256:" + imageDigest(operatorRef).Encoded()[:12],
			},
			whole: true,
		},
		"lock with another file": {
			lock: func(content []byte) []byte {
				return replaced(t, content, chartDigest(t).Encoded(), otherSum.Encoded())
			},
			want: NotRebuiltError{
				What:     "versions.lock in the bundle: cilium: charts cilium",
				Expected: "sha256:" + otherSum.Encoded()[:12], Found: "sha256:" + chartDigest(t).Encoded()[:12],
			},
			whole: true,
		},
		"lock with an option": {
			lock: func(content []byte) []byte {
				return replaced(t, content, "    version: 1.20.0\n", "    version: 1.20.0\n    upgradesFrom: [\">=1.19.0\"]\n")
			},
			want:  NotRebuiltError{What: "versions.lock in the bundle: cilium: upgradesFrom", Expected: ">=1.19.0", Found: "nothing"},
			whole: true,
		},
		"lock with a comment": {
			lock:  func(content []byte) []byte { return append(slices.Clone(content), "# checked\n"...) },
			want:  NotRebuiltError{What: "versions.lock in the bundle: line 24", Expected: `"# checked"`, Found: "nothing"},
			whole: true,
		},
		"additional image": {
			bundle: func(t *testing.T, c *crafted) {
				d := *entryOf(t, c, operator)
				d.Annotations = map[string]string{AnnotationComponent: "cilium", AnnotationVersion: "1.20.0", AnnotationImageName: "quay.io/cilium/more:v1"}
				c.index.Manifests = append(c.index.Manifests, d)
			},
			want:  NotRebuiltError{What: "image quay.io/cilium/more:v1 of cilium", Expected: "nothing", Found: imageDigest(operatorRef).String()},
			whole: true,
		},
		"additional file": {
			bundle: func(t *testing.T, c *crafted) {
				c.addFile("k3s", "more", fileArtifactType, fileMediaType, []byte("more"))
			},
			want:  NotRebuiltError{What: "file k3s: more", Expected: "nothing", Found: digest.FromString("more").String() + " with 4 bytes"},
			whole: true,
		},
		"additional blob": {
			bundle: func(_ *testing.T, c *crafted) { c.add(fileMediaType, []byte("more")) },
			want:   NotRebuiltError{Expected: "the end of the file", Found: ocitar.BlobName(digest.FromString("more")) + " with 4 bytes"},
		},
		"swapped image": {
			bundle: func(t *testing.T, c *crafted) {
				d := entryOf(t, c, operator)
				d.Digest, d.Size = imageDigest(busyboxRef), imageOf(t, busyboxRef).Size
			},
			want: NotRebuiltError{What: operator, Expected: imageDigest(operatorRef).String(), Found: imageDigest(busyboxRef).String()},
		},
		"swapped file": {
			bundle: func(t *testing.T, c *crafted) {
				c.addFile("k3s", "install.sh", fileArtifactType, fileMediaType, []byte("#!/bin/sh\n"))
				last := len(c.index.Manifests) - 1
				d := entryOf(t, c, script)
				d.Digest, d.Size = c.index.Manifests[last].Digest, c.index.Manifests[last].Size
				c.index.Manifests = c.index.Manifests[:last]
			},
			want: NotRebuiltError{What: script, Found: digest.FromString("#!/bin/sh\n").String() + " with 10 bytes"},
		},
		"left out image": {
			bundle: func(t *testing.T, c *crafted) {
				c.index.Manifests = slices.DeleteFunc(c.index.Manifests, func(d ocispec.Descriptor) bool { return nameOf(d) == operator })
			},
			want: NotRebuiltError{What: operator, Expected: imageDigest(operatorRef).String(), Found: "nothing"},
		},
		"another annotation": {
			bundle: func(t *testing.T, c *crafted) { entryOf(t, c, script).Annotations[AnnotationVersion] = "v1" },
			want:   NotRebuiltError{What: script}, whole: true,
		},
		"entries in another order": {
			bundle: func(_ *testing.T, c *crafted) { slices.Reverse(c.index.Manifests) },
			want:   NotRebuiltError{What: "index.json: entry 0", Expected: "file lock: versions.lock"}, whole: true,
		},
		"members in another order": {
			bundle: func(_ *testing.T, c *crafted) { slices.Reverse(c.blobs[3:]) },
			want:   NotRebuiltError{What: "member 5"}, whole: true,
		},
		"another annotation of index.json": {
			bundle: func(_ *testing.T, c *crafted) { c.index.Annotations["more"] = "x" },
			want:   NotRebuiltError{What: "index.json"}, whole: true,
		},
		"other programs": {
			options: func(o *RebuildOptions) { o.Programs[0].Path = o.Programs[1].Path },
			want:    NotRebuiltError{What: "file boxlift: boxlift-node (linux/amd64)", generated: true}, whole: true,
		},
		"manifests": {
			options: func(o *RebuildOptions) { o.Manifests = []byte("more") },
			want:    NotRebuiltError{What: "file liteboxd: manifests.tar", Expected: digest.FromString("more").String() + " with 4 bytes", Found: "nothing", generated: true}, whole: true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			content := smallLock(t)
			if test.lock != nil {
				content = test.lock(content)
			}
			c := ofReference(t)
			if test.bundle != nil {
				test.bundle(t, c)
			}
			file := c.tar(t, signerOf(t, 0))
			r, err := NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
			if err != nil {
				t.Fatal(err)
			}
			o := rebuildOptions(t, content)
			if test.options != nil {
				test.options(&o)
			}
			err = r.Rebuild(t.Context(), o)
			var got *NotRebuiltError
			if !errors.As(err, &got) || !errors.Is(err, ErrNotRebuilt) {
				t.Fatalf("got %v", err)
			}
			t.Log(err)
			if test.want.What != "" && got.What != test.want.What || got.generated != test.want.generated ||
				!strings.HasPrefix(got.Expected, test.want.Expected) || !strings.HasPrefix(got.Found, test.want.Found) {
				t.Errorf("got %+v", got)
			}
			if got.Offset <= 0 || got.Offset >= int64(len(file)) || got.Expected == got.Found || got.Hint() == "" {
				t.Errorf("got %+v", got)
			}
			if err := r.Verify(t.Context(), nil); test.whole != (err == nil) {
				t.Errorf("whole: %v", err)
			}
		})
	}
}

// TestNotRebuiltDelta changes what is the delta's own.
func TestNotRebuiltDelta(t *testing.T) {
	s := upstreamServer(t)
	content := replaced(t, smallLock(t), "version: 1.20.0", "version: 1.20.1")
	path := filepath.Join(t.TempDir(), "b.tar")
	mustBuild(t, content, newClient(s), path, nil, func(o *PlanOptions) {
		o.Since = &Base{}
		o.Since.AddBundle(mustOpen(t, reference(t)))
	})
	file := bytes.Replace(mustRead(t, path), []byte(`"leftOut":[{"digest"`), []byte(`"leftOut":[{"Digest"`), 1)
	r, err := NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, r.Rebuild(t.Context(), rebuildOptions(t, content)), "the delta: not what the lock makes: index.json: expected ", `"digest`)
}

// TestNotRebuildable refuses what this program cannot make again, and what is no bundle.
func TestNotRebuildable(t *testing.T) {
	r := mustOpen(t, reference(t))
	o := rebuildOptions(t, smallLock(t))
	o.Version = "v9"
	err := r.Rebuild(t.Context(), o)
	var other *OtherBuilderError
	if !errors.As(err, &other) || other.Builder != "v0.0.0-test" || other.Own != "v9" || errors.Is(err, ErrNotRebuilt) {
		t.Errorf("got %v", err)
	}

	o = rebuildOptions(t, smallLock(t))
	if o.Lock, err = lock.Parse(LockFile, []byte(unpinned)); err != nil {
		t.Fatal(err)
	}
	if err := r.Rebuild(t.Context(), o); !errors.As(err, new(*UnpinnedError)) {
		t.Errorf("got %v", err)
	}

	// An image whose manifest for a platform is not there.
	c := ofReference(t)
	manifest := imageOf(t, operatorRef).Platforms[1].Manifest.Digest
	c.blobs = slices.DeleteFunc(c.blobs, func(b craftedBlob) bool { return b.name == manifest })
	file := c.tar(t, nil)
	if r, err = NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar"); err != nil {
		t.Fatal(err)
	}
	err = r.Rebuild(t.Context(), rebuildOptions(t, smallLock(t)))
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v", err)
	}
	wantError(t, err, "cilium: "+operatorRef+": versions.lock:", "it has no blob "+manifest.String())
}
