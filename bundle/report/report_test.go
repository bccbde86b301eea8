package report

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/sbom"
	"github.com/liteboxd/boxlift/internal/page"
	"github.com/liteboxd/boxlift/test/browser"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

var update = flag.Bool("update", false, "write the golden files")

// random are bytes that do not compress, so that layers have the sizes that they are to have.
func random(n int, seed uint64) string {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range b {
		b[i] = byte(r.UintN(256))
	}
	return string(b)
}

// release is a bundle with one of everything: shared layers, two platforms, files, packages for hosts, licences.
func release(t testing.TB) smallbundle.Bundle {
	t.Helper()
	base := smallbundle.Layer(t, map[string]string{
		"etc/os-release":                "ID=debian\nVERSION_ID=\"12\"\n",
		"var/lib/dpkg/status":           "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nSource: glibc\nVersion: 2.36-9+deb12u10\n\nPackage: adduser\nVersion: 3.134\nStatus: install ok installed\nArchitecture: all\n",
		"usr/share/doc/libc6/copyright": "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nLicense: LGPL-2.1+\n",
		"usr/lib/blob":                  random(9000, 1),
	})
	node := smallbundle.Layer(t, map[string]string{
		"app/node_modules/@a/b/package.json": `{"name":"@a/b","version":"1.0.0","license":"(MIT OR ISC)"}`,
		// A stranger's words.
		"app/node_modules/evil/package.json": `{"name":"evil","version":"1.0.0","license":"</td><script>alert(1)</script>"}`,
		"var/lib/rpm/rpmdb.sqlite":           "SQLite", "app/data": random(4000, 2),
	})
	alpine := smallbundle.Layer(t, map[string]string{
		"etc/os-release":       "ID=alpine\nVERSION_ID=3.22.1\n",
		"lib/apk/db/installed": "P:musl\nV:1.2.5-r9\nA:aarch64\nL:MIT\n\n", "data": random(2000, 3),
	})
	return smallbundle.Bundle{
		Validity: lock.Validity{Serial: 7, Audience: []string{"plant-*"}, NotAfter: time.Date(2027, 6, 30, 0, 0, 0, 0, time.UTC)},
		Components: []smallbundle.Component{
			{
				Name: "k3s", Version: "v1.36.4+k3s1",
				Files: []smallbundle.File{{Name: "k3s", Platform: "linux/amd64", Content: random(12000, 4)}, {Name: "install.sh", Content: "#!/bin/sh\n"}},
				Images: []smallbundle.Image{{Ref: "docker.io/rancher/mirrored-pause:3.10", Platforms: []smallbundle.Platform{
					{Name: "linux/amd64", Layers: [][]byte{base}}, {Name: "linux/arm64", Layers: [][]byte{alpine}}}}},
			},
			{Name: "cilium", Version: "1.20.0", Charts: []smallbundle.File{{Name: "cilium", Content: "chart"}}},
			{Name: "os-packages", Version: "2026.11", Packages: []smallbundle.Packages{{Suite: "bookworm", Platform: "linux/amd64", Packages: []smallbundle.Package{
				{Name: "chrony", Version: "1:4.3-2+deb12u1", Architecture: "amd64", Content: "chrony"}}}}},
			{
				Name: "liteboxd", Version: "v0.6.10",
				Images: []smallbundle.Image{
					{Ref: "ghcr.io/fslongjin/web:v0.6.10", Platforms: []smallbundle.Platform{{Name: "linux/amd64", Layers: [][]byte{base, node}}}},
					{Ref: "registry.lan:5000/web:small", Platforms: []smallbundle.Platform{{Name: "linux/amd64", Layers: [][]byte{base, node}}}},
				},
			},
		},
	}
}

