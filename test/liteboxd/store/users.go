package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// DefaultPassword is the administrator's where nobody set one.
const DefaultPassword = "liteboxd-admin"

// hashCost is low: these passwords guard nothing, and tests wait for every login.
const hashCost = bcrypt.MinCost

// newID makes an identifier that is also a valid part of a pod's name.
func newID() string { return hex.EncodeToString(random(6)) }

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// NewSecret makes a token, a session token or an API key.
func NewSecret() string { return hex.EncodeToString(random(32)) }

// EnsureAdmin makes the administrator if there is none, with the initial password, or else
// the forced one, or else DefaultPassword. One that is there gets the forced password, unless that
// is empty or the default; the initial password changes nothing then.
func (s *Store) EnsureAdmin(ctx context.Context, username, initial, forced string) error {
	var admins int
	if err := s.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM admin_users").Scan(&admins); err != nil {
		return fmt.Errorf("look for the administrator: %w", err)
	}
	if admins > 0 {
		if forced == "" || forced == DefaultPassword {
			return nil
		}
		hash, err := bcrypt.GenerateFromPassword([]byte(forced), hashCost)
		if err != nil {
			return fmt.Errorf("hash ADMIN_PASSWORD: %w", err)
		}
		return s.exec(ctx, "UPDATE admin_users SET password_hash = ?, updated_at = ? WHERE username = ?", string(hash), now(), username)
	}
	password := initial
	if password == "" {
		password = forced
	}
	if password == "" {
		password = DefaultPassword
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), hashCost)
	if err != nil {
		return fmt.Errorf("hash the administrator's password: %w", err)
	}
	// Another API may have been first.
	return s.exec(ctx, "INSERT OR IGNORE INTO admin_users (id, username, password_hash, created_at, updated_at) VALUES (?, ?, ?, ?, ?)",
		newID(), username, string(hash), now(), now())
}

// Login returns a new session's token, or ErrNotFound where name and password do not match.
func (s *Store) Login(ctx context.Context, username, password string, age time.Duration) (string, error) {
	var id, hash string
	err := s.db.QueryRowContext(ctx, "SELECT id, password_hash FROM admin_users WHERE username = ?", username).Scan(&id, &hash)
	if errors.Is(err, sql.ErrNoRows) || err == nil && bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil {
		return "", fmt.Errorf("user with this password: %w", ErrNotFound)
	}
	if err != nil {
		return "", fmt.Errorf("look for user %s: %w", username, err)
	}
	token := NewSecret()
	return token, s.exec(ctx, "INSERT INTO sessions (token_hash, user_id, created_at, expires_at) VALUES (?, ?, ?, ?)",
		Hash(token), id, now(), stamp(time.Now().Add(age)))
}

// AddAPIKey makes a key; only its hash is kept.
func (s *Store) AddAPIKey(ctx context.Context, name string) (string, error) {
	key := NewSecret()
	return key, s.exec(ctx, "INSERT INTO api_keys (id, name, key_hash, created_at) VALUES (?, ?, ?, ?)", newID(), name, Hash(key), now())
}

// Known reports whether a session is open, or a key is one of ours. Empty ones are neither.
func (s *Store) Known(ctx context.Context, session, key string) (bool, error) {
	var n int
	err := s.db.QueryRowContext(ctx, `SELECT (SELECT COUNT(*) FROM sessions WHERE token_hash = ? AND expires_at > ?) +
		(SELECT COUNT(*) FROM api_keys WHERE key_hash = ?)`, Hash(session), now(), Hash(key)).Scan(&n)
	return n > 0, err
}
