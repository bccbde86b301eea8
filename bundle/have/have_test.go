package have_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

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
	got, err := have.Parse(content)
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
		"empty":              {"", "unexpected end"},
		"cut off":            {whole[:len(whole)/2], "unexpected end"},
		"something behind":   {whole + "{}", "after top-level value"},
		"not an object":      {"[]", "cannot unmarshal array"},
		"unknown field":      {replaced(`"cluster"`, `"more": 1, "cluster"`), `unknown field "more"`},
		"field twice":        {replaced(`"cluster": "lan-1"`, `"cluster": "lan-2", "cluster": "lan-1"`), "it was changed"},
		"other letters":      {replaced(`"cluster"`, `"Cluster"`), "it was changed"},
		"another kind":       {replaced(`"Have"`, `"Lock"`), `kind "Lock"`},
		"another version":    {replaced("dev/v1", "dev/v3"), `apiVersion "boxlift.dev/v3"`},
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

// dated is a file that says when it was written.
func dated(t testing.TB) string {
	t.Helper()
	h := have.Of("lan-1", hosts())
	h.Date(time.Date(2027, 3, 1, 13, 0, 0, 5, time.FixedZone("x", 3600)),
		have.Record{Release: 12, Bundle: of("old"), Serial: 40})
	content, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestDated reads and refuses files that say when they were written.
func TestDated(t *testing.T) {
	whole := dated(t)
	h, err := have.Parse([]byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	want := have.Of("lan-1", hosts())
	want.APIVersion, want.Written = "boxlift.dev/v2", time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)
	want.Record = &have.Record{Release: 12, Bundle: of("old"), Serial: 40}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	record := `"record": {"release":12,"bundle":"` + of("old").String() + `","serial":40},`
	written := `"written": "2027-03-01T12:00:00Z",`
	for name, test := range map[string]struct{ old, with, want string }{
		"white space":       {"\n", "\r\n  ", ""},
		"no serial":         {`,"serial":40`, "", ""},
		"nothing succeeded": {`,"bundle":"` + of("old").String() + `"`, "", ""},
		"an older form":     {"dev/v2", "dev/v1", "written and record are of boxlift.dev/v2"},
		"a later form":      {"dev/v2", "dev/v3", `apiVersion "boxlift.dev/v3" and kind "Have", expected boxlift.dev/v1 or boxlift.dev/v2`},
		"a later form's":    {`dev/v2",`, `dev/v3", "more": 1,`, `apiVersion "boxlift.dev/v3"`},
		"no date":           {written, "", "go together"},
		"no record":         {record, "", "go together"},
		"another zone":      {"12:00:00Z", "12:00:00+01:00", "not in UTC"},
		"half a second":     {"12:00:00Z", "12:00:00.5Z", "whole seconds"},
		"no time":           {"2027-03-01T12:00:00Z", "yesterday", "parsing time"},
		"no release":        {`"release":12`, `"release":0`, "release 0"},
		"a negative serial": {`"serial":40`, `"serial":-1`, "the serial is -1"},
		"a serial of 0":     {`"serial":40`, `"serial":0`, "it was changed"},
		"a large serial":    {`"serial":40`, `"serial":9007199254740992`, "the serial is 9007199254740992"},
		"no digest":         {`"bundle":"` + of("old").String(), `"bundle":"sha1:0`, "record: bundle: "},
		"another order":     {written + "\n" + record, record + written, "it was changed"},
		"more":              {`"serial":40`, `"serial":40,"more":1`, `unknown field "more"`},
	} {
		t.Run(name, func(t *testing.T) {
			content := strings.ReplaceAll(whole, test.old, test.with)
			if content == whole {
				t.Fatalf("%q is not in\n%s", test.old, whole)
			}
			_, err := have.Parse([]byte(content))
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
	f.Add([]byte(dated(f)))
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
