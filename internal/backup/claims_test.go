package backup_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/foldertar"
)

const claimFolder = "/var/lib/rancher/k3s/storage/pvc-1_gov_data"

// withClaim adds the files of a claim to the files of a backup.
func withClaim(t testing.TB, dir string) backup.Claim {
	t.Helper()
	files := t.TempDir()
	write(t, filepath.Join(files, "records.jsonl"), []byte("the first record"))
	var b bytes.Buffer
	report, err := foldertar.Write(t.Context(), files, &b)
	if err != nil {
		t.Fatal(err)
	}
	c := backup.Claim{Workload: "gov-native", Namespace: "gov", Name: "data", Node: "two", Path: claimFolder, Entries: report.Entries, Bytes: report.Bytes}
	write(t, filepath.Join(dir, backup.ClaimFiles("gov", "data")), b.Bytes())
	record(t, dir, c)
	return c
}

func record(t testing.TB, dir string, claims ...backup.Claim) {
	t.Helper()
	content, err := backup.EncodeClaims(claims)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, backup.ClaimsRecord), content)
}

// A backup with files of claims says so by its format, which an older boxlift refuses; without them, it is as ever.
func TestClaims(t *testing.T) {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for _, recipients := range [][]age.Recipient{nil, {key.Recipient()}} {
		dir := parts(t, backup.Etcd)
		want := []backup.Claim{withClaim(t, dir)}
		path := filepath.Join(t.TempDir(), "b.tar")
		made, err := backup.Write(t.Context(), path, manifest(backup.Etcd), dir, recipients...)
		if err != nil {
			t.Fatal(err)
		}
		r, err := backup.Open(path, key)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		report, err := r.Verify(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range [][]backup.Claim{made.Claims, r.Claims(), report.Claims} {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		}
		if r.Manifest().Format != backup.FormatWithClaims {
			t.Errorf("the format is %d", r.Manifest().Format)
		}
	}
	path := filepath.Join(t.TempDir(), "b.tar")
	made, err := backup.Write(t.Context(), path, manifest(backup.Etcd), parts(t, backup.Etcd))
	if err != nil {
		t.Fatal(err)
	}
	r, err := backup.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.Manifest().Format != backup.Format || r.Claims() != nil || made.Claims != nil {
		t.Errorf("without claims: the format %d, %v", r.Manifest().Format, r.Claims())
	}
}

// Claims that could not be brought back, or would replace what is not theirs, are neither written nor read.
func TestClaimsRefused(t *testing.T) {
	change := func(do func(c *backup.Claim)) func(*testing.T, string, backup.Claim) {
		return func(t *testing.T, dir string, c backup.Claim) { do(&c); record(t, dir, c) }
	}
	text := func(s string) func(*testing.T, string, backup.Claim) {
		return func(t *testing.T, dir string, _ backup.Claim) {
			write(t, filepath.Join(dir, backup.ClaimsRecord), []byte(s))
		}
	}
	for _, test := range []struct {
		name string
		do   func(*testing.T, string, backup.Claim)
		want string
	}{
		{"no record", func(t *testing.T, dir string, _ backup.Claim) { remove(t, dir, backup.ClaimsRecord) },
			"claims.json is missing"},
		{"no files", func(t *testing.T, dir string, _ backup.Claim) { remove(t, dir, backup.ClaimFiles("gov", "data")) }, "are missing"},
		{"files of nobody", func(t *testing.T, dir string, _ backup.Claim) {
			write(t, filepath.Join(dir, "claims/gov/other.tar"), nil)
		}, "does not say whose"},
		{"no JSON", text("{"), "cannot be read"},
		{"two documents", text(`{"claims":[]}{}`), "something follows"},
		{"another field", text(`{"claims":[],"more":1}`), "unknown field"},
		{"none", text(`{"claims":[]}`), "has 0 claims"},
		{"twice", func(t *testing.T, dir string, c backup.Claim) {
			other := c
			other.Node = "one"
			record(t, dir, c, other)
		}, "named twice"},
		{"one in the other", func(t *testing.T, dir string, c backup.Claim) {
			other := c
			other.Name, other.Path = "x", c.Path+"/x"
			write(t, filepath.Join(dir, backup.ClaimFiles("gov", "x")), nil)
			record(t, dir, c, other)
		}, "are in one folder"},
		{"a namespace", change(func(c *backup.Claim) { c.Namespace = "../gov" }), "has the name"},
		{"a claim", change(func(c *backup.Claim) { c.Name = "" }), "has the name"},
		{"a node", change(func(c *backup.Claim) { c.Node = "a/b" }), "has the name"},
		{"a folder of the system", change(func(c *backup.Claim) { c.Path = "/etc" }), "is no folder"},
		{"a folder of others", change(func(c *backup.Claim) { c.Path = "/var/lib/rancher/k3s/server" }),
			"is no folder"},
		{"a folder that leads away", change(func(c *backup.Claim) { c.Path = claimFolder + "/../../../data" }),
			"is no folder"},
		{"a relative folder", change(func(c *backup.Claim) { c.Path = "var/lib/rancher/k3s/data" }), "is no folder"},
		{"no entries", change(func(c *backup.Claim) { c.Entries = 0 }), "has 0 files"},
		{"more bytes", change(func(c *backup.Claim) { c.Bytes++ }), "expected 2 with"},
		{"a tar that leads away", func(t *testing.T, dir string, _ backup.Claim) {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, h := range []tar.Header{{Typeflag: tar.TypeDir, Name: "./"}, {Typeflag: tar.TypeReg, Name: "../x"}} {
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, backup.ClaimFiles("gov", "data")), b.Bytes())
		}, "no name of a file"},
	} {
		dir, to := parts(t, backup.Etcd), t.TempDir()
		test.do(t, dir, withClaim(t, dir))
		_, err := backup.Write(t.Context(), filepath.Join(to, "b.tar"), manifest(backup.Etcd), dir)
		if !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
		if left, err := os.ReadDir(to); err != nil || len(left) != 0 {
			t.Errorf("%s: left are %v, %v", test.name, left, err)
		}
	}
}

// A byte of a claim that is another one, and a format that does not go with what is there, are found.
func TestClaimsDamaged(t *testing.T) {
	dir := parts(t, backup.Etcd)
	withClaim(t, dir)
	path := filepath.Join(t.TempDir(), "b.tar")
	if _, err := backup.Write(t.Context(), path, manifest(backup.Etcd), dir); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		"the first record": "the worst record", `"format": 2`: `"format": 1`, `"format": 2,`: `"format": 3,`, "pvc-1_gov_data": "pvc-2_gov_data",
	} {
		if bytes.Count(whole, []byte(from)) != 1 {
			t.Fatalf("it has %q %d times", from, bytes.Count(whole, []byte(from)))
		}
		write(t, path, bytes.Replace(whole, []byte(from), []byte(to), 1))
		r, err := backup.Open(path)
		if err == nil {
			_, err = r.Verify(t.Context())
			_ = r.Close()
		}
		if !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%q: %v", to, err)
		}
	}
}

// The document is what the form says it is.
func TestEncodeClaims(t *testing.T) {
	content, err := backup.EncodeClaims([]backup.Claim{{Workload: "w", Namespace: "n", Name: "c", Node: "a", Path: "/p", Entries: 1, Bytes: 2}})
	var got map[string]any
	if err := errors.Join(err, json.Unmarshal(content, &got)); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"claims": []any{map[string]any{"workload": "w", "namespace": "n", "name": "c", "node": "a", "path": "/p", "entries": 1.0, "bytes": 2.0}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
