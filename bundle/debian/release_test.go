package debian_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/debian"
	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/packagearchive"
)

const inRelease = "dists/bookworm/InRelease"

func newKey(t *testing.T) *packagearchive.Key {
	t.Helper()
	k, err := packagearchive.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func keyring(t *testing.T, keys ...*packagearchive.Key) *debian.Keyring {
	t.Helper()
	data, err := packagearchive.Keyring(keys...)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := debian.ReadKeyring(data)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// files of an archive with two packages.
func files(t *testing.T, release map[string]string, keys ...*packagearchive.Key) map[string][]byte {
	t.Helper()
	all, err := packagearchive.Suite{
		Codename: "bookworm", Release: release, Keys: keys,
		Packages: []packagearchive.Package{
			{Name: "alpha", Version: "1.0-1", Architecture: "amd64", Fields: map[string]string{"Depends": "beta (>= 1)"}},
			{Name: "beta", Version: "1:1.2"},
		},
	}.Files()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestOpenRelease(t *testing.T) {
	old, key, stranger := newKey(t), newKey(t), newKey(t)
	good := files(t, nil, key)[inRelease]
	flipped := bytes.Replace(good, []byte("Origin: boxlift"), []byte("Origin: boxlifd"), 1)
	now := time.Now()
	for _, c := range []struct {
		name string
		ring *debian.Keyring
		data []byte
		want string // "" for none
		kind error
	}{
		{"good", keyring(t, key), good, "", nil},
		{"one of the keys", keyring(t, stranger, key), good, "", nil},
		{"one of the signatures", keyring(t, key), files(t, nil, old, key)[inRelease], "", nil},
		{"good until later", keyring(t, key), files(t, map[string]string{
			"Valid-Until": now.Add(time.Hour).UTC().Format("Mon, 02 Jan 2006 15:04:05 MST")}, key)[inRelease], "", nil},
		{"stranger", keyring(t, stranger), good, "no key of the keyring", debian.ErrSignature},
		{"changed", keyring(t, key), flipped, "no key of the keyring", debian.ErrSignature},
		{"unsigned", keyring(t, key), files(t, nil)[inRelease], "does not begin with", debian.ErrSignature},
		{"something before", keyring(t, key), append([]byte("Suite: evil\n\n"), good...), "does not begin with",
			debian.ErrSignature},
		{"something behind", keyring(t, key), append(bytes.Clone(good), "Suite: evil\n"...), "something follows",
			debian.ErrSignature},
		{"cut", keyring(t, key), good[:len(good)-40], "not a signed text", debian.ErrSignature},
		{"too large", keyring(t, key), append(bytes.Clone(good), make([]byte, debian.MaxInRelease)...), "more than",
			debian.ErrArchive},
		{"good until yesterday", keyring(t, key), files(t, map[string]string{
			"Date":        "Mon, 3 Aug 2026 10:00:00 UTC",
			"Valid-Until": now.Add(-24 * time.Hour).UTC().Format("Mon, 02 Jan 2006 15:04:05 MST")}, key)[inRelease],
			"withholds what is newer", debian.ErrArchive},
		{"no date", keyring(t, key), files(t, map[string]string{"Date": ""}, key)[inRelease], "Date: \"\" is not a time",
			debian.ErrArchive},
		{"bad end", keyring(t, key), files(t, map[string]string{"Valid-Until": "never"}, key)[inRelease], "Valid-Until",
			debian.ErrArchive},
		{"no sums", keyring(t, key), files(t, map[string]string{"SHA256": ""}, key)[inRelease], "lists no files",
			debian.ErrArchive},
		{"bad sum", keyring(t, key), files(t, map[string]string{"SHA256": "\n abc 1 x"}, key)[inRelease],
			"64 hexadecimal digits", debian.ErrArchive},
		{"two paragraphs", keyring(t, key), files(t, map[string]string{"Z": "x\n\nSuite: evil"}, key)[inRelease],
			"2 paragraphs", debian.ErrArchive},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := debian.OpenRelease(c.ring, c.data, now)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if r.Codename != "bookworm" || r.Suite != "stable" || !r.ByHash {
					t.Errorf("it reads as %+v", r)
				}
				return
			}
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, expected %v: ...%s", err, c.kind, c.want)
			}
		})
	}
}

// TestKeyEnds has a signature judged by the time at which it is looked at: a key of the future is none.
func TestKeyEnds(t *testing.T) {
	key := newKey(t)
	_, err := debian.OpenRelease(keyring(t, key), files(t, nil, key)[inRelease], time.Now().Add(-48*time.Hour))
	if !errors.Is(err, debian.ErrSignature) {
		t.Errorf("%v, expected an error of the signature", err)
	}
}

