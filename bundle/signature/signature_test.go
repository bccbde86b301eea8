package signature

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// rfcSigner returns the P-256 key of RFC 6979, appendix A.2.5.
func rfcSigner(t testing.TB) *Signer {
	t.Helper()
	d, err := hex.DecodeString("C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), d)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := newPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return &Signer{key: deterministic{key}, public: pub}
}

func newSigner(t testing.TB) *Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := newPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return &Signer{key: deterministic{key}, public: pub}
}

// privateKey is the key of a signer that holds it.
func privateKey(s *Signer) *ecdsa.PrivateKey { return s.key.(deterministic).key }

func mustSign(t testing.TB, s *Signer, payload []byte) Signature {
	t.Helper()
	sig, err := s.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	return sig
}

// TestSignVector checks against the published signature of "sample" with SHA-256.
func TestSignVector(t *testing.T) {
	sig := mustSign(t, rfcSigner(t), []byte("sample"))
	der, err := base64.StdEncoding.DecodeString(string(sig.Base64))
	if err != nil {
		t.Fatal(err)
	}
	var rs struct{ R, S *big.Int }
	if rest, err := asn1.Unmarshal(der, &rs); err != nil || len(rest) > 0 {
		t.Fatalf("DER: %v, %d bytes left", err, len(rest))
	}
	// The published s is the higher of the two that verify; this is the other one.
	published, _ := new(big.Int).SetString("F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8", 16)
	want := "EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716 " +
		fmt.Sprintf("%064X", new(big.Int).Sub(elliptic.P256().Params().N, published))
	if got := fmt.Sprintf("%064X %064X", rs.R, rs.S); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSignGolden(t *testing.T) {
	sig := mustSign(t, rfcSigner(t), []byte("sample"))
	for name, got := range map[string][]byte{
		"testdata/sample.sigstore.json": sig.Bundle,
		"testdata/sample.sig":           sig.Base64,
	} {
		if *update {
			if err := os.WriteFile(name, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestSignSizes(t *testing.T) {
	s := newSigner(t)
	var most Signature
	for i := range 10_000 {
		sig := mustSign(t, s, fmt.Append(nil, i))
		if len(sig.Bundle) > len(most.Bundle) {
			most = sig
		}
	}
	// 72 bytes of DER: both numbers with their highest bit set, the longest there is.
	if n := len(most.Base64); n != 96 {
		t.Errorf("the longest base64 signature has %d bytes, expected 96", n)
	}
	if n := len(most.Bundle); n > MaxSize {
		t.Errorf("the longest bundle has %d bytes, more than %d", n, MaxSize)
	}
}

func TestGenerateKey(t *testing.T) {
	t.Parallel() // scrypt is slow by design, slower still under -race
	for _, password := range []string{"", "correct horse"} {
		t.Run(password, func(t *testing.T) {
			t.Parallel()
			private, public, err := GenerateKey([]byte(password))
			if err != nil {
				t.Fatal(err)
			}
			s, err := LoadSigner(private, []byte(password))
			if err != nil {
				t.Fatal(err)
			}
			pub, err := ParsePublicKey(public)
			if err != nil {
				t.Fatal(err)
			}
			if KeyID(pub) != KeyID(s.PublicKey()) || len(KeyID(pub)) != 44 {
				t.Errorf("key IDs %q and %q", KeyID(pub), KeyID(s.PublicKey()))
			}
			sig := mustSign(t, s, []byte("payload"))
			if err := Verify(pub, []byte("payload"), sig.Bundle, sig.Base64); err != nil {
				t.Error(err)
			}
			if _, err := LoadSigner(private, []byte("wrong")); !errors.Is(err, ErrWrongPassword) {
				t.Errorf("a wrong password gave: %v", err)
			}

			block, _ := pem.Decode(private)
			var body struct {
				KDF struct {
					Name   string
					Params map[string]int
				}
				Cipher struct{ Name string }
			}
			if err := json.Unmarshal(block.Bytes, &body); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]int{"N": 65536, "r": 8, "p": 1}, body.KDF.Params); diff != "" {
				t.Errorf("scrypt parameters (-want +got):\n%s", diff)
			}
			if block.Type != "ENCRYPTED SIGSTORE PRIVATE KEY" || body.KDF.Name != "scrypt" || body.Cipher.Name != "nacl/secretbox" {
				t.Errorf("a block %q with %s and %s", block.Type, body.KDF.Name, body.Cipher.Name)
			}
		})
	}
}

// seal encrypts a private key of any kind in cosign's form.
func seal(t *testing.T, pemType string, key any) []byte {
	t.Helper()
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return sealBytes(t, pemType, pkcs8)
}

func sealBytes(t *testing.T, pemType string, plain []byte) []byte {
	t.Helper()
	body, err := encrypted.EncryptWithCustomKDFParameters(plain, []byte("pw"), encrypted.Legacy)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: body})
}

func publicPEM(t testing.TB, key crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPublic, Bytes: der})
}

