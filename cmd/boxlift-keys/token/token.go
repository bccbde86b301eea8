// Package token signs with ECDSA P-256 keys in PKCS#11 tokens, behind the interface that sigstore has for key services.
//
// A key is named by a URI (package pkcs11uri). Where the URI names no module, the variable PKCS11_MODULE_PATH does.
// Who shows no PIN sees public keys only. A PIN is shown once for each [Open], since tokens count wrong ones.
//
// Errors say which token and which key, what came back, and what to do. They never say the PIN.
package token

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"strings"

	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/liteboxd/boxlift/bundle/kms/pkcs11uri"
	"github.com/liteboxd/boxlift/cmd/boxlift-keys/pkcs11"
)

// Algorithm is the one kind of key.
const Algorithm = "ecdsa-p256"

// moduleVariable names the module for URIs that do not.
const moduleVariable = "PKCS11_MODULE_PATH"

// pinLimit bounds what a file with a PIN may hold, in bytes.
const pinLimit = 1 << 10

// maxLabels is how many keys are told apart in messages.
const maxLabels = 16

// p256 is CKA_EC_PARAMS of the curve: its object identifier.
var p256 = []byte{0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07}

// Key is a key in a token, or the place for one.
type Key struct {
	uri     *pkcs11uri.URI
	module  *pkcs11.Module
	token   pkcs11.Token
	session *pkcs11.Session
	pin     []byte
	// hasLogin says that private keys can be seen.
	hasLogin bool
}

// Open finds the token that a URI names, and shows the PIN if the URI names a file that has it.
// forWriting is needed to make keys.
func Open(text string, forWriting bool) (*Key, error) {
	u, err := pkcs11uri.Parse(text)
	if err != nil {
		return nil, err
	}
	path := u.ModulePath
	if path == "" {
		path = os.Getenv(moduleVariable)
	}
	if path == "" {
		return nil, fmt.Errorf("the PKCS#11 URI names no module: add ?module-path=FILE with the library of the token's "+
			"maker (softhsm2: /usr/lib/softhsm/libsofthsm2.so), or set %s", moduleVariable)
	}
	k := &Key{uri: u}
	if k.module, err = pkcs11.Load(path); err != nil {
		return nil, err
	}
	if err := k.open(path, forWriting); err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

func (k *Key) open(path string, forWriting bool) error {
	tokens, err := k.module.Tokens()
	if err != nil {
		return err
	}
	if err := k.choose(path, tokens); err != nil {
		return err
	}
	if k.session, err = k.module.Open(k.token.Slot, forWriting); err != nil {
		return fmt.Errorf("token %s: %w", &k.token, err)
	}
	if k.uri.PINSource == "" {
		k.hasLogin = !k.token.NeedsLogin
		return nil
	}
	if k.pin, err = readPIN(k.uri.PINSource); err != nil {
		return err
	}
	return k.login(pkcs11.Owner)
}

// choose takes the one token that the URI fits.
func (k *Key) choose(path string, tokens []pkcs11.Token) error {
	var fitting, there []string
	for _, t := range tokens {
		there = append(there, t.String())
		if wants(k.uri.Token, t.Label) && wants(k.uri.Manufacturer, t.Manufacturer) && wants(k.uri.Model, t.Model) &&
			wants(k.uri.Serial, t.Serial) && (k.uri.Slot < 0 || uint64(k.uri.Slot) == uint64(t.Slot)) {
			fitting = append(fitting, t.String())
			k.token = t
		}
	}
	list := "none"
	if len(there) > 0 {
		list = strings.Join(there[:min(len(there), maxLabels)], ", ")
	}
	switch len(fitting) {
	case 1:
		return nil
	case 0:
		return fmt.Errorf("no token fits the PKCS#11 URI; the module %s sees: %s", path, list)
	}
	return fmt.Errorf("%d tokens fit the PKCS#11 URI: %s; name one with token= or serial=", len(fitting),
		strings.Join(fitting[:min(len(fitting), maxLabels)], ", "))
}

func wants(asked, has string) bool { return asked == "" || asked == has }

func readPIN(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the PIN: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	pin, err := io.ReadAll(io.LimitReader(f, pinLimit+1))
	if err == nil && len(pin) > pinLimit {
		err = errors.New("the file is too large for a PIN")
	}
	if err != nil {
		return nil, fmt.Errorf("read the PIN: %w", err)
	}
	return bytes.TrimRight(pin, "\r\n"), nil
}

// login shows the PIN.
func (k *Key) login(user pkcs11.User) error {
	if k.token.IsLocked {
		return fmt.Errorf("token %s is locked: too many wrong PINs were shown; its security officer sets a new one",
			&k.token)
	}
	if len(k.pin) == 0 && !k.token.HasPINPad {
		return fmt.Errorf("token %s needs its PIN, and the one given is empty", &k.token)
	}
	err := k.session.Login(user, k.pin)
	switch {
	case err == nil:
		k.hasLogin = true
		return nil
	case errors.Is(err, pkcs11.PINIncorrect), errors.Is(err, pkcs11.PINInvalid), errors.Is(err, pkcs11.PINLengthRange):
		return fmt.Errorf("token %s: the PIN is wrong; tokens count wrong ones, and lock themselves: %w", &k.token, err)
	case errors.Is(err, pkcs11.PINLocked):
		return fmt.Errorf("token %s is locked: too many wrong PINs were shown; its security officer sets a new one: %w",
			&k.token, err)
	}
	return fmt.Errorf("token %s: log in: %w", &k.token, err)
}

// Close ends the use of the token.
func (k *Key) Close() {
	if k.session != nil {
		k.session.Close()
	}
	k.module.Close()
}

// name is the key for messages.
func (k *Key) name() string {
	if k.uri.Object != "" {
		return fmt.Sprintf("%q", k.uri.Object)
	}
	return "with the id " + hex.EncodeToString(k.uri.ID)
}

// find finds the one object of a class that the URI names; none is no error.
func (k *Key) find(class uint64, id []byte) (object pkcs11.Object, ok bool, err error) {
	with := []pkcs11.Attribute{pkcs11.Number(pkcs11.Class, class)}
	if k.uri.Object != "" {
		with = append(with, pkcs11.Attribute{Kind: pkcs11.Label, Value: []byte(k.uri.Object)})
	}
	if len(id) > 0 {
		with = append(with, pkcs11.Attribute{Kind: pkcs11.ID, Value: id})
	}
	found, err := k.session.Find(2, with...)
	switch {
	case err != nil:
		return 0, false, fmt.Errorf("token %s: %w", &k.token, err)
	case len(found) > 1:
		return 0, false, fmt.Errorf("token %s has several keys that the PKCS#11 URI fits; name one with id=", &k.token)
	case len(found) == 0:
		return 0, false, nil
	}
	return found[0], true, nil
}

// private finds the private key, which may sign with P-256.
func (k *Key) private() (pkcs11.Object, error) {
	if !k.hasLogin {
		return 0, fmt.Errorf("token %s needs its PIN before a key in it signs", &k.token)
	}
	object, ok, err := k.find(pkcs11.PrivateKeyClass, k.uri.ID)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, k.absent("private")
	}
	if err := k.checkKind(object); err != nil {
		return 0, err
	}
	if may, err := k.session.Attribute(object, pkcs11.Sign); err == nil && bytes.Equal(may, []byte{0}) {
		return 0, fmt.Errorf("the key %s in token %s may not sign (CKA_SIGN is false)", k.name(), &k.token)
	}
	return object, nil
}

