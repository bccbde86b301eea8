package target

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"strings"
	"time"
)

const (
	tokenPath = "/service/token"
	service   = "target"
	issuer    = "target's tokens"
	// lifetime of tokens; shorter ones would be renewed in the middle of things.
	lifetime = 5 * time.Minute
)

// signer signs tokens as the distribution project's specification of them has it.
type signer struct {
	key         *ecdsa.PrivateKey
	der         []byte
	certificate []byte // PEM
}

func newSigner() (*signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: issuer},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &signer{key: key, der: der, certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// access is what a token is good for.
type access struct {
	Type    string   `json:"type"`
	Name    string   `json:"name"`
	Actions []string `json:"actions"`
}

func (s *signer) token(user string, granted []access) (string, error) {
	now := time.Now()
	header := map[string]any{"typ": "JWT", "alg": "ES256", "x5c": []string{base64.StdEncoding.EncodeToString(s.der)}}
	claims := map[string]any{
		"iss": issuer, "sub": user, "aud": service, "jti": rand.Text(),
		"iat": now.Unix(), "nbf": now.Add(-time.Minute).Unix(), "exp": now.Add(lifetime).Unix(), "access": granted,
	}
	var parts []string
	for _, part := range []any{header, claims} {
		text, err := json.Marshal(part)
		if err != nil {
			return "", err
		}
		parts = append(parts, base64.RawURLEncoding.EncodeToString(text))
	}
	signed := strings.Join(parts, ".")
	sum := sha256.Sum256([]byte(signed))
	r, v, err := ecdsa.Sign(rand.Reader, s.key, sum[:])
	if err != nil {
		return "", err
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	v.FillBytes(signature[32:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}

// serveToken gives tokens to users who know their passwords.
func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	if known, ok := s.options.Users[user]; !ok || known != password {
		Refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
		return
	}
	granted := []access{}
	for _, scope := range r.URL.Query()["scope"] {
		parts := strings.SplitN(scope, ":", 3)
		if len(parts) != 3 {
			Refuse(w, http.StatusBadRequest, "UNSUPPORTED", "malformed scope")
			return
		}
		actions := strings.Split(parts[2], ",")
		if s.options.Harbor != nil {
			actions = s.options.Harbor.allowed(user, parts[1], actions)
		}
		granted = append(granted, access{Type: parts[0], Name: parts[1], Actions: actions})
	}
	token, err := s.signer.token(user, granted)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "expires_in": int(lifetime / time.Second)})
}