func TestLoadSigner(t *testing.T) {
	t.Parallel()
	p256 := privateKey(newSigner(t))
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	good := seal(t, pemPrivate, p256)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(p256)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(good)
	costly := bytes.Replace(block.Bytes, []byte(`"N":32768`), []byte(`"N":1073741824`), 1)

	tests := []struct {
		name string
		pem  []byte
		want string // what the error says; "" for none
	}{
		{"sigstore", good, ""},
		{"cosign", seal(t, pemPrivateCosign, p256), ""},
		{"empty", nil, "no PEM block"},
		{"huge", make([]byte, keyLimit+1), "too many"},
		{"two keys", append(bytes.Clone(good), good...), "more than one PEM block"},
		{"public", publicPEM(t, p256.Public()), "this is a public key"},
		{"not encrypted", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), "cosign import-key-pair"},
		{"not JSON", pem.EncodeToMemory(&pem.Block{Type: pemPrivate, Bytes: []byte("{")}), "unexpected end of JSON"},
		{"costly scrypt", pem.EncodeToMemory(&pem.Block{Type: pemPrivate, Bytes: costly}), "unsupported scrypt parameters"},
		{"not PKCS8", sealBytes(t, pemPrivate, []byte("x")), "asn1"},
		{"P-384", seal(t, pemPrivate, p384), "ECDSA P-384 keys are not supported"},
		{"Ed25519", seal(t, pemPrivate, ed), "Ed25519 keys are not supported"},
		{"RSA", seal(t, pemPrivate, rsaKey), "RSA keys are not supported"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, err := LoadSigner(tt.pem, []byte("pw"))
			if errors.Is(err, ErrWrongPassword) {
				t.Errorf("blamed the password: %v", err)
			}
			checkError(t, err, tt.want)
			if err == nil && !privateKey(s).Equal(p256) {
				t.Error("another key")
			}
		})
	}
}

func TestParsePublicKey(t *testing.T) {
	s := newSigner(t)
	good := publicPEM(t, privateKey(s).Public())
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		pem  []byte
		want string
	}{
		{"good", good, ""},
		{"blank lines around", append([]byte("\n"), append(bytes.Clone(good), "\n\n"...)...), ""},
		{"empty", nil, "no PEM block"},
		{"huge", bytes.Repeat(good, 1000), "too many"},
		{"two keys", append(bytes.Clone(good), good...), "more than one PEM block"},
		{"private", seal(t, pemPrivate, privateKey(s)), "this is a private key"},
		{"certificate", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE"}), `found "CERTIFICATE"`},
		{"not DER", pem.EncodeToMemory(&pem.Block{Type: pemPublic, Bytes: []byte("x")}), "asn1"},
		{"P-384", publicPEM(t, p384.Public()), "ECDSA P-384 keys are not supported"},
		{"Ed25519", publicPEM(t, ed), "Ed25519 keys are not supported"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pub, err := ParsePublicKey(tt.pem)
			checkError(t, err, tt.want)
			if err == nil && KeyID(pub) != KeyID(s.PublicKey()) {
				t.Error("another key")
			}
		})
	}
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("unexpected: %v", err)
	case want != "" && err == nil:
		t.Errorf("no error, expected one with %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("got %q, expected it to say %q", err, want)
	}
}

