package authority

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/install/ca"
)

// FuzzOwn expects of any two files that what is accepted of them can issue a certificate, and that
// all others are refused as the user's own authority.
func FuzzOwn(f *testing.F) {
	dir := f.TempDir()
	a, err := Open(Options{Cluster: "example", Dir: dir})
	if err != nil {
		f.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(a.CA(), key)
	block := func(kind, content string) []byte {
		return []byte("-----BEGIN " + kind + "-----\n" + content + "\n-----END " + kind + "-----\n")
	}
	f.Add(append(a.CA(), a.CA()...), block("EC PARAMETERS", "BggqhkjOPQMBBw=="))
	f.Add(block("CERTIFICATE", "AAAA"), block("PRIVATE KEY", "AAAA"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n"), block("ENCRYPTED PRIVATE KEY", "AAAA"))
	now := time.Now()
	f.Fuzz(func(t *testing.T, certificate, key []byte) {
		certificateFile, keyFile := filepath.Join(dir, "own.crt"), filepath.Join(dir, "own.key")
		err := errors.Join(os.WriteFile(certificateFile, certificate, 0o600), os.WriteFile(keyFile, key, 0o600))
		if err != nil {
			t.Fatal(err)
		}
		issuer, err := readOwn(certificateFile, keyFile, func() time.Time { return now })
		if err != nil {
			if !errors.Is(err, ErrOwn) {
				t.Errorf("%v, expected %v", err, ErrOwn)
			}
			return
		}
		if _, err := issuer.Issue([]string{"10.0.0.1"}); err != nil && !errors.Is(err, ca.ErrNotAccepted) {
			t.Errorf("accepted, and %v", err)
		}
	})
}
