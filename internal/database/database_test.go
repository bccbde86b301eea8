package database

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// write makes a database with statements.
func write(t *testing.T, statements ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a database?.db") // a name that needs escaping
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	return filepath.Join(filepath.Dir(path), entries[0].Name())
}

func TestRead(t *testing.T) {
	path := write(t,
		`CREATE TABLE templates (id INTEGER PRIMARY KEY, name TEXT)`,
		`INSERT INTO templates (id, name) VALUES (2, 'b'), (1, 'a')`,
		`CREATE TABLE versions (template TEXT, version INTEGER, spec TEXT, PRIMARY KEY (template, version))`,
		`INSERT INTO versions VALUES ('it''s', 1, 'x'), ('b', 10, 'y')`,
		`CREATE TABLE "odd ""name" (text TEXT)`,
		`INSERT INTO "odd ""name" VALUES ('secret')`,
	)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := Read(t.Context(), path, "templates", "versions", `odd "name`, "not there")
	if err != nil {
		t.Fatal(err)
	}
	want := Keys{"templates": {"1", "2"}, "versions": {"'b', 10", "'it''s', 1"}, `odd "name`: {"1"}, "not there": nil}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	after, err := os.ReadFile(path)
	if err != nil || string(before) != string(after) {
		t.Errorf("reading has changed the file: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("beside the database: %v, %v", entries, err)
	}
}

func TestMissing(t *testing.T) {
	before := Keys{"templates": {"1", "2", "3"}, "prepulls": {"'a'"}, "empty": nil}
	for _, c := range []struct {
		name  string
		after Keys
		want  []string
	}{
		{"the same", before, nil},
		{"more", Keys{"templates": {"1", "2", "3", "4"}, "prepulls": {"'a'", "'b'"}}, nil},
		{"some gone", Keys{"templates": {"1", "3"}, "prepulls": nil}, []string{"prepulls 'a'", "templates 2"}},
		{"all gone", nil, []string{"prepulls 'a'", "templates 1", "templates 2", "templates 3"}},
	} {
		if diff := cmp.Diff(c.want, before.Missing(c.after)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestDamaged(t *testing.T) {
	path := write(t, `CREATE TABLE templates (id INTEGER PRIMARY KEY, name TEXT)`, `CREATE INDEX names ON templates (name)`,
		`INSERT INTO templates (name) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 2000) SELECT 'template ' || i FROM n`)
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"cut off":        sound[:len(sound)/2],
		"page destroyed": append(append([]byte{}, sound[:4096]...), append(make([]byte, 4096), sound[8192:]...)...),
		"not a database": []byte("this is no database, it is a text that is long enough to be one: " + string(make([]byte, 200))),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(t.Context(), path, "templates"); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Read(t.Context(), filepath.Join(t.TempDir(), "none"), "templates"); err == nil {
		t.Error("a file that is not there was read")
	}
}

// The rows of all tables are counted, in a copy that is sound.
func TestCounts(t *testing.T) {
	path := write(t,
		`CREATE TABLE templates (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT)`, // makes sqlite_sequence, too
		`INSERT INTO templates (name) VALUES ('a'), ('b')`,
		`CREATE TABLE "odd ""name" (text TEXT)`, `CREATE TABLE sqliteish (text TEXT)`,
		`CREATE VIEW names AS SELECT name FROM templates`,
	)
	rows, err := Counts(t.Context(), path)
	want := map[string]int64{"templates": 2, `odd "name`: 0, "sqliteish": 0}
	if diff := cmp.Diff(want, rows); diff != "" || err != nil {
		t.Errorf("%v, %s", err, diff)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(t.TempDir(), "damaged.db")
	if err := os.WriteFile(damaged, append(content[:4096:4096], make([]byte, len(content)-4096)...), 0o600); err != nil {
		t.Fatal(err)
	}
	if rows, err := Counts(t.Context(), damaged); !errors.Is(err, ErrDamaged) {
		t.Errorf("of a damaged copy: %v, %v", rows, err)
	}
}
