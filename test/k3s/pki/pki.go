// Package pki makes the cluster's certificates. As in k3s, leaf certificates
// are valid from the moment at which their CA became valid, for a year, and CAs
// for ten years; at a start those are made anew that end within 120 days.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// CA signs certificates.
type CA struct {
	CertPEM []byte
	cert    *x509.Certificate
	key     crypto.Signer
}

// NewCA makes a CA and gives its certificate and key in PEM.
func NewCA(name string) (certPEM, keyPEM []byte, err error) {
	key, keyPEM, err := NewKey()
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(0), Subject: pkix.Name{CommonName: "k3s-" + name + "@" + strconv.FormatInt(now.Unix(), 10)},
		NotBefore: now, NotAfter: now.AddDate(10, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	return encode("CERTIFICATE", der), keyPEM, nil
}

// ReadCA reads a CA from base.crt and base.key.
func ReadCA(base string) (*CA, error) {
	certPEM, err := os.ReadFile(base + ".crt")
	if err != nil {
		return nil, err
	}
	keyPEM, err := os.ReadFile(base + ".key")
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(certPEM)
	if block == nil {
		return nil, fmt.Errorf("%s.crt holds no certificate", base)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read %s.crt: %w", base, err)
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("read %s.key: %w", base, err)
	}
	return &CA{CertPEM: certPEM, cert: cert, key: key}, nil
}

// WriteFirst writes the first certificate of a file to another one.
func WriteFirst(from, to string) error {
	certPEM, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	block, _ := pem.Decode(certPEM)
	if block == nil {
		return fmt.Errorf("%s holds no certificate", from)
	}
	return os.WriteFile(to, pem.EncodeToMemory(block), 0o644)
}

// Subject says whom a certificate is for. Without Names it is for clients only.
type Subject struct {
	CommonName    string
	Organizations []string
	Names         []string // host names and addresses
}

// Sign makes a certificate, in PEM, with the CA's own behind it.
func (ca *CA) Sign(subject Subject, public crypto.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 62))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: subject.CommonName, Organization: subject.Organizations},
		NotBefore: ca.cert.NotBefore, NotAfter: time.Now().Add(lifetime()),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(subject.Names) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, name := range subject.Names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if name != "" {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, public, ca.key)
	if err != nil {
		return nil, err
	}
	return append(encode("CERTIFICATE", der), ca.CertPEM...), nil
}

// renewWindow is how long before its end a certificate is renewed at a start (k3s documentation, "k3s certificate").
const renewWindow = 120 * 24 * time.Hour

// Issue writes a certificate to base.crt, unless a good one is there that does not end soon. Its
// key is base.key, which is made if it is not there.
func (ca *CA) Issue(base string, subject Subject) error {
	key, err := EnsureKey(base + ".key")
	if err != nil {
		return err
	}
	if ca.keeps(base+".crt", subject, key) {
		return nil
	}
	cert, err := ca.Sign(subject, key.Public())
	if err != nil {
		return err
	}
	return os.WriteFile(base+".crt", cert, 0o644)
}

// keeps reports whether the certificate in a file can stay: it is this CA's, for these names and
// this key, and does not end soon.
func (ca *CA) keeps(path string, subject Subject, key crypto.Signer) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || cert.CheckSignatureFrom(ca.cert) != nil || time.Until(cert.NotAfter) <= renewWindow {
		return false
	}
	public, ok := key.Public().(*ecdsa.PublicKey)
	if !ok || !public.Equal(cert.PublicKey) || cert.Subject.CommonName != subject.CommonName ||
		!slices.Equal(cert.Subject.Organization, subject.Organizations) {
		return false
	}
	var want, have []string
	for _, name := range subject.Names {
		if ip := net.ParseIP(name); ip != nil {
			name = ip.String()
		}
		if name != "" {
			want = append(want, name)
		}
	}
	for _, ip := range cert.IPAddresses {
		have = append(have, ip.String())
	}
	have = append(have, cert.DNSNames...)
	slices.Sort(want)
	slices.Sort(have)
	return slices.Equal(want, have)
}

// lifetime is how long certificates last: a year, unless the environment says otherwise, as in k3s
// (rancher/dynamiclistener, cert).
func lifetime() time.Duration {
	days, err := strconv.Atoi(os.Getenv("CATTLE_NEW_SIGNED_CERT_EXPIRATION_DAYS"))
	if err != nil || days <= 0 {
		days = 365
	}
	return time.Duration(days) * 24 * time.Hour
}

// Pool is the certificates of a PEM text.
func Pool(certPEM []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(certPEM) {
		return nil, errors.New("no certificate in PEM")
	}
	return pool, nil
}

// NewKey makes a key and gives it in PEM too.
func NewKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, encode("EC PRIVATE KEY", der), nil
}

// EnsureKey reads the key in a file, or makes one and writes it there.
func EnsureKey(path string) (crypto.Signer, error) {
	text, err := os.ReadFile(path)
	if err == nil {
		return parseKey(text)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	key, keyPEM, err := NewKey()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return key, os.WriteFile(path, keyPEM, 0o600)
}

// PublicPEM is the public half of a key.
func PublicPEM(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	return encode("PUBLIC KEY", der), err
}

// ParsePublic reads what PublicPEM writes.
func ParsePublic(text []byte) (crypto.PublicKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no public key in PEM")
	}
	return x509.ParsePKIXPublicKey(block.Bytes)
}

func parseKey(text []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no key in PEM")
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("key cannot sign")
	}
	return signer, nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
