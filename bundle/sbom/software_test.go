package sbom

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle"
)

// TestReadSoftware reads what is known to be written, and finds where each package is.
func TestReadSoftware(t *testing.T) {
	document, err := os.ReadFile(filepath.Join("testdata", "everything.golden"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := ReadSoftware(document)
	if err != nil {
		t.Fatal(err)
	}
	if s.Subject.Validate() != nil || len(s.Packages) < 10 || len(s.Incomplete) == 0 {
		t.Errorf("about %s: %d packages, incomplete %q", s.Subject, len(s.Packages), s.Incomplete)
	}
	types := make(map[string]bool)
	for _, p := range s.Packages {
		types[p.URL.Type] = true
		if len(p.In) == 0 {
			t.Errorf("%s is nowhere", p.URL)
		}
		for _, place := range p.In {
			if strings.HasPrefix(place.Ref, "image/") && (len(place.Components) == 0 || len(place.URLs) != 2 ||
				len(place.Digests) != 2 || place.Platform == "") {
				t.Errorf("%s is in %+v", p.URL, place)
			}
		}
	}
	for _, want := range []string{"deb", "npm", "github"} {
		if !types[want] {
			t.Errorf("there is no package of the type %s", want)
		}
	}
	// An identifier, an expression, a package's own words, and none.
	for name, want := range map[string]string{"cilium": "Apache-2.0", "b": "(MIT OR ISC)", "two-words": "my own", "adduser": ""} {
		at := slices.IndexFunc(s.Packages, func(p Listed) bool { return p.URL.Name == name })
		if at < 0 || s.Packages[at].License != want {
			t.Errorf("the licence of %s is not %q: %+v", name, want, s.Packages[max(at, 0)])
		}
	}
	for name, want := range map[string]string{"ucf": "component/", "cilium": "component/cilium"} {
		at := slices.IndexFunc(s.Packages, func(p Listed) bool { return p.URL.Name == name })
		if at < 0 || !strings.HasPrefix(s.Packages[at].In[0].Ref, want) {
			t.Errorf("%s is not in %s", name, want)
		}
	}
}

func TestSoftwareRefused(t *testing.T) {
	const about = `"metadata":{"component":{"bom-ref":"bundle","type":"platform","name":"b"}}`
	for want, document := range map[string]string{
		"unexpected end":        `{`,
		"something without":     `{"components":[{}]}`,
		"twice":                 `{` + about + `,"components":[{"bom-ref":"bundle","type":"file"}]}`,
		"is no package URL":     `{` + about + `,"components":[{"bom-ref":"a","type":"library","purl":"x"}]}`,
		`"pkg:x" is no package`: `{` + about + `,"components":[{"bom-ref":"a","type":"file","purl":"pkg:x"}]}`,
	} {
		if _, err := ReadSoftware([]byte(document)); !errors.Is(err, bundle.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func FuzzReadSoftware(f *testing.F) {
	document, err := os.ReadFile(filepath.Join("testdata", "everything.golden"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(document[:min(len(document), 4096)])
	f.Add([]byte(`{"metadata":{"component":{"bom-ref":"bundle","type":"platform"}},"components":[{"bom-ref":"a","type":"container",` +
		`"purl":"pkg:oci/a@sha256:b"},{"bom-ref":"p","type":"library","purl":"pkg:npm/a@1"}],` +
		`"dependencies":[{"ref":"bundle","dependsOn":["a"]},{"ref":"a","dependsOn":["p","a"]}]}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		s, err := ReadSoftware(document)
		if err != nil {
			return
		}
		for _, p := range s.Packages {
			if p.URL.Name == "" {
				t.Error("a package has no name")
			}
		}
	})
}