func TestReadKeyring(t *testing.T) {
	for name, data := range map[string][]byte{
		"nothing": nil, "text": []byte("a key"), "armor": []byte("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nx\n"),
		"large": make([]byte, debian.MaxKeyring+1),
	} {
		if _, err := debian.ReadKeyring(data); !errors.Is(err, debian.ErrKeyring) {
			t.Errorf("%s: %v, expected it to be refused", name, err)
		}
	}
	// The system's own, where it is there, in the form that distributions ship.
	data, err := os.ReadFile("/usr/share/keyrings/debian-archive-keyring.gpg")
	if err != nil {
		need.LeaveOut(t, "this system is not Debian: "+err.Error())
	}
	if _, err := debian.ReadKeyring(data); err != nil {
		t.Error(err)
	}
}

func open(t *testing.T, release map[string]string) (*debian.Release, map[string][]byte) {
	t.Helper()
	key := newKey(t)
	all := files(t, release, key)
	r, err := debian.OpenRelease(keyring(t, key), all[inRelease], time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return r, all
}

func TestIndexes(t *testing.T) {
	r, _ := open(t, nil)
	for suite, good := range map[string]bool{"bookworm": true, "stable": true, "trixie": false, "": false} {
		if err := r.Is(suite); (err == nil) != good {
			t.Errorf("%q: %v", suite, err)
		}
	}
	backports, _ := open(t, map[string]string{"Suite": "noble-backports", "Codename": "noble"})
	for suite, good := range map[string]bool{"noble-backports": true, "noble-backports/": true, "noble": false} {
		if err := backports.Is(suite); (err == nil) != good {
			t.Errorf("noble-backports as %q: %v", suite, err)
		}
	}
	for _, bad := range [][2]string{{"contrib", "amd64"}, {"main", "riscv64"}} {
		if _, err := r.Indexes(bad[0], bad[1]); !errors.Is(err, debian.ErrArchive) {
			t.Errorf("%v: %v, expected an error", bad, err)
		}
	}
	own, err := r.Indexes("main", "amd64")
	if err != nil {
		t.Fatal(err)
	}
	if len(own) != 1 || own[0].Path != "main/binary-amd64/by-hash/SHA256/"+own[0].SHA256 || own[0].Compression != "xz" {
		t.Errorf("got %+v", own)
	}
	r, _ = open(t, map[string]string{"Acquire-By-Hash": "no"})
	own, err = r.Indexes("main", "amd64")
	if err != nil {
		t.Fatal(err)
	}
	if len(own) != 1 || own[0].Path != "main/binary-amd64/Packages.xz" {
		t.Errorf("got %+v", own)
	}
}

// TestIndexForms reads each form of an index, and the one apart of packages for all architectures.
func TestIndexForms(t *testing.T) {
	_, all := open(t, nil)
	const base = "main/binary-amd64/Packages"
	for compression, suffix := range map[string]string{"": "", "gz": ".gz", "xz": ".xz"} {
		x := debian.NewIndex("amd64")
		f := debian.IndexFile{Path: base + suffix, Compression: compression}
		if err := x.Add(3, f, all["dists/bookworm/"+base+suffix]); err != nil {
			t.Fatal(err)
		}
		found, err := x.Resolve(debian.Wish{Names: []string{"alpha"}})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range found {
			got = append(got, p.Name+" "+p.Version+" "+p.Architecture+" "+p.Path)
			if p.Archive != 3 || p.Size != int64(len(all[p.Path])) || len(p.SHA256) != 64 {
				t.Errorf("%+v", p)
			}
		}
		want := []string{"alpha 1.0-1 amd64 pool/main/a/alpha/alpha_1.0-1_amd64.deb",
			"beta 1:1.2 all pool/main/b/beta/beta_1.2_all.deb"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", compression, diff)
		}
		if compression == "" {
			continue
		}
		if err := x.Add(0, f, all["dists/bookworm/"+base+suffix][:60]); !errors.Is(err, debian.ErrArchive) {
			t.Errorf("%q cut: %v, expected an error", compression, err)
		}
	}
}

func TestBadIndex(t *testing.T) {
	const sum = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	good := "Package: a\nVersion: 1\nArchitecture: amd64\nFilename: pool/a.deb\nSize: 1\nSHA256: " + sum + "\n"
	for _, c := range []struct{ old, new, want string }{
		{"Package: a", "Package: a/b", `"a/b" is not the name of a package`},
		{"Package: a", "Package: a_b", `"a_b" is not the name of a package`},
		{"Version: 1", "Version: 1 2", `"1 2" is not a version`},
		{"amd64", "AMD", `"AMD" is not an architecture`},
		{"pool/a.deb", "../a.deb", `"../a.deb" is not a path`},
		{"pool/a.deb", "/a.deb", `"/a.deb" is not a path`},
		{"pool/a.deb", "pool/../../a.deb", `is not a path`},
		{"pool/a.deb", "pool/a b.deb", `is not a path`},
		{"Size: 1", "Size: -1", `its size is "-1"`},
		{"Size: 1", "Size: 99999999999", `its size is`},
		{sum, "abc", `its SHA256 is "abc"`},
		{"Size: 1", "Size: 1\nDepends: a (", `depends: "a (" is not NAME`},
		{"Size: 1", "Size: 1\nProvides: a | b", `provides: "a | b": there are no alternatives`},
	} {
		text := "\n" + strings.Replace(good, c.old, c.new, 1)
		err := debian.NewIndex("amd64").Add(0, debian.IndexFile{Path: "Packages"}, []byte(text))
		if !errors.Is(err, debian.ErrArchive) || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "Packages: line 2: package") {
			t.Errorf("%q: %v, expected %s", c.new, err, c.want)
		}
	}
}

