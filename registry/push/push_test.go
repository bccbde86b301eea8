package push

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/registry/rewrite"
	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/target"
	"github.com/liteboxd/boxlift/test/toolbin"
)

// changing are the requests that change a registry.
const changing = "^(POST|PUT|PATCH|DELETE)$"

func changes(s *target.Server) int {
	n := 0
	for _, r := range s.Requests() {
		if regexp.MustCompile(changing).MatchString(r.Method) {
			n++
		}
	}
	return n
}

// TestPush pushes everything to each kind of registry, has skopeo read it back, and
// pushes again.
func TestPush(t *testing.T) {
	for _, options := range []target.Options{
		{Kind: target.Distribution3, PlainHTTP: true},
		{Kind: target.Distribution3, Auth: target.Basic, Users: users},
		{Kind: target.Debian, Auth: target.Basic, Users: users},
		{Kind: target.Debian, Auth: target.Token, Users: users},
	} {
		t.Run(fmt.Sprintf("%s, login %q, TLS %v", options.Kind, options.Auth, !options.PlainHTTP), func(t *testing.T) {
			s := target.Start(t, options)
			o := optionsFor(t, s, func(o *Options) {
				if options.PlainHTTP {
					o.PlainHTTP, o.CA = true, nil
				}
			})
			first := mustPush(t, o)
			for _, i := range first.Images {
				if i.State != Pushed || i.Kept() == i.Sparse {
					t.Errorf("%s is %s with the digest %s, upstream %s, sparse: %v", i.Target, i.State, i.TargetDigest, i.Digest,
						i.Sparse)
				}
			}
			checkTraffic(t, s, o.Bundle, first)
			readBack(t, s, o, first, options)

			s.Forget()
			again := mustPush(t, o)
			if again.Upload.Blobs+again.Mount.Blobs != 0 || !again.Complete() || changes(s) != 0 {
				t.Errorf("with nothing new it says %+v and sent %d changes", again, changes(s))
			}
			for i, image := range again.Images {
				if image.State != Present || image.TargetDigest != first.Images[i].TargetDigest {
					t.Errorf("with nothing new %s is %s as %s", image.Target, image.State, image.TargetDigest)
				}
			}
			if n := len(s.Requests()); n > 4*len(again.Images) {
				t.Errorf("with nothing new it asks %d times for %d images", n, len(again.Images))
			}
		})
	}
}

// checkTraffic expects that every blob came once, whichever repositories share it.
func checkTraffic(t *testing.T, s *target.Server, r *bundle.Reader, result *Result) {
	t.Helper()
	sizes := make(map[string]int64)
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range contents.Images {
		for _, p := range image.Platforms {
			for _, d := range blobsOf(p) {
				sizes[d.Digest.String()] = d.Size
			}
		}
	}
	got := make(map[string]int64)
	for _, request := range s.Requests() {
		if _, d, ok := strings.Cut(request.Query, "digest=sha256%3A"); ok && request.Method == http.MethodPut {
			hex, _, _ := strings.Cut(d, "&")
			got["sha256:"+hex] += request.Took
		}
	}
	if diff := cmp.Diff(sizes, got); diff != "" {
		t.Errorf("blobs that came (-want +got):\n%s", diff)
	}
	if mounts := s.Count(http.MethodPost, "/blobs/uploads/$") - len(sizes); mounts != result.Mount.Blobs || mounts == 0 {
		t.Errorf("%d mounts were asked for, the result says %d", mounts, result.Mount.Blobs)
	}
	if result.Upload.Blobs != len(sizes) {
		t.Errorf("the result says %d uploads of %d blobs", result.Upload.Blobs, len(sizes))
	}
}

