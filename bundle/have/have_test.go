package have_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/have"
)

func of(text string) digest.Digest { return digest.FromString(text) }

func hosts() []have.Host {
	return []have.Host{
		{Name: "b", Platform: "linux/arm64", Bundles: []digest.Digest{of("old"), of("older")}, Blobs: map[digest.Digest]int64{of("1"): 1}},
		{Name: "c", Platform: "linux/amd64", Bundles: []digest.Digest{of("old")}, Blobs: map[digest.Digest]int64{of("1"): 1, of("2"): 2, of("4"): 4}},
		{Name: "a", Platform: "linux/amd64", Bundles: []digest.Digest{of("older"), of("old")}, Blobs: map[digest.Digest]int64{of("1"): 1, of("3"): 3, of("4"): 40}},
	}
}

// TestOf puts together what every host of a platform holds.
func TestOf(t *testing.T) {
	h := have.Of("lan-1", hosts())
	want := &have.Have{
		APIVersion: have.APIVersion, Kind: have.Kind, Cluster: "lan-1", Bundles: []digest.Digest{of("old")},
		Platforms: []have.Platform{
			{Platform: "linux/amd64", Hosts: []string{"a", "c"}, Blobs: []have.Blob{{Digest: of("1"), Size: 1}}},
			{Platform: "linux/arm64", Hosts: []string{"b"}, Blobs: []have.Blob{{Digest: of("1"), Size: 1}}},
		},
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	content, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "HAVE.json")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := have.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func example(t testing.TB) string {
	t.Helper()
	content, err := have.Of("lan-1", hosts()).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestParse(t *testing.T) {
	whole := example(t)
	replaced := func(old, with string) string {
		if !strings.Contains(whole, old) {
			t.Fatalf("%q is not in\n%s", old, whole)
		}
		return strings.Replace(whole, old, with, 1)
	}
	blob := `{"digest":"` + of("1").String() + `","size":1}`
	for name, test := range map[string]struct{ content, want string }{
		"as written":         {whole, ""},
		"other white space":  {strings.ReplaceAll(whole, "\n", "\r\n\t"), ""},
		"empty":              {"", "EOF"},
		"cut off":            {whole[:len(whole)/2], "unexpected EOF"},
		"something behind":   {whole + "{}", "something follows"},
		"not an object":      {"[]", "cannot unmarshal array"},
		"unknown field":      {replaced(`"cluster"`, `"more": 1, "cluster"`), `unknown field "more"`},
		"field twice":        {replaced(`"cluster": "lan-1"`, `"cluster": "lan-2", "cluster": "lan-1"`), "it was changed"},
		"other letters":      {replaced(`"cluster"`, `"Cluster"`), "it was changed"},
		"another kind":       {replaced(`"Have"`, `"Lock"`), `kind "Lock"`},
		"another version":    {replaced("dev/v1", "dev/v2"), `apiVersion "boxlift.dev/v2"`},
		"no cluster":         {replaced(`"lan-1"`, `""`), "cluster: a name has 1 to"},
		"cluster's letters":  {replaced(`"lan-1"`, `"lan\u001b"`), "characters that no name has"},
		"bundle":             {replaced(of("old").String(), "sha512:"+strings.Repeat("0", 128)), "is not a sha256 digest"},
		"bundle twice":       {replaced(`["`+of("old").String()+`"]`, `["`+of("old").String()+`","`+of("old").String()+`"]`), "bundles: " + of("old").String() + " is there twice"},
		"blob twice":         {replaced(blob, blob+","+blob), "is there twice"},
		"blob without size":  {replaced(`,"size":1`, ""), "it was changed"},
		"negative size":      {replaced(`"size":1`, `"size":-1`), "out of bounds"},
		"fraction":           {replaced(`"size":1`, `"size":1.5`), "cannot unmarshal"},
		"digest of a blob":   {replaced(of("1").Encoded(), "x"), "is not a sha256 digest"},
		"platform":           {replaced("linux/amd64", "plan9/amd64"), "plan9/amd64"},
		"platform twice":     {replaced("linux/amd64", "linux/arm64/v8"), "is there twice"},
		"host twice":         {replaced(`"a","c"`, `"a","a"`), `hosts: "a" is there twice`},
		"host on both":       {replaced(`"b"`, `"a"`), `hosts: "a" is there twice`},
		"no host":            {replaced(`["b"]`, `[]`), "hosts: none"},
		"null":               {"null", "apiVersion"},
		"no platforms":       {`{"apiVersion":"boxlift.dev/v1","kind":"Have","cluster":"a","bundles":[],"platforms":[]}`, "platforms: none"},
		"more than the most": {strings.Repeat(" ", have.MaxSize) + whole, "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := have.Parse([]byte(test.content))
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (!errors.Is(err, have.ErrInvalid) || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%v, expected %q", err, test.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example(f)))
	f.Add([]byte(`{"apiVersion":"boxlift.dev/v1","kind":"Have","cluster":"a","bundles":[],"platforms":[{"platform":"linux/amd64","hosts":["a"],"blobs":[]}]}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		h, err := have.Parse(content)
		if err != nil {
			if !errors.Is(err, have.ErrInvalid) {
				t.Errorf("not ErrInvalid: %v", err)
			}
			return
		}
		written, err := h.Encode()
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		var got, want bytes.Buffer
		if err := errors.Join(json.Compact(&want, content), json.Compact(&got, written)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.String(), got.String()); diff != "" {
			t.Errorf("read and written again (-read +written):\n%s", diff)
		}
	})
}
