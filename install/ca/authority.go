// Package ca is a site's own certificate authority: it is made, or taken over from others, it signs what a site's
// machines show each other, and another one can take its place.
//
// Contract: an authority lives in a folder of its own, 0700, on the operator's side:
//
//	root.crt      the roots that the site trusts; the first is the present one
//	root-ID.key   the key of the root whose sha256 begins with ID, encrypted with a password; only where boxlift made
//	              the root. Only a change of authorities needs it, so it can be kept elsewhere meanwhile
//	issuing.pem   the issuing authority, which only the owner can read: its chain, it first, then who signed it, the
//	              root last, and its key
//	issued/       certificates that [Authority.Record] was told of, by their serial numbers
//
// Where there is no issuing.pem there is no authority: it is written last, so that making one that broke off is done
// again.
//
// No host gets any of these keys. What the issuing authority signs for servers is good for servers alone (extended key
// usage serverAuth) where boxlift made it: no client certificate can come of it. Each file is written as a whole or not
// at all, and two boxlifts at once do not mix.
//
// Another root takes the place of one in three stages, between which hosts follow: Begin has both trusted, Switch signs
// with what is under the new one, and Finish gives the former one up. What breaks off in one of them is done again.
//
// Clocks in an isolated LAN may be wrong. So certificates begin a year before they are made, and are replaced long
// before they end.
package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
)

const (
	rootLifetime    = 20 * year
	issuingLifetime = 10 * year
)

// Files of an authority's folder.
const (
	RootsFile    = "root.crt"
	IssuingFile  = "issuing.pem"
	IssuedFolder = "issued"

	lockFile = ".lock"
)

var (
	// ErrUnfit is wrapped by errors that say that an authority cannot be used, and why.
	ErrUnfit = fault.NewKind(fault.Input, "the site's authority cannot be used")

	// ErrMissing says that a folder holds no authority.
	ErrMissing = fault.NewKind(fault.Input, "there is no authority")

	// ErrExists says that a folder holds an authority already.
	ErrExists = fault.NewKind(fault.Input, "there is an authority already")
)

// Authority is what a folder has.
type Authority struct {
	// Issuer signs for servers, and the authority by which a cluster's servers are known.
	Issuer *Issuer
	// Roots are those that the site trusts; the first is the present one.
	Roots []*x509.Certificate

	folder string
	clock  func() time.Time
}

// Options say how an authority is made.
type Options struct {
	Folder string
	// Name is the site's, for the subjects of certificates.
	Name string
	// Password encrypts the root's key where one is made.
	Password []byte
	Now      func() time.Time // nil for the machine's clock
}

func (o *Options) clock() func() time.Time {
	if o.Now == nil {
		return time.Now
	}
	return o.Now
}

// Make makes a root, and an issuing authority under it. The error wraps [ErrExists] where there is one.
func Make(o Options) (*Authority, error) {
	root, key, sealed, err := makeRoot(o)
	if err != nil {
		return nil, err
	}
	return o.make(NewIssuer([]*x509.Certificate{root}, key, o.clock()), sealed)
}

// MakeUnder makes an issuing authority under one that is given. Its key is used, and not kept. The error wraps
// [ErrUnfit] when the given one is no good for that, or the chain has no root at its end.
func MakeUnder(o Options, parent *Issuer) (*Authority, error) { return o.make(parent, nil) }

func (o Options) make(parent *Issuer, sealedRootKey []byte) (*Authority, error) {
	chain, key, err := makeIssuing(o.Name, parent)
	if err != nil {
		return nil, err
	}
	return o.keep(NewIssuer(chain, key, o.clock()), sealedRootKey)
}

// Import takes over an authority that others have made, with its key. The error wraps [ErrUnfit] when it is no good, or
// its chain has no root at its end.
func Import(o Options, issuer *Issuer) (*Authority, error) { return o.keep(issuer, nil) }

// keep writes a new folder.
func (o Options) keep(issuer *Issuer, sealedRootKey []byte) (_ *Authority, err error) {
	root, err := issuer.root()
	if err != nil {
		return nil, err
	}
	if err := issuer.tryOut(); err != nil {
		return nil, err
	}
	issuing, err := issuer.encode()
	if err != nil {
		return nil, err
	}
	unlock, err := lockFolder(o.Folder)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if file := filepath.Join(o.Folder, IssuingFile); exists(file) {
		return nil, fault.WithHint(fmt.Errorf("make the site's authority: %w: %s", ErrExists, file),
			"boxlift ca show tells of it; boxlift ca rotate makes its successor")
	}
	a := &Authority{Issuer: issuer, Roots: []*x509.Certificate{root}, folder: o.Folder, clock: o.clock()}
	if sealedRootKey != nil {
		if err := a.write(rootKeyFile(root), sealedRootKey, 0o600); err != nil {
			return nil, err
		}
	}
	if err := a.write(RootsFile, Encode(a.Roots), 0o644); err != nil {
		return nil, err
	}
	// This comes last: without it there is no authority, and what was written before it can be written anew.
	if err := a.write(IssuingFile, issuing, 0o600); err != nil {
		return nil, err
	}
	return a, nil
}

