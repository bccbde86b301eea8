package release

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
)

// listOf is a document about a bundle, with so many packages whose names do not become smaller.
func listOf(t testing.TB, about string, packages int) []byte {
	t.Helper()
	d := digest.FromString(about)
	var s strings.Builder
	fmt.Fprintf(&s, `{"metadata":{"component":{"bom-ref":"bundle","type":"platform","name":"b","hashes":[{"alg":"SHA-256",`+
		`"content":%q}]}},"components":[{"bom-ref":"image","type":"container","name":"k3s"}`, d.Encoded())
	in := []string{}
	for i := range packages {
		name := make([]byte, 150)
		_, _ = rand.Read(name)
		url := fmt.Sprintf("pkg:npm/%s@1.%d", base64.RawURLEncoding.EncodeToString(name), i)
		fmt.Fprintf(&s, `,{"bom-ref":%q,"type":"library","purl":%q}`, url, url)
		in = append(in, `"`+url+`"`)
	}
	fmt.Fprintf(&s, `],"dependencies":[{"ref":"image","dependsOn":[%s]}]}`, strings.Join(in, ","))
	return []byte(s.String())
}

// TestSoftware: of the bundles that were built with a list of their software, the newest release's and the current one's
// are kept, and come back as they were.
func TestSoftware(t *testing.T) {
	r := New("lan-1")
	for i, step := range []struct {
		bundle string
		state  State
		want   []string
	}{
		{"a", Succeeded, []string{"a"}},
		{"b", Failed, []string{"a", "b"}},
		{"c", Running, []string{"a", "c"}},
		{"d", Succeeded, []string{"d"}},
	} {
		one := begin(t, r, run(step.bundle, "a", "install"))
		if err := r.KeepSoftware(one.Bundle, listOf(t, step.bundle, 3)); err != nil {
			t.Fatal(err)
		}
		r.Set(one.Number, step.state, "", start)
		document, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		read, err := Decode(document)
		if err != nil || read.Format != SoftwareFormat || cmp.Diff(r, read) != "" {
			t.Fatalf("%v: -written +read:\n%s", err, cmp.Diff(r, read))
		}
		r = read
		var got []string
		for _, name := range []string{"a", "b", "c", "d"} {
			if r.HasSoftware(digest.FromString(name)) {
				got = append(got, name)
			}
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("after %d releases: -want +got:\n%s", i+1, diff)
		}
	}
	s, err := r.SoftwareOf(r.Current())
	if err != nil || len(s.Packages) != 3 || s.Subject != digest.FromString("d") || s.Packages[0].In[0].Name != "k3s" {
		t.Errorf("%v: %+v", err, s)
	}
	if _, err := r.SoftwareOf(r.Find(1)); !errors.Is(err, ErrNoSoftware) || !strings.Contains(err.Error(), "release 1") {
		t.Errorf("a release whose list is gone: %v", err)
	}
}

func TestSoftwareIsBounded(t *testing.T) {
	r := New("lan-1")
	one := begin(t, r, run("a", "a", "install"))
	if err := r.KeepSoftware(one.Bundle, listOf(t, "a", 5000)); err == nil || !strings.Contains(err.Error(), "262144 is the most") ||
		r.HasSoftware(one.Bundle) {
		t.Errorf("a list that is too large: %v", err)
	}
	if err := r.KeepSoftware(one.Bundle, []byte("{")); !errors.Is(err, bundle.ErrInvalid) {
		t.Errorf("no list: %v", err)
	}
	if document, err := r.Encode(); err != nil || strings.Contains(string(document), "software") || r.Format != VerbFormat {
		t.Errorf("without a list, format %d, %v", r.Format, err)
	}

	// A list makes room for locks.
	r.Set(one.Number, Succeeded, "", start)
	if err := r.KeepSoftware(one.Bundle, listOf(t, "a", 1000)); err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 650<<10)
	_, _ = rand.Read(noise)
	if _, err := r.Begin(run("b", "a", "upgrade"), noise); err != nil {
		t.Fatal(err)
	}
	document, err := r.Encode()
	if err != nil || len(document) > MaxSize || len(r.Software) != 0 || len(r.Locks) != 2 || r.Format != VerbFormat {
		t.Errorf("%d bytes, %d lists, %d locks, format %d, %v", len(document), len(r.Software), len(r.Locks), r.Format, err)
	}
	if _, err := Decode(document); err != nil {
		t.Error(err)
	}
}

// TestSoftwareRefused: a record may come from anywhere.
func TestSoftwareRefused(t *testing.T) {
	r := New("lan-1")
	one := begin(t, r, run("a", "a", "install"))
	if err := r.KeepSoftware(one.Bundle, listOf(t, "other", 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.SoftwareOf(one); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "it is that of the bundle sha256:") {
		t.Errorf("the list of another bundle: %v", err)
	}
	r.Software[one.Bundle] = []byte("no gzip")
	if _, err := r.SoftwareOf(one); !errors.Is(err, ErrInvalid) {
		t.Errorf("no gzip: %v", err)
	}
	packed, err := pack([]byte(strings.Repeat(" ", maxSoftwareText) + "{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Software[one.Bundle] = packed
	if _, err := r.SoftwareOf(one); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "more than") {
		t.Errorf("what becomes too large: %v", err)
	}
	document, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ old, new, want string }{
		{`"software":{"sha256:`, `"software":{"md5:`, "unsupported digest algorithm"},
		{`"software":{`, `"software":{"` + digest.FromString("b").String() + `":"","` + digest.FromString("c").String() + `":"",`, "3 lists of software"},
		{`"software":{"` + one.Bundle.String() + `":"`, `"software":{"` + one.Bundle.String() + `":"` + strings.Repeat("A", 350<<10), "a list of software has"},
		{`"format":6`, `"format":5`, "its format is 5"},
	} {
		text := strings.Replace(string(document), test.old, test.new, 1)
		if text == string(document) {
			t.Fatalf("%q is not in the document", test.old)
		}
		if _, err := Decode([]byte(text)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.new[:min(len(test.new), 40)], err)
		}
	}
}