func TestVerify(t *testing.T) {
	s := newSigner(t)
	payload := []byte("payload")
	good := mustSign(t, s, payload)
	otherSigner := newSigner(t)
	other := mustSign(t, otherSigner, payload)
	later := mustSign(t, s, []byte("another payload"))
	replace := func(from, to string) []byte {
		t.Helper()
		if !bytes.Contains(good.Bundle, []byte(from)) {
			t.Fatalf("%q is not in the bundle", from)
		}
		return bytes.Replace(good.Bundle, []byte(from), []byte(to), 1)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, good.Bundle, "", "  "); err != nil {
		t.Fatal(err)
	}
	sum := func(p []byte) string {
		h := sha256.Sum256(p)
		return base64.StdEncoding.EncodeToString(h[:])
	}

	const form = "not in the form"
	tests := []struct {
		name        string
		bundle, sig []byte
		is          error
		want        string
	}{
		{name: "both", bundle: good.Bundle, sig: good.Base64},
		{name: "bundle alone", bundle: good.Bundle},
		{name: "base64 alone", sig: good.Base64},
		{name: "line break at the end", bundle: append(bytes.Clone(good.Bundle), '\n'), sig: append(bytes.Clone(good.Base64), '\n')},
		{name: "indented", bundle: indented.Bytes()},
		{name: "with a log entry", bundle: replace(`},"messageSignature"`, `,"tlogEntries":[{"logIndex":"1"}]},"messageSignature"`)},
		{name: "with a timestamp", bundle: replace(`},"messageSignature"`, `,"timestampVerificationData":{"rfc3161Timestamps":[]}},"messageSignature"`)},

		{name: "neither", is: ErrNotSigned, want: "not signed"},
		{name: "empty bundle", bundle: []byte{}, sig: good.Base64, want: "unexpected end of JSON"},
		{name: "empty base64", bundle: good.Bundle, sig: []byte{}, is: ErrInvalid},
		{name: "another key's bundle", bundle: other.Bundle, sig: good.Base64, is: ErrWrongKey, want: "it names key"},
		{name: "another key's base64", bundle: good.Bundle, sig: other.Base64, is: ErrInvalid, want: KeyID(s.PublicKey())},
		{name: "another payload's bundle", bundle: later.Bundle, sig: good.Base64, is: ErrInvalid, want: "content with sha256"},
		{name: "another payload's base64", bundle: good.Bundle, sig: later.Base64, is: ErrInvalid},
		{name: "another key under our hint", bundle: bytes.Replace(other.Bundle, []byte(KeyID(otherSigner.PublicKey())), []byte(KeyID(s.PublicKey())), 1), is: ErrInvalid},
		{name: "another payload under our digest", bundle: bytes.Replace(later.Bundle, []byte(sum([]byte("another payload"))), []byte(sum(payload)), 1), is: ErrInvalid},

		{name: "huge bundle", bundle: append(bytes.Clone(good.Bundle), bytes.Repeat([]byte(" "), ReadLimit)...), want: "too many"},
		{name: "huge base64", sig: bytes.Repeat([]byte("AAAA"), ReadLimit), want: "too many"},
		{name: "other version", bundle: replace("v0.3", "v0.4"), want: "media type"},
		{name: "other digest algorithm", bundle: replace("SHA2_256", "SHA2_512"), want: "digest algorithm"},
		{name: "no hint", bundle: replace(`"hint":"`+KeyID(s.PublicKey())+`"`, ""), want: form},
		{name: "certificate", bundle: replace(`},"messageSignature"`, `,"certificate":{"rawBytes":""}},"messageSignature"`), want: form},
		{name: "envelope", bundle: replace(`{"mediaType"`, `{"dsseEnvelope":{},"mediaType"`), want: form},
		{name: "field twice", bundle: replace(`{"mediaType"`, `{"mediaType":"x","mediaType"`), want: form},
		{name: "field in capitals", bundle: replace("hint", "Hint"), want: form},
		{name: "two documents", bundle: append(bytes.Clone(good.Bundle), good.Bundle...), want: "invalid character"},
		{name: "deeply nested", bundle: bytes.Repeat([]byte("["), ReadLimit), want: "exceeded max depth"},
		{name: "not base64", sig: []byte("{}"), want: "illegal base64"},
		{name: "broken base64 line", sig: append(append(bytes.Clone(good.Base64[:48]), '\n'), good.Base64[48:]...), want: "more than one line"},
		{name: "bare numbers", sig: bareNumbers(t, good), is: ErrInvalid},
		{name: "two line breaks", sig: append(bytes.Clone(good.Base64), "\n\n"...), want: "more than one line"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Verify(s.PublicKey(), payload, tt.bundle, tt.sig)
			if tt.is == nil && tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Fatal("accepted")
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %q, expected one that is %q", err, tt.is)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %q, expected it to say %q", err, tt.want)
			}
		})
	}
}

