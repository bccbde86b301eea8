package signature

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// pemPlain is the type of PEM block that holds a private key without a password.
const pemPlain = "PRIVATE KEY"

// GeneratePlainKey makes a private key without a password, PKCS #8 in a PEM block as openssl writes it: for a place
// that keeps it as secret as a password would have to be.
func GeneratePlainKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPlain, Bytes: der}), nil
}

// LoadPlainSigner reads a private key made by [GeneratePlainKey] or by openssl. What is encrypted is for [LoadSigner].
func LoadPlainSigner(privatePEM []byte) (*Signer, error) {
	block, err := decodePEM(privatePEM)
	if err != nil {
		return nil, fmt.Errorf("read private key: %w", err)
	}
	if block.Type != pemPlain {
		return nil, fmt.Errorf("read private key: expected a PEM block %q, found %.40q", pemPlain, block.Type)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("read private key: it is not in PKCS #8") // what x509 says may quote it
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("read private key: %w", unsupported(key))
	}
	public, err := newPublicKey(&ec.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("read private key: %w", err)
	}
	return &Signer{key: deterministic{ec}, public: public}, nil
}
