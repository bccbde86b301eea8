package ca

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

const (
	day  = 24 * time.Hour
	year = 365 * day

	backdated    = year // how far the clock of whoever verifies may be behind
	leafLifetime = year
	leafRenewal  = 90 * day // left when a server's certificate is renewed
)

// ErrNotAccepted says that an authority is not good for a certificate that it was to sign.
var ErrNotAccepted = fault.NewKind(fault.Input, "clients would not accept it")

// Issuer signs certificates. Its methods may be called by several goroutines.
type Issuer struct {
	chain []*x509.Certificate // the first signs, and each one is signed by the next
	key   crypto.Signer
	clock func() time.Time
}

// NewIssuer makes an issuer of a chain whose first certificate signs, and of that one's key.
func NewIssuer(chain []*x509.Certificate, key crypto.Signer, clock func() time.Time) *Issuer {
	return &Issuer{chain: chain, key: key, clock: clock}
}

// Chain are the issuer's certificates: the first signs, and each one is signed by the next.
func (i *Issuer) Chain() []*x509.Certificate { return slices.Clone(i.chain) }

// Issue makes a certificate for a server that is reached by these IP addresses and DNS names, with a key of its own. It
// returns both in PEM, the certificate first, with what stands between it and the authority that others may know.
func (i *Issuer) Issue(names []string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key for a server: %w", err)
	}
	encodedKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of a server: %w", err)
	}
	certificates, err := i.Sign(names, key.Public())
	if err != nil {
		return nil, err
	}
	return append(certificates, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encodedKey})...), nil
}

// Sign makes a certificate for the server that has a key, and returns it in PEM with what stands between it and the
// authority that others may know. The error wraps [ErrNotAccepted] when the authority has ended, or is not good for a
// name.
func (i *Issuer) Sign(names []string, public crypto.PublicKey) ([]byte, error) {
	if err := checkPublic(public); err != nil {
		return nil, err
	}
	if err := i.checkTime(); err != nil {
		return nil, fmt.Errorf("sign the certificate for %s: %w: %w", strings.Join(names, ", "), ErrNotAccepted, err)
	}
	issuer := i.chain[0]
	template := &x509.Certificate{
		NotBefore: i.begin(), NotAfter: i.end(leafLifetime),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if err := setNames(template, names); err != nil {
		return nil, err
	}
	leaf, err := SignCertificate(template, issuer, public, i.key)
	if err == nil {
		err = i.accepts(leaf, names)
	}
	if err != nil {
		return nil, fmt.Errorf("sign the certificate for %s: %w", strings.Join(names, ", "), err)
	}
	return Encode(append([]*x509.Certificate{leaf}, i.between()...)), nil
}

// between are the certificates that a server sends after its own: all of the chain but the root.
func (i *Issuer) between() []*x509.Certificate {
	return slices.DeleteFunc(i.Chain(), isRoot)
}

// isRoot reports whether a certificate is one that nobody else has signed.
func isRoot(c *x509.Certificate) bool { return bytes.Equal(c.RawSubject, c.RawIssuer) }

// Reason says why a server needs another certificate and key than what it has, in PEM, to be reached by these names; ""
// when it does not.
func (i *Issuer) Reason(pair []byte, names []string) string {
	have, err := tls.X509KeyPair(pair, pair)
	if err != nil {
		return "the certificate cannot be used: " + err.Error()
	}
	leaf, now := have.Leaf, i.clock()
	if leaf.CheckSignatureFrom(i.chain[0]) != nil {
		return "another authority signed the certificate"
	}
	if now.Before(leaf.NotBefore) {
		return "the certificate begins in the future, on " + leaf.NotBefore.UTC().Format(time.DateOnly)
	}
	// One that lasts as long as its authority is not renewed before the end: another one would last no longer.
	end, lastsLonger := leaf.NotAfter, i.end(leafLifetime).Sub(leaf.NotAfter) > time.Minute
	if now.After(end) || end.Sub(now) < leafRenewal && lastsLonger {
		return "the certificate ends on " + end.UTC().Format(time.DateOnly)
	}
	var want x509.Certificate
	if err := setNames(&want, names); err != nil || !slices.Equal(Names(&want), Names(leaf)) {
		return "the certificate is for " + strings.Join(Names(leaf), ", ")
	}
	return ""
}

// begin is when a certificate that is made now begins: never before its authority.
func (i *Issuer) begin() time.Time {
	begin := i.clock().Add(-backdated)
	if issuer := i.chain[0]; begin.Before(issuer.NotBefore) {
		return issuer.NotBefore
	}
	return begin
}

// end is when a certificate that is made now ends: never after its authority.
func (i *Issuer) end(lifetime time.Duration) time.Time {
	end := i.clock().Add(lifetime)
	for _, c := range i.chain {
		if c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	return end
}

// accepts makes sure that clients will accept a certificate: an authority of others may be good for some names only.
func (i *Issuer) accepts(leaf *x509.Certificate, names []string) error {
	for _, name := range names {
		_, err := leaf.Verify(x509.VerifyOptions{
			DNSName: name, Roots: pool(i.chain), CurrentTime: i.clock(),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNotAccepted, err)
		}
	}
	return nil
}

func pool(certificates []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certificates {
		p.AddCert(c)
	}
	return p
}

// SignCertificate makes a certificate with a serial number that nobody foresees, and reads it again.
func SignCertificate(template, parent *x509.Certificate, public crypto.PublicKey,
	key crypto.Signer) (*x509.Certificate, error) {
	serial := make([]byte, 16)
	if _, err := rand.Read(serial); err != nil {
		return nil, err
	}
	serial[0] &= 0x7f // positive
	template.SerialNumber = new(big.Int).SetBytes(serial)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// setNames sets the names that a certificate is for.
func setNames(c *x509.Certificate, names []string) error {
	if len(names) == 0 {
		return errors.New("make a certificate: found no name, expected at least one that the server is reached by")
	}
	for _, name := range names {
		switch ip := net.ParseIP(name); {
		case ip != nil:
			c.IPAddresses = append(c.IPAddresses, ip)
		case dnsName.MatchString(name):
			c.DNSNames = append(c.DNSNames, strings.ToLower(name))
		default:
			return fmt.Errorf("make a certificate: found %q, expected an IP address or a DNS name", name)
		}
	}
	return nil
}

var dnsName = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)

// Names are what a certificate is for: addresses and names, sorted, each once.
func Names(c *x509.Certificate) []string {
	var names []string
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	for _, name := range c.DNSNames {
		names = append(names, strings.ToLower(name))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Encode writes certificates in PEM, in their order.
func Encode(chain []*x509.Certificate) []byte {
	var out []byte
	for _, c := range chain {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}
