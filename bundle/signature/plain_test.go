package signature

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"testing"
)

// TestPlainKey makes a key without a password, reads it, and refuses what is none.
func TestPlainKey(t *testing.T) {
	good, err := GeneratePlainKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := GeneratePlainKey()
	if err != nil {
		t.Fatal(err)
	}
	s, err := LoadPlainSigner(good)
	if err != nil {
		t.Fatal(err)
	}
	sig := mustSign(t, s, []byte("payload"))
	if err := Verify(s.PublicKey(), []byte("payload"), sig.Bundle, sig.Base64); err != nil {
		t.Error(err)
	}
	if o, err := LoadPlainSigner(other); err != nil || KeyID(o.PublicKey()) == KeyID(s.PublicKey()) {
		t.Errorf("two keys are the same: %v", err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(p384)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		pem  []byte
		want string
	}{
		"empty":     {nil, "no PEM block"},
		"two":       {append(good, other...), "more than one PEM block"},
		"huge":      {make([]byte, keyLimit+1), "too many"},
		"public":    {publicPEM(t, privateKey(s).Public()), `expected a PEM block "PRIVATE KEY"`},
		"encrypted": {seal(t, pemPrivate, privateKey(s)), `found "ENCRYPTED SIGSTORE PRIVATE KEY"`},
		"no PKCS 8": {pem.EncodeToMemory(&pem.Block{Type: pemPlain, Bytes: []byte("x")}), "not in PKCS #8"},
		"P-384":     {pem.EncodeToMemory(&pem.Block{Type: pemPlain, Bytes: pkcs8}), "ECDSA P-384 keys are not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := LoadPlainSigner(test.pem)
			checkError(t, err, test.want)
		})
	}
}
