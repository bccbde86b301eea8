package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// maxFile bounds what is read, in bytes: a chain of certificates takes a few thousand.
const maxFile = 256 << 10

// ReadIssuer reads an authority from two files in PEM: a chain whose first certificate signs, and its key without a
// passphrase. It refuses what cannot sign certificates that others accept now.
func ReadIssuer(certificateFile, keyFile string, clock func() time.Time) (*Issuer, error) {
	issuer, err := readIssuer(certificateFile, keyFile, clock)
	if err != nil {
		return nil, err
	}
	if err := issuer.checkTime(); err != nil {
		return nil, fmt.Errorf("%s: %w", certificateFile, err)
	}
	return issuer, nil
}

// readIssuer is ReadIssuer for an authority that may have ended: what looks at it, or puts another one in its place,
// has nothing to sign with it.
func readIssuer(certificateFile, keyFile string, clock func() time.Time) (*Issuer, error) {
	chain, err := ReadChain(certificateFile)
	if err != nil {
		return nil, err
	}
	if err := checkIssuer(chain[0]); err != nil {
		return nil, fmt.Errorf("%s: %w", certificateFile, err)
	}
	key, err := ReadKey(keyFile)
	if err != nil {
		return nil, err
	}
	if err := Matches(chain[0], key); err != nil {
		return nil, fmt.Errorf("%s: %w", keyFile, err)
	}
	return NewIssuer(chain, key, clock), nil
}

// checkIssuer refuses certificates that cannot sign others at any time.
func checkIssuer(c *x509.Certificate) error {
	switch {
	case !c.BasicConstraintsValid || !c.IsCA:
		return fmt.Errorf("found the certificate of %q, expected an authority's: it has no basic constraint CA:TRUE",
			c.Subject)
	case c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0:
		return errors.New("found an authority that may not sign certificates, expected keyCertSign among its key usages")
	}
	return checkPublic(c.PublicKey)
}

// checkTime refuses an authority that cannot sign now.
func (i *Issuer) checkTime() error {
	switch c, now := i.chain[0], i.clock(); {
	case now.After(c.NotAfter):
		return fmt.Errorf("found an authority that ended on %s, expected one that is valid: give the one that took "+
			"its place", c.NotAfter.UTC().Format(time.DateOnly))
	case now.Before(c.NotBefore):
		return fmt.Errorf("found an authority that begins on %s, expected one that is valid: is this machine's clock "+
			"right?", c.NotBefore.UTC().Format(time.DateOnly))
	}
	return nil
}

// checkPublic refuses keys that TLS clients do not take.
func checkPublic(key crypto.PublicKey) error {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() || k.Curve == elliptic.P384() || k.Curve == elliptic.P521() {
			return nil
		}
		return fmt.Errorf("found an ECDSA key on %s, expected P-256, P-384 or P-521", k.Curve.Params().Name)
	case *rsa.PublicKey:
		if k.N.BitLen() >= 2048 {
			return nil
		}
		return fmt.Errorf("found an RSA key of %d bits, expected at least 2048", k.N.BitLen())
	}
	return fmt.Errorf("found a key of type %T, expected ECDSA or RSA", key)
}

// Matches refuses a key that is not a certificate's.
func Matches(c *x509.Certificate, key crypto.Signer) error {
	public, ok := c.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(key.Public()) {
		return fmt.Errorf("found another key than that of %q, expected the one that belongs to the certificate",
			c.Subject)
	}
	return nil
}

// ReadChain reads the certificates of a file in PEM, one at least, in their order. What else the file has is passed
// over.
func ReadChain(file string) ([]*x509.Certificate, error) {
	content, err := ReadFile(file)
	if err != nil {
		return nil, err
	}
	chain, err := parseChain(content)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return chain, nil
}

// parseChain reads certificates in PEM, one at least.
func parseChain(content []byte) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		chain = append(chain, c)
	}
	if len(chain) == 0 {
		return nil, errors.New("found no certificate, expected one in PEM, which begins with -----BEGIN " +
			"CERTIFICATE----- (openssl x509 -inform DER -in FILE makes one of the binary form)")
	}
	return chain, nil
}

// ReadKey reads the first private key of a file in PEM.
func ReadKey(file string) (crypto.Signer, error) {
	content, err := ReadFile(file)
	if err != nil {
		return nil, err
	}
	key, err := parsePrivate(content)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return key, nil
}

// parsePrivate reads the first private key in PEM.
func parsePrivate(content []byte) (crypto.Signer, error) {
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "" {
			return nil, errors.New("found a key with a passphrase, expected one without: openssl pkey -in " +
				"FILE -out NEW makes it, for a file that only you can read")
		}
		if key, known, err := parseKey(block); known { // unlike the parameters of a curve
			return key, err
		}
	}
	return nil, errors.New("found no private key, expected one in PEM, which begins with -----BEGIN PRIVATE KEY-----")
}

func parseKey(block *pem.Block) (key crypto.Signer, known bool, err error) {
	var parsed any
	switch block.Type {
	case "PRIVATE KEY":
		parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		parsed, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		parsed, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		return nil, false, nil
	}
	if err != nil {
		return nil, true, err
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, true, fmt.Errorf("found a key of type %T, expected ECDSA or RSA", parsed)
	}
	return key, true, nil
}

// ReadFile reads a file of certificates or a key; it refuses one that is larger than any of these.
func ReadFile(file string) (content []byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	content, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(content) > maxFile {
		return nil, fmt.Errorf("read %s: found more than %d KiB, expected a certificate or key in PEM", file,
			maxFile>>10)
	}
	return content, err
}