// open makes a bundle and reads its software.
func open(t testing.TB, b smallbundle.Bundle) Bundle {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, b)
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	bom, err := sbom.Make(context.Background(), r, sbom.Options{Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := sbom.Write(&text, bom); err != nil {
		t.Fatal(err)
	}
	software, err := sbom.ReadSoftware(text.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return Bundle{Reader: r, Software: software}
}

func mustWrite(t testing.TB, b Bundle, l page.Language) []byte {
	t.Helper()
	d, err := Make(b, "v1")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := page.Write(&out, d, l); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestGolden shows what a report of a bundle is, and that it depends on nothing but the bundle.
func TestGolden(t *testing.T) {
	one, other := open(t, release(t)), open(t, release(t))
	for _, l := range []page.Language{page.English, page.Chinese} {
		got := string(mustWrite(t, one, l))
		if got != string(mustWrite(t, other, l)) {
			t.Error("the same bundle at another place gives another report")
		}
		name := filepath.Join("testdata", "bundle."+string(l)+".html")
		if *update {
			if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s differs; -update writes it:\n%s", name, diff)
		}
		if strings.Contains(got, "<script") || !strings.Contains(got, "&lt;script&gt;") {
			t.Error("the words of a package are not shown as they are")
		}
	}
}

// TestSigners says who signed only where that was proven.
func TestSigners(t *testing.T) {
	b := open(t, release(t))
	if got := b.signers().In(page.English); got != "nobody" {
		t.Error(got)
	}
	b.Approval = &approval.Approval{Signers: []approval.Signer{{Name: "dia", Key: "abc"}}, Warnings: []string{"the clock is wrong"}}
	got := string(mustWrite(t, b, page.English))
	if !strings.Contains(got, "dia, with the key abc") || !strings.Contains(got, "the clock is wrong") {
		t.Error("the approval is not in the report")
	}
}

// TestUnread has the rest when the software could not be read.
func TestUnread(t *testing.T) {
	b := open(t, release(t))
	b.Software, b.Unread = nil, fmt.Errorf("%w: it is a delta", bundle.ErrIncomplete)
	got := string(mustWrite(t, b, page.Chinese))
	if !strings.Contains(got, "无法列出软件：incomplete bundle: it is a delta") || !strings.Contains(got, "mirrored-pause") {
		t.Error("what is missing is not named, or more than it is missing")
	}
}

// TestSizes compares the figures with those of the bundle: each byte is there once.
func TestSizes(t *testing.T) {
	contents, err := open(t, release(t)).Reader.Contents()
	if err != nil {
		t.Fatal(err)
	}
	all, total := blobs(contents)
	var want, mapped int64
	for _, c := range contents.Describe() {
		want += c.Size
	}
	if total != want {
		t.Errorf("all layers and files have %d bytes, the components %d", total, want)
	}
	var sum int64
	for _, b := range all {
		sum += b.size
	}
	for _, g := range sizeMap(all, total).Groups {
		if !slices.IsSortedFunc(g.Tiles, func(a, b page.Tile) int { return int(b.Size - a.Size) }) {
			t.Errorf("%s is not sorted", g.Name.In(page.English))
		}
		for _, tile := range g.Tiles {
			mapped += tile.Size
		}
	}
	if mapped != sum {
		t.Errorf("the map has %d bytes, the layers and files %d", mapped, sum)
	}
	shared := slices.IndexFunc(all, func(b *blob) bool { return b.images == 3 })
	if shared < 0 || all[shared].name != "docker.io/rancher/mirrored-pause:3.10" {
		t.Errorf("the layer of three images: %d", shared)
	}
}

// TestTexts checks that every text is there in both languages.
func TestTexts(t *testing.T) {
	v := reflect.ValueOf(texts)
	for i := range v.NumField() {
		text := v.Field(i).Interface().(page.Text)
		if text.IsEmpty() {
			t.Errorf("%s lacks a language", v.Type().Field(i).Name)
		}
		en, zh := text.In(page.English), text.In(page.Chinese)
		if strings.Count(en, "%") != strings.Count(zh, "%") {
			t.Errorf("%s: %q and %q do not have the same values", v.Type().Field(i).Name, en, zh)
		}
	}
}

// TestBrowser shows the report in Chromium: nothing is asked for, nothing is complained of, and nothing is wider than
// the window, also that of a telephone.
func TestBrowser(t *testing.T) {
	b := open(t, release(t))
	for _, l := range []page.Language{page.English, page.Chinese} {
		s := browser.Show(t, mustWrite(t, b, l), 375, 1280)
		if len(s.Console)+len(s.Requests) > 0 {
			t.Errorf("%s: console %q, requests %q", l, s.Console, s.Requests)
		}
		for _, width := range []int{375, 1280} { // of which a scroll bar has a part
			if s.Wide[width] == 0 || s.Wide[width] > width {
				t.Errorf("%s: in %d pixels it takes %d", l, width, s.Wide[width])
			}
		}
		if !bytes.HasPrefix(s.PDF, []byte("%PDF-")) || bytes.Count(s.PDF, []byte("/Type /Page\n")) == 0 {
			t.Errorf("%s: %d bytes are printed", l, len(s.PDF))
		}
	}
}

// large is a bundle of 200 images of 8 layers, four of which are shared by ten images each, with 100 packages in each
// image.
func large(t testing.TB) smallbundle.Bundle {
	t.Helper()
	layer := func(seed, packages int) []byte {
		files := map[string]string{"data": random(500+seed%97*40, uint64(seed)), "etc/os-release": "ID=debian\nVERSION_ID=\"12\"\n"}
		for i := range packages {
			name := fmt.Sprintf("package-%d-%d", seed, i)
			document, err := json.Marshal(map[string]string{"name": name, "version": "1." + fmt.Sprint(i), "license": []string{"MIT", "Apache-2.0", "GPL-2.0-only", ""}[i%4]})
			if err != nil {
				t.Fatal(err)
			}
			files["app/node_modules/"+name+"/package.json"] = string(document)
		}
		return smallbundle.Layer(t, files)
	}
	b := smallbundle.Bundle{}
	shared := make(map[int][]byte)
	for c, name := range []string{"k3s", "cilium", "liteboxd", "apps"} {
		component := smallbundle.Component{Name: name, Version: fmt.Sprintf("v1.%d.0", c)}
		for i := range 50 {
			var layers [][]byte
			for n := range 4 {
				key := (c*5+i/10)*4 + n
				if shared[key] == nil {
					shared[key] = layer(key, 40)
				}
				layers = append(layers, shared[key])
			}
			for n := range 4 {
				layers = append(layers, layer(1000+(c*50+i)*4+n, 25))
			}
			component.Images = append(component.Images, smallbundle.Image{Ref: fmt.Sprintf("registry.example.com/%s/service-%d:v1.%d.0", name, i, i),
				Platforms: []smallbundle.Platform{{Name: "linux/amd64", Layers: layers}}})
		}
		b.Components = append(b.Components, component)
	}
	return b
}

// TestLarge bounds what a report of 200 images takes; the figure is in docs/report.md.
func TestLarge(t *testing.T) {
	b := open(t, large(t))
	content := mustWrite(t, b, page.English)
	t.Logf("%d images, %d packages: %d bytes", 200, len(b.Software.Packages), len(content))
	if len(content) > 6<<20 {
		t.Errorf("%d bytes", len(content))
	}
}
