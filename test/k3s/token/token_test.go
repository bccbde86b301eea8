package token

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	for _, test := range []struct {
		text string
		want Token
		bad  bool
	}{
		{text: "K10" + hash + "::server:p:q", want: Token{Hash: hash, User: "server", Password: "p:q"}},
		{text: "K10" + hash + "::abcdef.0123456789abcdef", want: Token{Hash: hash, Password: "abcdef.0123456789abcdef"}},
		{text: "secret", want: Token{Password: "secret"}},
		{text: "K10" + hash + "::server:", bad: true},
		{text: "K10" + hash + "::server", bad: true},
		{text: "K10" + hash, bad: true},
		{text: "K10abc::server:p", bad: true},
		{text: "K10" + strings.Repeat("zz", 32) + "::server:p", bad: true},
	} {
		got, err := Parse(test.text)
		if (err != nil) != test.bad || got != test.want {
			t.Errorf("Parse(%q) is %+v, %v", test.text, got, err)
		}
		if err == nil && got.String() != test.text {
			t.Errorf("%q comes back as %q", test.text, got.String())
		}
	}
}

func TestNewBootstrap(t *testing.T) {
	id, secret := NewBootstrap()
	if made := (Token{Password: id + "." + secret}); !made.IsBootstrap() {
		t.Errorf("%s is no bootstrap token", made)
	}
}

// A token names a CA alone by its file, and one with a chain by the root, which stays when what is below it changes.
func TestHash(t *testing.T) {
	authority := func(parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: rand.Text()}, NotAfter: time.Now().Add(time.Hour),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
		if parent == nil {
			parent, by = template, key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c, key
	}
	file := func(chain ...*x509.Certificate) []byte {
		var text []byte
		for _, c := range chain {
			text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		}
		return text
	}
	sum := func(content []byte) string {
		s := sha256.Sum256(content)
		return hex.EncodeToString(s[:])
	}
	root, key := authority(nil, nil)
	one, _ := authority(root, key)
	other, _ := authority(root, key)
	for name, test := range map[string]struct{ content, want []byte }{
		"alone":            {file(root), file(root)},
		"a chain":          {file(one, root), root.Raw},
		"another below it": {file(other, root), root.Raw},
		"without its root": {file(one, other), file(one, other)},
		"no certificate":   {[]byte("x"), []byte("x")},
	} {
		if got := Hash(test.content); got != sum(test.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}
