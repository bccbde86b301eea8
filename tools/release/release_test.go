package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/liteboxd/boxlift/bundle/signature"
)

// inputs makes a folder with small programs and documents, whose files have the given time.
func inputs(t *testing.T, program string, modified time.Time) string {
	t.Helper()
	folder := t.TempDir()
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, content []byte) {
		name = filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{
		"linux-arm64/boxlift-node", "linux-arm64/boxlift", "linux-amd64/boxlift-node", "linux-amd64/boxlift", "darwin-arm64/boxlift",
		"linux-arm64/boxlift-keys", "linux-amd64/boxlift-keys", "darwin-arm64/boxlift-keys",
	} {
		put(name, content)
	}
	for _, name := range documents {
		put(name, []byte(name+"\n"))
	}
	for _, name := range []string{"boxlift.1", "boxlift-install.1"} {
		put(name, []byte(".TH "+name+"\n"))
	}
	return folder
}

// tinyProgram builds the least program that tells what it is made of.
func tinyProgram(t *testing.T, environment ...string) string {
	t.Helper()
	folder := t.TempDir()
	for name, content := range map[string]string{
		"go.mod": "module example.com/tiny\n\ngo 1.26\n", "main.go": "package main\n\nfunc main() {}\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", "tiny", ".")
	c.Dir = folder
	c.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0", "GOFIPS140=off")
	c.Env = append(c.Env, environment...)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(folder, "tiny")
}

func newSigner(t *testing.T) *signature.Signer {
	t.Helper()
	private, _, err := signature.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signature.LoadSigner(private, nil)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestRelease makes a release twice, at other times and from files of other times, and looks
// into it.
func TestRelease(t *testing.T) {
	program := tinyProgram(t)
	signer := newSigner(t)
	var sums []string
	var out string
	for i := range 2 {
		from := inputs(t, program, time.Date(2000+i, 1, 2, 3, 4, 5, 0, time.UTC))
		out = t.TempDir()
		r := release{
			version: "v0.1.0", commit: commit, time: time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC), programs: from, documents: from,
			manual: from, out: out,
			operators: []string{"linux-amd64", "linux-arm64", "darwin-arm64"}, signer: signer,
		}
		names, err := r.write(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := []string{
			"SHA256SUMS", "SHA256SUMS.sig", "SHA256SUMS.sigstore.json",
			"boxlift_v0.1.0.cdx.json", "boxlift_v0.1.0.provenance.json", "boxlift_v0.1.0_darwin-arm64.tar.gz", "boxlift_v0.1.0_image.tar",
			"boxlift_v0.1.0_linux-amd64.deb", "boxlift_v0.1.0_linux-amd64.rpm", "boxlift_v0.1.0_linux-amd64.tar.gz",
			"boxlift_v0.1.0_linux-arm64.deb", "boxlift_v0.1.0_linux-arm64.rpm", "boxlift_v0.1.0_linux-arm64.tar.gz",
		}
		slices.Sort(names)
		if diff := cmp.Diff(want, names); diff != "" {
			t.Error(diff)
		}
		var there []string
		entries, err := os.ReadDir(out)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			there = append(there, e.Name())
		}
		if diff := cmp.Diff(want, there); diff != "" {
			t.Errorf("what lies in the folder:\n%s", diff)
		}
		sums = append(sums, string(read(t, filepath.Join(out, "SHA256SUMS"))))
		for second := time.Now().Unix(); i == 0 && time.Now().Unix() == second; {
			time.Sleep(10 * time.Millisecond) // packages have whole seconds: one of the clock's would not show
		}
	}
	if diff := cmp.Diff(sums[0], sums[1]); diff != "" {
		t.Errorf("made a second time, it differs:\n%s", diff)
	}
	sum := func(name string) []byte { return read(t, filepath.Join(out, "SHA256SUMS"+name)) }
	if err := signature.Verify(signer.PublicKey(), sum(""), sum(".sigstore.json"), sum(".sig")); err != nil {
		t.Error(err)
	}
	t.Run("archive", func(t *testing.T) { checkArchive(t, filepath.Join(out, "boxlift_v0.1.0_darwin-arm64.tar.gz")) })
	t.Run("image", func(t *testing.T) { checkImage(t, filepath.Join(out, "boxlift_v0.1.0_image.tar")) })
	t.Run("modules", func(t *testing.T) { checkModules(t, filepath.Join(out, "boxlift_v0.1.0.cdx.json")) })
	t.Run("provenance", func(t *testing.T) { checkProvenance(t, out, sums[0]) })
	t.Run("deb", func(t *testing.T) { checkDeb(t, filepath.Join(out, "boxlift_v0.1.0_linux-arm64.deb")) })
}

