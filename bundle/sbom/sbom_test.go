package sbom

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	"github.com/package-url/packageurl-go"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/packages"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

var update = flag.Bool("update", false, "write the golden files")

// write makes a bundle with one of everything, and returns its path.
func write(t *testing.T, change ...func(*smallbundle.Bundle)) string {
	t.Helper()
	base := smallbundle.Layer(t, map[string]string{
		"etc/os-release":                "ID=debian\nVERSION_ID=\"12\"\n",
		"var/lib/dpkg/status":           "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nSource: glibc\nVersion: 2.36-9+deb12u10\n\nPackage: adduser\nVersion: 3.134\nStatus: install ok installed\nArchitecture: all\n",
		"usr/share/doc/libc6/copyright": "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nLicense: LGPL-2.1+\n",
	})
	node := smallbundle.Layer(t, map[string]string{
		"app/node_modules/@a/b/package.json":                         `{"name":"@a/b","version":"1.0.0","license":"(MIT OR ISC)"}`,
		"usr/lib/python3/dist-packages/Two_Words.dist-info/METADATA": "Name: Two_Words\nVersion: 3\nLicense: my own\n",
		"var/lib/rpm/rpmdb.sqlite":                                   "SQLite",
	})
	alpine := smallbundle.Layer(t, map[string]string{
		"etc/os-release":       "ID=alpine\nVERSION_ID=3.22.1\n",
		"lib/apk/db/installed": "P:musl\nV:1.2.5-r9\nA:aarch64\nL:MIT\n\n",
	})
	deleted := smallbundle.Layer(t, map[string]string{"app/.wh.node_modules": ""})
	labels := map[string]string{"org.opencontainers.image.licenses": "Apache-2.0"}
	b := smallbundle.Bundle{Components: []smallbundle.Component{
		{
			Name: "k3s", Version: "v1.36.4+k3s1",
			Files:  []smallbundle.File{{Name: "k3s", Platform: "linux/amd64", Content: "k3s"}, {Name: "install.sh", Content: "#!/bin/sh\n"}},
			Images: []smallbundle.Image{{Ref: "docker.io/rancher/mirrored-pause:3.10", Platforms: []smallbundle.Platform{{Name: "linux/amd64", Layers: [][]byte{base}, Labels: labels}, {Name: "linux/arm64", Layers: [][]byte{alpine}}}}},
		},
		{Name: "os-packages", Version: "2026.11", Packages: []smallbundle.Packages{
			{Suite: "bookworm", Platform: "linux/amd64", Packages: []smallbundle.Package{
				{Name: "chrony", Version: "1:4.3-2+deb12u1", Architecture: "amd64", Content: "chrony"},
				{Name: "ucf", Version: "3.0043+nmu1", Architecture: "all", Content: "ucf"},
			}},
			{Suite: "trixie", Platform: "linux/amd64", Packages: []smallbundle.Package{
				{Name: "ucf", Version: "3.0043+nmu1", Architecture: "all", Content: "ucf"},
			}},
		}},
		{Name: "cilium", Version: "1.20.0", Charts: []smallbundle.File{{Name: "cilium", Content: "chart"}}},
		{
			Name: "liteboxd", Version: "v0.6.10",
			Images: []smallbundle.Image{
				{Ref: "ghcr.io/fslongjin/web:v0.6.10", Platforms: []smallbundle.Platform{{Name: "linux/amd64", Layers: [][]byte{base, node}}}},
				{Ref: "registry.lan:5000/web:small", Platforms: []smallbundle.Platform{{Name: "linux/amd64", Layers: [][]byte{base, node, deleted}}}},
			},
		},
	}}
	for _, f := range change {
		f(&b)
	}
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, b)
	return path
}

