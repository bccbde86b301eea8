// Package smallbundle makes whole bundles of a few kilobytes, for tests of what reads
// them. Nothing is fetched, and the same description gives the same bytes.
package smallbundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/test/ocilayout"
)

// Bundle describes a bundle for linux/amd64 and linux/arm64.
type Bundle struct {
	// Validity is what its lock says of when and where to use it.
	Validity   lock.Validity
	Components []Component
	// Signer signs it; nil leaves it unsigned.
	Signer *signature.Signer
	// Trust is the trust file that travels in it; nil for none.
	Trust *trust.File
}

// Component is one component of the lock.
type Component struct {
	Name, Version string
	Files         []File
	Charts        []File
	Images        []Image
	Packages      []Packages
}

// Packages are OS packages that the lock names for hosts of a release of Debian.
type Packages struct {
	Suite    string // "bookworm"
	Platform string // "linux/amd64"
	// Packages have the content as their bytes; the first is asked for.
	Packages []Package
}

// Package is an OS package, at https://example.com/pool/ and its file's name.
type Package struct{ Name, Version, Architecture, Content string }

func (p Package) pinned() lock.OSPackage {
	one := lock.OSPackage{Name: p.Name, Version: p.Version, Architecture: p.Architecture,
		SHA256: digest.FromString(p.Content).Encoded(), Size: int64(len(p.Content))}
	one.URL = "https://example.com/pool/" + strings.ReplaceAll(one.FileName(), "+", "%2B")
	return one
}

// File is a file that the lock names, at https://example.com/NAME.
type File struct {
	Name     string
	Platform string // "": for all
	Content  string
}

// Image is an image that the lock names, with an index.
type Image struct {
	Ref       string
	Platforms []Platform
}

// Platform is what an image is on one platform.
type Platform struct {
	Name   string // "linux/amd64"
	Layers [][]byte
	Labels map[string]string
}

// Layer makes a layer, compressed with gzip, of regular files.
func Layer(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(
			&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Write makes a bundle at path.
func Write(t testing.TB, path string, b Bundle) {
	t.Helper()
	w := &writer{t: t, have: make(map[digest.Digest]bool)}
	lock := w.lock(b)
	w.blob("application/vnd.oci.empty.v1+json", []byte("{}"))
	w.file(bundle.LockComponent, "", File{Name: "versions.lock", Content: lock}, "application/vnd.boxlift.lock.v1+yaml",
		artifactType, nil)
	for _, platform := range platforms {
		w.file(bundle.ProgramsComponent, version,
			File{Name: bundle.NodeProgram, Platform: platform, Content: "boxlift-node for " + platform}, fileType,
			artifactType, nil)
	}
	for _, c := range b.Components {
		for _, f := range c.Files {
			w.file(c.Name, c.Version, f, fileType, artifactType, nil)
		}
		for _, f := range c.Charts {
			f.Name += "-" + c.Version + ".tgz"
			w.file(c.Name, c.Version, f, "application/vnd.cncf.helm.chart.content.v1.tar+gzip", artifactType, nil)
		}
		for _, image := range c.Images {
			w.image(c, image)
		}
		for _, set := range c.Packages {
			w.packages(c, set)
		}
	}
	announced := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		ArtifactType: format.ArtifactType,
		Manifests:    w.entries, Annotations: map[string]string{format.AnnotationVersion: version},
	}
	for key, text := range map[string]string{
		format.AnnotationSerial: b.Validity.SerialText(), format.AnnotationAudience: b.Validity.AudienceText(),
		format.AnnotationNotAfter: b.Validity.NotAfterText(),
	} {
		if text != "" {
			announced.Annotations[key] = text
		}
	}
	index := w.marshal(announced)
	members := []ocitar.Member{{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(index))}}
	contents := [][]byte{[]byte(ocitar.LayoutContent), index}
	if b.Signer != nil {
		s, err := b.Signer.Sign(index)
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, ocitar.Member{Name: ocitar.SigstoreBundleFile, Size: int64(len(s.Bundle))},
			ocitar.Member{Name: ocitar.SignatureFile, Size: int64(len(s.Base64))})
		contents = append(contents, s.Bundle, s.Base64)
	}
	if b.Trust != nil {
		content := encode(t, b.Trust)
		members = append(members, ocitar.Member{Name: ocitar.TrustFile, Size: int64(len(content))})
		contents = append(contents, content)
	}
	if err := os.WriteFile(path, ocilayout.Tar(t, append(members, w.members...), append(contents, w.contents...)),
		0o600); err != nil {
		t.Fatal(err)
	}
}

func encode(t testing.TB, f *trust.File) []byte {
	t.Helper()
	content, err := f.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return content
}

