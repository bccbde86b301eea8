// Package authority makes the certificates of the registry that the servers of a cluster
// run, and the password that nodes log in with.
//
// Contract: a cluster's authority lives in a folder of its own, 0700, in files that only
// their owner can read: ca.crt, ca.key and password. They are made at the first Open, unless the
// password is known from elsewhere, each
// written as a whole or not at all, and kept after that; two boxlifts at once make one
// authority. Every Open and every certificate that is not needed again changes nothing.
// Keys of servers are not kept here: they are made for one server and go there.
//
// Nodes of an isolated LAN may have clocks that are wrong. So certificates begin a year
// before they are made, and are replaced long before they end.
//
// The user's own authority stands in place of the one that is made: its files are read and
// never written. What is wrong with them is an error that wraps [ErrOwn] and says what to do.
package authority

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
)

const (
	day  = 24 * time.Hour
	year = 365 * day

	backdated    = year // how far a node's clock may be behind
	caLifetime   = 10 * year
	caRenewal    = 2 * year // left when the authority's certificate is renewed; longer than a server's lasts
	leafLifetime = year
	leafRenewal  = 90 * day // left when a server's certificate is renewed
)

// Files in the folder of an authority, beside its key.
const (
	caFile       = "ca.crt"
	passwordFile = "password"
)

// ErrOwn is wrapped by errors about the user's own authority.
var ErrOwn = fault.NewKind(fault.Input, "the authority of seeding.registry cannot be used")

// Options say which authority to open.
type Options struct {
	// Dir is the cluster's folder. It is made when it is not there, and its parents too.
	Dir string
	// Cluster is the cluster's name, to be told from others in a certificate.
	Cluster string
	// CAFile and CAKeyFile are the user's own authority in PEM; "" for none. CAFile may hold
	// a chain, the certificate that signs first.
	CAFile, CAKeyFile string
	// Password is kept where the folder has none; "" makes one.
	Password string
	Now      func() time.Time // nil for the machine's clock
}

// Authority signs certificates. Its methods may be called by several goroutines.
type Authority struct {
	chain    []*x509.Certificate // the first signs
	key      crypto.Signer
	password string
	now      func() time.Time
}

// Lacks tells what Open would make: the authority itself, and the password.
func (o Options) Lacks() (lacksCA, lacksPassword bool) {
	lacks := func(name string) bool {
		_, err := os.Stat(filepath.Join(o.Dir, name))
		return errors.Is(err, fs.ErrNotExist)
	}
	return o.CAFile == "" && lacks(caFile), lacks(passwordFile)
}

// Open opens a cluster's authority and makes what is missing.
func Open(o Options) (*Authority, error) {
	a := &Authority{now: o.Now}
	if a.now == nil {
		a.now = time.Now
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the registry's authority: %w", err)
	}
	if err := os.Chmod(o.Dir, 0o700); err != nil { // it may have been made by hand
		return nil, fmt.Errorf("make the folder of the registry's authority: %w", err)
	}
	lock, err := ownfile.Wait(filepath.Join(o.Dir, ".lock"), 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the folder of the registry's authority: %w", err)
	}
	err = a.open(o)
	if err := errors.Join(err, lock.Close()); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Authority) open(o Options) (err error) {
	if a.password, err = openPassword(filepath.Join(o.Dir, passwordFile), o.Password); err != nil {
		return err
	}
	if o.CAFile != "" {
		a.chain, a.key, err = readOwn(o.CAFile, o.CAKeyFile, a.now())
		return err
	}
	return a.openMade(o)
}

// openMade opens the authority that boxlift makes. The key is written first: without the
// certificate it was never used.
func (a *Authority) openMade(o Options) error {
	certificateFile, keyFile := filepath.Join(o.Dir, caFile), filepath.Join(o.Dir, "ca.key")
	chain, err := readChain(certificateFile)
	var old *x509.Certificate
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if a.key, err = makeKey(keyFile); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("read the registry's authority: %w (without %s boxlift makes another)", err, certificateFile)
	default:
		if a.key, err = readKey(keyFile); err == nil {
			err = matches(chain[0], a.key)
		}
		if err != nil {
			return fmt.Errorf("read the registry's authority: %w (without %s boxlift makes another)", err,
				certificateFile)
		}
		if old = chain[0]; old.NotAfter.Sub(a.now()) > caRenewal {
			a.chain = chain
			return nil
		}
	}
	made, err := a.makeCA(o.Cluster, old)
	if err != nil {
		return fmt.Errorf("make the registry's authority: %w", err)
	}
	a.chain = []*x509.Certificate{made}
	return writeFile(certificateFile, a.CA())
}

// makeCA makes the authority's certificate. The one that takes another's place has its name
// and key: whoever trusts either accepts what both have signed.
func (a *Authority) makeCA(cluster string, old *x509.Certificate) (*x509.Certificate, error) {
	now := a.now()
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "boxlift registry authority of " + cluster},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(caLifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	if old != nil {
		template.RawSubject, template.SubjectKeyId, template.NotBefore = old.RawSubject, old.SubjectKeyId, old.NotBefore
	}
	return sign(template, template, a.key.Public(), a.key)
}