func mustMake(t *testing.T, path string, o Options) []byte {
	t.Helper()
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	bom, err := Make(t.Context(), r, o)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Write(&b, bom); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestDocument compares a whole document with what it is to be, and that with CycloneDX'
// own schema.
func TestDocument(t *testing.T) {
	got := mustMake(t, write(t), Options{Version: "v0.0.0-test"})
	validate(t, got)
	golden := filepath.Join("testdata", "everything.golden")
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
}

// TestReferences checks what no schema can: that names are unique, that everything is
// reached from the bundle, and that package URLs are what their specification makes of them.
func TestReferences(t *testing.T) {
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(mustMake(t, write(t), Options{})), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{bundleRef: true}
	for _, c := range *bom.Components {
		if known[c.BOMRef] {
			t.Errorf("%s is there twice", c.BOMRef)
		}
		known[c.BOMRef] = true
		if c.PackageURL == "" {
			continue
		}
		parsed, err := packageurl.FromString(c.PackageURL)
		if err != nil {
			t.Errorf("%s: %v", c.PackageURL, err)
		} else if got := parsed.ToString(); got != c.PackageURL {
			t.Errorf("%s is written as %s", c.PackageURL, got)
		}
	}
	reached := map[string]bool{bundleRef: true}
	for changed := true; changed; {
		changed = false
		for _, d := range *bom.Dependencies {
			if d.Dependencies == nil || !reached[d.Ref] {
				continue
			}
			for _, on := range *d.Dependencies {
				if !known[on] {
					t.Errorf("%s depends on %s, which is not there", d.Ref, on)
				}
				changed = changed || !reached[on]
				reached[on] = true
			}
		}
	}
	for ref := range known {
		if !reached[ref] {
			t.Errorf("%s is reached from nowhere", ref)
		}
	}
}

// schemas is the folder of CycloneDX' JSON schemas, which the library comes with.
func schemas(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "schema")
}

func validate(t *testing.T, text []byte) {
	t.Helper()
	folder := schemas(t)
	compiler := jsonschema.NewCompiler()
	for url, name := range map[string]string{
		"http://cyclonedx.org/schema/bom-1.6.schema.json":  "bom-1.6.schema.json",
		"http://cyclonedx.org/schema/spdx.schema.json":     "spdx.schema.json",
		"http://cyclonedx.org/schema/jsf-0.82.schema.json": "jsf-0.82.schemax.json",
	} {
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		if err := compiler.AddResource(url, schema); err != nil {
			t.Fatal(err)
		}
	}
	compiler.AssertFormat()
	schema, err := compiler.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%#v", err)
	}
	// The schema refuses what it should.
	object := value.(map[string]any)
	object["serialNumber"] = "urn:uuid:none"
	if schema.Validate(object) == nil {
		t.Error("the schema accepts anything")
	}
}

func TestIdentifiersAreSPDX(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(schemas(t), "spdx.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Enum []string `json:"enum"`
	}
	if err := json.Unmarshal(content, &list); err != nil {
		t.Fatal(err)
	}
	for _, id := range slices.Concat(spdx, exceptions) {
		if !slices.Contains(list.Enum, id) {
			t.Errorf("%s is no identifier", id)
		}
	}
}

func TestLicenses(t *testing.T) {
	tests := []struct{ stated, id, expression, name string }{
		{stated: ""},
		{stated: "MIT", id: "MIT"},
		{stated: " MIT ", id: "MIT"},
		{stated: "GPL-2.0-only AND (MIT OR ISC)", expression: "GPL-2.0-only AND (MIT OR ISC)"},
		{stated: "GPL-2.0-or-later WITH Classpath-exception-2.0", expression: "GPL-2.0-or-later WITH Classpath-exception-2.0"},
		{stated: "GPL-2+", name: "GPL-2+"},
		{stated: "MIT AND", name: "MIT AND"},
		{stated: "MIT ISC", name: "MIT ISC"},
		{stated: "(MIT", name: "(MIT"},
		{stated: "MIT)", name: "MIT)"},
		{stated: "()", name: "()"},
		{stated: "(MIT) WITH LLVM-exception", name: "(MIT) WITH LLVM-exception"},
		{stated: "MIT WITH MIT", name: "MIT WITH MIT"},
		{stated: "MIT AND custom", name: "MIT AND custom"},
	}
	for _, test := range tests {
		var id, expression, name string
		if got := licenses(test.stated); got != nil {
			expression = (*got)[0].Expression
			if l := (*got)[0].License; l != nil {
				id, name = l.ID, l.Name
			}
		}
		if id != test.id || expression != test.expression || name != test.name {
			t.Errorf("%q: id %q, expression %q, name %q", test.stated, id, expression, name)
		}
	}
}

