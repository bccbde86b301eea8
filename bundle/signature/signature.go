// Package signature signs small byte strings, and verifies them, with keys and in formats
// that cosign shares. It works without a network: there is no transparency log and no
// certificate, trust comes from the public key alone.
//
// There is one algorithm, ECDSA P-256 over SHA-256. Every signature comes in two forms
// that say the same: a sigstore bundle (v0.3 JSON) for cosign 3, and the bare signature in
// base64 for older cosign and for openssl. With a key file, signing is deterministic (RFC 6979): the
// same key and payload give the same bytes. Keys in tokens and key services ([NewSigner]) sign otherwise
// each time.
//
// Key files are read and written by github.com/sigstore/sigstore, which cosign is made of. Three
// things are of this package, because a bundle has to be reproducible and to have one form, and because
// what runs on hosts verifies too, and is to stay small:
//
//   - the signer of key files: that of sigstore takes random numbers, whatever it is given, and either of
//     the two values of s;
//   - the check of a signature, which is ASN.1, by crypto/ecdsa: the verifier of sigstore takes the bare
//     numbers as well, and brings in 2 MB for keys of other kinds;
//   - the JSON of sigstore bundles and of their DSSE envelopes, compact and read strictly: the
//     modules for them write other white space from version to version, read loosely, and bring
//     in SSH.
//
// Everything given to [Verify], [ParsePublicKey] and [LoadSigner] may come from an attacker.
package signature

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"

	"github.com/liteboxd/boxlift/internal/fault"
)

const (
	// MaxSize is the most that either form written by [Signer.Sign] can have, in bytes:
	// one block of a tar file, so that what follows never moves.
	MaxSize = 512

	// ReadLimit is the most that [Verify] reads of either form, in bytes. A sigstore
	// bundle by cosign may also hold log entries and timestamps.
	ReadLimit = 64 << 10
)

var (
	// ErrNotSigned says that there is no signature at all.
	ErrNotSigned = fault.NewKind(fault.Bundle, "not signed")

	// ErrWrongKey says that the signature was made with another key, by its own account.
	ErrWrongKey = fault.NewKind(fault.Bundle, "signed with another key")

	// ErrInvalid says that the signature does not fit the payload and the key.
	ErrInvalid = fault.NewKind(fault.Bundle, "signature does not verify")
)

// mediaType is the version of sigstore bundle that is read and written. Earlier versions
// need a transparency log entry, later ones do not exist.
const mediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// Signature is one signature in its two forms.
type Signature struct {
	Bundle []byte // sigstore bundle: compact JSON without a line break at its end
	Base64 []byte // ASN.1 DER in standard base64 without a line break at its end
}

// Signer signs with a private key, which it holds, or reaches where it lies.
type Signer struct {
	key    Key
	public *PublicKey
}

// Key is a private key, ECDSA P-256, wherever it lies.
type Key interface {
	// SignDigest signs a sha256. The signature is ASN.1 DER.
	SignDigest(digest []byte) (der []byte, err error)
}

// NewSigner makes a signer of a key that lies elsewhere: in a token or a key service. public is its public half.
// Signatures of such keys are not the same bytes twice. Each is proven before it is used.
func NewSigner(public *PublicKey, key Key) *Signer {
	return &Signer{key: key, public: public}
}

// PublicKey returns the public half.
func (s *Signer) PublicKey() *PublicKey { return s.public }

// Repeats reports whether the same payload gives the same bytes each time.
func (s *Signer) Repeats() bool {
	_, ok := s.key.(deterministic)
	return ok
}

// Sign signs payload. Both forms are at most [MaxSize] bytes long.
func (s *Signer) Sign(payload []byte) (Signature, error) {
	digest := sha256.Sum256(payload)
	der, err := s.sign(digest[:])
	if err != nil {
		return Signature{}, fmt.Errorf("sign: %w", err)
	}
	return encode(s.public.id, digest[:], der)
}

