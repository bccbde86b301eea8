// Package token reads and writes the tokens that nodes join with. Their forms
// are k3s':
//
//	K10<sha256 that names the CA>::<user>:<password>
//	K10<sha256 that names the CA>::<id>.<secret>      made by "k3s token create", for agents
//	<password>                                           names no CA: any is believed
package token

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"regexp"
	"strings"
)

// Token is what a node shows a server.
type Token struct {
	Hash     string // of the CA, in hex; empty when the token names none
	User     string // "server" or "node"; empty for a bootstrap token and a bare password
	Password string // of a bootstrap token: id.secret
}

var bootstrap = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)

// Parse reads a token in any of its forms.
func Parse(text string) (Token, error) {
	rest, full := strings.CutPrefix(text, "K10")
	if !full {
		return Token{Password: text}, nil
	}
	hash, login, ok := strings.Cut(rest, "::")
	if _, err := hex.DecodeString(hash); !ok || err != nil || len(hash) != 2*sha256.Size {
		return Token{}, errors.New("invalid token format: want K10<CA-HASH>::<USERNAME>:<PASSWORD>")
	}
	if bootstrap.MatchString(login) {
		return Token{Hash: hash, Password: login}, nil
	}
	user, password, ok := strings.Cut(login, ":")
	if !ok || user == "" || password == "" {
		return Token{}, errors.New("invalid token format: want K10<CA-HASH>::<USERNAME>:<PASSWORD>")
	}
	return Token{Hash: hash, User: user, Password: password}, nil
}

// String is the form that Parse reads.
func (t Token) String() string {
	switch {
	case t.Hash == "":
		return t.Password
	case t.User == "":
		return "K10" + t.Hash + "::" + t.Password
	}
	return "K10" + t.Hash + "::" + t.User + ":" + t.Password
}

// IsBootstrap says whether the token is one of "k3s token create".
func (t Token) IsBootstrap() bool { return bootstrap.MatchString(t.Password) }

// Hash is the hash by which a token names a CA: of the file, or, where that has a chain, of the root at its end.
func Hash(caPEM []byte) string {
	named := caPEM
	if root := rootOf(caPEM); root != nil {
		named = root.Raw
	}
	sum := sha256.Sum256(named)
	return hex.EncodeToString(sum[:])
}

// rootOf is the root of a file with more certificates than one, nil for none.
func rootOf(caPEM []byte) *x509.Certificate {
	var chain []*x509.Certificate
	for block, rest := pem.Decode(caPEM); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil
		}
		chain = append(chain, c)
	}
	if len(chain) < 2 {
		return nil
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, c := range chain[1:] {
		if len(c.AuthorityKeyId) == 0 || bytes.Equal(c.AuthorityKeyId, c.SubjectKeyId) {
			roots.AddCert(c)
		} else {
			between.AddCert(c)
		}
	}
	found, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
	if err != nil {
		return nil
	}
	return found[0][len(found[0])-1]
}

// NewPassword makes a password that nobody guesses.
func NewPassword() string { return strings.ToLower(rand.Text()) }

// NewBootstrap makes the id and the secret of a bootstrap token.
func NewBootstrap() (id, secret string) {
	text := strings.ToLower(rand.Text())
	return text[:6], text[6:22]
}
