package bundle_test

import (
	"bytes"
	"crypto/elliptic"
	"encoding/asn1"
	"encoding/base64"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/ocilayout"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

// TestSignatureForm changes the members of a signature so that they verify all the same. Only the
// other value of s is accepted, which earlier versions wrote every second time.
func TestSignatureForm(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	signer := bundletest.NewSigner(t)
	smallbundle.Write(t, path, smallbundle.Bundle{Signer: signer, Components: []smallbundle.Component{{
		Name: "k3s", Version: "v1.36.2+k3s1", Files: []smallbundle.File{{Name: "install.sh", Content: "#!/bin/sh\n"}},
	}}})
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tar, err := ocitar.NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	sig, err := tar.ReadAll(ocitar.SignatureFile, signature.MaxSize)
	if err != nil {
		t.Fatal(err)
	}
	der, err := base64.StdEncoding.DecodeString(string(sig))
	if err != nil {
		t.Fatal(err)
	}
	var rs struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &rs); err != nil {
		t.Fatal(err)
	}
	rs.S.Sub(elliptic.P256().Params().N, rs.S)
	if der, err = asn1.Marshal(rs); err != nil {
		t.Fatal(err)
	}
	high := []byte(base64.StdEncoding.EncodeToString(der))
	same := func(b []byte) []byte { return b }
	toHigh := func(b []byte) []byte { return bytes.Replace(b, sig, high, 1) }
	after := func(more string) func([]byte) []byte {
		return func(b []byte) []byte { return append(bytes.Clone(b), more...) }
	}
	logEntry := func(b []byte) []byte {
		return bytes.Replace(b, []byte(`},"messageSignature"`), []byte(`,"tlogEntries":["x"]},"messageSignature"`), 1)
	}
	for name, test := range map[string]struct {
		bundle, sig func([]byte) []byte
		accepted    bool
	}{
		"as it was":              {same, same, true},
		"higher value":           {toHigh, toHigh, true},
		"higher value, bare":     {same, toHigh, false},
		"higher value, sigstore": {toHigh, same, false},
		"line break":             {same, after("\n"), false},
		"white space":            {after(" "), same, false},
		"log entry":              {logEntry, same, false},
	} {
		t.Run(name, func(t *testing.T) {
			var members []ocitar.Member
			var contents [][]byte
			for _, e := range tar.Layout().Entries {
				content := file[e.Offset : e.Offset+e.Size]
				switch e.Name {
				case ocitar.SigstoreBundleFile:
					content = test.bundle(content)
				case ocitar.SignatureFile:
					content = test.sig(content)
				}
				members = append(members, ocitar.Member{Name: e.Name, Size: int64(len(content))})
				contents = append(contents, content)
			}
			changed := filepath.Join(t.TempDir(), "changed.tar")
			if err := os.WriteFile(changed, ocilayout.Tar(t, members, contents), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := bundle.OpenSigned(changed, signer.PublicKey())
			if err == nil {
				defer r.Close()
			}
			if refused := new(bundle.SignatureError); test.accepted != (err == nil) || err != nil &&
				!errors.As(err, &refused) {
				t.Errorf("got %v", err)
			}
		})
	}
}
