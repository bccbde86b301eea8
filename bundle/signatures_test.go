package bundle

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/signature"
)

// besideSeed is a file with one signature over payload.
func besideSeed(t testing.TB, payload string, n int) []byte {
	t.Helper()
	private, _, err := signature.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signature.LoadSigner(private, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := signer.Sign([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(signaturesFile{signaturesAPIVersion, signaturesKind, slices.Repeat([]json.RawMessage{s.Bundle}, n)})
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestParseBeside refuses what is not in the form of the file beside a bundle.
func TestParseBeside(t *testing.T) {
	good := besideSeed(t, "payload", 1)
	if list, err := parseBeside(append([]byte("\n "), good...)); err != nil || len(list) != 1 {
		t.Errorf("%d signatures, %v", len(list), err)
	}
	many := slices.Repeat([]string{string(good[bytes.Index(good, []byte("[")):bytes.LastIndexByte(good, ']')])[1:]},
		maxBeside+1)
	change := func(old, by string) []byte { return []byte(strings.Replace(string(good), old, by, 1)) }
	for name, test := range map[string]struct {
		content []byte
		says    string
	}{
		"nothing":       {nil, "unexpected end"},
		"too large":     {make([]byte, maxSignaturesFile+1), "more than"},
		"many values":   {[]byte("[" + strings.Repeat("1,", maxBesideValues) + "1]"), "too much JSON"},
		"many":          {[]byte(`{"apiVersion":"boxlift.dev/v1","kind":"Signatures","signatures":[` + strings.Join(many, ",") + `]}`), "65 signatures"},
		"another kind":  {change(`"Signatures"`, `"Have"`), "expected"},
		"unknown field": {change(`"kind"`, `"more":1,"kind"`), "unknown"},
		"twice":         {change(`"kind"`, `"kind":"Signatures","kind"`), "repeated"},
		"no signature":  {change(`"mediaType"`, `"type"`), "signature 1"},
		"a large one":   {change(`"hint":"`, `"hint":"`+strings.Repeat("a", 600)), "is the most"},
		"log entries":   {change(`},"messageSignature"`, `,"tlogEntries":[]},"messageSignature"`), "signature 1"},
	} {
		if _, err := parseBeside(test.content); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, expected %q", name, err, test.says)
		}
	}
	dir := t.TempDir()
	if list, err := readBeside(filepath.Join(dir, "none")); err != nil || list != nil {
		t.Errorf("no file: %v, %v", list, err)
	}
	if _, err := readBeside(dir); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a folder: %v", err)
	}
	path := filepath.Join(dir, "b.tar.signatures")
	for content, fits := range map[string]bool{string(good): true, "{": false} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readBeside(path); (err == nil) != fits {
			t.Errorf("%.10q: %v", content, err)
		}
	}
}

// FuzzParseBeside looks for signatures in another form than they are written in.
func FuzzParseBeside(f *testing.F) {
	f.Add(besideSeed(f, "payload", 1))
	f.Add(besideSeed(f, "payload", 2))
	f.Fuzz(func(t *testing.T, content []byte) {
		list, err := parseBeside(content)
		if err != nil {
			return
		}
		for i := range list {
			if err := list[i].CheckForm(); err != nil {
				t.Error(err)
			}
		}
	})
}