// sign signs a digest. Of the two values of s that verify, it takes the lower one.
func (s *Signer) sign(digest []byte) ([]byte, error) {
	made, err := s.key.SignDigest(digest)
	if err != nil {
		return nil, err
	}
	var rs struct{ R, S *big.Int }
	if rest, err := asn1.Unmarshal(made, &rs); err != nil || len(rest) > 0 {
		return nil, errors.New("what the key made is no ECDSA signature in ASN.1")
	}
	if other := new(big.Int).Sub(elliptic.P256().Params().N, rs.S); other.Cmp(rs.S) < 0 {
		rs.S = other
	}
	der, err := asn1.Marshal(rs)
	if err != nil {
		return nil, err
	}
	if err := s.public.verify(digest, der); err != nil {
		return nil, fmt.Errorf("what the key made is of no use: %w", err)
	}
	return der, nil
}

// deterministic is a key of a file. It gives one signature for each digest.
type deterministic struct{ key *ecdsa.PrivateKey }

var _ Key = deterministic{}

// SignDigest is that of [Key].
func (d deterministic) SignDigest(digest []byte) ([]byte, error) {
	return d.key.Sign(nil, digest, crypto.SHA256) // without randomness: RFC 6979
}

// encode makes both forms of a signature.
func encode(keyID string, digest, der []byte) (Signature, error) {
	var b sigstoreBundle
	b.MediaType = mediaType
	b.VerificationMaterial.PublicKey.Hint = keyID
	b.MessageSignature.MessageDigest.Algorithm = "SHA2_256"
	b.MessageSignature.MessageDigest.Digest = digest
	b.MessageSignature.Signature = der
	bundle, err := json.Marshal(b)
	if err != nil {
		return Signature{}, fmt.Errorf("encode sigstore bundle: %w", err)
	}
	return Signature{Bundle: bundle, Base64: []byte(base64.StdEncoding.EncodeToString(der))}, nil
}

// CheckForm reports whether both forms are, byte for byte, what [Signer.Sign] writes for the
// signature in them, whoever made it, and hold the same one. It refuses what [Verify] passes over:
// white space, log entries, timestamps, and a line break after the bare signature. It proves
// nothing about who signed. The error wraps [ErrInvalid].
func (s *Signature) CheckForm() error {
	b, err := parseBundle(s.Bundle)
	if err != nil {
		return fmt.Errorf("%w: sigstore bundle: %w", ErrInvalid, err)
	}
	held := b.MessageSignature
	want, err := encode(b.VerificationMaterial.PublicKey.Hint, held.MessageDigest.Digest, held.Signature)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	case !bytes.Equal(s.Bundle, want.Bundle):
		return fmt.Errorf(
			"%w: the sigstore bundle has more than a signature: white space, log entries or timestamps", ErrInvalid)
	case !bytes.Equal(s.Base64, want.Base64):
		return fmt.Errorf(
			"%w: the bare signature is not the one in the sigstore bundle, or has bytes after it", ErrInvalid)
	}
	return nil
}

// Read takes the sigstore bundle of a signature, and makes the bare form of it. It refuses what
// [Signature.CheckForm] refuses, and proves nothing about who signed.
func Read(bundle []byte) (Signature, error) {
	b, err := parseBundle(bundle)
	if err != nil {
		return Signature{}, fmt.Errorf("%w: sigstore bundle: %w", ErrInvalid, err)
	}
	s := Signature{Bundle: bundle, Base64: []byte(base64.StdEncoding.EncodeToString(b.MessageSignature.Signature))}
	if err := s.CheckForm(); err != nil {
		return Signature{}, err
	}
	return s, nil
}

// ReadMember is Read of a sigstore bundle that is a member of another JSON document, where white space may differ. It
// refuses what has more than [MaxSize] bytes without that.
func ReadMember(raw []byte) (Signature, error) {
	var bundle bytes.Buffer
	if err := json.Compact(&bundle, raw); err != nil {
		return Signature{}, fmt.Errorf("%w: sigstore bundle: %w", ErrInvalid, err)
	}
	if n := bundle.Len(); n > MaxSize {
		return Signature{}, fmt.Errorf("%w: sigstore bundle: it has %d bytes, %d is the most", ErrInvalid, n, MaxSize)
	}
	return Read(bundle.Bytes())
}

// Claim returns what a sigstore bundle says of itself: the id of the key that made it, and the
// sha256 of what was signed. It proves nothing, and finds the key to verify with.
func (s *Signature) Claim() (keyID string, sha256 []byte, err error) {
	b, err := parseBundle(s.Bundle)
	if err != nil {
		return "", nil, fmt.Errorf("%w: sigstore bundle: %w", ErrInvalid, err)
	}
	return b.VerificationMaterial.PublicKey.Hint, b.MessageSignature.MessageDigest.Digest, nil
}