// readBack has skopeo fetch every platform of every image, and crane its tag.
func readBack(t *testing.T, s *target.Server, o Options, result *Result, options target.Options) {
	t.Helper()
	skopeo := debian.Program{Name: "skopeo", Package: "skopeo"}
	need.Programs(t, skopeo)
	flags := []string{"--creds", robot + ":" + password, "--tls-verify=false"}
	if !options.PlainHTTP {
		flags = []string{"--creds", robot + ":" + password, "--cert-dir", filepath.Dir(s.CAFile(t))}
	}
	byName := make(map[string]bundle.Image)
	contents, err := o.Bundle.Contents()
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range contents.Images {
		byName[image.Name] = image
	}
	for _, i := range result.Images {
		raw := run(t, slices.Concat([]string{skopeo.Find(), "inspect", "--raw"}, flags, []string{"docker://" + i.Target})...)
		if got := digest.FromString(raw); got != i.TargetDigest {
			t.Errorf("%s stands for %s, the result says %s", i.Target, got, i.TargetDigest)
		}
		image := byName[i.Name]
		for _, p := range image.Platforms {
			repository, _, _ := strings.Cut(strings.TrimPrefix(i.Target, s.Address()), ":")
			to := t.TempDir()
			copied := []string{skopeo.Find(), "copy", "--quiet", "--insecure-policy", "--preserve-digests"}
			for _, f := range flags {
				copied = append(copied, strings.NewReplacer("--creds", "--src-creds", "--tls-verify", "--src-tls-verify",
					"--cert-dir", "--src-cert-dir").Replace(f))
			}
			run(t, append(copied, "docker://"+s.Address()+repository+"@"+p.Manifest.Digest.String(), "dir:"+to)...)
			for _, d := range append(blobsOf(p), p.Manifest) {
				name := d.Digest.Encoded()
				if d.Digest == p.Manifest.Digest {
					name = "manifest.json"
				}
				content, err := os.ReadFile(filepath.Join(to, name))
				if err != nil || digest.FromBytes(content) != d.Digest {
					t.Errorf("%s for %s: %s came back as %s (%v)", i.Target, p.Platform, d.Digest, digest.FromBytes(content), err)
				}
			}
		}
	}
}

// TestCrane has crane find the platforms of a reduced index, and validate what it finds.
func TestCrane(t *testing.T) {
	crane := toolbin.Build(t, "crane")
	s := target.Start(t, target.Options{PlainHTTP: true})
	o := optionsFor(t, s, func(o *Options) { o.PlainHTTP, o.CA, o.Platforms = true, nil, []lock.Platform{"linux/arm64"} })
	result := mustPush(t, o)
	contents, err := o.Bundle.Contents()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range result.Images {
		index := slices.IndexFunc(contents.Images, func(image bundle.Image) bool { return image.Name == i.Name })
		for _, p := range contents.Images[index].Platforms {
			if p.Platform != "linux/arm64" {
				continue
			}
			got := strings.TrimSpace(run(t, crane, "digest", "--platform", "linux/arm64", i.Target))
			if got != p.Manifest.Digest.String() {
				t.Errorf("%s for arm64 is %s, upstream %s", i.Target, got, p.Manifest.Digest)
			}
			run(t, crane, "validate", "--fast", "--platform", "linux/arm64", "--remote", i.Target)
		}
	}
	if len(result.Images) == 0 || len(result.Images) == len(contents.Images) {
		t.Errorf("%d of %d images have the platform", len(result.Images), len(contents.Images))
	}
}

