package upstream

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/source"
	standin "github.com/liteboxd/boxlift/test/upstream"
)

const k3sVersion = "v1.36.4+k3s1"

// server serves all tests, one after another.
var server *standin.Server

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "boxlift-release-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// The credentials of whoever runs the tests are not for the tests.
	_ = os.Setenv("DOCKER_CONFIG", dir)
	if server, err = standin.Start(context.Background(), standin.Options{Dir: dir}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = server.Close() }()
	// Read at the first TLS connection of the process, which comes later.
	_ = os.Setenv("SSL_CERT_FILE", server.CAFile())
	return m.Run()
}

// chartImages stands for rendering, which is not this package's: the images of the chart
// that the server has.
func chartImages(_ context.Context, chart []byte, cilium, k3s string) ([]string, error) {
	if len(chart) == 0 || k3s != k3sVersion {
		return nil, fmt.Errorf("asked for the images of a chart of %d bytes on k3s %q", len(chart), k3s)
	}
	return []string{"quay.io/cilium/cilium:v" + cilium, "quay.io/cilium/operator-generic:v" + cilium + "@sha256:" + strings.Repeat("a", 64), "quay.io/cilium/cilium:v" + cilium}, nil
}

// manifestImages gives back what it gets, in another order and once too often.
func manifestImages(of LiteBoxdImages) ([]string, error) {
	return []string{of.Helper, of.API, of.Gateway, of.API, of.Web}, nil
}

func newFinder(t *testing.T) *Finder {
	t.Helper()
	o := source.Options{MaxTries: 1}
	for _, m := range server.Mirrors() {
		mirror, err := source.ParseMirror(m)
		if err != nil {
			t.Fatal(err)
		}
		o.Mirrors = append(o.Mirrors, mirror)
	}
	server.Heal()
	server.ResetRequests()
	t.Cleanup(server.Heal)
	return &Finder{Source: source.New(o), ChartImages: chartImages, ManifestImages: manifestImages}
}