// absent says that there is no such key, and which ones there are.
func (k *Key) absent(class string) error {
	number := uint64(pkcs11.PublicKeyClass)
	if class == "private" {
		number = pkcs11.PrivateKeyClass
	}
	list := "none"
	if found, err := k.session.Find(maxLabels, pkcs11.Number(pkcs11.Class, number)); err == nil && len(found) > 0 {
		var labels []string
		for _, object := range found {
			label, _ := k.session.Attribute(object, pkcs11.Label)
			labels = append(labels, fmt.Sprintf("%q", label))
		}
		list = strings.Join(labels, ", ")
	}
	return fmt.Errorf("token %s has no %s key %s; it shows: %s", &k.token, class, k.name(), list)
}

// checkKind refuses all keys but those of P-256.
func (k *Key) checkKind(object pkcs11.Object) error {
	refuse := func(kind string) error {
		return fmt.Errorf("the key %s in token %s is %s; only ECDSA P-256 signs", k.name(), &k.token, kind)
	}
	kind, err := k.session.Attribute(object, pkcs11.KeyType)
	if err != nil || len(kind) != 8 {
		return fmt.Errorf("read the type of the key %s in token %s: %w", k.name(), &k.token, err)
	}
	switch n := binary.NativeEndian.Uint64(kind); n {
	case pkcs11.ECType:
	case pkcs11.RSAType:
		return refuse("an RSA key")
	default:
		return refuse(fmt.Sprintf("of another type (%#x)", n))
	}
	curve, err := k.session.Attribute(object, pkcs11.ECParameters)
	if err != nil {
		return fmt.Errorf("read the curve of the key %s in token %s: %w", k.name(), &k.token, err)
	}
	if !bytes.Equal(curve, p256) {
		return refuse("an elliptic curve key of another curve")
	}
	return nil
}

// PublicKey reads the public key. Where a PIN was shown, the private key has to be there as well.
func (k *Key) PublicKey(...signature.PublicKeyOption) (crypto.PublicKey, error) { return k.publicKey() }

func (k *Key) publicKey() (*ecdsa.PublicKey, error) {
	id := k.uri.ID
	if k.uri.PINSource != "" {
		private, err := k.private()
		if err != nil {
			return nil, err
		}
		if id, err = k.session.Attribute(private, pkcs11.ID); err != nil {
			id = k.uri.ID
		}
	}
	object, ok, err := k.find(pkcs11.PublicKeyClass, id)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, k.absent("public")
	}
	if err := k.checkKind(object); err != nil {
		return nil, err
	}
	point, err := k.session.Attribute(object, pkcs11.ECPoint)
	if err != nil {
		return nil, fmt.Errorf("read the public key %s in token %s: %w", k.name(), &k.token, err)
	}
	var inside []byte
	if rest, err := asn1.Unmarshal(point, &inside); err == nil && len(rest) == 0 {
		point = inside // as the standard says; some modules give the bare point
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		return nil, fmt.Errorf("read the public key %s in token %s: %w", k.name(), &k.token, err)
	}
	return public, nil
}