// TestRead takes a signature apart by its sigstore bundle alone.
func TestRead(t *testing.T) {
	s := newSigner(t)
	good := mustSign(t, s, []byte("payload"))
	got, err := Read(good.Bundle)
	if err != nil || !bytes.Equal(got.Base64, good.Base64) || !bytes.Equal(got.Bundle, good.Bundle) {
		t.Errorf("%q, %v", got, err)
	}
	id, of, err := got.Claim()
	if sum := sha256.Sum256([]byte("payload")); err != nil || id != KeyID(s.PublicKey()) || !bytes.Equal(of, sum[:]) {
		t.Errorf("%q, %x, %v", id, of, err)
	}
	for name, bundle := range map[string][]byte{
		"none": nil, "white space": append(bytes.Clone(good.Bundle), ' '), "no JSON": []byte("{"),
		"log entries": bytes.Replace(good.Bundle, []byte(`},"messageSignature"`),
			[]byte(`,"tlogEntries":[]},"messageSignature"`), 1),
	} {
		if _, err := Read(bundle); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, _, err := new(Signature).Claim(); !errors.Is(err, ErrInvalid) {
		t.Errorf("of nothing: got %v", err)
	}
}

// TestPEM writes a key as it was read.
func TestPEM(t *testing.T) {
	_, public, err := GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParsePublicKey(append([]byte("\n"), public...))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := key.PEM(); err != nil || !bytes.Equal(got, public) {
		t.Errorf("%q, %v", got, err)
	}
}

// bareNumbers is a signature as its two numbers, without ASN.1 around them (IEEE P1363).
func bareNumbers(t *testing.T, s Signature) []byte {
	t.Helper()
	der, err := base64.StdEncoding.DecodeString(string(s.Base64))
	if err != nil {
		t.Fatal(err)
	}
	var rs struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &rs); err != nil {
		t.Fatal(err)
	}
	bare := make([]byte, 64)
	rs.R.FillBytes(bare[:32])
	rs.S.FillBytes(bare[32:])
	return []byte(base64.StdEncoding.EncodeToString(bare))
}

// TestVerifyEveryByte changes every byte of both forms.
func TestVerifyEveryByte(t *testing.T) {
	s := rfcSigner(t)
	payload := []byte("sample")
	good := mustSign(t, s, payload)
	forms := map[string]struct {
		data   []byte
		verify func([]byte) error
	}{
		"bundle": {good.Bundle, func(d []byte) error { return Verify(s.public, payload, d, good.Base64) }},
		"base64": {good.Base64, func(d []byte) error { return Verify(s.public, payload, good.Bundle, d) }},
	}
	for name, form := range forms {
		for i := range form.data {
			for _, mask := range []byte{0x01, 0x02, 0x20, 0x80, 0xff} {
				bad := bytes.Clone(form.data)
				bad[i] ^= mask
				if form.verify(bad) == nil {
					t.Errorf("%s: byte %d changed from %q to %q and was accepted", name, i, form.data[i], bad[i])
				}
			}
			if form.verify(form.data[:i]) == nil {
				t.Errorf("%s: cut to %d bytes and accepted", name, i)
			}
		}
	}
}

