package keys

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
)

// Vault answers as the transit engine of Vault and OpenBao does over HTTP, as far as making a key, reading it and
// signing with it goes. Keys are real ones, in memory.
type Vault struct {
	// Address is what VAULT_ADDR has to be, and Secret what VAULT_TOKEN has to be.
	Address, Secret string

	mu   sync.Mutex
	keys map[string]crypto.Signer
	// signed counts signatures.
	signed int
}

// NewVault starts one until the test ends.
func NewVault(t testing.TB) *Vault {
	v := &Vault{Secret: "hvs.secret", keys: make(map[string]crypto.Signer)}
	routes := http.NewServeMux()
	routes.HandleFunc("PUT /v1/transit/keys/{name}", v.create)
	routes.HandleFunc("GET /v1/transit/keys/{name}", v.read)
	routes.HandleFunc("PUT /v1/transit/sign/{name}/{hash}", v.sign)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Vault-Token") != v.Secret {
			refuse(w, http.StatusForbidden, "permission denied")
			return
		}
		routes.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	v.Address = server.URL
	return v
}

// Signed is how many signatures were made.
func (v *Vault) Signed() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.signed
}

func refuse(w http.ResponseWriter, code int, errors ...string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": append([]string{}, errors...)})
}

func answer(w http.ResponseWriter, data map[string]any) {
	_ = json.NewEncoder(w).Encode(map[string]any{"request_id": "1", "lease_id": "", "data": data})
}

// create makes a key, unless it is there.
func (v *Vault) create(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Type string `json:"type"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	name := r.PathValue("name")
	if v.keys[name] == nil {
		var key crypto.Signer
		var err error
		switch asked.Type {
		case "ecdsa-p256":
			key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		case "ecdsa-p384":
			key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
		case "rsa-2048":
			key, err = rsa.GenerateKey(rand.Reader, 2048)
		default:
			err = fmt.Errorf("unknown key type %q", asked.Type)
		}
		if err != nil {
			refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		v.keys[name] = key
	}
	v.describe(w, v.keys[name])
}

func (v *Vault) read(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	key := v.keys[r.PathValue("name")]
	if key == nil {
		refuse(w, http.StatusNotFound)
		return
	}
	v.describe(w, key)
}

func (v *Vault) describe(w http.ResponseWriter, key crypto.Signer) {
	public, err := cryptoutils.MarshalPublicKeyToPEM(key.Public())
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	answer(w, map[string]any{
		"latest_version": 1, "min_available_version": 0, "supports_signing": true, "exportable": false,
		"keys": map[string]any{"1": map[string]any{"creation_time": "2026-11-26T00:00:00Z", "public_key": string(public)}},
	})
}

func (v *Vault) sign(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Input     []byte `json:"input"`
		Prehashed bool   `json:"prehashed"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	key := v.keys[r.PathValue("name")]
	switch {
	case key == nil:
		refuse(w, http.StatusBadRequest, "signing key not found")
		return
	case !asked.Prehashed || !strings.EqualFold(r.PathValue("hash"), "sha2-256"):
		refuse(w, http.StatusBadRequest, "expected the sha2-256 of what is to be signed")
		return
	}
	signed, err := key.Sign(rand.Reader, asked.Input, crypto.SHA256)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	v.signed++
	answer(w, map[string]any{"key_version": 1, "signature": "vault:v1:" + base64.StdEncoding.EncodeToString(signed)})
}
