package authority

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

// readOwn reads the user's own authority.
func readOwn(certificateFile, keyFile string, now time.Time) ([]*x509.Certificate, crypto.Signer, error) {
	chain, err := readChain(certificateFile)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrOwn, err)
	}
	if err := checkCA(chain[0], now); err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", ErrOwn, certificateFile, err)
	}
	key, err := readKey(keyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrOwn, err)
	}
	if err := matches(chain[0], key); err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", ErrOwn, keyFile, err)
	}
	return chain, key, nil
}

// checkCA refuses certificates that cannot sign others now.
func checkCA(c *x509.Certificate, now time.Time) error {
	switch {
	case !c.BasicConstraintsValid || !c.IsCA:
		return fmt.Errorf("found the certificate of %q, expected an authority's: it has no basic constraint CA:TRUE",
			c.Subject)
	case c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0:
		return errors.New("found an authority that may not sign certificates, expected keyCertSign among its key usages")
	case now.After(c.NotAfter):
		return fmt.Errorf("found an authority that ended on %s, expected one that is valid: give the one that took "+
			"its place", c.NotAfter.UTC().Format(time.DateOnly))
	case now.Before(c.NotBefore):
		return fmt.Errorf("found an authority that begins on %s, expected one that is valid: is this machine's clock "+
			"right?", c.NotBefore.UTC().Format(time.DateOnly))
	}
	return checkPublic(c.PublicKey)
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

// matches refuses a key that is not a certificate's.
func matches(c *x509.Certificate, key crypto.Signer) error {
	public, ok := c.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(key.Public()) {
		return fmt.Errorf("found another key than that of %q, expected the one that belongs to the certificate",
			c.Subject)
	}
	return nil
}

// readChain reads certificates in PEM.
func readChain(file string) ([]*x509.Certificate, error) {
	content, err := readFile(file)
	if err != nil {
		return nil, err
	}
	var chain []*x509.Certificate
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		chain = append(chain, c)
	}
	if len(chain) == 0 {
		return nil, fmt.Errorf("read %s: found no certificate, expected one in PEM, which begins with -----BEGIN "+
			"CERTIFICATE----- (openssl x509 -inform DER -in FILE makes one of the binary form)", file)
	}
	return chain, nil
}

// readKey reads the first private key in PEM.
func readKey(file string) (crypto.Signer, error) {
	content, err := readFile(file)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "" {
			return nil, fmt.Errorf("read %s: found a key with a passphrase, expected one without: openssl pkey -in "+
				"FILE -out NEW makes it, for a file that only you can read", file)
		}
		key, known, err := parseKey(block)
		if !known {
			continue // such as the parameters of a curve
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		return key, nil
	}
	return nil, fmt.Errorf("read %s: found no private key, expected one in PEM, which begins with -----BEGIN PRIVATE "+
		"KEY-----", file)
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

func readFile(file string) (content []byte, err error) {
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
