package volume

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// someEntry is the entry of a bundle with a signature and one blob.
func someEntry() *Entry {
	e := &Entry{}
	for _, name := range []string{ocitar.IndexFile, ocitar.SigstoreBundleFile, ocitar.SignatureFile} {
		m := ocitar.Member{Name: name, Size: int64(len(name))}
		e.Members = append(e.Members, StoredMember{m, digest.FromString(name)})
	}
	d := digest.FromString("blob")
	e.Members = append(e.Members, StoredMember{ocitar.Blob(d, 4), d})
	return e
}

func TestParseEntry(t *testing.T) {
	good := string(someEntry().Encode())
	if e, err := ParseEntry([]byte(good)); err != nil || e.Bundle() != digest.FromString(ocitar.IndexFile) {
		t.Fatalf("got %v, %v", e, err)
	}
	// seal is an entry whose last line is right, whatever the others are.
	seal := func(change func(*Entry)) string {
		e := someEntry()
		change(e)
		return string(e.Encode())
	}
	trusting := func(e *Entry) {
		trust := ocitar.Member{Name: ocitar.TrustFile, Size: 2}
		e.Members = slices.Insert(e.Members, 3, StoredMember{trust, digest.FromString("{}")})
	}
	if e, err := ParseEntry([]byte(seal(trusting))); err != nil || e.Members[3].Name != ocitar.TrustFile {
		t.Errorf("with a trust file: %v, %v", e, err)
	}
	other := digest.FromString("other")
	before, _, _ := strings.Cut(good, "end ")
	for name, test := range map[string]struct{ content, want string }{
		"empty":              {"", "no entry"},
		"another kind":       {strings.Replace(good, "Stored", "Moved", 1), "no entry"},
		"cut off":            {good[:len(good)-20], "cut off"},
		"no end":             {before, "cut off"},
		"more":               {good + "x\n", "cut off"},
		"another size":       {strings.Replace(good, " 4 ", " 5 ", 1), "changed"},
		"leading zero":       {strings.Replace(good, " 4 ", " 04 ", 1), "changed"},
		"upper case":         {strings.ToUpper(good), "no entry"},
		"a field less":       {strings.Replace(good, " 4 ", " ", 1), "2 fields"},
		"no size":            {strings.Replace(good, " 4 ", " four ", 1), "invalid syntax"},
		"no digest":          {entryMagic + "abc 4 index.json\nend ", "checksum"},
		"no index":           {seal(func(e *Entry) { e.Members = e.Members[1:] }), "expected the member index.json"},
		"one signature":      {seal(func(e *Entry) { e.Members = e.Members[:2] }), "ends too early"},
		"nothing":            {seal(func(e *Entry) { e.Members = nil }), "ends too early"},
		"twice":              {seal(func(e *Entry) { e.Members = append(e.Members, e.Members[3]) }), "twice"},
		"another blob":       {seal(func(e *Entry) { e.Members[3].SHA256 = other }), "has the digest " + other.String()},
		"out of the tar":     {seal(func(e *Entry) { e.Members[3].Name = "../x" }), "expected a member named"},
		"a huge index":       {seal(func(e *Entry) { e.Members[0].Size = maxHeld + 1 }), "is the most"},
		"a trust file twice": {seal(func(e *Entry) { trusting(e); trusting(e) }), "twice"},
		"a trust file behind a blob": {seal(func(e *Entry) {
			e.Members = append(e.Members, StoredMember{ocitar.Member{Name: ocitar.TrustFile, Size: 2}, digest.FromString("{}")})
		}), "before the blobs"},
		"a negative size": {seal(func(e *Entry) { e.Members[3].Size = -1 }), "out of bounds"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseEntry([]byte(test.content))
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, expected %q", err, test.want)
			}
		})
	}
}

// FuzzEntry reads entries. What is accepted is, byte for byte, what would be written, and can be laid out.
func FuzzEntry(f *testing.F) {
	good := someEntry().Encode()
	f.Add(good)
	f.Add(good[:len(good)-1])
	trusting := someEntry()
	trusting.Members[1] = StoredMember{ocitar.Member{Name: ocitar.TrustFile, Size: 2}, digest.FromString("{}")}
	trusting.Members = slices.Delete(trusting.Members, 2, 3)
	f.Add(trusting.Encode())
	f.Add(bytes.ReplaceAll(good, []byte(" "), []byte("  ")))
	f.Add([]byte(entryMagic))
	f.Add([]byte(entryMagic + entryEnd))
	f.Fuzz(func(t *testing.T, content []byte) {
		e, err := ParseEntry(content)
		if err != nil {
			return
		}
		if again := e.Encode(); !bytes.Equal(again, content) {
			t.Errorf("%q would be written as %q", content, again)
		}
		if _, err := e.Layout(); err != nil || e.Bundle().Validate() != nil {
			t.Errorf("%q cannot be laid out: %v", content, err)
		}
	})
}
