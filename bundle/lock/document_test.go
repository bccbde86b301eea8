package lock

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

func someContents() *Contents {
	return &Contents{
		Images: []ArchiveImage{{Ref: "docker.io/library/a:1", Digest: "sha256:" + shaA, Size: 5,
			MediaType: "application/vnd.oci.image.index.v1+json"}},
		Blobs: []ArchiveBlob{
			{Path: "blobs/sha256/" + shaA, Digest: "sha256:" + shaA, Size: 5,
				MediaType: "application/vnd.oci.image.index.v1+json"},
			{Path: "123", Digest: "sha256:" + shaB, Size: 7, MediaType: "application/vnd.oci.image.layer.v1.tar"},
		},
	}
}

// pinAll writes pins into every entry of a document, those that have some included.
func pinAll(t *testing.T, d *Document, sha256 string) {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Fatalf("%v, in:\n%s", err, d.Bytes())
		}
	}
	for _, c := range d.Lock().Components {
		for i := range c.Files {
			check(d.SetFilePin(c.Name, i, sha256, 11))
		}
		for i := range c.Charts {
			check(d.SetChartPin(c.Name, i, sha256, 22))
		}
		for i, m := range c.Images {
			if m.Archive != "" {
				check(d.SetArchivePin(c.Name, i, sha256, 33, someContents()))
			} else if m.Digest == "" {
				check(d.SetImageDigest(c.Name, i, digest.Digest("sha256:"+sha256)))
			}
		}
		for i := range c.Packages {
			check(d.SetPackages(c.Name, i, []OSPackage{{Name: "a1", Version: "1:2.0", Architecture: "all",
				URL: "https://example.com/a1.deb", SHA256: sha256, Size: 44}}))
		}
	}
}

