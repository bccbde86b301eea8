package signature

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/liteboxd/boxlift/internal/fault"
)

// The types of PEM block that hold a key.
const (
	pemPrivate       = string(cryptoutils.EncryptedSigstorePrivateKeyPEMType)
	pemPrivateCosign = "ENCRYPTED COSIGN PRIVATE KEY" // what cosign wrote before version 2
	pemPublic        = string(cryptoutils.PublicKeyPEMType)
)

// keyLimit bounds a key file; a real one has less than 1 KiB.
const keyLimit = 64 << 10

// ErrWrongPassword says that a private key could not be decrypted. The encryption is
// authenticated, so a damaged file and a wrong password look the same.
var ErrWrongPassword = fault.NewKind(fault.Input, "wrong password, or the key file is damaged")

// GenerateKey makes a key pair: the private key as cosign writes it, encrypted with
// password, and the public key as PKIX. An empty password is allowed.
func GenerateKey(password []byte) (privatePEM, publicPEM []byte, err error) {
	privatePEM, publicPEM, err = cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), passwordOf(password))
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	return privatePEM, publicPEM, nil
}

// passwordOf gives sigstore a password. For sigstore, nil stands for no encryption at all.
func passwordOf(password []byte) cryptoutils.PassFunc {
	return cryptoutils.StaticPasswordFunc(append([]byte{}, password...))
}

// LoadSigner decrypts a private key made by [GenerateKey] or by cosign. It returns an
// error that is [ErrWrongPassword] if the password does not open it.
func LoadSigner(privatePEM, password []byte) (*Signer, error) {
	key, err := OpenKey(privatePEM, password)
	if err != nil {
		return nil, err
	}
	pub, err := newPublicKey(&key.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("read private key: %w", err)
	}
	return &Signer{key: deterministic{key}, public: pub}, nil
}

// OpenKey decrypts a private key for whoever signs something else than bundles with it. It returns an error that is
// [ErrWrongPassword] if the password does not open it.
func OpenKey(privatePEM, password []byte) (*ecdsa.PrivateKey, error) {
	block, err := decodePEM(privatePEM)
	if err != nil {
		return nil, fmt.Errorf("read private key: %w", err)
	}
	switch block.Type {
	case pemPrivate, pemPrivateCosign:
	case pemPublic:
		return nil, errors.New("read private key: this is a public key")
	default:
		return nil, fmt.Errorf(
			"read private key: expected a PEM block %q, found %q (cosign import-key-pair converts other keys)",
			pemPrivate, block.Type)
	}
	// Without headers, which would make sigstore decrypt in another, older form first.
	bare := cryptoutils.PEMEncode(cryptoutils.PEMType(block.Type), block.Bytes)
	key, err := cryptoutils.UnmarshalPEMToPrivateKey(bare, passwordOf(password))
	if err != nil {
		if err.Error() == "encrypted: decryption failed" { // the module has no value for it
			err = ErrWrongPassword
		}
		return nil, fmt.Errorf("decrypt private key: %w", err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("read private key: %w", unsupported(key))
	}
	return ec, nil
}

// PublicKey is an ECDSA P-256 key that signatures are checked with.
type PublicKey struct {
	key *ecdsa.PublicKey
	id  string
}

// ParsePublicKey reads a public key, PKIX in a PEM block, as [GenerateKey], cosign and
// openssl write it. Only P-256 is accepted.
func ParsePublicKey(publicPEM []byte) (*PublicKey, error) {
	block, err := decodePEM(publicPEM)
	if err != nil {
		return nil, fmt.Errorf("read public key: %w", err)
	}
	switch block.Type {
	case pemPublic:
	case pemPrivate, pemPrivateCosign:
		return nil, errors.New("read public key: this is a private key, which belongs to the signer alone")
	default:
		return nil, fmt.Errorf("read public key: expected a PEM block %q, found %q", pemPublic, block.Type)
	}
	key, err := cryptoutils.UnmarshalPEMToPublicKey(publicPEM)
	if err != nil {
		return nil, fmt.Errorf("read public key: %w", err)
	}
	pub, err := newPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("read public key: %w", err)
	}
	return pub, nil
}

// KeyID names a public key: the base64 of the sha256 of its PKIX form, 44 characters.
// It is the hint that cosign puts next to a signature.
func KeyID(pub *PublicKey) string { return pub.id }

// PEM is the key as [ParsePublicKey] reads it, in the one form that [GenerateKey] writes.
func (p *PublicKey) PEM() ([]byte, error) {
	return cryptoutils.MarshalPublicKeyToPEM(p.key)
}

func newPublicKey(key any) (*PublicKey, error) {
	ec, ok := key.(*ecdsa.PublicKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, unsupported(key)
	}
	pkix, err := cryptoutils.MarshalPublicKeyToDER(ec)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(pkix)
	return &PublicKey{key: ec, id: base64.StdEncoding.EncodeToString(sum[:])}, nil
}

// verify checks the signature of a digest, which is ASN.1: the two bare numbers would be a second form of every
// signature. The error wraps [ErrInvalid].
func (p *PublicKey) verify(digest, der []byte) error {
	if !ecdsa.VerifyASN1(p.key, digest, der) {
		return fmt.Errorf("%w with key %q", ErrInvalid, p.id)
	}
	return nil
}

// unsupported explains the one algorithm. cosign checks other curves with SHA-256 unless
// told otherwise and so fails on its own P-384 signatures, its Ed25519 bundles fail their
// own check, and an RSA signature does not fit [MaxSize]. One algorithm also leaves an
// attacker nothing to choose.
func unsupported(key any) error {
	kind := fmt.Sprintf("%T", key)
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		kind = "ECDSA " + k.Params().Name
	case ed25519.PublicKey, ed25519.PrivateKey:
		kind = "Ed25519"
	case *rsa.PublicKey, *rsa.PrivateKey:
		kind = "RSA"
	}
	return fmt.Errorf("%s keys are not supported, only ECDSA P-256: "+
		"the one kind that every cosign verifies both as .sig and as .sigstore.json", kind)
}

// decodePEM returns the only PEM block in data. A second block would leave open which of
// the two was meant.
func decodePEM(data []byte) (*pem.Block, error) {
	if len(data) > keyLimit {
		return nil, fmt.Errorf("%d bytes are too many for a key (at most %d)", len(data), keyLimit)
	}
	block, rest := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM block in it")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("more than one PEM block in it")
	}
	return block, nil
}
