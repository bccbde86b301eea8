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
// The site's authority stands in place of the one that is made, or the user's own, whose files
// are read and never written. What is wrong with these is an error that wraps [ErrOwn] and says
// what to do.
package authority

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/ca"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/ownfile"
)

const (
	year = 365 * 24 * time.Hour

	backdated  = year // how far a node's clock may be behind
	caLifetime = 10 * year
	caRenewal  = 2 * year // left when the authority's certificate is renewed; longer than a server's lasts
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
	// Site opens the site's own authority, which signs instead of one that is made; nil for none.
	Site func() (*ca.Authority, error)
	// Password is kept where the folder has none; "" makes one.
	Password string
	Now      func() time.Time // nil for the machine's clock
}

// Authority signs certificates. Its methods may be called by several goroutines.
type Authority struct {
	issuer   *ca.Issuer
	trusted  []*x509.Certificate
	password string
	now      func() time.Time
}

// Lacks tells what Open would make: the authority itself, and the password.
func (o Options) Lacks() (lacksCA, lacksPassword bool) {
	lacks := func(name string) bool {
		_, err := os.Stat(filepath.Join(o.Dir, name))
		return errors.Is(err, fs.ErrNotExist)
	}
	return o.CAFile == "" && o.Site == nil && lacks(caFile), lacks(passwordFile)
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
	switch {
	case o.Site != nil:
		site, err := o.Site()
		if err != nil {
			return err
		}
		a.issuer, a.trusted = site.Issuer, site.Trusted()
		return nil
	case o.CAFile != "":
		a.issuer, err = readOwn(o.CAFile, o.CAKeyFile, a.now)
	default:
		a.issuer, err = a.openMade(o)
	}
	if err == nil {
		a.trusted = a.issuer.Chain()
	}
	return err
}

// readOwn reads the user's own authority.
func readOwn(certificateFile, keyFile string, now func() time.Time) (*ca.Issuer, error) {
	issuer, err := ca.ReadIssuer(certificateFile, keyFile, now)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOwn, err)
	}
	return issuer, nil
}

// openMade opens the authority that boxlift makes. The key is written first: without the
// certificate it was never used.
func (a *Authority) openMade(o Options) (*ca.Issuer, error) {
	certificateFile, keyFile := filepath.Join(o.Dir, caFile), filepath.Join(o.Dir, "ca.key")
	chain, err := ca.ReadChain(certificateFile)
	var old *x509.Certificate
	var key crypto.Signer
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if key, err = makeKey(keyFile); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, fmt.Errorf("read the registry's authority: %w (without %s boxlift makes another)", err,
			certificateFile)
	default:
		if key, err = ca.ReadKey(keyFile); err == nil {
			err = ca.Matches(chain[0], key)
		}
		if err != nil {
			return nil, fmt.Errorf("read the registry's authority: %w (without %s boxlift makes another)", err,
				certificateFile)
		}
		if old = chain[0]; old.NotAfter.Sub(a.now()) > caRenewal {
			return ca.NewIssuer(chain, key, a.now), nil
		}
	}
	made, err := a.makeCA(o.Cluster, old, key)
	if err != nil {
		return nil, fmt.Errorf("make the registry's authority: %w", err)
	}
	chain = []*x509.Certificate{made}
	return ca.NewIssuer(chain, key, a.now), writeFile(certificateFile, ca.Encode(chain))
}

// makeCA makes the authority's certificate. The one that takes another's place has its name
// and key: whoever trusts either accepts what both have signed.
func (a *Authority) makeCA(cluster string, old *x509.Certificate, key crypto.Signer) (*x509.Certificate, error) {
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
	return ca.SignCertificate(template, template, key.Public(), key)
}

// CA returns the certificates to trust, in PEM.
func (a *Authority) CA() []byte { return ca.Encode(a.trusted) }

// Password returns what nodes log in with: 64 hexadecimal digits.
func (a *Authority) Password() string { return a.password }

// Issue makes a certificate for a server that is reached by these IP addresses and DNS
// names, with a key of its own. It returns both in PEM, the certificate first, with what
// stands between it and the authority that others may know.
func (a *Authority) Issue(names []string) ([]byte, error) {
	pair, err := a.issuer.Issue(names)
	if errors.Is(err, ca.ErrNotAccepted) {
		return nil, fmt.Errorf("%w: %w", ErrOwn, err)
	}
	return pair, err
}

// Reason says why a server needs another certificate and key than what it has, in PEM, to
// be reached by these names; "" when it does not.
func (a *Authority) Reason(pair []byte, names []string) string { return a.issuer.Reason(pair, names) }

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

var password = lazyregexp.New(`^[0-9a-f]{64}\n?$`)

// IsPassword reports whether a text is what Password returns of an authority.
func IsPassword(text string) bool {
	return password.MatchString(text) && !strings.HasSuffix(text, "\n")
}

func openPassword(file, given string) (string, error) {
	content, err := ca.ReadFile(file)
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
	if err := ownfile.Replace(file, content, 0o600); err != nil {
		return fmt.Errorf("keep the registry's authority: %w", err)
	}
	return nil
}
