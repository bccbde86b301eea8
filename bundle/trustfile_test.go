package bundle_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// trustFile is what a trust file is written as.
func trustFile(t testing.TB, p *trust.Policy) []byte {
	t.Helper()
	content, err := p.File().Encode()
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// open opens a bundle in memory.
func open(file []byte) (*bundle.Reader, error) {
	return bundle.NewReader(bytes.NewReader(file), int64(len(file)), "bundle.tar")
}

// TestTrustFile has a trust file in bundles of each kind. Each is the bundle that it is without one.
func TestTrustFile(t *testing.T) {
	content := trustFile(t, trusttest.Next(t, trusttest.First(t), func(*trust.Version) {}))
	signer := bundletest.SignerOf(t, 0)
	crafted := func(by *signature.Signer, content []byte) []byte {
		c := bundletest.Craft()
		c.Trust = content
		return c.Tar(t, by)
	}
	delta := func(by *signature.Signer, content []byte) []byte {
		d := craftDelta(t, by)
		d.trust = content
		return d.tar(t, by)
	}
	for name, test := range map[string]struct {
		with, without []byte
		key           *signature.PublicKey
	}{
		"signed":       {crafted(signer, content), crafted(signer, nil), signer.PublicKey()},
		"unsigned":     {crafted(nil, content), crafted(nil, nil), nil},
		"signed delta": {delta(signer, content), delta(signer, nil), signer.PublicKey()},
		"delta":        {delta(nil, content), delta(nil, nil), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if err := check(t, test.with, test.key); err != nil {
				t.Fatal(err)
			}
			with, err := open(test.with)
			if err != nil {
				t.Fatal(err)
			}
			without, err := open(test.without)
			if err != nil {
				t.Fatal(err)
			}
			if with.Digest() != without.Digest() || !bytes.Equal(with.Index(), without.Index()) {
				t.Errorf("the bundle is %s with it and %s without it", with.Digest(), without.Digest())
			}
			if f := with.TrustFile(); f == nil || f.Newest().Number != 2 {
				t.Errorf("the trust file is %v", f)
			}
			if f := without.TrustFile(); f != nil {
				t.Errorf("there is a trust file: %v", f)
			}
			if got := with.Fixed()[ocitar.TrustFile]; !bytes.Equal(got, content) {
				t.Errorf("it holds %d bytes, expected %d", len(got), len(content))
			}
			if without.Fixed()[ocitar.TrustFile] != nil {
				t.Error("it holds a trust file")
			}
		})
	}
	whole := crafted(nil, content)
	r, err := open(delta(nil, content))
	if err != nil {
		t.Fatal(err)
	}
	base, err := open(crafted(nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	r.Use(base)
	joined := make([]byte, r.Whole().Size())
	if _, err := r.Whole().ReadAt(joined, 0); err != nil || !bytes.Equal(joined, whole) {
		t.Errorf("with its base, the delta is not the bundle: %v", err)
	}
}

// TestRefusedTrustFile has members trust.json that are no trust files, for whoever opens the bundle.
func TestRefusedTrustFile(t *testing.T) {
	good := trustFile(t, trusttest.First(t))
	signer := bundletest.SignerOf(t, 0)
	for name, test := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":            {[]byte{}, "invalid trust file"},
		"garbage":          {[]byte("\x00garbage"), "invalid trust file"},
		"cut off":          {good[:len(good)/2], "invalid trust file"},
		"more behind it":   {append(bytes.Clone(good), "{}"...), "invalid trust file"},
		"another kind":     {bytes.Replace(good, []byte("TrustFile"), []byte("TrustFilm"), 1), `it is a "TrustFilm"`},
		"an unknown field": {bytes.Replace(good, []byte(`"kind"`), []byte(`"kinds"`), 1), "unknown or repeated fields"},
		"no version":       {[]byte(`{"apiVersion":"boxlift.dev/v1","kind":"TrustFile","versions":[]}`), "it has 0 versions"},
		"oversized":        {append(bytes.Clone(good), make([]byte, trust.MaxSize)...), "8388608 is the most"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, by := range []*signature.Signer{nil, signer} {
				c := bundletest.Craft()
				c.Trust = test.content
				_, err := open(c.Tar(t, by))
				bundletest.WantError(t, err, "read trust.json in the bundle: ", test.want)
				if !errors.Is(err, trust.ErrInvalid) || fault.ClassOf(err) != fault.Input {
					t.Errorf("%v is of the class %d", err, fault.ClassOf(err))
				}
				if hints := fault.Hints(err); len(hints) != 1 || !strings.Contains(hints[0], "copy the bundle again") {
					t.Errorf("hints: %q", hints)
				}
			}
		})
	}
}

// TestMisplacedTrustFile moves the member, and doubles it.
func TestMisplacedTrustFile(t *testing.T) {
	c := bundletest.Craft()
	c.Trust = trustFile(t, trusttest.First(t))
	file := c.Tar(t, bundletest.SignerOf(t, 0))
	r, err := open(file)
	if err != nil {
		t.Fatal(err)
	}
	var members [][]byte // with their headers
	at := -1
	for i, e := range r.Stored().Layout().Entries {
		members = append(members, file[e.HeaderOffset():e.End()])
		if e.Name == ocitar.TrustFile {
			at = i
		}
	}
	if at != 4 {
		t.Fatalf("the trust file is the member %d", at)
	}
	others := slices.Delete(slices.Clone(members), at, at+1)
	for to := range len(others) + 1 {
		moved := bytes.Join(slices.Insert(slices.Clone(others), to, members[at]), nil)
		_, err := open(append(moved, make([]byte, ocitar.TrailerSize)...))
		if to == at && err != nil || to != at && !errors.Is(err, ocitar.ErrMalformed) {
			t.Errorf("as the member %d: %v", to, err)
		}
		twice := bytes.Join(slices.Insert(slices.Clone(members), to, members[at]), nil)
		_, err = open(append(twice, make([]byte, ocitar.TrailerSize)...))
		if !errors.Is(err, ocitar.ErrMalformed) || fault.ClassOf(err) != fault.Bundle {
			t.Errorf("once more as the member %d: %v", to, err)
		}
	}
}

// FuzzTrustFile reads bundles with hostile trust files: nothing but an error may come of them, and what is accepted can
// be read again as it is handed on.
func FuzzTrustFile(f *testing.F) {
	one := trusttest.First(f)
	f.Add(trustFile(f, one))
	f.Add(trustFile(f, trusttest.Next(f, one, trusttest.Revoke(f, "ann", "laptop lost"))))
	f.Add([]byte(`{"apiVersion":"boxlift.dev/v1","kind":"TrustFile","versions":[]}`))
	digest := func(file []byte) string {
		r, err := open(file)
		if err != nil {
			f.Fatal(err)
		}
		return r.Digest().String()
	}
	want := digest(bundletest.Craft().Tar(f, nil))
	f.Fuzz(func(t *testing.T, content []byte) {
		c := bundletest.Craft()
		c.Trust = content
		if content == nil {
			c.Trust = []byte{}
		}
		r, err := open(c.Tar(t, nil))
		if err != nil {
			if !errors.Is(err, trust.ErrInvalid) {
				t.Errorf("an error that does not say so: %v", err)
			}
			return
		}
		if r.Digest().String() != want || r.Verify(t.Context(), nil) != nil {
			t.Error("the bundle is another")
		}
		again, err := r.TrustFile().Encode()
		if err != nil {
			return // indented, it can be too large
		}
		if _, err := trust.Parse(again); err != nil {
			t.Errorf("it cannot be read again: %v", err)
		}
	})
}
