package rebuild_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/rebuild"
	"github.com/liteboxd/boxlift/bundle/sbom"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/imagearchive"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/unsteady"
)

// TestRebuild proves bundles of all forms, without a server to ask.
func TestRebuild(t *testing.T) {
	identity := bundletest.NewIdentity(t)
	other := bundletest.Replaced(t, bundletest.SmallLock(t), "version: 1.20.0", "version: 1.20.1")
	tests := map[string]struct {
		plan  func(*plan.Options)
		build func(*build.Options)
		bases []string
	}{
		"one file": {},
		"signed":   {build: func(o *build.Options) { o.Signer = bundletest.SignerOf(t, 0) }},
		"volumes":  {build: func(o *build.Options) { o.VolumeSize = bundletest.VolumeSize }},
		"encrypted volumes": {build: func(o *build.Options) {
			o.VolumeSize, o.Recipients = bundletest.VolumeSize, []age.Recipient{identity.Recipient()}
		}},
		"with manifests": {plan: func(o *plan.Options) { o.Manifests = []byte("manifests") }},
		"delta": {plan: func(o *plan.Options) {
			o.Since = &plan.Base{}
			o.Since.AddBundle(bundletest.MustOpen(t, bundletest.Reference(t)))
		}},
		"signed delta with its base": {
			plan: func(o *plan.Options) {
				o.Since = &plan.Base{}
				o.Since.AddBundle(bundletest.MustOpen(t, bundletest.Reference(t)))
			},
			build: func(o *build.Options) { o.Signer = bundletest.SignerOf(t, 0) },
			bases: []string{bundletest.Reference(t)},
		},
		"delta for hosts": {plan: func(o *plan.Options) {
			o.Since = &plan.Base{}
			layer := bundletest.LayerOf(t, bundletest.OperatorRef, "linux/arm64")
			e, _ := bundletest.MustOpen(t, bundletest.Reference(t)).Tar().Blob(layer)
			o.Since.AddHosts(&have.Have{Platforms: []have.Platform{
				{Platform: "linux/arm64", Hosts: []string{"a"}, Blobs: []have.Blob{{Digest: layer, Size: e.Size}}},
			}})
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := bundletest.UpstreamServer(t)
			content := bundletest.SmallLock(t)
			if strings.Contains(name, "delta") {
				content = other
			}
			o, err := bundletest.PlanOptions(content, bundletest.NewClient(s))
			if err != nil {
				t.Fatal(err)
			}
			if test.plan != nil {
				test.plan(&o)
			}
			planned, err := plan.New(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			b := build.Options{Path: filepath.Join(t.TempDir(), "b.tar")}
			if test.build != nil {
				test.build(&b)
			}
			if _, err := build.Write(t.Context(), planned, b); err != nil {
				t.Fatal(err)
			}
			s.ResetRequests()
			r, err := bundle.Open(b.Path, identity)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			for _, base := range test.bases {
				r.Use(bundletest.MustOpen(t, base))
			}
			rebuild := bundletest.RebuildOptions(t, content)
			rebuild.Manifests = o.Manifests
			if err := bundletest.Proven(t, r, rebuild); err != nil {
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
	imagearchive.Docker(t, filepath.Join(dir, "saved.tar"))
	client := source.New(source.Options{Folder: dir})
	content := bundletest.LockOf(t, client, "file:saved.tar")
	path := filepath.Join(dir, "b.tar")
	bundletest.MustBuild(t, content, client, path, nil)
	if err := bundletest.Proven(t, bundletest.MustOpen(t, path), bundletest.RebuildOptions(t, content)); err != nil {
		t.Error(err)
	}

	// A delta, which has the manifests from the archive, that are not known when it is planned.
	old := bundletest.MustOpen(t, path)
	later := bundletest.Replaced(t, content, "version: v1", "version: v2")
	delta := filepath.Join(dir, "delta.tar")
	bundletest.MustBuild(t, later, client, delta, nil, func(o *plan.Options) {
		o.Since = &plan.Base{}
		o.Since.AddBundle(old)
	})
	if err := bundletest.Proven(t, bundletest.MustOpen(t, delta), bundletest.RebuildOptions(t, later)); err != nil {
		t.Error(err)
	}

	// With a list of software, the layers that only the base has are needed for it, and those
	// that are made of the archive.
	bundletest.MustBuild(t, later, client, filepath.Join(dir, "listed.tar"), nil, bundletest.Listing,
		bundletest.Reusing(t, path), func(o *plan.Options) {
			o.Since = &plan.Base{}
			o.Since.AddBundle(old)
		})
	r := bundletest.MustOpen(t, filepath.Join(dir, "listed.tar"))
	r.Use(old)
	o := bundletest.RebuildOptions(t, later)
	o.SBOM = bundletest.ListBlobs
	if err := bundletest.Proven(t, r, o); err != nil {
		t.Error(err)
	}
}

// ofReference is the reference bundle as something that can be changed and signed anew.
func ofReference(t *testing.T) *bundletest.Crafted {
	t.Helper()
	r := bundletest.MustOpen(t, bundletest.Reference(t))
	c := &bundletest.Crafted{}
	if err := json.Unmarshal(r.Index(), &c.Index); err != nil {
		t.Fatal(err)
	}
	for _, e := range r.Tar().Layout().Entries {
		if d := e.Digest(); d != "" {
			c.Blobs = append(c.Blobs, bundletest.CraftedBlob{Name: d, Content: bundletest.MustContent(t, r, e.Member)})
		}
	}
	return c
}

// nameOf is what differences call an entry that is for all platforms.
func nameOf(d ocispec.Descriptor) string {
	component := d.Annotations[format.AnnotationComponent]
	if image := d.Annotations[format.AnnotationImageName]; image != "" {
		return "image " + image + " of " + component
	}
	return "file " + component + ": " + d.Annotations[ocispec.AnnotationTitle]
}

// entryOf finds an entry of index.json.
func entryOf(t *testing.T, c *bundletest.Crafted, name string) *ocispec.Descriptor {
	t.Helper()
	i := slices.IndexFunc(c.Index.Manifests, func(d ocispec.Descriptor) bool { return nameOf(d) == name })
	if i < 0 {
		t.Fatalf("no entry %s", name)
	}
	return &c.Index.Manifests[i]
}

func TestNotRebuilt(t *testing.T) {
	const (
		operator = "image " + bundletest.OperatorRef + " of cilium"
		script   = "file k3s: install.sh"
	)
	imageDigest := func(name string) digest.Digest { return bundletest.ImageOf(t, name).Digest }
	otherSum := digest.FromString("other")
	tests := map[string]struct {
		// lock changes the lock that is given, bundle the bundle, options the rest.
		lock    func(content []byte) []byte
		bundle  func(t *testing.T, c *bundletest.Crafted)
		options func(*rebuild.Options)
		want    rebuild.DiffersError // but for the offset
		// whole says that the bundle is whole all the same, so that only Rebuild tells.
		whole bool
	}{
		"lock with another image": {
			lock: func(content []byte) []byte {
				return bundletest.Replaced(t, content, imageDigest(bundletest.OperatorRef).Encoded(),
					otherSum.Encoded())
			},
			want: rebuild.DiffersError{
				What:     "versions.lock in the bundle: cilium: images quay.io/cilium/operator-generic",
				Expected: "v1.20.0 sha256:" + otherSum.Encoded()[:12],
				Found:    "v1.20.0 sha256:" + imageDigest(bundletest.OperatorRef).Encoded()[:12],
			},
			whole: true,
		},
		"lock with another file": {
			lock: func(content []byte) []byte {
				return bundletest.Replaced(t, content, bundletest.ChartDigest(t).Encoded(), otherSum.Encoded())
			},
			want: rebuild.DiffersError{
				What:     "versions.lock in the bundle: cilium: charts cilium",
				Expected: "sha256:" + otherSum.Encoded()[:12],
				Found:    "sha256:" + bundletest.ChartDigest(t).Encoded()[:12],
			},
			whole: true,
		},
		"lock with an option": {
			lock: func(content []byte) []byte {
				return bundletest.Replaced(t, content, "    version: 1.20.0\n",
					"    version: 1.20.0\n    upgradesFrom: [\">=1.19.0\"]\n")
			},
			want: rebuild.DiffersError{What: "versions.lock in the bundle: cilium: upgradesFrom", Expected: ">=1.19.0",
				Found: "nothing"},
			whole: true,
		},
		"lock with a comment": {
			lock: func(content []byte) []byte { return append(slices.Clone(content), "# checked\n"...) },
			want: rebuild.DiffersError{What: "versions.lock in the bundle: line 24", Expected: `"# checked"`,
				Found: "nothing"},
			whole: true,
		},
		"additional image": {
			bundle: func(t *testing.T, c *bundletest.Crafted) {
				d := *entryOf(t, c, operator)
				d.Annotations = map[string]string{format.AnnotationComponent: "cilium",
					format.AnnotationVersion: "1.20.0", format.AnnotationImageName: "quay.io/cilium/more:v1"}
				c.Index.Manifests = append(c.Index.Manifests, d)
			},
			want: rebuild.DiffersError{What: "image quay.io/cilium/more:v1 of cilium", Expected: "nothing",
				Found: imageDigest(bundletest.OperatorRef).String()},
			whole: true,
		},
		"additional file": {
			bundle: func(t *testing.T, c *bundletest.Crafted) {
				c.AddFile("k3s", "more", format.FileArtifactType, format.FileMediaType, []byte("more"))
			},
			want: rebuild.DiffersError{What: "file k3s: more", Expected: "nothing",
				Found: digest.FromString("more").String() + " with 4 bytes"},
			whole: true,
		},
		"additional blob": {
			bundle: func(_ *testing.T, c *bundletest.Crafted) { c.Add(format.FileMediaType, []byte("more")) },
			want: rebuild.DiffersError{Expected: "the end of the file",
				Found: ocitar.BlobName(digest.FromString("more")) + " with 4 bytes"},
		},
		"swapped image": {
			bundle: func(t *testing.T, c *bundletest.Crafted) {
				d := entryOf(t, c, operator)
				d.Digest, d.Size = imageDigest(bundletest.BusyboxRef), bundletest.ImageOf(t, bundletest.BusyboxRef).Size
			},
			want: rebuild.DiffersError{What: operator, Expected: imageDigest(bundletest.OperatorRef).String(),
				Found: imageDigest(bundletest.BusyboxRef).String()},
		},
		"swapped file": {
			bundle: func(t *testing.T, c *bundletest.Crafted) {
				c.AddFile("k3s", "install.sh", format.FileArtifactType, format.FileMediaType, []byte("#!/bin/sh\n"))
				last := len(c.Index.Manifests) - 1
				d := entryOf(t, c, script)
				d.Digest, d.Size = c.Index.Manifests[last].Digest, c.Index.Manifests[last].Size
				c.Index.Manifests = c.Index.Manifests[:last]
			},
			want: rebuild.DiffersError{What: script,
				Found: digest.FromString("#!/bin/sh\n").String() + " with 10 bytes"},
		},
		"left out image": {
			bundle: func(t *testing.T, c *bundletest.Crafted) {
				c.Index.Manifests = slices.DeleteFunc(c.Index.Manifests,
					func(d ocispec.Descriptor) bool { return nameOf(d) == operator })
			},
			want: rebuild.DiffersError{What: operator, Expected: imageDigest(bundletest.OperatorRef).String(),
				Found: "nothing"},
		},
		"another annotation": {
			bundle: func(t *testing.T, c *bundletest.Crafted) {
				entryOf(t, c, script).Annotations[format.AnnotationVersion] = "v1"
			},
			want: rebuild.DiffersError{What: script}, whole: true,
		},
		"entries in another order": {
			bundle: func(_ *testing.T, c *bundletest.Crafted) { slices.Reverse(c.Index.Manifests) },
			want:   rebuild.DiffersError{What: "index.json: entry 0", Expected: "file lock: versions.lock"},
			whole:  true,
		},
		"members in another order": {
			bundle: func(_ *testing.T, c *bundletest.Crafted) { slices.Reverse(c.Blobs[3:]) },
			want:   rebuild.DiffersError{What: "member 5"}, whole: true,
		},
		"another annotation of index.json": {
			bundle: func(_ *testing.T, c *bundletest.Crafted) { c.Index.Annotations["more"] = "x" },
			want:   rebuild.DiffersError{What: "index.json"}, whole: true,
		},
		"other programs": {
			options: func(o *rebuild.Options) { o.Programs[0].Path = o.Programs[1].Path },
			want:    rebuild.DiffersError{What: "file boxlift: boxlift-node (linux/amd64)", Generated: true},
			whole:   true,
		},
		"manifests": {
			options: func(o *rebuild.Options) { o.Manifests = []byte("more") },
			want: rebuild.DiffersError{What: "file liteboxd: manifests.tar",
				Expected: digest.FromString("more").String() + " with 4 bytes", Found: "nothing", Generated: true}, whole: true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			content := bundletest.SmallLock(t)
			if test.lock != nil {
				content = test.lock(content)
			}
			c := ofReference(t)
			if test.bundle != nil {
				test.bundle(t, c)
			}
			file := c.Tar(t, bundletest.SignerOf(t, 0))
			r, err := bundle.NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
			if err != nil {
				t.Fatal(err)
			}
			o := bundletest.RebuildOptions(t, content)
			if test.options != nil {
				test.options(&o)
			}
			err = rebuild.Prove(t.Context(), r, o)
			var got *rebuild.DiffersError
			if !errors.As(err, &got) || !errors.Is(err, rebuild.ErrDiffers) {
				t.Fatalf("got %v", err)
			}
			t.Log(err)
			if test.want.What != "" && got.What != test.want.What || got.Generated != test.want.Generated ||
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
	s := bundletest.UpstreamServer(t)
	content := bundletest.Replaced(t, bundletest.SmallLock(t), "version: 1.20.0", "version: 1.20.1")
	path := filepath.Join(t.TempDir(), "b.tar")
	bundletest.MustBuild(t, content, bundletest.NewClient(s), path, nil, func(o *plan.Options) {
		o.Since = &plan.Base{}
		o.Since.AddBundle(bundletest.MustOpen(t, bundletest.Reference(t)))
	})
	file := bytes.Replace(bundletest.MustRead(t, path), []byte(`"leftOut":[{"digest"`), []byte(`"leftOut":[{"Digest"`),
		1)
	r, err := bundle.NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
	if err != nil {
		t.Fatal(err)
	}
	bundletest.WantError(t, rebuild.Prove(t.Context(), r, bundletest.RebuildOptions(t, content)),
		"the delta: not what the lock makes: index.json: expected ", `"digest`)
}

// TestNotRebuildable refuses what this program cannot make again, and what is no bundle.
func TestNotRebuildable(t *testing.T) {
	r := bundletest.MustOpen(t, bundletest.Reference(t))
	o := bundletest.RebuildOptions(t, bundletest.SmallLock(t))
	o.Version = "v9"
	err := rebuild.Prove(t.Context(), r, o)
	var other *rebuild.OtherBuilderError
	if !errors.As(err, &other) || other.Builder != "v0.0.0-test" || other.Own != "v9" ||
		errors.Is(err, rebuild.ErrDiffers) {
		t.Errorf("got %v", err)
	}

	o = bundletest.RebuildOptions(t, bundletest.SmallLock(t))
	if o.Lock, err = lock.Parse(bundle.LockFile, []byte(bundletest.Unpinned)); err != nil {
		t.Fatal(err)
	}
	if err := rebuild.Prove(t.Context(), r, o); !errors.As(err, new(*plan.UnpinnedError)) {
		t.Errorf("got %v", err)
	}

	// An image whose manifest for a platform is not there.
	c := ofReference(t)
	manifest := bundletest.ImageOf(t, bundletest.OperatorRef).Platforms[1].Manifest.Digest
	c.Blobs = slices.DeleteFunc(c.Blobs, func(b bundletest.CraftedBlob) bool { return b.Name == manifest })
	file := c.Tar(t, nil)
	if r, err = bundle.NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar"); err != nil {
		t.Fatal(err)
	}
	err = rebuild.Prove(t.Context(), r, bundletest.RebuildOptions(t, bundletest.SmallLock(t)))
	if !errors.Is(err, bundle.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	bundletest.WantError(t, err, "cilium: "+bundletest.OperatorRef+": versions.lock:",
		"it has no blob "+manifest.String())
}

// TestUnsteadyMedium proves a bundle again that gives other bytes once it was verified: what the list of software in it
// is compared with is made of the bytes that the digests name, or there is none.
func TestUnsteadyMedium(t *testing.T) {
	list := func(ctx context.Context, r *bundle.Reader) ([]byte, error) {
		document, err := sbom.Make(ctx, r, sbom.Options{Version: "v0.0.0-test"})
		if err != nil {
			return nil, err
		}
		var text bytes.Buffer
		err = sbom.Write(&text, document)
		return text.Bytes(), err
	}
	layer := smallbundle.Layer(t, map[string]string{
		"etc/os-release":      "ID=debian\nVERSION_ID=12\n",
		"var/lib/dpkg/status": "Package: tar\nStatus: install ok installed\nVersion: 1.34\nArchitecture: amd64\n\n",
	})
	dir := t.TempDir()
	everything, path := filepath.Join(dir, "everything.tar"), filepath.Join(dir, "b.tar")
	smallbundle.Write(t, everything, smallbundle.Bundle{Components: []smallbundle.Component{{
		Name: "k3s", Version: "v1.36.2+k3s1", Files: []smallbundle.File{{Name: "install.sh", Content: "#!/bin/sh\n"}},
		Images: []smallbundle.Image{{Ref: "docker.io/rancher/mirrored-pause:3.6", Platforms: []smallbundle.Platform{
			{Name: "linux/amd64", Layers: [][]byte{layer}}, {Name: "linux/arm64", Layers: [][]byte{[]byte("no layer")}},
		}}},
	}}})
	from := smallbundle.PlanOptions(t, bundletest.MustOpen(t, everything))
	from.SBOM = list
	planned, err := plan.New(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := build.Write(t.Context(), planned, build.Options{Path: path}); err != nil {
		t.Fatal(err)
	}
	unsteady.Check(t, path, func(ctx context.Context, r *bundle.Reader) (string, error) {
		var made []byte
		err := rebuild.Prove(ctx, r, rebuild.Options{
			Lock: from.Lock, LockName: from.LockName, LockContent: from.LockContent, Programs: from.Programs,
			Version: from.Version, SBOM: func(ctx context.Context, r *bundle.Reader) ([]byte, error) {
				var err error
				made, err = list(ctx, r)
				return made, err
			},
		})
		if errors.Is(err, rebuild.ErrDiffers) {
			t.Errorf("it is said to be another bundle: %v", err)
		}
		return string(made), err
	})
}