// CA returns the certificates to trust, in PEM.
func (a *Authority) CA() []byte { return encode(a.chain) }

// Password returns what nodes log in with: 64 hexadecimal digits.
func (a *Authority) Password() string { return a.password }

// Issue makes a certificate for a server that is reached by these IP addresses and DNS
// names, with a key of its own. It returns both in PEM, the certificate first, with what
// stands between it and the authority that others may know.
func (a *Authority) Issue(names []string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key for a registry: %w", err)
	}
	encodedKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of a registry: %w", err)
	}
	issuer, now := a.chain[0], a.now()
	template := &x509.Certificate{
		NotBefore: now.Add(-backdated), NotAfter: a.end(),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if template.NotBefore.Before(issuer.NotBefore) {
		template.NotBefore = issuer.NotBefore
	}
	if err := setNames(template, names); err != nil {
		return nil, err
	}
	leaf, err := sign(template, issuer, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate for %s: %w", strings.Join(names, ", "), err)
	}
	if err := a.accepts(leaf, names); err != nil {
		return nil, fmt.Errorf("sign the certificate for %s: %w", strings.Join(names, ", "), err)
	}
	sent := []*x509.Certificate{leaf}
	for _, c := range a.chain {
		if !bytes.Equal(c.RawSubject, c.RawIssuer) {
			sent = append(sent, c)
		}
	}
	return append(encode(sent), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encodedKey})...), nil
}

// Reason says why a server needs another certificate and key than what it has, in PEM, to
// be reached by these names; "" when it does not.
func (a *Authority) Reason(pair []byte, names []string) string {
	have, err := tls.X509KeyPair(pair, pair)
	if err != nil {
		return "the certificate cannot be used: " + err.Error()
	}
	leaf, now := have.Leaf, a.now()
	if leaf.CheckSignatureFrom(a.chain[0]) != nil {
		return "another authority signed the certificate"
	}
	if now.Before(leaf.NotBefore) {
		return "the certificate begins in the future, on " + leaf.NotBefore.UTC().Format(time.DateOnly)
	}
	if end := leaf.NotAfter; end.Sub(now) < leafRenewal && a.end().Sub(end) > time.Minute {
		return "the certificate ends on " + end.UTC().Format(time.DateOnly)
	}
	var want x509.Certificate
	if err := setNames(&want, names); err != nil || !slices.Equal(sortedNames(&want), sortedNames(leaf)) {
		return "the certificate is for " + strings.Join(sortedNames(leaf), ", ")
	}
	return ""
}

// end is when a certificate that is made now ends: never after its authority.
func (a *Authority) end() time.Time {
	end := a.now().Add(leafLifetime)
	for _, c := range a.chain {
		if c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	return end
}

// accepts makes sure that clients will accept a certificate: the user's authority may be
// good for some names only.
func (a *Authority) accepts(leaf *x509.Certificate, names []string) error {
	roots := x509.NewCertPool()
	for _, c := range a.chain {
		roots.AddCert(c)
	}
	for _, name := range names {
		_, err := leaf.Verify(x509.VerifyOptions{
			DNSName: name, Roots: roots, CurrentTime: a.now(),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		if err != nil {
			return fmt.Errorf("%w: clients would not accept it: %w", ErrOwn, err)
		}
	}
	return nil
}

// sign makes a certificate and reads it again.
func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
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

var dnsName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)

// sortedNames are the names that a certificate is for, each once.
func sortedNames(c *x509.Certificate) []string {
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

func encode(chain []*x509.Certificate) []byte {
	var out []byte
	for _, c := range chain {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

func makeKey(file string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the registry's authority: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of the registry's authority: %w", err)
	}
	return key, writeFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

var password = regexp.MustCompile(`^[0-9a-f]{64}\n?$`)

// IsPassword reports whether a text is what Password returns of an authority.
func IsPassword(text string) bool {
	return password.MatchString(text) && !strings.HasSuffix(text, "\n")
}

func openPassword(file, given string) (string, error) {
	content, err := readFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) && IsPassword(given):
		return given, writeFile(file, []byte(given+"\n"))
	case errors.Is(err, fs.ErrNotExist):
		random := make([]byte, 32)
		if _, err := rand.Read(random); err != nil {
			return "", fmt.Errorf("make the registry's password: %w", err)
		}
		made := hex.EncodeToString(random)
		return made, writeFile(file, []byte(made+"\n"))
	case err != nil:
		return "", fmt.Errorf("read the registry's password: %w", err)
	case !password.Match(content):
		return "", fmt.Errorf("read the registry's password: found something else in %s, expected 64 hexadecimal "+
			"digits (without the file boxlift makes another)", file)
	}
	return strings.TrimSuffix(string(content), "\n"), nil
}

func writeFile(file string, content []byte) error {
	if err := renameio.WriteFile(file, content, 0o600, renameio.WithStaticPermissions(0o600)); err != nil {
		return fmt.Errorf("keep the registry's authority: %w", err)
	}
	return nil
}