// TestMorePlatforms pushes one platform and then all.
func TestMorePlatforms(t *testing.T) {
	s := target.Start(t, target.Options{})
	mustPush(t, optionsFor(t, s, func(o *Options) { o.Platforms = []lock.Platform{"linux/arm64"} }))
	result := mustPush(t, optionsFor(t, s))
	for _, i := range result.Images {
		if i.Kept() == i.Sparse || i.State != Pushed {
			t.Errorf("%s is %s as %s, upstream %s", i.Target, i.State, i.TargetDigest, i.Digest)
		}
		moved := slices.Contains(i.Platforms, "linux/arm64") && len(i.Platforms) > 1
		if (i.Replaces != "") != moved {
			t.Errorf("%s for %v replaces %q", i.Target, i.Platforms, i.Replaces)
		}
	}
	// Some registries take an index without its manifests: that it is there says nothing.
	s.Forget()
	o := optionsFor(t, s)
	contents, err := o.Bundle.Contents()
	if err != nil {
		t.Fatal(err)
	}
	gone := contents.Images[0].Platforms[0].Manifest.Digest.String()
	s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		lacks := r.Method == http.MethodHead && strings.HasSuffix(r.URL.Path, "/manifests/"+gone)
		if lacks {
			w.WriteHeader(http.StatusNotFound)
		}
		return lacks
	})
	mustPush(t, o)
	if n := s.Count(http.MethodPut, "/manifests/"+gone+"$"); n != 1 {
		t.Errorf("a manifest that is missing below its index was sent %d times", n)
	}
}

// TestDryRun expects that a check says what a push does, and touches nothing.
func TestDryRun(t *testing.T) {
	s := target.Start(t, target.Options{Kind: target.Debian, Auth: target.Token, Users: users})
	o := optionsFor(t, s)
	mustPush(t, optionsFor(t, s, func(o *Options) { o.Platforms = []lock.Platform{"linux/arm64"} }))
	s.Forget()
	before := listing(t, s.Data())
	planned, err := Check(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, listing(t, s.Data())); diff != "" || changes(s) != 0 {
		t.Errorf("it sent %d changes; the registry's data (-before +after):\n%s", changes(s), diff)
	}
	if planned.Complete() || planned.Upload.Blobs == 0 || planned.Mount.Blobs == 0 || planned.Present.Blobs == 0 {
		t.Errorf("it says %+v", planned)
	}
	done := mustPush(t, o)
	for i := range done.Images {
		want := done.Images[i]
		// These are known only when the registry was asked to take them.
		want.State, want.TargetDigest = planned.Images[i].State, planned.Images[i].TargetDigest
		if diff := cmp.Diff(want, planned.Images[i]); diff != "" {
			t.Errorf("what it did and what it would do (-did +would):\n%s", diff)
		}
	}
	if diff := cmp.Diff([]Amount{done.Upload, done.Mount, done.Present},
		[]Amount{planned.Upload, planned.Mount, planned.Present}); diff != "" {
		t.Errorf("what it did and what it would do (-did +would):\n%s", diff)
	}
	// Who may only pull can look.
	s.Forget()
	after, err := Check(t.Context(), o)
	if err != nil || !after.Complete() {
		t.Errorf("after the push: %+v, %v", after, err)
	}
	for _, r := range s.Requests() {
		if strings.Contains(r.Query, "push") {
			t.Errorf("it asked for more than to pull: %s?%s", r.Path, r.Query)
		}
	}
}