func TestDocumentKeepsItsText(t *testing.T) {
	project, err := os.ReadFile("../../versions.lock")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{good, string(project), strings.ReplaceAll(good, "\n", "\r\n"),
		strings.TrimSpace(good)} {
		d, err := ParseDocument("versions.lock", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(text, string(d.Bytes())); diff != "" {
			t.Errorf("unchanged document (-want +got):\n%s", diff)
		}
		// Writing the pins that are there is no change either.
		for _, c := range d.Lock().Components {
			for i, f := range c.Files {
				if f.SHA256 != "" && f.Size != 0 {
					if err := d.SetFilePin(c.Name, i, f.SHA256, f.Size); err != nil {
						t.Error(err)
					}
				}
			}
			for i, m := range c.Images {
				if m.Contents != nil {
					if err := d.SetArchivePin(c.Name, i, m.SHA256, m.Size, m.Contents); err != nil {
						t.Error(err)
					}
				}
			}
		}
		if diff := cmp.Diff(text, string(d.Bytes())); diff != "" {
			t.Errorf("document with the same pins (-want +got):\n%s", diff)
		}
	}
}

// TestDocumentPins pins every entry of documents in many styles; testdata/pins.golden
// shows what they look like then.
func TestDocumentPins(t *testing.T) {
	head := "apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\ncomponents:\n  c:\n    version: v1\n"
	var all strings.Builder
	for _, c := range []struct{ name, text string }{
		{"every kind of entry", good},
		{"block style with comments", head + `    files:
    - name: a # the name
      # about the URL
      url: https://a.b/c # the URL

      # about the next one
    - url: 'https://a.b/c'
      name: "b"
    - sha256: ` + shaB + ` # replaced
      name: c
      url: https://a.b/c
    # the end
    images:
      - # far below

        archive: https://a.b/c

        platform: linux/amd64
      - contents: # what it holds
            images:
              - {ref: docker.io/library/b:1, digest: sha256:` + shaA + `, size: 5, mediaType: a/b}
            blobs:
              # gone
              - path: x
                digest: sha256:` + shaA + `
                size: 5
                mediaType: a/b # gone
        # stays
        platform: linux/amd64
        archive: https://a.b/d
`},
		{"braces over several lines", head + `    files: [
      {name: a,
       url: https://a.b/c, # not the { end
      },
      { "name": 'b', "url": "https:\x2f/a.b/\x63" },
      {size: 5, url: https://a.b/c, sha256: "` + shaB + `", name: c,},
      {name: d, url: https://a.b/c}, {name: e, url: https://a.b/c}]
    images:
      - {archive: https://a.b/c, platform: linux/amd64}
      - {contents: {images: [{"ref": 'docker.io/library/b:1', digest: sha256:` + shaA + `, size: 5, mediaType: "a\x2fb"}], # x }
          blobs: [{path: "x", digest: sha256:` + shaA + `, size: 5, mediaType: 'a/b'}]}, archive: https://a.b/d, platform: linux/amd64}
      - {ref: docker.io/library/a:1}
`},
		{"one line of JSON",
			`{"apiVersion":"boxlift.dev/v1","kind":"Lock","platforms":["linux/amd64"],"components":{"c":{"version":"v1","files":[{"name":"a","url":"https://a.b/c"}],"images":[{"ref":"docker.io/library/a:1"},{"archive":"https://a.b/c","platform":"linux/amd64"}]}}}`},
		{"no line break at the end", head + "    images:\n    - ref: docker.io/library/a:1"},
		{"other letters before the entry",
			strings.Replace(head, "kind", "# 发布 ü\nkind", 1) + "    images: [ {ref: docker.io/library/a:1} ] # 发布 }\n"},
		{"explicit keys", head + "    images:\n    - ? ref\n      : docker.io/library/a:1\n"},
	} {
		d, err := ParseDocument("versions.lock", []byte(c.text))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		pinAll(t, d, shaB)
		if missing := d.Lock().Unpinned(); len(missing) > 0 {
			t.Errorf("%s: still unpinned: %v", c.name, missing)
		}
		fresh, err := Parse("versions.lock", d.Bytes())
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(d.Lock(), fresh); diff != "" {
			t.Errorf("%s: read again (-before +after):\n%s", c.name, diff)
		}
		all.WriteString("== " + c.name + "\n" + string(d.Bytes()) + "\n")
	}
	golden(t, "pins.golden", all.String())
}

// TestDocumentFillsProjectLock pins the gaps of the project's own versions.lock: no line of
// it goes, and no line changes but by what is added at its end.
func TestDocumentFillsProjectLock(t *testing.T) {
	text, err := os.ReadFile("../../versions.lock")
	if err != nil {
		t.Fatal(err)
	}
	d, err := ParseDocument("versions.lock", text)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range d.Lock().Components {
		for i, f := range c.Files {
			if f.Size == 0 {
				if err := d.SetFilePin(c.Name, i, f.SHA256, 9); err != nil {
					t.Error(err)
				}
			}
		}
		for i, m := range c.Images {
			switch {
			case m.Archive != "" && m.Contents == nil:
				err = d.SetArchivePin(c.Name, i, m.SHA256, m.Size, someContents())
			case m.Ref != "" && m.Digest == "":
				err = d.SetImageDigest(c.Name, i, digest.Digest("sha256:"+shaA))
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	if missing := d.Lock().Unpinned(); len(missing) > 0 {
		t.Errorf("still unpinned: %v", missing)
	}
	after := strings.Split(string(d.Bytes()), "\n")
	for i, line := range strings.Split(string(text), "\n") {
		at := slices.IndexFunc(after,
			func(s string) bool { return strings.HasPrefix(s, strings.TrimSuffix(line, "}")) })
		if at < 0 {
			t.Fatalf("line %d is gone or out of order: %s", i+1, line)
		}
		after = after[at+1:]
	}
}

// TestDocumentLineEnds: the line ends of the file are those of the new lines.
func TestDocumentLineEnds(t *testing.T) {
	d, err := ParseDocument("versions.lock", []byte(strings.ReplaceAll(good, "\n", "\r\n")))
	if err != nil {
		t.Fatal(err)
	}
	pinAll(t, d, shaB)
	got := string(d.Bytes())
	if bare := strings.Count(got, "\n") - strings.Count(got, "\r\n"); bare != 0 {
		t.Errorf("%d lines end with LF alone", bare)
	}
	same, err := ParseDocument("versions.lock", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	pinAll(t, same, shaB)
	if diff := cmp.Diff(string(same.Bytes()), strings.ReplaceAll(got, "\r\n", "\n")); diff != "" {
		t.Errorf("with LF (-), with CRLF (+):\n%s", diff)
	}
}

func TestDocumentSetsOneEntry(t *testing.T) {
	d, err := ParseDocument("versions.lock", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.SetImageDigest("cilium", 1, digest.Digest("sha256:"+shaB)); err != nil {
		t.Fatal(err)
	}
	want := goodLock()
	want.Components[1].Images[1].Digest = "sha256:" + shaB
	for i := range want.Components[2].Images { // one line further down
		want.Components[2].Images[i].Line++
	}
	want.Components[2].Line++
	if diff := cmp.Diff(want, d.Lock()); diff != "" {
		t.Errorf("lock (-want +got):\n%s", diff)
	}
}

// TestDocumentSetsSharedRef: two components cannot have one ref with two digests, so the
// digest of both moves at once.
func TestDocumentSetsSharedRef(t *testing.T) {
	for component, index := range map[string]int{"cilium": 0, "liteboxd": 1} {
		d, err := ParseDocument("versions.lock", []byte(good))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.SetImageDigest(component, index, digest.Digest("sha256:"+shaB)); err != nil {
			t.Fatal(err)
		}
		want := goodLock()
		want.Components[1].Images[0].Digest = "sha256:" + shaB
		want.Components[2].Images[1].Digest = "sha256:" + shaB
		if diff := cmp.Diff(want, d.Lock()); diff != "" {
			t.Errorf("lock (-want +got):\n%s", diff)
		}
	}
}

func TestDocumentRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(d *Document) error
		want string
	}{
		"component": {func(d *Document) error { return d.SetFilePin("x", 0, shaA, 1) },
			"pin components.x.files[0] in versions.lock: there is no such entry"},
		"list": {func(d *Document) error { return d.SetFilePin("cilium", 0, shaA, 1) },
			"there is no such entry"},
		"index": {func(d *Document) error { return d.SetFilePin("k3s", 3, shaA, 1) },
			"there is no such entry"},
		"negative index": {func(d *Document) error { return d.SetFilePin("k3s", -1, shaA, 1) },
			"there is no such entry"},
		"sha256": {func(d *Document) error { return d.SetFilePin("k3s", 0, "abc", 1) },
			`"abc" is not a sha256`},
		"size": {func(d *Document) error { return d.SetChartPin("cilium", 0, shaA, 0) },
			"number 0: expected"},
		"digest": {func(d *Document) error { return d.SetImageDigest("cilium", 1, "sha256:x") },
			"is not a digest"},
		"ref as archive": {func(d *Document) error { return d.SetArchivePin("cilium", 0, shaA, 1, someContents()) },
			"belongs to an archive"},
		"archive as ref": {func(d *Document) error { return d.SetImageDigest("k3s", 0, digest.Digest("sha256:"+shaB)) },
			"belongs to a ref"},
		"no contents": {func(d *Document) error { return d.SetArchivePin("k3s", 0, shaA, 1, nil) },
			"no contents given"},
		"smuggled field": {func(d *Document) error { return d.SetFilePin("k3s", 1, shaA+", size: 5, size: 6", 1) },
			"pin components.k3s.files[1]"},
		"smuggled entry": {func(d *Document) error {
			return d.SetImageDigest("cilium", 1,
				digest.Digest("sha256:"+shaA+"\n      - {ref: docker.io/evil/image:1}"))
		}, "cannot be edited"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := ParseDocument("versions.lock", []byte(good))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.set(d); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if !bytes.Equal(d.Bytes(), []byte(good)) {
				t.Errorf("the document changed")
			}
		})
	}
}

// FuzzParse: an error says where and why in one line, and a document that parses can be
// pinned everywhere without any other change to what it says. Its components can be moved,
// or else are as they were.
func FuzzParse(f *testing.F) {
	f.Add([]byte(withPackages))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := ParseDocument("fuzz.lock", data)
		if err != nil {
			var all Errors
			if !errors.As(err, &all) {
				t.Fatalf("got %T, want Errors", err)
			}
			for _, one := range all {
				if one.Line < 1 || one.Reason == "" || strings.ContainsAny(one.Error(), "\n\x1b") {
					t.Errorf("error without a line or a reason, or not in one line: %q", one)
				}
			}
			return
		}
		d.Lock().Unpinned()
		if !bytes.Equal(d.Bytes(), data) {
			t.Error("unchanged document differs")
		}
		pinAll(t, d, shaA)
		fresh, err := Parse("fuzz.lock", d.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(d.Lock(), fresh); diff != "" {
			t.Errorf("read again (-before +after):\n%s", diff)
		}
		before, serial := d.Bytes(), d.Lock().Serial
		if err := d.SetSerial(serial + 1); err != nil && !bytes.Equal(before, d.Bytes()) {
			t.Errorf("%v, and the document changed", err)
		}
		for _, c := range d.Lock().Components {
			before := d.Bytes()
			if err := d.Update(moved(c)); err != nil && !bytes.Equal(before, d.Bytes()) {
				t.Errorf("%v, and the document changed", err)
			}
		}
	})
}
