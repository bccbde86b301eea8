package attestation

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

// FuzzParse expects that only a statement that names the bundle's digest is taken to be about it, and that no
// predicate speaks for a bundle without the word that its type has for that.
func FuzzParse(f *testing.F) {
	about, lock := digest.FromString("bundle"), digest.FromString("lock")
	for kind, predicate := range map[string]string{
		"https://example.test/predicate": `{"a":1}`,
		Review:                           `{"lock":{"digest":{"sha256":"` + lock.Encoded() + `"}},"result":"APPROVED","reviewedOn":"2027-03-01T12:00:00Z","comment":"x"}`,
		TestResult:                       `{"result":"WARNED","configuration":[]}`,
		VerificationSummary:              `{"verificationResult":"PASSED","timeVerified":"2027-03-01T12:00:00Z"}`,
	} {
		statement, err := Make(about, kind, json.RawMessage(predicate))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(statement)
	}
	f.Add([]byte(`{"_type":"` + statementType + `","subject":null}`))
	f.Add([]byte(`{"_type":"` + statementType + `","subject":[{"digest":{"sha256":"0"}}],"predicateType":"a:b"}`))
	f.Add([]byte("[]"))
	words := map[string][]string{Review: {"APPROVED"}, TestResult: {"PASSED", "WARNED"}, VerificationSummary: {"PASSED"}}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		has := func(word string) bool {
			return strings.Contains(string(text), word) || strings.Contains(string(text), `\u`)
		}
		if s.IsAbout(about) && !has(about.Encoded()) {
			t.Errorf("%q is taken to be about %s", text, about)
		}
		o, err := s.Outcome(lock)
		if err != nil || o.Against != "" || words[s.Type] == nil {
			return
		}
		speaks := false
		for _, word := range words[s.Type] {
			speaks = speaks || has(word)
		}
		if !speaks || s.Type == Review && !has(lock.Encoded()) {
			t.Errorf("%q is taken to speak for the bundle", text)
		}
	})
}

// FuzzParseList looks for a list in another form than one is written in.
func FuzzParseList(f *testing.F) {
	about := digest.FromString("bundle")
	by := signers()["dia"]()
	one := made(f, by, about, "https://example.test/predicate", json.RawMessage(`{"a":1}`))
	for _, all := range [][]Attestation{{one}, {one, one}} {
		content, err := encodeList(all)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		all, err := parseList(content)
		if err != nil {
			return
		}
		written, err := encodeList(all)
		if err != nil {
			t.Fatal(err)
		}
		var got, want bytes.Buffer
		if json.Compact(&got, written) != nil || json.Compact(&want, content) != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("%q is written as %q", content, written)
		}
	})
}
