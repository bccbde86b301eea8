package bundle_test

import (
	"errors"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/test/bundletest"
)

// TestPackageEntries refuses packages that do not say what they are, or what they say is not fit to be shown.
func TestPackageEntries(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*ocispec.Descriptor)
		want   string // "" for none
	}{
		"good":       {func(*ocispec.Descriptor) {}, ""},
		"no family":  {func(d *ocispec.Descriptor) { delete(d.Annotations, format.AnnotationFamily) }, "does not say for which hosts"},
		"no suite":   {func(d *ocispec.Descriptor) { delete(d.Annotations, format.AnnotationSuite) }, "does not say for which hosts"},
		"no name":    {func(d *ocispec.Descriptor) { delete(d.Annotations, format.AnnotationPackage) }, "does not say for which hosts"},
		"no version": {func(d *ocispec.Descriptor) { d.Annotations[format.AnnotationPackageVersion] = "" }, "does not say for which hosts"},
		"no architecture": {func(d *ocispec.Descriptor) { delete(d.Annotations, format.AnnotationPackageArchitecture) },
			"does not say for which hosts"},
		"no platform": {func(d *ocispec.Descriptor) { d.Platform = nil }, "has no platform"},
		"terminal":    {func(d *ocispec.Descriptor) { d.Annotations[format.AnnotationSuite] = "a\x1b[2J" }, "characters that no name has"},
		"folder": {func(d *ocispec.Descriptor) { d.Annotations[ocispec.AnnotationTitle] = "../a.deb" },
			"is not the name of a file"},
	} {
		t.Run(name, func(t *testing.T) {
			crafted := bundletest.Craft()
			crafted.AddFile("a", "p_1_all.deb", format.PackageArtifactType, format.DebianMediaType, []byte("a package"))
			d := &crafted.Index.Manifests[len(crafted.Index.Manifests)-1]
			d.Platform = &ocispec.Platform{OS: "linux", Architecture: "amd64"}
			for key, value := range map[string]string{
				format.AnnotationFamily: "debian", format.AnnotationSuite: "bookworm", format.AnnotationPackage: "p",
				format.AnnotationPackageVersion: "1", format.AnnotationPackageArchitecture: "all",
			} {
				d.Annotations[key] = value
			}
			c.change(d)
			path := t.TempDir() + "/b.tar"
			bundletest.MustWrite(t, path, crafted.Tar(t, nil))
			contents, err := bundletest.MustOpen(t, path).Contents()
			if c.want != "" {
				if !errors.Is(err, bundle.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, expected %s", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := contents.HostPackages("debian", "bookworm", "linux/amd64"); len(got) != 1 ||
				got[0].Filename != "p_1_all.deb" {
				t.Errorf("got %+v", got)
			}
			if f := contents.Files[len(contents.Files)-1]; !f.IsOSPackage() || f.Package.Asked {
				t.Errorf("got %+v", f)
			}
			if _, ok := contents.File("a", "p_1_all.deb", "linux/amd64"); ok {
				t.Error("a package is no file that is found by its name alone")
			}
		})
	}
}

// TestPackageOfTheLock misses what the lock lists, and takes nothing of another release for it.
func TestPackageOfTheLock(t *testing.T) {
	for suite, isThere := range map[string]bool{"bookworm": true, "trixie": false} {
		crafted := bundletest.Craft()
		crafted.Index.Manifests = nil
		crafted.AddFile("a", "p_1_all.deb", format.PackageArtifactType, format.DebianMediaType, []byte("a package"))
		d := &crafted.Index.Manifests[0]
		d.Platform = &ocispec.Platform{OS: "linux", Architecture: "arm64"}
		for key, value := range map[string]string{
			format.AnnotationFamily: "debian", format.AnnotationSuite: suite, format.AnnotationPackage: "p1",
			format.AnnotationPackageVersion: "1", format.AnnotationPackageArchitecture: "all",
			ocispec.AnnotationTitle: "p1_1_all.deb",
		} {
			d.Annotations[key] = value
		}
		crafted.AddFile(bundle.LockComponent, bundle.LockFile, format.LockArtifactType, format.LockMediaType, []byte(
			`apiVersion: boxlift.dev/v1
kind: Lock
platforms: [linux/arm64/v8]
components:
  a:
    version: "1"
    packages:
      - {family: debian, suite: bookworm, platform: linux/arm64/v8, archives: [{url: https://a.b, suite: bookworm,
         components: [main]}], keyring: file:k, base: required, names: [p1], contents: [{name: p1, version: "1",
         architecture: all, url: https://a.b/p1.deb, sha256: `+
				format.DescriptorOf("", []byte("a package")).Digest.Encoded()+`, size: 9}]}
`))
		path := t.TempDir() + "/b.tar"
		bundletest.MustWrite(t, path, crafted.Tar(t, nil))
		err := bundletest.MustOpen(t, path).CheckStructure()
		const missing = "a: the package p1_1_all.deb for debian/bookworm linux/arm64/v8 is in the lock but not in the bundle"
		if isMissing := err != nil && strings.Contains(err.Error(), missing); isMissing == isThere {
			t.Errorf("%s: %v", suite, err)
		}
	}
}