// commit is what releases of tests are from.
const commit = "0123456789abcdef0123456789abcdef01234567"

// checkProvenance reads the statement as others do: it is about each file that the checksums have, but for
// itself, and names the commit, Go, and that there is no module of FIPS 140-3.
func checkProvenance(t *testing.T, out, sums string) {
	var s struct {
		Type          string `json:"_type"`
		PredicateType string
		Subject       []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				BuildType            string
				ExternalParameters   map[string]any
				ResolvedDependencies []struct {
					URI    string
					Digest map[string]string
				}
			}
			RunDetails struct {
				Builder struct {
					ID      string
					Version map[string]string
				}
			}
		}
	}
	if err := json.Unmarshal(read(t, filepath.Join(out, "boxlift_v0.1.0.provenance.json")), &s); err != nil {
		t.Fatal(err)
	}
	if s.Type != "https://in-toto.io/Statement/v1" || s.PredicateType != "https://slsa.dev/provenance/v1" {
		t.Errorf("a statement of the type %s, %s", s.Type, s.PredicateType)
	}
	var lines strings.Builder
	for _, one := range s.Subject {
		fmt.Fprintf(&lines, "%s  %s\n", one.Digest["sha256"], one.Name)
	}
	rest := regexp.MustCompile(`(?m)^.*provenance\.json\n`).ReplaceAllString(sums, "")
	if diff := cmp.Diff(rest, lines.String()); diff != "" {
		t.Errorf("what it is about is not what was made:\n%s", diff)
	}
	b := s.Predicate.BuildDefinition
	if len(b.ResolvedDependencies) != 1 || b.ResolvedDependencies[0].Digest["gitCommit"] != commit || b.BuildType == "" {
		t.Errorf("%+v", b)
	}
	want := map[string]any{"version": "v0.1.0", "platforms": []any{"linux-amd64", "linux-arm64", "darwin-arm64"}, "GOFIPS140": "off"}
	if diff := cmp.Diff(want, b.ExternalParameters); diff != "" {
		t.Error(diff)
	}
	if by := s.Predicate.RunDetails.Builder; by.ID == "" || by.Version["go"] != runtime.Version() {
		t.Errorf("%+v", by)
	}
}

// TestNoProvenance makes a release that is from no commit, and one of programs that are from two builds.
func TestNoProvenance(t *testing.T) {
	program := tinyProgram(t)
	from := inputs(t, program, time.Date(2000, 1, 2, 3, 4, 5, 0, time.UTC))
	r := release{
		version: "v0.1.0", time: time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC), programs: from, documents: from, manual: from, out: t.TempDir(),
		operators: []string{"linux-amd64"},
	}
	names, err := r.write(t.Context())
	if err != nil || slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, "provenance") }) {
		t.Errorf("%v, %v", names, err)
	}
	r.commit = commit
	other := read(t, tinyProgram(t, "GOFIPS140=latest"))
	if err := os.WriteFile(filepath.Join(from, "linux-arm64", "boxlift-node"), other, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := r.write(t.Context()); err == nil || !strings.Contains(err.Error(), "with GOFIPS140=latest") {
		t.Error(err)
	}
}

