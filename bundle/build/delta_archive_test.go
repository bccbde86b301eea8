package build_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/upstream"
)

// TestDeltaOfArchives leaves out what came from archives. Manifests that only the archive has
// are carried, since a reader needs them all; with the older bundle at hand they are copied,
// and the archive is not fetched for them.
func TestDeltaOfArchives(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	content, err := s.PinnedLockYAML(upstream.LockOptions{Components: []string{"k3s"}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	old, whole := filepath.Join(dir, "old.tar"), filepath.Join(dir, "new.tar")
	bundletest.MustBuild(t, content, bundletest.NewClient(s), old, nil)
	newer := slices.Concat(content, []byte("# a comment is another lock\n"))
	bundletest.MustBuild(t, newer, bundletest.NewClient(s), whole, nil)
	base := &plan.Base{}
	base.AddBundle(bundletest.MustOpen(t, old))

	paths := [2]string{filepath.Join(dir, "reusing.tar"), filepath.Join(dir, "fetching.tar")}
	for i, path := range paths {
		s.ResetRequests()
		var told bundletest.Recorder
		bundletest.MustBuild(t, newer, bundletest.NewClient(s), path, nil, func(o *plan.Options) {
			o.Reporter = &told
			if o.Since = base; i == 0 {
				o.Reuse = []*bundle.Reader{bundletest.MustOpen(t, old)}
			}
		})
		fetched := 0
		for name := range bundletest.Downloads(s) {
			if !strings.Contains(name, "airgap") {
				t.Errorf("fetched %s", name)
			}
			fetched++
		}
		warned := 0
		for _, m := range told.All() {
			if strings.Contains(m, ".tar.zst (linux/") &&
				strings.HasSuffix(
					m, " of its manifests, which every delta carries; --reuse with a bundle that has them saves that") {
				warned++
			}
		}
		if want := 2 * i; fetched != want || warned != want {
			t.Errorf("%d archives were fetched, and the user told of %d, expected %d:\n%q", fetched, warned, want,
				told.All())
		}
	}
	bundletest.SameFiles(t, paths[0], paths[1])

	r := bundletest.MustOpen(t, paths[0])
	if err := r.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	want, err := bundletest.MustOpen(t, whole).Contents()
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("contents (-bundle +delta):\n%s", diff)
	}
	for _, image := range got.Images {
		for _, p := range image.Platforms {
			for _, layer := range p.Layers {
				if r.Has(layer.Digest) {
					t.Errorf("%s: the layer %s is there", image.Name, layer.Digest)
				}
			}
		}
	}
	r.Use(bundletest.MustOpen(t, old))
	joined := filepath.Join(dir, "joined.tar")
	if _, err := build.Join(t.Context(), r, build.JoinOptions{Path: joined}); err != nil {
		t.Fatal(err)
	}
	bundletest.SameFiles(t, whole, joined)
}
