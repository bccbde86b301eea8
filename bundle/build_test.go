package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
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

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/upstream"
)

func (r *recorder) Task(string, int64) progress.Task { return progress.Discard.Task("", 0) }
func (r *recorder) Message(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, text)
}

// TestEverything takes the whole set, air-gap archives included, the whole way.
func TestEverything(t *testing.T) {
	s := upstreamServer(t)
	document, err := lock.ParseDocument(LockFile, s.LockYAML(upstream.LockOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := Resolve(t.Context(), ResolveOptions{Document: document, Source: newClient(s)}); err != nil {
		t.Fatal(err)
	}
	content := document.Bytes()
	l, err := lock.Parse(LockFile, content)
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
	want, err := lock.Parse(LockFile, known)
	if err != nil {
		t.Fatal(err)
	}
	byPath := cmpopts.SortSlices(func(a, b lock.ArchiveBlob) bool { return a.Path < b.Path })
	noLine := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Line" }, cmp.Ignore())
	if diff := cmp.Diff(want, l, byPath, noLine); diff != "" {
		t.Errorf("the resolved lock (-expected +got):\n%s", diff)
	}

	path := filepath.Join(t.TempDir(), "all.tar")
	signer := signerOf(t, 0)
	s.ResetRequests()
	result := mustBuild(t, content, newClient(s), path, signer)
	got := downloads(s)
	if diff := cmp.Diff(once(got), got); diff != "" {
		t.Errorf("downloads (-once +got):\n%s", diff)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if result.Unchanged || result.Reused != 0 || result.Size != info.Size() {
		t.Errorf("result %+v of a file of %d bytes", result, info.Size())
	}

	r := mustOpen(t, path)
	if err := r.VerifySignature(signer.PublicKey()); err != nil {
		t.Error(err)
	}
	if err := proven(t, r, rebuildOptions(t, content)); err != nil {
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
	golden(t, "everything.golden", describe(contents))
	checkFiles(t, s, r, contents)
	checkImages(t, s, contents)
}

// describe renders what does not depend on the machine that made the artifacts.
func describe(c *Contents) string {
	var b strings.Builder
	for _, component := range c.Describe() {
		fmt.Fprintf(&b, "%s %s %v files=%d images=%d\n", component.Name, component.Version, component.Platforms, component.Files, component.Images)
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
func checkFiles(t *testing.T, s *upstream.Server, r *Reader, contents *Contents) {
	t.Helper()
	known := make(map[string]int64)
	for _, f := range s.Files() {
		known[f.SHA256] = f.Size
	}
	for _, f := range contents.Files {
		if f.Component == LockComponent || f.Component == ProgramsComponent {
			continue
		}
		if size, ok := known[f.Digest.Encoded()]; !ok || size != f.Size {
			t.Errorf("file %s: %s of %d bytes is not what the server has", f.Name, f.Digest, f.Size)
		}
		section, err := r.blob(f.Digest)
		if err != nil {
			t.Error(err)
			continue
		}
		if got, err := digest.FromReader(section); err != nil || got != f.Digest {
			t.Errorf("file %s: read %s, %v", f.Name, got, err)
		}
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

func checkImages(t *testing.T, s *upstream.Server, contents *Contents) {
	t.Helper()
	inBundle := make(map[string]Image)
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
			t.Errorf("%s is %s %s, in its registry %s %s", image.Ref, got.MediaType, got.Digest, image.MediaType, image.Digest)
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
	s := upstreamServer(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	signer := signerOf(t, 0)
	first := mustBuild(t, smallLock(t), newClient(s), path, signer)
	before := mustRead(t, path)

	s.ResetRequests()
	second := mustBuild(t, smallLock(t), newClient(s), path, signer)
	got := downloads(s)
	delete(got, planned(t)) // the plan needs it
	if len(got) > 0 {
		t.Errorf("the second build fetched %v", got)
	}
	first.Unchanged = true
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("result (-expected +got):\n%s", diff)
	}
	if !bytes.Equal(before, mustRead(t, path)) {
		t.Error("the second build changed the file")
	}

	// A finished bundle that was damaged is not taken for one.
	damaged := slices.Clone(before)
	damaged[len(damaged)-2000] ^= 1
	mustWrite(t, path, damaged)
	if again := mustBuild(t, smallLock(t), newClient(s), path, signer); again.Unchanged {
		t.Error("a damaged bundle was taken for complete")
	}
	if !bytes.Equal(before, mustRead(t, path)) {
		t.Error("the damaged bundle was not replaced by the same bytes")
	}
	if left, err := Partials(path, ""); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// TestSameBytes lets downloads finish in different orders.
func TestSameBytes(t *testing.T) {
	s := upstreamServer(t)
	dir := t.TempDir()
	content := smallLock(t)
	signer := signerOf(t, 0)
	mustBuild(t, content, newClient(s), filepath.Join(dir, "signed-1.tar"), signer, func(o *PlanOptions) { o.Parallelism = 1 })

	s.Inject(upstream.Rule{Path: "cilium", Fault: upstream.Slow{BytesPerSecond: 2_000_000}})
	s.Inject(upstream.Rule{Path: "pause", Fault: upstream.Slow{BytesPerSecond: 100_000}})
	mustBuild(t, content, newClient(s), filepath.Join(dir, "signed-8.tar"), signer, func(o *PlanOptions) { o.Parallelism = 8 })
	mustBuild(t, content, newClient(s), filepath.Join(dir, "8.tar"), nil, func(o *PlanOptions) { o.Parallelism = 8 })
	s.Heal()

	sameFiles(t, filepath.Join(dir, "signed-1.tar"), filepath.Join(dir, "signed-8.tar"))
	sameFiles(t, reference(t), filepath.Join(dir, "8.tar"))
	if mustOpen(t, reference(t)).Digest() != mustOpen(t, filepath.Join(dir, "signed-1.tar")).Digest() {
		t.Error("the signature changed the bundle digest")
	}
}

// TestChartCheck looks into the chart before anything large is fetched, and fetches it once.
func TestChartCheck(t *testing.T) {
	s := upstreamServer(t)
	content := smallLock(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	refused := errors.New("refused")
	var charts []digest.Digest
	check := func(component string, answer error) func(*PlanOptions) {
		return func(o *PlanOptions) {
			o.Chart = &ChartCheck{Component: component, Check: func(_ context.Context, chart []byte) error {
				charts = append(charts, digest.FromBytes(chart))
				return answer
			}}
		}
	}
	fetch := func(wanted ...string) {
		t.Helper()
		got := downloads(s)
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

	if _, err := build(t.Context(), content, newClient(s), path, nil, check("cilium", refused)); !errors.Is(err, refused) {
		t.Errorf("a chart that is refused: %v", err)
	}
	fetch(strings.TrimPrefix(chartURL, "https:/"))
	contents, err := mustOpen(t, reference(t)).Contents()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(contents.Images, func(i Image) bool { return i.Name == operatorRef })
	moved := replaced(t, content, string(contents.Images[i].Digest), string(digest.FromString("other")))
	if _, err := build(t.Context(), moved, newClient(s), path, nil, check("cilium", refused)); !errors.Is(err, ErrUpstream) || errors.Is(err, refused) {
		t.Errorf("a plan that cannot be made, and a chart that is refused: %v", err)
	}
	fetch(strings.TrimPrefix(chartURL, "https:/"))
	charts = nil
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	mustBuild(t, content, newClient(s), path, nil, check("cilium", nil))
	got := downloads(s)
	if diff := cmp.Diff(once(got), got); diff != "" {
		t.Errorf("downloads (-expected +got):\n%s", diff)
	}
	sameFiles(t, reference(t), path)
	s.ResetRequests()

	// It is in an older bundle, and a component need not have one.
	older := mustOpen(t, path)
	other := append(slices.Clip(content), "# not the lock of the older bundle\n"...)
	for _, component := range []string{"cilium", "k3s"} {
		if _, err := build(t.Context(), other, newClient(s), filepath.Join(t.TempDir(), "b.tar"), nil, check(component, nil), func(o *PlanOptions) { o.Reuse = []*Reader{older} }); err != nil {
			t.Fatal(err)
		}
	}
	fetch()
	chart := chartDigest(t)
	if diff := cmp.Diff([]digest.Digest{chart, chart, digest.FromBytes(nil)}, charts); diff != "" {
		t.Errorf("charts that were looked into (-expected +got):\n%s", diff)
	}
}

// copying is a reporter that says when older bundles are being copied from.
type copying struct {
	recorder
	begun chan struct{}
}

func (c *copying) Task(name string, total int64) progress.Task {
	if name == "copy what older bundles hold" {
		close(c.begun)
	}
	return c.recorder.Task(name, total)
}

// TestChartCheckWhileCopying has a check that ends no sooner than copying begins. What it then
// refuses is as if it had not been begun.
func TestChartCheckWhileCopying(t *testing.T) {
	s := upstreamServer(t)
	refused := errors.New("refused")
	identity := newIdentity(t)
	encrypt := func(o *BuildOptions) { o.Recipients = []age.Recipient{identity.Recipient()} }
	half := filepath.Join(t.TempDir(), "half.tar")
	mustBuild(t, replaced(t, smallLock(t), "      - {ref: \""+busyboxRef+"\", digest: "+imageOf(t, busyboxRef).Digest.String()+"}\n", ""), newClient(s), half, nil)
	for name, c := range map[string]struct {
		answer error
		change func(*BuildOptions)
	}{
		"accepted":             {nil, func(*BuildOptions) {}},
		"refused":              {refused, func(*BuildOptions) {}},
		"refused, volumes":     {refused, func(o *BuildOptions) { o.VolumeSize = volumeSize }},
		"refused, encrypted":   {refused, encrypt},
		"refused, as a delta":  {refused, func(*BuildOptions) {}},
		"accepted, as a delta": {nil, func(*BuildOptions) {}},
	} {
		t.Run(name, func(t *testing.T) {
			content := smallLock(t)
			if strings.HasSuffix(name, "delta") {
				content = append(slices.Clip(content), "# not the lock of the older bundle\n"...)
			}
			o, err := planOptions(content, newClient(s))
			if err != nil {
				t.Fatal(err)
			}
			reusing(t, half)(&o)
			if strings.HasSuffix(name, "delta") {
				o.Since = &Base{}
				o.Since.AddBundle(mustOpen(t, half))
				o.Reuse = []*Reader{mustOpen(t, reference(t))}
			}
			reporter := &copying{begun: make(chan struct{})}
			o.Reporter = reporter
			o.Chart = &ChartCheck{Component: "cilium", Check: func(ctx context.Context, _ []byte) error {
				select {
				case <-reporter.begun:
				case <-time.After(time.Minute):
					return errors.New("nothing was copied meanwhile")
				}
				return c.answer
			}}
			s.ResetRequests()
			plan, err := NewPlan(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "b.tar")
			options := BuildOptions{Path: path}
			c.change(&options)
			if _, err := plan.Build(t.Context(), options); !errors.Is(err, c.answer) {
				t.Fatalf("got %v, want %v", err, c.answer)
			}
			if c.answer == nil {
				if o.Since == nil {
					sameFiles(t, reference(t), path)
				}
				return
			}
			if got := downloadsOfBuild(t, s); len(got) > 0 {
				t.Errorf("fetched %v", got)
			}
			if left := readFiles(t, filepath.Dir(path)); len(left) > 0 {
				t.Errorf("left over: %v", slices.Sorted(maps.Keys(left)))
			}
		})
	}

	// Nor is a bundle that is there already as good as one that is accepted.
	path := filepath.Join(t.TempDir(), "b.tar")
	mustWrite(t, path, mustRead(t, reference(t)))
	_, err := build(t.Context(), smallLock(t), newClient(s), path, nil, reusing(t, half), func(o *PlanOptions) {
		o.Chart = &ChartCheck{Component: "cilium", Check: func(context.Context, []byte) error { return refused }}
	})
	if !errors.Is(err, refused) {
		t.Errorf("a bundle that is there: %v", err)
	}
	sameFiles(t, reference(t), path)

	// What was built before was checked before.
	again := filepath.Join(t.TempDir(), "b.tar")
	if _, err := build(t.Context(), smallLock(t), newClient(s), again, nil, reusing(t, reference(t)), func(o *PlanOptions) {
		o.Chart = &ChartCheck{Component: "cilium", Check: func(context.Context, []byte) error { return refused }}
	}); err != nil {
		t.Errorf("from the same bundle: %v", err)
	}
	sameFiles(t, reference(t), again)
}

// TestArchives takes images from air-gap archives of two platforms and checks that they
// are those of the registry, and that each archive is read once.
func TestArchives(t *testing.T) {
	s := upstreamServer(t)
	content, err := s.PinnedLockYAML(upstream.LockOptions{Components: []string{"k3s"}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "k3s.tar")
	mustBuild(t, content, newClient(s), path, nil)
	got := downloads(s)
	if diff := cmp.Diff(once(got), got); diff != "" {
		t.Errorf("downloads (-once +got):\n%s", diff)
	}
	if len(got) != 5 { // two programs, two archives, install.sh
		t.Errorf("downloads: %v", got)
	}

	// One archive alone cannot serve two platforms.
	l, err := lock.Parse(LockFile, content)
	if err != nil {
		t.Fatal(err)
	}
	l.Components[0].Images = l.Components[0].Images[:1]
	o, err := planOptions(content, newClient(s))
	if err != nil {
		t.Fatal(err)
	}
	o.Lock = l
	_, err = NewPlan(t.Context(), o)
	wantError(t, err, "k3s: docker.io/rancher/klipper-helm:", "not published for linux/arm64, only for [linux/amd64]")
	if !errors.Is(err, ErrUpstream) {
		t.Errorf("not ErrUpstream: %v", err)
	}
}

// TestLockedContentsAreWrong has a lock that says something else of an archive than what
// is in it.
func TestLockedContentsAreWrong(t *testing.T) {
	s := upstreamServer(t)
	content, err := s.PinnedLockYAML(upstream.LockOptions{Components: []string{"k3s"}, Platforms: []string{"linux/amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		change func(*lock.Contents)
		want   []string
	}{
		"a blob too few": {
			func(c *lock.Contents) {
				c.Blobs = slices.DeleteFunc(c.Blobs, func(b lock.ArchiveBlob) bool { return !isJSON(b.MediaType) })
			},
			[]string{"which is complete", "is missing"},
		},
		"a blob that is not there": {
			func(c *lock.Contents) {
				c.Blobs = append(c.Blobs, lock.ArchiveBlob{Path: "blobs/sha256/none", Digest: digest.FromString("none"), Size: 4, MediaType: "text/plain"})
			},
			[]string{"k3s: k3s-airgap-images-amd64.tar.zst (linux/amd64): the archive does not hold blobs/sha256/none", "boxlift bundle lock"},
		},
		"a blob of more bytes": {
			func(c *lock.Contents) { c.Blobs[0].Size++ },
			[]string{"k3s: k3s-airgap-images-amd64.tar.zst (linux/amd64): blobs/sha256/", " bytes came, the lock says "},
		},
		"a blob of fewer bytes": {
			func(c *lock.Contents) { c.Blobs[0].Size-- },
			[]string{"k3s: k3s-airgap-images-amd64.tar.zst (linux/amd64): blobs/sha256/", " bytes came, the lock says "},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o, err := planOptions(content, newClient(s))
			if err != nil {
				t.Fatal(err)
			}
			test.change(o.Lock.Components[0].Images[0].Contents)
			plan, err := NewPlan(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "b.tar")
			s.ResetRequests()
			_, err = plan.Build(t.Context(), BuildOptions{Path: path})
			wantError(t, err, test.want...)
			noFile(t, path)
			got := downloads(s)
			if diff := cmp.Diff(once(got), got); diff != "" {
				t.Errorf("downloads (-once +got):\n%s", diff)
			}
		})
	}
}

func TestTwoBuildsAtOnce(t *testing.T) {
	s := upstreamServer(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	stall := s.Inject(upstream.Rule{Path: upstream.FilePath(chartURL), Fault: upstream.Slow{BytesPerSecond: 10}})
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := build(ctx, smallLock(t), newClient(s), path, nil)
		ended <- err
	}()
	for stall.Hits() == 0 {
		select {
		case err := <-ended:
			t.Fatalf("the first build ended: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	_, err := build(t.Context(), smallLock(t), newClient(s), path, nil)
	wantError(t, err, "b.tar.", "another build is writing it")

	stop := errors.New("the user wants it to stop")
	cancel(stop)
	if err := <-ended; !errors.Is(err, stop) {
		t.Errorf("the first build: %v", err)
	}
	noFile(t, path)
	if left, err := Partials(path, ""); err != nil || len(left) != 1 {
		t.Errorf("the unfinished bundles are %v, %v", left, err)
	}
	s.Heal()
	mustBuild(t, smallLock(t), newClient(s), path, nil)
	sameFiles(t, reference(t), path)
}

// TestEndlessArchive has a server that does not state a length and never ends.
func TestEndlessArchive(t *testing.T) {
	endless := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		zeros := make([]byte, 4096)
		for left := 4 << 20; left > 0; left -= len(zeros) {
			if _, err := w.Write(zeros); err != nil {
				return
			}
		}
		t.Error("it is still being read")
	}))
	defer endless.Close()
	authorities := x509.NewCertPool()
	authorities.AddCert(endless.Certificate())
	client := source.New(source.Options{Authorities: authorities, MaxTries: 1})
	b := &builder{Plan: &Plan{}, done: make(map[string]bool)}
	f := &fetch{
		size:    4096,
		archive: &archiveFetch{sha256: digest.FromString("another").Encoded()},
		open: func(ctx context.Context, from int64) (*source.Stream, error) {
			return client.OpenPinned(ctx, endless.URL, from)
		},
	}
	if _, err := b.fetchFrom(t.Context(), f, &meter{}, 0, sha256.New()); !errors.Is(err, ErrUpstream) {
		t.Errorf("got %v", err)
	}
}

func TestBaseName(t *testing.T) {
	for url, want := range map[string]string{
		"https://charts.example/cilium-1.20.0.tgz":            "cilium-1.20.0.tgz",
		"https://charts.example/a/b.tar.zst?signature=a/b%2F": "b.tar.zst",
	} {
		if got := baseName(url); got != want {
			t.Errorf("%s: got %q, expected %q", url, got, want)
		}
	}
}

// TestPartialOfAnotherKey continues a signed build with another key, whose signature may
// be shorter.
func TestPartialOfAnotherKey(t *testing.T) {
	s := upstreamServer(t)
	o, err := planOptions(smallLock(t), newClient(s))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := NewPlan(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "b.tar")
	signer := signerOf(t, 0)
	if _, err := plan.Build(t.Context(), BuildOptions{Path: path, Signer: signer}); err != nil {
		t.Fatal(err)
	}
	want := mustRead(t, path)

	left := slices.Clone(want)
	for _, e := range mustOpen(t, path).Tar().Layout().Entries[:4] {
		for i := e.Offset; i < e.End(); i++ {
			left[i] = 'x'
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, path+"."+plan.Digest().Encoded()[:12]+"-signed.partial", left)
	result, err := plan.Build(t.Context(), BuildOptions{Path: path, Signer: signer})
	if err != nil {
		t.Fatal(err)
	}
	if result.Reused == 0 {
		t.Error("nothing was taken from the partial file")
	}
	if !bytes.Equal(want, mustRead(t, path)) {
		t.Error("the bundle differs")
	}
}

// TestGarbageInPartial has a partial file whose headers promise contents that are not
// there, as after a power cut, and bytes where only zeros may be.
func TestGarbageInPartial(t *testing.T) {
	s := upstreamServer(t)
	r := mustOpen(t, reference(t))
	left := mustRead(t, reference(t))
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
	mustWrite(t, path+"."+r.Digest().Encoded()[:12]+".partial", left)
	mustBuild(t, smallLock(t), newClient(s), path, nil)
	sameFiles(t, reference(t), path)
	got := downloads(s)
	delete(got, planned(t))
	if len(got) > len(spoiled) {
		t.Errorf("fetched %v", got)
	}
}

func TestBuildTargets(t *testing.T) {
	s := upstreamServer(t)
	dir := t.TempDir()
	_, err := build(t.Context(), smallLock(t), newClient(s), dir, nil)
	wantError(t, err, dir, "something that is not a bundle is there")
	got := downloads(s)
	delete(got, planned(t))
	if len(got) > 0 {
		t.Errorf("fetched in vain: %v", got)
	}
	_, err = build(t.Context(), smallLock(t), newClient(s), filepath.Join(dir, "none", "b.tar"), nil)
	wantError(t, err, filepath.Join(dir, "none", "b.tar"), "the folder", "is not there")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("left over: %v, %v", entries, err)
	}

	// What is no bundle is somebody's file: a key, a lock.
	precious := filepath.Join(dir, "boxlift.key")
	for _, content := range []string{"a key", strings.Repeat("x", 2000)} {
		mustWrite(t, precious, []byte(content))
		_, err = build(t.Context(), smallLock(t), newClient(s), precious, nil)
		wantError(t, err, precious, "something that is not a bundle is there")
		if got, err := os.ReadFile(precious); err != nil || string(got) != content {
			t.Errorf("%d bytes were there, now %d: %v", len(content), len(got), err)
		}
	}
	// An older bundle is replaced.
	older := filepath.Join(dir, "older.tar")
	mustBuild(t, smallLock(t), newClient(s), older, nil)
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
	mustBuild(t, smallLock(t), newClient(s), older, nil)
	sameFiles(t, reference(t), older)
}

func TestUnpinned(t *testing.T) {
	l, err := lock.Parse("my.lock", []byte(unpinned))
	if err != nil {
		t.Fatal(err)
	}
	_, err = NewPlan(t.Context(), PlanOptions{Lock: l, LockName: "my.lock", LockContent: []byte(unpinned), Source: source.New(source.Options{})})
	var missing *UnpinnedError
	if !errors.As(err, &missing) {
		t.Fatal(err)
	}
	golden(t, "unpinned.golden", err.Error()+"\n"+missing.Hint()+"\n")
}

// TestProgramChanges has a program that is another one when it is copied than when the
// bundle was planned.
func TestProgramChanges(t *testing.T) {
	s := upstreamServer(t)
	o, err := planOptions(smallLock(t), newClient(s))
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "boxlift-node")
	mustWrite(t, program, []byte("before"))
	o.Programs[0].Path = program
	plan, err := NewPlan(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, program, []byte("after."))
	path := filepath.Join(t.TempDir(), "b.tar")
	_, err = plan.Build(t.Context(), BuildOptions{Path: path})
	wantError(t, err, "boxlift: boxlift-node (linux/amd64): ")
	noFile(t, path)

	o.Programs[0].Path = program + "-none"
	_, err = NewPlan(t.Context(), o)
	wantError(t, err, "boxlift: boxlift-node (linux/amd64): ", "no such file")
}

// TestReadArchive checks that all forms of compression are told by their content, and
// that nothing is left unread.
// The manifests travel with their component, and only with it.
func TestManifests(t *testing.T) {
	s := upstreamServer(t)
	content := smallLock(t)
	with := func(manifests []byte) func(*PlanOptions) {
		return func(o *PlanOptions) { o.Manifests = manifests }
	}
	manifests := []byte(strings.Repeat("manifests", 1000))
	dir := t.TempDir()
	first, second, other := filepath.Join(dir, "1.tar"), filepath.Join(dir, "2.tar"), filepath.Join(dir, "3.tar")
	mustBuild(t, content, newClient(s), first, nil, with(manifests))
	mustBuild(t, content, newClient(s), second, nil, with(bytes.Clone(manifests)))
	sameFiles(t, first, second)

	r := mustOpen(t, first)
	if err := r.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	version := ""
	for _, image := range contents.Images {
		if image.Component == ManifestsComponent {
			version = image.Version
		}
	}
	want := File{
		Component: ManifestsComponent, Version: version, Name: ManifestsFile,
		MediaType: fileMediaType, Digest: digest.FromBytes(manifests), Size: int64(len(manifests)),
	}
	for _, platform := range []lock.Platform{"", "linux/amd64", "linux/arm64"} {
		f, ok := contents.File(ManifestsComponent, ManifestsFile, platform)
		if diff := cmp.Diff(want, f); !ok || diff != "" {
			t.Errorf("the file for %q (-expected +got):\n%s", platform, diff)
		}
	}
	section, err := r.blob(want.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(section); err != nil || !bytes.Equal(got, manifests) {
		t.Errorf("%d bytes came out, %d went in: %v", len(got), len(manifests), err)
	}

	// Other manifests are another bundle.
	mustBuild(t, content, newClient(s), other, nil, with([]byte("others")))
	if mustOpen(t, other).Digest() == r.Digest() {
		t.Error("the bundle digest does not cover the manifests")
	}
	// None are none: the bundle is what it was without them.
	none := filepath.Join(dir, "none.tar")
	mustBuild(t, content, newClient(s), none, nil)
	sameFiles(t, none, reference(t))
}

func TestManifestsNeedTheirComponent(t *testing.T) {
	s := upstreamServer(t)
	o, err := planOptions(smallLock(t), newClient(s))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(o.Lock.Components, func(c lock.Component) bool { return c.Name == ManifestsComponent })
	o.Manifests = []byte("manifests")
	o.Lock.Components[i].Files = append(o.Lock.Components[i].Files, lock.File{
		Name: ManifestsFile, URL: "https://example.com/m", SHA256: digest.FromString("m").Encoded(), Size: 1, Line: 7,
	})
	_, err = NewPlan(t.Context(), o)
	wantError(t, err, ManifestsComponent+": "+ManifestsFile, LockFile+":7")

	o.Lock.Components = slices.Delete(o.Lock.Components, i, i+1)
	plan, err := NewPlan(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(plan.index, []byte(ManifestsFile)) {
		t.Error("the manifests travel without their component")
	}
}

func TestReadArchive(t *testing.T) {
	for name, file := range archiveForms(t, map[string]string{"a/b": "one", "c": "two"}) {
		t.Run(name, func(t *testing.T) {
			got := make(map[string]string)
			source := bytes.NewReader(file)
			err := readArchive(source, func(path string, size int64, content io.Reader) error {
				all, err := io.ReadAll(content)
				if int64(len(all)) != size {
					t.Errorf("%s has %d bytes, %d were announced", path, len(all), size)
				}
				got[path] = string(all)
				return err
			}, nil)
			if err != nil || source.Len() > 0 {
				t.Errorf("%d bytes left unread, %v", source.Len(), err)
			}
			if diff := cmp.Diff(map[string]string{"a/b": "one", "c": "two"}, got); diff != "" {
				t.Errorf("members (-expected +got):\n%s", diff)
			}
		})
	}
}