// TestCacheMakesNoDifference also proves that it saves the reading: with the blobs damaged,
// nobody notices.
func TestCacheMakesNoDifference(t *testing.T) {
	path := write(t)
	o := Options{Cache: packages.Cache{Folder: filepath.Join(t.TempDir(), "cache")}}
	want := mustMake(t, path, Options{})
	for range 2 {
		if diff := cmp.Diff(string(want), string(mustMake(t, path, o))); diff != "" {
			t.Fatal(diff)
		}
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(content, []byte("#!/bin/sh\n"))
	content[at] = 'X'
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(mustMake(t, path, o))); diff != "" {
		t.Error(diff)
	}
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := Make(t.Context(), r, Options{}); !errors.Is(err, bundle.ErrInvalid) {
		t.Errorf("without a cache: %v", err)
	}
}

// meter counts what is read.
type meter struct{ total, done atomic.Int64 }

func (m *meter) Message(string) {}
func (m *meter) Task(_ string, total int64) progress.Task {
	m.total.Add(total)
	return meterTask{progress.Discard.Task("", total), m}
}

type meterTask struct {
	progress.Task
	meter *meter
}

func (t meterTask) Add(n int64) { t.meter.done.Add(n) }

// TestEachBlobIsReadOnce has layers that several images share.
func TestEachBlobIsReadOnce(t *testing.T) {
	path := write(t)
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	unique, every := make(map[string]int64), int64(0)
	for _, f := range contents.Files {
		if f.IsOSPackage() {
			continue // what it is stands in index.json
		}
		unique[f.Digest.String()] = f.Size
		every += f.Size
	}
	for _, image := range contents.Images {
		for _, p := range image.Platforms {
			for _, d := range p.Layers {
				unique[d.Digest.String()] = d.Size
				every += d.Size
			}
		}
	}
	var want int64
	for _, size := range unique {
		want += size
	}
	var m meter
	_ = mustMake(t, path, Options{Reporter: &m})
	if m.total.Load() != want || m.done.Load() != want || want == every {
		t.Errorf("announced %d and read %d bytes, the blobs have %d, and %d with repetitions", m.total.Load(),
			m.done.Load(), want, every)
	}
}

// TestUnreadableLayers are no reason to say nothing.
func TestUnreadableLayers(t *testing.T) {
	path := write(t, func(b *smallbundle.Bundle) {
		b.Components[0].Images[0].Platforms[0].Layers = [][]byte{[]byte("\x1f\x8b no gzip")}
	})
	var bom cdx.BOM
	if err := json.Unmarshal(mustMake(t, path, Options{}), &bom); err != nil {
		t.Fatal(err)
	}
	var incomplete []cdx.BOMReference
	for _, c := range *bom.Compositions {
		incomplete = append(incomplete, *c.Dependencies...)
	}
	if !slices.Contains(incomplete, "image/docker.io/rancher/mirrored-pause:3.10/linux/amd64") {
		t.Errorf("incomplete: %q", incomplete)
	}
}

func TestPackageURLs(t *testing.T) {
	rhel := packages.Distribution{ID: "rhel", Version: "9.4"}
	for _, test := range []struct {
		packages.Package
		of   packages.Distribution
		want string
	}{
		{
			packages.Package{Type: packages.Debian, Name: "libc6", Version: "2.36-9+deb12u10", Architecture: "amd64", Source: "glibc"}, packages.Distribution{},
			"pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&upstream=glibc",
		},
		{
			packages.Package{Type: packages.RPM, Name: "dbus-libs", Version: "1:1.12.20-8.el9", Architecture: "x86_64", Source: "dbus"}, rhel,
			"pkg:rpm/redhat/dbus-libs@1.12.20-8.el9?arch=x86_64&distro=rhel-9.4&epoch=1&upstream=dbus-1.12.20-8.el9.src.rpm",
		},
		{
			packages.Package{Type: packages.RPM, Name: "a", Version: "1-2", Source: "b", SourceVersion: "3-4"}, packages.Distribution{ID: "fedora"},
			"pkg:rpm/fedora/a@1-2?upstream=b-3-4.src.rpm",
		},
	} {
		if got := urlOf(test.Package, test.of); got != test.want {
			t.Errorf("got %s, expected %s", got, test.want)
		}
	}
}
