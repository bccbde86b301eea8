// Package store is the SQLite database of the stand-ins for LiteBoxd: the real one's file
// and table names, one file that several processes share, without a write-ahead log.
package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// File is the database's name in the data folder.
const File = "liteboxd.db"

// ErrNotFound is returned for rows that are not there.
var ErrNotFound = errors.New("not found")

// Store is the open database.
type Store struct{ db *sql.DB }

// Open opens the database in a folder, which is made if it is missing, and migrates it.
//
// Who finds the file locked tries again for 5 seconds: LiteBoxd asks for no time-out, but
// its driver has this one by itself.
func Open(ctx context.Context, dir string, schema int) (*Store, error) {
	name, err := filepath.Abs(filepath.Join(dir, File))
	if err != nil {
		return nil, fmt.Errorf("find the data folder %s: %w", dir, err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	source := url.URL{Scheme: "file", Path: name, RawQuery: "_pragma=busy_timeout(5000)&_txlock=immediate"}
	db, err := sql.Open("sqlite", source.String())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	db.SetMaxOpenConns(1)
	if err := migrate(ctx, db, schema); err != nil {
		return nil, errors.Join(fmt.Errorf("migrate %s to schema %d: %w", name, schema, err), db.Close())
	}
	return &Store{db}, nil
}

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// Hash is how tokens, session tokens and API keys are kept.
func Hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func now() string { return stamp(time.Now()) }

// TemplateSpec is what a version of a template says of its sandboxes.
type TemplateSpec struct {
	Image          string   `json:"image"`
	Command        []string `json:"command,omitempty"`
	CPU            string   `json:"cpu,omitempty"`    // 500m by default
	Memory         string   `json:"memory,omitempty"` // 512Mi by default
	InternetAccess bool     `json:"internetAccess,omitempty"`
	AllowedDomains []string `json:"allowedDomains,omitempty"`
}

// Template is a template in its current version.
type Template struct {
	ID        string       `json:"id"`
	Name      string       `json:"name"`
	Version   int          `json:"version"`
	Spec      TemplateSpec `json:"spec"`
	CreatedAt string       `json:"createdAt"`
}

// AddTemplate adds a template in its first version, and sets ID, Version and CreatedAt.
func (s *Store) AddTemplate(ctx context.Context, t *Template) error {
	spec, err := json.Marshal(t.Spec)
	if err != nil {
		return err
	}
	t.ID, t.Version, t.CreatedAt = newID(), 1, now()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // committed by then if all is well
	_, err = tx.ExecContext(ctx, "INSERT INTO templates (id, name, current_version, created_at, updated_at) VALUES (?, ?, ?, ?, ?)",
		t.ID, t.Name, t.Version, t.CreatedAt, t.CreatedAt)
	if err != nil {
		return fmt.Errorf("add template %s: %w", t.Name, err)
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO template_versions (id, template_id, version, spec, created_at) VALUES (?, ?, ?, ?, ?)",
		newID(), t.ID, t.Version, string(spec), t.CreatedAt)
	if err != nil {
		return fmt.Errorf("add a version of template %s: %w", t.Name, err)
	}
	return tx.Commit()
}

// Templates lists all, in order of their names.
func (s *Store) Templates(ctx context.Context) ([]Template, error) {
	return query(ctx, s, func(row *sql.Rows) (t Template, err error) {
		var spec string
		if err := row.Scan(&t.ID, &t.Name, &t.Version, &spec, &t.CreatedAt); err != nil {
			return t, err
		}
		return t, json.Unmarshal([]byte(spec), &t.Spec)
	}, `SELECT t.id, t.name, t.current_version, v.spec, t.created_at FROM templates t
		JOIN template_versions v ON v.template_id = t.id AND v.version = t.current_version ORDER BY t.name`)
}

// Prepull is the wish to have an image on the nodes.
type Prepull struct {
	ID        string `json:"id"`
	Image     string `json:"image"`
	ImageHash string `json:"imageHash"`
	Status    string `json:"status"` // pulling, completed, failed
	Error     string `json:"error,omitempty"`
	CreatedAt string `json:"createdAt"`
}

// AddPrepull adds one that is being pulled.
func (s *Store) AddPrepull(ctx context.Context, image string) (Prepull, error) {
	p := Prepull{ID: newID(), Image: image, ImageHash: Hash(image)[:16], Status: "pulling", CreatedAt: now()}
	return p, s.exec(ctx, "INSERT INTO image_prepulls (id, image, image_hash, status, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?)",
		p.ID, p.Image, p.ImageHash, p.Status, p.CreatedAt, p.CreatedAt)
}

// SetPrepull notes what became of one.
func (s *Store) SetPrepull(ctx context.Context, id, status, problem string) error {
	return s.exec(ctx, "UPDATE image_prepulls SET status = ?, error = ?, updated_at = ? WHERE id = ?", status, problem, now(), id)
}

// Prepulls lists all, the oldest first.
func (s *Store) Prepulls(ctx context.Context) ([]Prepull, error) {
	return query(ctx, s, func(row *sql.Rows) (p Prepull, err error) {
		return p, row.Scan(&p.ID, &p.Image, &p.ImageHash, &p.Status, &p.Error, &p.CreatedAt)
	}, "SELECT id, image, image_hash, status, error, created_at FROM image_prepulls ORDER BY created_at, id")
}

// Sandbox is a sandbox's row.
type Sandbox struct {
	ID              string
	TemplateID      string
	TemplateVersion int
	Image           string
	Status          string // pending, running, failed, lost, deleted
	TokenHash       string
	TokenCiphertext []byte
	TokenKeyID      string
	AllowedDomains  []string
	CreatedAt       time.Time
	ExpiresAt       time.Time
}

// Deleted is the status of sandboxes that were deleted; their rows stay for the time of retention.
const Deleted = "deleted"

// AddSandbox adds a row.
func (s *Store) AddSandbox(ctx context.Context, b Sandbox) error {
	domains, err := json.Marshal(b.AllowedDomains)
	if err != nil {
		return err
	}
	return s.exec(ctx, `INSERT INTO sandboxes (id, template_id, template_version, image, status, token_hash, token_ciphertext,
		token_key_id, allowed_domains, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		b.ID, b.TemplateID, b.TemplateVersion, b.Image, b.Status, b.TokenHash, b.TokenCiphertext,
		b.TokenKeyID, string(domains), stamp(b.CreatedAt), stamp(b.ExpiresAt))
}

const sandboxColumns = `SELECT id, template_id, template_version, image, status, token_hash, token_ciphertext,
	token_key_id, allowed_domains, created_at, expires_at FROM sandboxes`

func scanSandbox(row *sql.Rows) (b Sandbox, err error) {
	var domains, created, expires string
	err = row.Scan(&b.ID, &b.TemplateID, &b.TemplateVersion, &b.Image, &b.Status, &b.TokenHash, &b.TokenCiphertext,
		&b.TokenKeyID, &domains, &created, &expires)
	if err != nil {
		return b, err
	}
	var problems [2]error
	b.CreatedAt, problems[0] = time.Parse(time.RFC3339, created)
	b.ExpiresAt, problems[1] = time.Parse(time.RFC3339, expires)
	return b, errors.Join(json.Unmarshal([]byte(domains), &b.AllowedDomains), problems[0], problems[1])
}

// Sandboxes lists those that are not deleted, the oldest first.
func (s *Store) Sandboxes(ctx context.Context) ([]Sandbox, error) {
	return query(ctx, s, scanSandbox, sandboxColumns+" WHERE deleted_at IS NULL ORDER BY created_at, id")
}

// Sandbox returns one that is not deleted, or ErrNotFound.
func (s *Store) Sandbox(ctx context.Context, id string) (Sandbox, error) {
	found, err := query(ctx, s, scanSandbox, sandboxColumns+" WHERE deleted_at IS NULL AND id = ?", id)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("sandbox %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return Sandbox{}, err
	}
	return found[0], nil
}

// SetSandboxStatus notes a new status and why; the status deleted hides the row.
func (s *Store) SetSandboxStatus(ctx context.Context, b Sandbox, status, reason string) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // committed by then if all is well
	statement, args := "UPDATE sandboxes SET status = ? WHERE id = ?", []any{status, b.ID}
	if status == Deleted {
		statement, args = "UPDATE sandboxes SET status = ?, deleted_at = ? WHERE id = ?", []any{status, now(), b.ID}
	}
	if _, err := tx.ExecContext(ctx, statement, args...); err != nil {
		return fmt.Errorf("set the status of sandbox %s: %w", b.ID, err)
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO sandbox_status_history (sandbox_id, from_status, to_status, reason, created_at) VALUES (?, ?, ?, ?, ?)",
		b.ID, b.Status, status, reason, now())
	if err != nil {
		return fmt.Errorf("note the status of sandbox %s: %w", b.ID, err)
	}
	return tx.Commit()
}

// reconcileRunsKept bounds what the loop leaves behind.
const reconcileRunsKept = 100

// AddReconcileRun notes a run and what it did, by sandbox.
func (s *Store) AddReconcileRun(ctx context.Context, started time.Time, sandboxes int, actions map[string]string, problem error) error {
	text := ""
	if problem != nil {
		text = problem.Error()
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // committed by then if all is well
	result, err := tx.ExecContext(ctx, "INSERT INTO sandbox_reconcile_runs (started_at, finished_at, sandboxes, error) VALUES (?, ?, ?, ?)",
		stamp(started), now(), sandboxes, text)
	if err != nil {
		return fmt.Errorf("note a reconcile run: %w", err)
	}
	run, err := result.LastInsertId()
	if err != nil {
		return err
	}
	for sandbox, action := range actions {
		if _, err := tx.ExecContext(ctx, "INSERT INTO sandbox_reconcile_items (run_id, sandbox_id, action) VALUES (?, ?, ?)", run, sandbox, action); err != nil {
			return fmt.Errorf("note what became of sandbox %s: %w", sandbox, err)
		}
	}
	for table, column := range map[string]string{"sandbox_reconcile_runs": "id", "sandbox_reconcile_items": "run_id"} {
		if _, err := tx.ExecContext(ctx, "DELETE FROM "+table+" WHERE "+column+" <= ?", run-reconcileRunsKept); err != nil {
			return fmt.Errorf("remove old rows of %s: %w", table, err)
		}
	}
	return tx.Commit()
}

// RemoveOld removes the rows of sandboxes that were deleted before a time.
func (s *Store) RemoveOld(ctx context.Context, before time.Time) error {
	return s.exec(ctx, "DELETE FROM sandboxes WHERE deleted_at < ?", stamp(before))
}

// Rows counts the rows of every table.
func (s *Store) Rows(ctx context.Context) (map[string]int, error) {
	names, err := query(ctx, s, func(row *sql.Rows) (name string, err error) { return name, row.Scan(&name) },
		"SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, name := range names {
		var n int
		if err := s.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+name).Scan(&n); err != nil {
			return nil, fmt.Errorf("count the rows of %s: %w", name, err)
		}
		counts[name] = n
	}
	return counts, nil
}

func (s *Store) exec(ctx context.Context, statement string, args ...any) error {
	_, err := s.db.ExecContext(ctx, statement, args...)
	return err
}

func query[T any](ctx context.Context, s *Store, scan func(*sql.Rows) (T, error), statement string, args ...any) (list []T, err error) {
	rows, err := s.db.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, rows.Err()
}