// listing is every file below a folder with its size.
func listing(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	files := make(map[string]int64)
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && !d.IsDir() {
			files[path] = info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestRateLimit pushes to a registry that takes a few requests at a time.
func TestRateLimit(t *testing.T) {
	s := target.Start(t, target.Options{Auth: target.Basic, Users: users})
	s.LimitRate(100, time.Second)
	o := optionsFor(t, s)
	result, err := Push(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, r := range s.Requests() {
		if r.Status == http.StatusTooManyRequests {
			refused++
		}
	}
	// All wait once one was told to.
	if requests := len(s.Requests()); refused == 0 || refused > requests/5 {
		t.Errorf("%d of %d requests were refused", refused, requests)
	}
	s.Heal()
	expectComplete(t, o, result)
}

// expectComplete looks from outside whether all is there.
func expectComplete(t *testing.T, o Options, result *Result) {
	t.Helper()
	after, err := Check(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for i, image := range after.Images {
		if image.State != Present || result != nil && image.TargetDigest != result.Images[i].TargetDigest {
			t.Errorf("%s is %s as %s", image.Target, image.State, image.TargetDigest)
		}
	}
}

// TestCutConnections cuts many connections, within blobs and before and after answers.
func TestCutConnections(t *testing.T) {
	for _, kind := range []target.Kind{target.Distribution3, target.Debian} {
		t.Run(string(kind), func(t *testing.T) {
			s := target.Start(t, target.Options{Kind: kind, Auth: target.Basic, Users: users})
			var random sync.Mutex
			source := rand.New(rand.NewPCG(1, 2))
			chance := func(n int64) int64 {
				random.Lock()
				defer random.Unlock()
				return source.Int64N(n)
			}
			cut := 0
			var mu sync.Mutex
			s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
				if chance(4) > 0 {
					return false
				}
				mu.Lock()
				cut++
				mu.Unlock()
				if r.ContentLength > 0 {
					target.CutBody(r, chance(r.ContentLength+1))
					return false
				}
				target.Cut(r)
				return true
			})
			o := optionsFor(t, s)
			result, err := pushWith(t.Context(), o, func(p *pusher) {
				p.client.patient.pause, p.client.patient.tries = time.Millisecond, 30
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d of %d requests were cut", cut, len(s.Requests()))
			s.Heal()
			expectComplete(t, o, result)
		})
	}
}

// TestInterrupted ends pushes at random moments, by their context and by killing their
// process, until one gets through.
func TestInterrupted(t *testing.T) {
	s := target.Start(t, target.Options{Kind: target.Debian, Auth: target.Token, Users: users})
	o := optionsFor(t, s)
	// Slow enough that the moments differ.
	s.Intercept(func(http.ResponseWriter, *http.Request) bool {
		time.Sleep(2 * time.Millisecond)
		return false
	})
	for n := range 6 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+rand.IntN(400))*time.Millisecond)
		result, err := Push(ctx, o)
		cancel()
		if err == nil != (result != nil) || err != nil && ctx.Err() == nil {
			t.Fatalf("push %d: %v, %v", n, result, err)
		}
	}
	killed := 0
	for range 6 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"="+s.Address(), "BOXLIFT_TEST_PUSH_BUNDLE="+o.Bundle.Path(),
			"BOXLIFT_TEST_PUSH_CA="+string(s.CA()))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(50+rand.IntN(400)) * time.Millisecond)
		_ = cmd.Process.Kill()
		if err := cmd.Wait(); err != nil && !cmd.ProcessState.Exited() {
			killed++
		}
	}
	t.Logf("%d processes were killed", killed)
	// The registry may still be busy with what it has got from the last of them.
	var planned *Result
	for settled := false; !settled; time.Sleep(200 * time.Millisecond) {
		now, err := Check(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		settled = planned != nil && now.Upload == planned.Upload
		planned = now
	}
	// A tag that is there stands for an image that is.
	for _, i := range planned.Images {
		if i.TargetDigest != "" && i.State != Present {
			t.Errorf("the tag of %s is there, and not all of the image", i.Target)
		}
	}
	result := mustPush(t, o)
	if result.Upload != planned.Upload {
		t.Errorf("it sent %+v, what was missing is %+v", result.Upload, planned.Upload)
	}
	expectComplete(t, o, result)
}

// TestNoMounts pushes to registries that do not mount: one begins an upload instead, the
// other does not allow it.
func TestNoMounts(t *testing.T) {
	for name, hook := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"passed over": func(_ http.ResponseWriter, r *http.Request) bool {
			r.URL.RawQuery = ""
			return false
		},
		"refused": func(w http.ResponseWriter, _ *http.Request) bool {
			target.Refuse(w, http.StatusForbidden, "DENIED", "not from there")
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := target.Start(t, target.Options{Auth: target.Basic, Users: users})
			s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				return r.Method == http.MethodPost && strings.Contains(r.URL.RawQuery, "mount=") && hook(w, r)
			})
			o := optionsFor(t, s)
			result := mustPush(t, o)
			if result.Mount != (Amount{}) {
				t.Errorf("it says that it mounted %+v", result.Mount)
			}
			expectComplete(t, o, result)
		})
	}
}

