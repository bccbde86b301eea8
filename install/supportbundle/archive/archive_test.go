package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/liteboxd/boxlift/internal/redact"
)

var created = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// fill fills an item with a text, in two writes, and ends as it is told.
func fill(text string, cut Cut, err error) Filler {
	return func(_ context.Context, w io.Writer) (Cut, error) {
		half := len(text) / 2
		_, first := io.WriteString(w, text[:half])
		_, second := io.WriteString(w, text[half:])
		return cut, errors.Join(first, second, err)
	}
}

// example is an archive with items of all kinds, and its index.
func example(t testing.TB) ([]byte, *Index) {
	t.Helper()
	var out bytes.Buffer
	w := NewWriter(&out, redact.New("known-secret"), Index{Cluster: "plant 7", Created: created, Boxlift: "v1",
		Since: created.Add(-time.Hour)}, t.TempDir())
	at := func(name string) Item {
		return Item{Path: name, Host: "one (10.0.0.1)", Source: "do --token abc known-secret"}
	}
	values := func(n int, err error) func(context.Context, func(map[string]any) error) error {
		return func(_ context.Context, put func(map[string]any) error) error {
			for i := range n {
				if err := put(map[string]any{"i": i, "password": "abc", "text": "known-secret"}); err != nil {
					return err
				}
			}
			return err
		}
	}
	for _, err := range []error{
		w.Add(t.Context(), at("hosts/one/a.txt"), 100, fill("a line\npassword: abc\n", Whole, nil)),
		w.Add(t.Context(), at("hosts/one/a.txt"), 100, fill("of the same name\n", Whole, nil)),
		w.Add(t.Context(), at("hosts/one/large.txt"), 20, fill("first\nsecond\npassword: abc\n", Whole, nil)),
		w.Add(t.Context(), at("hosts/one/head.txt"), 100, fill("the end\n", CutHead, nil)),
		w.Add(t.Context(), at("hosts/one/broken.txt"), 100, fill("some\nhalf a li", Whole, errors.New("known-secret \x1b broke"))),
		w.Add(t.Context(), at("hosts/one/none.txt"), 100, fill("", Whole, ErrAbsent)),
		w.AddJSON(t.Context(), at("a.json"), func(context.Context) (any, error) {
			return map[string]any{"token": "abc", "html": "<a>"}, nil
		}),
		w.AddJSON(t.Context(), at("failed.json"), func(context.Context) (any, error) { return nil, errors.New("no answer") }),
		w.Values(t.Context(), at("list.json"), 1000, values(2, nil)),
		w.Values(t.Context(), at("long.json"), 200, values(20, nil)),
		w.Values(t.Context(), at("empty.json"), 1000, values(0, nil)),
		w.Values(t.Context(), at("half.json"), 1000, values(1, errors.New("went away"))),
		w.Values(t.Context(), at("unknown.json"), 1000, values(0, ErrAbsent)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	index, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), index
}

func TestArchive(t *testing.T) {
	content, written := example(t)
	got := map[string]string{}
	index, err := Read(bytes.NewReader(content), func(name string, r io.Reader) error {
		text, err := io.ReadAll(r)
		got[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(written, index, cmpopts.EquateApproxTime(0)); diff != "" {
		t.Errorf("what is read is not what was written:\n%s", diff)
	}
	readme := got[ReadmeName]
	delete(got, ReadmeName)
	one := "{\n  \"i\": 0,\n  \"password\": \"<redacted>\",\n  \"text\": \"<redacted>\"\n}"
	if diff := cmp.Diff(map[string]string{
		"hosts/one/a.txt":      "a line\npassword: <redacted>\n",
		"hosts/one/a.txt-2":    "of the same name\n",
		"hosts/one/large.txt":  "first\nsecond\n",
		"hosts/one/head.txt":   "the end\n",
		"hosts/one/broken.txt": "some\n",
		"a.json":               "{\n  \"html\": \"<a>\",\n  \"token\": \"<redacted>\"\n}\n",
		"list.json":            "{\"items\": [\n" + one + ",\n" + strings.Replace(one, "0", "1", 1) + "\n]}\n",
		"long.json":            "{\"items\": [\n" + one + ",\n" + strings.Replace(one, "0", "1", 1) + "\n]}\n",
		"empty.json":           "{\"items\": []}\n",
		"half.json":            "{\"items\": [\n" + one + "\n]}\n",
	}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	type said struct {
		Cut    Cut
		Masked int
		Error  string
		Absent bool
	}
	items := map[string]said{}
	for _, item := range index.Items {
		if item.Path != ReadmeName {
			items[item.Path] = said{item.Cut, item.Masked, item.Error, item.Absent}
		}
		if item.Path != ReadmeName && item.Source != "do --token <redacted> <redacted>" {
			t.Errorf("%s comes from %q", item.Path, item.Source)
		}
	}
	if diff := cmp.Diff(map[string]said{
		"hosts/one/a.txt": {Masked: 1}, "hosts/one/a.txt-2": {}, "hosts/one/large.txt": {Cut: CutTail},
		"hosts/one/head.txt": {Cut: CutHead}, "hosts/one/broken.txt": {Error: "<redacted>   broke"},
		"hosts/one/none.txt": {Absent: true}, "a.json": {Masked: 1}, "failed.json": {Error: "no answer"},
		"list.json": {Masked: 4}, "long.json": {Masked: 4, Cut: CutTail}, "empty.json": {},
		"half.json": {Masked: 2, Error: "went away"}, "unknown.json": {Absent: true},
	}, items); diff != "" {
		t.Errorf("index (-want +got):\n%s", diff)
	}
	for _, part := range []string{"plant 7", "13 items: 3 could not", "hosts/one/broken.txt", "<redacted>   broke",
		"hosts/one/large.txt: its end is missing", "boxlift-support-plant-7-20260102T030405Z"} {
		if !strings.Contains(readme, part) {
			t.Errorf("the README lacks %q:\n%s", part, readme)
		}
	}
}

func TestWriterFails(t *testing.T) {
	w := NewWriter(io.Discard, redact.New(), Index{Cluster: "c", Created: created}, "/nowhere")
	if err := w.Add(t.Context(), Item{Path: "a"}, 10, fill("a", Whole, nil)); err == nil {
		t.Error("an item was kept in a folder that is not there")
	}
	if _, err := w.Close(); err == nil {
		t.Error("an archive without an item that there was is taken for whole")
	}
}

// packed is an archive of files, with another header for the first if there is one.
func packed(t testing.TB, first *tar.Header, files ...[2]string) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	w := tar.NewWriter(zipped)
	for i, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f[0], Size: int64(len(f[1])), Mode: 0o600}
		if i == 0 && first != nil {
			header = first
		}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// indexOf is an index of items that need not be true.
func indexOf(items ...Item) string {
	content, _ := json.Marshal(Index{Format: Format, Items: append([]Item{}, items...)}) // it can be encoded
	return string(content)
}

func TestRefused(t *testing.T) {
	whole, _ := example(t)
	const sum = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb" // of "a"
	a := Item{Path: "a", Size: 1, SHA256: sum}
	for name, test := range map[string]struct {
		content []byte
		want    string
	}{
		"nothing":          {nil, "EOF"},
		"no gzip":          {[]byte("PK\x03\x04 something else"), "gzip"},
		"cut off":          {whole[:len(whole)/2], "unexpected EOF"},
		"without its end":  {whole[:len(whole)-4], "unexpected EOF"},
		"with more":        {append(bytes.Clone(whole), "and more than a header"...), "gzip"},
		"empty":            {packed(t, nil), "has no index.json"},
		"without an index": {packed(t, nil, [2]string{"f/a", "a"}), "has no index.json"},
		"two folders":      {packed(t, nil, [2]string{"f/a", "a"}, [2]string{"g/index.json", indexOf(a)}), "two folders"},
		"a name twice":     {packed(t, nil, [2]string{"f/a", "a"}, [2]string{"f/a", "a"}), "has a twice"},
		"upwards":          {packed(t, nil, [2]string{"f/../a", "a"}), "is no name"},
		"absolute":         {packed(t, nil, [2]string{"/a", "a"}), "is no name"},
		"a strange name":   {packed(t, nil, [2]string{"f/a\x1bb", "a"}), "is no name"},
		"a link": {packed(t, &tar.Header{Typeflag: tar.TypeSymlink, Name: "f/a", Linkname: "/etc/passwd"}, [2]string{"f/a", ""}),
			"no regular file"},
		"other content":   {packed(t, nil, [2]string{"f/a", "b"}, [2]string{"f/index.json", indexOf(a)}), "not what its index says"},
		"a file too few":  {packed(t, nil, [2]string{"f/index.json", indexOf(a)}), "lacks a"},
		"a file too many": {packed(t, nil, [2]string{"f/a", "a"}, [2]string{"f/index.json", indexOf()}), "does not have a"},
		"a file behind": {packed(t, nil, [2]string{"f/index.json", indexOf()}, [2]string{"f/a", "a"}),
			"something follows index.json"},
		"items twice":  {packed(t, nil, [2]string{"f/a", "a"}, [2]string{"f/index.json", indexOf(a, a)}), "has a twice"},
		"below 0":      {packed(t, nil, [2]string{"f/index.json", indexOf(Item{Path: "a", Size: -1})}), "below 0"},
		"unknown cut":  {packed(t, nil, [2]string{"f/index.json", indexOf(Item{Path: "a", Cut: "x"})}), "was cut"},
		"unknown key":  {packed(t, nil, [2]string{"f/index.json", `{"format":1,"x":1}`}), "unknown field"},
		"two values":   {packed(t, nil, [2]string{"f/index.json", indexOf() + "{}"}), "follows the document"},
		"a later one":  {packed(t, nil, [2]string{"f/index.json", `{"format":2,"x":1}`}), "its format is 2"},
		"a large file": {packed(t, nil, [2]string{"f/a", strings.Repeat("a", MaxFile+1)}), "is the most"},
	} {
		if _, err := Read(bytes.NewReader(test.content), nil); !errors.Is(err, ErrInvalid) ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestName(t *testing.T) {
	for text, want := range map[string]string{
		"server-1": "server-1", "fe80::1%eth0": "fe80--1-eth0", "../x": "-x", "": "unnamed", "..": "unnamed",
		"名": "---", strings.Repeat("x", 100): strings.Repeat("x", 60),
	} {
		if got := Name(text); got != want || checkName(got) != nil {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	whole, _ := example(f)
	unzipped, err := gzip.NewReader(bytes.NewReader(whole))
	if err != nil {
		f.Fatal(err)
	}
	plain, err := io.ReadAll(unzipped)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, content []byte) {
		var zipped bytes.Buffer
		w, _ := gzip.NewWriterLevel(&zipped, gzip.NoCompression)
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		sizes := map[string]int64{}
		index, err := Read(&zipped, func(name string, r io.Reader) error {
			n, err := io.Copy(io.Discard, r)
			sizes[name] = n
			return err
		})
		switch {
		case err != nil && !errors.Is(err, ErrInvalid):
			t.Fatal(err)
		case err == nil:
			for _, item := range index.Items {
				if item.Size != sizes[item.Path] {
					t.Fatalf("%s has %d bytes, and its index says %d", item.Path, sizes[item.Path], item.Size)
				}
			}
		}
	})
}