// FuzzVerify looks for input that is accepted though it is neither of the two signatures that
// exist, and for another form of them.
func FuzzVerify(f *testing.F) {
	s := rfcSigner(f)
	payload := []byte("sample")
	good := mustSign(f, s, payload)
	other, _ := otherValue(f, s, payload, good)
	isOne := func(sig []byte) bool { return bytes.Equal(sig, good.Base64) || bytes.Equal(sig, other.Base64) }
	f.Add(good.Bundle, good.Base64)
	f.Add(other.Bundle, other.Base64)
	f.Add(append(bytes.Clone(good.Bundle), '\n'), append(bytes.Clone(good.Base64), '\n'))
	f.Fuzz(func(t *testing.T, bundle, sig []byte) {
		if Verify(s.public, payload, bundle, nil) == nil && bundle != nil {
			b, err := parseBundle(bundle)
			if err != nil {
				t.Fatal(err)
			}
			if got := base64.StdEncoding.EncodeToString(b.MessageSignature.Signature); !isOne([]byte(got)) {
				t.Errorf("accepted a bundle with the signature %s", got)
			}
		}
		if Verify(s.public, payload, nil, sig) == nil && !isOne(bytes.TrimSuffix(sig, []byte("\n"))) {
			t.Errorf("accepted the signature %q", sig)
		}
		one := Signature{Bundle: bundle, Base64: sig}
		if bundle != nil && sig != nil && Verify(s.public, payload, bundle, sig) == nil && one.CheckForm() == nil {
			for _, known := range []Signature{good, other} {
				if bytes.Equal(bundle, known.Bundle) && bytes.Equal(sig, known.Base64) {
					return
				}
			}
			t.Errorf("another form: %q and %q", bundle, sig)
		}
	})
}

// FuzzParsePublicKey looks for a key that is not on the curve or has two names.
func FuzzParsePublicKey(f *testing.F) {
	f.Add(publicPEM(f, privateKey(rfcSigner(f)).Public()))
	f.Fuzz(func(t *testing.T, data []byte) {
		pub, err := ParsePublicKey(data)
		if err != nil {
			return
		}
		again, err := ParsePublicKey(publicPEM(t, pub.key))
		if err != nil || KeyID(again) != KeyID(pub) {
			t.Errorf("%q read again: %v", data, err)
		}
	})
}

// otherValue returns the other signature that verifies, and whether it has the lower value.
func otherValue(t testing.TB, s *Signer, payload []byte, good Signature) (other Signature, isLower bool) {
	t.Helper()
	der, err := base64.StdEncoding.DecodeString(string(good.Base64))
	if err != nil {
		t.Fatal(err)
	}
	var rs struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &rs); err != nil {
		t.Fatal(err)
	}
	value := new(big.Int).Sub(elliptic.P256().Params().N, rs.S)
	isLower = value.Cmp(rs.S) < 0
	rs.S = value
	if der, err = asn1.Marshal(rs); err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(payload)
	if other, err = encode(s.public.id, digest[:], der); err != nil {
		t.Fatal(err)
	}
	return other, isLower
}

