package signature

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestAttest(t *testing.T) {
	s, other := newSigner(t), newSigner(t)
	statement := []byte(`{"_type":"https://in-toto.io/Statement/v1"}`)
	bundle, err := s.Attest(statement)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Attest(statement)
	if err != nil || !bytes.Equal(bundle, again) {
		t.Errorf("signed twice, it gives two results (%v)", err)
	}
	got, err := ReadAttestation(append(bundle, '\n'))
	if err != nil || !bytes.Equal(got.Statement, statement) || got.KeyID != KeyID(s.PublicKey()) || !bytes.Equal(got.Bundle, bundle) {
		t.Errorf("%+v, %v", got, err)
	}
	if err := got.Verify(s.PublicKey()); err != nil {
		t.Error(err)
	}
	if err := got.Verify(other.PublicKey()); !errors.Is(err, ErrWrongKey) {
		t.Errorf("another key: %v", err)
	}
	change := func(text, by string) []byte { return []byte(strings.Replace(string(bundle), text, by, 1)) }
	// What cosign writes beside it is left out.
	if got, err := ReadAttestation(change(`}},"dsseEnvelope"`, `},"tlogEntries":[{}]},"dsseEnvelope"`)); err != nil || !bytes.Equal(got.Bundle, bundle) {
		t.Errorf("with log entries: %+v, %v", got, err)
	}
	for name, test := range map[string]struct {
		bundle []byte
		want   string
	}{
		"another statement":    {change(`"payload":"eyJ`, `"payload":"eyK`), "signature does not verify"},
		"another type":         {change(StatementType, "text/plain"), `payload type is "text/plain"`},
		"another media type":   {change("v0.3+json", "v0.4+json"), "media type is"},
		"no signature":         {change(`"signatures":[`, `"others":[`), "expected one signature"},
		"another's hint":       {change(s.PublicKey().id, other.PublicKey().id), "signed with another key"},
		"a plain signature":    {mustSign(t, s, statement).Bundle, "payload type"},
		"no JSON":              {[]byte("{"), "unexpected end"},
		"more than is allowed": {make([]byte, AttestationLimit+1), "too many"},
	} {
		got, err := ReadAttestation(test.bundle)
		if err == nil {
			err = got.Verify(s.PublicKey())
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Nor is an attestation a signature of what it holds.
	if err := Verify(s.PublicKey(), statement, bundle, nil); err == nil {
		t.Error("an attestation was taken for a signature")
	}
}

func FuzzReadAttestation(f *testing.F) {
	key := newSigner(f).PublicKey()
	seed := attestation{MediaType: mediaType, Envelope: envelope{PayloadType: StatementType, Payload: []byte("{}"), Signatures: []envelopeSignature{{[]byte("0")}}}}
	seed.VerificationMaterial.PublicKey.Hint = key.id
	text, err := json.Marshal(seed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ReadAttestation(b)
		if err != nil {
			return
		}
		if a.Verify(key) == nil {
			t.Errorf("accepted: %q", b)
		}
		again, err := ReadAttestation(a.Bundle)
		if err != nil || !bytes.Equal(again.Bundle, a.Bundle) || !bytes.Equal(again.Statement, a.Statement) {
			t.Errorf("%q is not read as %q, of which it was made (%v)", a.Bundle, b, err)
		}
	})
}