const (
	version  = "v0.0.0-test"
	fileType = "application/octet-stream"

	artifactType = "application/vnd.boxlift.file.v1"
)

var platforms = []string{"linux/amd64", "linux/arm64"}

// writer collects the blobs of a bundle.
type writer struct {
	t        testing.TB
	entries  []ocispec.Descriptor
	members  []ocitar.Member
	contents [][]byte
	have     map[digest.Digest]bool
}

func (w *writer) marshal(v any) []byte {
	w.t.Helper()
	content, err := json.Marshal(v)
	if err != nil {
		w.t.Fatal(err)
	}
	return content
}

func (w *writer) blob(mediaType string, content []byte) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
	if !w.have[d.Digest] {
		w.have[d.Digest] = true
		w.members = append(w.members, ocitar.Blob(d.Digest, d.Size))
		w.contents = append(w.contents, content)
	}
	return d
}

// lock writes the lock that pins everything in the bundle.
func (w *writer) lock(b Bundle) string {
	var s strings.Builder
	s.WriteString("apiVersion: boxlift.dev/v1\nkind: Lock\n")
	if v := b.Validity; v.Serial != 0 {
		fmt.Fprintf(&s, "serial: %d\n", v.Serial)
	}
	if v := b.Validity; v.Audience != nil {
		fmt.Fprintf(&s, "audience: [\"%s\"]\n", strings.Join(v.Audience, `", "`))
	}
	if v := b.Validity; !v.NotAfter.IsZero() {
		fmt.Fprintf(&s, "notAfter: %s\n", v.NotAfterText())
	}
	fmt.Fprintf(&s, "platforms: [%s]\ncomponents:\n", strings.Join(platforms, ", "))
	for _, c := range b.Components {
		fmt.Fprintf(&s, "  %s:\n    version: %s\n", c.Name, c.Version)
		list := func(name string, files []File) {
			for i, f := range files {
				if i == 0 {
					fmt.Fprintf(&s, "    %s:\n", name)
				}
				platform := ""
				if f.Platform != "" {
					platform = "platform: " + f.Platform + ", "
				}
				fmt.Fprintf(&s, "      - {name: %s, %surl: \"https://example.com/%s\", sha256: %x, size: %d}\n", f.Name,
					platform, f.Name, sha256.Sum256([]byte(f.Content)), len(f.Content))
			}
		}
		list("files", c.Files)
		list("charts", c.Charts)
		for i, image := range c.Images {
			if i == 0 {
				s.WriteString("    images:\n")
			}
			fmt.Fprintf(&s, "      - {ref: %q, digest: %s}\n", image.Ref, w.imageIndex(image).Digest)
		}
		lockPackages(&s, c)
	}
	return s.String()
}

// lockPackages writes what the lock of a component says of its packages.
func lockPackages(s *strings.Builder, c Component) {
	for i, set := range c.Packages {
		if i == 0 {
			s.WriteString("    packages:\n")
		}
		fmt.Fprintf(s, "      - family: debian\n        suite: %s\n        platform: %s\n        archives: [{url: "+
			"https://example.com, suite: %s, components: [main]}]\n        keyring: file:keys.gpg\n        base: important\n"+
			"        names: [%s]\n        contents:\n", set.Suite, set.Platform, set.Suite, set.Packages[0].Name)
		for _, p := range set.Packages {
			one := p.pinned()
			fmt.Fprintf(s, "          - {name: %s, version: %q, architecture: %s, url: %q, sha256: %s, size: %d}\n", one.Name,
				one.Version, one.Architecture, one.URL, one.SHA256, one.Size)
		}
	}
}

func (w *writer) packages(c Component, set Packages) {
	for i, p := range set.Packages {
		annotations := map[string]string{
			"dev.boxlift.os.family": "debian", "dev.boxlift.os.suite": set.Suite, "dev.boxlift.package.name": p.Name,
			"dev.boxlift.package.version": p.Version, "dev.boxlift.package.architecture": p.Architecture,
		}
		if i == 0 {
			annotations["dev.boxlift.package.asked"] = "true"
		}
		w.file(c.Name, c.Version, File{Name: p.pinned().FileName(), Platform: set.Platform, Content: p.Content},
			"application/vnd.debian.binary-package", "application/vnd.boxlift.package.v1", annotations)
	}
}

func (w *writer) entry(d ocispec.Descriptor, component, version string, annotations map[string]string) {
	d.Annotations = map[string]string{format.AnnotationComponent: component}
	if version != "" {
		d.Annotations[format.AnnotationVersion] = version
	}
	maps.Copy(d.Annotations, annotations)
	w.entries = append(w.entries, d)
}