// TestNearest prefers repositories of the same project, which may be the only ones that
// may be read.
func TestNearest(t *testing.T) {
	for _, test := range []struct {
		has  []string
		want string
	}{
		{nil, ""},
		{[]string{"other/a"}, "other/a"},
		{[]string{"plants/a", "plant/b"}, "plant/b"},
	} {
		if got := nearest(test.has, "plant/x"); got != test.want {
			t.Errorf("from %v: %q, expected %q", test.has, got, test.want)
		}
	}
}

// TestNames refuses names that two images would share before anything is asked.
func TestNames(t *testing.T) {
	s := target.Start(t, target.Options{})
	for name, test := range map[string]struct {
		rule rewrite.Rule
		want string
	}{
		"one repository": {rewrite.Rule{Registry: "ghcr.io", Match: "^.*$", Replace: "one"},
			`(?m)^ghcr\.io/\S+:\S+ \(sha256:[0-9a-f]+\) and ghcr\.io/\S+:\S+ \(sha256:[0-9a-f]+\) would both be one:\S+$`},
		"no name":               {rewrite.Rule{Registry: "quay.io", Match: "^.*$", Replace: "UPPER"}, `quay\.io/\S+.*UPPER`},
		"of two that change it": {rewrite.Rule{Registry: "quay.io", Match: "cilium", Replace: ""}, `quay\.io/cilium/`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Push(t.Context(), optionsFor(t, s, func(o *Options) { o.Rewrites = rules(t, test.rule) }))
			var names *NamesError
			if !errors.As(err, &names) && !strings.Contains(fmt.Sprint(err), "names that the registry cannot be given") {
				t.Fatalf("got %v", err)
			}
			if !regexp.MustCompile(test.want).MatchString(err.Error()) {
				t.Errorf("got %v", err)
			}
		})
	}
	if n := len(s.Requests()); n != 0 {
		t.Errorf("the registry was asked %d times", n)
	}
}

// TestSparse pushes an index with more than is there to a registry that takes it, and to
// one that does not, under --require-index-digests.
func TestSparse(t *testing.T) {
	t.Run("taken", func(t *testing.T) {
		s := target.Start(t, target.Options{})
		taken := make(map[string]string)
		var mu sync.Mutex
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			isTag := strings.Contains(r.URL.Path, "/manifests/") && !strings.Contains(r.URL.Path, "sha256:")
			switch {
			case isTag && r.Method == http.MethodPut:
				d, err := digest.FromReader(r.Body)
				if err != nil {
					return false
				}
				taken[r.URL.Path] = d.String()
				w.WriteHeader(http.StatusCreated)
			case r.Method == http.MethodHead && taken[r.URL.Path] != "":
				w.Header().Set("Docker-Content-Digest", taken[r.URL.Path])
			default:
				return false
			}
			return true
		})
		o := optionsFor(t, s, func(o *Options) { o.RequireIndexDigests = true; o.Platforms = []lock.Platform{"linux/arm64"} })
		result, err := Push(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if changed := result.Changed(); len(changed) > 0 {
			t.Errorf("not kept: %+v", changed)
		}
	})
	t.Run("required", func(t *testing.T) {
		s := target.Start(t, target.Options{})
		o := optionsFor(t, s, func(o *Options) { o.Platforms = []lock.Platform{"linux/arm64"} })
		mustPush(t, o)
		o.RequireIndexDigests = true
		_, err := Push(t.Context(), o)
		if e, ok := err.(*IndexError); !ok || len(e.Images) == 0 { //nolint:errorlint // it is not wrapped
			t.Errorf("got %v", err)
		}
	})
}

// TestReduced expects the same bytes each time, which name what is there.
func TestReduced(t *testing.T) {
	o := Options{Bundle: openBundle(t, bundlePath(t)), Address: "registry.lan"}
	reduced := func() map[string]string {
		p, err := newPusher(o)
		if err != nil {
			t.Fatal(err)
		}
		all := make(map[string]string)
		for _, d := range p.targets {
			if d.sparse() {
				all[d.reference()] = string(d.reduced)
				checkReduced(t, d)
			}
		}
		return all
	}
	first := reduced()
	if diff := cmp.Diff(first, reduced()); diff != "" || len(first) == 0 {
		t.Errorf("%d reduced indexes, which differ:\n%s", len(first), diff)
	}
}

