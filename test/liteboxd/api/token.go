package api

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
)

// tokenKey encrypts the sandboxes' access tokens in the database.
type tokenKey struct {
	id  string
	gcm cipher.AEAD
}

// parseTokenKey takes a key of 16, 24 or 32 bytes as it is, in hexadecimal or in base64.
// There is no default.
func parseTokenKey(text string) (tokenKey, error) {
	if text == "" {
		return tokenKey{}, errors.New("it is not set, and there is no default")
	}
	candidates := [][]byte{[]byte(text)}
	if key, err := hex.DecodeString(text); err == nil {
		candidates = append([][]byte{key}, candidates...)
	}
	if key, err := base64.StdEncoding.DecodeString(text); err == nil {
		candidates = append(candidates, key)
	}
	for _, key := range candidates {
		block, err := aes.NewCipher(key)
		if err != nil {
			continue // not one of the three lengths in this form
		}
		gcm, err := cipher.NewGCM(block)
		return tokenKey{gcm: gcm}, err
	}
	return tokenKey{}, errors.New("want 16, 24 or 32 bytes, raw, in hexadecimal or in base64")
}

func (k tokenKey) seal(token string) []byte {
	nonce := make([]byte, k.gcm.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	return k.gcm.Seal(nonce, nonce, []byte(token), []byte(k.id))
}

// open fails when the token was encrypted with another key.
func (k tokenKey) open(sealed []byte, id string) (string, error) {
	size := k.gcm.NonceSize()
	if len(sealed) < size {
		return "", errors.New("decrypt the access token: it is too short")
	}
	token, err := k.gcm.Open(nil, sealed[:size], sealed[size:], []byte(id))
	if err != nil {
		return "", fmt.Errorf("decrypt the access token, encrypted with key %s: %w", id, err)
	}
	return string(token), nil
}