// exists reports whether there is something in the place of a file. What cannot be looked at counts as there.
func exists(file string) bool {
	_, err := os.Lstat(file)
	return !errors.Is(err, fs.ErrNotExist)
}

// rootKeyFile is the file that has the encrypted key of a root.
func rootKeyFile(root *x509.Certificate) string {
	sum := sha256.Sum256(root.Raw)
	return "root-" + hex.EncodeToString(sum[:4]) + ".key"
}

func (a *Authority) write(name string, content []byte, mode fs.FileMode) error {
	if err := ownfile.Replace(filepath.Join(a.folder, name), content, mode); err != nil {
		return fmt.Errorf("keep the site's authority: %w", err)
	}
	return nil
}

// lockFolder makes an authority's folder and keeps other boxlifts from changing it.
func lockFolder(folder string) (unlock func() error, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the site's authority: %w", err)
	}
	if err := os.Chmod(folder, 0o700); err != nil { // it may have been made by hand
		return nil, fmt.Errorf("make the folder of the site's authority: %w", err)
	}
	lock, err := ownfile.Wait(filepath.Join(folder, lockFile), 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the folder of the site's authority: %w", err)
	}
	return lock.Close, nil
}

// Open reads an authority, which may have ended: only what signs refuses that. now is nil for the machine's clock. The
// error wraps [ErrMissing] where the folder holds none, and [ErrUnfit] where what it holds is no good.
func Open(folder string, now func() time.Time) (*Authority, error) {
	a := &Authority{folder: folder, clock: (&Options{Now: now}).clock()}
	roots, issuing := filepath.Join(folder, RootsFile), filepath.Join(folder, IssuingFile)
	if !exists(issuing) {
		hint := "boxlift ca init --folder " + folder + " makes one, or takes over one that there is"
		if exists(roots) {
			hint = "if there was one, bring " + IssuingFile + " back from where it is kept; if making it broke off, " +
				"boxlift ca init --folder " + folder + " makes another one, with another root"
		}
		return nil, fault.WithHint(fmt.Errorf("open the site's authority: %w in %s", ErrMissing, folder), hint)
	}
	var err error
	if a.Roots, err = ReadChain(roots); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	if a.Issuer, err = readIssuer(issuing, issuing, a.clock); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	root, err := a.Issuer.root()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(a.Roots, root.Equal) {
		return nil, fmt.Errorf("%w: found the root %s at the end of %s, expected one of those in %s", ErrUnfit,
			Fingerprint(root), issuing, RootsFile)
	}
	return a, nil
}

// Trusted are the certificates by which what the authority signs is accepted, also by who does not get the chain: all
// roots, and what stands between the present one and the issuing authority.
func (a *Authority) Trusted() []*x509.Certificate {
	return append(slices.Clone(a.Roots), a.Issuer.between()...)
}

// RootOf is the one of the site's roots that a certificate is under, for a chain in PEM as a host has it; nil when it
// is another authority's, or has ended.
func (a *Authority) RootOf(chainPEM []byte) *x509.Certificate {
	chain, err := parseChain(chainPEM)
	if err != nil {
		return nil
	}
	return a.rootOf(chain)
}