func checkReduced(t *testing.T, d *destination) {
	t.Helper()
	var index ocispec.Index
	if err := json.Unmarshal(d.reduced, &index); err != nil {
		t.Fatal(err)
	}
	var got, want []digest.Digest
	for _, m := range index.Manifests {
		got = append(got, m.Digest)
		if m.Platform == nil || m.Size == 0 || m.MediaType == "" {
			t.Errorf("%s: the entry %+v has lost something", d.reference(), m)
		}
	}
	for _, image := range d.platforms {
		want = append(want, image.Manifest.Digest)
	}
	if diff := cmp.Diff(want, got); diff != "" || index.SchemaVersion != 2 || index.MediaType != d.root.MediaType {
		t.Errorf("%s: version %d, %s\n%s", d.reference(), index.SchemaVersion, index.MediaType, diff)
	}
}

// TestDamage sends a blob that the line damages, and one that is damaged in the bundle.
func TestDamage(t *testing.T) {
	t.Run("on the line", func(t *testing.T) {
		s := target.Start(t, target.Options{})
		var hit atomic.Bool
		s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPut && r.ContentLength > 1000 && strings.Contains(r.URL.Path, "/uploads/") &&
				hit.CompareAndSwap(false, true) {
				r.Body = &flipped{r.Body}
			}
			return false
		})
		o := optionsFor(t, s)
		expectComplete(t, o, mustPush(t, o))
		if !hit.Load() {
			t.Error("nothing was damaged")
		}
	})
	t.Run("in the bundle", func(t *testing.T) {
		s := target.Start(t, target.Options{})
		content, err := os.ReadFile(bundlePath(t))
		if err != nil {
			t.Fatal(err)
		}
		content[len(content)-5000] ^= 1
		path := filepath.Join(t.TempDir(), "b.tar")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		o := optionsFor(t, s, func(o *Options) { o.Bundle = openBundle(t, path) })
		_, err = pushWith(t.Context(), o, impatient)
		if err == nil || !strings.Contains(err.Error(), bundle.ErrInvalid.Error()) {
			t.Errorf("got %v", err)
		}
	})
}

type flipped struct {
	from interface {
		Read([]byte) (int, error)
		Close() error
	}
}

func (f *flipped) Read(b []byte) (int, error) {
	n, err := f.from.Read(b)
	if n > 0 {
		b[0] ^= 1
	}
	return n, err
}

func (f *flipped) Close() error { return f.from.Close() }

// counter is a reporter that adds up.
type counter struct {
	progress.Reporter
	total, done atomic.Int64
}

func (c *counter) Task(_ string, total int64) progress.Task {
	c.total.Add(total)
	return c
}
func (c *counter) Add(n int64)  { c.done.Add(n) }
func (c *counter) Skip(n int64) { c.done.Add(n) }
func (c *counter) Done(error)   {}

// TestProgress expects that what is reported adds up, whatever is sent twice.
func TestProgress(t *testing.T) {
	s := target.Start(t, target.Options{})
	var cut sync.Map // by digest: each once, since a push does not try for ever
	s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && r.ContentLength > 100 {
			if _, before := cut.LoadOrStore(r.URL.Query().Get("digest"), true); !before {
				target.CutBody(r, r.ContentLength/2)
			}
		}
		return false
	})
	c := &counter{Reporter: progress.Discard}
	mustPush(t, optionsFor(t, s, func(o *Options) { o.Reporter = c }))
	if c.total.Load() == 0 || c.total.Load() != c.done.Load() {
		t.Errorf("%d of %d bytes", c.done.Load(), c.total.Load())
	}
}
