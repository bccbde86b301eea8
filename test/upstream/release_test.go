package upstream

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/test/k3sbuild"
	"github.com/liteboxd/boxlift/test/liteboxd/edge"
)

// The same name stands for the same thing in every release, or two releases could not be
// served side by side.
func TestCatalogsAgree(t *testing.T) {
	images, layers := map[string]imageSpec{}, map[string]layerSpec{}
	for _, r := range []Release{Oldest, Older, Newer, Patched, Newer.WithLiteBoxd(LiteBoxdNext), Newer.WithLiteBoxd(LiteBoxdBroken)} {
		if !slices.Contains(k3sbuild.Versions(), r.K3s) {
			t.Errorf("k3s %s cannot be built", r.K3s)
		}
		if chartPins[r.Cilium] == "" || envoyTags[r.Cilium] == "" {
			t.Errorf("Cilium %s has no chart or no envoy", r.Cilium)
		}
		for _, image := range catalog(r) {
			if other, ok := images[image.Ref]; ok {
				if diff := cmp.Diff(other, image); diff != "" {
					t.Errorf("%s:\n%s", image.Ref, diff)
				}
			}
			images[image.Ref] = image
			for _, l := range image.Layers {
				if other, ok := layers[l.Name]; ok && other != l {
					t.Errorf("layer %s is %+v and %+v", l.Name, l, other)
				}
				layers[l.Name] = l
			}
		}
	}
}

// The locks of a server with several releases are for the release that is asked for.
func TestReleaseLocks(t *testing.T) {
	releases := []Release{Oldest, Older, Newer, Newer.WithLiteBoxd(LiteBoxdNext)}
	s := &Server{set: &set{}}
	for _, r := range releases {
		rs := releaseSet{Release: r}
		for _, spec := range catalog(r) {
			rs.Refs = append(rs.Refs, spec.Ref)
			if s.set.image(spec.Ref) == nil {
				s.set.Images = append(s.set.Images, builtImage{Component: spec.Component, Ref: spec.Ref})
			}
		}
		s.set.Releases = append(s.set.Releases, rs)
	}
	for n, r := range append([]Release{{}}, releases...) {
		l, err := lock.Parse("lock", s.LockYAML(LockOptions{Release: r}))
		if err != nil {
			t.Fatal(err)
		}
		r = releases[max(n-1, 0)] // none is the first
		got := map[string]string{}
		refs := map[string]int{}
		for _, c := range l.Components {
			got[c.Name] = c.Version
			for _, image := range c.Images {
				if image.Ref != "" {
					refs[c.Name]++
				}
			}
		}
		if diff := cmp.Diff(map[string]string{"k3s": r.K3s, "cilium": r.Cilium, "liteboxd": r.LiteBoxd, "netcheck": "v1"}, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", r, diff)
		}
		if diff := cmp.Diff(map[string]int{"cilium": 3, "liteboxd": 6, "netcheck": 1}, refs); diff != "" {
			t.Errorf("%+v: images (-want +got):\n%s", r, diff)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a lock for a release that the server does not have")
		}
	}()
	s.LockYAML(LockOptions{Release: Quick})
}

// A layer with a program has just that and the links to it, the same bytes each time; for
// the other platform it is like all others.
func TestExactLayers(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("a program"), 0o700); err != nil {
		t.Fatal(err)
	}
	g := &generator{size: Small, logf: t.Logf, programs: map[string]string{"cmd/x": program}}
	files, err := sources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spec layerSpec
		want []string
	}{
		{layerSpec{Name: "x", Size: 1, Program: "cmd/x", Paths: "usr/bin/x bin/y"}, []string{"usr/", "usr/bin/", "usr/bin/x a program", "bin/", "bin/y -> /usr/bin/x"}},
		{layerSpec{Name: "v", Size: 1, Text: "1.2.3\n", Paths: "etc/v"}, []string{"etc/", "etc/v 1.2.3\n"}},
	} {
		store := storage(t.TempDir())
		made, err := g.makeLayer(t.Context(), store, c.spec, "amd64", files["amd64"])
		if err != nil {
			t.Fatal(err)
		}
		again, err := g.makeLayer(t.Context(), storage(t.TempDir()), c.spec, "amd64", files["amd64"])
		if err != nil || again != made {
			t.Errorf("%s: %v and then %v, %v", c.spec.Name, made, again, err)
		}
		if diff := cmp.Diff(c.want, members(t, store.blobPath(made.blob.Digest))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.spec.Name, diff)
		}
		other, err := g.makeLayer(t.Context(), store, c.spec, "arm64", files["arm64"])
		if err != nil || other.blob.Digest == made.blob.Digest {
			t.Errorf("%s for arm64: %v, %v", c.spec.Name, other, err)
		}
	}
}

// members describes what is in a layer.
func members(t *testing.T, file string) (list []string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // only read
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(unpacked); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		var content bytes.Buffer
		if _, err := io.Copy(&content, r); err != nil {
			t.Fatal(err)
		}
		entry := header.Name
		switch header.Typeflag {
		case tar.TypeReg:
			entry += " " + content.String()
		case tar.TypeSymlink:
			entry += " -> " + header.Linkname
		}
		list = append(list, entry)
	}
}

func TestUnknownRelease(t *testing.T) {
	for problem, r := range map[string]Release{"Older": {}, "v0.0.1": Newer.WithLiteBoxd("v0.0.1")} {
		s, err := Start(t.Context(), Options{Releases: []Release{r}})
		if err == nil {
			t.Fatalf("started %s", s.Addr())
		}
		if !strings.Contains(err.Error(), problem) {
			t.Errorf("the error does not say %s: %v", problem, err)
		}
	}
}

// All of LiteBoxd's images and those of its sandboxes have one program; its versions differ in
// what they say of themselves, and are started as the real ones are.
func TestStandins(t *testing.T) {
	started := map[string]string{}
	for _, image := range standins("v0.6.10") {
		name, _, _ := strings.Cut(path.Base(image.Ref), ":")
		started[name] = strings.TrimSpace(image.Dir + " " + image.Cmd)
		if !slices.ContainsFunc(image.Layers, func(l layerSpec) bool { return l.Program == standinProgram }) {
			t.Errorf("%s has no program", image.Ref)
		}
	}
	want := map[string]string{
		"liteboxd-server": "/app ./server", "liteboxd-gateway": "/app ./gateway", "web": "/usr/sbin/web",
		"ubuntu": "/bin/sh", "nginx": "/usr/bin/sandbox 80 8080", "code-interpreter": "/usr/bin/sandbox 44771 44772",
	}
	if diff := cmp.Diff(want, started); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for version, release := range liteboxdReleases {
		server := standins(version)[0]
		last := server.Layers[len(server.Layers)-1]
		var got edge.Release
		if err := json.Unmarshal([]byte(last.Text), &got); err != nil || got != release || got.Version != version {
			t.Errorf("%s says that it is %+v, %v", version, got, err)
		}
	}
}
