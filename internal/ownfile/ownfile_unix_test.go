//go:build unix

package ownfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// foreign are things that others can put at a name that they foresee.
var foreign = map[string]struct {
	put     func(t *testing.T, path, victim string)
	message string
}{
	"symbolic link": {func(t *testing.T, path, victim string) { must(t, os.Symlink(victim, path)) }, "symbolic link"},
	"link to nothing": {func(t *testing.T, path, victim string) {
		must(t, os.Symlink(victim+".new", path))
	}, "symbolic link"},
	"hard link": {func(t *testing.T, path, victim string) { must(t, os.Link(victim, path)) }, "has 2 names"},
	"pipe":      {func(t *testing.T, path, _ string) { must(t, syscall.Mkfifo(path, 0o666)) }, "no regular file"},
	"another user's file": {func(t *testing.T, path, _ string) {
		if os.Geteuid() != 0 {
			t.Skip("only root can give files away")
		}
		must(t, os.WriteFile(path, nil, 0o666))
		must(t, os.Chown(path, 12345, -1))
	}, "belongs to the user 12345"},
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestForeign(t *testing.T) {
	for name, test := range foreign {
		for kind, open := range map[string]func(path string) error{
			"open": func(path string) error {
				f, err := Open(path, os.O_RDWR|os.O_CREATE, 0o600)
				if err == nil {
					_ = f.Close()
				}
				return err
			},
			"lock": func(path string) error {
				l, _, err := Lock(path, 0o600)
				if err == nil {
					_ = l.Close()
				}
				return err
			},
			"wait": func(path string) error {
				l, err := Wait(path, 0o600)
				if err == nil {
					_ = l.Close()
				}
				return err
			},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				dir := t.TempDir()
				path, victim := filepath.Join(dir, "draft"), filepath.Join(dir, "victim")
				must(t, os.WriteFile(victim, []byte("somebody's"), 0o600))
				test.put(t, path, victim)
				if err := open(path); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), test.message) {
					t.Errorf("got %v, expected %q", err, test.message)
				}
				entries, err := os.ReadDir(dir)
				if content, _ := os.ReadFile(victim); err != nil || string(content) != "somebody's" || len(entries) > 2 {
					t.Errorf("there is %v, and in the victim %q, %v", entries, content, err)
				}
			})
		}
	}
}

func TestOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "draft")
	f, err := Open(path, os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	defer f.Close()
	again, err := Open(path, os.O_RDWR, 0)
	must(t, err)
	must(t, again.Close())
	l, locked, err := Lock(path, 0o600)
	if err != nil || !locked {
		t.Fatalf("it is not locked: %v", err)
	}
	defer l.Close()
	second, locked, err := Lock(path, 0o600)
	if err != nil || locked {
		t.Fatalf("it is locked twice: %v", err)
	}
	must(t, second.Close())
	must(t, Rename(f, path+".final"))
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old name: %v", err)
	}
}

func TestRenameReplaced(t *testing.T) {
	dir := t.TempDir()
	path, final := filepath.Join(dir, "draft"), filepath.Join(dir, "final")
	for name, replace := range map[string]func() error{
		"by a file": func() error { return os.WriteFile(path, nil, 0o600) },
		"by a link": func() error { return os.Symlink("victim", path) },
		"gone":      func() error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Open(path, os.O_RDWR|os.O_CREATE, 0o600)
			must(t, err)
			defer f.Close()
			must(t, os.Remove(path))
			must(t, replace())
			defer os.Remove(path) //nolint:errcheck // for the next one
			if err := Rename(f, final); !errors.Is(err, ErrForeign) && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("got %v", err)
			}
			if _, err := os.Lstat(final); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it has its final name: %v", err)
			}
		})
	}
}
