package packages

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// file is a member of a layer: a regular file unless it is said to be something else.
type file struct {
	name, content string
	kind          byte
	link          string
}

func layerTar(t testing.TB, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Typeflag: f.kind, Linkname: f.link, Mode: 0o644}
		if f.kind == 0 || f.kind == tar.TypeReg {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(f.content))
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func mustScan(t testing.TB, content []byte) *Layer {
	t.Helper()
	layer, err := Scan(t.Context(), bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

// found lists an image's packages, one line each.
func found(image *Image) []string {
	var lines []string
	for _, p := range image.Packages {
		line := p.Type + " " + p.Name + " " + p.Version
		for _, more := range []string{p.Architecture, p.Source, p.SourceVersion, p.License} {
			if more != "" {
				line += " [" + more + "]"
			}
		}
		lines = append(lines, line+" <"+strings.Join(p.Paths, " ")+">")
	}
	return lines
}

const (
	dpkgStatus = `Package: libc6
Status: install ok installed
Architecture: amd64
Source: glibc
Version: 2.36-9+deb12u10
Description: GNU C Library
 Package: not-a-field

Package: gone
Status: deinstall ok config-files
Version: 1

Package: bash
Status: install ok installed
Architecture: amd64
Source: bash (5.2)
Version: 5.2-b1`
	apkInstalled = `C:Q1abc=
P:musl
V:1.2.5-r9
A:x86_64
L:MIT
o:musl

P:ssl_client
V:1.37.0-r12
A:x86_64
o:busybox
L:GPL-2.0-only
F:usr/bin
R:ssl_client
`
)

func TestDatabases(t *testing.T) {
	tests := []struct {
		name  string
		files []file
		want  []string
		notes []string
	}{
		{"dpkg", []file{
			{name: "./var/lib/dpkg/status", content: dpkgStatus},
			{name: "usr/share/doc/bash/copyright", content: "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nFiles: *\nLicense: GPL-3+\n\nLicense: GPL-3+\n text\n\nLicense: FSFULLR\n"},
			{name: "usr/share/doc/libc6/copyright", content: "This is the Debian package.\nLicense: no field\n"},
		}, []string{
			"deb bash 5.2-b1 [amd64] [bash] [5.2] [FSFULLR AND GPL-3+] <var/lib/dpkg/status>",
			"deb libc6 2.36-9+deb12u10 [amd64] [glibc] <var/lib/dpkg/status>",
		}, nil},
		{"distroless", []file{
			{name: "var/lib/dpkg/status.d/tzdata", content: "Package: tzdata\nVersion: 2025b-0+deb12u1\nArchitecture: all\n"},
			{name: "var/lib/dpkg/status.d/tzdata.md5sums", content: "Package: not\nVersion: this\n"},
		}, []string{"deb tzdata 2025b-0+deb12u1 [all] <var/lib/dpkg/status.d/tzdata>"}, nil},
		{"apk", []file{{name: "lib/apk/db/installed", content: apkInstalled}}, []string{
			"apk musl 1.2.5-r9 [x86_64] [musl] [MIT] <lib/apk/db/installed>",
			"apk ssl_client 1.37.0-r12 [x86_64] [busybox] [GPL-2.0-only] <lib/apk/db/installed>",
		}, nil},
		{"python", []file{
			{name: "usr/lib/python3/dist-packages/requests-2.32.3.dist-info/METADATA", content: "Metadata-Version: 2.1\nName: requests\nVersion: 2.32.3\nLicense: Apache-2.0\n\nName: text\n"},
			{name: "opt/site-packages/x.egg-info/PKG-INFO", content: "Name: x\r\nVersion: 1\r\nLicense: UNKNOWN\r\nLicense-Expression: MIT OR ISC\r\n"},
			{name: "opt/site-packages/METADATA", content: "Name: not\nVersion: this\n"},
		}, []string{
			"pypi requests 2.32.3 [Apache-2.0] <usr/lib/python3/dist-packages/requests-2.32.3.dist-info/METADATA>",
			"pypi x 1 [MIT OR ISC] <opt/site-packages/x.egg-info/PKG-INFO>",
		}, nil},
		{"node", []file{
			{name: "app/node_modules/left-pad/package.json", content: `{"name":"left-pad","version":"1.3.0","license":"WTFPL","name2":[]}`},
			{name: "app/node_modules/@scope/x/package.json", content: `{"name":"@scope/x","version":"2.0.0","license":{"type":"MIT","url":"x"}}`},
			{name: "app/node_modules/left-pad/test/package.json", content: `{"name":"not","version":"1"}`},
			{name: "app/package.json", content: `{"name":"not","version":"1"}`},
			{name: "app/node_modules/broken/package.json", content: `{"name":`},
		}, []string{
			"npm @scope/x 2.0.0 [MIT] <app/node_modules/@scope/x/package.json>",
			"npm left-pad 1.3.0 [WTFPL] <app/node_modules/left-pad/package.json>",
		}, nil},
		{"rpm", []file{
			{name: "var/lib/rpm/rpmdb.sqlite", content: rpmDatabase(t)},
			{name: "var/lib/rpm/rpmdb.sqlite-wal", content: ""},
		}, []string{
			"rpm bash 5.2.26-4.el9 [x86_64] [bash] [GPL-3.0-or-later] <var/lib/rpm/rpmdb.sqlite>",
			"rpm dbus-libs 1:1.12.20-8.el9 [x86_64] [dbus] [1.12.20-7.el9] [(GPLv2+ or AFL) and GPLv2+] <var/lib/rpm/rpmdb.sqlite>",
			"rpm long 1-1 <var/lib/rpm/rpmdb.sqlite>",
		}, nil},
		{"rpm, no database", []file{{name: "usr/lib/sysimage/rpm/rpmdb.sqlite", content: "SQLite"}}, nil,
			[]string{"the RPM database usr/lib/sysimage/rpm/rpmdb.sqlite cannot be read to its end: file is not a database (26)"}},
		{"rpm, no databases of the older forms", []file{
			{name: "var/lib/rpm/Packages", content: strings.Repeat("x", 512)},
			{name: "var/lib/rpm/Packages.db", content: "RpmP"},
			{name: "var/lib/rpm/rpmdb.sqlite-wal", content: "x"},
		}, nil, []string{
			"the RPM database var/lib/rpm/Packages cannot be read to its end: it is no hash of Berkeley DB",
			"the RPM database var/lib/rpm/Packages.db cannot be read to its end: it ends at byte 4, before byte 32",
			"var/lib/rpm/rpmdb.sqlite-wal, a part of an RPM database, is not read",
		}},
		{"names that break out", []file{{name: "../../lib/apk/db/installed", content: apkInstalled}}, []string{
			"apk musl 1.2.5-r9 [x86_64] [musl] [MIT] <lib/apk/db/installed>",
			"apk ssl_client 1.37.0-r12 [x86_64] [busybox] [GPL-2.0-only] <lib/apk/db/installed>",
		}, nil},
		{"texts for a terminal", []file{{name: "lib/apk/db/installed", content: "P:a\x1b[2J\nV:1\n\nP:" + strings.Repeat("a", maxText+1) + "\nV:1\n\nP:good\nV:1\n"}},
			[]string{"apk good 1 <lib/apk/db/installed>"}, nil},
		{"too large", []file{{name: "app/node_modules/x/package.json", content: `{"name":"x","version":"1"}` + strings.Repeat(" ", maxDocument)}},
			nil, []string{"app/node_modules/x/package.json has more than 1048576 bytes and is not read"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			image := Merge([]*Layer{mustScan(t, layerTar(t, test.files...))})
			if diff := cmp.Diff(test.want, found(image)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.notes, image.Notes); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// module is the package.json of a module.
func module(name string) file {
	return file{name: "node_modules/" + name + "/package.json", content: fmt.Sprintf(`{"name":%q,"version":"1"}`, name)}
}

func TestMergeHonoursWhiteouts(t *testing.T) {
	lower := []file{module("a"), module("b"), {name: "hard", kind: tar.TypeLink, link: "node_modules/b/package.json"}}
	a, b := "npm a 1 <node_modules/a/package.json>", "npm b 1 <hard node_modules/b/package.json>"
	tests := []struct {
		name  string
		above []file
		want  []string
	}{
		{"nothing", nil, []string{a, b}},
		{"a file deleted", []file{{name: "node_modules/a/.wh.package.json"}}, []string{b}},
		{"a folder deleted", []file{{name: "node_modules/.wh.b"}}, []string{a, "npm b 1 <hard>"}},
		{"a folder of folders deleted", []file{{name: ".wh.node_modules"}}, []string{"npm b 1 <hard>"}},
		{"an opaque folder", []file{{name: "node_modules/.wh..wh..opq"}, module("c")}, []string{"npm b 1 <hard>", "npm c 1 <node_modules/c/package.json>"}},
		{"an opaque root", []file{{name: ".wh..wh..opq"}}, nil},
		{"a file replaced", []file{{name: "node_modules/a/package.json", content: "{}"}}, []string{b}},
		{"a file replaced by an empty one", []file{{name: "node_modules/a/package.json"}}, []string{b}},
		{"a folder replaced by a link", []file{{name: "node_modules", kind: tar.TypeSymlink, link: "elsewhere"}}, []string{"npm b 1 <hard>"}},
		{"a folder once more", []file{{name: "node_modules/", kind: tar.TypeDir}, {name: "node_modules/a/", kind: tar.TypeDir}}, []string{a, b}},
		{"what AUFS kept for itself", []file{{name: ".wh..wh.node_modules"}, {name: ".wh..wh.plnk"}}, []string{a, b}},
		{"a name that only begins alike", []file{{name: "node_modules/.wh.a2"}, {name: ".wh.node"}}, []string{a, b}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			layers := []*Layer{mustScan(t, layerTar(t, lower...)), mustScan(t, layerTar(t, test.above...))}
			if diff := cmp.Diff(test.want, found(Merge(layers))); diff != "" {
				t.Error(diff)
			}
			// A deletion has no effect on what is above it.
			layers[0], layers[1] = layers[1], layers[0]
			if got := found(Merge(layers)); len(got) < 2 {
				t.Errorf("below, it left only %q", got)
			}
		})
	}
}

func TestLaterMembersOfALayerCount(t *testing.T) {
	image := Merge([]*Layer{mustScan(t, layerTar(t, module("a"), file{name: "node_modules/a/package.json", content: `{"name":"a","version":"2"}`}, module("b"),
		file{name: "node_modules/b/package.json", kind: tar.TypeSymlink, link: "x"}))})
	if diff := cmp.Diff([]string{"npm a 2 <node_modules/a/package.json>"}, found(image)); diff != "" {
		t.Error(diff)
	}
}

func TestDistribution(t *testing.T) {
	upper := mustScan(t, layerTar(t, file{name: "etc/os-release", content: "NAME=\"Mine\"\nID='mine'\n"}))
	lower := mustScan(t, layerTar(t, file{name: "usr/lib/os-release", content: "ID=debian\nVERSION_ID=\"12\"\n"}, file{name: "etc/os-release", kind: tar.TypeSymlink, link: "../usr/lib/os-release"}))
	for _, test := range []struct {
		layers []*Layer
		want   Distribution
	}{
		{[]*Layer{lower}, Distribution{"debian", "12"}},
		{[]*Layer{lower, upper}, Distribution{"mine", ""}},
		{nil, Distribution{}},
	} {
		if diff := cmp.Diff(test.want, Merge(test.layers).Distribution); diff != "" {
			t.Error(diff)
		}
	}
}

// TestCompression also has what follows the end of the tar read, which the digest covers.
func TestCompression(t *testing.T) {
	plain := append(layerTar(t, module("a")), make([]byte, 100_000)...)
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"plain": plain, "gzip": zipped.Bytes(), "zstd": encoder.EncodeAll(plain, nil)} {
		t.Run(name, func(t *testing.T) {
			r := bytes.NewReader(append(content, "left over"...))
			layer, err := Scan(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"npm a 1 <node_modules/a/package.json>"}, found(Merge([]*Layer{layer}))); diff != "" {
				t.Error(diff)
			}
			if r.Len() > 0 {
				t.Errorf("%d bytes were not read", r.Len())
			}
		})
	}
}

// TestDamage has layers that break off: what was found before stays, and a note says so.
func TestDamage(t *testing.T) {
	whole := layerTar(t, module("a"), module("b"))
	for name, content := range map[string][]byte{
		"cut":            whole[:520],
		"no tar":         append(bytes.Clone(whole[:1024]), bytes.Repeat([]byte("x"), 1024)...),
		"gzip, cut":      zipCut(t, whole),
		"zstd, no frame": {0x28, 0xb5, 0x2f, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff},
		"large window":   {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xb0, 0, 0, 0, 0}, // 4 TiB
	} {
		t.Run(name, func(t *testing.T) {
			layer := mustScan(t, content)
			if len(layer.Notes) != 1 || !strings.HasPrefix(layer.Notes[0], "it cannot be read to its end: ") {
				t.Errorf("the notes are %q", layer.Notes)
			}
		})
	}
}

func zipCut(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()[:b.Len()-20]
}

// TestReadErrors tells errors of the reader from faults of the layer.
func TestReadErrors(t *testing.T) {
	broken := errors.New("the disk is broken")
	whole := layerTar(t, module("a"))
	for _, n := range []int{0, 100, 600, len(whole)} {
		_, err := Scan(t.Context(), io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(broken)))
		if !errors.Is(err, broken) {
			t.Errorf("after %d bytes: %v", n, err)
		}
		if _, err := ScanFile(t.Context(), io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(broken))); !errors.Is(err, broken) {
			t.Errorf("a file, after %d bytes: %v", n, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Scan(ctx, bytes.NewReader(whole)); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestPrograms compares what is found in real programs with what debug/buildinfo finds.
func TestPrograms(t *testing.T) {
	goroot, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	programs := []string{os.Args[0], filepath.Join(strings.TrimSpace(string(goroot)), "bin", "go")}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		release, _, _ := strings.Cut(info.GoVersion, " ")
		want := []Package{{Type: Go, Name: "stdlib", Version: strings.TrimPrefix(release, "go")}}
		if info.Main.Path != "" {
			want = append(want, Package{Type: Go, Name: info.Main.Path, Version: strings.TrimSuffix(info.Main.Version, "(devel)")})
		}
		for _, m := range info.Deps {
			if m.Replace != nil && m.Replace.Version != "" {
				m = m.Replace
			}
			want = append(want, Package{Type: Go, Name: m.Path, Version: m.Version})
		}
		f, err := os.Open(program)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ScanFile(t.Context(), f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.SortSlices(func(a, b Package) bool { return a.compare(b) < 0 })); diff != "" {
			t.Errorf("%s: %s", filepath.Base(program), diff)
		}
	}
}

func TestCache(t *testing.T) {
	c := Cache{Folder: filepath.Join(t.TempDir(), "cache")}
	d := digest.FromString("layer")
	if _, ok := c.Load(d); ok {
		t.Error("something was found in an empty cache")
	}
	layer := mustScan(t, layerTar(t, module("a"), file{name: ".wh.b"}, file{name: "c/.wh..wh..opq"}, file{name: "var/lib/rpm/Packages", content: "x"}))
	if err := c.Store(d, layer); err != nil {
		t.Fatal(err)
	}
	got, ok := c.Load(d)
	if !ok {
		t.Fatal("it is not there")
	}
	if diff := cmp.Diff(layer, got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	info, err := os.Stat(c.path("layers", d))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its mode is %v, %v", info, err)
	}
	for _, damaged := range []string{"", "{", `{"unknown":1}`, `{"covers":"AAA="}`, `{"covers":"AAAAAAAAAAIAAAAAAAAAAQ=="}`, "{}{}"} {
		if err := os.WriteFile(c.path("layers", d), []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok := c.Load(d); ok {
			t.Errorf("%q was accepted", damaged)
		}
	}
	if err := (Cache{}).Store(d, layer); err != nil {
		t.Error(err)
	}
	if _, ok := (Cache{}).Load(d); ok {
		t.Error("something was found without a cache")
	}
}

// checkLayer fails unless everything in a layer is fit to be repeated.
func checkLayer(t *testing.T, layer *Layer) {
	t.Helper()
	if diff := cmp.Diff(Merge([]*Layer{layer}), Merge([]*Layer{layer, layer})); diff != "" {
		t.Errorf("upon itself, it makes a difference: %s", diff)
	}
	for _, f := range layer.Files {
		for _, p := range f.Packages {
			if !p.plausible() {
				t.Errorf("%q", p)
			}
		}
		if len(f.Paths) == 0 || len(f.Paths) > maxPaths {
			t.Errorf("%d paths", len(f.Paths))
		}
	}
	if len(layer.Notes) > maxNotes {
		t.Errorf("%d notes", len(layer.Notes))
	}
}

func FuzzScan(f *testing.F) {
	f.Add(layerTar(f, module("a"), file{name: "hard", kind: tar.TypeLink, link: "node_modules/a/package.json"}, file{name: ".wh.b"}))
	f.Add(layerTar(f, file{name: "var/lib/dpkg/status", content: dpkgStatus}, file{name: "lib/apk/db/installed", content: apkInstalled}, file{name: "x/.wh..wh..opq"}))
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xb0})
	f.Fuzz(func(t *testing.T, content []byte) { checkLayer(t, mustScan(t, content)) })
}

// FuzzFile reads one content as each kind of file.
func FuzzFile(f *testing.F) {
	names := []string{
		"var/lib/dpkg/status", "lib/apk/db/installed", "etc/os-release", "usr/share/doc/x/copyright",
		"x.dist-info/METADATA", "node_modules/x/package.json", "usr/bin/program", "var/lib/rpm/rpmdb.sqlite",
		"var/lib/rpm/Packages", "var/lib/rpm/Packages.db",
	}
	f.Add(rpmDatabase(f))
	for _, database := range olderRPMs() {
		f.Add(string(database))
	}
	f.Add(dpkgStatus)
	f.Add(apkInstalled)
	f.Add("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nLicense: MIT\n")
	f.Add(`{"name":"x","version":"1","license":{"type":"MIT"}}`)
	f.Add(string(smallProgram("go1.26.1", "path\tx\nmod\tx\tv1.0.0\t\ndep\ty\tv1.2.3\t\n")))
	f.Fuzz(func(t *testing.T, content string) {
		for _, name := range names {
			checkLayer(t, mustScan(t, layerTar(t, file{name: name, content: content})))
		}
	})
}