func TestReadState(t *testing.T) {
	const state = `Package: a
Status: install ok installed
Architecture: amd64
Version: 1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: other
Status: install ok installed
Architecture: i386
Version: 1

Package: kept
Status: hold ok installed
Architecture: all
Version: 2

Package: vendor_agent
Status: install ok installed
Architecture: amd64
Version: 1
Depends: vendor_base | a
`
	all, err := debian.ReadState("amd64", []byte(state))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range all {
		text := p.String()
		if p.Held {
			text += " held"
		}
		got = append(got, text)
	}
	if diff := cmp.Diff([]string{"a 1", "kept 2 held", "vendor_agent 1"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for text, want := range map[string]string{
		"":                        "no package for amd64 is installed",
		"Package: a\n":            "expected three words",
		"not a state":             "expected FIELD: VALUE",
		state + "\n" + state[:70]: "it is listed twice",
		strings.Replace(state, "ok installed", "ok half-configured", 1): "it is half-configured",
		strings.Replace(state, "Version: 1", "Version: /", 1):           "is not a version",
	} {
		if _, err := debian.ReadState("amd64", []byte(text)); !errors.Is(err, debian.ErrState) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, expected %s", text, err, want)
		}
	}
}

func FuzzOpenRelease(f *testing.F) {
	key, err := packagearchive.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	data, err := packagearchive.Keyring(key)
	if err != nil {
		f.Fatal(err)
	}
	ring, err := debian.ReadKeyring(data)
	if err != nil {
		f.Fatal(err)
	}
	// What is fuzzed is signed: what is not ends at the signature, which is not ours to fuzz.
	f.Add([]byte("Date: Mon, 3 Aug 2026 10:00:00 UTC\nSHA256:\n " + strings.Repeat("0", 64) + " 1 main/binary-amd64/Packages\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		signed, err := packagearchive.Sign(text, key)
		if err != nil {
			return
		}
		r, err := debian.OpenRelease(ring, signed, time.Now())
		if err != nil {
			return
		}
		for _, c := range r.Components {
			for _, a := range r.Architectures {
				_, _ = r.Indexes(c, a)
			}
		}
		_, err = debian.OpenRelease(ring, append([]byte("x"), signed...), time.Now())
		if err == nil {
			t.Error("something before the signed text was passed over")
		}
	})
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte("Package: a\nVersion: 1\nArchitecture: amd64\nFilename: pool/a.deb\nSize: 1\nSHA256: " +
		strings.Repeat("0", 64) + "\nPriority: required\nDepends: a | b (>= 1)\nConflicts: c\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, compression := range []string{"", "xz", "gz"} {
			x := debian.NewIndex("amd64")
			if x.Add(0, debian.IndexFile{Compression: compression}, text) != nil {
				continue
			}
			all, err := x.Base("required")
			if err != nil {
				continue
			}
			for _, p := range all {
				if p.Size < 1 || len(p.SHA256) != 64 || strings.HasPrefix(p.Path, "..") || p.Name == "" {
					t.Errorf("%+v was accepted", p)
				}
			}
		}
		_, _ = debian.ReadState("amd64", text)
	})
}
