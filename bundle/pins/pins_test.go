package pins_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/archive"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/pins"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/imagearchive"
	"github.com/liteboxd/boxlift/test/upstream"
)

func TestArchiveListing(t *testing.T) {
	amd64 := ocispec.Platform{OS: "linux", Architecture: "amd64"}
	unchanged := func(*ocispec.Descriptor, *ocispec.Manifest) {}
	first := func(files map[string]string, want func(name, content string) bool) string {
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if want(name, files[name]) {
				return name
			}
		}
		t.Fatal("there is no such file")
		return ""
	}
	isLayer := func(_, content string) bool { return content == `"layer"` }
	tests := map[string]struct {
		platform ocispec.Platform
		change   func(*ocispec.Descriptor, *ocispec.Manifest)
		spoil    func(map[string]string)
		want     string // "" for success
	}{
		"good": {},
		"docker form without images": {
			spoil: func(f map[string]string) {
				delete(f, "index.json")
				f["manifest.json"] = "[]"
			},
			want: "the archive holds no images",
		},
		"docker form that is none": {
			spoil: func(f map[string]string) {
				delete(f, "index.json")
				f["manifest.json"] = "{}"
			},
			want: "the archive's manifest.json: json: cannot unmarshal object",
		},
		"docker form without its config": {
			spoil: func(f map[string]string) {
				delete(f, "index.json")
				f["manifest.json"] = `[{"Config": "none.json", "RepoTags": ["a:1"]}]`
			},
			want: `the archive's manifest.json names "none.json", which is not in it`,
		},
		"docker form without a name": {
			spoil: func(f map[string]string) {
				delete(f, "index.json")
				f["config"], f["manifest.json"] = "{}", `[{"Config": "config"}]`
			},
			want: "the archive holds an image without a name: config",
		},
		"neither form": {
			spoil: func(f map[string]string) { delete(f, "index.json") },
			want:  "it is not an image archive, as `docker save`",
		},
		"another platform": {
			platform: ocispec.Platform{OS: "linux", Architecture: "s390x"},
			want:     "image example.com/a/b:1: the image is not published for linux/amd64, only for [linux/s390x]",
		},
		"no name": {
			change: func(d *ocispec.Descriptor, _ *ocispec.Manifest) { d.Annotations = nil },
			want:   "the archive holds an image without a name: sha256:",
		},
		"short name": {
			change: func(d *ocispec.Descriptor, _ *ocispec.Manifest) {
				d.Annotations = map[string]string{ocispec.AnnotationRefName: "latest"}
			},
		},
		"layer missing": {
			spoil: func(f map[string]string) { delete(f, first(f, isLayer)) },
			want:  "image example.com/a/b:1: blob sha256:",
		},
		"layer of another size": {
			change: func(_ *ocispec.Descriptor, m *ocispec.Manifest) { m.Layers[0].Size++ },
			want:   "its descriptor says 8",
		},
		"layer changed": {
			spoil: func(f map[string]string) { f[first(f, isLayer)] = `"loyer"` },
			want:  "the archive is damaged: blobs/sha256/",
		},
		"foreign layer": {
			change: func(_ *ocispec.Descriptor,
				m *ocispec.Manifest) {
				m.Layers[0].URLs = []string{"https://example.com"}
			},
			want: "layer 0 is to be fetched from foreign addresses",
		},
		"sha512": {
			change: func(_ *ocispec.Descriptor,
				m *ocispec.Manifest) {
				m.Layers[0].Digest = digest.SHA512.FromString("")
			},
			want: "only sha256 is supported",
		},
		"negative size": {
			change: func(_ *ocispec.Descriptor, m *ocispec.Manifest) { m.Layers[0].Size = -1 },
			want:   "out of bounds",
		},
		"index is no JSON": {
			spoil: func(f map[string]string) { f["index.json"] = "{" },
			want:  "the archive's index.json: ",
		},
		"empty": {
			spoil: func(f map[string]string) { f["index.json"] = "{}" },
			want:  "the archive holds no images",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.platform.OS == "" {
				test.platform = amd64
			}
			if test.change == nil {
				test.change = unchanged
			}
			files := imagearchive.LayoutFiles(t, test.platform, test.change)
			if test.spoil != nil {
				test.spoil(files)
			}
			listing := archive.NewListing()
			err := listing.Take(bytes.NewReader(imagearchive.Forms(t, files)["zstd"]))
			var contents *lock.Contents
			if err == nil {
				contents, err = listing.Contents("linux/amd64")
			}
			if test.want != "" {
				bundletest.WantError(t, err, test.want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(contents.Images) != 1 || len(contents.Blobs) != 3 {
				t.Errorf("contents: %+v", contents)
			}
		})
	}
}