// Verify checks that payload was signed with pub's private key. Either form may be absent
// (nil), but every form that is there must verify. The error is [ErrNotSigned] when both
// are absent, [ErrWrongKey] when the bundle names another key, [ErrInvalid] when a
// signature does not verify, and another one when a form cannot be read.
func Verify(pub *PublicKey, payload, bundle, sig []byte) error {
	if bundle == nil && sig == nil {
		return ErrNotSigned
	}
	digest := sha256.Sum256(payload)
	if bundle != nil {
		if err := verifyBundle(pub, digest[:], bundle); err != nil {
			return fmt.Errorf("verify sigstore bundle: %w", err)
		}
	}
	if sig != nil {
		if err := verifyBase64(pub, digest[:], sig); err != nil {
			return fmt.Errorf("verify base64 signature: %w", err)
		}
	}
	return nil
}

// sigstoreBundle is the part of dev.sigstore.bundle.v1.Bundle that a signature with a key
// uses, its fields in the order in which cosign writes them.
type sigstoreBundle struct {
	MediaType            string `json:"mediaType"`
	VerificationMaterial struct {
		PublicKey struct {
			Hint string `json:"hint"`
		} `json:"publicKey"`
		// These two say when it was signed, which boxlift has no use for.
		TlogEntries               json.RawMessage `json:"tlogEntries,omitempty"`
		TimestampVerificationData json.RawMessage `json:"timestampVerificationData,omitempty"`
	} `json:"verificationMaterial"`
	MessageSignature struct {
		MessageDigest struct {
			Algorithm string `json:"algorithm"`
			Digest    []byte `json:"digest"`
		} `json:"messageDigest"`
		Signature []byte `json:"signature"`
	} `json:"messageSignature"`
}

func verifyBundle(pub *PublicKey, digest, data []byte) error {
	b, err := parseBundle(data)
	if err != nil {
		return err
	}
	// The hint proves nothing. It tells a wrong key from a changed payload.
	if hint := b.VerificationMaterial.PublicKey.Hint; hint != pub.id {
		return fmt.Errorf("%w: it names key %q, the key given is %q", ErrWrongKey, hint, pub.id)
	}
	// Nor is the digest what gets verified; a wrong one is a lie all the same.
	if stated := b.MessageSignature.MessageDigest.Digest; !bytes.Equal(stated, digest) {
		return fmt.Errorf(
			"%w: it was made for content with sha256 %x, this content has %x", ErrInvalid, stated, digest)
	}
	return pub.verify(digest, b.MessageSignature.Signature)
}

func parseBundle(data []byte) (*sigstoreBundle, error) {
	if len(data) > ReadLimit {
		return nil, fmt.Errorf("%d bytes are too many (at most %d)", len(data), ReadLimit)
	}
	var b sigstoreBundle
	if err := json.Unmarshal(data, &b); err != nil {
		return nil, err
	}
	if b.MediaType != mediaType {
		return nil, fmt.Errorf("media type is %q, expected %q", b.MediaType, mediaType)
	}
	if a := b.MessageSignature.MessageDigest.Algorithm; a != "SHA2_256" {
		return nil, fmt.Errorf("digest algorithm is %q, expected \"SHA2_256\"", a)
	}
	// Only white space may differ from what is written for these values. This refuses
	// unknown fields (certificates, DSSE envelopes), repeated ones, other spellings and
	// loose base64, so that there is one way to read a bundle.
	var got bytes.Buffer
	if err := json.Compact(&got, data); err != nil {
		return nil, err
	}
	want, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(got.Bytes(), want) {
		return nil, errors.New("not in the form that cosign writes for a signature made with a key")
	}
	return &b, nil
}

func verifyBase64(pub *PublicKey, digest, data []byte) error {
	if len(data) > ReadLimit {
		return fmt.Errorf("%d bytes are too many (at most %d)", len(data), ReadLimit)
	}
	data = bytes.TrimSuffix(data, []byte("\n")) // cosign writes one to its standard output
	der, err := base64.StdEncoding.Strict().DecodeString(string(data))
	if err != nil {
		return err
	}
	if base64.StdEncoding.EncodedLen(len(der)) != len(data) { // line breaks inside
		return errors.New("more than one line of base64")
	}
	return pub.verify(digest, der)
}