// SignMessage signs the digest among the options, or the message.
func (k *Key) SignMessage(message io.Reader, options ...signature.SignOption) ([]byte, error) {
	digest, _, err := signature.ComputeDigestForSigning(message, crypto.SHA256, []crypto.Hash{crypto.SHA256},
		options...)
	if err != nil {
		return nil, err
	}
	if len(digest) != sha256.Size {
		return nil, fmt.Errorf("the digest to sign has %d bytes, a sha256 has %d", len(digest), sha256.Size)
	}
	key, err := k.private()
	if err != nil {
		return nil, err
	}
	if err := k.session.SignInit(pkcs11.ECDSA, key); err != nil {
		return nil, fmt.Errorf("sign with the key %s in token %s: %w", k.name(), &k.token, err)
	}
	if each, err := k.session.Attribute(key, pkcs11.AlwaysAuthenticate); err == nil && bytes.Equal(each, []byte{1}) {
		if err := k.login(pkcs11.Again); err != nil {
			return nil, err
		}
	}
	raw, err := k.session.Sign(digest)
	if err != nil {
		return nil, fmt.Errorf("sign with the key %s in token %s: %w", k.name(), &k.token, err)
	}
	if len(raw) != 64 {
		return nil, fmt.Errorf("token %s made a signature of %d bytes, of P-256 they have 64", &k.token, len(raw))
	}
	return asn1.Marshal(struct{ R, S *big.Int }{new(big.Int).SetBytes(raw[:32]), new(big.Int).SetBytes(raw[32:])})
}

// VerifySignature verifies with the public key, outside of the token.
func (k *Key) VerifySignature(signed, message io.Reader, options ...signature.VerifyOption) error {
	public, err := k.publicKey()
	if err != nil {
		return err
	}
	verifier, err := signature.LoadECDSAVerifier(public, crypto.SHA256)
	if err != nil {
		return err
	}
	return verifier.VerifySignature(signed, message, options...)
}

// CreateKey makes a key pair that does not leave the token, with the label and the id of the URI. Where the URI has no
// id, it gets one by chance. A label or an id that is there already is refused.
func (k *Key) CreateKey(_ context.Context, algorithm string) (crypto.PublicKey, error) {
	if algorithm != Algorithm {
		return nil, fmt.Errorf("keys of the kind %q are not made, only %s", algorithm, Algorithm)
	}
	if k.uri.Object == "" {
		return nil, errors.New("a new key needs a name: add object=LABEL to the PKCS#11 URI")
	}
	if !k.hasLogin {
		return nil, fmt.Errorf("token %s needs its PIN before a key is made in it", &k.token)
	}
	for _, class := range []uint64{pkcs11.PrivateKeyClass, pkcs11.PublicKeyClass} {
		if _, ok, err := k.find(class, k.uri.ID); ok || err != nil {
			return nil, errors.Join(err, fmt.Errorf("token %s has a key %s already; nothing was made", &k.token, k.name()))
		}
	}
	if len(k.uri.ID) == 0 {
		k.uri.ID = make([]byte, 16)
		_, _ = rand.Read(k.uri.ID) // never fails
	}
	both := []pkcs11.Attribute{
		pkcs11.Truth(pkcs11.OnToken, true), {Kind: pkcs11.Label, Value: []byte(k.uri.Object)},
		{Kind: pkcs11.ID, Value: k.uri.ID},
	}
	public := append([]pkcs11.Attribute{
		{Kind: pkcs11.ECParameters, Value: p256}, pkcs11.Truth(pkcs11.Verify, true), pkcs11.Truth(pkcs11.Private, false),
	}, both...)
	private := append([]pkcs11.Attribute{
		pkcs11.Truth(pkcs11.Private, true), pkcs11.Truth(pkcs11.Sensitive, true), pkcs11.Truth(pkcs11.Extractable,
			false),
		pkcs11.Truth(pkcs11.Sign, true),
	}, both...)
	if err := k.session.GenerateKeyPair(pkcs11.ECKeyPairGeneration, public, private); err != nil {
		return nil, fmt.Errorf("make the key %s in token %s: %w", k.name(), &k.token, err)
	}
	return k.publicKey()
}

// CryptoSigner is not had: nobody asks for it through the protocol.
func (k *Key) CryptoSigner(context.Context, func(error)) (crypto.Signer, crypto.SignerOpts, error) {
	return nil, nil, errors.New("keys in PKCS#11 tokens sign messages only")
}

// SupportedAlgorithms is the one.
func (k *Key) SupportedAlgorithms() []string { return []string{Algorithm} }

// DefaultAlgorithm is the one.
func (k *Key) DefaultAlgorithm() string { return Algorithm }