// TestResolveReportsAll has entries that cannot be pinned beside one that can.
func TestResolveReportsAll(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	text := strings.NewReplacer(
		"cilium-1.20.0.tgz", "cilium-0.0.1.tgz",
		bundletest.PauseRef, "docker.io/rancher/mirrored-pause:0.0.1",
		"    platforms: [linux/amd64]\n", "",
	).Replace(bundletest.Unpinned)
	document, err := lock.ParseDocument(bundle.LockFile, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s.Inject(upstream.Rule{Method: "GET", Path: "install.sh", Fault: upstream.Cut{After: 0}})
	err = pins.Fill(t.Context(), pins.Options{Document: document, Source: bundletest.NewClient(s)})
	bundletest.WantError(t, err,
		"k3s: install.sh: get https://", "the connection broke",
		"k3s: docker.io/rancher/mirrored-pause:0.0.1: get https://", "404",
		"cilium: cilium: get https://", "cilium-0.0.1.tgz",
		"liteboxd: "+bundletest.GatewayRef+": the image is not published for linux/arm64, only for [linux/amd64]",
		"liteboxd: "+bundletest.WebRef+": the image is not published for linux/arm64, only for [linux/amd64]",
	)
	pinned := 0
	for _, c := range document.Lock().Components {
		for _, image := range c.Images {
			if image.Digest != "" {
				pinned++
			}
		}
	}
	if pinned != 2 {
		t.Errorf("%d images are pinned, expected busybox and operator-generic", pinned)
	}

	s.Heal()
	if err := pins.Fill(t.Context(), pins.Options{Document: document, Source: bundletest.NewClient(s)}); err == nil ||
		strings.Contains(err.Error(), "install.sh") {
		t.Errorf("the next run: %v", err)
	}
}

// TestResolveKeepsPins has a lock with a sha256 that is not upstream's.
func TestResolveKeepsPins(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	wrong := strings.Repeat("0", 64)
	text := strings.Replace(bundletest.Unpinned, bundletest.InstallURL+`"`,
		bundletest.InstallURL+`", sha256: "`+wrong+`"`, 1)
	document, err := lock.ParseDocument(bundle.LockFile, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	err = pins.Fill(t.Context(), pins.Options{Document: document, Source: bundletest.NewClient(s)})
	bundletest.WantError(t, err, "k3s: install.sh: ", "not what was locked", wrong)
	if f := document.Lock().Components[0].Files[0]; f.SHA256 != wrong || f.Size != 0 {
		t.Errorf("the entry was changed: %+v", f)
	}
}

// TestResolveSharedRef has a tag that one component has pinned and that has moved since: another
// component gets the pin that is there.
func TestResolveSharedRef(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	client := bundletest.NewClient(s)
	repository, _, _ := strings.Cut(bundletest.BusyboxRef, ":")
	now, err := client.Resolve(t.Context(), bundletest.BusyboxRef)
	if err != nil {
		t.Fatal(err)
	}
	content, _, err := client.Manifest(t.Context(), repository, now.Digest)
	if err != nil {
		t.Fatal(err)
	}
	var index ocispec.Index
	if err := json.Unmarshal(content, &index); err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(index.Manifests,
		func(d ocispec.Descriptor) bool { return d.Platform.Architecture == "amd64" })
	before := string(index.Manifests[at].Digest)
	gone := "sha256:" + strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		platform, first, second, want string
		wantErr                       []string
	}{
		"pinned in the first":  {"linux/amd64", before, "", before, nil},
		"pinned in the second": {"linux/amd64", "", before, before, nil},
		"pinned in none":       {"linux/amd64", "", "", string(now.Digest), nil},
		"for another platform": {"linux/arm64", "", before, "", []string{
			"a: " + bundletest.BusyboxRef + ": the lock has it in another component, as " + before,
			"not published for linux/arm64, only for [linux/amd64]"}},
		"no longer upstream": {"linux/amd64", gone, "", "", []string{
			"b: " + bundletest.BusyboxRef + ": the lock has it in another component, as " + gone, "404"}},
	} {
		t.Run(name, func(t *testing.T) {
			component := func(name, platform, pin string) string {
				if pin != "" {
					pin = ", digest: " + pin
				}
				return "  " + name + ": {version: v1, platforms: [" + platform + `], images: [{ref: "` +
					bundletest.BusyboxRef + `"` + pin + "}]}\n"
			}
			text := "apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64, linux/arm64]\ncomponents:\n" +
				component("a", c.platform, c.first) + component("b", "linux/amd64", c.second)
			document, err := lock.ParseDocument(bundle.LockFile, []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			err = pins.Fill(t.Context(), pins.Options{Document: document, Source: client})
			want := []string{c.want, c.want}
			if c.wantErr != nil {
				bundletest.WantError(t, err, c.wantErr...)
				want = []string{c.first, c.second}
			} else if err != nil {
				t.Fatal(err)
			}
			components := document.Lock().Components
			if diff := cmp.Diff(
				want, []string{string(components[0].Images[0].Digest),
					string(components[1].Images[0].Digest)}); diff != "" {
				t.Errorf("digests (-want +got):\n%s", diff)
			}
		})
	}
}

// TestResolveChecksPinned has locks with all pins, whose components claim platforms that not
// all images have: which these are is found with the small manifests alone.
func TestResolveChecksPinned(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	archives, err := s.PinnedLockYAML(
		upstream.LockOptions{Components: []string{"k3s"}, Platforms: []string{"linux/amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	small := bundletest.SmallLock(t)
	// Each image once, and the config of one that has no index.
	all := map[string]int{"manifests": 5, "blobs": 1}
	for name, c := range map[string]struct {
		content   string
		fault     upstream.Fault // of manifests
		unchecked bool
		want      []string // none: no error
		says      string
		asked     map[string]int
	}{
		"all there": {content: string(small), asked: all},
		"wider": {
			content: string(bundletest.Replaced(t, small, "    platforms: [linux/amd64]\n", "")), asked: all,
			want: []string{
				"liteboxd: " + bundletest.GatewayRef +
					": the image is not published for linux/arm64, only for [linux/amd64]",
				"liteboxd: " + bundletest.WebRef +
					": the image is not published for linux/arm64, only for [linux/amd64]",
			},
		},
		"not asked for": {content: string(small), unchecked: true},
		"no answer": {content: string(small), fault: upstream.Status{Code: 503},
			says: "is published for [linux/amd64 linux/arm64] is not known: get https://"},
		"archives": {content: string(archives)},
		"archives, wider": {
			content: string(bundletest.Replaced(t, archives, "platforms: [linux/amd64]",
				"platforms: [linux/amd64, linux/arm64]")),
			want: []string{"k3s: " + bundletest.PauseRef +
				": the image is not published for linux/arm64, only for [linux/amd64]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s.Heal()
			s.ResetRequests()
			if c.fault != nil {
				s.Inject(upstream.Rule{Path: "/manifests/", Fault: c.fault})
			}
			document, err := lock.ParseDocument(bundle.LockFile, []byte(c.content))
			if err != nil {
				t.Fatal(err)
			}
			var told bundletest.Recorder
			err = pins.Fill(t.Context(), pins.Options{Document: document, Source: bundletest.NewClient(s),
				CheckPinned: !c.unchecked, Reporter: &told})
			if c.want == nil && err != nil {
				t.Errorf("%v", err)
			}
			if c.want != nil {
				bundletest.WantError(t, err, c.want...)
			}
			if !slices.ContainsFunc(told.All(), func(m string) bool { return strings.Contains(m, c.says) }) &&
				c.says != "" {
				t.Errorf("the user was told %q, not %q", told.All(), c.says)
			}
			if c.fault != nil {
				return
			}
			var asked map[string]int
			for _, r := range s.Requests() {
				if r.Path == "/v2/" {
					continue
				}
				if asked == nil {
					asked = make(map[string]int)
				}
				asked[path.Base(path.Dir(r.Path))]++
				if r.Method != "GET" || r.Bytes > 4096 {
					t.Errorf("%s %s brought %d bytes", r.Method, r.Path, r.Bytes)
				}
			}
			if diff := cmp.Diff(c.asked, asked); diff != "" {
				t.Errorf("asked for (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.content, string(document.Bytes())); diff != "" {
				t.Errorf("the lock was changed:\n%s", diff)
			}
		})
	}
}

// TestResolveElsewhere takes the pin of another lock, and looks at its platforms all the same.
func TestResolveElsewhere(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	elsewhere, err := lock.Parse(bundle.LockFile, bundletest.SmallLock(t))
	if err != nil {
		t.Fatal(err)
	}
	for platform, wantErr := range map[string]string{
		"linux/amd64": "",
		"linux/arm64": "addon: " + bundletest.GatewayRef + ": the lock has it in another component, as sha256:",
	} {
		document, err := lock.ParseDocument(bundle.LockFile,
			[]byte("apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: ["+platform+"]\ncomponents:\n"+
				"  addon: {version: v1, images: [{ref: \""+bundletest.GatewayRef+"\"}]}\n"))
		if err != nil {
			t.Fatal(err)
		}
		err = pins.Fill(t.Context(), pins.Options{Document: document, Source: bundletest.NewClient(s),
			Elsewhere: elsewhere})
		want := digest.Digest("")
		if wantErr != "" {
			bundletest.WantError(t, err, wantErr, "the image is not published for linux/arm64, only for [linux/amd64]")
		} else if want = elsewhere.Digest(bundletest.GatewayRef); err != nil {
			t.Error(err)
		}
		if got := document.Lock().Components[0].Images[0].Digest; got != want {
			t.Errorf("for %s it is pinned to %q, want %q", platform, got, want)
		}
	}
	for _, r := range s.Requests() {
		if r.Method == "HEAD" {
			t.Errorf("asked what %s stands for", r.Path)
		}
	}
}

// A line that breaks in the middle of an archive costs what did not come, where a tag of the
// server or the lock's own sha256 tells that the rest belongs to what came. Otherwise it costs
// that archive again, and nothing else.
func TestResolveTriesAgain(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	at := slices.IndexFunc(s.Files(), func(f upstream.File) bool { return f.URL == bundletest.ArchiveURL })
	archive := s.Files()[at]
	resolve := func(t *testing.T, pin string) (string, error) {
		t.Helper()
		document, err := lock.ParseDocument(bundle.LockFile,
			[]byte("apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\ncomponents:\n"+
				"  k3s: {version: v1.36.4+k3s1, images: [{archive: \""+bundletest.ArchiveURL+
				"\", platform: linux/amd64"+pin+"}]}\n"))
		if err != nil {
			t.Fatal(err)
		}
		err = pins.Fill(t.Context(), pins.Options{Document: document, Source: bundletest.NewClient(s)})
		image := document.Lock().Components[0].Images[0]
		return fmt.Sprint(image.SHA256, " ", image.Size, " ", image.Contents), err
	}
	pinned, wrong := ", sha256: \""+archive.SHA256+"\"", ", sha256: \""+strings.Repeat("0", 64)+"\""
	want, err := resolve(t, pinned)
	if err != nil {
		t.Fatal(err)
	}
	const after, slack = 300_000, 64 << 10
	whole := archive.Size + slack
	path := upstream.FilePath(bundletest.ArchiveURL)
	noTag := upstream.Rule{Method: "GET", Path: path, Fault: upstream.NewETag{}}
	for name, c := range map[string]struct {
		pin    string
		more   []upstream.Rule
		atMost int64 // bytes over the line
		want   string
	}{
		"with a tag":                {atMost: whole},
		"with a tag and a pin":      {pin: pinned, atMost: whole},
		"with a pin, without a tag": {pin: pinned, more: []upstream.Rule{noTag}, atMost: whole},
		"with a pin and a weak tag": {pin: pinned,
			more: []upstream.Rule{{Method: "GET", Path: path, Fault: upstream.NewETag{Tag: `W/"1"`}}}, atMost: whole},
		"without a tag": {more: []upstream.Rule{noTag}, atMost: after + whole},
		"with a pin, and a wrong rest": {pin: pinned,
			more: []upstream.Rule{{Method: "GET", Path: path, Skip: 1, Times: 1,
				Fault: upstream.WrongByte{At: after + 1000}}}, atMost: archive.Size + whole},
		"with a pin, and a wrong beginning": {pin: pinned,
			more:   []upstream.Rule{{Method: "GET", Path: path, Times: 1, Fault: upstream.WrongByte{At: after - 1000}}},
			atMost: archive.Size + whole},
		"with the pin of something else": {pin: wrong, atMost: archive.Size + whole,
			want: "the lock says sha256:" + strings.Repeat("0", 64)},
	} {
		t.Run(name, func(t *testing.T) {
			s.Heal()
			s.ResetRequests()
			cut := s.Inject(upstream.Rule{Method: "GET", Path: path, Times: 1, Fault: upstream.Cut{After: after}})
			for _, rule := range c.more {
				s.Inject(rule)
			}
			got, err := resolve(t, c.pin)
			switch {
			case c.want != "":
				bundletest.WantError(t, err, c.want)
			case err != nil:
				t.Fatal(err)
			case got != want:
				t.Errorf("it is pinned as\n%s, and not as\n%s", got, want)
			}
			var sent int64
			for _, r := range s.Requests() {
				sent += r.Bytes
			}
			if cut.Hits() != 1 || sent > c.atMost || sent < archive.Size {
				t.Errorf("cut %d times, %d bytes came of something with %d, at most %d may", cut.Hits(), sent,
					archive.Size, c.atMost)
			}
		})
	}
}
