package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func open(t *testing.T, dir string, schema int) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir, schema)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// The tables are those of LiteBoxd, and the file has its name and no write-ahead log.
func TestTables(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 1)
	rows, err := s.Rows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"admin_users", "api_keys", "image_prepulls", "sandbox_reconcile_items", "sandbox_reconcile_runs",
		"sandbox_status_history", "sandboxes", "sessions", "template_versions", "templates"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(rows))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var mode string
	if err := s.db.QueryRowContext(t.Context(), "PRAGMA journal_mode").Scan(&mode); err != nil || mode != "delete" {
		t.Errorf("journal mode %q, %v", mode, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "liteboxd.db")); err != nil {
		t.Error(err)
	}
}

// Migration goes forward, any number of times, keeps the rows, and an older program works with what a newer one left.
func TestMigrate(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir, 1).AddTemplate(t.Context(), &Template{Name: "first", Spec: TemplateSpec{Image: "image:v1"}}); err != nil {
		t.Fatal(err)
	}
	for _, schema := range []int{2, 3, 3, 1} {
		s := open(t, dir, schema)
		if err := s.AddTemplate(t.Context(), &Template{Name: fmt.Sprint("at ", schema, time.Now()), Spec: TemplateSpec{Image: "image:v1"}}); err != nil {
			t.Errorf("schema %d: %v", schema, err)
		}
		templates, err := s.Templates(t.Context())
		if err != nil || templates[len(templates)-1].Name != "first" {
			t.Errorf("schema %d: %v, %v", schema, templates, err)
		}
	}
	for _, schema := range []int{0, 4} {
		if s, err := Open(t.Context(), t.TempDir(), schema); err == nil {
			t.Errorf("schema %d was opened: %v", schema, s.Close())
		}
	}
}

// Several processes may start on one file at once, and write to it.
func TestShared(t *testing.T) {
	dir := t.TempDir()
	const writers, each = 4, 10
	errs := make(chan error, writers)
	for w := range writers {
		go func() {
			s, err := Open(context.WithoutCancel(t.Context()), dir, 1+w%2)
			if err != nil {
				errs <- err
				return
			}
			for n := range each {
				_, problem := s.AddPrepull(context.WithoutCancel(t.Context()), fmt.Sprint("image:", w, n))
				err = errors.Join(err, problem)
			}
			errs <- errors.Join(err, s.Close())
		}()
	}
	for range writers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	prepulls, err := open(t, dir, 2).Prepulls(t.Context())
	if err != nil || len(prepulls) != writers*each {
		t.Errorf("%d rows, %v", len(prepulls), err)
	}
}

func TestAdmin(t *testing.T) {
	type start struct{ initial, forced string }
	for _, c := range []struct {
		name   string
		starts []start
		want   string
	}{
		{"default", []start{{}}, DefaultPassword},
		{"initial", []start{{initial: "one"}}, "one"},
		{"initial before forced", []start{{initial: "one", forced: "two"}}, "one"},
		{"initial is for the first start", []start{{initial: "one"}, {initial: "two"}}, "one"},
		{"forced", []start{{initial: "one"}, {forced: "two"}}, "two"},
		{"the default is not forced", []start{{initial: "one"}, {forced: DefaultPassword}}, "one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, t.TempDir(), 1)
			for _, start := range c.starts {
				if err := s.EnsureAdmin(t.Context(), "admin", start.initial, start.forced); err != nil {
					t.Fatal(err)
				}
			}
			session, err := s.Login(t.Context(), "admin", c.want, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if known, err := s.Known(t.Context(), session, ""); err != nil || !known {
				t.Errorf("the session is known: %v, %v", known, err)
			}
			for _, wrong := range []string{"", c.want + "x"} {
				if _, err := s.Login(t.Context(), "admin", wrong, time.Hour); !errors.Is(err, ErrNotFound) {
					t.Errorf("login with %q: %v", wrong, err)
				}
			}
		})
	}
}

func TestKnown(t *testing.T) {
	s := open(t, t.TempDir(), 1)
	if err := s.EnsureAdmin(t.Context(), "admin", "password", ""); err != nil {
		t.Fatal(err)
	}
	over, err := s.Login(t.Context(), "admin", "password", -time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := s.AddAPIKey(t.Context(), "ci")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		session, key string
		want         bool
	}{{"", "", false}, {over, "", false}, {"", key, true}, {key, "", false}, {over, key, true}, {"", key + "0", false}} {
		if known, err := s.Known(t.Context(), c.session, c.key); err != nil || known != c.want {
			t.Errorf("%+v: %v, %v", c, known, err)
		}
	}
}

func TestSandboxes(t *testing.T) {
	s := open(t, t.TempDir(), 2)
	created := time.Now().UTC().Truncate(time.Second)
	want := Sandbox{
		ID: "0a1b", TemplateID: "t", TemplateVersion: 1, Image: "image:v1", Status: "pending", TokenHash: Hash("token"),
		TokenCiphertext: []byte{1, 2}, TokenKeyID: "v1", AllowedDomains: []string{"example.org"}, CreatedAt: created, ExpiresAt: created.Add(time.Hour),
	}
	if err := s.AddSandbox(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	got, err := s.Sandbox(t.Context(), want.ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := s.SetSandboxStatus(t.Context(), got, "running", "found"); err != nil {
		t.Fatal(err)
	}
	if err := s.AddReconcileRun(t.Context(), created, 1, map[string]string{want.ID: "running"}, errors.New("boom")); err != nil {
		t.Fatal(err)
	}
	if err := s.SetSandboxStatus(t.Context(), got, Deleted, "asked for"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sandbox(t.Context(), want.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("a deleted sandbox: %v", err)
	}
	check := func(sandboxes int) {
		t.Helper()
		rows, err := s.Rows(t.Context())
		if err != nil || rows["sandboxes"] != sandboxes || rows["sandbox_status_history"] != 2 || rows["sandbox_reconcile_items"] != 1 {
			t.Errorf("%v, %v", rows, err)
		}
	}
	check(1)
	if err := s.RemoveOld(t.Context(), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	check(1)
	if err := s.RemoveOld(t.Context(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	check(0)
}

func TestReconcileRunsAreBounded(t *testing.T) {
	s := open(t, t.TempDir(), 1)
	for range reconcileRunsKept + 5 {
		if err := s.AddReconcileRun(t.Context(), time.Now(), 0, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := s.Rows(t.Context())
	if err != nil || rows["sandbox_reconcile_runs"] != reconcileRunsKept {
		t.Errorf("%v, %v", rows, err)
	}
}