func serverLock(t *testing.T) *lock.Lock {
	t.Helper()
	content, err := server.PinnedLockYAML(standin.LockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := lock.Parse("versions.lock", content)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var withoutLines = cmpopts.IgnoreFields(lock.File{}, "Line")

// TestFindK3s compares what is found with what the server knows of itself.
func TestFindK3s(t *testing.T) {
	l := serverLock(t)
	r, err := newFinder(t).Find(t.Context(), K3s, k3sVersion, l.Platforms, "")
	if err != nil {
		t.Fatal(err)
	}
	want := l.Component(K3s)
	last := len(want.Files) - 1
	want.Files[last].SHA256, want.Files[last].Size = "", 0 // upstream has no checksum of install.sh
	if diff := cmp.Diff(want.Files, r.Files, withoutLines); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{">=1.35.0 <1.37.0"}, r.UpgradesFrom); diff != "" {
		t.Errorf("upgradesFrom (-want +got):\n%s", diff)
	}
	for i, archive := range want.Images {
		want := lock.Image{Archive: archive.Archive, Platform: archive.Platform, SHA256: archive.SHA256}
		if diff := cmp.Diff(want, r.Images[i]); diff != "" {
			t.Errorf("archive (-want +got):\n%s", diff)
		}
	}
	if err := r.CheckArchives(*want); err != nil {
		t.Error(err)
	}
	if len(r.ArchiveImages) != 8 {
		t.Errorf("the archives should hold %v", r.ArchiveImages)
	}
	for _, q := range server.Requests() {
		if strings.Contains(q.Path, "airgap") || q.Method == http.MethodGet && q.Bytes > 4096 {
			t.Errorf("%s %s: only what is small is fetched", q.Method, q.Path)
		}
	}

	lacking := *want
	lacking.Images = []lock.Image{{Archive: "https://example.com/a.tar", Contents: &lock.Contents{Images: want.Images[0].Contents.Images[1:]}}}
	err = r.CheckArchives(lacking)
	if err == nil || !errors.Is(err, format.ErrUpstream) || !strings.Contains(err.Error(), "a.tar does not hold the image docker.io/rancher/") {
		t.Errorf("an archive that lacks an image: %v", err)
	}
}

func TestFindCilium(t *testing.T) {
	l := serverLock(t)
	r, err := newFinder(t).Find(t.Context(), Cilium, "1.20.0", l.Platforms, k3sVersion)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(l.Component(Cilium).Charts, r.Charts, cmpopts.IgnoreFields(lock.Chart{}, "Line")); diff != "" {
		t.Errorf("charts (-want +got):\n%s", diff)
	}
	want := []lock.Image{{Ref: "quay.io/cilium/cilium:v1.20.0"}, {Ref: "quay.io/cilium/operator-generic:v1.20.0"}}
	if diff := cmp.Diff(want, r.Images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	var files []lock.File
	for _, arch := range []string{"amd64", "arm64"} {
		name := "cilium-linux-" + arch + ".tar.gz"
		address := "https://github.com/cilium/cilium-cli/releases/download/" + standin.CiliumCLIs[0] + "/" + name
		all := server.Files()
		at := slices.IndexFunc(all, func(f standin.File) bool { return f.URL == address })
		if at < 0 {
			t.Fatalf("%s is not served", address)
		}
		f := all[at]
		platform := lock.Platform("linux/" + arch)
		files = append(files, lock.File{Name: name, Platform: platform, URL: address, SHA256: f.SHA256, Size: f.Size})
	}
	if diff := cmp.Diff(files, r.Files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for _, q := range server.Requests() {
		if strings.HasSuffix(q.Path, ".tar.gz") && q.Method != http.MethodHead {
			t.Errorf("%s %s: only what is small is fetched", q.Method, q.Path)
		}
	}
}

func TestFindLiteBoxd(t *testing.T) {
	r, err := newFinder(t).Find(t.Context(), LiteBoxd, "v0.6.10", []lock.Platform{"linux/amd64"}, "")
	if err != nil {
		t.Fatal(err)
	}
	want := lock.Component{Name: LiteBoxd, Version: "v0.6.10", UpgradesFrom: []string{"<=0.6.10"}, Images: []lock.Image{
		{Ref: "ghcr.io/fslongjin/liteboxd-server:v0.6.10"}, {Ref: "ghcr.io/fslongjin/liteboxd-gateway:v0.6.10"},
		{Ref: "ghcr.io/fslongjin/web:v0.6.10"}, {Ref: "docker.io/library/ubuntu:24.04"},
	}}
	if diff := cmp.Diff(want, r.Component); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestFindRefuses(t *testing.T) {
	amd64 := []lock.Platform{"linux/amd64"}
	for name, c := range map[string]struct {
		component, version string
		platforms          []lock.Platform
		want               string
	}{
		"component":        {"longhorn", "v1.0.0", amd64, "component longhorn: its releases are not known, only those of k3s, cilium, liteboxd"},
		"k3s without k3s":  {K3s, "v1.36.4", amd64, `version "v1.36.4" of k3s: expected one such as v1.36.4+k3s1`},
		"cilium with v":    {Cilium, "v1.20.0", amd64, "expected one such as 1.20.0, without a v"},
		"a way out":        {Cilium, "../../x", amd64, "expected one such as"},
		"no such release":  {K3s, "v1.36.99+k3s1", amd64, "k3s v1.36.99+k3s1: get https://"},
		"no such chart":    {Cilium, "1.20.99", amd64, "cilium 1.20.99: get https://"},
		"no such platform": {K3s, k3sVersion, []lock.Platform{"linux/amd64", "linux/s390x"}, "k3s is not published for linux/s390x, only for linux/amd64, linux/arm64"},
		"a variant":        {K3s, k3sVersion, []lock.Platform{"linux/amd64/v3"}, "k3s is not published for linux/amd64/v3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newFinder(t).Find(t.Context(), c.component, c.version, c.platforms, k3sVersion)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestOutdated asks about locks that upstream has left behind, each in one way.
func TestOutdated(t *testing.T) {
	const operator = "quay.io/cilium/operator-generic:v1.20.0"
	for name, c := range map[string]struct {
		change func(*lock.Lock)
		tag    string // moved
		want   []lock.Change
	}{
		"nothing":     {func(*lock.Lock) {}, "", nil},
		"a moved tag": {func(*lock.Lock) {}, operator, nil},
		"newer patches": {func(l *lock.Lock) {
			l.Component(K3s).Version, l.Component(Cilium).Version, l.Component(LiteBoxd).Version = "v1.36.3+k3s1", "1.20.0-rc.1", "v0.6.9"
		}, operator, []lock.Change{
			{Component: K3s, Entry: "version", Old: "v1.36.3+k3s1", New: k3sVersion},
			{Component: Cilium, Entry: "version", Old: "1.20.0-rc.1", New: "1.20.0"},
			{Component: LiteBoxd, Entry: "version", Old: "v0.6.9", New: "v0.6.10"},
		}},
		"other minor versions": {func(l *lock.Lock) {
			l.Component(K3s).Version, l.Component(Cilium).Version, l.Component(LiteBoxd).Version = "v1.35.0+k3s1", "1.17.0", "v0.5.0"
		}, "", nil},
		"published anew": {func(l *lock.Lock) {
			l.Component(K3s).Files[0].SHA256 = strings.Repeat("0", 64)
			l.Component(Cilium).Charts[0].SHA256 = strings.Repeat("1", 64)
			l.Component(K3s).Files[2].Size++
		}, "", []lock.Change{
			{Component: K3s, Entry: "files k3s linux/amd64", Old: "sha256:" + strings.Repeat("0", 64), New: "sha256:" + serverLock(t).Component(K3s).Files[0].SHA256},
			{Component: K3s, Entry: "files install.sh", Old: "274 bytes", New: "273 bytes"},
			{Component: Cilium, Entry: "charts cilium", Old: "sha256:" + strings.Repeat("1", 64), New: "sha256:" + serverLock(t).Component(Cilium).Charts[0].SHA256},
		}},
		"one image in two components": {func(l *lock.Lock) {
			ubuntu := *l.Component(LiteBoxd)
			ubuntu.Name = "addon"
			l.Components = append(l.Components, ubuntu)
		}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			f, l := newFinder(t), serverLock(t)
			c.change(l)
			want := slices.Clone(c.want)
			if c.tag != "" {
				old := image(l, c.tag).Digest
				want = append(want, lock.Change{Component: Cilium, Entry: "images " + c.tag, Old: string(old), New: string(server.MoveTag(c.tag))})
			}
			got, err := f.Outdated(t.Context(), l, 4)
			if err != nil {
				t.Fatal(err)
			}
			less := cmpopts.SortSlices(func(a, b lock.Change) bool { return a.Component+a.Entry < b.Component+b.Entry })
			if diff := cmp.Diff(want, got, less); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			wantSparing(t)
		})
	}
}

func image(l *lock.Lock, ref string) *lock.Image {
	for _, c := range l.Components {
		for i := range c.Images {
			if c.Images[i].Ref == ref {
				return &c.Images[i]
			}
		}
	}
	panic("no image " + ref)
}

// wantSparing makes sure that nothing was asked twice, and nothing large fetched.
func wantSparing(t *testing.T) {
	t.Helper()
	seen := make(map[string]bool)
	for _, q := range server.Requests() {
		key := q.Method + " " + q.Path
		if seen[key] && q.Path != "/v2/" {
			t.Errorf("%s: more than once", key)
		}
		seen[key] = true
		if q.Method == http.MethodGet && q.Bytes > 4096 {
			t.Errorf("%s: %d bytes were fetched", key, q.Bytes)
		}
	}
	if len(seen) == 0 {
		t.Error("nothing was asked")
	}
}

// What upstream no longer has is an error that names the entry; the rest is reported all
// the same.
func TestOutdatedReportsAll(t *testing.T) {
	f, l := newFinder(t), serverLock(t)
	image(l, "docker.io/library/ubuntu:24.04").Ref = "docker.io/library/ubuntu:0.1"
	l.Component(K3s).Version = "v1.36.3+k3s1"
	got, err := f.Outdated(t.Context(), l, 2)
	var answer *source.Error
	if !errors.As(err, &answer) || !strings.Contains(err.Error(), "liteboxd: images docker.io/library/ubuntu:0.1: get https://") {
		t.Errorf("error: %v", err)
	}
	if !slices.ContainsFunc(got, func(c lock.Change) bool { return c.New == k3sVersion }) {
		t.Errorf("changes: %v", got)
	}
}