func checkArchive(t *testing.T, name string) {
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, strings.TrimSpace(fmt.Sprintf("%04o %s %s", h.Mode, h.Name, h.Linkname)))
	}
	const folder = "boxlift_v0.1.0_darwin-arm64/"
	want := []string{
		"0644 " + folder + "CHANGELOG.md", "0644 " + folder + "LICENSE", "0644 " + folder + "README.md",
		"0644 " + folder + "SECURITY.md", "0777 " + folder + "boxlift darwin-arm64/boxlift",
		"0755 " + folder + "darwin-arm64/boxlift", "0755 " + folder + "darwin-arm64/boxlift-keys",
		"0755 " + folder + "linux-amd64/boxlift", "0755 " + folder + "linux-amd64/boxlift-node",
		"0755 " + folder + "linux-arm64/boxlift", "0755 " + folder + "linux-arm64/boxlift-node",
		"0644 " + folder + "versions.lock",
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Error(diff)
	}
}

func checkImage(t *testing.T, name string) {
	folder := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xf", name, "-C", folder).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	top, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%v, %+v", err, manifest)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if manifest, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, d := range manifest.Manifests {
		platforms = append(platforms, d.Platform.String())
		image, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if got := (v1.Platform{OS: config.OS, Architecture: config.Architecture}).String(); got != d.Platform.String() {
			t.Errorf("the config says %s, the index %s", got, d.Platform)
		}
		layers, err := image.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%d layers, %v", len(layers), err)
		}
	}
	if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, platforms); diff != "" {
		t.Error(diff)
	}
}

func checkModules(t *testing.T, name string) {
	var document struct {
		Components []struct {
			Name string `json:"name"`
			PURL string `json:"purl"`
		} `json:"components"`
	}
	if err := json.Unmarshal(read(t, name), &document); err != nil {
		t.Fatal(err)
	}
	if len(document.Components) != 1 || !strings.HasPrefix(document.Components[0].PURL, "pkg:golang/stdlib@1.") {
		t.Errorf("%+v", document.Components)
	}
}

// checkDeb asks Debian's own program, where there is one.
func checkDeb(t *testing.T, name string) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("no dpkg-deb")
	}
	out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--info", name).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Architecture: arm64") || !strings.Contains(string(out), "Version: 0.1.0") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = exec.CommandContext(t.Context(), "dpkg-deb", "--contents", name).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"./usr/bin/boxlift -> ../lib/boxlift/linux-arm64/boxlift", "./usr/share/man/man1/boxlift.1.gz", "./usr/share/man/man1/boxlift-install.1.gz",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("there is no %s:\n%s", want, out)
		}
	}
	folder := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--extract", name, folder).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	z, err := gzip.NewReader(bytes.NewReader(read(t, filepath.Join(folder, "usr/share/man/man1/boxlift-install.1.gz"))))
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(z)
	if err != nil || string(page) != ".TH boxlift-install.1\n" || !z.ModTime.IsZero() || z.Name != "" {
		t.Errorf("%v, %q of %s, called %q", err, page, z.ModTime, z.Name)
	}
}

// TestNoManual: packages without the manual are none.
func TestNoManual(t *testing.T) {
	from := inputs(t, tinyProgram(t), time.Now())
	r := release{version: "v0.1.0", time: time.Unix(1, 0), programs: from, documents: from, manual: t.TempDir(), out: t.TempDir(), operators: []string{"linux-amd64"}}
	if names, err := r.write(t.Context()); err == nil || len(names) > 0 || !strings.Contains(err.Error(), "boxlift man") {
		t.Errorf("%v, %v", names, err)
	}
}

// TestMissing: a release without all of its programs is none.
func TestMissing(t *testing.T) {
	from := inputs(t, tinyProgram(t), time.Now())
	if err := os.Remove(filepath.Join(from, "linux-arm64", "boxlift-node")); err != nil {
		t.Fatal(err)
	}
	r := release{version: "v0.1.0", time: time.Unix(1, 0), programs: from, documents: from, manual: from, out: t.TempDir(), operators: []string{"linux-amd64"}}
	if names, err := r.write(t.Context()); err == nil || len(names) > 0 {
		t.Errorf("%v, %v", names, err)
	}
}
