package charts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	helm "helm.sh/helm/v4/pkg/registry"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/registry"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/upstream"
)

const hello = `apiVersion: v2
name: hello
version: 1.2.3+build.5
appVersion: 7
description: Says hello.
deprecated: true
maintainers: [{name: A, email: a@example.com}]
annotations: {a/b: "1"}
dependencies:
- {name: other, version: ">=1", repository: "", tags: [x], import-values: [a, {child: b, parent: c}]}
unknown: {to: Helm}
`

// archiveOf makes an archive of files.
func archiveOf(t testing.TB, files map[string]string) string {
	t.Helper()
	return string(smallbundle.Layer(t, files))
}

// helloArchive is a chart that Helm loads.
func helloArchive(t testing.TB) string {
	return archiveOf(t, map[string]string{
		"hello/Chart.yaml": hello, "hello/templates/a.yaml": "kind: ConfigMap\n",
		"hello/charts/other/Chart.yaml": "apiVersion: v2\nname: other\nversion: 1.0.0\n",
	})
}

func component(name, version, archive string) smallbundle.Component {
	return smallbundle.Component{Name: name, Version: version, Charts: []smallbundle.File{{Name: name, Content: archive}}}
}

// open makes a bundle of components and opens it.
func open(t testing.TB, components ...smallbundle.Component) *bundle.Reader {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, smallbundle.Bundle{Components: components})
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// TestHelmPulls serves a bundle with charts, Cilium's own among them, over TLS and with a login, as boxlift does, and
// has Helm's registry client list, pull and load them.
func TestHelmPulls(t *testing.T) {
	cilium, err := upstream.Chart("1.20.0")
	if err != nil {
		t.Fatal(err)
	}
	second := component("hello", "1.2.3+build.5", helloArchive(t))
	second.Files = []smallbundle.File{{Name: "hello-1.2.3+build.5.tgz.prov", Content: "signed by somebody"}}
	r := open(t, component("cilium", "1.20.0", string(cilium)), second)
	list, err := Of(r)
	if err != nil {
		t.Fatal(err)
	}
	beside, err := Layout(list)
	if err != nil {
		t.Fatal(err)
	}
	file, err := registry.NewFile(r.Whole(), beside)
	if err != nil {
		t.Fatal(err)
	}
	const user, password = "lan", "canary"
	server := httptest.NewTLSServer(registry.New(file, registry.Options{Secured: true,
		Auth: registry.Basic(user, sha256.Sum256([]byte(password))), Log: slog.New(slog.DiscardHandler)}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "https://")
	client := func(password string) *helm.Client {
		t.Helper()
		c, err := helm.NewClient(helm.ClientOptHTTPClient(server.Client()), helm.ClientOptBasicAuth(user, password),
			helm.ClientOptWriter(io.Discard), helm.ClientOptCredentialsFile(filepath.Join(t.TempDir(), "none.json")))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, want := range []struct{ name, version, archive, provenance string }{
		{"cilium", "1.20.0", string(cilium), ""},
		{"hello", "1.2.3+build.5", helloArchive(t), "signed by somebody"},
	} {
		repository := host + "/charts/" + want.name
		tags, err := client(password).Tags(repository)
		if diff := cmp.Diff([]string{want.version}, tags); err != nil || diff != "" {
			t.Errorf("tags of %s (-want +got): %v\n%s", want.name, err, diff)
		}
		pulled, err := client(password).Pull(repository+":"+want.version, helm.PullOptWithChart(true),
			helm.PullOptWithProv(want.provenance != ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := pulled.Chart.Digest; got != digest.FromString(want.archive).String() || string(pulled.Chart.Data) != want.archive {
			t.Errorf("%s: Helm pulls %s with %d bytes", want.name, got, len(pulled.Chart.Data))
		}
		if want.provenance != "" && string(pulled.Prov.Data) != want.provenance {
			t.Errorf("%s: its provenance is %q", want.name, pulled.Prov.Data)
		}
		loaded, err := loader.LoadArchive(bytes.NewReader(pulled.Chart.Data))
		if err != nil {
			t.Fatal(err)
		}
		if loaded.Name() != want.name || loaded.Metadata.Version != want.version {
			t.Errorf("Helm loads %s %s", loaded.Name(), loaded.Metadata.Version)
		}
		// What Helm itself would push.
		config, err := json.Marshal(loaded.Metadata)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(config), string(pulled.Config.Data)); diff != "" {
			t.Errorf("the config of %s (-want +got):\n%s", want.name, diff)
		}
		if _, err := client("wrong").Pull(repository + ":" + want.version); err == nil {
			t.Errorf("Helm pulls %s with a wrong password", want.name)
		}
	}

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v2/_catalog", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth(user, password)
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var catalog struct{ Repositories []string }
	if err := json.NewDecoder(response.Body).Decode(&catalog); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(catalog.Repositories, " ")
	if !strings.Contains(got, "charts/cilium charts/hello") || !strings.Contains(got, "boxlift/cilium/cilium-1.20.0.tgz") {
		t.Errorf("the catalogue is %s", got)
	}
}

// TestSameBytes makes the same manifests and the same layout of the same charts.
func TestSameBytes(t *testing.T) {
	r := open(t, component("hello", "1.2.3+build.5", helloArchive(t)))
	var last []byte
	for i := range 2 {
		list, err := Of(r)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := Layout(list)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(io.NewSectionReader(stored, 0, stored.Size()))
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && !bytes.Equal(content, last) {
			t.Error("the second time it has other bytes")
		}
		last = content
		// Nothing of the time or the place is in it: whoever has the archive can make it.
		want := strings.NewReplacer("ARCHIVE", digest.FromString(helloArchive(t)).Encoded(), "BYTES", strconv.Itoa(len(helloArchive(t))),
			"CONFIG", list[0].Config.Digest.Encoded(), "SIZE", strconv.FormatInt(list[0].Config.Size, 10)).Replace(helloManifest)
		if diff := cmp.Diff(want, string(list[0].Manifest.Content)); diff != "" {
			t.Errorf("the manifest (-want +got):\n%s", diff)
		}
	}
}

const helloManifest = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",` +
	`"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":"sha256:CONFIG","size":SIZE},` +
	`"layers":[{"mediaType":"application/vnd.cncf.helm.chart.content.v1.tar+gzip","digest":"sha256:ARCHIVE","size":BYTES}],` +
	`"annotations":{"org.opencontainers.image.title":"hello","org.opencontainers.image.version":"1.2.3+build.5"}}`

// TestHostileCharts leaves out what is no chart, or has a name that no repository has, and keeps the rest.
func TestHostileCharts(t *testing.T) {
	metadata := func(text string) string {
		return archiveOf(t, map[string]string{"x/Chart.yaml": text})
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	w := tar.NewWriter(z)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "x/a", Size: maxUnpacked, Mode: 0o644})
	_, written := io.CopyN(w, zeros{}, maxUnpacked)
	if err := errors.Join(err, written, w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, archive, want string }{
		{"no archive", "hello", "read the archive: "},
		{"cut off", helloArchive(t)[:200], "read the archive: unexpected EOF"},
		{"a bomb", bomb.String(), "it has more than 104857600 bytes, unpacked"},
		{"nothing", archiveOf(t, map[string]string{"x/a": ""}), "it has no Chart.yaml"},
		{"two", archiveOf(t, map[string]string{"x/Chart.yaml": hello, "y/Chart.yaml": hello}), "more than one Chart.yaml"},
		{"large", metadata(strings.Repeat("#\n", maxMetadata)), "Chart.yaml has 2097152 bytes"},
		{"no YAML", metadata("a: b: c"), "Chart.yaml: "},
		{"a key twice", metadata(hello + "name: other\n"), "Chart.yaml: "},
		{"two documents", metadata(hello + "---\nname: x\n"), "Chart.yaml: it has more than one document"},
		{"empty", metadata(""), "Chart.yaml lacks one of name, version and apiVersion"},
		{"a folder", metadata("{apiVersion: v2, name: ../../v2, version: 1.0.0}"), `the chart's name "../../v2" is none`},
		{"capitals", metadata("{apiVersion: v2, name: Cilium, version: 1.0.0}"), `the chart's name "Cilium" is none`},
		{"a line", metadata(`{apiVersion: v2, name: "a\nb", version: 1.0.0}`), `the chart's name "a\nb" is none`},
		{"a list", metadata("{apiVersion: v2, name: [a], version: 1.0.0}"), "Chart.yaml: "},
		{"a version", metadata("{apiVersion: v2, name: a, version: 1.0/../2}"), "the chart's version "},
		{"keys that JSON has not", metadata("{apiVersion: v2, name: a, version: 1.0.0, dependencies: [{import-values: [{1: 2}]}]}"),
			"as JSON: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := open(t, component("bad", "1", c.archive), component("hello", "1.2.3+build.5", helloArchive(t)))
			list, err := Of(r)
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.HasPrefix(err.Error(), "chart bad-1.tgz of the component bad: ") {
				t.Errorf("it says %v, expected %q", err, c.want)
			}
			if len(list) != 1 || list[0].Name != "hello" {
				t.Errorf("there are %d charts", len(list))
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestOneChartTwice has a chart in two components, and another one of its name and version in a third.
func TestOneChartTwice(t *testing.T) {
	other := archiveOf(t, map[string]string{"hello/Chart.yaml": hello, "hello/more": ""})
	list, err := Of(open(t, component("a", "1", helloArchive(t)), component("b", "1", helloArchive(t)), component("c", "1", other)))
	const want = "chart c-1.tgz of the component c: a-1.tgz of the component a is the chart hello 1.2.3+build.5 too, and another one"
	if err == nil || err.Error() != want {
		t.Errorf("it says %v, expected %q", err, want)
	}
	if len(list) != 1 || list[0].File.Component != "a" {
		t.Errorf("the charts are %v", list)
	}
}

// FuzzMetadata reads whatever calls itself Chart.yaml, and whatever calls itself an archive.
func FuzzMetadata(f *testing.F) {
	f.Add([]byte(hello), []byte(helloArchive(f)))
	f.Add([]byte("{apiVersion: v2, name: &a [*a], version: 1}"), []byte("\x1f\x8b"))
	f.Add([]byte("{apiVersion: 1, name: 2, version: 3, dependencies: [null, {import-values: [{? {} : 1}]}]}"), []byte{})
	f.Fuzz(func(t *testing.T, text, archive []byte) {
		for _, a := range [][]byte{archive, []byte(archiveOf(t, map[string]string{"x/Chart.yaml": string(text)}))} {
			m, err := readMetadata(a)
			if err != nil {
				continue
			}
			config, err := newMade(ConfigMediaType, m)
			if err == nil && !json.Valid(config.Content) {
				t.Errorf("the config is %q", config.Content)
			}
		}
	})
}
