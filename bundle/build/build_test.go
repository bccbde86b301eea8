package build_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pins"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/workload"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/upstream"
)

// TestEverything takes the whole set, air-gap archives included, the whole way.
func TestEverything(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	document, err := lock.ParseDocument(bundle.LockFile, s.LockYAML(upstream.LockOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := pins.Fill(t.Context(), pins.Options{Document: document, Source: bundletest.NewClient(s)}); err != nil {
		t.Fatal(err)
	}
	content := document.Bytes()
	l, err := lock.Parse(bundle.LockFile, content)
	if err != nil {
		t.Fatal(err)
	}
	if missing := l.Unpinned(); len(missing) > 0 {
		t.Fatalf("left without a pin: %v", missing)
	}
	// What the server knows of itself.
	known, err := s.PinnedLockYAML(upstream.LockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := lock.Parse(bundle.LockFile, known)
	if err != nil {
		t.Fatal(err)
	}
	byPath := cmpopts.SortSlices(func(a, b lock.ArchiveBlob) bool { return a.Path < b.Path })
	noLine := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Line" }, cmp.Ignore())
	if diff := cmp.Diff(want, l, byPath, noLine); diff != "" {
		t.Errorf("the resolved lock (-expected +got):\n%s", diff)
	}

	path := filepath.Join(t.TempDir(), "all.tar")
	signer := bundletest.SignerOf(t, 0)
	s.ResetRequests()
	result := bundletest.MustBuild(t, content, bundletest.NewClient(s), path, signer)
	got := bundletest.Downloads(s)
	if diff := cmp.Diff(bundletest.Once(got), got); diff != "" {
		t.Errorf("downloads (-once +got):\n%s", diff)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if result.Unchanged || result.Reused != 0 || result.Size != info.Size() {
		t.Errorf("result %+v of a file of %d bytes", result, info.Size())
	}

	r := bundletest.MustOpen(t, path)
	if err := r.VerifySignature(signer.PublicKey()); err != nil {
		t.Error(err)
	}
	if err := bundletest.Proven(t, r, bundletest.RebuildOptions(t, content)); err != nil {
		t.Error(err)
	}
	if result.Digest != r.Digest() || r.Size() != info.Size() || r.Version() != "v0.0.0-test" {
		t.Errorf("digest %s, size %d, version %s", r.Digest(), r.Size(), r.Version())
	}
	if _, carried, err := r.Lock(); err != nil || !bytes.Equal(carried, content) {
		t.Errorf("the bundle carries another lock: %v", err)
	}
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	bundletest.Golden(t, "everything.golden", describe(contents))
	checkFiles(t, s, r, contents)
	checkImages(t, s, contents)
}

// describe renders what does not depend on the machine that made the artifacts.
func describe(c *bundle.Contents) string {
	var b strings.Builder
	for _, component := range c.Describe() {
		fmt.Fprintf(&b, "%s %s %v files=%d images=%d\n", component.Name, component.Version, component.Platforms,
			component.Files, component.Images)
	}
	for _, f := range c.Files {
		fmt.Fprintf(&b, "\nfile %s %s %s [%s]\n  %s\n", f.Component, f.Version, f.Name, f.Platform, f.MediaType)
	}
	for _, image := range c.Images {
		fmt.Fprintf(&b, "\nimage %s %s %s\n  %s\n", image.Component, image.Version, image.Name, image.MediaType)
		for _, p := range image.Platforms {
			fmt.Fprintf(&b, "  %s %s\n", p.Platform, p.Config.MediaType)
			for _, layer := range p.Layers {
				fmt.Fprintf(&b, "    %s\n", layer.MediaType)
			}
		}
	}
	return b.String()
}

// checkFiles compares what is in the bundle with what the server has.
func checkFiles(t *testing.T, s *upstream.Server, r *bundle.Reader, contents *bundle.Contents) {
	t.Helper()
	known := make(map[string]int64)
	for _, f := range s.Files() {
		known[f.SHA256] = f.Size
	}
	for _, f := range contents.Files {
		if f.Component == bundle.LockComponent || f.Component == bundle.ProgramsComponent {
			continue
		}
		if size, ok := known[f.Digest.Encoded()]; !ok || size != f.Size {
			t.Errorf("file %s: %s of %d bytes is not what the server has", f.Name, f.Digest, f.Size)
		}
		bundletest.MustContent(t, r, ocitar.Blob(f.Digest, f.Size))
	}
	if f, ok := contents.File("k3s", "k3s", "linux/arm64/v8"); !ok || f.Platform != "linux/arm64" {
		t.Errorf("k3s for linux/arm64/v8: %+v, %t", f, ok)
	}
	if f, ok := contents.File("k3s", "install.sh", "linux/amd64"); !ok || f.Platform != "" {
		t.Errorf("install.sh for linux/amd64: %+v, %t", f, ok)
	}
	if _, ok := contents.File("k3s", "k3s", ""); ok {
		t.Error("a file for all platforms was found that there is not")
	}
	if diff := cmp.Diff([]lock.Platform{"linux/amd64", "linux/arm64"}, contents.Platforms()); diff != "" {
		t.Errorf("platforms (-expected +got):\n%s", diff)
	}
}

func checkImages(t *testing.T, s *upstream.Server, contents *bundle.Contents) {
	t.Helper()
	inBundle := make(map[string]bundle.Image)
	for _, image := range contents.Images {
		inBundle[image.Name] = image
	}
	for _, image := range s.Images() {
		got, ok := inBundle[image.Ref]
		if !ok {
			t.Errorf("%s is not in the bundle", image.Ref)
			continue
		}
		if got.Digest != image.Digest || got.MediaType != image.MediaType {
			t.Errorf("%s is %s %s, in its registry %s %s", image.Ref, got.MediaType, got.Digest, image.MediaType,
				image.Digest)
		}
		var platforms []string
		for _, p := range got.Platforms {
			// liteboxd is for amd64 only, whatever its images are published for.
			platforms = append(platforms, string(p.Platform))
		}
		want := image.Platforms
		if got.Component == "liteboxd" {
			want = []string{"linux/amd64"}
		}
		if diff := cmp.Diff(want, platforms); diff != "" {
			t.Errorf("%s: platforms (-expected +got):\n%s", image.Ref, diff)
		}
	}
}

func TestBuildAgain(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	signer := bundletest.SignerOf(t, 0)
	first := bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, signer)
	before := bundletest.MustRead(t, path)

	s.ResetRequests()
	second := bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, signer)
	got := bundletest.Downloads(s)
	delete(got, planned(t)) // the plan needs it
	if len(got) > 0 {
		t.Errorf("the second build fetched %v", got)
	}
	first.Unchanged = true
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("result (-expected +got):\n%s", diff)
	}
	if !bytes.Equal(before, bundletest.MustRead(t, path)) {
		t.Error("the second build changed the file")
	}

	// A finished bundle that was damaged is not taken for one.
	damaged := slices.Clone(before)
	damaged[len(damaged)-2000] ^= 1
	bundletest.MustWrite(t, path, damaged)
	if again := bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path,
		signer); again.Unchanged {
		t.Error("a damaged bundle was taken for complete")
	}
	if !bytes.Equal(before, bundletest.MustRead(t, path)) {
		t.Error("the damaged bundle was not replaced by the same bytes")
	}
	if left, err := build.Partials(path, ""); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// TestSameBytes lets downloads finish in different orders.
func TestSameBytes(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	dir := t.TempDir()
	content := bundletest.SmallLock(t)
	signer := bundletest.SignerOf(t, 0)
	bundletest.MustBuild(t, content, bundletest.NewClient(s), filepath.Join(dir, "signed-1.tar"), signer,
		func(o *plan.Options) { o.Parallelism = 1 })

	s.Inject(upstream.Rule{Path: "cilium", Fault: upstream.Slow{BytesPerSecond: 2_000_000}})
	s.Inject(upstream.Rule{Path: "pause", Fault: upstream.Slow{BytesPerSecond: 100_000}})
	bundletest.MustBuild(t, content, bundletest.NewClient(s), filepath.Join(dir, "signed-8.tar"), signer,
		func(o *plan.Options) { o.Parallelism = 8 })
	bundletest.MustBuild(t, content, bundletest.NewClient(s), filepath.Join(dir, "8.tar"), nil,
		func(o *plan.Options) { o.Parallelism = 8 })
	s.Heal()

	bundletest.SameFiles(t, filepath.Join(dir, "signed-1.tar"), filepath.Join(dir, "signed-8.tar"))
	bundletest.SameFiles(t, bundletest.Reference(t), filepath.Join(dir, "8.tar"))
	if bundletest.MustOpen(t, bundletest.Reference(t)).Digest() != bundletest.MustOpen(t,
		filepath.Join(dir, "signed-1.tar")).Digest() {
		t.Error("the signature changed the bundle digest")
	}
}

// TestSourceCheck looks into the chart before anything large is fetched, and fetches it once.
func TestSourceCheck(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	content := bundletest.SmallLock(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	refused := errors.New("refused")
	looked := 0
	var charts []digest.Digest
	check := func(component string, answer error) func(*plan.Options) {
		return func(o *plan.Options) {
			o.Sources = &plan.SourceCheck{Components: []string{component}, Check: func(_ context.Context, all []workload.Source) error {
				looked++
				for _, s := range all {
					charts = append(charts, digest.FromBytes(s.Content))
				}
				return answer
			}}
		}
	}
	fetch := func(wanted ...string) {
		t.Helper()
		got := bundletest.Downloads(s)
		delete(got, planned(t))
		for _, name := range wanted {
			delete(got, name)
		}
		if len(got) > 0 {
			t.Errorf("fetched %v", got)
		}
		s.ResetRequests()
	}
	s.ResetRequests()

	if _, err := bundletest.Build(t.Context(), content, bundletest.NewClient(s), path, nil,
		check("cilium", refused)); !errors.Is(err, refused) {
		t.Errorf("a chart that is refused: %v", err)
	}
	fetch(strings.TrimPrefix(bundletest.ChartURL, "https:/"))
	contents, err := bundletest.MustOpen(t, bundletest.Reference(t)).Contents()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(contents.Images, func(i bundle.Image) bool { return i.Name == bundletest.OperatorRef })
	moved := bundletest.Replaced(t, content, string(contents.Images[i].Digest), string(digest.FromString("other")))
	if _, err := bundletest.Build(t.Context(), moved, bundletest.NewClient(s), path, nil,
		check("cilium", refused)); !errors.Is(err, format.ErrUpstream) || errors.Is(err, refused) {
		t.Errorf("a plan that cannot be made, and a chart that is refused: %v", err)
	}
	fetch(strings.TrimPrefix(bundletest.ChartURL, "https:/"))
	charts, looked = nil, 0
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	bundletest.MustBuild(t, content, bundletest.NewClient(s), path, nil, check("cilium", nil))
	got := bundletest.Downloads(s)
	if diff := cmp.Diff(bundletest.Once(got), got); diff != "" {
		t.Errorf("downloads (-expected +got):\n%s", diff)
	}
	bundletest.SameFiles(t, bundletest.Reference(t), path)
	s.ResetRequests()

	// It is in an older bundle, and a component need not have one.
	older := bundletest.MustOpen(t, path)
	other := append(slices.Clip(content), "# not the lock of the older bundle\n"...)
	for _, component := range []string{"cilium", "k3s"} {
		if _, err := bundletest.Build(t.Context(), other, bundletest.NewClient(s), filepath.Join(t.TempDir(), "b.tar"),
			nil, check(component, nil), func(o *plan.Options) { o.Reuse = []*bundle.Reader{older} }); err != nil {
			t.Fatal(err)
		}
	}
	fetch()
	chart := bundletest.ChartDigest(t)
	if diff := cmp.Diff([]digest.Digest{chart, chart}, charts); diff != "" || looked != 3 {
		t.Errorf("charts that were looked into %d times (-expected +got):\n%s", looked, diff)
	}
}

// copying is a reporter that says when older bundles are being copied from.
type copying struct {
	bundletest.Recorder
	begun chan struct{}
}

func (c *copying) Task(name string, total int64) progress.Task {
	if name == "copy what older bundles hold" {
		close(c.begun)
	}
	return c.Recorder.Task(name, total)
}

// TestSourceCheckWhileCopying has a check that ends no sooner than copying begins. What it then
// refuses is as if it had not been begun.
func TestSourceCheckWhileCopying(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	refused := errors.New("refused")
	identity := bundletest.NewIdentity(t)
	encrypt := func(o *build.Options) { o.Recipients = []age.Recipient{identity.Recipient()} }
	half := filepath.Join(t.TempDir(), "half.tar")
	bundletest.MustBuild(t, bundletest.Replaced(t, bundletest.SmallLock(t),
		"      - {ref: \""+bundletest.BusyboxRef+"\", digest: "+
			bundletest.ImageOf(t, bundletest.BusyboxRef).Digest.String()+"}\n", ""), bundletest.NewClient(s), half, nil)
	for name, c := range map[string]struct {
		answer error
		change func(*build.Options)
	}{
		"accepted":             {nil, func(*build.Options) {}},
		"refused":              {refused, func(*build.Options) {}},
		"refused, volumes":     {refused, func(o *build.Options) { o.VolumeSize = bundletest.VolumeSize }},
		"refused, encrypted":   {refused, encrypt},
		"refused, as a delta":  {refused, func(*build.Options) {}},
		"accepted, as a delta": {nil, func(*build.Options) {}},
	} {
		t.Run(name, func(t *testing.T) {
			content := bundletest.SmallLock(t)
			if strings.HasSuffix(name, "delta") {
				content = append(slices.Clip(content), "# not the lock of the older bundle\n"...)
			}
			o, err := bundletest.PlanOptions(content, bundletest.NewClient(s))
			if err != nil {
				t.Fatal(err)
			}
			bundletest.Reusing(t, half)(&o)
			if strings.HasSuffix(name, "delta") {
				o.Since = &plan.Base{}
				o.Since.AddBundle(bundletest.MustOpen(t, half))
				o.Reuse = []*bundle.Reader{bundletest.MustOpen(t, bundletest.Reference(t))}
			}
			reporter := &copying{begun: make(chan struct{})}
			o.Reporter = reporter
			o.Sources = &plan.SourceCheck{Components: []string{"cilium"}, Check: func(context.Context, []workload.Source) error {
				select {
				case <-reporter.begun:
				case <-time.After(time.Minute):
					return errors.New("nothing was copied meanwhile")
				}
				return c.answer
			}}
			s.ResetRequests()
			planned, err := plan.New(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "b.tar")
			options := build.Options{Path: path}
			c.change(&options)
			if _, err := build.Write(t.Context(), planned, options); !errors.Is(err, c.answer) {
				t.Fatalf("got %v, want %v", err, c.answer)
			}
			if c.answer == nil {
				if o.Since == nil {
					bundletest.SameFiles(t, bundletest.Reference(t), path)
				}
				return
			}
			if got := bundletest.DownloadsOfBuild(t, s); len(got) > 0 {
				t.Errorf("fetched %v", got)
			}
			if left := readFiles(t, filepath.Dir(path)); len(left) > 0 {
				t.Errorf("left over: %v", slices.Sorted(maps.Keys(left)))
			}
		})
	}

	// Nor is a bundle that is there already as good as one that is accepted.
	path := filepath.Join(t.TempDir(), "b.tar")
	bundletest.MustWrite(t, path, bundletest.MustRead(t, bundletest.Reference(t)))
	_, err := bundletest.Build(t.Context(), bundletest.SmallLock(t), bundletest.NewClient(s), path, nil,
		bundletest.Reusing(t, half), func(o *plan.Options) {
			o.Sources = &plan.SourceCheck{Components: []string{"cilium"},
				Check: func(context.Context, []workload.Source) error { return refused }}
		})
	if !errors.Is(err, refused) {
		t.Errorf("a bundle that is there: %v", err)
	}
	bundletest.SameFiles(t, bundletest.Reference(t), path)

	// What was built before was checked before.
	again := filepath.Join(t.TempDir(), "b.tar")
	if _, err := bundletest.Build(t.Context(), bundletest.SmallLock(t), bundletest.NewClient(s), again, nil,
		bundletest.Reusing(t, bundletest.Reference(t)), func(o *plan.Options) {
			o.Sources = &plan.SourceCheck{Components: []string{"cilium"},
				Check: func(context.Context, []workload.Source) error { return refused }}
		}); err != nil {
		t.Errorf("from the same bundle: %v", err)
	}
	bundletest.SameFiles(t, bundletest.Reference(t), again)
}

// TestArchives takes images from air-gap archives of two platforms and checks that they
// are those of the registry, and that each archive is read once.
func TestArchives(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	content, err := s.PinnedLockYAML(upstream.LockOptions{Components: []string{"k3s"}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "k3s.tar")
	bundletest.MustBuild(t, content, bundletest.NewClient(s), path, nil)
	got := bundletest.Downloads(s)
	if diff := cmp.Diff(bundletest.Once(got), got); diff != "" {
		t.Errorf("downloads (-once +got):\n%s", diff)
	}
	if len(got) != 5 { // two programs, two archives, install.sh
		t.Errorf("downloads: %v", got)
	}

	// One archive alone cannot serve two platforms.
	l, err := lock.Parse(bundle.LockFile, content)
	if err != nil {
		t.Fatal(err)
	}
	l.Components[0].Images = l.Components[0].Images[:1]
	o, err := bundletest.PlanOptions(content, bundletest.NewClient(s))
	if err != nil {
		t.Fatal(err)
	}
	o.Lock = l
	_, err = plan.New(t.Context(), o)
	bundletest.WantError(t, err, "k3s: docker.io/rancher/klipper-helm:",
		"not published for linux/arm64, only for [linux/amd64]")
	if !errors.Is(err, format.ErrUpstream) {
		t.Errorf("not ErrUpstream: %v", err)
	}
}

// TestLockedContentsAreWrong has a lock that says something else of an archive than what
// is in it.
func TestLockedContentsAreWrong(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	content, err := s.PinnedLockYAML(
		upstream.LockOptions{Components: []string{"k3s"}, Platforms: []string{"linux/amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		change func(*lock.Contents)
		want   []string
	}{
		"a blob too few": {
			func(c *lock.Contents) {
				c.Blobs = slices.DeleteFunc(c.Blobs, func(b lock.ArchiveBlob) bool { return !plan.IsJSON(b.MediaType) })
			},
			[]string{"which is complete", "is missing"},
		},
		"a blob that is not there": {
			func(c *lock.Contents) {
				c.Blobs = append(c.Blobs,
					lock.ArchiveBlob{Path: "blobs/sha256/none", Digest: digest.FromString("none"), Size: 4,
						MediaType: "text/plain"})
			},
			[]string{"k3s: k3s-airgap-images-amd64.tar.zst (linux/amd64): the archive does not hold blobs/sha256/none",
				"boxlift bundle lock"},
		},
		"a blob of more bytes": {
			func(c *lock.Contents) { c.Blobs[0].Size++ },
			[]string{"k3s: k3s-airgap-images-amd64.tar.zst (linux/amd64): blobs/sha256/",
				" bytes came, the lock says "},
		},
		"a blob of fewer bytes": {
			func(c *lock.Contents) { c.Blobs[0].Size-- },
			[]string{"k3s: k3s-airgap-images-amd64.tar.zst (linux/amd64): blobs/sha256/",
				" bytes came, the lock says "},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o, err := bundletest.PlanOptions(content, bundletest.NewClient(s))
			if err != nil {
				t.Fatal(err)
			}
			test.change(o.Lock.Components[0].Images[0].Contents)
			planned, err := plan.New(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "b.tar")
			s.ResetRequests()
			_, err = build.Write(t.Context(), planned, build.Options{Path: path})
			bundletest.WantError(t, err, test.want...)
			bundletest.NoFile(t, path)
			got := bundletest.Downloads(s)
			if diff := cmp.Diff(bundletest.Once(got), got); diff != "" {
				t.Errorf("downloads (-once +got):\n%s", diff)
			}
		})
	}
}

func TestTwoBuildsAtOnce(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	stall := s.Inject(upstream.Rule{Path: upstream.FilePath(bundletest.ChartURL),
		Fault: upstream.Slow{BytesPerSecond: 10}})
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := bundletest.Build(ctx, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil)
		ended <- err
	}()
	for stall.Hits() == 0 {
		select {
		case err := <-ended:
			t.Fatalf("the first build ended: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	_, err := bundletest.Build(t.Context(), bundletest.SmallLock(t), bundletest.NewClient(s), path, nil)
	bundletest.WantError(t, err, "b.tar.", "another build is writing it")

	stop := errors.New("the user wants it to stop")
	cancel(stop)
	if err := <-ended; !errors.Is(err, stop) {
		t.Errorf("the first build: %v", err)
	}
	bundletest.NoFile(t, path)
	if left, err := build.Partials(path, ""); err != nil || len(left) != 1 {
		t.Errorf("the unfinished bundles are %v, %v", left, err)
	}
	s.Heal()
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil)
	bundletest.SameFiles(t, bundletest.Reference(t), path)
}

// TestPartialOfAnotherKey continues a signed build with another key, whose signature may
// be shorter.
func TestPartialOfAnotherKey(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	o, err := bundletest.PlanOptions(bundletest.SmallLock(t), bundletest.NewClient(s))
	if err != nil {
		t.Fatal(err)
	}
	planned, err := plan.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "b.tar")
	signer := bundletest.SignerOf(t, 0)
	if _, err := build.Write(t.Context(), planned, build.Options{Path: path, Signer: signer}); err != nil {
		t.Fatal(err)
	}
	want := bundletest.MustRead(t, path)

	left := slices.Clone(want)
	for _, e := range bundletest.MustOpen(t, path).Tar().Layout().Entries[:4] {
		for i := e.Offset; i < e.End(); i++ {
			left[i] = 'x'
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	bundletest.MustWrite(t, path+"."+planned.Digest().Encoded()[:12]+"-signed.partial", left)
	result, err := build.Write(t.Context(), planned, build.Options{Path: path, Signer: signer})
	if err != nil {
		t.Fatal(err)
	}
	if result.Reused == 0 {
		t.Error("nothing was taken from the partial file")
	}
	if !bytes.Equal(want, bundletest.MustRead(t, path)) {
		t.Error("the bundle differs")
	}
}

// TestGarbageInPartial has a partial file whose headers promise contents that are not
// there, as after a power cut, and bytes where only zeros may be.
func TestGarbageInPartial(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	r := bundletest.MustOpen(t, bundletest.Reference(t))
	left := bundletest.MustRead(t, bundletest.Reference(t))
	entries := r.Tar().Layout().Entries
	spoiled := []int{5, len(entries) - 1}
	for _, i := range spoiled {
		clear(left[entries[i].Offset:entries[i].End()])
	}
	whole := entries[7]
	if whole.End() == whole.Offset+whole.Size {
		t.Fatal("the member has no padding")
	}
	left[whole.End()-1] = 'x'
	left[len(left)-1] = 'x'
	path := filepath.Join(t.TempDir(), "b.tar")
	bundletest.MustWrite(t, path+"."+r.Digest().Encoded()[:12]+".partial", left)
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil)
	bundletest.SameFiles(t, bundletest.Reference(t), path)
	got := bundletest.Downloads(s)
	delete(got, planned(t))
	if len(got) > len(spoiled) {
		t.Errorf("fetched %v", got)
	}
}

func TestBuildTargets(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	dir := t.TempDir()
	_, err := bundletest.Build(t.Context(), bundletest.SmallLock(t), bundletest.NewClient(s), dir, nil)
	bundletest.WantError(t, err, dir, "something that is not a bundle is there")
	got := bundletest.Downloads(s)
	delete(got, planned(t))
	if len(got) > 0 {
		t.Errorf("fetched in vain: %v", got)
	}
	_, err = bundletest.Build(t.Context(), bundletest.SmallLock(t), bundletest.NewClient(s),
		filepath.Join(dir, "none", "b.tar"), nil)
	bundletest.WantError(t, err, filepath.Join(dir, "none", "b.tar"), "the folder", "is not there")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("left over: %v, %v", entries, err)
	}

	// What is no bundle is somebody's file: a key, a lock.
	precious := filepath.Join(dir, "boxlift.key")
	for _, content := range []string{"a key", strings.Repeat("x", 2000)} {
		bundletest.MustWrite(t, precious, []byte(content))
		_, err = bundletest.Build(t.Context(), bundletest.SmallLock(t), bundletest.NewClient(s), precious, nil)
		bundletest.WantError(t, err, precious, "something that is not a bundle is there")
		if got, err := os.ReadFile(precious); err != nil || string(got) != content {
			t.Errorf("%d bytes were there, now %d: %v", len(content), len(got), err)
		}
	}
	// An older bundle is replaced.
	older := filepath.Join(dir, "older.tar")
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), older, nil)
	f, err := os.OpenFile(older, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), 5000); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), older, nil)
	bundletest.SameFiles(t, bundletest.Reference(t), older)
}

