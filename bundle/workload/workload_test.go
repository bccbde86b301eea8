package workload

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/download"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/fault"
)

func parse(t *testing.T, components string) *lock.Lock {
	t.Helper()
	l, err := lock.Parse("versions.lock", []byte("apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\n"+
		"components:\n"+components))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

const someSum = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

func TestFind(t *testing.T) {
	l := parse(t, `  k3s: {version: v1, charts: [{name: a, url: "https://a/a.tgz"}, {name: b, url: "https://a/b.tgz"}]}
  cilium: {version: v1, charts: [{name: a, url: "https://a/a.tgz"}]}
  vulnerabilities: {version: v1, files: [{name: manifests.tar, url: "https://a/m.tar"}]}
  web:
    version: v1
    files:
      - {name: other, url: "https://a/o", platform: linux/amd64}
      - {name: values.yaml, url: "file:values.yaml", sha256: `+someSum+`, size: 9}
    charts: [{name: web, url: "https://a/web-1.0.0.tgz"}]
  gov: {version: v1, files: [{name: manifests.tar, url: "file:gov", sha256: `+someSum+`, size: 10240}]}
  tool: {version: v1, files: [{name: values.yaml, url: "https://a/v", platform: linux/amd64}]}
`)
	got, err := Find("versions.lock", l)
	if err != nil {
		t.Fatal(err)
	}
	want := []Workload{
		{
			Component: "web", Version: "v1", IsChart: true,
			From: Entry{Name: "web-1.0.0.tgz", URL: "https://a/web-1.0.0.tgz", Most: maxChart, path: "components.web.charts web",
				file: "versions.lock", line: 13},
			Values: &Entry{Name: "values.yaml", URL: "file:values.yaml", SHA256: someSum, Size: 9, Most: maxValues,
				path: "components.web.files values.yaml", file: "versions.lock", line: 12},
		},
		{
			Component: "gov", Version: "v1",
			From: Entry{Name: "manifests.tar", URL: "file:gov", SHA256: someSum, Size: 10240, Most: maxManifests,
				path: "components.gov.files manifests.tar", file: "versions.lock", line: 14},
		},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Entry{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got[0].IsPinned() || !got[1].IsPinned() {
		t.Error("what is pinned is told wrongly")
	}
}

func TestFindErrors(t *testing.T) {
	_, err := Find("versions.lock", parse(t, `  web:
    version: v1
    files:
      - {name: manifests.tar, url: "file:gov"}
      - {name: values.yaml, url: "file:values.yaml", platform: linux/amd64}
    charts:
      - {name: web, url: "https://a/web.tgz"}
      - {name: more, url: "https://a/more.tgz"}
  large:
    version: v1
    files:
      - {name: manifests.tar, url: "file:gov", sha256: `+someSum+`, size: 4194305}
      - {name: values.yaml, url: "file:v", sha256: `+someSum+`, size: 262145}
  chart: {version: v1, charts: [{name: web, url: "https://a/w.tgz", sha256: `+someSum+`, size: 8388609}]}
  platform: {version: v1, files: [{name: manifests.tar, url: "file:gov", platform: linux/amd64}]}
`))
	want := strings.Join([]string{
		"versions.lock:12: components.web.charts more: is another chart beside the one on line 11: expected one in a " +
			"component, make a component for each",
		"versions.lock:8: components.web.files manifests.tar: stands beside a chart, on line 11: expected one of them " +
			"in a component",
		"versions.lock:9: components.web.files values.yaml: is for linux/amd64: expected it without a platform, a " +
			"workload is the same on all",
		"versions.lock:16: components.large.files manifests.tar: has 4194305 bytes: expected 4194304 at most, no site " +
			"could install it",
		"versions.lock:17: components.large.files values.yaml: has 262145 bytes: expected 262144 at most, no site " +
			"could install it",
		"versions.lock:18: components.chart.charts web: has 8388609 bytes: expected 8388608 at most, no site could " +
			"install it",
		"versions.lock:19: components.platform.files manifests.tar: is for linux/amd64: expected it without a " +
			"platform, a workload is the same on all",
	}, "\n")
	if err == nil || fault.ClassOf(err) != fault.Input {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What is read is what the lock pins, or refused.
func TestRead(t *testing.T) {
	chart, values := []byte("a chart"), []byte("a: b\n")
	w := Workload{Component: "web", IsChart: true, From: Entry{Name: "web.tgz", URL: "chart", SHA256: digest.FromBytes(chart).Encoded()},
		Values: &Entry{Name: "values.yaml", URL: "values", SHA256: digest.FromBytes(values).Encoded()}}
	files := map[string][]byte{"chart": chart, "values": values}
	fetch := func(e Entry) ([]byte, error) {
		content, ok := files[e.URL]
		if !ok {
			return nil, errors.New("not there")
		}
		return content, nil
	}
	s, err := w.Read(fetch)
	if err != nil || string(s.Content) != "a chart" || string(s.ValuesContent) != "a: b\n" {
		t.Errorf("got %q, %q, %v", s.Content, s.ValuesContent, err)
	}
	files["values"] = chart
	if _, err := w.Read(fetch); !errors.As(err, new(*download.DiffersError)) ||
		!strings.HasPrefix(err.Error(), "web: values.yaml: ") {
		t.Errorf("other values: %v", err)
	}
	delete(files, "chart")
	if _, err := w.Read(fetch); err == nil || err.Error() != "web: web.tgz: not there" {
		t.Errorf("no chart: %v", err)
	}
}

const (
	one = digest.Digest("sha256:1111111111111111111111111111111111111111111111111111111111111111")
	two = digest.Digest("sha256:2222222222222222222222222222222222222222222222222222222222222222")
)

func TestAdditions(t *testing.T) {
	l := parse(t, fmt.Sprintf(`  gov:
    version: v1
    images:
      - {ref: "docker.io/library/nginx:1.27", digest: "%s"}
      - {ref: "registry.lan/open:1"}
      - {archive: "https://a/a.tar", platform: linux/amd64, contents: {images: [{ref: "registry.lan/inside:1", digest: "%s",
          size: 1, mediaType: application/vnd.oci.image.index.v1+json}], blobs: [{path: a, digest: "%s", size: 1,
          mediaType: application/vnd.oci.image.index.v1+json}]}}
  other: {version: v1, images: [{ref: "registry.lan/shared:1", digest: "%s"}]}
`, one, two, two, one))
	for _, c := range []struct {
		name   string
		images []string
		want   []lock.Image
		err    string
	}{
		{"nothing", nil, nil, ""},
		{"all there", []string{"nginx:1.27", "docker.io/nginx:1.27@" + string(one), "index.docker.io/library/nginx:1.27",
			"registry.lan/open:1@" + string(two), "registry.lan/inside:1"}, nil, ""},
		{"short names", []string{"busybox", "grafana/grafana:11", "busybox:latest", "localhost:5000/a"}, []lock.Image{
			{Ref: "docker.io/library/busybox:latest"}, {Ref: "docker.io/grafana/grafana:11"}, {Ref: "localhost:5000/a:latest"},
		}, ""},
		{"in another component", []string{"registry.lan/shared:1"}, []lock.Image{{Ref: "registry.lan/shared:1"}}, ""},
		{"with a digest", []string{"registry.lan/a:1", "registry.lan/a:1@" + string(one), "registry.lan/shared:1@" + string(one)},
			[]lock.Image{{Ref: "registry.lan/a:1", Digest: one}, {Ref: "registry.lan/shared:1", Digest: one}}, ""},
		{"another digest", []string{"nginx:1.27@" + string(two)}, nil,
			"(main) needs the image nginx:1.27@" + string(two) + ": the lock has docker.io/library/nginx:1.27 with the digest " +
				string(one)},
		{"another digest in an archive", []string{"registry.lan/inside:1@" + string(one)}, nil, "with the digest " + string(two)},
		{"another digest in another component", []string{"registry.lan/shared:1@" + string(two)}, nil,
			"another component of the lock has registry.lan/shared:1 with the digest " + string(one)},
		{"two digests", []string{"registry.lan/a:1@" + string(one), "registry.lan/a:1@" + string(two)},
			[]lock.Image{{Ref: "registry.lan/a:1", Digest: one}}, "Pod a (main) names it with the digest " + string(one)},
		{"no tag", []string{"registry.lan/a@" + string(one), "b"}, []lock.Image{{Ref: "docker.io/library/b:latest"}},
			"it has no tag, and a lock names images by tags"},
		{"no name", []string{"$(REGISTRY)/a:1", "b:1"}, []lock.Image{{Ref: "docker.io/library/b:1"}},
			"Pod a (main) needs the image $(REGISTRY)/a:1: that is not the name of an image"},
		{"sha512", []string{"a:1@sha512:" + strings.Repeat("1", 128)}, nil, "none of sha256"},
	} {
		var uses []Use
		for _, image := range c.images {
			uses = append(uses, Use{image, "Pod a", "main"})
		}
		got, err := Additions(l, "gov", uses)
		if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) ||
			fault.ClassOf(err) != fault.Input) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.err)
		}
	}
}

// FuzzLacking: whatever charts call an image, it is refused, or completed to a name that a lock takes.
func FuzzLacking(f *testing.F) {
	for _, image := range []string{"nginx", "a/b:1", "localhost:5000/a@" + string(one), "a:1@sha512:0", "A", "$(X)", "", "a.b/c:d@" + string(two)} {
		f.Add(image)
	}
	f.Fuzz(func(t *testing.T, image string) {
		l := &lock.Lock{Components: []lock.Component{{Name: "web", Version: "1"}}}
		entries, err := Additions(l, "web", []Use{{image, "Pod a", "main"}})
		if err != nil {
			if len(entries) > 0 {
				t.Errorf("%v besides %v", entries, err)
			}
			return
		}
		if len(entries) != 1 {
			t.Fatalf("%q became %v", image, entries)
		}
		_, err = lock.Compose("versions.lock", "", []lock.Platform{"linux/amd64"},
			[]lock.Component{{Name: "web", Version: "1", Images: entries}})
		if err != nil {
			t.Errorf("%q became %v, which no lock takes: %v", image, entries, err)
		}
	})
}