func (w *writer) file(
	component, version string, f File, mediaType, artifactType string, annotations map[string]string,
) {
	layer := w.blob(mediaType, []byte(f.Content))
	layer.Annotations = map[string]string{ocispec.AnnotationTitle: f.Name}
	d := w.blob(ocispec.MediaTypeImageManifest, w.marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: artifactType,
		Config: ocispec.Descriptor{MediaType: ocispec.DescriptorEmptyJSON.MediaType,
			Digest: ocispec.DescriptorEmptyJSON.Digest, Size: ocispec.DescriptorEmptyJSON.Size},
		Layers: []ocispec.Descriptor{layer},
	}))
	d.ArtifactType = artifactType
	if f.Platform != "" {
		os, architecture, _ := strings.Cut(f.Platform, "/")
		d.Platform = &ocispec.Platform{OS: os, Architecture: architecture}
	}
	all := map[string]string{ocispec.AnnotationTitle: f.Name}
	maps.Copy(all, annotations)
	w.entry(d, component, version, all)
}

func (w *writer) image(c Component, image Image) {
	w.entry(w.imageIndex(image), c.Name, c.Version,
		map[string]string{format.AnnotationImageName: image.Ref, ocispec.AnnotationRefName: image.Ref})
}

func (w *writer) imageIndex(image Image) ocispec.Descriptor {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, p := range image.Platforms {
		os, architecture, _ := strings.Cut(p.Name, "/")
		platform := ocispec.Platform{OS: os, Architecture: architecture}
		config := ocispec.Image{Platform: platform, Config: ocispec.ImageConfig{Labels: p.Labels},
			RootFS: ocispec.RootFS{Type: "layers"}}
		var layers []ocispec.Descriptor
		for _, layer := range p.Layers {
			layers = append(layers, w.blob(ocispec.MediaTypeImageLayerGzip, layer))
			config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, diffID(w.t, layer))
		}
		d := w.blob(ocispec.MediaTypeImageManifest, w.marshal(ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
			Config: w.blob(ocispec.MediaTypeImageConfig, w.marshal(config)), Layers: layers,
		}))
		d.Platform = &platform
		index.Manifests = append(index.Manifests, d)
	}
	return w.blob(ocispec.MediaTypeImageIndex, w.marshal(index))
}

func diffID(t testing.TB, layer []byte) digest.Digest {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		return digest.FromBytes(layer) // no layer that anybody unpacks
	}
	d, err := digest.FromReader(z)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Build makes a bundle by building it as the command does, without a network: what Write
// makes supplies all of it. A base makes a delta.
func Build(t testing.TB, path string, b Bundle, since *plan.Base, change ...func(*build.Options)) *build.Result {
	t.Helper()
	dir := t.TempDir()
	everything := filepath.Join(dir, "everything.tar")
	signer := b.Signer
	b.Signer = nil
	Write(t, everything, b)
	r, err := bundle.Open(everything)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // it was only read
	o := PlanOptions(t, r)
	o.Since = since
	planned, err := plan.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	output := build.Options{Path: path, Signer: signer}
	if b.Trust != nil {
		output.Trust = encode(t, b.Trust)
	}
	for _, f := range change {
		f(&output)
	}
	result, err := build.Write(t.Context(), planned, output)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// PlanOptions are those of a build of a bundle from itself. What it does not supply cannot be fetched.
func PlanOptions(t testing.TB, r *bundle.Reader) plan.Options {
	t.Helper()
	l, content, err := r.Lock()
	if err != nil {
		t.Fatal(err)
	}
	// Nobody listens there.
	mirrors := []source.Mirror{{Host: "example.com", Endpoint: "127.0.0.1:1"}}
	for _, c := range l.Components {
		for _, image := range c.Images {
			host, _, _ := strings.Cut(image.Ref, "/")
			mirrors = append(mirrors, source.Mirror{Host: host, Endpoint: "127.0.0.1:1"})
		}
	}
	o := plan.Options{
		Lock: l, LockName: "versions.lock", LockContent: content, Version: version, AllowMovedTags: true,
		Source: source.New(source.Options{MaxTries: 1, Mirrors: mirrors}), Reuse: []*bundle.Reader{r},
	}
	dir := t.TempDir()
	for _, platform := range l.Platforms {
		name := filepath.Join(dir, bundle.NodeProgram+"-"+platform.Architecture())
		if err := os.WriteFile(name, []byte("boxlift-node for "+platform), 0o600); err != nil {
			t.Fatal(err)
		}
		o.Programs = append(o.Programs, plan.Program{Name: bundle.NodeProgram, Platform: platform, Path: name})
	}
	return o
}