func (a *Authority) rootOf(chain []*x509.Certificate) *x509.Certificate {
	for _, root := range a.Roots {
		_, err := chain[0].Verify(x509.VerifyOptions{
			Roots: pool([]*x509.Certificate{root}), Intermediates: pool(chain[1:]), CurrentTime: a.clock(),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		if err == nil {
			return root
		}
	}
	return nil
}

// Kept is a certificate that an authority keeps.
type Kept struct {
	// Path is the file that has it, and Role what it is: "root", "former root", "issuing" or "issued".
	Path, Role  string
	Certificate *x509.Certificate
}

// Certificates are all that the authority keeps: roots, the issuing one, and those that were recorded.
func (a *Authority) Certificates() ([]Kept, error) {
	var all []Kept
	for i, root := range a.Roots {
		role := "root"
		if i > 0 {
			role = "former root"
		}
		all = append(all, Kept{filepath.Join(a.folder, RootsFile), role, root})
	}
	all = append(all, Kept{filepath.Join(a.folder, IssuingFile), "issuing", a.Issuer.chain[0]})
	recorded, err := a.recorded()
	if err != nil {
		return nil, err
	}
	for _, r := range recorded {
		all = append(all, Kept{r.path, "issued", r.chain[0]})
	}
	return all, nil
}

// record is a certificate that was recorded: its file, and it and what stands between it and its root.
type record struct {
	path  string
	chain []*x509.Certificate
}

// recorded are all that were recorded, sorted by their files.
func (a *Authority) recorded() ([]record, error) {
	files, err := filepath.Glob(filepath.Join(a.folder, IssuedFolder, "*.crt"))
	if err != nil {
		return nil, err
	}
	records := make([]record, len(files))
	for i, file := range files {
		chain, err := ReadChain(file)
		if err != nil {
			return nil, err
		}
		records[i] = record{file, chain}
	}
	return records, nil
}

// Record keeps a certificate among those that were issued, in PEM, with what stands between it and its root: by that it
// is known later which root it is under, when another authority signs.
func (a *Authority) Record(certificatePEM []byte) error {
	chain, err := parseChain(certificatePEM)
	if err != nil {
		return err
	}
	folder := filepath.Join(a.folder, IssuedFolder)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("keep what was issued: %w", err)
	}
	name := filepath.Join(IssuedFolder, hex.EncodeToString(chain[0].SerialNumber.Bytes())+".crt")
	return a.write(name, Encode(chain), 0o644)
}

// Fingerprint is the sha256 of a certificate, in hexadecimal with colons, as browsers and openssl show it.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	parts := make([]string, len(sum))
	for i, b := range sum {
		parts[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(parts, ":")
}

// makeRoot makes a root and its key, and the key encrypted.
func makeRoot(o Options) (root *x509.Certificate, key crypto.Signer, sealed []byte, err error) {
	if len(o.Password) == 0 {
		return nil, nil, nil, fault.Input.Errorf("make the site's root: found an empty password, expected one that " +
			"keeps its key")
	}
	sealed, _, err = signature.GenerateKey(o.Password)
	if err != nil {
		return nil, nil, nil, err
	}
	opened, err := signature.OpenKey(sealed, o.Password)
	if err != nil {
		return nil, nil, nil, err
	}
	now := o.clock()()
	template := &x509.Certificate{
		// The day tells successors from each other: two of one name and two keys confuse verifiers.
		Subject:   pkix.Name{CommonName: fmt.Sprintf("%s root %s", o.Name, now.UTC().Format("20060102150405"))},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(rootLifetime),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	root, err = SignCertificate(template, template, opened.Public(), opened)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("make the site's root: %w", err)
	}
	return root, opened, sealed, nil
}

// makeIssuing makes an issuing authority under another one. Below it there may be one more authority, those of a
// cluster.
func makeIssuing(name string, parent *Issuer) ([]*x509.Certificate, crypto.Signer, error) {
	if err := parent.checkTime(); err != nil {
		return nil, nil, fmt.Errorf("make the issuing authority: %w: %w", ErrUnfit, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the key of the issuing authority: %w", err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: fmt.Sprintf("%s issuing %s", name,
			parent.clock().UTC().Format("20060102150405"))},
		NotBefore: parent.begin(), NotAfter: parent.end(issuingLifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLen: 1,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	c, err := SignCertificate(template, parent.chain[0], key.Public(), parent.key)
	if err != nil {
		return nil, nil, fmt.Errorf("make the issuing authority: %w", err)
	}
	return append([]*x509.Certificate{c}, parent.chain...), key, nil
}

// root is the end of the issuer's chain, which has to be one.
func (i *Issuer) root() (*x509.Certificate, error) {
	for n, c := range i.chain[1:] {
		if err := i.chain[n].CheckSignatureFrom(c); err != nil {
			return nil, fmt.Errorf("%w: found %q after %q in the chain, which it did not sign: %w", ErrUnfit, c.Subject,
				i.chain[n].Subject, err)
		}
	}
	last := i.chain[len(i.chain)-1]
	if !isRoot(last) || last.CheckSignatureFrom(last) != nil {
		return nil, fmt.Errorf("%w: found %q at the end of the chain, expected a root, which has signed itself: add the "+
			"certificates of %q and whoever signed that one to the file", ErrUnfit, last.Subject, last.Issuer)
	}
	return last, nil
}

// tryOut makes sure, before anybody relies on it, that whoever trusts the root alone accepts what a cluster's authority
// under this one signs.
func (i *Issuer) tryOut() error {
	root, err := i.root()
	if err != nil {
		return err
	}
	authority, keyPEM, err := i.clusterAuthority()
	if err != nil {
		return err
	}
	key, err := parsePrivate(keyPEM)
	if err != nil {
		return err
	}
	between := append([]*x509.Certificate{authority}, i.between()...)
	const name = "kubernetes"
	pair, err := NewIssuer(between, key, i.clock).Issue([]string{name})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	chain, err := parseChain(pair)
	if err != nil {
		return err
	}
	_, err = chain[0].Verify(x509.VerifyOptions{
		DNSName: name, Roots: pool([]*x509.Certificate{root}), Intermediates: pool(between), CurrentTime: i.clock(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fmt.Errorf("%w: it cannot have the authorities of a cluster under it: %w", ErrUnfit, err)
	}
	return nil
}

// encode writes the issuer as a file has it: the chain, and its key.
func (i *Issuer) encode() ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(i.key)
	if err != nil {
		return nil, fmt.Errorf("%w: encode its key: %w", ErrUnfit, err)
	}
	return append(Encode(i.chain), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...), nil
}