// TestOneForm changes the bytes of signatures that verify all the same. One form has nothing but
// the signature; what remains is the other of its two values, in both forms at once, since other
// signers write either.
func TestOneForm(t *testing.T) {
	payload := []byte("index")
	for i := range 8 {
		s := newSigner(t)
		good := mustSign(t, s, payload)
		if err := good.CheckForm(); err != nil {
			t.Fatalf("what is written: %v", err)
		}
		other, isLower := otherValue(t, s, payload, good)
		if isLower {
			t.Errorf("signature %d has the higher value", i)
		}
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, good.Bundle, "", "  "); err != nil {
			t.Fatal(err)
		}
		in := func(more string) []byte {
			return bytes.Replace(good.Bundle, []byte(`},"messageSignature"`), []byte(`,`+more+`},"messageSignature"`), 1)
		}
		entries := `"tlogEntries":["` + strings.Repeat("x", 60000) + `"]`
		for name, test := range map[string]struct {
			signature Signature
			isForm    bool
		}{
			"the other value":           {other, true},
			"the other value, bare":     {Signature{good.Bundle, other.Base64}, false},
			"the other value, sigstore": {Signature{other.Bundle, good.Base64}, false},
			"line break":                {Signature{good.Bundle, append(bytes.Clone(good.Base64), '\n')}, false},
			"white space":               {Signature{pretty.Bytes(), good.Base64}, false},
			"white space at the end":    {Signature{append(bytes.Clone(good.Bundle), ' '), good.Base64}, false},
			"log entries":               {Signature{in(entries), good.Base64}, false},
			"timestamps":                {Signature{in(`"timestampVerificationData":"x"`), good.Base64}, false},
		} {
			if err := Verify(s.public, payload, test.signature.Bundle, test.signature.Base64); err != nil {
				t.Errorf("%s: it does not verify: %v", name, err)
			}
			err := test.signature.CheckForm()
			if test.isForm != (err == nil) || err != nil && !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: got %v", name, err)
			}
		}
	}
}

// elsewhere is a key that signs as a program of others may.
type elsewhere func(digest []byte) ([]byte, error)

func (e elsewhere) SignDigest(digest []byte) ([]byte, error) { return e(digest) }

// TestNewSigner: what a key elsewhere makes has the one form, and is proven.
func TestNewSigner(t *testing.T) {
	t.Parallel()
	held := newSigner(t)
	key, other := privateKey(held), privateKey(newSigner(t))
	// value signs by chance, with the higher or the lower of the two values of s.
	value := func(by *ecdsa.PrivateKey, higher bool) func([]byte) ([]byte, error) {
		return func(digest []byte) ([]byte, error) {
			der, err := by.Sign(rand.Reader, digest, crypto.SHA256)
			if err != nil {
				return nil, err
			}
			var rs struct{ R, S *big.Int }
			if _, err := asn1.Unmarshal(der, &rs); err != nil {
				return nil, err
			}
			n := by.Params().N
			if (rs.S.Cmp(new(big.Int).Rsh(n, 1)) > 0) != higher {
				rs.S.Sub(n, rs.S)
			}
			return asn1.Marshal(rs)
		}
	}
	bytesOf := func(content []byte) func([]byte) ([]byte, error) {
		return func([]byte) ([]byte, error) { return content, nil }
	}
	for _, c := range []struct {
		name string
		sign func([]byte) ([]byte, error)
		want string
	}{
		{"lower", value(key, false), ""},
		{"higher", value(key, true), ""},
		{"another key", value(other, false), "what the key made is of no use"},
		{"nothing", bytesOf(nil), "no ECDSA signature in ASN.1"},
		{"bare numbers", bytesOf(make([]byte, 64)), "no ECDSA signature in ASN.1"},
		{"an error", func([]byte) ([]byte, error) { return nil, errors.New("the token is gone") }, "the token is gone"},
	} {
		s := NewSigner(held.PublicKey(), elsewhere(c.sign))
		one, err := s.Sign([]byte("payload"))
		checkError(t, err, c.want)
		statement, attestErr := s.Attest([]byte("{}"))
		checkError(t, attestErr, c.want)
		if err != nil || attestErr != nil {
			continue
		}
		if err := errors.Join(one.CheckForm(), Verify(held.PublicKey(), []byte("payload"), one.Bundle, one.Base64)); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		attested, err := ReadAttestation(statement)
		if err == nil {
			err = attested.Verify(held.PublicKey())
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		der, err := base64.StdEncoding.DecodeString(string(one.Base64))
		if err != nil {
			t.Fatal(err)
		}
		var rs struct{ R, S *big.Int }
		if _, err := asn1.Unmarshal(der, &rs); err != nil || rs.S.Cmp(new(big.Int).Rsh(key.Params().N, 1)) > 0 {
			t.Errorf("%s: %v, the higher value of s", c.name, err)
		}
	}
}
