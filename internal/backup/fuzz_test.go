package backup

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// What is opened is bounded and whole, whatever the file is.
func FuzzOpen(f *testing.F) {
	file := func(manifest string, entries ...string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i, content := range append([]string{manifest}, entries...) {
			name := []string{manifestName, EtcdSnapshot, Token, ClaimsRecord, ClaimFiles("gov", "data")}[i]
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o600}); err != nil {
				f.Fatal(err)
			}
			if _, err := io.WriteString(w, content); err != nil {
				f.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			f.Fatal(err)
		}
		return b.Bytes()
	}
	const sound = `{"format":1,"cluster":"c","time":"2026-01-02T03:04:05Z","boxlift":"v1","k3s":"v1.34.4+k3s1","datastore":"etcd","server":"a","nodes":["a"],
"entries":[{"name":"k3s/etcd-snapshot","size":1,"sha256":"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"},
{"name":"k3s/token","size":1,"sha256":"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}]}`
	const claims = `{"claims":[{"workload":"w","namespace":"gov","name":"data","node":"a","path":"/var/lib/x/data","entries":1,"bytes":0}]}`
	withClaims := strings.Replace(strings.TrimSuffix(sound, "]}"), `"format":1`, `"format":2`, 1)
	for _, e := range [][2]string{{ClaimsRecord, claims}, {ClaimFiles("gov", "data"), "x"}} {
		withClaims += fmt.Sprintf(`,{"name":%q,"size":%d,"sha256":"%x"}`, e[0], len(e[1]), sha256.Sum256([]byte(e[1])))
	}
	whole := file(withClaims+"]}", "x", "x", claims, "x")
	if r, err := newReader(bytes.NewReader(whole), int64(len(whole)), nil); err != nil || len(r.Claims()) != 1 {
		f.Fatalf("the seed with claims: %v", err)
	}
	f.Add(whole)
	f.Add(file(sound, "x", "x"))
	f.Add(file(sound, "x"))
	f.Add(file(`{"format":2}`))
	f.Add([]byte("age-encryption.org/v1\n-> X25519 a\nb\n--- c\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		r, err := newReader(bytes.NewReader(content), int64(len(content)), nil)
		if err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrEncrypted) {
				t.Fatalf("another error: %v", err)
			}
			return
		}
		for _, e := range r.Manifest().Entries {
			in, _, err := r.Open(e.Name)
			if err != nil {
				t.Fatal(err)
			}
			n, err := io.Copy(io.Discard, in)
			if err == nil && n != e.Size || err != nil && !errors.Is(err, ErrInvalid) {
				t.Fatalf("%s: %d of %d bytes, %v", e.Name, n, e.Size, err)
			}
		}
	})
}
