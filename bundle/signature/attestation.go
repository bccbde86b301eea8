package signature

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
)

// StatementType is the type of the payloads that [Signer.Attest] signs: in-toto statements
// (https://github.com/in-toto/attestation/blob/main/spec/v1/envelope.md).
const StatementType = "application/vnd.in-toto+json"

// AttestationLimit is the most that [ReadAttestation] reads, in bytes.
const AttestationLimit = 64 << 20

// attestation is the part of dev.sigstore.bundle.v1.Bundle that a statement signed with a
// key uses, its fields in the order in which cosign writes them.
type attestation struct {
	MediaType            string `json:"mediaType"`
	VerificationMaterial struct {
		PublicKey struct {
			Hint string `json:"hint"`
		} `json:"publicKey"`
	} `json:"verificationMaterial"`
	Envelope envelope `json:"dsseEnvelope"`
}

// envelope is DSSE's (https://github.com/secure-systems-lab/dsse/blob/master/envelope.md).
type envelope struct {
	Payload     []byte              `json:"payload"`
	PayloadType string              `json:"payloadType"`
	Signatures  []envelopeSignature `json:"signatures"`
}

type envelopeSignature struct {
	Signature []byte `json:"sig"`
}

// authenticated is what is signed of an envelope (DSSE protocol, "PAE").
func (e *envelope) authenticated() []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(e.PayloadType), e.PayloadType, len(e.Payload), e.Payload)
}

// Attest signs an in-toto statement. The result is a sigstore bundle with a DSSE envelope,
// which `cosign verify-blob-attestation` accepts; it is compact JSON without a line break at
// its end.
func (s *Signer) Attest(statement []byte) ([]byte, error) {
	a := attestation{MediaType: mediaType, Envelope: envelope{Payload: statement, PayloadType: StatementType}}
	a.VerificationMaterial.PublicKey.Hint = s.public.id
	digest := sha256.Sum256(a.Envelope.authenticated())
	der, err := s.sign(digest[:])
	if err != nil {
		return nil, fmt.Errorf("sign statement: %w", err)
	}
	a.Envelope.Signatures = []envelopeSignature{{der}}
	text, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("sign statement: encode sigstore bundle: %w", err)
	}
	return text, nil
}

// Attested is a signed in-toto statement. Nothing of it is proven.
type Attested struct {
	// Bundle is the sigstore bundle in the form that [Signer.Attest] writes.
	Bundle []byte
	// KeyID is that of the key by which it says that it was signed.
	KeyID string
	// Statement is what is signed: JSON, of any form.
	Statement []byte

	signature []byte // over digest
	digest    [sha256.Size]byte
}

// ReadAttestation reads a sigstore bundle that holds an in-toto statement. What else is in it, such as
// the log entries and timestamps of cosign, is left out. It proves nothing.
func ReadAttestation(bundle []byte) (*Attested, error) {
	if len(bundle) > AttestationLimit {
		return nil, fmt.Errorf("%d bytes are too many (at most %d)", len(bundle), AttestationLimit)
	}
	var a attestation
	if err := json.Unmarshal(bundle, &a); err != nil {
		return nil, err
	}
	switch {
	case a.MediaType != mediaType:
		return nil, fmt.Errorf("media type is %q, expected %q", a.MediaType, mediaType)
	case a.Envelope.PayloadType != StatementType:
		return nil, fmt.Errorf("payload type is %q, expected %q", a.Envelope.PayloadType, StatementType)
	case len(a.Envelope.Signatures) != 1:
		return nil, errors.New("expected one signature")
	}
	text, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	return &Attested{
		Bundle: text, KeyID: a.VerificationMaterial.PublicKey.Hint, Statement: a.Envelope.Payload,
		signature: a.Envelope.Signatures[0].Signature, digest: sha256.Sum256(a.Envelope.authenticated()),
	}, nil
}

// Verify checks that the statement was signed with pub's private key. Its errors are those of [Verify].
func (a *Attested) Verify(pub *PublicKey) error {
	if a.KeyID != pub.id {
		return fmt.Errorf("verify attestation: %w: it names key %q, the key given is %q", ErrWrongKey, a.KeyID, pub.id)
	}
	if err := pub.verify(a.digest[:], a.signature); err != nil {
		return fmt.Errorf("verify attestation: %w", err)
	}
	return nil
}
