package sitetest

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/internal/backup"
)

// OpenBackup makes a backup of a server with SQLite, with a token, and one of agents if there is a second.
func OpenBackup(t *testing.T, m backup.Manifest, token string, agents ...string) *backup.Reader {
	t.Helper()
	entries := map[string]string{backup.Token: token + "\n"}
	for _, token := range agents {
		entries[backup.AgentToken] = token + "\n"
	}
	return BackupWith(t, m, entries)
}

// BackupWith makes a backup of a server with SQLite that has the entries given, too.
func BackupWith(t *testing.T, m backup.Manifest, entries map[string]string) *backup.Reader {
	t.Helper()
	dir := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range entries {
		write(name, content)
	}
	write(backup.SQLiteDatabase, "")
	db, err := sql.Open("sqlite", filepath.Join(dir, backup.SQLiteDatabase))
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), "CREATE TABLE kine (id INTEGER PRIMARY KEY)")
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	m.Time, m.Datastore, m.Server = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), backup.SQLite, "first"
	path := filepath.Join(t.TempDir(), "b.tar")
	if _, err := backup.Write(t.Context(), path, m, dir); err != nil {
		t.Fatal(err)
	}
	r, err := backup.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// FullToken is a token of a server as k3s writes it.
const FullToken = "K10" + "abc" + "::server:canary-password"
