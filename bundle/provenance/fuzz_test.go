package provenance

import (
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

// FuzzCheck expects that only a statement that names the bundle's digest is taken to be about it.
func FuzzCheck(f *testing.F) {
	about := digest.FromString("bundle")
	statement, err := About(about, "https://example.test/predicate", []byte(`{"a":1}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(statement)
	f.Add([]byte(`{"_type":"` + statementType + `","subject":null}`))
	f.Add([]byte(`{"_type":"` + statementType + `","subject":[{"digest":{"sha256":"0"}}]}`))
	f.Add([]byte("[]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := Check(text, about); err == nil && !namesDigest(text, about) {
			t.Errorf("%q is taken to be about %s", text, about)
		}
	})
}

// namesDigest reports whether a text has a digest in it, be it in JSON's escapes.
func namesDigest(text []byte, d digest.Digest) bool {
	return strings.Contains(string(text), d.Encoded()) || strings.Contains(string(text), `\u00`)
}