// TestProgramChanges has a program that is another one when it is copied than when the
// bundle was planned.
func TestProgramChanges(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	o, err := bundletest.PlanOptions(bundletest.SmallLock(t), bundletest.NewClient(s))
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "boxlift-node")
	bundletest.MustWrite(t, program, []byte("before"))
	o.Programs[0].Path = program
	planned, err := plan.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	bundletest.MustWrite(t, program, []byte("after."))
	path := filepath.Join(t.TempDir(), "b.tar")
	_, err = build.Write(t.Context(), planned, build.Options{Path: path})
	bundletest.WantError(t, err, "boxlift: boxlift-node (linux/amd64): ")
	bundletest.NoFile(t, path)

	o.Programs[0].Path = program + "-none"
	_, err = plan.New(t.Context(), o)
	bundletest.WantError(t, err, "boxlift: boxlift-node (linux/amd64): ", "no such file")
}

// TestManifests has them travel with their component, and only with it.
func TestManifests(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	content := bundletest.SmallLock(t)
	with := func(manifests []byte) func(*plan.Options) {
		return func(o *plan.Options) { o.Manifests = manifests }
	}
	manifests := []byte(strings.Repeat("manifests", 1000))
	dir := t.TempDir()
	first, second, other := filepath.Join(dir, "1.tar"), filepath.Join(dir, "2.tar"), filepath.Join(dir, "3.tar")
	bundletest.MustBuild(t, content, bundletest.NewClient(s), first, nil, with(manifests))
	bundletest.MustBuild(t, content, bundletest.NewClient(s), second, nil, with(bytes.Clone(manifests)))
	bundletest.SameFiles(t, first, second)

	r := bundletest.MustOpen(t, first)
	if err := r.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	version := ""
	for _, image := range contents.Images {
		if image.Component == bundle.ManifestsComponent {
			version = image.Version
		}
	}
	want := bundle.File{
		Component: bundle.ManifestsComponent, Version: version, Name: bundle.ManifestsFile,
		MediaType: format.FileMediaType, Digest: digest.FromBytes(manifests), Size: int64(len(manifests)),
	}
	for _, platform := range []lock.Platform{"", "linux/amd64", "linux/arm64"} {
		f, ok := contents.File(bundle.ManifestsComponent, bundle.ManifestsFile, platform)
		if diff := cmp.Diff(want, f); !ok || diff != "" {
			t.Errorf("the file for %q (-expected +got):\n%s", platform, diff)
		}
	}
	if got := bundletest.MustContent(t, r, ocitar.Blob(want.Digest, want.Size)); !bytes.Equal(got, manifests) {
		t.Errorf("%d bytes came out, %d went in", len(got), len(manifests))
	}

	// Other manifests are another bundle.
	bundletest.MustBuild(t, content, bundletest.NewClient(s), other, nil, with([]byte("others")))
	if bundletest.MustOpen(t, other).Digest() == r.Digest() {
		t.Error("the bundle digest does not cover the manifests")
	}
	// None are none: the bundle is what it was without them.
	none := filepath.Join(dir, "none.tar")
	bundletest.MustBuild(t, content, bundletest.NewClient(s), none, nil)
	bundletest.SameFiles(t, none, bundletest.Reference(t))
}

func TestManifestsNeedTheirComponent(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	o, err := bundletest.PlanOptions(bundletest.SmallLock(t), bundletest.NewClient(s))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(o.Lock.Components, func(c lock.Component) bool { return c.Name == bundle.ManifestsComponent })
	o.Manifests = []byte("manifests")
	o.Lock.Components[i].Files = append(o.Lock.Components[i].Files, lock.File{
		Name: bundle.ManifestsFile, URL: "https://example.com/m", SHA256: digest.FromString("m").Encoded(), Size: 1,
		Line: 7,
	})
	_, err = plan.New(t.Context(), o)
	bundletest.WantError(t, err, bundle.ManifestsComponent+": "+bundle.ManifestsFile, bundle.LockFile+":7")

	o.Lock.Components = slices.Delete(o.Lock.Components, i, i+1)
	planned, err := plan.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(planned.Index, []byte(bundle.ManifestsFile)) {
		t.Error("the manifests travel without their component")
	}
}
