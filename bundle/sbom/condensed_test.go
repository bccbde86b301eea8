package sbom

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/liteboxd/boxlift/bundle"
)

// TestCondense: what is read of a condensed document is what is read of the whole one, but for licences and for the names
// within it.
func TestCondense(t *testing.T) {
	document, err := os.ReadFile(filepath.Join("testdata", "everything.golden"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := ReadSoftware(document)
	if err != nil {
		t.Fatal(err)
	}
	condensed, err := Condense(document)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadSoftware(condensed)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Place{}, "Ref"),
		cmpopts.IgnoreFields(Listed{}, "License")); diff != "" {
		t.Errorf("-whole +condensed:\n%s", diff)
	}
	if want.Lock.Validate() != nil || !got.IsOf("", want.Lock) || !got.IsOf(want.Subject, "") || got.IsOf("", "") ||
		got.IsOf(want.Lock, want.Subject) {
		t.Errorf("it is of the bundle %s with the lock %s", got.Subject, got.Lock)
	}
	if len(condensed) > len(document)/2 {
		t.Errorf("%d bytes became %d", len(document), len(condensed))
	}
	if _, err := Condense([]byte(`{"components":[{}]}`)); !errors.Is(err, bundle.ErrInvalid) {
		t.Error(err)
	}
}

// TestCondensedSize: the software of a platform, which is some thousand packages in some ten images, takes little of the
// room that a record has.
func TestCondensedSize(t *testing.T) {
	const images, perImage = 40, 250
	bom := cdx.BOM{Metadata: &cdx.Metadata{Component: &cdx.Component{BOMRef: bundleRef, Type: cdx.ComponentTypePlatform, Name: "b"}}}
	var components []cdx.Component
	var dependencies []cdx.Dependency
	names, err := os.ReadFile(filepath.Join("..", "..", "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	var modules []string
	for _, line := range bytes.Split(names, []byte("\n")) {
		if fields := bytes.Fields(line); len(fields) == 3 && !bytes.HasSuffix(fields[1], []byte("/go.mod")) {
			modules = append(modules, fmt.Sprintf("pkg:golang/%s@%s", fields[0], fields[1]))
		}
	}
	known := make(map[string]bool)
	for i := range images {
		ref := fmt.Sprintf("image/quay.io/cilium/image-%d:v1.2.3/linux/amd64", i)
		components = append(components, cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeContainer, Name: ref})
		var in []string
		for j := range perImage {
			url := modules[(i*7+j)%len(modules)]
			if j%3 == 0 { // every third in a version of the image's own
				url = fmt.Sprintf("%s.%d", url, i)
			}
			in = append(in, url)
			if !known[url] {
				known[url] = true
				components = append(components, cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: url, PackageURL: url})
			}
		}
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &in})
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	document, err := json.Marshal(bom)
	if err != nil {
		t.Fatal(err)
	}
	condensed, err := Condense(document)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(condensed); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d packages in %d images: %d bytes, condensed %d, compressed %d", len(known), images, len(document), len(condensed),
		packed.Len())
	if packed.Len() > 256<<10 {
		t.Errorf("it takes %d bytes", packed.Len())
	}
}

// FuzzCondense expects that whatever can be read says the same when it is condensed.
func FuzzCondense(f *testing.F) {
	f.Add([]byte(`{"metadata":{"component":{"bom-ref":"bundle","type":"platform"}},"components":[{"bom-ref":"a","type":"container",` +
		`"purl":"pkg:oci/a@sha256:b"},{"bom-ref":"p","type":"library","purl":"pkg:npm/a@1"}],` +
		`"dependencies":[{"ref":"bundle","dependsOn":["a"]},{"ref":"a","dependsOn":["p","a"]}]}`))
	f.Add([]byte(`{"metadata":{"component":{"bom-ref":"0","type":"platform"}},"components":[{"bom-ref":"1","type":"file","name":"versions.lock",` +
		`"hashes":[{"alg":"SHA-256","content":"AB"}],"properties":[{"name":"dev.boxlift:component","value":"lock"}]}]}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		want, err := ReadSoftware(document)
		if err != nil {
			return
		}
		condensed, err := Condense(document)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadSoftware(condensed)
		if err != nil {
			t.Fatalf("%v: %s", err, condensed)
		}
		if len(got.Packages) != len(want.Packages) || got.Subject != want.Subject || got.Lock != want.Lock ||
			!cmp.Equal(want.Incomplete, got.Incomplete) {
			t.Errorf("-whole +condensed:\n%s", cmp.Diff(want, got, cmpopts.IgnoreFields(Place{}, "Ref"),
				cmpopts.IgnoreFields(Listed{}, "License")))
		}
		for i := range got.Packages {
			if len(got.Packages[i].In) != len(want.Packages[i].In) {
				t.Errorf("%s is in %d places, and was in %d", got.Packages[i].URL, len(got.Packages[i].In), len(want.Packages[i].In))
			}
		}
	})
}
