package store

import (
	"context"
	"database/sql"
	"fmt"
)

// tables are those of the first schema. The names are LiteBoxd's, the columns are not.
var tables = []string{
	`CREATE TABLE IF NOT EXISTS templates (
		id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, description TEXT NOT NULL DEFAULT '',
		current_version INTEGER NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL)`,
	`CREATE TABLE IF NOT EXISTS template_versions (
		id TEXT PRIMARY KEY, template_id TEXT NOT NULL REFERENCES templates(id), version INTEGER NOT NULL,
		spec TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE (template_id, version))`,
	`CREATE TABLE IF NOT EXISTS image_prepulls (
		id TEXT PRIMARY KEY, image TEXT NOT NULL, image_hash TEXT NOT NULL, status TEXT NOT NULL,
		error TEXT NOT NULL DEFAULT '', created_at TEXT NOT NULL, updated_at TEXT NOT NULL)`,
	`CREATE TABLE IF NOT EXISTS sandboxes (
		id TEXT PRIMARY KEY, template_id TEXT NOT NULL, template_version INTEGER NOT NULL, image TEXT NOT NULL,
		status TEXT NOT NULL, token_hash TEXT NOT NULL, token_ciphertext BLOB NOT NULL, token_key_id TEXT NOT NULL,
		allowed_domains TEXT NOT NULL DEFAULT '[]', created_at TEXT NOT NULL, expires_at TEXT NOT NULL, deleted_at TEXT)`,
	`CREATE TABLE IF NOT EXISTS sandbox_status_history (
		id INTEGER PRIMARY KEY AUTOINCREMENT, sandbox_id TEXT NOT NULL, from_status TEXT NOT NULL,
		to_status TEXT NOT NULL, reason TEXT NOT NULL, created_at TEXT NOT NULL)`,
	`CREATE TABLE IF NOT EXISTS sandbox_reconcile_runs (
		id INTEGER PRIMARY KEY AUTOINCREMENT, started_at TEXT NOT NULL, finished_at TEXT NOT NULL,
		sandboxes INTEGER NOT NULL, error TEXT NOT NULL DEFAULT '')`,
	`CREATE TABLE IF NOT EXISTS sandbox_reconcile_items (
		id INTEGER PRIMARY KEY AUTOINCREMENT, run_id INTEGER NOT NULL, sandbox_id TEXT NOT NULL, action TEXT NOT NULL)`,
	`CREATE TABLE IF NOT EXISTS admin_users (
		id TEXT PRIMARY KEY, username TEXT NOT NULL UNIQUE, password_hash TEXT NOT NULL,
		created_at TEXT NOT NULL, updated_at TEXT NOT NULL)`,
	`CREATE TABLE IF NOT EXISTS sessions (
		token_hash TEXT PRIMARY KEY, user_id TEXT NOT NULL, created_at TEXT NOT NULL, expires_at TEXT NOT NULL)`,
	`CREATE TABLE IF NOT EXISTS api_keys (
		id TEXT PRIMARY KEY, name TEXT NOT NULL, key_hash TEXT NOT NULL UNIQUE, created_at TEXT NOT NULL)`,
	`CREATE INDEX IF NOT EXISTS sandboxes_status ON sandboxes (status)`,
}

// changes are the later schemas: the first of them makes schema 2.
var changes = []struct{ table, column, definition, index string }{
	{"sandboxes", "last_seen_at", "TEXT", "CREATE INDEX sandboxes_status ON sandboxes (status, deleted_at)"},
	{"templates", "labels", "TEXT NOT NULL DEFAULT '{}'", "CREATE INDEX sandboxes_status ON sandboxes (status, deleted_at, expires_at)"},
}

// migrate goes forward only: what is there already stays, also what a later release added.
func migrate(ctx context.Context, db *sql.DB, schema int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // committed by then if all is well
	for _, statement := range tables {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	if schema < 1 || schema > len(changes)+1 {
		return fmt.Errorf("there is no schema %d", schema)
	}
	for _, c := range changes[:schema-1] {
		var found int
		if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM pragma_table_info(?) WHERE name = ?", c.table, c.column).Scan(&found); err != nil {
			return err
		}
		if found > 0 {
			continue
		}
		for _, statement := range []string{
			"ALTER TABLE " + c.table + " ADD COLUMN " + c.column + " " + c.definition,
			"DROP INDEX IF EXISTS sandboxes_status", c.index,
		} {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
	}
	return tx.Commit()
}
